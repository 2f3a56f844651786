// Board: what a rank shows to all others, at the head of its segment.
//
// Written by its owner, read by peers at any time: announcements of the last calls (each guarded by
// its sequence number, read twice), health, and the failure in words.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/transport.h"

namespace accl::transport {

inline constexpr std::size_t kFailureText = 2048;  // bytes, with the terminating zero

class AnnouncementSlot {
 public:
  void store(const Announcement& a) noexcept {
    // Unreadable while it changes: who sees one of the new words sees this zero, too.
    sequence_.store(0, std::memory_order_relaxed);
    digest_.store(a.digest, std::memory_order_release);
    count_.store(a.count, std::memory_order_release);
    what_.store(pack(a), std::memory_order_release);
    sequence_.store(a.sequence, std::memory_order_release);
  }

  // False where the slot holds another call, or changes meanwhile.
  bool load(std::uint64_t sequence, Announcement& a) const noexcept {
    if (sequence_.load(std::memory_order_acquire) != sequence) return false;
    a.digest = digest_.load(std::memory_order_acquire);
    a.count = count_.load(std::memory_order_acquire);
    unpack(what_.load(std::memory_order_acquire), a);
    a.sequence = sequence;
    return sequence_.load(std::memory_order_relaxed) == sequence;
  }

 private:
  static std::uint64_t pack(const Announcement& a) noexcept {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(a.root)) << 32 |
           static_cast<std::uint64_t>(a.uneven) << 24 | static_cast<std::uint64_t>(a.op) << 16 |
           static_cast<std::uint64_t>(a.dtype) << 8 | static_cast<std::uint64_t>(a.collective);
  }
  static void unpack(std::uint64_t word, Announcement& a) noexcept {
    a.root = static_cast<std::int32_t>(word >> 32);
    a.uneven = (word >> 24 & 1) != 0;
    a.op = static_cast<ReduceOp>(word >> 16 & 0xff);
    a.dtype = static_cast<DType>(word >> 8 & 0xff);
    a.collective = static_cast<Collective>(word & 0xff);
  }

  std::atomic<std::uint64_t> sequence_;
  std::atomic<std::uint64_t> digest_;
  std::atomic<std::uint64_t> count_;
  std::atomic<std::uint64_t> what_;
};

struct Board {
  alignas(64) std::atomic<std::uint32_t> health;
  std::atomic<std::uint32_t> failure_kind;
  std::array<char, kFailureText> failure_text;  // written before health says so
  alignas(64) std::atomic<std::uint64_t> last_announced;
  std::array<AnnouncementSlot, kAnnouncements> announcements;
};

}  // namespace accl::transport
