#include "memory.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CPUAllocator.h>

#include <map>
#include <mutex>

#include "timeline.h"

namespace simgpu {

namespace {

using Stats = c10::CachingDeviceAllocator::DeviceStats;
constexpr int64_t kGrain = 512;              // what a request is rounded up to
constexpr int64_t kSegment = 2 * 1024 * 1024;  // what reserved memory is rounded up to

int64_t round_up(int64_t bytes, int64_t grain) { return (bytes + grain - 1) / grain * grain; }

struct Ledger {
  std::mutex mutex;
  std::vector<Stats> stats = std::vector<Stats>(num_devices());
  std::map<const void*, std::pair<size_t, c10::DeviceIndex>> blocks;  // for "whose memory is this?"
};

Ledger& ledger() {
  static auto* kept = new Ledger();
  return *kept;
}

void refuse(Stats& stats, c10::DeviceIndex index, int64_t asked, int64_t allocated) {
  stats.num_ooms += 1;
  TORCH_CHECK_WITH(
      OutOfMemoryError, false, "simgpu out of memory. Tried to allocate ", asked, " bytes; simgpu:",
      static_cast<int>(index), " has ", settings().devices[index].memory_bytes, " bytes, of which ", allocated,
      " are in use.");
}

void count_in(const void* place, c10::DeviceIndex index, size_t bytes) {
  Ledger& book = ledger();
  const std::lock_guard<std::mutex> lock(book.mutex);
  Stats& stats = book.stats[index];
  const int64_t rounded = round_up(static_cast<int64_t>(bytes), kGrain);
  const int64_t allocated = stats.allocated_bytes[0].current;
  if (allocated + rounded > settings().devices[index].memory_bytes) refuse(stats, index, rounded, allocated);
  stats.allocation[0].increase(1);
  stats.allocated_bytes[0].increase(rounded);
  stats.active_bytes[0].increase(rounded);
  stats.requested_bytes[0].increase(bytes);
  const int64_t reserved = stats.reserved_bytes[0].current;
  const int64_t wanted = std::min(round_up(allocated + rounded, kSegment), settings().devices[index].memory_bytes);
  if (wanted > reserved) {
    stats.reserved_bytes[0].increase(wanted - reserved);
    stats.num_device_alloc += 1;
  }
  book.blocks[place] = {bytes, index};
}

void count_out(const void* place) {
  Ledger& book = ledger();
  const std::lock_guard<std::mutex> lock(book.mutex);
  const auto block = book.blocks.find(place);
  if (block == book.blocks.end()) return;
  const auto [bytes, index] = block->second;
  const int64_t rounded = round_up(static_cast<int64_t>(bytes), kGrain);
  Stats& stats = book.stats[index];
  stats.allocation[0].decrease(1);
  stats.allocated_bytes[0].decrease(rounded);
  stats.active_bytes[0].decrease(rounded);
  stats.requested_bytes[0].decrease(bytes);
  book.blocks.erase(block);
}

// Keeps the CPU storage that a device's tensor lies in.
struct Kept {
  c10::DataPtr memory;
  const void* place;
};

void release(void* kept) {
  auto* block = static_cast<Kept*>(kept);
  count_out(block->place);
  delete block;
}

c10::Device device_of(c10::DeviceIndex index) { return {c10::DeviceType::PrivateUse1, index}; }

c10::DataPtr keep(c10::DataPtr memory, size_t bytes, c10::DeviceIndex index) {
  void* place = memory.get();
  if (place == nullptr) return {nullptr, device_of(index)};
  count_in(place, index, bytes);
  auto* kept = new Kept{std::move(memory), place};
  return {place, kept, &release, device_of(index)};
}

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::DeviceIndex index = current_device();
    if (bytes == 0) return {nullptr, device_of(index)};
    return keep(c10::GetCPUAllocator()->allocate(bytes), bytes, index);
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }  // memory is not its own context
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }
  bool initialized() override { return num_devices() > 0; }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}  // values are there at once
  void emptyCache(c10::MempoolId_t) override {
    Ledger& book = ledger();
    const std::lock_guard<std::mutex> lock(book.mutex);
    for (Stats& stats : book.stats) {
      const int64_t kept = round_up(stats.allocated_bytes[0].current, kSegment);
      const int64_t cached = stats.reserved_bytes[0].current - kept;
      if (cached > 0) stats.reserved_bytes[0].decrease(cached);
    }
  }
  Stats getDeviceStats(c10::DeviceIndex index) override {
    timeline(index);
    const std::lock_guard<std::mutex> lock(ledger().mutex);
    return ledger().stats[index];
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override {
    each_stat(index, [](c10::CachingAllocator::Stat& stat) { stat.reset_accumulated(); });
  }
  void resetPeakStats(c10::DeviceIndex index) override {
    each_stat(index, [](c10::CachingAllocator::Stat& stat) { stat.reset_peak(); });
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    const Stats stats = getDeviceStats(index);
    const int64_t total = settings().devices[index].memory_bytes;
    return {static_cast<size_t>(total - stats.reserved_bytes[0].current), static_cast<size_t>(total)};
  }

 private:
  template <typename Change>
  static void each_stat(c10::DeviceIndex index, Change change) {
    timeline(index);
    const std::lock_guard<std::mutex> lock(ledger().mutex);
    Stats& stats = ledger().stats[index];
    for (auto* stat : {&stats.allocation, &stats.allocated_bytes, &stats.active_bytes, &stats.requested_bytes,
                       &stats.reserved_bytes}) {
      change((*stat)[0]);
    }
  }
};

