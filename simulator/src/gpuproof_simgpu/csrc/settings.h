// What is declared of each simulated device, and the faults it has. Set once, before the first use.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace simgpu {

using Nanos = int64_t;  // on the host's monotonic clock, which all processes of a host share

struct DeviceSettings {
  double flops_per_s = 0;             // fp32 and wider
  double flops_16bit_per_s = 0;       // bf16 and fp16
  double memory_bytes_per_s = 0;
  double host_link_bytes_per_s = 0;   // copies from and to the host, each way
  double peer_link_bytes_per_s = 0;   // collectives, each way
  Nanos launch_latency_ns = 0;
  Nanos link_latency_ns = 0;
  int64_t queue_depth = 0;
  int64_t memory_bytes = 0;
  std::string readings_file;          // where the device writes how long it was busy, for its readings
  Nanos cap_period_ns = 0;            // of the power cap's controller; 0: none
  Nanos cap_after_ns = 0;             // counted from the device's first kernel: full clock until then
  double cap_depth = 0;               // share by which the clock falls over a period
  // Faults.
  double slowdown = 1;                // factor on the time of the work, not on the latency
  Nanos throttled_after_ns = -1;      // counted from the device's first kernel; -1: never
  double throttled_slowdown = 1;      // takes the place of `slowdown` from then on
  int64_t wrong_product = -1;         // the n-th matrix product or convolution, from 1; -1: none
  int64_t wrong_products_from = -1;   // this product and every one after it, from 1; -1: none
  int64_t hang_in_kernel = -1;        // the n-th kernel, from 1; -1: none
  int64_t wrong_copy = -1;            // the n-th copy over a link, from 1; -1: none
  int64_t stuck_byte = -1;            // of each allocation longer than this, one bit of this byte is always 1
};

struct Settings {
  std::vector<DeviceSettings> devices;
  bool zero_products = false;         // matrix products and convolutions are not computed
};

Settings& settings();

}  // namespace simgpu
