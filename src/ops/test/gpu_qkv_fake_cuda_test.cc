// prepare_qkv() of the emulated CUDA backend.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "layout/codec/codec.h"
#include "ops/cache_write.h"
#include "ops/elementwise.h"
#include "ops/qkv.h"
#include "ops/test/gpu_cache_rows_test_util.h"

namespace lathe {
namespace {

using ops_test::CacheRows;
using ops_test::GpuCacheRows;
using ops_test::Rows;

constexpr TensorScales kQkvScales = {0.03f, 0.5f};

void expect_near_rows(const Rows& got, const Rows& wanted, float relative, float absolute) {
  for (std::int64_t r = 0; r < wanted.rows; ++r) {
    for (std::int64_t c = 0; c < wanted.cols; ++c) {
      const float w = wanted.row(r)[c];
      ASSERT_NEAR(got.row(r)[c], w, std::fabs(w) * relative + absolute) << r << ", " << c;
    }
  }
}

struct QkvCase {
  LayoutKind layout;
  std::int64_t rows, heads, kv_heads, cols, v_cols;
  RopePairing pairing;
  bool norms, weight;
  std::int64_t gap = 8;  // between rows
};

void PrintTo(const QkvCase& c, std::ostream* out) {
  *out << name(c.layout) << ", " << c.rows << " rows of " << c.heads << " and " << c.kv_heads
       << " heads of " << c.cols << " and " << c.v_cols << ", " << name(c.pairing)
       << (c.norms ? ", normed" : "") << (c.weight ? " with weights" : "");
}

/// A case's tensors on the host and on the device.
struct QkvScene : CacheRows {
  QkvCase c;
  RopeTable table;
  Rows q, kv, q_out;
  std::vector<float> q_norm, k_norm;

