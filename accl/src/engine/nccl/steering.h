// Steering: how our rules reach NCCL, which has no choice per call before 2.31: through our tuner
// plugin (accl/plugin), which NCCL loads by the path in NCCL_TUNER_PLUGIN when it makes its first
// communicator. A dlopen of the same path gives us the same object, and with it the plugin's
// control functions: rules are given to the communicators that are made while a scope lives, and no
// others.
#pragma once

#include <string>

#include "accl/rules.h"

namespace accl::nccl {

// Before NCCL makes its first communicator of the process: has it load our plugin, unless the user
// chose another. Idempotent, thread-safe.
void prepare_steering();

// While it lives, communicators that the calling thread makes are steered by the rows of `rules`
// for NCCL; with `everywhere` also those that other threads make: NCCL makes the children of a
// split in a thread of its own.
class SteeringScope {
 public:
  SteeringScope(const Rules& rules, const std::string& name, bool everywhere = false);
  ~SteeringScope();
  SteeringScope(const SteeringScope&) = delete;
  SteeringScope& operator=(const SteeringScope&) = delete;

 private:
  bool given_ = false;
  bool everywhere_;
};

// After a communicator was made: the sentence why the rows of `rules` for NCCL do not reach it;
// empty where they do, and where there are none.
std::string steering_fault(const Rules& rules);

}  // namespace accl::nccl
