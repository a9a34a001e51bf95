// ExecuTorch's backend `CoreMLBackend`, implemented with coremill's C interface. On systems without Core ML,
// its programs run on coremill's engine.
//
// The library registers the backend when it is loaded. Load it, or link it completely, before a method is
// loaded. If the name is already registered, e.g. by Core ML's own delegate, the library logs a message and
// registers nothing.

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/core/event_tracer_hooks_delegate.h>
#include <executorch/runtime/core/exec_aten/util/tensor_util.h>
#include <executorch/runtime/platform/log.h>

#include "coremill.h"

namespace {

using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::aten::Tensor;
using executorch::aten::TensorImpl;
using executorch::runtime::ArrayRef;
using executorch::runtime::Backend;
using executorch::runtime::BackendExecutionContext;
using executorch::runtime::BackendInitContext;
using executorch::runtime::BackendInterface;
using executorch::runtime::BackendOption;
using executorch::runtime::BackendOptionContext;
using executorch::runtime::CompileSpec;
using executorch::runtime::DelegateHandle;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::EventTracer;
using executorch::runtime::EventTracerDebugLogLevel;
using executorch::runtime::FreeableBuffer;
using executorch::runtime::NamedDataMap;
using executorch::runtime::Result;
using executorch::runtime::Span;

constexpr char kName[] = "CoreMLBackend";
using Text = std::array<char, executorch::runtime::kMaxOptionValueLength>;

// Options by name. Setting an option again replaces its value.
class Options {
 public:
  void set(const std::string& key, const std::string& value) {
    for (auto& entry : entries_) {
      if (entry.first == key) {
        entry.second = value;
        return;
      }
    }
    entries_.emplace_back(key, value);
  }

  std::optional<std::string> get(const std::string& key) const {
    for (const auto& entry : entries_) {
      if (entry.first == key) return entry.second;
    }
    return std::nullopt;
  }

  // The pointers refer to this object, which must not change while they are used.
  std::vector<CoremillOption> view() const {
    std::vector<CoremillOption> options;
    for (const auto& entry : entries_) {
      options.push_back({entry.first.c_str(), entry.second.c_str()});
    }
    return options;
  }

 private:
  std::vector<std::pair<std::string, std::string>> entries_;
};

// Programs can contain options for any Core ML runtime. Options for one specific runtime begin with `_`.
bool is_private(const char* key) {
  return key[0] == '_';
}

// Texts in options end with a zero, except those that fill the whole array.
template <size_t N>
std::string bounded(const std::array<char, N>& text) {
  return std::string(text.data(), strnlen(text.data(), N));
}

Error take(Options& options, const BackendOption& option) {
  const std::string key(option.key, strnlen(option.key, sizeof option.key));
  if (is_private(option.key)) return Error::Ok;
  if (const auto* text = std::get_if<Text>(&option.value)) {
    options.set(key, bounded(*text));
  } else if (const auto* number = std::get_if<int>(&option.value)) {
    options.set(key, std::to_string(*number));
  } else {
    ET_LOG(Error, "%s: option `%s` must be text or a number, got a boolean", kName, key.c_str());
    return Error::InvalidArgument;
  }
  return Error::Ok;
}

Error failed(const char* what, Error code) {
  ET_LOG(Error, "%s: cannot %s: %s", kName, what, coremill_error_message());
  if (const char* hint = coremill_error_hint()) ET_LOG(Error, "%s: hint: %s", kName, hint);
  return code;
}

// Lends the bytes of a buffer of ExecuTorch. The buffer is kept until the library releases the bytes.
CoremillBytes lend(FreeableBuffer&& buffer) {
  auto kept = std::make_unique<FreeableBuffer>(std::move(buffer));
  CoremillBytes bytes;
  bytes.data = kept->data();
  bytes.length = kept->size();
  bytes.context = kept.release();
  bytes.release = [](void* context, const void*, size_t) {
    delete static_cast<FreeableBuffer*>(context);
  };
  return bytes;
}

int32_t find(void* context, const char* key, CoremillBytes* found) {
  const auto* map = static_cast<const NamedDataMap*>(context);
  if (map == nullptr) return COREMILL_STATUS_NOT_FOUND;
  Result<FreeableBuffer> data = map->get_data(key);
  if (!data.ok()) return COREMILL_STATUS_NOT_FOUND;
  *found = lend(std::move(data.get()));
  return COREMILL_STATUS_OK;
}

// A loaded method, freed by its destructor.
class Loaded {
 public:
  static Loaded* load(CoremillBytes bytes, const NamedDataMap* map, const Options& options) {
    const CoremillLookup lookup = {const_cast<NamedDataMap*>(map), find};
    const auto view = options.view();
    auto loaded = std::make_unique<Loaded>();
    CoremillModel model;
    if (coremill_model_load_bytes(bytes, &lookup, view.data(), view.size(), &model) != COREMILL_STATUS_OK) {
      return nullptr;
    }
    // The method keeps everything that it needs from the model.
    const CoremillStatus status = coremill_method_load(model, nullptr, &loaded->method_);
    coremill_model_free(model);
    if (status != COREMILL_STATUS_OK) return nullptr;
    loaded->is_loaded_ = true;
    if (coremill_method_port_count(loaded->method_, COREMILL_PORT_KIND_INPUT, &loaded->inputs_) !=
            COREMILL_STATUS_OK ||
        coremill_method_port_count(loaded->method_, COREMILL_PORT_KIND_OUTPUT, &loaded->outputs_) !=
            COREMILL_STATUS_OK) {
      return nullptr;
    }
    return loaded.release();
  }

