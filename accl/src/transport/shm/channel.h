// Channel: the memory of one direction between two ranks on one lane, and the two ends that use it.
//
// It lies in the receiver's segment. Small messages take a row of 64-byte *cells*: a cell is valid
// when its flag holds its position, so data and flag come in one cache line, and a cell never needs
// to be reset. Payload of bulk messages goes through a byte ring, guarded by a tail (written by the
// sender) and a head (by the receiver). Each counter has a cache line of its own.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "transport/transport.h"

namespace accl::transport {

inline constexpr std::size_t kLine = 64;
inline constexpr std::size_t kCells = 128;  // a power of two; holds the longest inline message
inline constexpr std::size_t kFirstCellPayload = 32;  // bytes beside the header
inline constexpr std::size_t kCellPayload = 48;       // bytes of each further cell

struct alignas(kLine) Cell {
  std::atomic<std::uint64_t> flag;  // position + 1 once written
  union {
    struct {
      std::uint64_t digest;
      std::uint64_t bytes;
      std::int32_t tag;
      std::uint32_t is_inline;
      std::array<std::byte, kFirstCellPayload> payload;
    } first;
    struct {
      std::uint64_t unused;  // keeps the payload aligned to 16 bytes
      std::array<std::byte, kCellPayload> payload;
    } further;
  };
};
static_assert(sizeof(Cell) == kLine);
static_assert(kFirstCellPayload + (kCells - 1) * kCellPayload >= kInlineMax);

struct ChannelHead {
  alignas(kLine) std::atomic<std::uint64_t> cells_taken;  // by the receiver
  alignas(kLine) std::atomic<std::uint64_t> ring_tail;    // bytes written, by the sender
  std::atomic<std::uint32_t> connected;  // by the sender, once it has mapped the channel
  alignas(kLine) std::atomic<std::uint64_t> ring_head;  // bytes consumed, by the receiver
  alignas(kLine) std::array<Cell, kCells> cells;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// The bytes that a channel takes; the ring follows the head. `ring_bytes` is a power of two.
constexpr std::size_t channel_bytes(std::size_t ring_bytes) {
  return sizeof(ChannelHead) + ring_bytes;
}

class Sender {
 public:
  Sender() = default;
  Sender(std::byte* memory, std::size_t ring_bytes);
  void connect() { head_->connected.store(1, std::memory_order_release); }
  bool start(const Header& header, const std::byte* payload);
  std::size_t write(const std::byte* data, std::size_t bytes);

 private:
  bool has_cells(std::size_t cells);
  std::size_t ring_room() const;
  Cell& cell(std::uint64_t position) { return head_->cells[position % kCells]; }

  ChannelHead* head_ = nullptr;
  std::byte* ring_ = nullptr;
  std::size_t ring_bytes_ = 0;
  std::uint64_t cell_position_ = 0;
  std::uint64_t cells_taken_ = 0;  // as last seen
  std::uint64_t tail_ = 0;
  std::uint64_t ring_head_ = 0;  // as last seen
  std::uint64_t left_ = 0;       // of the bulk message being written
};

class Receiver {
 public:
  Receiver() = default;
  Receiver(std::byte* memory, std::size_t ring_bytes);
  bool connected() const { return head_->connected.load(std::memory_order_acquire) != 0; }
  const Header* incoming();
  std::span<const std::byte> readable();
  void consume(std::size_t bytes);
  void finish();

 private:
  void stage();
  const Cell& cell(std::uint64_t position) const { return head_->cells[position % kCells]; }
  bool written(std::uint64_t position) const {
    return cell(position).flag.load(std::memory_order_acquire) == position + 1;
  }

  ChannelHead* head_ = nullptr;
  std::byte* ring_ = nullptr;
  std::size_t ring_bytes_ = 0;
  std::uint64_t cell_position_ = 0;  // the next cell to read
  std::uint64_t ring_head_ = 0;
  std::uint64_t tail_ = 0;  // as last seen
  Header header_;
  bool receiving_ = false;
  std::uint64_t consumed_ = 0;            // payload bytes of the current message
  std::uint64_t staged_ = 0;              // payload bytes of it that lie in staging_
  std::unique_ptr<std::byte[]> staging_;  // a long inline message, put together
};

}  // namespace accl::transport
