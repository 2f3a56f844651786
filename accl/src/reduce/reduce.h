// Reduce: typed element-wise kernels. Pure memory work: no thread, no clock.
//
// Pointers need no alignment. Counts are in elements. `target` may be the very memory of one
// operand, but may not overlap one in part.
#pragma once

#include <cstddef>
#include <span>

#include "accl/types.h"

namespace accl::reduce {

// target[i] = op(operands[0][i], operands[1][i], ...), operands taken in the order given (at least
// one). float16, bfloat16 and float8 convert to float32, accumulate there, and round once (to
// nearest even); float8_e4m3fn, which has no infinity, saturates at 448 as torch does. `divisor`
// divides the sum before that rounding (avg; integers truncate towards zero); 1 divides nothing. op
// is any but kAvg and kPremulSum, which callers express as kSum with a divisor and by scale(). Sums
// and products of integers wrap; min and max propagate NaN. Needs supports(op, dtype).
void combine(std::span<const void* const> operands, void* target, std::size_t count, DType dtype,
             ReduceOp op, double divisor = 1);

// target[i] = source[i] * factor, computed in float64 for float64/complex128/integers (which
// truncate towards zero), in float32 for the rest. target == source is fine. Not for bool.
void scale(const void* source, void* target, std::size_t count, DType dtype, double factor);

}  // namespace accl::reduce
