// Trace: a bounded ring of what one communicator did, always on, read when something went wrong.
//
// Who locks: begin, started, finished and failed are called by one thread at a time (the
// communicator's progress lock sees to it). to_json and dump may be called by any thread at any
// time, without that lock: each record is guarded by its own stamp, so that a reader never sees
// half of one, and never makes a writer wait. Recording allocates nothing (failed does, once an
// operation fails).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "accl/schedule.h"
#include "accl/types.h"
#include "trace/ticks.h"

namespace accl::trace {

inline constexpr std::size_t kCapacity = 2048;  // operations kept, a power of two

// What is known of an operation when it is posted.
struct Record {
  std::uint64_t sequence = 0;  // of the communicator; collectives and point-to-point count apart
  Collective collective = Collective::kAllReduce;
  std::uint64_t bytes = 0;  // as the rules count them
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int root_or_peer = 0;  // shown where the collective has a root or a peer; -1 as peer: any source
  int tag = 0;
  // The two words must outlive the trace: names from the registry, literals.
  std::string_view algorithm;
  std::string_view protocol;
  std::uint64_t chunk_bytes = 0;
  std::uint32_t calls =
      1;  // of a group of sends and receives: how many; the rest describes the first
};

// Names one operation of a Trace, from 1; 0 names none. Calls with the handle of an operation that
// has left the ring, or that has ended already, do nothing.
using Handle = std::uint64_t;

enum class State : std::uint8_t { kPosted, kStarted, kCompleted, kFailed };

std::string_view name_of(State) noexcept;  // "posted", "started", "completed", "failed"

class Trace {
 public:
  Trace(std::string name, int rank, int size);
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  Handle begin(const Record& record) noexcept;
  void started(Handle handle) noexcept;
  void finished(Handle handle, const Traffic& traffic) noexcept;
  void failed(Handle handle, std::string_view error) noexcept;

  // The ring as a JSON document (docs/trace.md), oldest operation first. `reason`: why it is read.
  std::string to_json(std::string_view reason) const;

  // Writes that document to `directory`, readable by its owner alone: whole or not at all, and
  // never over another file. Returns its path. What stands in the way gives a log line and an empty
  // path.
  std::string dump(const std::string& directory, std::string_view reason) const noexcept;

 private:
  // Two cache lines. A stamp is the handle, the state, and whether the record is being written; it
  // only grows.
  struct alignas(64) Slot {
    std::atomic<std::uint64_t> stamp{0};
    std::atomic<std::uint64_t> sequence{0};
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<std::uint64_t> chunk_bytes{0};
    std::atomic<std::uint64_t> posted{0};   // ticks
    std::atomic<std::uint64_t> started{0};  // ticks; 0: not
    std::atomic<std::uint64_t> ended{0};    // ticks; 0: not
    std::atomic<std::uint64_t> kinds{0};    // Kinds, packed
    std::atomic<const char*> algorithm{nullptr};
    std::atomic<const char*> protocol{nullptr};
    std::atomic<std::uint64_t> root_and_tag{0};
    std::array<std::atomic<std::uint64_t>, 5> traffic{};
  };
  static_assert(sizeof(Slot) == 128);

  struct Operation;  // a slot as it was read
  Slot& slot_of(Handle handle) const noexcept { return (*slots_)[handle % kCapacity]; }
  Slot* open(Handle handle, State to) noexcept;
  bool read(Handle handle, Operation& operation) const noexcept;
  std::string error_of(Handle handle) const;
  void append(std::string& text, const Operation& operation, const Anchor& anchor) const;
  void append_header(std::string& text, std::string_view reason, const Anchor& anchor,
                     Handle next) const;

  const std::string name_;
  const int rank_;
  const int size_;
  const TickClock clock_;
  const std::unique_ptr<std::array<Slot, kCapacity>> slots_;
  std::atomic<Handle> next_{1};

  // Texts of the failed operations that are still in the ring; one text often serves many.
  mutable std::mutex errors_mutex_;
  std::map<Handle, std::shared_ptr<const std::string>> errors_;
};

}  // namespace accl::trace
