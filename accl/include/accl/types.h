// The nouns of a collective call: which collective, which element type, which operation.
//
// Names are the ones of docs and command lines (`all_reduce`, `float32`, `sum`); the rules file and
// nccl-tests spell collectives their own way (`allreduce`), and both spellings are read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace accl {

enum class Collective : std::uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kReduce,
  kAllToAll,
  kGather,
  kScatter,
  kBarrier,
  kSend,
  kRecv,
};
inline constexpr int kCollectiveCount = 11;

enum class DType : std::uint8_t {
  kFloat64,
  kFloat32,
  kFloat16,
  kBfloat16,
  kFloat8E4M3FN,
  kFloat8E5M2,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUint8,
  kUint16,
  kUint32,
  kUint64,
  kBool,
  kComplex64,
  kComplex128,
};
inline constexpr int kDTypeCount = 17;

// avg: sum, then division by the number of ranks; integers truncate towards zero as torch's
// division does. premul_sum: each rank's input is multiplied by that rank's factor before the sum.
// min and max propagate NaN; 16-bit and 8-bit floats accumulate in float32.
enum class ReduceOp : std::uint8_t {
  kSum,
  kProduct,
  kMin,
  kMax,
  kAvg,
  kPremulSum,
  kBand,
  kBor,
  kBxor
};
inline constexpr int kReduceOpCount = 9;

enum class Engine : std::uint8_t { kCpu, kNccl, kCuda };

std::size_t size_of(DType) noexcept;                  // bytes of one element
std::string_view name_of(Collective) noexcept;        // "all_reduce"
std::string_view rules_name_of(Collective) noexcept;  // "allreduce", as the rules file spells it
std::string_view name_of(DType) noexcept;             // "float32", "float8_e4m3fn"
std::string_view name_of(ReduceOp) noexcept;          // "sum", "premul_sum"
std::string_view name_of(Engine) noexcept;            // "cpu", "nccl", "cuda"

// Both spellings of a collective ("all_reduce", "allreduce", also "alltoall"); nullopt for an
// unknown word.
std::optional<Collective> collective_from(std::string_view) noexcept;
std::optional<DType> dtype_from(std::string_view) noexcept;
std::optional<ReduceOp> reduce_op_from(std::string_view) noexcept;
std::optional<Engine> engine_from(std::string_view) noexcept;

// True where the operation makes sense on the type (no min of complex numbers, no bit operations on
// floats, no average or premul_sum of bool, ...). On bool: sum and max are "or", product and min
// are "and".
bool supports(ReduceOp, DType) noexcept;

}  // namespace accl
