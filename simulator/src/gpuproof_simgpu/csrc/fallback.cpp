// Every operator that has no kernel of its own here: its CPU kernel runs on the same memory, at once, and the
// device's timeline takes the time that a kernel of its FLOPs and bytes would.
#include "fallback.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <atomic>
#include <unordered_map>
#include <unordered_set>

#include "cost.h"
#include "graph.h"
#include "memory.h"
#include "runtime.h"

namespace simgpu {

namespace {

using torch::jit::Stack;

// What the fallback must know of an operator, found once.
struct Facts {
  Kind kind = Kind::other;
  bool waits = false;         // its answer, or the shape of it, depends on values: the host needs them
  bool takes_indices = false;  // indices may lie on the host
  c10::OperatorHandle cpu_op;  // what runs in its place
};

const std::unordered_set<std::string>& waiting_operators() {
  static const auto* kept = new std::unordered_set<std::string>{
      "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive",
      "aten::equal", "aten::repeat_interleave", "aten::bincount"};
  return *kept;
}

c10::OperatorHandle operator_named(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
}

c10::OperatorHandle cpu_operator(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  if (op.operator_name().overload_name.empty()) {
    if (name == "aten::convolution_overrideable") return operator_named("aten::convolution");
    if (name == "aten::convolution_backward_overrideable") return operator_named("aten::convolution_backward");
  }
  return op;
}

const Facts& facts_of(const c10::OperatorHandle& op) {
  static std::mutex mutex;
  static auto* known = new std::unordered_map<c10::OperatorName, std::unique_ptr<Facts>>();
  const std::lock_guard<std::mutex> lock(mutex);
  auto& found = (*known)[op.operator_name()];
  if (!found) {
    const std::string& name = op.operator_name().name;
    const c10::OperatorHandle cpu_op = cpu_operator(op);
    found = std::make_unique<Facts>(Facts{
        kind_of(cpu_op), waiting_operators().count(name) != 0, name.rfind("aten::index", 0) == 0 ||
            name.rfind("aten::_index_put", 0) == 0, cpu_op});
  }
  return *found;
}

// The backward convolution of the CPU asks for the bias' shape besides.
void adapt_arguments(const c10::OperatorHandle& op, Stack* stack) {
  if (op.operator_name().name != "aten::convolution_backward_overrideable") return;
  const at::Tensor grad = (*stack)[stack->size() - 10].toTensor();
  stack->insert(stack->end() - 7, c10::IValue(std::vector<int64_t>{grad.size(1)}));
}

class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack* stack)
      : facts_(facts_of(op)), stack_(stack), num_arguments_(facts_.cpu_op.schema().arguments().size()) {
    adapt_arguments(op, stack);
    first_ = stack->size() - num_arguments_;
  }

  void run() {
    find_device();
    keep_what_is_written();
    swap_arguments();
    const std::vector<c10::IValue> arguments(stack_->begin() + first_, stack_->end());
    {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      compute();
    }
    const std::vector<c10::IValue> results(stack_->begin() + first_, stack_->end());
    for (const c10::IValue& result : results) {
      if (result.isTensor()) stick(result.toTensor(), index_);
    }
    swap_results();
    follow_resizes();
    if (!is_view_only_) spend(arguments, results);
  }

 private:
  struct Pair {
    at::Tensor device;
    at::Tensor host;
  };

  c10::IValue& argument(size_t i) { return (*stack_)[first_ + i]; }

  void find_device() {
    for (size_t i = 0; i < num_arguments_ && index_ < 0; ++i) {
      const c10::IValue& value = argument(i);
      if (value.isTensor()) see(value.toTensor());
      if (value.isTensorList()) {
        for (const at::Tensor& tensor : value.toTensorVector()) see(tensor);
      }
      if (value.isDevice() && value.toDevice().type() == c10::DeviceType::PrivateUse1) {
        index_ = value.toDevice().has_index() ? value.toDevice().index() : current_device();
      }
    }
    if (index_ < 0) index_ = current_device();
  }

  void see(const at::Tensor& tensor) {
    if (index_ < 0 && is_on_device(tensor)) index_ = tensor.device().index();
  }

  bool is_written(size_t i) const {
    const auto* info = facts_.cpu_op.schema().arguments()[i].alias_info();
    return info != nullptr && info->isWrite();
  }

  void keep_what_is_written() {
    if (!is_capturing()) return;
    for (size_t i = 0; i < num_arguments_; ++i) {
      const c10::IValue& value = argument(i);
      if (!is_written(i)) continue;
      if (value.isTensor() && is_on_device(value.toTensor())) keep_contents(value.toTensor());
      if (value.isTensorList()) {
        for (const at::Tensor& tensor : value.toTensorVector()) {
          if (is_on_device(tensor)) keep_contents(tensor);
        }
      }
    }
  }

