// Memory of the simulated devices: it lies on the host, and is counted against each device's declared size.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/CachingDeviceAllocator.h>

namespace simgpu {

c10::DeviceAllocator* device_allocator();

// A CPU tensor over the same memory as a device's, storage and offset alike.
at::Tensor host_view(const at::Tensor& device_tensor);
// A device's tensor over the memory of a CPU one, which was made for it; counted from now on.
at::Tensor adopt(const at::Tensor& host_tensor, c10::DeviceIndex index);
// A device's tensor on the storage of `base`, shaped as `host_tensor`, which is a view of its host view.
at::Tensor alias(const at::Tensor& host_tensor, const at::Tensor& base);
// Gives `device_tensor` the memory and shape that its host view was resized to.
void follow_resize(const at::Tensor& device_tensor, const at::Tensor& host_tensor);
bool is_on_device(const at::Tensor& tensor);

// Has the device's stuck bit, if it has one, show in the memory under this host view.
void stick(const at::Tensor& host, c10::DeviceIndex index);

bool is_pinned(const void* place);
c10::Allocator* pinned_allocator();
c10::Device device_of_memory(const void* place);

}  // namespace simgpu