Allocator g_allocator;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &g_allocator)

// Pinned host memory: a mark only, for the rules of copies hang on it.
class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr memory = c10::GetCPUAllocator()->allocate(bytes);
    void* place = memory.get();
    if (place == nullptr) return memory;
    const std::lock_guard<std::mutex> lock(mutex());
    pinned()[place] = bytes;
    auto* kept = new Kept{std::move(memory), place};
    return {place, kept, &forget, c10::Device(c10::DeviceType::CPU)};
  }
  static bool is_pinned(const void* place) {
    const std::lock_guard<std::mutex> lock(mutex());
    auto next = pinned().upper_bound(place);
    if (next == pinned().begin()) return false;
    --next;
    return static_cast<const char*>(place) < static_cast<const char*>(next->first) + next->second;
  }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}

 private:
  static std::mutex& mutex() {
    static auto* kept = new std::mutex();
    return *kept;
  }
  static std::map<const void*, size_t>& pinned() {
    static auto* kept = new std::map<const void*, size_t>();
    return *kept;
  }
  static void forget(void* kept) {
    auto* block = static_cast<Kept*>(kept);
    {
      const std::lock_guard<std::mutex> lock(mutex());
      pinned().erase(block->place);
    }
    delete block;
  }
};

PinnedAllocator g_pinned;
REGISTER_HOST_ALLOCATOR(c10::DeviceType::PrivateUse1, &g_pinned)

at::Tensor make(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like) {
  at::Tensor made =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return made;
}

c10::Storage storage_over(c10::DataPtr memory, size_t bytes, c10::Allocator* allocator) {
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, std::move(memory), allocator, /*resizable=*/true);
}

// The memory of a CPU storage, which lives as long as what comes out.
c10::DataPtr share(const c10::Storage& storage) {
  auto* held = new c10::Storage(storage);
  return {storage.mutable_data(), held, [](void* kept) { delete static_cast<c10::Storage*>(kept); },
          c10::Device(c10::DeviceType::CPU)};
}

}  // namespace

c10::DeviceAllocator* device_allocator() { return &g_allocator; }

bool is_pinned(const void* place) { return PinnedAllocator::is_pinned(place); }

c10::Allocator* pinned_allocator() { return &g_pinned; }

c10::Device device_of_memory(const void* place) {
  const std::lock_guard<std::mutex> lock(ledger().mutex);
  auto next = ledger().blocks.upper_bound(place);
  TORCH_CHECK(next != ledger().blocks.begin(), "this memory is on no simulated device");
  return device_of(std::prev(next)->second.second);
}

bool is_on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == c10::DeviceType::PrivateUse1;
}

at::Tensor host_view(const at::Tensor& device_tensor) {
  const c10::Storage& storage = device_tensor.storage();
  c10::DataPtr memory(storage.mutable_data(), c10::Device(c10::DeviceType::CPU));
  return make(
      storage_over(std::move(memory), storage.nbytes(), c10::GetCPUAllocator()), c10::DispatchKey::CPU,
      device_tensor);
}

at::Tensor adopt(const at::Tensor& host_tensor, c10::DeviceIndex index) {
  const c10::Storage& storage = host_tensor.storage();
  c10::DataPtr memory = keep(share(storage), storage.nbytes(), index);
  return make(
      storage_over(std::move(memory), storage.nbytes(), &g_allocator), c10::DispatchKey::PrivateUse1, host_tensor);
}

at::Tensor alias(const at::Tensor& host_tensor, const at::Tensor& base) {
  return make(base.storage(), c10::DispatchKey::PrivateUse1, host_tensor);
}

void stick(const at::Tensor& host, c10::DeviceIndex index) {
  const int64_t byte = settings().devices[index].stuck_byte;
  if (byte < 0 || !host.defined() || static_cast<int64_t>(host.storage().nbytes()) <= byte) return;
  static_cast<uint8_t*>(host.storage().mutable_data())[byte] |= 0x10;
}

void follow_resize(const at::Tensor& device_tensor, const at::Tensor& host_tensor) {
  if (host_tensor.storage().data() != device_tensor.storage().data()) {
    const c10::Storage& storage = host_tensor.storage();
    auto* kept = device_tensor.storage().unsafeGetStorageImpl();
    kept->set_data_ptr_noswap(keep(share(storage), storage.nbytes(), device_tensor.device().index()));
    kept->set_nbytes(storage.nbytes());
  }
  if (host_tensor.sizes() != device_tensor.sizes() || host_tensor.strides() != device_tensor.strides()) {
    device_tensor.unsafeGetTensorImpl()->set_sizes_and_strides(
        host_tensor.sizes(), host_tensor.strides(), host_tensor.storage_offset());
  }
}

}  // namespace simgpu
