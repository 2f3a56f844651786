// NCCL's interface as one table of function pointers: the only seam between us and NCCL.
//
// The types are our own spelling of nccl.h, whose binary interface only grows: 2.24 to 2.32 are
// accepted (library.h). A fake library with the same symbols serves the tests.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>

namespace accl::nccl {

using Result = int;
inline constexpr Result kSuccess = 0;
inline constexpr Result kUnhandledCudaError = 1;
inline constexpr Result kSystemError = 2;
inline constexpr Result kInternalError = 3;
inline constexpr Result kInvalidArgument = 4;
inline constexpr Result kInvalidUsage = 5;
inline constexpr Result kRemoteError = 6;
inline constexpr Result kInProgress = 7;

struct Comm_;
using Comm = Comm_*;
using Stream = void*;  // cudaStream_t

struct UniqueId {
  char internal[128];
};

// ncclDataType_t
enum class Type : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
  kFloat8E4M3 = 10,
  kFloat8E5M2 = 11,
};

// ncclRedOp_t; numbers from 5 on are made by redop_create_premul_sum.
using Op = int;
inline constexpr Op kSum = 0;
inline constexpr Op kProduct = 1;
inline constexpr Op kMax = 2;
inline constexpr Op kMin = 3;
inline constexpr Op kAvg = 4;
inline constexpr int kScalarOnHost = 1;  // ncclScalarHostImmediate

inline constexpr int kUndefined = INT_MIN;
inline constexpr int kNoColor = -1;

// ncclConfig_t as far as we set it. NCCL reads `size` bytes and takes the fields that `version`
// had.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 22700;  // has all fields below
  int blocking = kUndefined;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
  int traffic_class = kUndefined;
  const char* comm_name = nullptr;  // from 2.27 on
  int collnet_enable = kUndefined;
  int cta_policy = kUndefined;
  int shrink_share = kUndefined;
  int nvls_ctas = kUndefined;
};
inline constexpr unsigned kConfigVersion = 22700;
inline constexpr unsigned kOldConfigVersion = 22400;
inline constexpr std::size_t kOldConfigSize = offsetof(Config, comm_name);

// member, symbol, parameters; all return Result.
#define ACCL_NCCL_FUNCTIONS(X)                                                                  \
  X(get_version, "ncclGetVersion", (int* version))                                              \
  X(get_unique_id, "ncclGetUniqueId", (UniqueId * id))                                          \
  X(comm_init, "ncclCommInitRankConfig",                                                        \
    (Comm * comm, int ranks, UniqueId id, int rank, Config* config))                            \
  X(comm_split, "ncclCommSplit", (Comm comm, int color, int key, Comm* child, Config* config))  \
  X(comm_rank, "ncclCommUserRank", (Comm comm, int* rank))                                      \
  X(comm_ranks, "ncclCommCount", (Comm comm, int* ranks))                                       \
  X(comm_finalize, "ncclCommFinalize", (Comm comm))                                             \
  X(comm_destroy, "ncclCommDestroy", (Comm comm))                                               \
  X(comm_abort, "ncclCommAbort", (Comm comm))                                                   \
  X(comm_error, "ncclCommGetAsyncError", (Comm comm, Result * error))                           \
  X(group_start, "ncclGroupStart", ())                                                          \
  X(group_end, "ncclGroupEnd", ())                                                              \
  X(all_reduce, "ncclAllReduce",                                                                \
    (const void* send, void* receive, std::size_t count, Type type, Op op, Comm comm,           \
     Stream stream))                                                                            \
  X(broadcast, "ncclBroadcast",                                                                 \
    (const void* send, void* receive, std::size_t count, Type type, int root, Comm comm,        \
     Stream stream))                                                                            \
  X(reduce, "ncclReduce",                                                                       \
    (const void* send, void* receive, std::size_t count, Type type, Op op, int root, Comm comm, \
     Stream stream))                                                                            \
  X(all_gather, "ncclAllGather",                                                                \
    (const void* send, void* receive, std::size_t count, Type type, Comm comm, Stream stream))  \
  X(reduce_scatter, "ncclReduceScatter",                                                        \
    (const void* send, void* receive, std::size_t count, Type type, Op op, Comm comm,           \
     Stream stream))                                                                            \
  X(send, "ncclSend",                                                                           \
    (const void* send, std::size_t count, Type type, int peer, Comm comm, Stream stream))       \
  X(recv, "ncclRecv",                                                                           \
    (void* receive, std::size_t count, Type type, int peer, Comm comm, Stream stream))          \
  X(redop_create_premul_sum, "ncclRedOpCreatePreMulSum",                                        \
    (Op * op, void* scalar, Type type, int residence, Comm comm))                               \
  X(redop_destroy, "ncclRedOpDestroy", (Op op, Comm comm))

struct Api {
#define ACCL_NCCL_MEMBER(member, symbol, parameters) Result(*member) parameters = nullptr;
  ACCL_NCCL_FUNCTIONS(ACCL_NCCL_MEMBER)
#undef ACCL_NCCL_MEMBER
  const char* (*error_text)(Result result) = nullptr;  // ncclGetErrorString
  const char* (*last_error)(Comm comm) = nullptr;      // ncclGetLastError
};

}  // namespace accl::nccl