  QkvScene(const QkvCase& of, std::mt19937& rng)
      : CacheRows(CacheLayout(of.layout, {.kv_heads = static_cast<std::int32_t>(of.kv_heads),
                                          .head_dim = static_cast<std::int32_t>(of.cols),
                                          .v_head_dim = static_cast<std::int32_t>(of.v_cols)}),
                  of.rows, rng),
        c(of),
        table(
            *RopeTable::make({.dim = static_cast<std::int32_t>(c.cols), .pairing = c.pairing}, 50)),
        q(c.rows, c.heads * c.cols, 0, c.gap),
        kv(c.rows, layout.row_elems(), 0, c.gap),
        q_out(q) {
    std::normal_distribution<float> normal;
    q.randomize(rng);
    kv.randomize(rng);
    for (std::int64_t i = 0; c.weight && i < c.cols; ++i) {
      q_norm.push_back(normal(rng));
      k_norm.push_back(normal(rng));
    }
  }
  QkvRows op(const MutableRowsView& q_in, const MutableRowsView& kv_in) const {
    return {.q = q_in,
            .kv = kv_in,
            .heads = c.heads,
            .kv_heads = c.kv_heads,
            .norms = c.norms,
            .q_norm = q_norm,
            .k_norm = k_norm,
            .eps = 1e-6f,
            .table = &table,
            .positions = positions,
            .q_out = q_in,
            .slots = slots,
            .scales = kQkvScales};
  }
};

class GpuQkvRows : public GpuCacheRows {
 protected:
  /// Copies the arguments to the device; queries are rounded to q_out.
  QkvRows on_device(QkvScene& s, const MutableRowsView& q_out) {
    QkvRows op = s.op(gpu.rows(s.q), gpu.rows(s.kv));
    op.q_norm = s.q_norm.empty() ? std::span<const float>{} : gpu.list(s.q_norm);
    op.k_norm = s.k_norm.empty() ? std::span<const float>{} : gpu.list(s.k_norm);
    op.positions = gpu.list(s.positions);
    op.slots = gpu.list(s.slots);
    op.q_out = q_out;
    return op;
  }
  /// The separate steps of ops/qkv.cc, for a device without a fused operator.
  void by_parts(const QkvRows& op, const PoolView& pool) {
    const MutableRowsView k = cols_at(op.kv, 0, op.q.cols / op.heads * op.kv_heads);
    rms_norm(gpu.ops, constant(k), op.k_norm, op.eps, k, op.kv_heads);
    rms_norm(gpu.ops, constant(op.q), op.q_norm, op.eps, op.q, op.heads);
    for (const auto& [rows, heads] : {std::pair{k, op.kv_heads}, {op.q, op.heads}}) {
      ASSERT_TRUE(rotate_rows(gpu.ops, *op.table, op.positions, rows, heads, 0).ok());
    }
    ASSERT_TRUE(write_rows(gpu.ops, constant(op.kv), op.slots, pool, op.scales, op.tally).ok());
    cast_rows(gpu.ops, constant(op.q), op.q_out);
  }
};

class GpuQkvCases : public GpuQkvRows, public ::testing::WithParamInterface<QkvCase> {};

// 96 columns, values of other widths, and rows that are not whole words use the separate steps.
TEST_P(GpuQkvCases, AreNormedRotatedRoundedOnceAndWritten) {
  QkvScene s(GetParam(), rng);
  const MutableRowsView queries = gpu.bf16_rows(s.q_out);
  const PoolView there = pool_there(s);
  ASSERT_TRUE(prepare_qkv(gpu.ops, on_device(s, queries), there).ok());
  std::vector<std::byte> written = read(there, s.bytes.size());

  Rows q = s.q, kv = s.kv;
  const PoolView pool = s.pool(s.bytes.data());
  ASSERT_TRUE(prepare_qkv(ref.ops, s.op(q.out(), kv.out()), pool).ok());
  expect_near_rows(gpu.read(queries), q, 0x1p-8f, 0x1p-18f);

  // Compares every slot, including slots that no row is written to. A value between two codes may
  // be rounded to either.
  Rows got(CacheRows::kPages * CacheRows::kPage, s.kv.cols), wanted = got;
  ASSERT_TRUE(decode_rows(s.pool(written.data()), Slot(0), got.out(), kQkvScales).ok());
  ASSERT_TRUE(decode_rows(pool, Slot(0), wanted.out(), kQkvScales).ok());
  const bool codes = s.c.layout == LayoutKind::gqa_fp8;
  expect_near_rows(got, wanted, codes ? 0x1p-3f : 0x1p-7f, codes ? 0x1p-10f : 0x1p-18f);
}

constexpr auto kQkvHalves = RopePairing::split_half;
constexpr auto kQkvPairs = RopePairing::interleaved;
constexpr auto kBf16 = LayoutKind::gqa_bf16;
constexpr auto kFp8 = LayoutKind::gqa_fp8;
INSTANTIATE_TEST_SUITE_P(
    Shapes, GpuQkvCases,
    ::testing::Values(QkvCase{kBf16, 7, 5, 1, 128, 128, kQkvHalves, true, true},
                      QkvCase{kFp8, 6, 4, 2, 128, 128, kQkvPairs, true, false},
                      QkvCase{kFp8, 19, 8, 4, 64, 64, kQkvHalves, false, false},
                      QkvCase{kBf16, 4, 3, 3, 64, 128, kQkvPairs, true, true},
                      QkvCase{kFp8, 5, 2, 1, 256, 256, kQkvHalves, true, true},
                      QkvCase{kBf16, 1, 1, 1, 256, 256, kQkvPairs, false, false},
                      QkvCase{kFp8, 5, 2, 1, 512, 512, kQkvHalves, true, true},
                      QkvCase{kBf16, 3, 3, 2, 512, 512, kQkvPairs, true, false},
                      QkvCase{kBf16, 3, 2, 2, 128, 64, kQkvHalves, true, true},
                      QkvCase{kBf16, 3, 2, 1, 96, 96, kQkvHalves, true, true},
                      QkvCase{kBf16, 3, 2, 1, 128, 128, kQkvHalves, true, true, 3}));

// Fused and separate steps give the same bits. A warp processes four heads: there are some of
// queries and keys, of keys and values, of all three, and fewer than four.
TEST_F(GpuQkvRows, Of128ColumnsHaveTheBitsOfTheirParts) {
  for (const auto& [layout, heads, kv_heads] :
       {std::tuple{kBf16, 6, 2}, {kFp8, 6, 2}, {kBf16, 7, 3}, {kFp8, 7, 3}, {kFp8, 3, 1}}) {
    for (const RopePairing pairing : {kQkvHalves, kQkvPairs}) {
      QkvScene s({layout, 31, heads, kv_heads, 128, 128, pairing, true, true}, rng);
      // Values beyond the range of e4m3 with its scales, and NaN.
      for (std::int64_t r = 0; r < s.kv.rows; ++r) {
        for (std::int64_t col = s.kv.cols / 2; col < s.kv.cols; ++col) {
          float& v = s.kv.row(r)[col];
          const auto draw = rng() % 64;
          if (draw < 8) v *= draw % 2 == 0 ? 1e4f : 1e-4f;
          if (draw == 9) v = -INFINITY;
          if (draw == 10) v = -std::nanf("");
        }
      }
      s.q.row(1)[130] = INFINITY;  // its head becomes NaN
      s.kv.row(2)[3] = std::nanf("");
      ValueTally together, apart;
      const MutableRowsView fused = gpu.bf16_rows(s.q_out), parts = gpu.bf16_rows(s.q_out);
      const PoolView fused_pool = pool_there(s), parts_pool = pool_there(s);
      QkvRows op = on_device(s, fused);
      op.tally = &together;
      const auto done = gpu.backend->prepare_qkv(gpu.ops, op, fused_pool);
      ASSERT_TRUE(done.ok() && *done);
      op = on_device(s, parts);
      op.tally = &apart;
      by_parts(op, parts_pool);
      const Rows got = gpu.read(fused), wanted = gpu.read(parts);
      EXPECT_TRUE(got.same_bits(wanted));
      EXPECT_EQ(read(fused_pool, s.bytes.size()), read(parts_pool, s.bytes.size()));
      expect_equal_counts(together, apart, layout == kFp8 ? 25 * s.kv.cols : 0);
    }
  }
}

// A layer that reads the keys and values of another has queries alone.
TEST_F(GpuQkvRows, WithoutKeysWriteQueriesOnly) {
  QkvScene s({kBf16, 9, 6, 2, 128, 128, kQkvHalves, true, true}, rng);
  const MutableRowsView queries = gpu.bf16_rows(s.q_out);
  const PoolView there = pool_there(s), pool = s.pool(s.bytes.data());
  const std::vector<std::byte> before = s.bytes;
  QkvRows op = on_device(s, queries);
  op.kv.cols = 0;
  const auto done = gpu.backend->prepare_qkv(gpu.ops, op, there);
  ASSERT_TRUE(done.ok() && *done);
  Rows q = s.q;
  op = s.op(q.out(), s.kv.out());
  op.kv.cols = 0;
  ASSERT_TRUE(prepare_qkv(ref.ops, op, pool).ok());
  expect_near_rows(gpu.read(queries), q, 0x1p-8f, 0x1p-18f);
  EXPECT_EQ(read(there, before.size()), before);
}

TEST_F(GpuQkvRows, AWrongCountIsReportedByItsPart) {
  QkvScene s({kBf16, 4, 2, 1, 128, 128, kQkvHalves, true, true}, rng);
  QkvRows op = on_device(s, gpu.bf16_rows(s.q_out));
  const PoolView pool = pool_there(s);
  QkvRows few = op;
  few.positions = op.positions.first(3);
  Result<void> done = prepare_qkv(gpu.ops, few, pool);
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().field, "rows.rows");
  few = op;
  few.slots = op.slots.first(3);
  done = prepare_qkv(gpu.ops, few, pool);
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().field, "rows.rows");
  EXPECT_EQ(read(pool, s.bytes.size()), s.bytes);
}

}  // namespace
}  // namespace lathe
