// GEMMs with int4 and NVFP4 weights, and with e4m3 weights that have a scale per row, on every SIMD
// target, against double precision.
#include "layout/simd_targets.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

#include "base/test_scale.h"
#include "hwy/targets.h"
#include "kernels/cpu/matmul/matmul_bf16.h"
#include "kernels/cpu/matmul/test/matmul_cases_test_util.h"

namespace lathe {
namespace {

struct GroupsCase {
  DType dtype;        // u4, e2m1 or e4m3
  DType scales;       // of groups
  std::int32_t size;  // of a group
  bool zeros = false, columns = false;
};

/// A random weight in memory that ends where it ends.
WeightView random_weight(std::mt19937& rng, const GroupsCase& c, std::int64_t n, std::int64_t k,
                         GuardedMemory& memory) {
  WeightView w;
  w.dtype = c.dtype;
  w.rows = n;
  w.cols = k;
  // e4m3 codes without NaN.
  const unsigned codes = c.dtype == DType::e4m3 ? 0x7f : 256;
  w.data = memory.random_bytes(rng, bytes_of(c.dtype, n * k), 0, codes);
  std::uniform_real_distribution<float> uniform(1e-3f, 1e-1f);
  if (c.dtype != DType::u4) {
    const std::int64_t count = c.dtype == DType::e4m3 ? n : 1;
    auto* scales = reinterpret_cast<float*>(memory.take(4 * count));
    for (std::int64_t i = 0; i < count; ++i) scales[i] = uniform(rng);
    w.scales = scales;
    w.scale_rows = c.dtype == DType::e4m3;
  }
  if (c.columns) {
    auto* columns = reinterpret_cast<std::int32_t*>(memory.take(4 * k));
    std::iota(columns, columns + k, 0);
    std::shuffle(columns, columns + k, rng);
    w.columns = columns;
  }
  if (c.size == 0) return w;
  const std::int64_t groups = n * (k / c.size);
  w.groups.dtype = c.scales;
  w.groups.size = c.size;
  std::byte* scales = memory.take(bytes_of(c.scales, groups));
  for (std::int64_t i = 0; i < groups; ++i) {
    const float v = uniform(rng);
    if (c.scales == DType::bf16) reinterpret_cast<bf16*>(scales)[i] = to_bf16(v);
    if (c.scales == DType::f16) reinterpret_cast<f16*>(scales)[i] = to_f16(-v);
    if (c.scales == DType::e4m3) reinterpret_cast<e4m3*>(scales)[i] = to_e4m3(10 * v);
  }
  w.groups.data = scales;
  if (c.zeros) {
    w.groups.zeros = reinterpret_cast<const std::uint8_t*>(memory.random_bytes(rng, groups, 0, 17));
  }
  return w;
}

void check_case(const GroupsCase& c, MatmulPrecision precision) {
  // Rounding of x to bf16; u4 weights are rounded too.
  double rounding = precision == MatmulPrecision::bf16 ? 0x1p-8 : 0;
  if (c.dtype == DType::u4) rounding *= 2.01;
  const std::int64_t whole = std::max(c.size, 32);
  for (const std::int64_t groups : {1, 2, 3, 5, 9}) {
    const std::int64_t n = groups % 3 == 0 ? 8 : 19;
    for (const std::int64_t m : {1, 2, 3, 4, 6, 7, 9, 16, 20, 40}) {
      std::mt19937 rng(test_seed(static_cast<std::uint32_t>(m * 7 + n * 3 + groups)));
      GuardedMemory memory;
      const WeightView w = random_weight(rng, c, n, groups * whole, memory);
      check_product(rng, precision, m, w, rounding);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
  // Several blocks of K, and of outputs.
  std::mt19937 rng(test_seed(static_cast<std::uint32_t>(whole)));
  GuardedMemory memory;
  const WeightView w = random_weight(rng, c, 264, 2048 + 2 * whole, memory);
  for (const std::int64_t m : {1, 5, 33}) check_product(rng, precision, m, w, rounding);
}

const std::vector<GroupsCase>& cases() {
  static const std::vector<GroupsCase> all = {
      {DType::u4, DType::bf16, 32},
      {DType::u4, DType::f16, 64, true},
      {DType::u4, DType::bf16, 128},
      {DType::u4, DType::f16, 128, true},
      {DType::u4, DType::f16, 32, true, true},
      {DType::e2m1, DType::e4m3, 16},
      {DType::e4m3, DType::f32, 0},
  };
  return all;
}

TEST(MatmulGroups, AgreesWithRefOnEveryTarget) {
  for (const auto target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    for (const GroupsCase& c : cases()) {
      SCOPED_TRACE(testing::Message() << name(c.dtype) << " groups of " << c.size);
      check_case(c, MatmulPrecision::f32);
      if (HasFatalFailure()) break;
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST(MatmulGroups, AgreesWithRefInBf16) {
  if (!cpu_has_bf16_dot()) GTEST_SKIP() << "this CPU has no dot products of bf16 pairs";
  for (const GroupsCase& c : cases()) {
    SCOPED_TRACE(testing::Message() << name(c.dtype) << " groups of " << c.size);
    check_case(c, MatmulPrecision::bf16);
    if (HasFatalFailure()) break;
  }
}

}  // namespace
}  // namespace lathe
