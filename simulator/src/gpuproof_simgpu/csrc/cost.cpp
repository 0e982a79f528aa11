#include "cost.h"

#include <unordered_map>
#include <unordered_set>

namespace simgpu {

namespace {

double num_elements(const at::Tensor& tensor) { return static_cast<double>(tensor.numel()); }

// [.., m, k] by [.., k, n]: a multiplication and an addition for each of m·k·n.
double of_product(const at::Tensor& left, const at::Tensor& right) {
  return 2.0 * num_elements(left) * static_cast<double>(right.size(-1));
}

// Each output element takes a product with the weight's column of in-channels × kernel.
// A transposed one does the same for each input element.
double of_convolution(const at::Tensor& elements, const at::Tensor& weight) {
  return 2.0 * num_elements(elements) * num_elements(weight) / static_cast<double>(weight.size(0));
}

using Values = c10::ArrayRef<c10::IValue>;

double forward_convolution(Values in, Values out) {
  const bool transposed = in[6].toBool();
  return of_convolution(transposed ? in[0].toTensor() : out[0].toTensor(), in[1].toTensor());
}

// (grad_output, input, weight, …, output_mask last): one convolution's worth for each of the first two grads.
double backward_convolution(Values in, Values) {
  const auto wanted = in.back().toBoolList();
  const bool transposed = in[7].toBool();
  const double one = of_convolution(transposed ? in[1].toTensor() : in[0].toTensor(), in[2].toTensor());
  return one * (static_cast<int>(wanted[0]) + static_cast<int>(wanted[1]));
}

using Count = double (*)(Values, Values);
const std::unordered_map<std::string, Count>& counts() {
  static const auto* kept = new std::unordered_map<std::string, Count>{
      {"aten::mm", [](Values in, Values) { return of_product(in[0].toTensor(), in[1].toTensor()); }},
      {"aten::bmm", [](Values in, Values) { return of_product(in[0].toTensor(), in[1].toTensor()); }},
      {"aten::mv", [](Values in, Values) { return 2.0 * num_elements(in[0].toTensor()); }},
      {"aten::dot", [](Values in, Values) { return 2.0 * num_elements(in[0].toTensor()); }},
      {"aten::addmm", [](Values in, Values) { return of_product(in[1].toTensor(), in[2].toTensor()); }},
      {"aten::baddbmm", [](Values in, Values) { return of_product(in[1].toTensor(), in[2].toTensor()); }},
      {"aten::convolution", forward_convolution},
      {"aten::convolution_backward", backward_convolution},
  };
  return *kept;
}

const std::unordered_set<std::string>& lookups() {
  static const auto* kept = new std::unordered_set<std::string>{
      "aten::embedding", "aten::index_select", "aten::gather", "aten::index", "aten::nll_loss_forward"};
  return *kept;
}

double bytes_in(const c10::IValue& value) {
  if (value.isTensor()) return bytes_of(value.toTensor());
  double bytes = 0;
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) bytes += bytes_of(tensor);
  }
  return bytes;
}

}  // namespace

double bytes_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return 0;
  double elements = 1;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.stride(dim) != 0 || tensor.size(dim) == 0) elements *= static_cast<double>(tensor.size(dim));
  }
  return elements * static_cast<double>(tensor.element_size());
}

Kind kind_of(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  if (counts().count(name) != 0) return Kind::product;
  return lookups().count(name) != 0 ? Kind::lookup : Kind::other;
}

Cost cost_of(const c10::OperatorHandle& op, Kind kind, Values arguments, Values results) {
  Cost cost;
  const auto& declared = op.schema().arguments();
  double written = 0;
  for (const auto& result : results) written += bytes_in(result);
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool is_only_written = declared[i].is_out();
    if (!is_only_written) cost.bytes += bytes_in(arguments[i]);
  }
  cost.bytes = kind == Kind::lookup ? 2 * written : cost.bytes + written;
  if (results.empty() && !arguments.empty()) cost.bytes += bytes_in(arguments[0]);  // in place, on a list
  if (kind != Kind::product) return cost;
  const double flops = counts().at(op.operator_name().name)(arguments, results);
  const bool is_16bit = results[0].isTensor() && results[0].toTensor().defined() &&
      results[0].toTensor().element_size() == 2;
  (is_16bit ? cost.flops_16bit : cost.flops) = flops;
  return cost;
}

}  // namespace simgpu
