// Copies to the host that did not wait: their destination holds 0xFF bytes (NaN, in every float type) until
// the device's time has come to them, as a real one would still hold what was there before.
#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <mutex>
#include <vector>

#include "timeline.h"

namespace simgpu {

class HostCopies {
 public:
  // Poisons `destination`, and puts `values` (both on the CPU, of one shape) there from `due` on.
  void hold_back(const at::Tensor& destination, at::Tensor values, Nanos due);
  void deliver(Nanos reached);  // all that is due by then

 private:
  struct Held {
    at::Tensor destination;
    at::Tensor values;
    Nanos due;
  };
  void follow_time();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Held> held_;
  bool follows_ = false;
};

HostCopies& host_copies();

}  // namespace simgpu