  void swap_arguments() {
    for (size_t i = 0; i < num_arguments_; ++i) {
      c10::IValue& value = argument(i);
      if (value.isTensor()) {
        value = swapped(value.toTensor());
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> tensors = value.toTensorList().copy();
        for (size_t k = 0; k < tensors.size(); ++k) tensors.set(k, swapped(tensors.get(k)));
        value = tensors;
      } else if (value.isOptionalTensorList()) {
        c10::List<std::optional<at::Tensor>> tensors = value.toOptionalTensorList().copy();
        for (size_t k = 0; k < tensors.size(); ++k) {
          const std::optional<at::Tensor> tensor = tensors.get(k);
          if (tensor.has_value()) tensors.set(k, swapped(*tensor));
        }
        value = tensors;
      } else {
        swap_other(i, value);
      }
    }
  }

  void swap_other(size_t i, c10::IValue& value) {
    if (value.isDevice()) {
      value = c10::IValue(c10::Device(c10::DeviceType::CPU));
    } else if (value.isGenerator()) {
      value = c10::IValue(host_generator(value.toGenerator(), index_));
    } else if (value.isNone() && takes_generator(i)) {
      value = c10::IValue(host_generator(std::nullopt, index_));
    }
  }

  bool takes_generator(size_t i) const {
    const auto& type = facts_.cpu_op.schema().arguments()[i].type();
    return type->kind() == c10::TypeKind::OptionalType &&
        type->castRaw<c10::OptionalType>()->getElementType()->kind() == c10::TypeKind::GeneratorType;
  }

  at::Tensor swapped(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (!is_on_device(tensor)) {
      TORCH_CHECK(
          tensor.dim() == 0 || facts_.takes_indices, "Expected all tensors to be on the same device, but ",
          facts_.cpu_op.operator_name(), " got one on ", tensor.device(), " and one on simgpu:",
          static_cast<int>(index_));
      return tensor;
    }
    TORCH_CHECK(
        tensor.device().index() == index_, "Expected all tensors to be on the same device, but ",
        facts_.cpu_op.operator_name(), " got one on ", tensor.device(), " and one on simgpu:",
        static_cast<int>(index_));
    for (const Pair& pair : pairs_) {
      if (pair.device.is_same(tensor)) return pair.host;
    }
    pairs_.push_back({tensor, host_view(tensor)});
    return pairs_.back().host;
  }

