#include "transport/shm/channel.h"

#include <algorithm>
#include <cstring>

namespace accl::transport {

namespace {

// Bulk messages start at a line, so that no element of up to 16 bytes is split where the ring
// wraps.
constexpr std::uint64_t line_up(std::uint64_t position) {
  return (position + kLine - 1) / kLine * kLine;
}

constexpr std::size_t cells_for(const Header& header) {
  if (!header.is_inline || header.bytes <= kFirstCellPayload) return 1;
  return 1 + (header.bytes - kFirstCellPayload + kCellPayload - 1) / kCellPayload;
}

}  // namespace

Sender::Sender(std::byte* memory, std::size_t ring_bytes)
    : head_(reinterpret_cast<ChannelHead*>(memory)),
      ring_(memory + sizeof(ChannelHead)),
      ring_bytes_(ring_bytes) {}

bool Sender::has_cells(std::size_t cells) {
  if (cell_position_ + cells - cells_taken_ <= kCells) return true;
  cells_taken_ = head_->cells_taken.load(std::memory_order_acquire);
  return cell_position_ + cells - cells_taken_ <= kCells;
}

bool Sender::start(const Header& header, const std::byte* payload) {
  if (!has_cells(cells_for(header))) return false;
  Cell& first = cell(cell_position_);
  first.first.digest = header.digest;
  first.first.bytes = header.bytes;
  first.first.tag = header.tag;
  first.first.is_inline = header.is_inline ? 1 : 0;
  std::size_t sent = 0;
  if (header.is_inline && header.bytes != 0) {
    sent = std::min<std::size_t>(header.bytes, kFirstCellPayload);
    std::memcpy(first.first.payload.data(), payload, sent);
  }
  first.flag.store(++cell_position_, std::memory_order_release);
  if (!header.is_inline) {
    tail_ = line_up(tail_);
    left_ = header.bytes;
    return true;
  }
  while (sent < header.bytes) {
    Cell& next = cell(cell_position_);
    const std::size_t part = std::min<std::size_t>(header.bytes - sent, kCellPayload);
    std::memcpy(next.further.payload.data(), payload + sent, part);
    next.flag.store(++cell_position_, std::memory_order_release);
    sent += part;
  }
  return true;
}

// The padding before a message can reach past what the receiver has freed.
std::size_t Sender::ring_room() const {
  const std::uint64_t used = tail_ - ring_head_;
  return used >= ring_bytes_ ? 0 : ring_bytes_ - used;
}

std::size_t Sender::write(const std::byte* data, std::size_t bytes) {
  std::size_t room = ring_room();
  if (room < bytes) {
    ring_head_ = head_->ring_head.load(std::memory_order_acquire);
    room = ring_room();
  }
  const std::size_t offset = tail_ % ring_bytes_;
  std::size_t part = std::min({bytes, room, ring_bytes_ - offset});
  if (part < left_) part = part / kLine * kLine;  // only the end of a message may be ragged
  if (part == 0) return 0;
  std::memcpy(ring_ + offset, data, part);
  tail_ += part;
  left_ -= part;
  head_->ring_tail.store(tail_, std::memory_order_release);
  return part;
}

Receiver::Receiver(std::byte* memory, std::size_t ring_bytes)
    : head_(reinterpret_cast<ChannelHead*>(memory)),
      ring_(memory + sizeof(ChannelHead)),
      ring_bytes_(ring_bytes) {}

const Header* Receiver::incoming() {
  if (receiving_) return &header_;
  if (!written(cell_position_)) return nullptr;
  const Cell& first = cell(cell_position_);
  header_ = {first.first.digest, first.first.bytes, first.first.tag, first.first.is_inline != 0};
  receiving_ = true;
  consumed_ = staged_ = 0;
  if (!header_.is_inline) ring_head_ = line_up(ring_head_);
  return &header_;
}

// Gathers the cells of a long inline message that have arrived.
void Receiver::stage() {
  if (staging_ == nullptr) staging_ = std::make_unique<std::byte[]>(kInlineMax);
  if (staged_ == 0) {
    std::memcpy(staging_.get(), cell(cell_position_).first.payload.data(), kFirstCellPayload);
    staged_ = kFirstCellPayload;
    ++cell_position_;
  }
  while (staged_ < header_.bytes && written(cell_position_)) {
    const std::size_t part = std::min<std::size_t>(header_.bytes - staged_, kCellPayload);
    std::memcpy(staging_.get() + staged_, cell(cell_position_).further.payload.data(), part);
    staged_ += part;
    ++cell_position_;
  }
}

std::span<const std::byte> Receiver::readable() {
  if (!header_.is_inline) {
    if (tail_ <= ring_head_) tail_ = head_->ring_tail.load(std::memory_order_acquire);
    if (tail_ <= ring_head_) return {};  // below it only where a message starts past padding
    const std::size_t offset = ring_head_ % ring_bytes_;
    const std::size_t arrived =
        std::min<std::uint64_t>(tail_ - ring_head_, header_.bytes - consumed_);
    return {ring_ + offset, std::min(arrived, ring_bytes_ - offset)};
  }
  if (header_.bytes <= kFirstCellPayload) {
    return {cell(cell_position_).first.payload.data() + consumed_, header_.bytes - consumed_};
  }
  if (staged_ < header_.bytes) stage();
  return {staging_.get() + consumed_, staged_ - consumed_};
}

void Receiver::consume(std::size_t bytes) {
  consumed_ += bytes;
  if (header_.is_inline) return;
  ring_head_ += bytes;
  head_->ring_head.store(ring_head_, std::memory_order_release);
}

void Receiver::finish() {
  receiving_ = false;
  const bool in_first_cell = !header_.is_inline || header_.bytes <= kFirstCellPayload;
  if (in_first_cell) ++cell_position_;
  head_->cells_taken.store(cell_position_, std::memory_order_release);
}

}  // namespace accl::transport
