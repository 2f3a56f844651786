// Exchange: what a kernel does, on a GPU or on the threads of a test. Before this header comes one
// that has namespace gpu (gpu.cuh).
//
// One rank launches one grid; block b of a rank talks to block b of the others alone.
//
// Direct: small messages. A line is 16 bytes: twice 4 bytes of data with the 4-byte flag beside
// them, so that data and flag arrive together and nothing has to be fenced. A rank pushes its lines
// into the peers' memory and polls its own.
//
// Two-shot: larger all_reduces. Each rank reduces one part: parts are pushed to their owners by
// 16-byte stores, then the results to everybody; a flag for each block and peer tells, by
// st.release.sys and ld.acquire.sys, that the bytes before it are there.
//
// The flag of a block is its epoch: a number in the rank's own memory that the kernel moves on in
// each exchange, so that nothing is reset between calls and a captured call can be replayed. All
// ranks make the same calls, so their epochs agree.
//
// Why no slot is overwritten before it was read. Slots and flags are double, by the parity of the
// epoch. In every epoch a block hears from all peers (where a peer has no data for it, line 0 comes
// as a token), and a peer's block sends in epoch e + 1 only after it has read all of epoch e. So a
// rank that writes in epoch e + 2 has ended e + 1, has heard from the peer there, and the peer has
// read e. Epochs of both kinds follow one another in one counter, so this holds across them.
//
// Why no old flag is taken for a fresh one. An epoch's number comes again after 2^32 exchanges (a
// few hours of nothing but small calls). In the last epoch of either parity each block wipes its
// own slots and flags of that parity, which by the above nobody writes at that time. 0, which empty
// memory holds, is no epoch.
#pragma once

#include "engine/cuda/elements.h"
#include "engine/cuda/kernel_parameters.h"

namespace accl::cuda {

constexpr u32 kLastEpoch = 0xffffffffU;  // odd

// Bounds every wait: true where the caller shall give up, and from then on. The control block is
// host memory, and the clock is slow: they are looked at once in many polls.
class Patience {
 public:
  ACCL_GPU explicit Patience(Control* control) : control_(control) {}

  ACCL_GPU bool gone() {
    if (!gone_ && ++polls_ % kPollsBetweenLooks == 0) gone_ = look();
    return gone_;
  }

 private:
  static constexpr u32 kPollsBetweenLooks = 4096;

  ACCL_GPU bool look() {
    const u64 now = gpu::now_ns();
    if (start_ == 0) start_ = now;
    if (gpu::peek(&control_->abort) == 0 && now - start_ <= gpu::peek(&control_->deadline_ns))
      return false;
    gpu::poke(&control_->gave_up, u32{1});
    gpu::poke(&control_->abort, u32{1});  // the other threads need not wait as long
    return true;
  }

