// Runs methods in ExecuTorch's C++ runtime. It reads one command per line from standard input;
// `oracle/served.py` writes them.
//
// `load PROGRAM [DATA…]`, `method NAME` and `run FOLDER VALUE…` are the same as in the example `serve` of
// `coremill-runtime`. `time COUNT` repeats the last run and returns the shortest time in nanoseconds.
// `threads COUNT ROUNDS` repeats the last run on several threads, each of which loads the program itself.
// `cycles COUNT` repeats it on modules one after the other. The results of both must equal those of the last
// run, byte by byte.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

using executorch::aten::ScalarType;
using executorch::extension::Module;
using executorch::extension::TensorPtr;
using executorch::runtime::Error;
using executorch::runtime::EValue;

namespace {

using Bytes = std::vector<char>;
using Words = std::vector<std::string>;

struct Type {
  const char* name;
  ScalarType type;
};

constexpr Type kTypes[] = {
    {"Byte", ScalarType::Byte},     {"Char", ScalarType::Char},   {"Short", ScalarType::Short},
    {"Int", ScalarType::Int},       {"Long", ScalarType::Long},   {"Half", ScalarType::Half},
    {"Float", ScalarType::Float},   {"Double", ScalarType::Double}, {"Bool", ScalarType::Bool},
    {"BFloat16", ScalarType::BFloat16},
};

Words split(const std::string& text, char separator) {
  Words parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

template <typename T>
std::vector<T> numbers(const std::string& text) {
  std::vector<T> found;
  for (const std::string& part : split(text, ',')) found.push_back(static_cast<T>(std::stoll(part)));
  return found;
}

void check(Error error, const char* what) {
  if (error == Error::Ok) return;
  char text[96];
  std::snprintf(text, sizeof text, "%s: error 0x%x", what, static_cast<unsigned>(error));
  throw std::runtime_error(text);
}

// A value with the data that it refers to.
struct Value {
  Bytes bytes;
  TensorPtr tensor;
  EValue value;
};

std::unique_ptr<Value> read(const std::string& word) {
  auto read = std::make_unique<Value>();
  const size_t colon = word.find(':');
  const std::string kind = word.substr(0, colon);
  const std::string rest = colon == std::string::npos ? "" : word.substr(colon + 1);
  if (kind == "none") return read;
  if (kind == "int") return read->value = EValue(static_cast<int64_t>(std::stoll(rest))), std::move(read);
  if (kind == "double") return read->value = EValue(std::stod(rest)), std::move(read);
  if (kind == "bool") return read->value = EValue(rest == "true"), std::move(read);
  const auto known = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const Type& one) { return kind == one.name; });
  if (known == std::end(kTypes)) throw std::runtime_error("`" + kind + "` is not a type");
  const size_t second = rest.find(':'), third = rest.find(':', second + 1);
  const auto sizes = numbers<executorch::aten::SizesType>(rest.substr(0, second));
  const auto order = numbers<executorch::aten::DimOrderType>(rest.substr(second + 1, third - second - 1));
  std::ifstream file(rest.substr(third + 1), std::ios::binary);
  read->bytes.assign(std::istreambuf_iterator<char>(file), {});
  std::vector<executorch::aten::StridesType> strides(sizes.size());
  executorch::aten::StridesType stride = 1;
  for (size_t at = order.size(); at-- > 0;) {
    strides[order[at]] = stride;
    stride *= std::max(sizes[order[at]], 1);
  }
  read->tensor = executorch::extension::make_tensor_ptr(sizes, read->bytes.data(), order, strides, known->type);
  read->value = EValue(*read->tensor);
  return read;
}

std::string join(const std::vector<int64_t>& numbers) {
  std::string text;
  for (const int64_t number : numbers) text += (text.empty() ? "" : ",") + std::to_string(number);
  return text;
}

