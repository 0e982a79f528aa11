#include "graph.h"

#include <ATen/core/GraphImplInterface.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/core/InferenceMode.h>

#include <atomic>
#include <cstring>
#include <unordered_map>

#include "runtime.h"

namespace simgpu {

namespace {

struct Contents {
  c10::Storage storage;
  std::vector<char> bytes;
};

struct Recording {
  c10::DeviceIndex index = 0;
  std::vector<Cost> kernels;
  std::vector<std::function<void()>> commands;
  std::unordered_map<const void*, Contents> before;
  at::Tensor random_state;
};

std::atomic<Recording*> g_recording{nullptr};  // of the process: backward runs in a thread of its own

class Graph final : public at::GraphImplInterface {
 public:
  explicit Graph(const at::GraphImplArgs&) {}

  void capture_begin(at::MempoolId_t, at::GraphCaptureMode) override {
    TORCH_CHECK(g_recording == nullptr, "a graph is being captured already");
    recording_ = Recording{};
    recording_.index = current_device();
    recording_.random_state = host_generator(std::nullopt, recording_.index).get_state();
    g_recording = &recording_;
  }
  void capture_end() override {
    TORCH_CHECK(g_recording == &recording_, "this graph is not being captured");
    g_recording = nullptr;
    for (auto& [place, contents] : recording_.before) {
      if (!contents.bytes.empty()) {
        std::memcpy(contents.storage.mutable_data(), contents.bytes.data(), contents.bytes.size());
      }
    }
    recording_.before.clear();
    host_generator(std::nullopt, recording_.index).set_state(recording_.random_state);
  }
  void instantiate() override {}
  void replay() override {
    refuse_while_capturing("replaying a graph");
    const Nanos launched = now();
    const c10::InferenceMode inference;  // results of one that was captured so are written to again
    for (const auto& again : recording_.commands) again();
    timeline(recording_.index).launch(current_stream(recording_.index), recording_.kernels, launched);
  }
  void reset() override { recording_ = Recording{}; }
  at::MempoolId_t pool() const override { return {0, 1}; }
  void enable_debug_mode() override {}
  void debug_dump(const std::string&) override { TORCH_CHECK(false, "simgpu graphs cannot be drawn"); }

 private:
  Recording recording_;
};

std::unique_ptr<at::GraphImplInterface> make_graph(const at::GraphImplArgs& args) {
  return std::make_unique<Graph>(args);
}

}  // namespace

bool is_capturing() { return g_recording != nullptr; }

void refuse_while_capturing(const char* what) {
  TORCH_CHECK(g_recording == nullptr, what, " is not permitted while a stream is capturing");
}

void capture(const Cost& cost, std::function<void()> again) {
  Recording* recording = g_recording;
  recording->kernels.push_back(cost);
  recording->commands.push_back(std::move(again));
}

void keep_contents(const at::Tensor& device_tensor) {
  const c10::Storage& storage = device_tensor.storage();
  const auto [place, is_new] = g_recording.load()->before.try_emplace(storage.unsafeGetStorageImpl());
  if (!is_new) return;
  const char* bytes = static_cast<const char*>(storage.data());
  place->second = {storage, std::vector<char>(bytes, bytes + storage.nbytes())};
}

void register_graphs() {
  at::GraphImplRegistry()->Register(
      c10::DeviceTypeName(c10::DeviceType::PrivateUse1, /*lower_case=*/false), make_graph);
}

}  // namespace simgpu
