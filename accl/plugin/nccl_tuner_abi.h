// NCCL's tuner interface as NCCL calls it: versions 4 (NCCL 2.24 to 2.27), 5 (2.28, 2.29) and 6
// (2.30 and later).
//
// Our own declarations, written from the interface's facts, so that the plugin builds on machines
// without NCCL. Layouts are checked by tests/plugin, member by member.
#pragma once

#include <cstddef>
#include <cstdint>

namespace accl::plugin {

// ncclResult_t: the values that a tuner returns.
enum class NcclResult : int { kSuccess = 0, kInvalidUsage = 5 };

// ncclFunc_t: the collectives that NCCL asks a tuner about; others exist.
enum NcclFunction : int {
  kNcclBroadcast = 0,
  kNcclReduce = 1,
  kNcclAllGather = 2,
  kNcclReduceScatter = 3,
  kNcclAllReduce = 4,
};
inline constexpr int kNcclFunctions = 5;

// ncclDebugLogLevel, and the subsystem flag of a tuner's lines.
enum NcclLogLevel : int { kNcclLogWarn = 2, kNcclLogInfo = 3 };
inline constexpr unsigned long kNcclLogTuning = 64;

// ncclDebugLogger_t: printf-like.
using NcclLogger = void (*)(int level, unsigned long flags, const char* file, int line,
                            const char* format, ...);

// An entry of the cost table that NCCL will not take: excluded by the user, or not possible here.
inline constexpr float kNcclIgnored = -1.0F;

// How NCCL numbers its rows and columns of the cost table.
enum NcclAlgorithm : int {
  kNcclTree = 0,
  kNcclRing = 1,
  kNcclCollnetDirect = 2,
  kNcclCollnetChain = 3,
  kNcclNvls = 4,
  kNcclNvlsTree = 5,
  kNcclPat = 6,
};
enum NcclProtocol : int { kNcclLl = 0, kNcclLl128 = 1, kNcclSimple = 2 };

// Given to init from version 5 on. This plugin reads neither.
struct NcclNvlDomainInfo {
  int domains;
  int min_ranks;
  int max_ranks;
};
struct NcclTunerConstants;

// `table` is declared float** by NCCL and is a flat float[algorithms][protocols].
using NcclGetCollInfo = NcclResult (*)(void* context, int function, std::size_t bytes, int pipe_ops,
                                       float** table, int algorithms, int protocols, int registered,
                                       int* channels);
using NcclInitV4 = NcclResult (*)(std::size_t ranks, std::size_t nodes, NcclLogger logger,
                                  void** context);
using NcclInitV5 = NcclResult (*)(void** context, std::uint64_t communicator, std::size_t ranks,
                                  std::size_t nodes, NcclLogger logger, NcclNvlDomainInfo* domains,
                                  NcclTunerConstants* constants);
using NcclFinalize = NcclResult (*)(void* context);
using NcclGetChunkSize = NcclResult (*)(void* context, int function, std::size_t bytes,
                                        int algorithm, int protocol, int channels,
                                        std::size_t* chunk);

struct NcclTunerV4 {
  const char* name;
  NcclInitV4 init;
  NcclGetCollInfo get_coll_info;
  NcclFinalize destroy;
};

struct NcclTunerV5 {
  const char* name;
  NcclInitV5 init;
  NcclGetCollInfo get_coll_info;
  NcclFinalize finalize;
};

struct NcclTunerV6 {
  const char* name;
  NcclInitV5 init;
  NcclGetCollInfo get_coll_info;
  NcclFinalize finalize;
  NcclGetChunkSize get_chunk_size;
};

static_assert(sizeof(NcclResult) == 4 && sizeof(void*) == 8);
static_assert(sizeof(NcclTunerV4) == 32 && sizeof(NcclTunerV5) == 32 && sizeof(NcclTunerV6) == 40);
static_assert(offsetof(NcclTunerV6, get_coll_info) == 16 && offsetof(NcclTunerV6, finalize) == 24 &&
              offsetof(NcclTunerV6, get_chunk_size) == 32);

}  // namespace accl::plugin
