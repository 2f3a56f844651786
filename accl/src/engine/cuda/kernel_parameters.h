// What the host and the kernels agree on: the layout of a rank's region, and a call's parameters.
// Read by nvcc too: plain data alone.
#pragma once

#include <cstddef>
#include <cstdint>

namespace accl::cuda {

constexpr int kMostRanks = 8;
// All blocks of all ranks on one GPU must run at the same time, or they wait for each other for
// ever.
constexpr int kMostBlocks = 16;
constexpr int kMostThreads = 512;

constexpr std::size_t kLineBytes = 16;    // with 8 bytes of data
constexpr std::size_t kSlotLines = 2048;  // of one peer, block and parity
constexpr std::size_t kMostLineChunk = kSlotLines * 8;
constexpr std::size_t kBulkBytes = 16384;  // of one peer, block, parity and phase

// A region, by offsets in bytes: flags first, then the slots.
constexpr std::size_t kEpochs = 0;  // one 32-bit number a block
constexpr std::size_t kBulkFlags = 4096;
constexpr std::size_t kLineSlots = 8192;
constexpr std::size_t kBulkSlots =
    kLineSlots + kMostBlocks * 2 * kMostRanks * kSlotLines * kLineBytes;
constexpr std::size_t kRegionBytes = kBulkSlots + kMostBlocks * 2 * 2 * kMostRanks * kBulkBytes;
static_assert(kEpochs + kMostBlocks * 4 <= kBulkFlags);
static_assert(kBulkFlags + kMostBlocks * 2 * 2 * kMostRanks * 4 <= kLineSlots);

// In memory of the host that the GPU reads and writes.
struct Control {
  std::uint32_t abort;    // not 0: every wait ends
  std::uint32_t gave_up;  // not 0: a wait has ended so
  std::uint64_t deadline_ns;
};

// Who sends data to whom.
enum Shape : int { kEach, kFromRoot, kToRoot };

// In the order of ReduceOp, as far as there are kernels.
enum Op : int { kOpSum, kOpProduct, kOpMin, kOpMax, kOpAvg, kOpPremulSum };

struct Parameters {
  unsigned char* regions[kMostRanks];
  const unsigned char* inputs[kMostRanks];  // what goes to each rank; all the same where `alike`
  unsigned char* outputs[kMostRanks];  // where each rank's data goes; the first alone where reduced
  std::size_t bytes;  // that one rank sends to one peer; of two-shot: of the message
  std::size_t part;   // of two-shot: of one rank, a multiple of 16
  std::size_t chunk;  // that a block exchanges at once, a multiple of 16
  double factor;
  Control* control;
  int rank;
  int ranks;
  int root;
  int shape;
  int op;
  int alike;
};

}  // namespace accl::cuda
