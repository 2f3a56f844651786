// DeviceLog: the last calls of a device communicator, few words each, for what ranks tell each
// other after a fault. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "accl/communicator.h"

namespace accl {

// What a sentence needs of a call.
struct CallNote {
  Collective collective = Collective::kBarrier;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  bool uneven = false;
  int root_or_peer = 0;
  std::uint64_t count = 0;
  std::uint32_t others = 0;    // of the same group
  std::uint64_t sequence = 0;  // collectives and messages count apart, from 1
};

CallNote note_of(const Call& call, std::uint64_t sequence, std::size_t calls);
std::string describe(const CallNote& note);  // "all_reduce of 8 float32 (sum)"

class DeviceLog {
 public:
  static constexpr std::size_t kKept = 64;

  void add(const CallNote& note) noexcept { notes_[collectives_++ % kKept] = note; }
  std::uint64_t collectives() const noexcept { return collectives_; }

  // The kept collectives for another rank: one a line, the oldest first, after the count.
  std::string text() const;

 private:
  std::array<CallNote, kKept> notes_{};
  std::uint64_t collectives_ = 0;
};

// What another rank's text says beside ours: "has made 16 collectives; the last was barrier",
// "calls all_reduce of 9 float32 (sum) there". `sequence` is of the collective that hangs, with
// `own` its description.
std::string compare_logs(int peer, const std::string& theirs, std::uint64_t sequence,
                         const std::string& own);

}  // namespace accl