  ~Loaded() {
    if (is_loaded_) coremill_method_free(method_);
  }

  CoremillMethod method() const {
    return method_;
  }
  size_t inputs() const {
    return inputs_;
  }
  size_t outputs() const {
    return outputs_;
  }

 private:
  CoremillMethod method_{};
  bool is_loaded_ = false;
  size_t inputs_ = 0;
  size_t outputs_ = 0;
};

CoremillTensor describe(const Tensor& tensor) {
  CoremillTensor described{};
  described.data = tensor.mutable_data_ptr();
  described.length = described.data == nullptr ? 0 : tensor.nbytes();
  described.scalar_type = static_cast<int32_t>(tensor.scalar_type());
  described.rank = static_cast<uint32_t>(tensor.dim());
  for (int axis = 0; axis < tensor.dim() && axis < COREMILL_MAX_RANK; ++axis) {
    described.sizes[axis] = static_cast<uint64_t>(tensor.size(axis));
    described.dim_order[axis] = tensor.dim_order()[axis];
  }
  return described;
}

// A value of the model. It is kept until it is clear that no later operation comes from the same nodes.
struct Kept {
  std::string symbol;
  std::vector<int64_t> handles;
  CoremillTensor described;
  std::vector<char> bytes;
};

// Data for the callbacks of a run.
struct Run {
  EventTracer* tracer;
  Span<EValue*> outputs;
  et_timestamp_t start;
  std::vector<Kept> values;
};

int32_t resize(void* context, size_t output, CoremillTensor* described) {
  auto* run = static_cast<Run*>(context);
  Tensor tensor = run->outputs[output]->toTensor();
  SizesType sizes[COREMILL_MAX_RANK];
  for (uint32_t axis = 0; axis < described->rank; ++axis) {
    sizes[axis] = static_cast<SizesType>(described->sizes[axis]);
  }
  const ArrayRef<SizesType> wanted(sizes, described->rank);
  if (executorch::runtime::resize_tensor(tensor, wanted) != Error::Ok) {
    return COREMILL_STATUS_INVALID_ARGUMENT;
  }
  *described = describe(tensor);
  return COREMILL_STATUS_OK;
}

// Converts to ticks of ExecuTorch's clock, which need not be nanoseconds.
et_timestamp_t ticks(uint64_t nanoseconds) {
  const et_tick_ratio_t ratio = et_pal_ticks_to_ns_multiplier();
  return nanoseconds * ratio.denominator / (ratio.numerator == 0 ? 1 : ratio.numerator);
}

std::string quoted(const char* text) {
  std::string quoted = "\"";
  for (; *text != 0; ++text) {
    const auto letter = static_cast<unsigned char>(*text);
    if (letter == '"' || letter == '\\') quoted += '\\';
    if (letter >= 0x20) quoted += *text;
  }
  return quoted + "\"";
}

bool overlap(const std::vector<int64_t>& one, const std::vector<int64_t>& other) {
  return std::any_of(one.begin(), one.end(), [&](int64_t handle) {
    return std::find(other.begin(), other.end(), handle) != other.end();
  });
}

// Several operations can come from one node of the exported graph. The value of the last one is the value of
// the node.
void keep_value(void* context, const CoremillOperation* operation, const CoremillTensor* value) {
  // The runtime has already logged the inputs of the model.
  if (std::strcmp(operation->kind, "input") == 0 || operation->debug_handle_count == 0) return;
  auto& values = static_cast<Run*>(context)->values;
  try {
    const auto* handles = operation->debug_handles;
    const auto* bytes = static_cast<const char*>(value->data);
    Kept kept = {
        operation->symbol, {handles, handles + operation->debug_handle_count}, *value, {bytes, bytes + value->length}};
    const auto earlier = [&](const Kept& other) { return overlap(other.handles, kept.handles); };
    values.erase(std::remove_if(values.begin(), values.end(), earlier), values.end());
    values.push_back(std::move(kept));
  } catch (const std::exception& error) {
    ET_LOG(Error, "%s: cannot log `%s`: %s", kName, operation->symbol, error.what());
  }
}

void log_value(EventTracer* tracer, Kept& kept) {
  const CoremillTensor& value = kept.described;
  SizesType sizes[COREMILL_MAX_RANK];
  executorch::aten::DimOrderType order[COREMILL_MAX_RANK];
  executorch::aten::StridesType strides[COREMILL_MAX_RANK];
  executorch::aten::StridesType stride = 1;
  for (uint32_t axis = value.rank; axis-- > 0;) {
    sizes[axis] = static_cast<SizesType>(value.sizes[axis]);
    order[axis] = static_cast<executorch::aten::DimOrderType>(axis);
    strides[axis] = stride;
    stride *= sizes[axis];
  }
  TensorImpl tensor(
      static_cast<ScalarType>(value.scalar_type),
      static_cast<ssize_t>(value.rank),
      sizes,
      kept.bytes.data(),
      order,
      strides);
  executorch::runtime::event_tracer_log_output_delegate(
      tracer, kept.symbol.c_str(), static_cast<executorch::runtime::DebugHandle>(-1), Tensor(&tensor));
}

void log_values(Run& run) {
  for (Kept& kept : run.values) log_value(run.tracer, kept);
  run.values.clear();
}

// Logs an operation in the format of Core ML's own delegate, which existing tools parse.
void log_operation(void* context, const CoremillOperation* operation) {
  auto* run = static_cast<Run*>(context);
  // `Inspector` uses the first event of a node, so the event with the value comes first.
  log_values(*run);
  const std::string metadata = "{\"operatorName\": " + quoted(operation->kind) + ", \"outputNames\": [" +
      quoted(operation->name) + "], \"preferredComputeUnit\": \"CPU\", \"supportedComputeUnits\": [\"CPU\"], " +
      "\"floatingPointOperations\": " + std::to_string(operation->floating_point_operations) +
      ", \"bytes\": " + std::to_string(operation->bytes) + "}";
  const et_timestamp_t start = run->start + ticks(operation->start);
  executorch::runtime::event_tracer_log_profiling_delegate(
      run->tracer,
      operation->symbol,
      static_cast<executorch::runtime::DebugHandle>(-1),
      start,
      start + ticks(operation->duration),
      metadata.data(),
      metadata.size());
}

class CoreMLBackend final : public BackendInterface {
 public:
  bool is_available() const override {
    return true;
  }

