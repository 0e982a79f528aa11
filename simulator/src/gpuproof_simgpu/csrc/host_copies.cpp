#include "host_copies.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <chrono>
#include <cstring>
#include <thread>

namespace simgpu {

HostCopies& host_copies() {
  static auto* kept = new HostCopies();  // never destroyed: its thread may outlive the interpreter
  return *kept;
}

void HostCopies::hold_back(const at::Tensor& destination, at::Tensor values, Nanos due) {
  at::Tensor poison = at::empty_like(destination, at::MemoryFormat::Contiguous);
  std::memset(poison.data_ptr(), 0xFF, poison.nbytes());
  destination.copy_(poison);
  const std::lock_guard<std::mutex> lock(mutex_);
  held_.push_back({destination, std::move(values), due});
  if (!follows_) {
    follows_ = true;
    std::thread([this] { follow_time(); }).detach();
  }
  changed_.notify_one();
}

void HostCopies::deliver(Nanos reached) {
  // Let go of tensors without the lock: that may take the interpreter's, whose holder may wait for ours.
  std::vector<Held> delivered;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (held_.empty()) return;
  const at::NoGradGuard no_grad;
  std::vector<Held> later;
  for (auto& copy : held_) {  // in the order of their launch: a later copy to one place wins
    if (copy.due <= reached) copy.destination.copy_(copy.values);
    (copy.due <= reached ? delivered : later).push_back(std::move(copy));
  }
  held_ = std::move(later);
}

void HostCopies::follow_time() {
  while (true) {
    Nanos next = kNever;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return !held_.empty(); });
      for (const auto& copy : held_) next = std::min(next, copy.due);
      const Nanos left = next - now();
      if (left > 0) {  // a copy that comes in may be due earlier
        changed_.wait_for(lock, std::chrono::nanoseconds(std::min<Nanos>(left, 50'000'000)));
        continue;
      }
    }
    deliver(now());
  }
}

}  // namespace simgpu
