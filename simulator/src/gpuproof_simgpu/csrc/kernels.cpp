// Operators that make memory, views and copies: they touch no values, or cross the host link.
#include <ATen/EmptyTensor.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/native/Resize.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <atomic>

#include "cost.h"
#include "graph.h"
#include "host_copies.h"
#include "memory.h"
#include "timeline.h"

namespace simgpu {

namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

c10::Device device_or_current(std::optional<c10::Device> device) {
  const bool given = device.has_value() && device->has_index();
  return {c10::DeviceType::PrivateUse1, given ? device->index() : current_device()};
}

at::Tensor empty(
    at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device_or_current(device));
  return at::detail::empty_generic(size, device_allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(device_or_current(device));
  return at::detail::empty_strided_generic(
      size, stride, device_allocator(), kKeys, c10::dtype_or_default(dtype));
}

const at::Tensor& resize_(
    const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(self.device());
  return at::native::resize_(self, size, format);
}

double moved_bytes(const at::Tensor& from, const at::Tensor& to) { return bytes_of(from) + bytes_of(to); }

// Turns a bit in the middle of the copy that is declared to come out wrong.
void maybe_spoil_copy(const at::Tensor& copied, c10::DeviceIndex index) {
  static auto* counts = new std::vector<std::atomic<int64_t>>(num_devices());
  if (++(*counts)[index] != settings().devices[index].wrong_copy || !copied.is_contiguous()) return;
  static_cast<uint8_t*>(copied.mutable_data_ptr())[copied.nbytes() / 2] ^= 0x10;
}

// Between two devices: on the stream of the one that sends, and the other one's waits for it.
void copy_between(const at::Tensor& from, const at::Tensor& to) {
  TORCH_CHECK(!is_capturing(), "a copy between devices is not permitted while capturing");
  const Nanos launched = now();
  const c10::DeviceIndex sender = from.device().index();
  const c10::DeviceIndex receiver = to.device().index();
  const at::Tensor target = host_view(to);
  target.copy_(host_view(from));
  maybe_spoil_copy(target, sender);
  stick(target, receiver);
  const auto& devices = settings().devices;
  const double rate =
      std::min(devices[sender].peer_link_bytes_per_s, devices[receiver].peer_link_bytes_per_s);
  const c10::StreamId stream = current_stream(sender);
  timeline(sender).wait_for(stream, timeline(receiver).end_of(current_stream(receiver)));
  const Nanos end = timeline(sender).launch_copy(stream, Engine::link, bytes_of(to), rate, launched);
  timeline(receiver).wait_for(current_stream(receiver), end);
}

void copy_within(const at::Tensor& from, const at::Tensor& to) {
  const Nanos launched = now();
  const c10::DeviceIndex index = to.device().index();
  const at::Tensor source = host_view(from);
  const at::Tensor target = host_view(to);
  const Cost cost{0, 0, moved_bytes(from, to)};
  if (is_capturing()) {
    keep_contents(to);
    const std::vector<c10::Storage> memory{from.storage(), to.storage()};
    capture(cost, [source, target, memory] { target.copy_(source); });
  }
  target.copy_(source);
  stick(target, index);
  if (is_capturing()) return;
  timeline(index).launch(current_stream(index), {cost}, launched);
}

// From the host: the host goes on at once only from pinned memory, as the device reads it later.
void copy_to_device(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const c10::DeviceIndex index = to.device().index();
  TORCH_CHECK(!is_capturing() || non_blocking, "a waiting copy from the host is not permitted while capturing");
  const Nanos launched = now();
  const at::Tensor target = host_view(to);
  if (is_capturing()) {
    keep_contents(to);
    capture(Cost{0, 0, moved_bytes(from, to)}, [from, target, memory = to.storage()] { target.copy_(from); });
  }
  target.copy_(from);
  maybe_spoil_copy(target, index);
  stick(target, index);
  if (is_capturing()) return;
  const c10::StreamId stream = current_stream(index);
  const double rate = settings().devices[index].host_link_bytes_per_s;
  const Nanos end = timeline(index).launch_copy(stream, Engine::to_device, bytes_of(to), rate, launched);
  if (!non_blocking || !from.is_pinned()) synchronize_until(end);
}

void copy_to_host(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  refuse_while_capturing("copying to the host");
  const c10::DeviceIndex index = from.device().index();
  const c10::StreamId stream = current_stream(index);
  const double rate = settings().devices[index].host_link_bytes_per_s;
  const Nanos end = timeline(index).launch_copy(stream, Engine::to_host, bytes_of(from), rate, now());
  const at::Tensor values = host_view(from).clone();
  maybe_spoil_copy(values, index);
  if (non_blocking) {
    host_copies().hold_back(to, values, end);
    return;
  }
  synchronize_until(end);
  to.copy_(values);
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (from.numel() == 0) return to;
  if (!is_on_device(from)) {
    copy_to_device(from, to, non_blocking);
  } else if (!is_on_device(to)) {
    copy_to_host(from, to, non_blocking);
  } else if (from.device() != to.device()) {
    copy_between(from, to);
  } else {
    copy_within(from, to);
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor& self) {
  const c10::DeviceIndex index = self.device().index();
  refuse_while_capturing("reading a value");
  const double rate = settings().devices[index].host_link_bytes_per_s;
  synchronize_until(
      timeline(index).launch_copy(current_stream(index), Engine::to_host, bytes_of(self), rate, now()));
  return at::_local_scalar_dense(host_view(self));
}

at::Tensor& set_storage(
    at::Tensor& self, at::Storage storage, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  return at::native::set_storage_cpu_(self, std::move(storage), offset, size, stride);
}

void record_stream(at::Tensor&, c10::Stream) {}

// Attention by its parts (two products and a softmax): their cost is known.
int64_t choose_attention(
    const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, double, bool,
    std::optional<double>, bool) {
  return static_cast<int64_t>(sdp::SDPBackend::math);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("resize_", &resize_);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("set_.source_Storage", &at::native::set_);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("record_stream", &record_stream);
}

}  // namespace

}  // namespace simgpu

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &simgpu::choose_attention)
}  // namespace at::native
