#include "engine/cuda/launch_plan.h"

#include <algorithm>
#include <array>

namespace accl::cuda {

namespace {

// A message beyond these goes to NCCL, whose pipelines serve it better than rounds of slots.
constexpr std::size_t kMostDirectBytes = std::size_t{4} << 20;
constexpr std::size_t kMostTwoShotBytes = std::size_t{64} << 20;
constexpr std::size_t kLinesOfThreads =
    std::size_t{kMostThreads} * 8;  // bytes a block has in flight

constexpr std::array<const char*, kKernelCount> kNames = {
    "accl_move",
    "accl_direct_float64",
    "accl_two_shot_float64",
    "accl_direct_float32",
    "accl_two_shot_float32",
    "accl_direct_float16",
    "accl_two_shot_float16",
    "accl_direct_bfloat16",
    "accl_two_shot_bfloat16",
    "accl_direct_float8_e4m3fn",
    "accl_two_shot_float8_e4m3fn",
    "accl_direct_float8_e5m2",
    "accl_two_shot_float8_e5m2",
    "accl_direct_int32",
    "accl_two_shot_int32",
    "accl_direct_int64",
    "accl_two_shot_int64",
};
constexpr int kMove = 0;

// The direct kernel of a type that computes; -1 where there is none.
int direct_kernel(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat64:
      return 1;
    case DType::kFloat32:
      return 3;
    case DType::kFloat16:
      return 5;
    case DType::kBfloat16:
      return 7;
    case DType::kFloat8E4M3FN:
      return 9;
    case DType::kFloat8E5M2:
      return 11;
    case DType::kInt32:
      return 13;
    case DType::kInt64:
      return 15;
    case DType::kInt8:
    case DType::kInt16:
    case DType::kUint8:
    case DType::kUint16:
    case DType::kUint32:
    case DType::kUint64:
    case DType::kBool:
    case DType::kComplex64:
    case DType::kComplex128:
      return -1;
  }
  return -1;
}

// -1 where there is no kernel for it.
int op_of(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::kSum:
      return kOpSum;
    case ReduceOp::kProduct:
      return kOpProduct;
    case ReduceOp::kMin:
      return kOpMin;
    case ReduceOp::kMax:
      return kOpMax;
    case ReduceOp::kAvg:
      return kOpAvg;
    case ReduceOp::kPremulSum:
      return kOpPremulSum;
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor:
      return -1;
  }
  return -1;
}

std::size_t round_up(std::size_t value, std::size_t grain) noexcept {
  return (value + grain - 1) / grain * grain;
}

bool reduces(Collective c) noexcept {
  return c == Collective::kAllReduce || c == Collective::kReduceScatter || c == Collective::kReduce;
}

enum class Blocks { kNone, kInput, kOutput, kBoth };

// Which buffers have one block a rank.
Blocks blocks_of(Collective c) noexcept {
  switch (c) {
    case Collective::kAllGather:
    case Collective::kGather:
      return Blocks::kOutput;
    case Collective::kReduceScatter:
    case Collective::kScatter:
      return Blocks::kInput;
    case Collective::kAllToAll:
      return Blocks::kBoth;
    case Collective::kAllReduce:
    case Collective::kBroadcast:
    case Collective::kReduce:
    case Collective::kBarrier:
    case Collective::kSend:
    case Collective::kRecv:
      return Blocks::kNone;
  }
  return Blocks::kNone;
}

// Who sends to whom; false for a call that is no collective of data.
bool shape_of(Collective c, int& shape) noexcept {
  switch (c) {
    case Collective::kAllReduce:
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kAllToAll:
      shape = kEach;
      return true;
    case Collective::kBroadcast:
    case Collective::kScatter:
      shape = kFromRoot;
      return true;
    case Collective::kReduce:
    case Collective::kGather:
      shape = kToRoot;
      return true;
    case Collective::kBarrier:
    case Collective::kSend:
    case Collective::kRecv:
      return false;
  }
  return false;
}

void set_buffers(const KernelCall& call, Parameters& p) noexcept {
  const Blocks blocks = blocks_of(call.collective);
  const bool many_inputs = blocks == Blocks::kInput || blocks == Blocks::kBoth;
  const bool many_outputs = blocks == Blocks::kOutput || blocks == Blocks::kBoth;
  for (std::size_t r = 0; r < kMostRanks; ++r) {
    p.inputs[r] = static_cast<const unsigned char*>(call.inputs[many_inputs ? r : 0]);
    p.outputs[r] = static_cast<unsigned char*>(call.outputs[many_outputs ? r : 0]);
  }
  p.alike = many_inputs ? 0 : 1;
}

}  // namespace

const char* kernel_name(int kernel) noexcept { return kNames[static_cast<std::size_t>(kernel)]; }

LaunchPlan plan_launch(const KernelCall& call, int rank, int ranks) noexcept {
  LaunchPlan plan;
  Parameters& p = plan.parameters;
  if (call.count > kMostTwoShotBytes || call.root < 0 || call.root >= ranks) return plan;
  const std::size_t bytes = call.count * size_of(call.dtype);
  const bool two_shot = call.two_shot && call.collective == Collective::kAllReduce;
  if (ranks < 2 || ranks > kMostRanks || !shape_of(call.collective, p.shape)) return plan;
  if (bytes > (two_shot ? kMostTwoShotBytes : kMostDirectBytes)) return plan;
  int kernel = kMove;
  if (reduces(call.collective)) {
    kernel = direct_kernel(call.dtype);
    p.op = op_of(call.op);
    if (kernel < 0 || p.op < 0) return plan;
    if (two_shot) ++kernel;
  }
  set_buffers(call, p);
  p.bytes = bytes;
  p.factor = call.factor;
  p.rank = rank;
  p.ranks = ranks;
  p.root = call.root;
  plan.kernel = kernel;
  if (bytes == 0) return plan;
  if (two_shot) {
    p.part = round_up(
        (bytes + static_cast<std::size_t>(ranks) - 1) / static_cast<std::size_t>(ranks), 16);
    const std::size_t longest = std::min(p.part, bytes);
    constexpr std::size_t kLeast = std::size_t{kMostThreads} * 4;
    p.chunk =
        std::clamp(round_up((longest + kMostBlocks - 1) / kMostBlocks, 16), kLeast, kBulkBytes);
    plan.blocks = static_cast<unsigned>(
        std::min<std::size_t>(kMostBlocks, (longest + p.chunk - 1) / p.chunk));
    plan.threads = static_cast<unsigned>(
        std::clamp<std::size_t>(round_up(std::min(p.chunk, longest) / 16, 32), 32, kMostThreads));
    return plan;
  }
  p.chunk = std::clamp(round_up((bytes + kMostBlocks - 1) / kMostBlocks, 16), kLinesOfThreads,
                       kMostLineChunk);
  plan.blocks =
      static_cast<unsigned>(std::min<std::size_t>(kMostBlocks, (bytes + p.chunk - 1) / p.chunk));
  plan.threads = static_cast<unsigned>(
      std::clamp<std::size_t>(round_up((std::min(p.chunk, bytes) + 7) / 8, 32), 32, kMostThreads));
  return plan;
}

}  // namespace accl::cuda
