// Collectives over gloo: the values go through the hosts at once, and each rank's timeline goes on where the
// last rank's device had come to the collective and the link had carried its bytes.
//
// Every process of a host reads the same monotonic clock, so a moment means the same to all ranks. The model
// is for ranks of one host.
#include "collectives.h"

#include <ATen/ops/full.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/csrc/utils/pybind.h>

#include <functional>

#include "graph.h"
#include "memory.h"
#include "timeline.h"

namespace simgpu {

namespace {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

Tensors host_views(const Tensors& tensors) {
  Tensors views;
  for (const at::Tensor& tensor : tensors) views.push_back(is_on_device(tensor) ? host_view(tensor) : tensor);
  return views;
}

std::vector<Tensors> host_views(const std::vector<Tensors>& lists) {
  std::vector<Tensors> views;
  for (const Tensors& list : lists) views.push_back(host_views(list));
  return views;
}

double total_bytes(const Tensors& tensors) {
  double bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += static_cast<double>(tensor.nbytes());
  return bytes;
}

Tensors flat(const std::vector<Tensors>& lists) {
  Tensors all;
  for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

c10::Stream stream_of(c10::DeviceIndex index, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::DeviceType::PrivateUse1, index), id);
}

// A collective whose values are there; its future is done when the device's time has come to its end.
class Enqueued final : public c10d::Work {
 public:
  Enqueued(int rank, c10d::OpType type, Tensors results, c10::Stream stream)
      : Work(rank, type), results_(std::move(results)), stream_(stream) {
    future_ = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{stream.device()});
    const c10::StreamGuard guard(stream);
    future_->markCompleted(c10::IValue(results_));
    end_ = timeline(stream.device_index()).end_of(stream.id());
    finish();
  }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    return true;
  }
  // As on a real device: the stream waits, the host does not, except after a barrier.
  void synchronize() override {
    const c10::DeviceIndex index = stream_.device_index();
    timeline(index).wait_for(current_stream(index), end_);
    if (opType_ == c10d::OpType::BARRIER) synchronize_until(end_);
  }
  Tensors result() override { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  Tensors results_;
  c10::Stream stream_;
  Nanos end_ = 0;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// A send or a receive: the host's part may still be under way.
class PointToPoint final : public c10d::Work {
 public:
  PointToPoint(int rank, c10d::OpType type, std::vector<WorkPtr> parts, std::function<void()> arrive)
      : Work(rank, type), parts_(std::move(parts)), arrive_(std::move(arrive)) {}
  bool wait(std::chrono::milliseconds timeout) override {
    for (const WorkPtr& part : parts_) part->wait(timeout);
    if (arrive_) arrive_();
    arrive_ = nullptr;
    finish();
    return true;
  }
  void synchronize() override { wait(kNoTimeout); }

 private:
  std::vector<WorkPtr> parts_;
  std::function<void()> arrive_;
};

class Backend final : public c10d::Backend {
 public:
  explicit Backend(c10::intrusive_ptr<c10d::Backend> gloo)
      : c10d::Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)) {}

  const std::string getBackendName() const override { return "simccl"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return gloo_->getBackendOptions(); }
  void setTimeout(std::chrono::milliseconds timeout) override { gloo_->setTimeout(timeout); }
  void setSequenceNumberForGroup() override { gloo_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return gloo_->getSequenceNumberForGroup(); }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    Tensors views = host_views(tensors);
    return enqueue(c10d::OpType::BROADCAST, tensors, total_bytes(tensors), [&] {
      gloo_->broadcast(views, options)->wait();
    });
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    Tensors views = host_views(tensors);
    return enqueue(c10d::OpType::ALLREDUCE, tensors, 2 * share() * total_bytes(tensors), [&] {
      c10d::AllreduceOptions sum = options;
      sum.reduceOp = summed(options.reduceOp);
      gloo_->allreduce(views, sum)->wait();
      divide(views, options.reduceOp);
    });
  }

  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    Tensors views = host_views(tensors);
    return enqueue(c10d::OpType::ALLREDUCE_COALESCED, tensors, 2 * share() * total_bytes(tensors), [&] {
      c10d::AllreduceOptions each;
      each.reduceOp = summed(options.reduceOp);
      for (at::Tensor& view : views) {
        Tensors one{view};
        gloo_->allreduce(one, each)->wait();
      }
      divide(views, options.reduceOp);
    });
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    Tensors views = host_views(tensors);
    return enqueue(c10d::OpType::REDUCE, tensors, total_bytes(tensors), [&] {
      c10d::ReduceOptions sum = options;
      sum.reduceOp = summed(options.reduceOp);
      gloo_->reduce(views, sum)->wait();
      if (getRank() == options.rootRank) divide(views, options.reduceOp);
    });
  }

  WorkPtr allgather(
      std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    std::vector<Tensors> out = host_views(outputs);
    Tensors in = host_views(inputs);
    const Tensors results = flat(outputs);
    return enqueue(c10d::OpType::ALLGATHER, results, share() * total_bytes(results), [&] {
      gloo_->allgather(out, in, options)->wait();
    });
  }

  WorkPtr _allgather_base(
      at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    at::Tensor out = host_view(output);
    at::Tensor in = host_view(input);
    return enqueue(c10d::OpType::_ALLGATHER_BASE, {output}, share() * total_bytes({output}), [&] {
      gloo_->_allgather_base(out, in, options)->wait();
    });
  }

  WorkPtr allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    Tensors out = host_views(outputs);
    Tensors in = host_views(inputs);
    return enqueue(c10d::OpType::ALLGATHER_COALESCED, outputs, share() * total_bytes(outputs), [&] {
      gloo_->allgather_into_tensor_coalesced(out, in, options)->wait();
    });
  }

  WorkPtr reduce_scatter(
      Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options) override {
    Tensors out = host_views(outputs);
    std::vector<Tensors> in = host_views(inputs);
    return enqueue(c10d::OpType::REDUCE_SCATTER, outputs, share() * total_bytes(flat(inputs)), [&] {
      c10d::ReduceScatterOptions sum = options;
      sum.reduceOp = summed(options.reduceOp);
      gloo_->reduce_scatter(out, in, sum)->wait();
      divide(out, options.reduceOp);
    });
  }

  WorkPtr _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    Tensors out = host_views({output});
    at::Tensor in = host_view(input);
    return enqueue(c10d::OpType::_REDUCE_SCATTER_BASE, {output}, share() * total_bytes({input}), [&] {
      c10d::ReduceScatterOptions sum = options;
      sum.reduceOp = summed(options.reduceOp);
      gloo_->_reduce_scatter_base(out[0], in, sum)->wait();
      divide(out, options.reduceOp);
    });
  }

  WorkPtr reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) override {
    Tensors out = host_views(outputs);
    Tensors in = host_views(inputs);
    return enqueue(c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED, outputs, share() * total_bytes(inputs), [&] {
      c10d::ReduceScatterOptions sum = options;
      sum.reduceOp = summed(options.reduceOp);
      gloo_->reduce_scatter_tensor_coalesced(out, in, sum)->wait();
      divide(out, options.reduceOp);
    });
  }

  WorkPtr gather(
      std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    std::vector<Tensors> out = host_views(outputs);
    Tensors in = host_views(inputs);
    return enqueue(c10d::OpType::GATHER, inputs, getSize() * share() * total_bytes(inputs), [&] {
      gloo_->gather(out, in, options)->wait();
    });
  }

  WorkPtr scatter(
      Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override {
    Tensors out = host_views(outputs);
    std::vector<Tensors> in = host_views(inputs);
    return enqueue(c10d::OpType::SCATTER, outputs, getSize() * share() * total_bytes(outputs), [&] {
      gloo_->scatter(out, in, options)->wait();
    });
  }

  WorkPtr alltoall_base(
      at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_counts,
      std::vector<int64_t>& input_counts, const c10d::AllToAllOptions& options) override {
    at::Tensor out = host_view(output);
    at::Tensor in = host_view(input);
    return enqueue(c10d::OpType::ALLTOALL_BASE, {output}, share() * total_bytes({input}), [&] {
      gloo_->alltoall_base(out, in, output_counts, input_counts, options)->wait();
    });
  }

  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return enqueue(c10d::OpType::BARRIER, {}, 0, [&] { gloo_->barrier(options)->wait(); });
  }

  WorkPtr send(Tensors& tensors, int to, int tag) override {
    const c10::DeviceIndex index = tensors.at(0).device().index();
    const c10::StreamId stream = current_stream(index);
    Tensors views = host_views(tensors);
    Tensors stamp{moment_tensor(reached_on(index, stream))};
    return c10::make_intrusive<PointToPoint>(
        getRank(), c10d::OpType::SEND,
        std::vector<WorkPtr>{gloo_->send(views, to, 2 * tag), gloo_->send(stamp, to, 2 * tag + 1)},
        [=, this] { timeline(index).wait_for(stream, stamp[0].item<int64_t>() + duration(total_bytes(views), index)); });
  }

  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    const c10::DeviceIndex index = tensors.at(0).device().index();
    const c10::StreamId stream = current_stream(index);
    Tensors views = host_views(tensors);
    Tensors stamp{moment_tensor(0)};
    return c10::make_intrusive<PointToPoint>(
        getRank(), c10d::OpType::RECV,
        std::vector<WorkPtr>{gloo_->recv(views, from, 2 * tag), gloo_->recv(stamp, from, 2 * tag + 1)}, [=, this] {
          const Nanos ready = std::max(stamp[0].item<int64_t>(), reached_on(index, stream));
          timeline(index).wait_for(stream, ready + duration(total_bytes(views), index));
        });
  }

 private:
  static Nanos reached_on(c10::DeviceIndex index, c10::StreamId stream) {
    return std::max(now(), timeline(index).end_of(stream));
  }

  static at::Tensor moment_tensor(Nanos moment) { return at::full({1}, moment, at::kLong); }

  double share() const { return (getSize() - 1.0) / getSize(); }  // what goes over the link of each byte

  Nanos duration(double bytes, c10::DeviceIndex index) const {
    if (getSize() == 1) return 0;  // a group of one has nobody to talk to
    const DeviceSettings& device = settings().devices[index];
    return device.link_latency_ns + std::llround(bytes / device.peer_link_bytes_per_s * 1e9);
  }

  // gloo knows no mean.
  static c10d::ReduceOp summed(const c10d::ReduceOp& asked) {
    return asked == c10d::ReduceOp::AVG ? c10d::ReduceOp(c10d::ReduceOp::SUM) : asked;
  }
  void divide(Tensors& views, const c10d::ReduceOp& asked) const {
    if (asked != c10d::ReduceOp::AVG) return;
    for (at::Tensor& view : views) view.div_(getSize());
  }

  c10::StreamId link_stream(c10::DeviceIndex index) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto [found, is_new] = streams_.try_emplace(index, 0);
    if (is_new) found->second = timeline(index).new_stream();
    return found->second;
  }

  WorkPtr enqueue(
      c10d::OpType type, const Tensors& results, double link_bytes, const std::function<void()>& exchange) {
    refuse_while_capturing("a collective");
    const c10::DeviceIndex index = results.empty() ? current_device() : results[0].device().index();
    const Nanos reached = reached_on(index, current_stream(index));
    exchange();
    Tensors last{moment_tensor(reached)};
    c10d::AllreduceOptions latest;
    latest.reduceOp = c10d::ReduceOp::MAX;
    gloo_->allreduce(last, latest)->wait();
    const c10::StreamId stream = link_stream(index);
    timeline(index).finish_collective(stream, reached, last[0].item<int64_t>(), duration(link_bytes, index));
    return c10::make_intrusive<Enqueued>(getRank(), type, results, stream_of(index, stream));
  }

  c10::intrusive_ptr<c10d::Backend> gloo_;
  std::mutex mutex_;
  std::map<c10::DeviceIndex, c10::StreamId> streams_;
};

c10::intrusive_ptr<c10d::Backend> around(const c10::intrusive_ptr<c10d::Backend>& gloo) {
  return c10::make_intrusive<Backend>(gloo);
}

// When DDP's phases began and ended on the device, for its own statistics.
class PhaseTimer final : public c10d::Timer {
 public:
  explicit PhaseTimer(c10::Device device) : index_(device.index()) {}
  void record(Event event) override {
    c10d::Timer::record(event);
    moments_[event] = std::max(now(), timeline(index_).end_of(current_stream(index_)));
  }
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const auto from = moments_.find(start);
    const auto to = moments_.find(end);
    if (from == moments_.end() || to == moments_.end() || to->second < from->second) return std::nullopt;
    synchronize_until(to->second);
    return to->second - from->second;
  }

 private:
  c10::DeviceIndex index_;
  std::map<Event, Nanos> moments_;
};

}  // namespace

void bind_collectives(pybind11::module_& m) {
  m.def("backend_around", &around);
}

}  // namespace simgpu

namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::DeviceType::PrivateUse1, simgpu::PhaseTimer)
}  // namespace c10d
