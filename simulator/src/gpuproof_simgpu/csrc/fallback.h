#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace simgpu {

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace simgpu
