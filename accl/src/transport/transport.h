// Transport: how bytes move between two ranks of the CPU engine.
//
// Between each ordered pair of ranks there is one channel a *lane*: collectives use one,
// point-to-point messages the other, so that neither waits for the other. A channel carries
// messages in order; a message is a header and its payload. Nothing here blocks: each call does
// what is possible now and says how much.
//
// Two protocols carry a payload. *Inline* messages (up to kInlineMax bytes) ride in flag-carrying
// cells beside their header and are sent whole by start(). *Bulk* messages are streamed through a
// ring in pieces, by write(). Payload is handed out in place (readable), so that a receiver reduces
// straight from the wire.
//
// Besides, a transport keeps what ranks tell each other out of band: what they called last, whether
// they are well, failed or left. Not thread-safe: one thread at a time (the communicator's progress
// lock).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "accl/types.h"

namespace accl::transport {

enum class Lane : std::uint8_t { kCollective, kPointToPoint };
inline constexpr int kLanes = 2;

inline constexpr std::size_t kInlineMax =
    256;  // bytes; cells cost more than the ring beyond (docs/performance.md)

struct Header {
  std::uint64_t digest = 0;  // of the call, compared by the receiver
  std::uint64_t bytes = 0;   // of the payload
  std::int32_t tag = 0;
  bool is_inline = false;
};

// What a rank tells the others about the collective it posted; enough to describe it in a sentence.
struct Announcement {
  std::uint64_t sequence = 0;
  std::uint64_t digest = 0;
  std::uint64_t count = 0;
  std::int32_t root = 0;
  Collective collective = Collective::kBarrier;
  DType dtype = DType::kUint8;
  ReduceOp op = ReduceOp::kSum;
  bool uneven = false;
  bool operator==(const Announcement&) const = default;
};

inline constexpr std::size_t kAnnouncements = 16;  // that a rank keeps

enum class Health : std::uint32_t { kWell, kFailed, kLeft };

// Which kind of error made a rank fail; the peers raise the same kind.
enum class FailureKind : std::uint32_t { kPeer, kMismatch, kTimeout, kAborted };

struct Failure {
  FailureKind kind = FailureKind::kPeer;
  std::string text;
};

class Transport {
 public:
  virtual ~Transport() = default;

  // Starts the next message to a peer; false where there is no room yet. Sends an inline payload
  // whole.
  virtual bool start(int peer, Lane lane, const Header& header, const std::byte* payload) = 0;

  // Continues a bulk message: takes up to `bytes`, returns how many were taken (0: no room now).
  virtual std::size_t write(int peer, Lane lane, const std::byte* data, std::size_t bytes) = 0;

  // The header of the message that is being received, or nullptr where none has arrived.
  virtual const Header* incoming(int peer, Lane lane) = 0;

  // What of its payload has arrived and was not consumed, as far as it lies in one piece. Always a
  // multiple of 16 bytes or up to the end of the message, so that no element is split.
  virtual std::span<const std::byte> readable(int peer, Lane lane) = 0;
  virtual void consume(int peer, Lane lane, std::size_t bytes) = 0;

  // Ends the message being received; all its payload has been consumed.
  virtual void finish(int peer, Lane lane) = 0;

  // Only the last few announcements are kept. A rank may read its own.
  virtual void announce(const Announcement&) = 0;
  virtual std::optional<Announcement> announced(int peer, std::uint64_t sequence) const = 0;
  virtual std::uint64_t last_announced(int peer) const = 0;  // 0: none yet

  virtual void report_failure(const Failure&) = 0;  // the first one counts
  virtual void report_left() = 0;
  virtual Health health(int peer) const = 0;
  virtual Failure failure(int peer) const = 0;  // where health is kFailed
  virtual bool alive(int peer) const = 0;       // asks the system; costs a system call

  virtual std::size_t staging_bytes() const noexcept = 0;  // shared memory that this rank owns
};

}  // namespace accl::transport
