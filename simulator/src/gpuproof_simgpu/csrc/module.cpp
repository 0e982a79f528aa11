// What Python sees of the simulator.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "collectives.h"
#include "graph.h"
#include "runtime.h"
#include "timeline.h"

namespace py = pybind11;

namespace {

simgpu::DeviceSettings device_settings(const py::dict& declared) {
  simgpu::DeviceSettings device;
  device.flops_per_s = declared["flops_per_s"].cast<double>();
  device.flops_16bit_per_s = declared["flops_16bit_per_s"].cast<double>();
  device.memory_bytes_per_s = declared["memory_bytes_per_s"].cast<double>();
  device.host_link_bytes_per_s = declared["host_link_bytes_per_s"].cast<double>();
  device.peer_link_bytes_per_s = declared["peer_link_bytes_per_s"].cast<double>();
  device.launch_latency_ns = declared["launch_latency_ns"].cast<simgpu::Nanos>();
  device.link_latency_ns = declared["link_latency_ns"].cast<simgpu::Nanos>();
  device.queue_depth = declared["queue_depth"].cast<int64_t>();
  device.memory_bytes = declared["memory_bytes"].cast<int64_t>();
  device.readings_file = declared["readings_file"].cast<std::string>();
  device.cap_period_ns = declared["cap_period_ns"].cast<simgpu::Nanos>();
  device.cap_after_ns = declared["cap_after_ns"].cast<simgpu::Nanos>();
  device.cap_depth = declared["cap_depth"].cast<double>();
  device.slowdown = declared["slowdown"].cast<double>();
  device.throttled_after_ns = declared["throttled_after_ns"].cast<simgpu::Nanos>();
  device.throttled_slowdown = declared["throttled_slowdown"].cast<double>();
  device.wrong_product = declared["wrong_product"].cast<int64_t>();
  device.wrong_products_from = declared["wrong_products_from"].cast<int64_t>();
  device.wrong_copy = declared["wrong_copy"].cast<int64_t>();
  device.stuck_byte = declared["stuck_byte"].cast<int64_t>();
  device.hang_in_kernel = declared["hang_in_kernel"].cast<int64_t>();
  return device;
}

void configure(const std::vector<py::dict>& devices, bool zero_products) {
  simgpu::settings().zero_products = zero_products;
  simgpu::settings().devices.clear();
  for (const py::dict& declared : devices) simgpu::settings().devices.push_back(device_settings(declared));
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("configure", &configure);
  m.def("register_hooks", &simgpu::register_hooks);
  m.def("register_graphs", &simgpu::register_graphs);
  m.def("num_devices", &simgpu::num_devices);
  m.def("current_device", &simgpu::current_device);
  m.def("set_device", &simgpu::set_current_device);
  m.def("is_capturing", &simgpu::is_capturing);
  m.def("now_ns", &simgpu::now);
  m.def(
      "synchronize", &simgpu::synchronize_device, py::call_guard<py::gil_scoped_release>());
  m.def("busy_ns", [](int index, simgpu::Nanos until) { return simgpu::timeline(index).busy_until(until); });
  m.def("default_generator", [](int index) { return simgpu::default_generator(index); });
  m.def("watch", [](int index) { simgpu::timeline(index).watch(); });
  m.def("take_watched", [](int index) {
    std::vector<std::tuple<std::string, simgpu::Nanos, simgpu::Nanos>> told;
    for (const auto& [engine, begin, end] : simgpu::timeline(index).take_watched()) {
      const bool is_copy = engine == simgpu::Engine::to_device || engine == simgpu::Engine::to_host;
      told.emplace_back(engine == simgpu::Engine::link ? "collective" : is_copy ? "copy" : "compute", begin, end);
    }
    return told;
  });
  m.def("num_kernels", [](int index) { return simgpu::timeline(index).num_kernels(); });
  m.def("num_in_queue", [](int index) { return simgpu::timeline(index).num_in_queue(); });
  simgpu::bind_collectives(m);
}
