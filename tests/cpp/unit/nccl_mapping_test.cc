#include <cstring>
#include <string>

#include "accl/error.h"
#include "engine/nccl/mapping.h"
#include "harness/test.h"

namespace {

using namespace accl;
using nccl::Mapped;

template <class Body>
std::string refusal(Body body) {
  try {
    body();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  FAIL("nothing was refused");
}

TEST(every_type_moves_with_all_its_bytes) {
  const std::size_t nccl_bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};  // by ncclDataType_t
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const auto mapped = nccl::moved_type(dtype);
    CHECK_EQ(nccl_bytes[static_cast<int>(mapped.type)] * mapped.scale, size_of(dtype));
  }
}

TEST(what_computes_is_what_the_operation_needs) {
  const Mapped complex = nccl::reduced(DType::kComplex64, ReduceOp::kSum);
  CHECK_EQ(static_cast<int>(complex.type.type), static_cast<int>(nccl::Type::kFloat32));
  CHECK_EQ(complex.type.scale, 2U);
  CHECK_EQ(nccl::reduced(DType::kBool, ReduceOp::kSum).op, nccl::kMax);
  CHECK_EQ(nccl::reduced(DType::kBool, ReduceOp::kProduct).op, nccl::kMin);
  CHECK_EQ(nccl::reduced(DType::kInt32, ReduceOp::kAvg).op, nccl::kAvg);
  CHECK(nccl::reduced(DType::kBfloat16, ReduceOp::kPremulSum).scaled);
}

TEST(what_nccl_cannot_do_is_refused_in_a_sentence) {
  const struct {
    DType dtype;
    ReduceOp op;
  } impossible[] = {{DType::kInt16, ReduceOp::kSum},         {DType::kUint16, ReduceOp::kMax},
                    {DType::kInt32, ReduceOp::kBor},         {DType::kUint8, ReduceOp::kBxor},
                    {DType::kComplex64, ReduceOp::kProduct}, {DType::kComplex128, ReduceOp::kMin},
                    {DType::kBool, ReduceOp::kAvg},          {DType::kBool, ReduceOp::kBand}};
  for (const auto& [dtype, op] : impossible) {
    const std::string text = refusal([dtype = dtype, op = op] { nccl::reduced(dtype, op); });
    CHECK(text.find(std::string(name_of(dtype))) != std::string::npos);
    CHECK(text.find(std::string(name_of(op))) != std::string::npos);
  }
}

template <class T>
T scalar(double factor, DType dtype) {
  const auto bytes = nccl::scalar_of(factor, dtype);
  T value;
  std::memcpy(&value, bytes.bytes, sizeof value);
  return value;
}

TEST(factors_are_elements_of_the_type) {
  CHECK_EQ(scalar<float>(0.25, DType::kFloat32), 0.25F);
  CHECK_EQ(scalar<double>(-1.5, DType::kFloat64), -1.5);
  CHECK_EQ(scalar<float>(0.25, DType::kComplex64), 0.25F);
  CHECK_EQ(scalar<double>(3, DType::kComplex128), 3.0);
  CHECK_EQ(scalar<std::uint16_t>(0.5, DType::kFloat16), 0x3800);
  CHECK_EQ(scalar<std::uint16_t>(-2, DType::kBfloat16), 0xc000);
  CHECK_EQ(scalar<std::uint8_t>(2, DType::kFloat8E4M3FN), 0x40);
  CHECK_EQ(scalar<std::uint8_t>(0.5, DType::kFloat8E5M2), 0x38);
  CHECK_EQ(scalar<std::int64_t>(-7, DType::kInt64), -7);
  CHECK_EQ(scalar<std::uint8_t>(3, DType::kUint8), 3);
  CHECK(refusal([] { nccl::scalar_of(0.5, DType::kInt32); }).find("0.5") != std::string::npos);
}

}  // namespace
