// The clock of each simulated device: when does a command that is launched now begin, and when does it end?
//
// The host computes values at once; here only time passes. A command begins when its stream and its engine
// are free, and not before the host launched it. The host waits in three cases: it asks to, it reads a
// value, or the queue is full.
#pragma once

#include <c10/core/Stream.h>
#include <c10/util/ArrayRef.h>

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "settings.h"

namespace simgpu {

constexpr Nanos kNever = INT64_MAX / 4;  // the end of a hanging kernel

Nanos now();
void sleep_until(Nanos moment);  // in slices, so that a hang costs no processor time and can be killed

enum class Engine { compute, to_device, to_host, link };

// What a kernel does, for the roofline: its time is the longer of computing and moving.
struct Cost {
  double flops = 0;
  double flops_16bit = 0;
  double bytes = 0;
};

// What one command did, and when.
struct Command {
  Engine engine;
  Nanos begin;
  Nanos end;
};

class Timeline {
 public:
  explicit Timeline(c10::DeviceIndex index) : index_(index) {}

  // Launches a kernel, or all those of a graph as one command; waits while the queue is full. `launched` is
  // the moment before its values were computed: the device does not wait for that.
  void launch(c10::StreamId stream, c10::ArrayRef<Cost> kernels, Nanos launched);
  // Launches a copy over a link of this rate; returns its end.
  Nanos launch_copy(
      c10::StreamId stream, Engine direction, double bytes, double bytes_per_s, Nanos launched);
  // Ends a collective that all ranks had reached at `ready`, and that keeps the link for `duration`.
  Nanos finish_collective(c10::StreamId stream, Nanos reached, Nanos ready, Nanos duration);

  Nanos end_of(c10::StreamId stream);  // when all that was launched on it has run
  Nanos end_of_all();
  void wait_for(c10::StreamId stream, Nanos moment);  // later commands of the stream begin no earlier

  Nanos busy_until(Nanos moment);  // time of running kernels and collectives since the first, overlaps once
  void watch();  // keeps what runs from now on, until it is taken
  std::vector<Command> take_watched();
  int64_t num_kernels();
  int64_t num_in_queue();
  c10::StreamId new_stream();

 private:
  Nanos duration_of(c10::ArrayRef<Cost> kernels, Nanos begin) const;
  Nanos& stream_end(c10::StreamId stream);
  Nanos enqueue(std::unique_lock<std::mutex>& lock, c10::StreamId stream, Engine engine, Nanos launched);
  void occupy(c10::StreamId stream, Engine engine, Nanos begin, Nanos end);
  void add_busy(Nanos begin, Nanos end);
  void settle_old_busy();
  void publish(Nanos begin, Nanos end);

  const c10::DeviceIndex index_;
  std::mutex mutex_;
  std::vector<Nanos> stream_ends_{0};
  Nanos engine_free_[4] = {0, 0, 0, 0};
  std::deque<Nanos> in_flight_;
  std::map<Nanos, Nanos> busy_;  // begin to end, disjoint
  bool is_watched_ = false;
  std::vector<Command> watched_;
  Nanos settled_busy_ns_ = 0;
  Nanos total_busy_ns_ = 0;
  Nanos* published_ = nullptr;  // what it was busy for, with what is queued, and where the last of it begins and ends
  Nanos first_kernel_ns_ = -1;
  int64_t num_kernels_ = 0;
};

int num_devices();
Timeline& timeline(c10::DeviceIndex index);

// The calling thread's device and streams.
c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex index);
c10::StreamId current_stream(c10::DeviceIndex index);
void set_current_stream(c10::DeviceIndex index, c10::StreamId stream);

// Waits; then what was copied to the host until then is there.
void synchronize_stream(c10::DeviceIndex index, c10::StreamId stream);
void synchronize_device(c10::DeviceIndex index);
void synchronize_until(Nanos moment);

}  // namespace simgpu