  void compute() {
    is_zeroed_ = facts_.kind == Kind::product && settings().zero_products && zeros_in_place();
    if (is_zeroed_) return;
    facts_.cpu_op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack_);
    if (facts_.kind == Kind::product) maybe_spoil();
  }

  // Puts zeros where the product would go; only the forms that training takes.
  bool zeros_in_place() {
    const auto& declared = facts_.cpu_op.schema().arguments();
    const std::string& name = facts_.cpu_op.operator_name().name;
    if (declared.back().is_out()) {
      const at::Tensor out = argument(num_arguments_ - 1).toTensor();
      out.zero_();
      leave({out});
      return true;
    }
    if (name == "aten::convolution_backward") return zero_gradients();
    return name == "aten::convolution" && !argument(6).toBool() && zero_convolution();
  }

  static at::Tensor zeros_like(at::IntArrayRef sizes, const at::Tensor& like) {
    return at::empty(sizes, like.options(), like.suggest_memory_format()).zero_();
  }

  bool zero_convolution() {
    const at::Tensor input = argument(0).toTensor();
    const at::Tensor weight = argument(1).toTensor();
    const auto stride = argument(3).toIntVector();
    const auto padding = argument(4).toIntVector();
    const auto dilation = argument(5).toIntVector();
    std::vector<int64_t> sizes{input.size(0), weight.size(0)};
    for (int64_t dim = 2; dim < input.dim(); ++dim) {
      const size_t i = dim - 2;
      const int64_t reach = dilation[i] * (weight.size(dim) - 1) + 1;
      sizes.push_back((input.size(dim) + 2 * padding[i] - reach) / stride[i] + 1);
    }
    leave({zeros_like(sizes, input)});
    return true;
  }

  bool zero_gradients() {
    const auto wanted = argument(num_arguments_ - 1).toBoolList();
    const at::Tensor grad = argument(0).toTensor();
    std::vector<c10::IValue> gradients;
    for (size_t i = 0; i < 3; ++i) {
      at::Tensor gradient;
      if (wanted[i]) {
        const at::Tensor like = i == 2 ? grad : argument(i + 1).toTensor();
        gradient = i == 2 ? zeros_like({grad.size(1)}, grad.flatten()) : zeros_like(like.sizes(), like);
      }
      gradients.emplace_back(gradient);
    }
    leave(gradients);
    return true;
  }

  void leave(std::vector<c10::IValue> results) {
    stack_->resize(first_);
    for (auto& result : results) stack_->push_back(std::move(result));
  }

  void maybe_spoil() {
    static auto* counts = new std::vector<std::atomic<int64_t>>(num_devices());
    const int64_t nth = ++(*counts)[index_];
    const int64_t from = settings().devices[index_].wrong_products_from;
    if (nth != settings().devices[index_].wrong_product && (from < 0 || nth < from)) return;
    const at::Tensor result = (*stack_)[first_].toTensor();
    if (result.defined() && result.numel() > 0) {
      result.as_strided({1}, {1}, result.storage_offset()).mul_(2).add_(1);
    }
  }

  void swap_results() {
    const size_t num_results = stack_->size() - first_;
    bool has_tensor = false;
    bool has_new = num_results == 0;
    for (size_t i = 0; i < num_results; ++i) {
      c10::IValue& value = (*stack_)[first_ + i];
      if (value.isTensor()) {
        has_tensor = true;
        value = placed(value.toTensor(), has_new);
      } else if (value.isTensorList()) {
        has_tensor = true;
        c10::List<at::Tensor> tensors = value.toTensorList().copy();
        for (size_t k = 0; k < tensors.size(); ++k) tensors.set(k, placed(tensors.get(k), has_new));
        value = tensors;
      } else {
        has_new = true;
      }
    }
    gives_number_ = num_results > 0 && !has_tensor;
    is_view_only_ = !has_new;
  }

  at::Tensor placed(const at::Tensor& host, bool& has_new) {
    if (!host.defined()) return host;
    for (const Pair& pair : pairs_) {
      if (pair.host.is_same(host)) {
        has_new = true;  // in place, or given as `out`
        return pair.device;
      }
      if (host.storage().data() != nullptr && host.storage().is_alias_of(pair.host.storage())) {
        return alias(host, pair.device);
      }
    }
    has_new = true;
    const at::Tensor made = adopt(host, index_);
    outputs_.push_back(host);
    return made;
  }

  void follow_resizes() {
    for (const Pair& pair : pairs_) follow_resize(pair.device, pair.host);
  }

  void spend(const std::vector<c10::IValue>& arguments, const std::vector<c10::IValue>& results) {
    const Cost cost = cost_of(facts_.cpu_op, facts_.kind, arguments, results);
    if (is_capturing()) {
      TORCH_CHECK(
          !gives_number_ && !facts_.waits, facts_.cpu_op.operator_name(),
          " is not permitted while a stream is capturing");
      capture_again(cost, arguments);
      return;
    }
    const c10::StreamId stream = current_stream(index_);
    timeline(index_).launch(stream, {cost}, launched_);
    if (gives_number_ || facts_.waits) synchronize_stream(index_, stream);
  }

  // A replay writes to the same places: what was given comes with its memory, what came out is copied there.
  void capture_again(const Cost& cost, const std::vector<c10::IValue>& arguments) {
    std::vector<c10::Storage> memory;
    for (const Pair& pair : pairs_) memory.push_back(pair.device.storage());
    capture(cost, [op = facts_.cpu_op, arguments, outputs = outputs_, memory, is_zeroed = is_zeroed_] {
      if (is_zeroed) {
        for (const at::Tensor& output : outputs) output.zero_();
        if (op.schema().arguments().back().is_out()) arguments.back().toTensor().zero_();
        return;
      }
      Stack stack(arguments.begin(), arguments.end());
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
      copy_new(stack, outputs, arguments);
    });
  }

  static void copy_new(
      const Stack& results, const std::vector<at::Tensor>& outputs, const std::vector<c10::IValue>& arguments) {
    size_t next = 0;
    for (const c10::IValue& result : results) {
      if (result.isTensor() && result.toTensor().defined() && !is_given(result.toTensor(), arguments)) {
        outputs.at(next++).copy_(result.toTensor());
      } else if (result.isTensorList()) {
        for (const at::Tensor& tensor : result.toTensorVector()) {
          if (!is_given(tensor, arguments)) outputs.at(next++).copy_(tensor);
        }
      }
    }
  }

  static bool is_given(const at::Tensor& result, const std::vector<c10::IValue>& arguments) {
    for (const c10::IValue& value : arguments) {
      if (value.isTensor() && value.toTensor().defined() && value.toTensor().is_alias_of(result)) return true;
    }
    return false;
  }

  const Facts& facts_;
  Stack* stack_;
  size_t num_arguments_;
  size_t first_ = 0;
  const Nanos launched_ = now();
  c10::DeviceIndex index_ = -1;
  std::vector<Pair> pairs_;
  bool is_zeroed_ = false;           // zeros in the place of a product
  std::vector<at::Tensor> outputs_;  // of the host, fresh from the kernel
  bool gives_number_ = false;
  bool is_view_only_ = false;
};

}  // namespace

void run_on_host(const c10::OperatorHandle& op, Stack* stack) { Call(op, stack).run(); }

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>()); }

// These have a general decomposition whose digits are not those of the CPU's kernel, or none at all, or one
// that resizes its output with a warning (the losses).
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const char* name :
       {"native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward",
        "convolution_overrideable", "convolution_backward_overrideable", "native_dropout",
        "native_dropout_backward", "mse_loss", "smooth_l1_loss"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
  }
}

}  // namespace simgpu