  Control* control_;
  u64 start_ = 0;
  u32 polls_ = 0;
  bool gone_ = false;
};

ACCL_GPU bool is_aligned(const void* at, unsigned bytes) {
  return (reinterpret_cast<std::uintptr_t>(at) & (bytes - 1)) == 0;
}

// 8 bytes at any address, of which only `left` are the message's.
ACCL_GPU u64 load_payload(const unsigned char* at, std::size_t left) {
  if (left >= 8 && is_aligned(at, 8)) return gpu::load8(at);
  u64 payload = 0;
  for (unsigned i = 0; i < 8; ++i) {
    if (i < left) payload |= u64{at[i]} << (8 * i);
  }
  return payload;
}

ACCL_GPU void store_payload(unsigned char* at, std::size_t left, u64 payload) {
  if (left >= 8 && is_aligned(at, 8)) return gpu::store8(at, payload);
  for (unsigned i = 0; i < 8; ++i) {
    if (i < left) at[i] = static_cast<unsigned char>(payload >> (8 * i));
  }
}

// The same of 16 bytes.
ACCL_GPU gpu::Pair load_vector(const unsigned char* at, std::size_t left) {
  if (left >= 16 && is_aligned(at, 16)) return gpu::load16(at);
  return {load_payload(at, left), left > 8 ? load_payload(at + 8, left - 8) : 0};
}

ACCL_GPU void store_vector(unsigned char* at, std::size_t left, gpu::Pair value) {
  if (left >= 16 && is_aligned(at, 16)) return gpu::store16(at, value);
  store_payload(at, left, value.low);
  if (left > 8) store_payload(at + 8, left - 8, value.high);
}

ACCL_GPU std::size_t least(std::size_t a, std::size_t b) { return a < b ? a : b; }

// The `step`-th rank after this one: all ranks push to different peers at a time.
ACCL_GPU int peer_after(const Parameters& p, int step) {
  const int peer = p.rank + step;
  return peer < p.ranks ? peer : peer - p.ranks;
}

ACCL_GPU bool sends_to(const Parameters& p, int peer) {
  if (p.shape == kFromRoot) return p.rank == p.root;
  return p.shape == kToRoot ? peer == p.root : true;
}

ACCL_GPU bool hears_from(const Parameters& p, int peer) {
  if (p.shape == kFromRoot) return peer == p.root;
  return p.shape == kToRoot ? p.rank == p.root : true;
}

ACCL_GPU u32* epoch_of_block(const Parameters& p) {
  return reinterpret_cast<u32*>(p.regions[p.rank] + kEpochs) + gpu::block();
}

ACCL_GPU u32 after(u32 epoch) { return epoch == kLastEpoch ? 2 : epoch + 1; }

// This block's slots of one parity in a rank's region; slot `from` belongs to that peer.
ACCL_GPU unsigned char* line_slot(const Parameters& p, int to, int from, u32 epoch) {
  const std::size_t slot =
      (std::size_t{gpu::block()} * 2 + (epoch & 1)) * kMostRanks + static_cast<unsigned>(from);
  return p.regions[to] + kLineSlots + slot * kSlotLines * kLineBytes;
}

// Of a two-shot exchange: phase 0 has parts to reduce, phase 1 results.
ACCL_GPU std::size_t bulk_place(int from, int phase, u32 epoch) {
  return ((std::size_t{gpu::block()} * 2 + (epoch & 1)) * 2 + static_cast<unsigned>(phase)) *
             kMostRanks +
         static_cast<unsigned>(from);
}

ACCL_GPU unsigned char* bulk_slot(const Parameters& p, int to, int from, int phase, u32 epoch) {
  return p.regions[to] + kBulkSlots + bulk_place(from, phase, epoch) * kBulkBytes;
}

ACCL_GPU u32* bulk_flag(const Parameters& p, int to, int from, int phase, u32 epoch) {
  return reinterpret_cast<u32*>(p.regions[to] + kBulkFlags) + bulk_place(from, phase, epoch);
}

// Ends an exchange: from here on nobody of this block reads its slots, so that the next one may
// tell the peers.
ACCL_GPU void end_epoch(const Parameters& p, u32 epoch) {
  gpu::sync_threads();
  if (epoch < kLastEpoch - 1) return;
  for (std::size_t i = gpu::thread(); i < kMostRanks * kSlotLines; i += gpu::threads())
    gpu::store_line(line_slot(p, p.rank, 0, epoch) + i * kLineBytes, {0, 0});
  for (std::size_t i = gpu::thread(); i < 2 * kMostRanks; i += gpu::threads())
    gpu::release(bulk_flag(p, p.rank, 0, 0, epoch) + i, 0);
  gpu::fence();
  gpu::sync_threads();
}

ACCL_GPU void keep_epoch(const Parameters& p, u32 epoch) {
  if (gpu::thread() == 0) *epoch_of_block(p) = epoch;
}

// Pushes this block's bytes of the message, from `offset` on, to all peers; where there is no data,
// the token.
template <bool kScaled, class T>
ACCL_GPU void push_lines(const Parameters& p, u32 epoch, std::size_t offset, std::size_t length) {
  const auto input_at = [&](std::size_t at, int peer) {
    const u64 payload = load_payload(p.inputs[peer] + offset + at, length - at);
    return kScaled ? scaled<T>(payload, p.factor) : payload;
  };
  // Without data to send, the input may be null.
  const bool same_for_all = p.alike != 0 && (p.shape != kFromRoot || p.rank == p.root);
  for (std::size_t at = gpu::thread() * 8; at < length; at += gpu::threads() * 8) {
    const u64 same = same_for_all ? input_at(at, 0) : 0;
    for (int step = 1; step < p.ranks; ++step) {
      const int peer = peer_after(p, step);
      const bool data = sends_to(p, peer);
      if (!data && at != 0) continue;
      const u64 payload = data && !same_for_all ? input_at(at, peer) : same;
      const u64 flag = u64{epoch} << 32;
      gpu::store_line(line_slot(p, peer, p.rank, epoch) + at * 2,
                      {(payload & 0xffffffffU) | flag, payload >> 32 | flag});
    }
  }
}

// Waits for the line of the bytes `at` from all peers that send it. Polls all of them at once,
// since a poll takes long.
ACCL_GPU void pull_line(const Parameters& p, u32 epoch, std::size_t at, u64* payloads,
                        Patience& patience) {
  u32 wanted = 0;
  ACCL_UNROLL
  for (int r = 0; r < kMostRanks; ++r) {
    if (r < p.ranks && r != p.rank && (at == 0 || hears_from(p, r))) wanted |= 1U << r;
  }
  while (wanted != 0) {
    ACCL_UNROLL
    for (int r = 0; r < kMostRanks; ++r) {
      if ((wanted >> r & 1U) == 0) continue;
      const gpu::Pair line = gpu::load_line(line_slot(p, p.rank, r, epoch) + at * 2);
      if (line.low >> 32 != epoch || line.high >> 32 != epoch) continue;
      payloads[r] = (line.low & 0xffffffffU) | line.high << 32;
      wanted &= ~(1U << r);
    }
    if (wanted != 0 && patience.gone()) return;
  }
}

// What all ranks sent for these 8 bytes, rank by rank, so that all get the same bits. `sent` gives
// it by rank.
template <class T, class Sent>
ACCL_GPU u64 reduced(const Parameters& p, Sent sent) {
  Pack<T> sum = Pack<T>::from(sent(0));
  ACCL_UNROLL
  for (int r = 1; r < kMostRanks; ++r) {
    if (r < p.ranks) sum.add(Pack<T>::from(sent(r)), p.op);
  }
  if (p.op == kOpAvg) sum.divide(p.ranks);
  return sum.payload();
}

template <bool kReduce, class T>
ACCL_GPU void take_line(const Parameters& p, u32 epoch, std::size_t offset, std::size_t at,
                        std::size_t length, Patience& patience) {
  const std::size_t left = length - at;
  u64 payloads[kMostRanks];
  u64 own = 0;
  ACCL_UNROLL
  for (int r = 0; r < kMostRanks; ++r) payloads[r] = 0;
  if (hears_from(p, p.rank)) {
    own = load_payload(p.inputs[p.rank] + offset + at, left);
    if (kReduce && p.op == kOpPremulSum) own = scaled<T>(own, p.factor);
  }
  pull_line(p, epoch, at, payloads, patience);
  if (p.shape == kToRoot && p.rank != p.root) return;
  // Selected, not stored: with an index that is not a constant the array would leave the registers.
  const auto sent = [&](int r) { return r == p.rank ? own : payloads[r]; };
  if constexpr (kReduce) {
    store_payload(p.outputs[0] + offset + at, left, reduced<T>(p, sent));
  } else {
    ACCL_UNROLL
    for (int r = 0; r < kMostRanks; ++r) {
      if (r >= p.ranks || !hears_from(p, r)) continue;
      store_payload(p.outputs[r] + offset + at, left, sent(r));
    }
  }
}

template <bool kReduce, class T>
ACCL_GPU void direct(const Parameters& p) {
  Patience patience(p.control);
  u32 epoch = *epoch_of_block(p);
  for (std::size_t offset = gpu::block() * p.chunk; offset < p.bytes;
       offset += gpu::blocks() * p.chunk) {
    const std::size_t length = least(p.bytes - offset, p.chunk);
    epoch = after(epoch);
    if (kReduce && p.op == kOpPremulSum) {
      push_lines<kReduce, T>(p, epoch, offset, length);
    } else {
      push_lines<false, T>(p, epoch, offset, length);
    }
    // The thread that pushed a line takes it, so that in place no other overwrites it before.
    for (std::size_t at = gpu::thread() * 8; at < length; at += gpu::threads() * 8)
      take_line<kReduce, T>(p, epoch, offset, at, length, patience);
    end_epoch(p, epoch);
  }
  keep_epoch(p, epoch);
}

// Tells all peers that this block's bytes are there, and waits until theirs are.
ACCL_GPU void exchange_flags(const Parameters& p, int phase, u32 epoch, Patience& patience) {
  gpu::sync_threads();
  const int peer = static_cast<int>(gpu::thread());
  if (peer < p.ranks && peer != p.rank) {
    gpu::fence();
    gpu::release(bulk_flag(p, peer, p.rank, phase, epoch), epoch);
    const u32* flag = bulk_flag(p, p.rank, peer, phase, epoch);
    while (gpu::acquire(flag) != epoch && !patience.gone()) {
    }
  }
  gpu::sync_threads();
}

// Part r of the message is [r * part, (r + 1) * part), cut at its end; part 0 is the longest. How
// many bytes of it are exchanged at `offset`.
ACCL_GPU std::size_t part_length(const Parameters& p, int r, std::size_t offset) {
  const std::size_t begin = p.part * static_cast<unsigned>(r) + offset;
  const std::size_t end = least(p.part * (static_cast<unsigned>(r) + 1), p.bytes);
  return begin < end ? least(end - begin, p.chunk) : 0;
}

template <class T>
ACCL_GPU gpu::Pair load_scaled(const Parameters& p, const unsigned char* at, std::size_t left) {
  const gpu::Pair value = load_vector(at, left);
  if (p.op != kOpPremulSum) return value;
  return {scaled<T>(value.low, p.factor), scaled<T>(value.high, p.factor)};
}

template <class T>
ACCL_GPU void push_parts(const Parameters& p, u32 epoch, std::size_t offset) {
  for (int step = 1; step < p.ranks; ++step) {
    const int peer = peer_after(p, step);
    const std::size_t length = part_length(p, peer, offset);
    const unsigned char* from = p.inputs[0] + p.part * static_cast<unsigned>(peer) + offset;
    unsigned char* to = bulk_slot(p, peer, p.rank, 0, epoch);
    for (std::size_t i = gpu::thread() * 16; i < length; i += gpu::threads() * 16)
      gpu::store16(to + i, load_scaled<T>(p, from + i, length - i));
  }
}

template <class T>
ACCL_GPU void reduce_own_part(const Parameters& p, u32 epoch, std::size_t offset) {
  const std::size_t length = part_length(p, p.rank, offset);
  const std::size_t begin = p.part * static_cast<unsigned>(p.rank) + offset;
  for (std::size_t i = gpu::thread() * 16; i < length; i += gpu::threads() * 16) {
    const gpu::Pair own = load_scaled<T>(p, p.inputs[0] + begin + i, length - i);
    Pack<T> low{}, high{};
    for (int r = 0; r < p.ranks; ++r) {  // rank by rank, as in reduced()
      const gpu::Pair value =
          r == p.rank ? own : gpu::load16(bulk_slot(p, p.rank, r, 0, epoch) + i);
      if (r == 0) {
        low = Pack<T>::from(value.low);
        high = Pack<T>::from(value.high);
      } else {
        low.add(Pack<T>::from(value.low), p.op);
        high.add(Pack<T>::from(value.high), p.op);
      }
    }
    if (p.op == kOpAvg) {
      low.divide(p.ranks);
      high.divide(p.ranks);
    }
    const gpu::Pair result{low.payload(), high.payload()};
    store_vector(p.outputs[0] + begin + i, length - i, result);
    for (int step = 1; step < p.ranks; ++step)
      gpu::store16(bulk_slot(p, peer_after(p, step), p.rank, 1, epoch) + i, result);
  }
}

ACCL_GPU void take_results(const Parameters& p, u32 epoch, std::size_t offset) {
  for (int step = 1; step < p.ranks; ++step) {
    const int peer = peer_after(p, step);
    const std::size_t length = part_length(p, peer, offset);
    const unsigned char* from = bulk_slot(p, p.rank, peer, 1, epoch);
    unsigned char* to = p.outputs[0] + p.part * static_cast<unsigned>(peer) + offset;
    for (std::size_t i = gpu::thread() * 16; i < length; i += gpu::threads() * 16)
      store_vector(to + i, length - i, gpu::load16(from + i));
  }
}

template <class T>
ACCL_GPU void two_shot(const Parameters& p) {
  Patience patience(p.control);
  u32 epoch = *epoch_of_block(p);
  const std::size_t longest = least(p.part, p.bytes);
  for (std::size_t offset = gpu::block() * p.chunk; offset < longest;
       offset += gpu::blocks() * p.chunk) {
    epoch = after(epoch);
    push_parts<T>(p, epoch, offset);
    exchange_flags(p, 0, epoch, patience);
    reduce_own_part<T>(p, epoch, offset);
    exchange_flags(p, 1, epoch, patience);
    take_results(p, epoch, offset);
    end_epoch(p, epoch);
  }
  keep_epoch(p, epoch);
}

}  // namespace accl::cuda
