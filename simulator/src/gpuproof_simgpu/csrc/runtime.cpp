// How torch asks for the device: guard (devices, streams, events), hooks, and generators of random numbers.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/GeneratorForPrivateuseone.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "graph.h"
#include "host_copies.h"
#include "memory.h"
#include "runtime.h"
#include "timeline.h"

namespace simgpu {

namespace {

constexpr c10::DeviceType kSim = c10::DeviceType::PrivateUse1;
constexpr int kPoolStreams = 32;

// The moment at which the device's time passes the event's latest record.
struct Event {
  Nanos moment = 0;
};

Event* event_of(void* event) { return static_cast<Event*>(event); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kSim; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {kSim, current_device()}; }
  void setDevice(c10::Device device) const override {
    if (device.has_index()) set_current_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index() && device.index() < num_devices()) set_current_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(num_devices());
  }

  c10::Stream stream(c10::Device device, c10::StreamId id) const {
    const c10::DeviceIndex index = device.has_index() ? device.index() : current_device();
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kSim, index), id);
  }
  c10::Stream getStream(c10::Device device) const override {
    const c10::DeviceIndex index = device.has_index() ? device.index() : current_device();
    return stream(device, current_stream(index));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(device, 0); }
  c10::Stream getNewStream(c10::Device device, int) const override {
    const c10::DeviceIndex index = device.has_index() ? device.index() : current_device();
    return stream(device, timeline(index).new_stream());
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    const c10::Stream before = getStream(next.device());
    set_current_stream(next.device_index(), next.id());
    return before;
  }
  bool queryStream(const c10::Stream& stream) const override {
    return reached(timeline(stream.device_index()).end_of(stream.id()));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    synchronize_stream(stream.device_index(), stream.id());
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override { synchronize_device(index); }
  bool isStreamCapturing(const c10::Stream&) const override { return is_capturing(); }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event();
    event_of(*event)->moment = std::max(now(), timeline(stream.device_index()).end_of(stream.id()));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) timeline(stream.device_index()).wait_for(stream.id(), event_of(event)->moment);
  }
  bool queryEvent(void* event) const override { return event == nullptr || reached(event_of(event)->moment); }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) synchronize_until(event_of(event)->moment);
  }
  double elapsedTime(void* from, void* to, const c10::DeviceIndex) const override {
    return static_cast<double>(event_of(to)->moment - event_of(from)->moment) / 1e6;
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete event_of(event); }

  static bool reached(Nanos moment) {
    const Nanos here = now();
    if (moment > here) return false;
    host_copies().deliver(here);
    return true;
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

// Random numbers come from the CPU's generator of the same seed.
struct Generator final : c10::GeneratorImpl {
  explicit Generator(c10::DeviceIndex index, at::Generator kept = at::detail::createCPUGenerator())
      : c10::GeneratorImpl(c10::Device(kSim, index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        inner(std::move(kept)) {}
  void set_current_seed(uint64_t seed) override { inner.set_current_seed(seed); }
  void set_offset(uint64_t) override { TORCH_CHECK(false, "simgpu generators have no offset"); }
  uint64_t get_offset() const override { TORCH_CHECK(false, "simgpu generators have no offset"); }
  uint64_t current_seed() const override { return inner.current_seed(); }
  uint64_t seed() override { return inner.seed(); }
  void set_state(const c10::TensorImpl& state) override { inner.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return inner.unsafeGetGeneratorImpl()->get_state();
  }
  Generator* clone_impl() const override { return new Generator(device_.index(), inner.clone()); }
  static c10::DeviceType device_type() { return kSim; }

  at::Generator inner;
};

const std::vector<at::Generator>& default_generators() {
  static auto* kept = [] {
    auto* all = new std::vector<at::Generator>();
    for (int i = 0; i < num_devices(); ++i) {
      all->push_back(at::make_generator<Generator>(static_cast<c10::DeviceIndex>(i)));
      all->back().set_current_seed(c10::default_rng_seed_val);
    }
    return all;
  }();
  return *kept;
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return num_devices() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(num_devices()); }
  void setCurrentDevice(c10::DeviceIndex index) const override { set_current_device(index); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const c10::DeviceIndex before = current_device();
    if (index >= 0) set_current_device(index);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
  bool isPinnedPtr(const void* place) const override { return is_pinned(place); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  c10::Device getDeviceFromPtr(void* place) const override { return device_of_memory(place); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generators().at(index < 0 ? current_device() : index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<Generator>(index < 0 ? current_device() : index);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    const c10::DeviceIndex before = current_device();
    set_current_device(storage.device().index());
    at::native::resize_bytes_cpu(storage.unsafeGetStorageImpl(), bytes);
    set_current_device(before);
  }
};

}  // namespace

at::Generator host_generator(const std::optional<at::Generator>& generator, c10::DeviceIndex index) {
  if (generator.has_value() && generator->defined() && generator->device().type() != kSim) return *generator;
  const at::Generator& own =
      generator.has_value() && generator->defined() ? *generator : default_generators().at(index);
  return static_cast<Generator*>(own.unsafeGetGeneratorImpl())->inner;
}

const at::Generator& default_generator(c10::DeviceIndex index) { return default_generators().at(index); }

void register_hooks() {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
}

}  // namespace simgpu
