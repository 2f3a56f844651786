#include "accl/types.h"

#include <algorithm>
#include <array>

namespace accl {

namespace {

struct CollectiveNames {
  std::string_view name;
  std::string_view rules_name;
};

constexpr std::array<CollectiveNames, kCollectiveCount> kCollectives = {{
    {"all_reduce", "allreduce"},
    {"all_gather", "allgather"},
    {"reduce_scatter", "reducescatter"},
    {"broadcast", "broadcast"},
    {"reduce", "reduce"},
    {"all_to_all", "alltoall"},
    {"gather", "gather"},
    {"scatter", "scatter"},
    {"barrier", "barrier"},
    {"send", "send"},
    {"recv", "recv"},
}};

enum class Kind { kFloat, kInteger, kBool, kComplex };

struct DTypeFacts {
  std::string_view name;
  std::size_t bytes;
  Kind kind;
};

constexpr std::array<DTypeFacts, kDTypeCount> kDTypes = {{
    {"float64", 8, Kind::kFloat},
    {"float32", 4, Kind::kFloat},
    {"float16", 2, Kind::kFloat},
    {"bfloat16", 2, Kind::kFloat},
    {"float8_e4m3fn", 1, Kind::kFloat},
    {"float8_e5m2", 1, Kind::kFloat},
    {"int8", 1, Kind::kInteger},
    {"int16", 2, Kind::kInteger},
    {"int32", 4, Kind::kInteger},
    {"int64", 8, Kind::kInteger},
    {"uint8", 1, Kind::kInteger},
    {"uint16", 2, Kind::kInteger},
    {"uint32", 4, Kind::kInteger},
    {"uint64", 8, Kind::kInteger},
    {"bool", 1, Kind::kBool},
    {"complex64", 8, Kind::kComplex},
    {"complex128", 16, Kind::kComplex},
}};

constexpr std::array<std::string_view, kReduceOpCount> kReduceOps = {
    "sum", "product", "min", "max", "avg", "premul_sum", "band", "bor", "bxor"};

constexpr std::array<std::string_view, 3> kEngines = {"cpu", "nccl", "cuda"};

// The enum whose name stands in a table of names.
template <class Enum, class Names>
std::optional<Enum> find(const Names& names, std::string_view word) noexcept {
  const auto found = std::ranges::find(names, word);
  if (found == names.end()) return std::nullopt;
  return static_cast<Enum>(found - names.begin());
}

template <class Enum>
constexpr std::size_t index(Enum value) noexcept {
  return static_cast<std::size_t>(value);
}

}  // namespace

std::size_t size_of(DType dtype) noexcept { return kDTypes[index(dtype)].bytes; }
std::string_view name_of(Collective c) noexcept { return kCollectives[index(c)].name; }
std::string_view rules_name_of(Collective c) noexcept { return kCollectives[index(c)].rules_name; }
std::string_view name_of(DType dtype) noexcept { return kDTypes[index(dtype)].name; }
std::string_view name_of(ReduceOp op) noexcept { return kReduceOps[index(op)]; }
std::string_view name_of(Engine engine) noexcept { return kEngines[index(engine)]; }

std::optional<Collective> collective_from(std::string_view word) noexcept {
  for (std::size_t i = 0; i < kCollectives.size(); ++i) {
    if (word == kCollectives[i].name || word == kCollectives[i].rules_name)
      return static_cast<Collective>(i);
  }
  return std::nullopt;
}

std::optional<DType> dtype_from(std::string_view word) noexcept {
  for (std::size_t i = 0; i < kDTypes.size(); ++i) {
    if (word == kDTypes[i].name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

std::optional<ReduceOp> reduce_op_from(std::string_view word) noexcept {
  return find<ReduceOp>(kReduceOps, word);
}
std::optional<Engine> engine_from(std::string_view word) noexcept {
  return find<Engine>(kEngines, word);
}

bool supports(ReduceOp op, DType dtype) noexcept {
  const Kind kind = kDTypes[index(dtype)].kind;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kProduct:
      return true;
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return kind != Kind::kComplex;
    case ReduceOp::kAvg:
    case ReduceOp::kPremulSum:
      return kind != Kind::kBool;
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor:
      return kind == Kind::kInteger || kind == Kind::kBool;
  }
  return false;
}

}  // namespace accl
