// The kernels against a plain reference, for every dtype and operation; all instruction sets give
// the same bits.
#include "reduce/reduce.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "harness/test.h"
#include "reduce/kernels.h"

namespace accl::test {
namespace {

using reduce::Level;

constexpr Level kLevels[] = {Level::kBaseline, Level::kAvx2, Level::kAvx512};
constexpr std::size_t kCounts[] = {0,  1,  2,  3,  7,   8,   15,  16,   17,  31,
                                   33, 63, 64, 65, 511, 512, 513, 1000, 4097};

// Runs `body` at every level that this machine has.
template <class Body>
void at_each_level(Body body) {
  for (const Level level : kLevels) {
    if (!reduce::has_level(level)) continue;
    reduce::set_level_for_tests(level);
    body();
  }
  reduce::set_level_for_tests(reduce::best_level());
}

std::vector<std::byte> random_bytes(std::size_t bytes, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<std::byte> data(bytes);
  for (auto& b : data) b = static_cast<std::byte>(generator() & 0xff);
  return data;
}

template <class T>
std::vector<T> random_values(std::size_t count, unsigned seed) {
  std::vector<T> values(count);
  const auto bytes = random_bytes(count * sizeof(T), seed);
  if (count != 0) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <class T>
std::vector<T> combine(const std::vector<std::vector<T>>& operands, DType dtype, ReduceOp op,
                       int divisor = 1) {
  std::vector<T> result(operands[0].size());
  std::vector<const void*> pointers;
  for (const auto& o : operands) pointers.push_back(o.data());
  reduce::combine(pointers, result.data(), result.size(), dtype, op, divisor);
  return result;
}

template <class T>
T integer_reference(ReduceOp op, T a, T b) {
  using U = std::make_unsigned_t<T>;
  const auto wide = [](T v) { return static_cast<std::uint64_t>(static_cast<U>(v)); };
  switch (op) {
    case ReduceOp::kProduct:
      return static_cast<T>(wide(a) * wide(b));
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kBand:
      return static_cast<T>(wide(a) & wide(b));
    case ReduceOp::kBor:
      return static_cast<T>(wide(a) | wide(b));
    case ReduceOp::kBxor:
      return static_cast<T>(wide(a) ^ wide(b));
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
    case ReduceOp::kPremulSum:
      break;
  }
  return static_cast<T>(wide(a) + wide(b));
}

template <class T>
void test_integers(DType dtype) {
  for (const auto op : {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax,
                        ReduceOp::kBand, ReduceOp::kBor, ReduceOp::kBxor}) {
    for (const std::size_t count : kCounts) {
      for (unsigned operands = 1; operands <= 5; ++operands) {
        std::vector<std::vector<T>> data;
        for (unsigned k = 0; k < operands; ++k) data.push_back(random_values<T>(count, 7 * k + 1));
        std::vector<T> right = data[0];
        for (unsigned k = 1; k < operands; ++k) {
          for (std::size_t i = 0; i < count; ++i)
            right[i] = integer_reference(op, right[i], data[k][i]);
        }
        at_each_level([&] { CHECK(same_bits(combine(data, dtype, op), right)); });
      }
    }
  }
}

TEST(integers_wrap_and_compare) {
  test_integers<std::int8_t>(DType::kInt8);
  test_integers<std::int16_t>(DType::kInt16);
  test_integers<std::int32_t>(DType::kInt32);
  test_integers<std::int64_t>(DType::kInt64);
  test_integers<std::uint8_t>(DType::kUint8);
  test_integers<std::uint16_t>(DType::kUint16);
  test_integers<std::uint32_t>(DType::kUint32);
  test_integers<std::uint64_t>(DType::kUint64);
}

template <class T>
void test_floats(DType dtype) {
  std::mt19937 generator(3);
  std::uniform_real_distribution<T> numbers(-1000, 1000);
  for (const std::size_t count : kCounts) {
    for (unsigned operands = 1; operands <= 5; ++operands) {
      std::vector<std::vector<T>> data(operands, std::vector<T>(count));
      for (auto& d : data) {
        for (auto& v : d) v = numbers(generator);
      }
      for (const auto op : {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax}) {
        std::vector<T> right = data[0];
        for (unsigned k = 1; k < operands; ++k) {
          for (std::size_t i = 0; i < count; ++i) {
            const T a = right[i];
            const T b = data[k][i];
            right[i] = op == ReduceOp::kSum       ? a + b
                       : op == ReduceOp::kProduct ? a * b
                       : op == ReduceOp::kMin     ? std::min(a, b)
                                                  : std::max(a, b);
          }
        }
        at_each_level([&] { CHECK(same_bits(combine(data, dtype, op), right)); });
      }
      std::vector<T> average = data[0];
      for (std::size_t i = 0; i < count; ++i) {
        for (unsigned k = 1; k < operands; ++k) average[i] += data[k][i];
        average[i] /= T{3};
      }
      at_each_level([&] { CHECK(same_bits(combine(data, dtype, ReduceOp::kSum, 3), average)); });
    }
  }
}

TEST(floats_add_in_the_order_given) {
  test_floats<float>(DType::kFloat32);
  test_floats<double>(DType::kFloat64);
}

template <class T>
void test_nan(DType dtype, T nan, T one, T two) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{40}, std::size_t{600}}) {
    for (const auto op : {ReduceOp::kMin, ReduceOp::kMax}) {
      for (unsigned position = 0; position < 3; ++position) {
        std::vector<std::vector<T>> data = {std::vector<T>(count, one), std::vector<T>(count, two),
                                            std::vector<T>(count, one)};
        data[position].back() = nan;
        at_each_level([&] {
          const auto result = combine(data, dtype, op);
          CHECK(same_bits(std::vector<T>{result.back()}, std::vector<T>{nan}));
          const T other = op == ReduceOp::kMin ? one : two;
          if (count > 1) CHECK(same_bits(std::vector<T>{result.front()}, std::vector<T>{other}));
        });
      }
    }
  }
}

