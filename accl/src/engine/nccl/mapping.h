// Mapping: what an element type and an operation of ours are to NCCL. Pure.
#pragma once

#include <cstddef>

#include "accl/types.h"
#include "engine/nccl/api.h"

namespace accl::nccl {

// `scale` elements of NCCL's for each of ours: two for complex numbers and for 16-bit integers.
struct MappedType {
  Type type = Type::kUint8;
  std::size_t scale = 1;
};

// For calls that only move data: every type goes.
MappedType moved_type(DType) noexcept;

bool is_reduction(Collective) noexcept;

// For calls that compute. Complex numbers are pairs of floats, which sums, averages and scaled sums
// allow; bool is a byte of 0 or 1, whose sum is the larger and whose product the smaller. Throws
// InvalidArgument for what NCCL cannot do (16-bit integers, bit operations, products of complex
// numbers); the sentence says which operations it can.
struct Mapped {
  MappedType type;
  Op op = kSum;
  bool scaled = false;  // premul_sum: `op` is to be made from the factor
};
Mapped reduced(DType, ReduceOp);

// The factor of premul_sum as one element of `type`, as NCCL wants it. Throws InvalidArgument for a
// broken factor of integers.
struct Scalar {
  alignas(8) std::byte bytes[8];
};
Scalar scalar_of(double factor, DType dtype);

}  // namespace accl::nccl
