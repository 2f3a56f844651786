// Options of one process group, as `pg_options` of init_process_group and new_group takes them.
#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "accl/device.h"

namespace accl::adapter {

struct GroupOptions : c10d::Backend::Options {
  explicit GroupOptions(std::chrono::milliseconds group_timeout = kBackendDefaultTimeout);

  // Path of a rules file for this group; empty: the file that ACCL_RULES names, else the defaults.
  std::string rules;

  // Of CUDA tensors; see accl::DeviceOptions.
  bool is_high_priority_stream = false;  // of the stream on which asynchronous calls run
  bool blocking = true;
  int min_channels = 0;
  int max_channels = 0;
  int cga_cluster_size = -1;
  int traffic_class = -1;
  std::string network;
  bool split_share = false;
  bool kernels = true;
  std::string on_fault = "exit";  // or "raise"

  // For a communicator on the device with this index. Throws for a value that on_fault cannot have.
  DeviceOptions device_options(int device) const;
};

// A copy of `options` as ours, also where it is torch's base class (as pg.split_group may pass it).
c10::intrusive_ptr<GroupOptions> copy_of(const c10d::Backend::Options& options);

}  // namespace accl::adapter
