#include "engine/cpu/executor.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "accl/error.h"
#include "base/check.h"
#include "base/text.h"
#include "reduce/reduce.h"

namespace accl::engine {

using transport::Header;
using transport::Lane;

namespace {

constexpr std::size_t kDefaultPiece = 64u << 10;

// Finds the block that holds the bytes [offset, offset + bytes) of the blocks laid end to end.
std::byte* in_blocks(const Buffer& buffer, std::size_t offset, std::size_t bytes) {
  for (const auto& [data, length] : buffer.blocks) {
    if (offset < length || (offset == length && bytes == 0)) {
      if (offset + bytes > length) break;
      return static_cast<std::byte*>(data) + offset;
    }
    offset -= length;
  }
  throw InternalError("A schedule's transfer crosses the border of two blocks.");
}

}  // namespace

const Round& Executor::round() const { return task_.schedule->loops[loop_].rounds[round_]; }

std::byte* Executor::resolve(const Place& place, std::size_t bytes) const {
  if (place.buffer == BufferKind::kScratch)
    return const_cast<std::byte*>(scratch_.data()) + place.offset;
  const Loop& loop = task_.schedule->loops[loop_];
  const bool is_input = place.buffer == BufferKind::kInput;
  const Buffer& buffer = is_input ? task_.input : task_.output;
  const std::size_t offset =
      place.offset + repeat_ * (is_input ? loop.input_stride : loop.output_stride);
  if (!buffer.blocks.empty()) return in_blocks(buffer, offset, bytes);
  return static_cast<std::byte*>(buffer.data) + offset;
}

void Executor::begin(Task task) {
  task_ = std::move(task);
  traffic_ = {};
  loop_ = repeat_ = round_ = 0;
  busy_ = true;
  element_bytes_ = size_of(task_.dtype);
  piece_bytes_ = task_.schedule->piece_bytes == 0 ? kDefaultPiece : task_.schedule->piece_bytes;
  if (scratch_.size() < task_.schedule->scratch_bytes)
    scratch_.resize(task_.schedule->scratch_bytes);
  while (loop_ < task_.schedule->loops.size() && (task_.schedule->loops[loop_].rounds.empty() ||
                                                  task_.schedule->loops[loop_].repeat == 0)) {
    ++loop_;
  }
  if (loop_ == task_.schedule->loops.size()) {
    busy_ = false;
    return;
  }
  enter_round();
}

void Executor::enter_round() {
  const Round& plan = round();
  for (const Copy& copy : plan.copies) {
    const std::byte* from = resolve(copy.from, copy.bytes);
    std::byte* to = resolve(copy.to, copy.bytes);
    if (from != to && copy.bytes != 0) std::memmove(to, from, copy.bytes);
  }
  sends_.clear();
  receives_.clear();
  reduces_.clear();
  for (const Send& send : plan.sends) {
    sends_.push_back({send.peer, resolve(send.from, send.bytes), send.bytes, 0, false});
  }
  for (const Receive& receive : plan.receives) {
    receives_.push_back(
        {receive.peer, resolve(receive.to, receive.bytes), receive.bytes, 0, false, false});
  }
  for (const Reduce& reduce : plan.reduces) {
    ACCL_INVARIANT(reduce.bytes != 0 && !reduce.peers.empty(), "a schedule reduces nothing");
    reduces_.push_back({&reduce, resolve(reduce.own, reduce.bytes),
                        resolve(reduce.to, reduce.bytes), 0, false, false});
  }
}

// Steps to the next round, repeat or loop; false at the end of the schedule.
bool Executor::next_round() {
  const auto& loops = task_.schedule->loops;
  if (++round_ < loops[loop_].rounds.size()) return true;
  round_ = 0;
  if (++repeat_ < loops[loop_].repeat) return true;
  repeat_ = 0;
  do {
    ++loop_;
  } while (loop_ < loops.size() && (loops[loop_].rounds.empty() || loops[loop_].repeat == 0));
  return loop_ < loops.size();
}

bool Executor::advance() {
  bool moved = false;
  while (busy_) {
    moved |= move_sends();
    moved |= move_receives();
    moved |= move_reduces();
    if (!sends_.empty() || !receives_.empty() || !reduces_.empty()) return moved;
    moved = true;
    if (next_round()) {
      enter_round();
    } else {
      busy_ = false;
    }
  }
  return moved;
}

bool Executor::move_sends() {
  bool moved = false;
  for (SendState& state : sends_) moved |= move_send(state);
  // Done ones stay until all are done: a write in place may not pass what was sent (writable()).
  if (std::ranges::all_of(sends_,
                          [](const SendState& s) { return s.started && s.sent == s.bytes; })) {
    sends_.clear();
  }
  return moved;
}

bool Executor::move_send(SendState& state) {
  bool moved = false;
  if (!state.started) {
    const Header header{task_.digest, state.bytes, 0, state.bytes <= task_.inline_limit};
    if (!transport_.start(state.peer, Lane::kCollective, header, state.from)) return false;
    state.started = moved = true;
    if (header.is_inline) state.sent = state.bytes;
    ++traffic_.messages_sent;
    traffic_.bytes_sent += state.sent;
  }
  if (state.sent == state.bytes) return moved;
  const std::size_t sent = transport_.write(state.peer, Lane::kCollective, state.from + state.sent,
                                            std::min(piece_bytes_, state.bytes - state.sent));
  state.sent += sent;
  traffic_.bytes_sent += sent;
  return moved || sent != 0;
}

// Checks the header of the message that a transfer of `bytes` expects next; false where none has
// arrived.
bool Executor::open(int peer, std::size_t bytes) {
  const Header* header = transport_.incoming(peer, Lane::kCollective);
  if (header == nullptr) return false;
  if (header->digest != task_.digest) {
    throw MismatchError(concat("rank ", peer, " made another call than rank ", rank_));
  }
  if (header->bytes != bytes) {
    throw MismatchError(concat("rank ", peer, " sends ", header->bytes, " bytes where rank ", rank_,
                               " expects ", bytes, ": the counts of the two ranks do not agree"));
  }
  return true;
}

// How many of `wanted` bytes at `to` may be written: no more than what sends of this round have
// read there.
std::size_t Executor::writable(const std::byte* to, std::size_t wanted) const {
  for (const SendState& send : sends_) {
    if (send.from == to && send.bytes != 0) wanted = std::min(wanted, send.sent);
  }
  return wanted;
}

bool Executor::move_receives() {
  bool moved = false;
  bool all_done = true;
  for (ReceiveState& state : receives_) {
    if (!state.done) moved |= move_receive(state);
    all_done &= state.done;
  }
  if (all_done) receives_.clear();
  return moved;
}

bool Executor::move_receive(ReceiveState& state) {
  if (!state.opened && !(state.opened = open(state.peer, state.bytes))) return false;
  const std::size_t limit = writable(state.to, state.bytes);
  bool moved = false;
  while (state.received < limit) {
    const auto arrived = transport_.readable(state.peer, Lane::kCollective);
    const std::size_t part = std::min({arrived.size(), limit - state.received, piece_bytes_});
    if (part == 0) return moved;
    std::memcpy(state.to + state.received, arrived.data(), part);
    transport_.consume(state.peer, Lane::kCollective, part);
    state.received += part;
    traffic_.bytes_received += part;
    moved = true;
    if (part == piece_bytes_) break;  // let the sends of this round keep up
  }
  if (state.received == state.bytes) {
    transport_.finish(state.peer, Lane::kCollective);
    ++traffic_.messages_received;
    state.done = moved = true;
  }
  return moved;
}

bool Executor::move_reduces() {
  bool moved = false;
  bool all_done = true;
  for (ReduceState& state : reduces_) {
    if (!state.done) moved |= move_reduce(state);
    all_done &= state.done;
  }
  if (all_done) reduces_.clear();
  return moved;
}

bool Executor::move_reduce(ReduceState& state) {
  const Reduce& plan = *state.plan;
  if (!state.opened) {
    for (const int peer : plan.peers) {
      if (!open(peer, plan.bytes)) return false;
    }
    state.opened = true;
  }
  std::size_t part = std::min(piece_bytes_, writable(state.to, plan.bytes) - state.reduced);
  operands_.clear();
  bool own_placed = false;
  for (const int peer : plan.peers) {
    if (!own_placed && peer > rank_) {
      operands_.push_back(state.own + state.reduced);
      own_placed = true;
    }
    const auto arrived = transport_.readable(peer, Lane::kCollective);
    part = std::min(part, arrived.size());
    if (part == 0) return false;
    operands_.push_back(arrived.data());
  }
  if (!own_placed) operands_.push_back(state.own + state.reduced);
  part -= part % element_bytes_;
  if (part == 0) return false;
  reduce::combine(operands_, state.to + state.reduced, part / element_bytes_, task_.dtype, task_.op,
                  plan.last ? task_.divisor : 1);
  state.reduced += part;
  for (const int peer : plan.peers) transport_.consume(peer, Lane::kCollective, part);
  traffic_.bytes_received += part * plan.peers.size();
  traffic_.bytes_reduced += part * plan.peers.size();
  if (state.reduced != plan.bytes) return true;
  for (const int peer : plan.peers) transport_.finish(peer, Lane::kCollective);
  traffic_.messages_received += plan.peers.size();
  state.done = true;
  return true;
}

// Whether something of a peer's message lies here, so that it is not this peer that is waited for.
bool Executor::has_data_of(int peer) {
  return transport_.incoming(peer, Lane::kCollective) != nullptr &&
         !transport_.readable(peer, Lane::kCollective).empty();
}

std::vector<int> Executor::waiting_for() {
  std::vector<int> peers;
  for (const SendState& state : sends_) {
    if (!state.started || state.sent != state.bytes) peers.push_back(state.peer);
  }
  for (const ReceiveState& state : receives_) {
    if (!state.done && !has_data_of(state.peer)) peers.push_back(state.peer);
  }
  for (const ReduceState& state : reduces_) {
    if (state.done) continue;
    for (const int peer : state.plan->peers) {
      if (!has_data_of(peer)) peers.push_back(peer);
    }
  }
  std::ranges::sort(peers);
  peers.erase(std::ranges::unique(peers).begin(), peers.end());
  return peers;
}

}  // namespace accl::engine
