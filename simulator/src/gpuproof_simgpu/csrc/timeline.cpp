#include "timeline.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "graph.h"
#include "host_copies.h"

namespace simgpu {

namespace {
constexpr Nanos kSlice = 50'000'000;
constexpr size_t kMaxBusyIntervals = 65536;
thread_local c10::DeviceIndex t_device = 0;
thread_local std::vector<c10::StreamId> t_streams;
}  // namespace

Settings& settings() {
  static auto* kept = new Settings();
  return *kept;
}

Nanos now() {
  timespec moment{};
  clock_gettime(CLOCK_MONOTONIC, &moment);
  return moment.tv_sec * 1'000'000'000LL + moment.tv_nsec;
}

void sleep_until(Nanos moment) {
  thread_local const int exact = prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);  // wakes 50 µs late without
  (void)exact;
  for (Nanos here = now(); here < moment; here = now()) {
    const Nanos next = std::min(moment, here + kSlice);
    const timespec until{next / 1'000'000'000LL, next % 1'000'000'000LL};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
  }
}

Nanos& Timeline::stream_end(c10::StreamId stream) {
  TORCH_CHECK(stream >= 0 && stream < static_cast<c10::StreamId>(stream_ends_.size()), "no such stream");
  return stream_ends_[stream];
}

// Waits for room in the queue; returns when a command that is launched now begins.
Nanos Timeline::enqueue(
    std::unique_lock<std::mutex>& lock, c10::StreamId stream, Engine engine, Nanos launched) {
  const auto depth = static_cast<size_t>(settings().devices[index_].queue_depth);
  while (true) {
    while (!in_flight_.empty() && in_flight_.front() <= now()) in_flight_.pop_front();
    if (in_flight_.size() < depth) break;
    const Nanos room = in_flight_.front();
    lock.unlock();
    sleep_until(room);
    lock.lock();
    launched = now();
  }
  return std::max({launched, stream_end(stream), engine_free_[static_cast<int>(engine)]});
}

void Timeline::occupy(c10::StreamId stream, Engine engine, Nanos begin, Nanos end) {
  if (is_watched_) watched_.push_back({engine, begin, end});
  stream_end(stream) = end;
  engine_free_[static_cast<int>(engine)] = end;
  in_flight_.push_back(end);
}

Nanos Timeline::duration_of(c10::ArrayRef<Cost> kernels, Nanos begin) const {
  const DeviceSettings& device = settings().devices[index_];
  double work_s = 0;
  for (const Cost& cost : kernels) {
    const double compute_s = cost.flops / device.flops_per_s + cost.flops_16bit / device.flops_16bit_per_s;
    work_s += std::max(compute_s, cost.bytes / device.memory_bytes_per_s);
  }
  const bool throttled =
      device.throttled_after_ns >= 0 && begin - first_kernel_ns_ >= device.throttled_after_ns;
  const bool capped = device.cap_period_ns > 0 && begin - first_kernel_ns_ >= device.cap_after_ns;
  // The phase is that of the host's clock, so that readings made elsewhere agree.
  const double phase = capped ? double(begin % device.cap_period_ns) / double(device.cap_period_ns) : 0;
  const double slower = (throttled ? device.throttled_slowdown : device.slowdown) / (1 - device.cap_depth * phase);
  return std::llround(work_s * 1e9 * slower);
}

void Timeline::launch(c10::StreamId stream, c10::ArrayRef<Cost> kernels, Nanos launched) {
  std::unique_lock<std::mutex> lock(mutex_);
  const Nanos begin = enqueue(lock, stream, Engine::compute, launched);
  if (first_kernel_ns_ < 0) first_kernel_ns_ = begin;
  const DeviceSettings& device = settings().devices[index_];
  Nanos end = begin + device.launch_latency_ns + duration_of(kernels, begin);
  const int64_t before = num_kernels_;
  num_kernels_ += static_cast<int64_t>(kernels.size());
  if (before < device.hang_in_kernel && device.hang_in_kernel <= num_kernels_) end = kNever;
  end = std::min(end, kNever);
  occupy(stream, Engine::compute, begin, end);
  add_busy(begin, end);
}

Nanos Timeline::launch_copy(
    c10::StreamId stream, Engine direction, double bytes, double bytes_per_s, Nanos launched) {
  std::unique_lock<std::mutex> lock(mutex_);
  const DeviceSettings& device = settings().devices[index_];
  const Nanos begin = enqueue(lock, stream, direction, launched);
  const Nanos duration = std::llround(bytes / bytes_per_s * 1e9);
  occupy(stream, direction, begin, std::min(begin + device.launch_latency_ns + duration, kNever));
  return stream_end(stream);
}

