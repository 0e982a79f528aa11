// FLOPs and bytes of an operator's call, from the shapes of what goes in and comes out.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "timeline.h"

namespace simgpu {

enum class Kind { other, product, lookup };

// `product`: matrix products and convolutions. `lookup`: reads as much of its table as it returns.
Kind kind_of(const c10::OperatorHandle& op);

Cost cost_of(
    const c10::OperatorHandle& op, Kind kind, c10::ArrayRef<c10::IValue> arguments,
    c10::ArrayRef<c10::IValue> results);

double bytes_of(const at::Tensor& tensor);  // an expanded dimension lies in memory once

}  // namespace simgpu