std::string write(const EValue& value, const std::string& path) {
  if (value.isNone()) return "none";
  if (value.isInt()) return "int:" + std::to_string(value.toInt());
  if (value.isBool()) return value.toBool() ? "bool:true" : "bool:false";
  if (value.isDouble()) {
    char text[40];
    std::snprintf(text, sizeof text, "double:%.17g", value.toDouble());
    return text;
  }
  const auto& tensor = value.toTensor();
  const auto known = std::find_if(
      std::begin(kTypes), std::end(kTypes), [&](const Type& one) { return tensor.scalar_type() == one.type; });
  if (known == std::end(kTypes)) throw std::runtime_error("a result has a type that is not written");
  std::ofstream(path, std::ios::binary).write(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
  const std::vector<int64_t> sizes(tensor.sizes().begin(), tensor.sizes().end());
  const std::vector<int64_t> order(tensor.dim_order().begin(), tensor.dim_order().end());
  return std::string(known->name) + ":" + join(sizes) + ":" + join(order) + ":" + path;
}

Bytes content(const std::vector<EValue>& values) {
  Bytes all;
  for (const EValue& value : values) {
    if (!value.isTensor()) continue;
    const auto& tensor = value.toTensor();
    const char* data = static_cast<const char*>(tensor.const_data_ptr());
    all.insert(all.end(), data, data + tensor.nbytes());
  }
  return all;
}

class Server {
 public:
  Words answer(const Words& words) {
    const std::string& what = words.at(0);
    if (what == "load") {
      files_.assign(words.begin() + 1, words.end());
      inputs_.clear();
      module_ = open();
      const auto names = module_->method_names();
      check(names.error(), "load");
      Words methods(names->begin(), names->end());
      std::sort(methods.begin(), methods.end());
      return methods;
    }
    if (what == "method") {
      method_ = words.at(1);
      // Another instance with its own states.
      module_ = open();
      check(module_->load_method(method_), "method");
      return {};
    }
    if (what == "run") {
      inputs_.clear();
      for (size_t at = 2; at < words.size(); ++at) inputs_.push_back(read(words[at]));
      const std::vector<EValue> results = run(*module_);
      last_ = content(results);
      Words written;
      for (const EValue& value : results) {
        written.push_back(write(value, words.at(1) + "/" + std::to_string(written.size())));
      }
      return written;
    }
    if (what == "time") return {std::to_string(time(std::stoul(words.at(1))))};
    if (what == "threads") {
      threads(std::stoul(words.at(1)), std::stoul(words.at(2)));
      return {};
    }
    if (what == "cycles") {
      for (size_t cycle = std::stoul(words.at(1)); cycle-- > 0;) repeat(1);
      return {};
    }
    throw std::runtime_error("`" + what + "` is not a question");
  }

 private:
  std::unique_ptr<Module> open() const {
    const Words data(files_.begin() + 1, files_.end());
    auto module = std::make_unique<Module>(files_.at(0), data, Module::LoadMode::Mmap);
    check(module->load(executorch::runtime::Program::Verification::InternalConsistency), "load");
    return module;
  }

  std::vector<EValue> run(Module& module) const {
    std::vector<EValue> values;
    for (const auto& input : inputs_) values.push_back(input->value);
    auto results = module.execute(method_, values);
    check(results.error(), "execute");
    return std::move(results.get());
  }

  void repeat(size_t rounds) const {
    const auto module = open();
    for (size_t round = 0; round < rounds; ++round) {
      if (content(run(*module)) != last_) throw std::runtime_error("the results are not those of the last run");
    }
  }

  uint64_t time(size_t count) const {
    std::vector<EValue> values;
    for (const auto& input : inputs_) values.push_back(input->value);
    uint64_t least = UINT64_MAX;
    for (size_t round = 0; round < count; ++round) {
      const auto start = std::chrono::steady_clock::now();
      const auto results = module_->execute(method_, values);
      const auto took = std::chrono::steady_clock::now() - start;
      check(results.error(), "execute");
      least = std::min<uint64_t>(least, std::chrono::nanoseconds(took).count());
    }
    return least;
  }

  void threads(size_t count, size_t rounds) const {
    std::vector<std::thread> threads;
    std::vector<std::string> failures(count);
    for (size_t at = 0; at < count; ++at) {
      threads.emplace_back([this, rounds, &failure = failures[at]] {
        try {
          repeat(rounds);
        } catch (const std::exception& error) {
          failure = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& failure : failures) {
      if (!failure.empty()) throw std::runtime_error(failure);
    }
  }

  Words files_;
  std::string method_;
  std::unique_ptr<Module> module_;
  std::vector<std::unique_ptr<Value>> inputs_;
  Bytes last_;
};

} // namespace

int main() {
  Server server;
  for (std::string line; std::getline(std::cin, line);) {
    try {
      const Words answer = server.answer(split(line, '\t'));
      std::cout << "ok";
      for (const std::string& part : answer) std::cout << '\t' << part;
    } catch (const std::exception& error) {
      std::cout << "error\t" << error.what();
    }
    std::cout << std::endl;
  }
  return 0;
}
