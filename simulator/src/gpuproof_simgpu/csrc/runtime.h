#pragma once

#include <ATen/core/Generator.h>

#include <optional>

namespace simgpu {

// The CPU generator that stands behind a device's (or behind the device's default one).
at::Generator host_generator(const std::optional<at::Generator>& generator, c10::DeviceIndex index);
const at::Generator& default_generator(c10::DeviceIndex index);
void register_hooks();

}  // namespace simgpu
