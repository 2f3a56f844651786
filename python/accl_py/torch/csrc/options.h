// Options of one process group, as `pg_options` of init_process_group and new_group takes them.
#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace accl::adapter {

struct GroupOptions : c10d::Backend::Options {
  explicit GroupOptions(std::chrono::milliseconds group_timeout = kBackendDefaultTimeout);

  // Path of a rules file for this group; empty: the file that ACCL_RULES names, else the defaults.
  std::string rules;
};

// A copy of `options` as ours, also where it is torch's base class (as pg.split_group may pass it).
c10::intrusive_ptr<GroupOptions> copy_of(const c10d::Backend::Options& options);

}  // namespace accl::adapter
