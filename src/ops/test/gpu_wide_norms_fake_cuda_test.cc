// RMS norms of whole words of four columns on the emulated CUDA backend. There is a kernel for few
// rows and one for many, and one for rows that are not whole words (gaps of 3).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "ops/elementwise.h"
#include "ops/test/gpu_test_util.h"

namespace lathe {
namespace {

using ops_test::GpuContext;
using ops_test::Rows;

class GpuRowwiseNorms : public ::testing::Test {
 protected:
  std::vector<float> weights(std::int64_t cols) {
    Rows out(1, cols, 0, 0);
    out.randomize(rng);
    return out.data;
  }

  std::mt19937 rng{7};
  GpuContext gpu;
  ops_test::Context ref{1, Device::ref};
};

TEST_F(GpuRowwiseNorms, OfFewAndManyRowsHaveEqualBits) {
  for (const std::int64_t cols : {257, 260, 2048, 4096, 4100, 5000, 8192, 8200}) {
    constexpr std::int64_t kMany = 133, kFew = 20;
    Rows many(kMany, cols, NAN, 4), few(kFew, cols, NAN, 4), apart(kMany, cols, NAN, 3);
    many.randomize(rng);
    for (std::int64_t r = 0; r < kFew; ++r) std::copy_n(many.row(r), cols, few.row(r));
    for (std::int64_t r = 0; r < kMany; ++r) std::copy_n(many.row(r), cols, apart.row(r));
    const std::vector<float> weight = weights(cols);
    const auto normed = [&](Rows& rows) {
      const MutableRowsView there = gpu.rows(rows);  // in place
      rms_norm(gpu.ops, constant(there), gpu.list(weight), 1e-6f, there);
      return gpu.read(there);
    };
    const Rows wanted = normed(apart);
    for (const Rows& got : {normed(few), normed(many)}) {
      for (std::int64_t r = 0; r < got.rows; ++r) {
        ASSERT_TRUE(std::equal(got.row(r), got.row(r) + cols, wanted.row(r)))
            << r << " of " << got.rows << " rows of " << cols << " columns";
      }
    }
  }
}

// A sum has the kernel of many rows, however few there are.
TEST_F(GpuRowwiseNorms, AddAndRoundAndLeaveGaps) {
  for (const auto& [rows, cols] :
       {std::pair{133, 260}, {3, 260}, {3, 1028}, {3, 2880}, {3, 4100}, {3, 8192}}) {
    for (const bool add : {false, true}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        Rows x(rows, cols, NAN, 8), before(rows, cols, NAN, 4);
        x.randomize(rng);
        before.randomize(rng);
        const std::vector<float> weight = weights(cols);
        const MutableRowsView there =
            dtype == DType::f32 ? gpu.rows(before) : gpu.bf16_rows(before);
        Rows wanted = gpu.read(there);
        const RowsView from = constant(gpu.rows(x));
        if (add) {
          add_rms_norm(gpu.ops, from, gpu.list(weight), 1e-6f, there);
          add_rms_norm(ref.ops, x.view(), weight, 1e-6f, wanted.out());
        } else {
          rms_norm(gpu.ops, from, gpu.list(weight), 1e-6f, there);
          rms_norm(ref.ops, x.view(), weight, 1e-6f, wanted.out());
        }
        const Rows got = gpu.read(there);
        const double relative = dtype == DType::f32 ? 0x1p-21 : 0x1p-8;
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t c = 0; c < cols; ++c) {
            const double w = wanted.row(r)[c];
            ASSERT_NEAR(got.row(r)[c], w, std::fabs(w) * relative + 0x1p-20) << r << ", " << c;
          }
          for (std::int64_t c = cols; c < got.stride; ++c) ASSERT_TRUE(std::isnan(got.row(r)[c]));
        }
      }
    }
  }
}

}  // namespace
}  // namespace lathe