  Result<DelegateHandle*> init(
      BackendInitContext& context,
      FreeableBuffer* processed,
      ArrayRef<CompileSpec> specs) const override try {
    Options options;
    for (const CompileSpec& spec : specs) {
      // The other specs are for the compiler only.
      if (spec.key != nullptr && std::strcmp(spec.key, "compute_units") == 0) {
        options.set(
            "compute_unit", std::string(static_cast<const char*>(spec.value.buffer), spec.value.nbytes));
      }
    }
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      for (const auto& option : options_.view()) options.set(option.key, option.value);
    }
    for (const BackendOption& option : context.runtime_specs()) {
      const Error error = take(options, option);
      if (error != Error::Ok) return error;
    }
    Loaded* loaded = Loaded::load(lend(std::move(*processed)), context.get_named_data_map(), options);
    if (loaded == nullptr) {
      const std::string what =
          std::string("load the model of method `") + (context.get_method_name() ? context.get_method_name() : "") + "`";
      return failed(what.c_str(), Error::InvalidProgram);
    }
    return loaded;
  } catch (const std::exception& error) {
    ET_LOG(Error, "%s: %s", kName, error.what());
    return Error::MemoryAllocationFailed;
  }

  Error execute(BackendExecutionContext& context, DelegateHandle* handle, Span<EValue*> arguments)
      const override try {
    const auto* loaded = static_cast<const Loaded*>(handle);
    const size_t count = loaded->inputs() + loaded->outputs();
    if (arguments.size() != count) {
      ET_LOG(Error, "%s: got %zu values, but the model has %zu inputs and outputs", kName, arguments.size(), count);
      return Error::DelegateInvalidHandle;
    }
    std::vector<CoremillTensor> tensors;
    tensors.reserve(count);
    for (size_t index = 0; index < count; ++index) {
      if (!arguments[index]->isTensor()) {
        ET_LOG(Error, "%s: value %zu is not a tensor", kName, index);
        return Error::DelegateInvalidHandle;
      }
      tensors.push_back(describe(arguments[index]->toTensor()));
    }
    EventTracer* tracer = context.event_tracer();
    Run run = {
        tracer,
        Span<EValue*>(arguments.data() + loaded->inputs(), loaded->outputs()),
        tracer == nullptr ? 0 : et_pal_current_ticks(),
        {}};
    CoremillHooks hooks{};
    hooks.context = &run;
    hooks.resize = resize;
    if (tracer != nullptr) {
      hooks.operation = log_operation;
      if (tracer->event_tracer_debug_level() >= EventTracerDebugLogLevel::kIntermediateOutputs) {
        hooks.value = keep_value;
      }
    }
    const CoremillStatus status = coremill_method_execute(
        loaded->method(),
        tensors.data(),
        loaded->inputs(),
        tensors.data() + loaded->inputs(),
        loaded->outputs(),
        &hooks);
    return status == COREMILL_STATUS_OK ? Error::Ok : failed("run the model", Error::DelegateInvalidHandle);
  } catch (const std::exception& error) {
    ET_LOG(Error, "%s: %s", kName, error.what());
    return Error::MemoryAllocationFailed;
  }

