// Capture of commands, and their replay as one.
#pragma once

#include <functional>

#include "timeline.h"

namespace at {
class Tensor;
}

namespace simgpu {

bool is_capturing();  // one graph at a time in a process
void refuse_while_capturing(const char* what);

// One captured command: `again` repeats its values. Only while capturing.
void capture(const Cost& cost, std::function<void()> again);
// Keeps what the storage holds, the first time, to put it back when the capture ends: capturing runs nothing.
void keep_contents(const at::Tensor& device_tensor);

void register_graphs();  // after the backend has got its name

}  // namespace simgpu
