// Runs a method of a program and prints the elements of the first output: `app MODEL [METHOD]`. The elements
// of the inputs are 0, 1/16, 2/16, … 16/16, 0, ….

#include <cstdio>
#include <string>
#include <vector>

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>
#include <executorch/runtime/backend/interface.h>

using executorch::aten::ScalarType;
using executorch::extension::Module;
using executorch::extension::TensorPtr;
using executorch::runtime::BackendOptions;
using executorch::runtime::Error;
using executorch::runtime::EValue;

int main(int count, char** arguments) {
  if (count < 2) {
    std::fprintf(stderr, "usage: app MODEL [METHOD]\n");
    return 2;
  }
  const std::string method = count > 2 ? arguments[2] : "forward";

  // Options for all programs that are loaded later.
  BackendOptions<2> options;
  (void)options.set_option("compute_unit", "cpu_only");
  (void)options.set_option("threads", 1);
  if (executorch::runtime::set_option("CoreMLBackend", options.view()) != Error::Ok) return 1;
  BackendOptions<1> wrong;
  (void)wrong.set_option("compute_unit", "gpu");
  if (executorch::runtime::set_option("CoreMLBackend", wrong.view()) == Error::Ok) return 1;

  Module module(arguments[1]);
  const auto meta = module.method_meta(method);
  if (!meta.ok()) return 1;
  std::vector<std::vector<float>> memory;
  std::vector<TensorPtr> tensors;
  std::vector<EValue> inputs;
  for (size_t index = 0; index < meta->num_inputs(); ++index) {
    const auto tensor = meta->input_tensor_meta(index);
    if (!tensor.ok() || tensor->scalar_type() != ScalarType::Float) return 1;
    std::vector<float>& elements = memory.emplace_back(tensor->nbytes() / sizeof(float));
    for (size_t at = 0; at < elements.size(); ++at) elements[at] = static_cast<float>(at % 17) / 16;
    const std::vector<executorch::aten::SizesType> sizes(tensor->sizes().begin(), tensor->sizes().end());
    tensors.push_back(executorch::extension::make_tensor_ptr(sizes, elements.data()));
    inputs.emplace_back(*tensors.back());
  }
  const auto outputs = module.execute(method, inputs);
  if (!outputs.ok()) return 1;
  const auto& result = outputs->at(0).toTensor();
  for (ssize_t at = 0; at < result.numel(); ++at) std::printf("%.6g\n", result.const_data_ptr<float>()[at]);
  return 0;
}