Nanos Timeline::finish_collective(c10::StreamId stream, Nanos reached, Nanos ready, Nanos duration) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Nanos free = engine_free_[static_cast<int>(Engine::link)];
  const Nanos end = std::min(std::max(ready, free) + duration, kNever);
  occupy(stream, Engine::link, std::max(reached, free), end);  // its kernel runs while it waits for others
  add_busy(reached, end);  // a device that waits for others inside a collective runs its kernel
  return end;
}

Nanos Timeline::end_of(c10::StreamId stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return stream_end(stream);
}

Nanos Timeline::end_of_all() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return *std::max_element(stream_ends_.begin(), stream_ends_.end());
}

void Timeline::wait_for(c10::StreamId stream, Nanos moment) {
  const std::lock_guard<std::mutex> lock(mutex_);
  stream_end(stream) = std::max(stream_end(stream), moment);
}

void Timeline::add_busy(Nanos begin, Nanos end) {
  auto next = busy_.upper_bound(begin);
  if (next != busy_.begin() && std::prev(next)->second >= begin) {
    --next;
    begin = next->first;
  }
  while (next != busy_.end() && next->first <= end) {
    end = std::max(end, next->second);
    total_busy_ns_ -= next->second - next->first;
    next = busy_.erase(next);
  }
  busy_[begin] = end;
  total_busy_ns_ += end - begin;
  publish(begin, end);
  settle_old_busy();
}

void Timeline::publish(Nanos begin, Nanos end) {
  if (published_ == nullptr) {
    const int file = open(settings().devices[index_].readings_file.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
    constexpr size_t kSize = 3 * sizeof(Nanos);
    TORCH_CHECK(file >= 0 && ftruncate(file, kSize) == 0, "the file of the device's readings cannot be written");
    published_ = static_cast<Nanos*>(mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    TORCH_CHECK(published_ != MAP_FAILED, "the file of the device's readings cannot be mapped");
    close(file);
  }
  published_[0] = total_busy_ns_;
  published_[1] = begin;
  published_[2] = end;
}

void Timeline::settle_old_busy() {
  if (busy_.size() < kMaxBusyIntervals) return;
  for (size_t count = 0; count < kMaxBusyIntervals / 2; ++count) {
    settled_busy_ns_ += busy_.begin()->second - busy_.begin()->first;
    busy_.erase(busy_.begin());
  }
}

Nanos Timeline::busy_until(Nanos moment) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Nanos total = settled_busy_ns_;
  for (const auto& [begin, end] : busy_) total += std::max<Nanos>(0, std::min(end, moment) - begin);
  return total;
}

void Timeline::watch() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_watched_ = true;
  watched_.clear();
}

std::vector<Command> Timeline::take_watched() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_watched_ = false;
  return std::move(watched_);
}

int64_t Timeline::num_kernels() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return num_kernels_;
}

int64_t Timeline::num_in_queue() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Nanos here = now();
  return std::count_if(in_flight_.begin(), in_flight_.end(), [&](Nanos end) { return end > here; });
}

c10::StreamId Timeline::new_stream() {
  const std::lock_guard<std::mutex> lock(mutex_);
  stream_ends_.push_back(0);
  return static_cast<c10::StreamId>(stream_ends_.size()) - 1;
}

int num_devices() { return static_cast<int>(settings().devices.size()); }

Timeline& timeline(c10::DeviceIndex index) {
  static auto* kept = [] {
    auto* all = new std::vector<std::unique_ptr<Timeline>>();
    for (int i = 0; i < num_devices(); ++i) all->push_back(std::make_unique<Timeline>(i));
    return all;
  }();
  TORCH_CHECK(
      index >= 0 && index < num_devices(), "simgpu:", static_cast<int>(index), " is not one of the ",
      num_devices(), " simulated devices");
  return *(*kept)[index];
}

c10::DeviceIndex current_device() { return t_device; }

void set_current_device(c10::DeviceIndex index) {
  timeline(index);  // refuses an index that does not exist
  t_device = index;
}

c10::StreamId current_stream(c10::DeviceIndex index) {
  return static_cast<size_t>(index) < t_streams.size() ? t_streams[index] : 0;
}

void set_current_stream(c10::DeviceIndex index, c10::StreamId stream) {
  if (static_cast<size_t>(index) >= t_streams.size()) t_streams.resize(num_devices(), 0);
  t_streams[index] = stream;
}

void synchronize_until(Nanos moment) {
  refuse_while_capturing("waiting for the device");
  sleep_until(moment);
  host_copies().deliver(moment);
}

void synchronize_stream(c10::DeviceIndex index, c10::StreamId stream) {
  synchronize_until(timeline(index).end_of(stream));
}

void synchronize_device(c10::DeviceIndex index) { synchronize_until(timeline(index).end_of_all()); }

}  // namespace simgpu
