#include "engine/nccl/mapping.h"

#include <cmath>
#include <cstdint>
#include <cstring>

#include "accl/error.h"
#include "base/text.h"
#include "reduce/reduce.h"

namespace accl::nccl {

namespace {

[[noreturn]] void refuse(DType dtype, ReduceOp op) {
  throw InvalidArgument(
      concat("NCCL cannot do the operation ", name_of(op), " on ", name_of(dtype),
             "; it has sum, product, min, max, avg and premul_sum of floats and of "
             "8-, 32- and 64-bit integers, sum, avg and premul_sum of complex "
             "numbers, and sum, product, min and max of bool. Convert the data "
             "first, or use CPU memory."));
}

// What moves or computes as it is.
MappedType plain_type(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat64:
      return {Type::kFloat64};
    case DType::kFloat32:
      return {Type::kFloat32};
    case DType::kFloat16:
      return {Type::kFloat16};
    case DType::kBfloat16:
      return {Type::kBfloat16};
    case DType::kFloat8E4M3FN:
      return {Type::kFloat8E4M3};
    case DType::kFloat8E5M2:
      return {Type::kFloat8E5M2};
    case DType::kInt8:
      return {Type::kInt8};
    case DType::kInt32:
      return {Type::kInt32};
    case DType::kInt64:
      return {Type::kInt64};
    case DType::kUint8:
    case DType::kBool:
      return {Type::kUint8};
    case DType::kUint32:
      return {Type::kUint32};
    case DType::kUint64:
      return {Type::kUint64};
    case DType::kInt16:
    case DType::kUint16:
      return {Type::kUint8, 2};  // moves as bytes
    case DType::kComplex64:
      return {Type::kFloat32, 2};
    case DType::kComplex128:
      return {Type::kFloat64, 2};
  }
  return {};
}

bool is_complex(DType dtype) noexcept {
  return dtype == DType::kComplex64 || dtype == DType::kComplex128;
}

Mapped reduced_bool(ReduceOp op) {
  const MappedType type = plain_type(DType::kBool);
  if (op == ReduceOp::kSum || op == ReduceOp::kMax) return {type, kMax};
  if (op == ReduceOp::kProduct || op == ReduceOp::kMin) return {type, kMin};
  refuse(DType::kBool, op);
}

// The number 1, from which reduce::scale makes any other.
Scalar one_of(DType dtype) {
  Scalar one{};
  const auto put = [&one](auto value) { std::memcpy(one.bytes, &value, sizeof value); };
  switch (dtype) {
    case DType::kFloat64:
    case DType::kComplex128:
      put(1.0);
      break;
    case DType::kFloat32:
    case DType::kComplex64:
      put(1.0F);
      break;
    case DType::kFloat16:
      put(std::uint16_t{0x3c00});
      break;
    case DType::kBfloat16:
      put(std::uint16_t{0x3f80});
      break;
    case DType::kFloat8E4M3FN:
      put(std::uint8_t{0x38});
      break;
    case DType::kFloat8E5M2:
      put(std::uint8_t{0x3c});
      break;
    case DType::kInt8:
    case DType::kInt16:
    case DType::kInt32:
    case DType::kInt64:
    case DType::kUint8:
    case DType::kUint16:
    case DType::kUint32:
    case DType::kUint64:
    case DType::kBool:
      put(std::uint64_t{1});  // little-endian, as every machine with a GPU is
      break;
  }
  return one;
}

DType real_part(DType dtype) noexcept {
  if (dtype == DType::kComplex64) return DType::kFloat32;
  if (dtype == DType::kComplex128) return DType::kFloat64;
  return dtype;
}

bool is_integer(DType dtype) noexcept {
  switch (dtype) {
    case DType::kInt8:
    case DType::kInt16:
    case DType::kInt32:
    case DType::kInt64:
    case DType::kUint8:
    case DType::kUint16:
    case DType::kUint32:
    case DType::kUint64:
      return true;
    case DType::kFloat64:
    case DType::kFloat32:
    case DType::kFloat16:
    case DType::kBfloat16:
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E5M2:
    case DType::kBool:
    case DType::kComplex64:
    case DType::kComplex128:
      return false;
  }
  return false;
}

}  // namespace

bool is_reduction(Collective c) noexcept {
  return c == Collective::kAllReduce || c == Collective::kReduce || c == Collective::kReduceScatter;
}

MappedType moved_type(DType dtype) noexcept { return plain_type(dtype); }

Mapped reduced(DType dtype, ReduceOp op) {
  if (dtype == DType::kBool) return reduced_bool(op);
  if (dtype == DType::kInt16 || dtype == DType::kUint16) refuse(dtype, op);
  const MappedType type = plain_type(dtype);
  switch (op) {
    case ReduceOp::kSum:
      return {type, kSum};
    case ReduceOp::kAvg:
      return {type, kAvg};
    case ReduceOp::kPremulSum:
      return {type, kSum, true};
    case ReduceOp::kProduct:
      if (is_complex(dtype)) refuse(dtype, op);
      return {type, kProduct};
    case ReduceOp::kMin:
      if (is_complex(dtype)) refuse(dtype, op);
      return {type, kMin};
    case ReduceOp::kMax:
      if (is_complex(dtype)) refuse(dtype, op);
      return {type, kMax};
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor:
      break;
  }
  refuse(dtype, op);
}

Scalar scalar_of(double factor, DType dtype) {
  if (is_integer(dtype) && factor != std::trunc(factor)) {
    throw InvalidArgument(concat("The factor of premul_sum is ", factor, ", but NCCL multiplies ",
                                 name_of(dtype), " by whole numbers only."));
  }
  const DType real = real_part(dtype);
  const Scalar one = one_of(real);
  Scalar scalar{};
  reduce::scale(one.bytes, scalar.bytes, 1, real, factor);
  return scalar;
}

}  // namespace accl::nccl