TEST(nan_wins_min_and_max) {
  test_nan<float>(DType::kFloat32, std::numeric_limits<float>::quiet_NaN(), 1.0f, 2.0f);
  test_nan<double>(DType::kFloat64, std::numeric_limits<double>::quiet_NaN(), 1.0, 2.0);
  test_nan<std::uint16_t>(DType::kFloat16, 0x7e00, 0x3c00, 0x4000);
  test_nan<std::uint16_t>(DType::kBfloat16, 0x7fc0, 0x3f80, 0x4000);
  test_nan<std::uint8_t>(DType::kFloat8E4M3FN, 0x7f, 0x38, 0x40);
  test_nan<std::uint8_t>(DType::kFloat8E5M2, 0x7f, 0x3c, 0x40);
}

TEST(every_code_of_narrow_floats_survives_a_sum_with_nothing) {
  at_each_level([] {
    for (const auto dtype : {DType::kFloat16, DType::kBfloat16}) {
      std::vector<std::uint16_t> codes(65536);
      for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint16_t>(i);
      const auto kept = combine<std::uint16_t>({codes}, dtype, ReduceOp::kSum);
      const unsigned exponent = dtype == DType::kFloat16 ? 0x7c00u : 0x7f80u;
      for (unsigned i = 0; i < 65536; ++i) {
        const bool is_nan = (i & 0x7fffu) > exponent;
        CHECK(is_nan ? (kept[i] & 0x7fffu) > exponent : kept[i] == i);
      }
    }
    std::vector<std::uint8_t> codes(256);
    for (std::size_t i = 0; i < 256; ++i) codes[i] = static_cast<std::uint8_t>(i);
    const auto e4m3 = combine<std::uint8_t>({codes}, DType::kFloat8E4M3FN, ReduceOp::kSum);
    CHECK(same_bits(e4m3, codes));
    const auto e5m2 = combine<std::uint8_t>({codes}, DType::kFloat8E5M2, ReduceOp::kSum);
    for (unsigned i = 0; i < 256; ++i)
      CHECK((i & 0x7fu) > 0x7cu ? (e5m2[i] & 0x7fu) > 0x7cu : e5m2[i] == i);
  });
}

// Half of a step is lost when each addition rounds, and kept where the sum is made in float32.
TEST(narrow_floats_accumulate_in_float32) {
  at_each_level([] {
    const std::vector<std::uint16_t> large(100, 0x4380);  // bfloat16 256; its step is 2
    const std::vector<std::uint16_t> one(100, 0x3f80);
    const auto sum =
        combine<std::uint16_t>({large, one, one, one, one}, DType::kBfloat16, ReduceOp::kSum);
    CHECK_EQ(sum[99], std::uint16_t{0x4382});  // 260
  });
}

TEST(bools_are_zero_or_one) {
  at_each_level([] {
    const std::vector<std::uint8_t> a = {0, 1, 0, 2, 255};
    const std::vector<std::uint8_t> b = {0, 0, 1, 4, 255};
    using V = std::vector<std::uint8_t>;
    for (const auto op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kBor})
      CHECK((combine<std::uint8_t>({a, b}, DType::kBool, op) == V{0, 1, 1, 1, 1}));
    for (const auto op : {ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kBand})
      CHECK((combine<std::uint8_t>({a, b}, DType::kBool, op) == V{0, 0, 0, 1, 1}));
    CHECK((combine<std::uint8_t>({a, b}, DType::kBool, ReduceOp::kBxor) == V{0, 1, 1, 0, 0}));
  });
}

