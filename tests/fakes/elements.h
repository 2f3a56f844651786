// Elements: NCCL's types and operations on host memory, one element after the other. Floats are
// summed in float32 (float64 in itself) and rounded once; integers wrap around.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <type_traits>
#include <vector>

#include "engine/nccl/api.h"

namespace accl::fake {

struct TypeFacts {
  const char* name;
  std::size_t bytes;
};
inline constexpr TypeFacts kTypes[] = {
    {"int8", 1},    {"uint8", 1},    {"int32", 4},      {"uint32", 4},
    {"int64", 8},   {"uint64", 8},   {"float16", 2},    {"float32", 4},
    {"float64", 8}, {"bfloat16", 2}, {"float8e4m3", 1}, {"float8e5m2", 1},
};
inline constexpr int kTypeCount = static_cast<int>(std::size(kTypes));

inline std::size_t bytes_of(nccl::Type type) { return kTypes[static_cast<int>(type)].bytes; }
inline const char* name_of(nccl::Type type) { return kTypes[static_cast<int>(type)].name; }

// A float of fewer bits: 1 sign, `exponent` bits, `mantissa` bits. Without infinities (float8e4m3)
// the largest number is kept where one would overflow, as NCCL does.
struct SmallFloat {
  int exponent;
  int mantissa;
  bool infinities;

  int bias() const { return (1 << (exponent - 1)) - 1; }
  unsigned sign_bit() const { return 1U << (exponent + mantissa); }
  unsigned infinity() const { return ((1U << exponent) - 1) << mantissa; }
  unsigned nan() const { return infinities ? infinity() | 1U << (mantissa - 1) : sign_bit() - 1; }
  unsigned largest() const { return infinities ? infinity() - 1 : sign_bit() - 2; }

  float widen(unsigned bits) const {
    const unsigned magnitude = bits & (sign_bit() - 1);
    const float sign = (bits & sign_bit()) != 0 ? -1.0F : 1.0F;
    if (infinities && magnitude == infinity()) return sign * std::numeric_limits<float>::infinity();
    if (magnitude > largest()) return std::numeric_limits<float>::quiet_NaN();
    const unsigned fraction = magnitude & ((1U << mantissa) - 1);
    const int power = static_cast<int>(magnitude >> mantissa);
    if (power == 0) return sign * std::ldexp(static_cast<float>(fraction), 1 - bias() - mantissa);
    return sign *
           std::ldexp(static_cast<float>(fraction | 1U << mantissa), power - bias() - mantissa);
  }

  // Rounds to the nearest, ties to even. The count of steps from the exponent's first number
  // carries over into the next exponent by itself, and a subnormal is one whose exponent is 0.
  unsigned narrow(float value) const {
    if (std::isnan(value)) return nan();
    const unsigned sign = std::signbit(value) ? sign_bit() : 0;
    const double size = std::fabs(static_cast<double>(value));
    const unsigned above = infinities ? infinity() : largest();
    if (std::isinf(value)) return sign | above;
    const int power = size == 0.0 ? 1 - bias() : std::max(std::ilogb(size), 1 - bias());
    const double steps = std::nearbyint(std::ldexp(size, mantissa - power));
    const double bits = std::ldexp(power + bias() - 1, mantissa) + steps;
    return sign | (bits > largest() ? above : static_cast<unsigned>(bits));
  }
};

template <class T>
struct Plain {
  using Value = T;
  static constexpr std::size_t kBytes = sizeof(T);
  static T load(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  static void store(std::byte* to, T value) { std::memcpy(to, &value, sizeof value); }
};

template <class Bits, int exponent, int mantissa, bool infinities>
struct Small {
  using Value = float;
  static constexpr std::size_t kBytes = sizeof(Bits);
  static constexpr SmallFloat kFormat{exponent, mantissa, infinities};
  static float load(const std::byte* from) { return kFormat.widen(Plain<Bits>::load(from)); }
  static void store(std::byte* to, float value) {
    Plain<Bits>::store(to, static_cast<Bits>(kFormat.narrow(value)));
  }
};

template <class T>
T wrapped_sum(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  else
    return a + b;
}

template <class T>
T wrapped_product(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  else
    return a * b;
}

template <class T>
T combine(nccl::Op op, T a, T b) {
  switch (op) {
    case nccl::kProduct:
      return wrapped_product(a, b);
    case nccl::kMax:
      if constexpr (std::is_integral_v<T>)
        return std::max(a, b);
      else
        return std::fmax(a, b);
    case nccl::kMin:
      if constexpr (std::is_integral_v<T>)
        return std::min(a, b);
      else
        return std::fmin(a, b);
    default:  // sum, avg, premul_sum
      return wrapped_sum(a, b);
  }
}

// One rank's part in a reduction; `factor` (one element) is null but for premul_sum.
struct Operand {
  const std::byte* data;
  const std::byte* factor;
};

template <class Codec>
void reduce_as(nccl::Op op, const std::vector<Operand>& operands, std::size_t count,
               std::byte* to) {
  using Value = typename Codec::Value;
  const auto load = [](const Operand& operand, std::size_t i) {
    const Value value = Codec::load(operand.data + i * Codec::kBytes);
    return operand.factor == nullptr ? value : wrapped_product(value, Codec::load(operand.factor));
  };
  for (std::size_t i = 0; i < count; ++i) {
    Value result = load(operands[0], i);
    for (std::size_t r = 1; r < operands.size(); ++r)
      result = combine(op, result, load(operands[r], i));
    if (op == nccl::kAvg) result = static_cast<Value>(result / static_cast<Value>(operands.size()));
    Codec::store(to + i * Codec::kBytes, result);
  }
}

inline void reduce_elements(nccl::Type type, nccl::Op op, const std::vector<Operand>& operands,
                            std::size_t count, std::byte* to) {
  switch (type) {
    case nccl::Type::kInt8:
      return reduce_as<Plain<std::int8_t>>(op, operands, count, to);
    case nccl::Type::kUint8:
      return reduce_as<Plain<std::uint8_t>>(op, operands, count, to);
    case nccl::Type::kInt32:
      return reduce_as<Plain<std::int32_t>>(op, operands, count, to);
    case nccl::Type::kUint32:
      return reduce_as<Plain<std::uint32_t>>(op, operands, count, to);
    case nccl::Type::kInt64:
      return reduce_as<Plain<std::int64_t>>(op, operands, count, to);
    case nccl::Type::kUint64:
      return reduce_as<Plain<std::uint64_t>>(op, operands, count, to);
    case nccl::Type::kFloat16:
      return reduce_as<Small<std::uint16_t, 5, 10, true>>(op, operands, count, to);
    case nccl::Type::kFloat32:
      return reduce_as<Plain<float>>(op, operands, count, to);
    case nccl::Type::kFloat64:
      return reduce_as<Plain<double>>(op, operands, count, to);
    case nccl::Type::kBfloat16:
      return reduce_as<Small<std::uint16_t, 8, 7, true>>(op, operands, count, to);
    case nccl::Type::kFloat8E4M3:
      return reduce_as<Small<std::uint8_t, 4, 3, false>>(op, operands, count, to);
    case nccl::Type::kFloat8E5M2:
      return reduce_as<Small<std::uint8_t, 5, 2, true>>(op, operands, count, to);
  }
}

}  // namespace accl::fake
