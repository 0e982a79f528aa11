#pragma once

#include <pybind11/pybind11.h>

namespace simgpu {

void bind_collectives(pybind11::module_& m);

}  // namespace simgpu