TEST(complex_numbers_add_and_multiply) {
  at_each_level([] {
    const std::vector<double> a = {1, 2, 3, 4};
    const std::vector<double> b = {5, 6, 7, 8};
    std::vector<double> result(4);
    const void* operands[] = {a.data(), b.data()};
    reduce::combine(operands, result.data(), 2, DType::kComplex128, ReduceOp::kSum, 2);
    CHECK((result == std::vector<double>{3, 4, 5, 6}));
    reduce::combine(operands, result.data(), 2, DType::kComplex128, ReduceOp::kProduct);
    CHECK((result == std::vector<double>{-7, 16, -11, 52}));
    reduce::scale(a.data(), result.data(), 2, DType::kComplex128, 0.5);
    CHECK((result == std::vector<double>{0.5, 1, 1.5, 2}));
  });
}

TEST(averages_of_integers_truncate) {
  at_each_level([] {
    CHECK((combine<std::int64_t>({{-3, 7, std::numeric_limits<std::int64_t>::min()}, {-4, 2, 0}},
                                 DType::kInt64, ReduceOp::kSum, 2) ==
           std::vector<std::int64_t>{-3, 4, std::numeric_limits<std::int64_t>::min() / 2}));
    CHECK((combine<std::uint8_t>({{9, 100}, {2, 100}}, DType::kUint8, ReduceOp::kSum, 300) ==
           std::vector<std::uint8_t>{0, 0}));
    CHECK((combine<std::int8_t>({{9, -100}}, DType::kInt8, ReduceOp::kSum, 2) ==
           std::vector<std::int8_t>{4, -50}));
  });
}

TEST(scaling_saturates_integers) {
  std::vector<std::int8_t> small = {100, -100, 3, 0};
  reduce::scale(small.data(), small.data(), 4, DType::kInt8, 2.5);
  CHECK((small == std::vector<std::int8_t>{127, -128, 7, 0}));
  std::vector<std::uint64_t> large = {~std::uint64_t{0}, 10};
  reduce::scale(large.data(), large.data(), 2, DType::kUint64, 2.0);
  CHECK((large == std::vector<std::uint64_t>{~std::uint64_t{0}, 20}));
  reduce::scale(small.data(), small.data(), 1, DType::kInt8,
                std::numeric_limits<double>::quiet_NaN());
  CHECK_EQ(static_cast<int>(small[0]), 0);
}

// Any alignment; the target may be any operand.
TEST(memory_may_lie_anywhere) {
  for (int d = 0; d < kDTypeCount; ++d) {
    const auto dtype = static_cast<DType>(d);
    const std::size_t size = size_of(dtype);
    const ReduceOp op = dtype == DType::kBool ? ReduceOp::kBor : ReduceOp::kSum;
    for (const std::size_t count : {std::size_t{5}, std::size_t{700}}) {
      auto a = random_bytes(count * size + 1, 1);
      auto b = random_bytes(count * size + 1, 2);
      auto c = random_bytes(count * size + 1, 3);
      // No NaN: its bits may differ between the vector and the scalar unit.
      for (auto* v : {&a, &b, &c}) {
        for (auto& byte : *v) byte &= std::byte{0x3f};
      }
      std::vector<std::byte> right(count * size);
      const void* plain[] = {a.data() + 1, b.data() + 1, c.data() + 1};
      reduce::set_level_for_tests(Level::kBaseline);
      reduce::combine(plain, right.data(), count, dtype, op);
      at_each_level([&] {
        for (unsigned target = 0; target < 3; ++target) {
          std::vector<std::vector<std::byte>> copies = {a, b, c};
          const void* operands[] = {copies[0].data() + 1, copies[1].data() + 1,
                                    copies[2].data() + 1};
          std::byte* to = copies[target].data() + 1;
          reduce::combine(operands, to, count, dtype, op);
          CHECK(std::memcmp(to, right.data(), right.size()) == 0);
          CHECK(copies[target][0] == (target == 0 ? a : target == 1 ? b : c)[0]);
        }
      });
    }
  }
}

TEST(types_know_their_names) {
  for (int i = 0; i < kCollectiveCount; ++i) {
    const auto c = static_cast<Collective>(i);
    CHECK(collective_from(name_of(c)) == c);
    CHECK(collective_from(rules_name_of(c)) == c);
  }
  for (int i = 0; i < kDTypeCount; ++i)
    CHECK(dtype_from(name_of(static_cast<DType>(i))) == static_cast<DType>(i));
  for (int i = 0; i < kReduceOpCount; ++i)
    CHECK(reduce_op_from(name_of(static_cast<ReduceOp>(i))) == static_cast<ReduceOp>(i));
  CHECK(!collective_from("allreducee"));
  CHECK(!dtype_from(""));
  CHECK_EQ(size_of(DType::kComplex128), 16u);
  CHECK(!supports(ReduceOp::kMin, DType::kComplex64));
  CHECK(!supports(ReduceOp::kBand, DType::kFloat32));
  CHECK(!supports(ReduceOp::kAvg, DType::kBool));
  CHECK(supports(ReduceOp::kBxor, DType::kBool));
}

}  // namespace
}  // namespace accl::test
