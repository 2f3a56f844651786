// Steering: how our rules reach NCCL, which has no choice per call before 2.31: through our tuner
// plugin (accl/plugin), which NCCL loads by the path in NCCL_TUNER_PLUGIN when it makes its first
// communicator. A dlopen of the same path gives us the same object, and with it the plugin's
// control functions: rules are given to the communicators that are made within a scope, and to no
// others. docs/nccl-plugin.md has the whole story.
#pragma once

#include <string>

#include "accl/rules.h"

namespace accl::nccl {

// Before NCCL makes its first communicator of the process: has it load our plugin, unless the user
// chose another. Idempotent, thread-safe.
void prepare_steering();

// While it lives, communicators that the calling thread makes are steered by the rows of `rules`
// for NCCL, whichever thread NCCL makes them in; those of other threads are left alone. The call
// that makes a communicator must wait for it (blocking, as all of ours). Ends in the thread that it
// began in, and does not nest.
class SteeringScope {
 public:
  explicit SteeringScope(const Rules& rules);
  ~SteeringScope();
  SteeringScope(const SteeringScope&) = delete;
  SteeringScope& operator=(const SteeringScope&) = delete;

 private:
  std::string digest_;  // of the rows for NCCL
  bool given_ = false;
};

// After a communicator was made: the sentence why the rows of `rules` for NCCL do not reach it;
// empty where they do, and where there are none.
std::string steering_fault(const Rules& rules);

}  // namespace accl::nccl