  // Sets options for all programs that are loaded later.
  Error set_option(BackendOptionContext&, const Span<BackendOption>& given) override try {
    const std::lock_guard<std::mutex> guard(mutex_);
    Options options = options_;
    for (const BackendOption& option : given) {
      const Error error = take(options, option);
      if (error != Error::Ok) return error;
    }
    const auto view = options.view();
    if (coremill_options_check(view.data(), view.size()) != COREMILL_STATUS_OK) {
      return failed("set the options", Error::InvalidArgument);
    }
    options_ = options;
    return Error::Ok;
  } catch (const std::exception& error) {
    ET_LOG(Error, "%s: %s", kName, error.what());
    return Error::MemoryAllocationFailed;
  }

  Error get_option(BackendOptionContext&, Span<BackendOption>& wanted) override try {
    const std::lock_guard<std::mutex> guard(mutex_);
    for (BackendOption& option : wanted) {
      const auto found = options_.get(std::string(option.key, strnlen(option.key, sizeof option.key)));
      if (!found || found->size() >= executorch::runtime::kMaxOptionValueLength) return Error::NotFound;
      Text text{};
      std::memcpy(text.data(), found->data(), found->size());
      option.value = text;
    }
    return Error::Ok;
  } catch (const std::exception& error) {
    ET_LOG(Error, "%s: %s", kName, error.what());
    return Error::MemoryAllocationFailed;
  }

  void destroy(DelegateHandle* handle) const override {
    delete static_cast<Loaded*>(handle);
  }

 private:
  mutable std::mutex mutex_;
  Options options_;
};

enum Registration { kUnknown = 0, kRegistered = 1, kNameTaken = 2, kRefused = 3 };

Registration register_once() {
  static CoreMLBackend backend;
  if (executorch::runtime::get_backend_class(kName) != nullptr) {
    std::fprintf(
        stderr,
        "coremill: another library has registered `%s`; its programs run there, not on coremill's engine\n",
        kName);
    return kNameTaken;
  }
  return executorch::runtime::register_backend({kName, &backend}) == Error::Ok ? kRegistered : kRefused;
}

const Registration registration = register_once();

} // namespace

// Result of the registration: 1 registered, 2 the name is already registered, 3 rejected by the runtime.
extern "C" __attribute__((visibility("default"))) int32_t coremill_delegate_registration() {
  return registration;
}
