// Elements of every dtype, made from small exact numbers, so that results do not depend on the
// order of operations and a wrong one shows.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "accl/types.h"

namespace accl::test {

// Encodes a number that the format holds exactly (0 or normal) in a float of 1 + `exponent` +
// `mantissa` bits.
inline std::uint32_t encode_float(double value, int exponent, int mantissa) {
  const std::uint32_t sign = std::signbit(value) ? 1u << (exponent + mantissa) : 0u;
  if (value == 0.0) return sign;
  int power = 0;
  const double fraction = std::frexp(std::fabs(value), &power);  // in [0.5, 1)
  const int bias = (1 << (exponent - 1)) - 1;
  const auto bits = static_cast<std::uint32_t>(std::ldexp(fraction * 2 - 1, mantissa));
  return sign | static_cast<std::uint32_t>(power - 1 + bias) << mantissa | bits;
}

template <class T>
void put(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

inline void encode(std::byte* to, DType dtype, double value) {
  switch (dtype) {
    case DType::kFloat64:
      return put(to, value);
    case DType::kFloat32:
      return put(to, static_cast<float>(value));
    case DType::kFloat16:
      return put(to, static_cast<std::uint16_t>(encode_float(value, 5, 10)));
    case DType::kBfloat16:
      return put(to, static_cast<std::uint16_t>(encode_float(value, 8, 7)));
    case DType::kFloat8E4M3FN:
      return put(to, static_cast<std::uint8_t>(encode_float(value, 4, 3)));
    case DType::kFloat8E5M2:
      return put(to, static_cast<std::uint8_t>(encode_float(value, 5, 2)));
    case DType::kInt8:
      return put(to, static_cast<std::int8_t>(value));
    case DType::kInt16:
      return put(to, static_cast<std::int16_t>(value));
    case DType::kInt32:
      return put(to, static_cast<std::int32_t>(value));
    case DType::kInt64:
      return put(to, static_cast<std::int64_t>(value));
    case DType::kUint8:
      return put(to, static_cast<std::uint8_t>(value));
    case DType::kUint16:
      return put(to, static_cast<std::uint16_t>(value));
    case DType::kUint32:
      return put(to, static_cast<std::uint32_t>(value));
    case DType::kUint64:
      return put(to, static_cast<std::uint64_t>(value));
    case DType::kBool:
      return put(to, static_cast<std::uint8_t>(value != 0.0));
    case DType::kComplex64:
      put(to, static_cast<float>(value));
      return put(to + 4, 0.0f);
    case DType::kComplex128:
      put(to, value);
      return put(to + 8, 0.0);
  }
}

// What rank `rank` holds at element `i`: 0 or 1 for sums (8 ranks give 8, which even float8_e5m2
// holds), 1 or 2 for products, 0 to 3 else; multiples of the number of ranks for averages.
inline double element(ReduceOp op, int rank, int ranks, std::size_t i) {
  const auto mixed = (static_cast<std::size_t>(rank) * 7 + i * 3 + i / 5) % 11;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kPremulSum:
      return static_cast<double>(mixed % 2);
    case ReduceOp::kProduct:
      return rank < 6 && mixed % 4 == 0 ? 2.0 : 1.0;  // at most 64, which int8 holds
    case ReduceOp::kAvg:
      return static_cast<double>(i % 2) * ranks;
    case ReduceOp::kMin:
    case ReduceOp::kMax:
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor:
      return static_cast<double>(mixed % 4);
  }
  return 0.0;
}

// The right result at element `i`. `factor` is premul_sum's, equal on all ranks here.
inline double expected_element(ReduceOp op, DType dtype, int ranks, std::size_t i, double factor) {
  double result = element(op, 0, ranks, i);
  const bool is_bool = dtype == DType::kBool;
  if (is_bool) result = result != 0.0;
  for (int rank = 1; rank < ranks; ++rank) {
    double next = element(op, rank, ranks, i);
    if (is_bool) next = next != 0.0;
    const auto a = static_cast<unsigned>(result);
    const auto b = static_cast<unsigned>(next);
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kPremulSum:
      case ReduceOp::kAvg:
        result = result + next;
        break;
      case ReduceOp::kProduct:
        result = result * next;
        break;
      case ReduceOp::kMin:
        result = std::fmin(result, next);
        break;
      case ReduceOp::kMax:
        result = std::fmax(result, next);
        break;
      case ReduceOp::kBand:
        result = a & b;
        break;
      case ReduceOp::kBor:
        result = a | b;
        break;
      case ReduceOp::kBxor:
        result = a ^ b;
        break;
    }
  }
  if (op == ReduceOp::kAvg) result /= ranks;
  if (op == ReduceOp::kPremulSum) result *= factor;
  return result;
}

// Data that is moved and not reduced: every byte depends on who sends it, where it goes, and its
// place.
inline std::byte pattern(int from, int to, std::size_t i) {
  return static_cast<std::byte>(
      (static_cast<std::size_t>(from) * 37 + static_cast<std::size_t>(to) * 101 + i * 7 + i / 251) &
      0xff);
}

}  // namespace accl::test
