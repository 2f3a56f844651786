#include "rules/words.h"

#include <array>

#include "accl/rules.h"
#include "accl/schedule.h"

namespace accl {

namespace {

using Word = std::string_view;

constexpr std::array<Word, 2> kCpuProtocols = {"inline", "bulk"};
constexpr std::array<Word, 3> kNcclProtocols = {"ll", "ll128", "simple"};
constexpr std::array<Word, 1> kNcclSimple = {"simple"};

constexpr std::array<Word, 6> kNcclAllReduce = {"tree",          "ring", "collnet_direct",
                                                "collnet_chain", "nvls", "nvls_tree"};
constexpr std::array<Word, 4> kNcclGatherScatter = {"ring", "collnet_direct", "nvls", "pat"};
constexpr std::array<Word, 1> kNcclRooted = {"ring"};
constexpr std::array<Word, 2> kCudaAllReduce = {"direct", "two_shot"};
constexpr std::array<Word, 1> kCudaOther = {"direct"};

// NCCL asks its tuner about five collectives; send, recv and what is made of them are not asked
// for.
std::span<const Word> nccl_algorithms(Collective collective) noexcept {
  switch (collective) {
    case Collective::kAllReduce:
      return kNcclAllReduce;
    case Collective::kAllGather:
    case Collective::kReduceScatter:
      return kNcclGatherScatter;
    case Collective::kBroadcast:
    case Collective::kReduce:
      return kNcclRooted;
    case Collective::kAllToAll:
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kBarrier:
    case Collective::kSend:
    case Collective::kRecv:
      return {};
  }
  return {};
}

std::span<const Word> cuda_algorithms(Collective collective) noexcept {
  switch (collective) {
    case Collective::kAllReduce:
      return kCudaAllReduce;
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kBroadcast:
    case Collective::kReduce:
    case Collective::kAllToAll:
    case Collective::kGather:
    case Collective::kScatter:
      return kCudaOther;
    case Collective::kBarrier:
    case Collective::kSend:
    case Collective::kRecv:
      return {};
  }
  return {};
}

}  // namespace

std::vector<std::string_view> Rules::algorithm_words(Engine engine, Collective collective) {
  std::vector<std::string_view> words;
  std::span<const Word> fixed;
  switch (engine) {
    case Engine::kCpu:
      for (const Algorithm& row : algorithms(collective)) words.push_back(row.name);
      break;
    case Engine::kNccl:
      fixed = nccl_algorithms(collective);
      break;
    case Engine::kCuda:
      fixed = cuda_algorithms(collective);
      break;
  }
  words.insert(words.end(), fixed.begin(), fixed.end());
  return words;
}

std::vector<std::string_view> Rules::protocol_words(Engine engine) {
  const auto words = rules::protocols_of(engine, {});
  return {words.begin(), words.end()};
}

namespace rules {

std::vector<Collective> steered_collectives(Engine engine) {
  std::vector<Collective> collectives;
  for (int i = 0; i < kCollectiveCount; ++i) {
    const auto collective = static_cast<Collective>(i);
    if (!Rules::algorithm_words(engine, collective).empty()) collectives.push_back(collective);
  }
  return collectives;
}

std::span<const std::string_view> protocols_of(Engine engine, std::string_view algorithm) noexcept {
  switch (engine) {
    case Engine::kCpu:
      return kCpuProtocols;
    case Engine::kNccl:
      if (algorithm.empty() || algorithm == "ring" || algorithm == "tree") return kNcclProtocols;
      return kNcclSimple;
    case Engine::kCuda:
      return {};
  }
  return {};
}

bool may_be_uneven(Engine engine, Collective collective) noexcept {
  if (engine == Engine::kNccl) return false;
  switch (collective) {
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kAllToAll:
    case Collective::kGather:
    case Collective::kScatter:
      return true;
    case Collective::kAllReduce:
    case Collective::kBroadcast:
    case Collective::kReduce:
    case Collective::kBarrier:
    case Collective::kSend:
    case Collective::kRecv:
      return false;
  }
  return false;
}

int most_channels(Engine engine) noexcept {
  constexpr int kNcclChannels = 64;  // MAXCHANNELS; NCCL itself does not check what a tuner answers
  return engine == Engine::kCpu ? 1 : kNcclChannels;
}

ChunkLimits chunk_limits(Engine engine, std::string_view protocol) noexcept {
  // NCCL rounds a chunk down to the grain of its protocol, and divides by what is left.
  constexpr std::uint64_t kMostNccl = 2U << 20;  // its largest buffer step, of ring and simple
  constexpr std::uint64_t kMostOther = 1U << 30;
  if (engine != Engine::kNccl) return {64, kMostOther};  // a cache line
  if (protocol == "ll") return {16, kMostNccl};
  if (protocol == "ll128") return {1920, kMostNccl};  // a warp's data of one store
  return {512, kMostNccl};
}

}  // namespace rules

}  // namespace accl
