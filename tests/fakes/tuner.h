// Tuner: the fake NCCL's side of a tuner plugin, as NCCL loads and asks it: once a process by
// NCCL_TUNER_PLUGIN, the newest interface that this version of NCCL knows, a flat table in which -1
// marks what NCCL will not take, and channels that arrive as 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "engine/nccl/api.h"
#include "team.h"

namespace accl::fake {

// One communicator's.
class Tuner {
 public:
  Tuner() = default;
  ~Tuner();
  Tuner(const Tuner&) = delete;
  Tuner& operator=(const Tuner&) = delete;

  // As ncclCommInit does; the plugin's error is the communicator's. Success without a plugin.
  nccl::Result start(int nccl_version, std::uint64_t communicator, int ranks);

  // Asks for a collective of all ranks; *chosen is text for the log, empty without a plugin.
  nccl::Result ask(Function function, std::size_t bytes, std::string* chosen);

 private:
  void* context_ = nullptr;
  bool started_ = false;
};

}  // namespace accl::fake
