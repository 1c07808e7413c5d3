// prepare_latent() of the emulated CUDA backend.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/test_scale.h"
#include "layout/codec/codec.h"
#include "ops/cache_write.h"
#include "ops/elementwise.h"
#include "ops/latent_rows.h"
#include "ops/matmul.h"
#include "ops/test/gpu_cache_rows_test_util.h"

namespace lathe {
namespace {

using ops_test::CacheRows;
using ops_test::error_of;
using ops_test::GpuCacheRows;
using ops_test::Rows;
using ops_test::Weight;

constexpr std::int64_t kRotary = 64;
constexpr TensorScales kLatentScales = {0.02f, 1};

struct LatentCase {
  const char* layout;
  std::int64_t rows, heads, qk_nope;
  bool absorbs;
  RopePairing pairing = RopePairing::interleaved;
  std::int64_t gap = 4;  // between rows
  bool whole = false;    // norms whole rows of k, and heads of q
};

void PrintTo(const LatentCase& c, std::ostream* out) {
  *out << c.layout << ", " << c.rows << " rows of " << c.heads << " heads of " << c.qk_nope
       << (c.absorbs ? ", absorbed, " : ", ") << name(c.pairing) << ", gaps of " << c.gap
       << (c.whole ? ", whole rows" : "");
}

/// A case's tensors on the host.
struct LatentRowsScene : CacheRows {
  LatentCase c;
  std::int64_t nope;
  RopeTable table;
  Rows q, k, q_out;
  std::vector<float> norm;
  std::vector<Weight> weights;
  WeightStack uk;

  LatentRowsScene(const LatentCase& of, std::mt19937& rng)
      : CacheRows(*CacheLayout::parse(of.layout), of.rows, rng),
        c(of),
        nope(layout.row_elems() - kRotary),
        table(*RopeTable::make({.dim = kRotary, .pairing = c.pairing}, 50)),
        q(c.rows, c.heads * (c.qk_nope + kRotary), 0, c.gap),
        k(c.rows, nope + kRotary, 0, c.gap),
        q_out(c.rows, c.heads * ((c.absorbs ? nope : c.qk_nope) + kRotary), 0, 2 * c.gap),
        uk(WeightStack::of(c.heads, DType::bf16, nope, c.qk_nope)) {
    std::normal_distribution<float> normal;
    q.randomize(rng);
    k.randomize(rng);
    for (std::int64_t i = 0; i < (c.whole ? k.cols : nope); ++i) norm.push_back(normal(rng));
    for (std::int64_t h = 0; h < c.heads; ++h) {
      weights.emplace_back(rng, DType::bf16, nope, c.qk_nope);
      uk.set(h, weights.back().view);
    }
  }
  LatentRows op(const MutableRowsView& q_in, const MutableRowsView& k_in,
                const MutableRowsView& to) const {
    return {.q = q_in,
            .k = k_in,
            .heads = c.heads,
            .qk_nope = c.qk_nope,
            .norm = norm,
            .norms_queries = c.whole,
            .eps = 1e-6f,
            .table = &table,
            .positions = positions,
            .slots = slots,
            .scales = kLatentScales,
            .absorbs = c.absorbs ? &uk : nullptr,
            .q_out = to};
  }
};

class GpuLatentRows : public GpuCacheRows {
 protected:
  LatentRows on_device(LatentRowsScene& s, const MutableRowsView& q_out) {
    LatentRows op = s.op(gpu.rows(s.q), gpu.rows(s.k), q_out);
    op.norm = gpu.list(s.norm);
    op.positions = gpu.list(s.positions);
    op.slots = gpu.list(s.slots);
    if (s.c.absorbs) {
      prepared = gpu.backend->prepare(s.uk, gpu.owned).value();
      op.absorbs = &prepared;
    }
    return op;
  }
  /// The separate steps of ops/latent_rows.cc, for a device without a fused operator.
  void by_parts(const LatentRows& op, const PoolView& pool) {
    const std::int64_t nope = std::ssize(op.norm), q_head = op.qk_nope + kRotary;
    const MutableRowsView latent = cols_at(op.k, 0, nope);
    rms_norm(gpu.ops, constant(latent), op.norm, op.eps, latent);
    if (op.norms_queries) rms_norm(gpu.ops, constant(op.q), {}, op.eps, op.q, op.heads);
    RopeWrite write{.k = constant(op.k),
                    .positions = op.positions,
                    .slots = op.slots,
                    .table = op.table,
                    .scales = op.scales,
                    .tally = op.tally};
    if (op.absorbs == nullptr) {
      ASSERT_TRUE(rope_write(gpu.ops, write, pool).ok());
      ASSERT_TRUE(rotate_rows(gpu.ops, *op.table, op.positions, op.q, op.heads, op.qk_nope).ok());
      return cast_rows(gpu.ops, constant(op.q), op.q_out);
    }
    const std::int64_t width = nope + kRotary;
    const MutableRowsView absorbed = alloc_rows(gpu.tensors, op.q.rows, op.heads * width);
    cast_rows(gpu.ops, {.x = cols_at(constant(op.q), op.qk_nope, kRotary),
                        .out = cols_at(absorbed, nope, kRotary),
                        .heads = op.heads,
                        .x_head = q_head,
                        .out_head = width});
    head_matmul(gpu.ops, {constant(op.q), q_head, op.absorbs, absorbed, width});
    write.q = constant(absorbed);
    write.q_out = op.q_out;
    ASSERT_TRUE(rope_write(gpu.ops, write, pool).ok());
  }

  WeightStack prepared;
};

class GpuLatentCases : public GpuLatentRows, public ::testing::WithParamInterface<LatentCase> {};

// mla_fp4, other widths, and rows that are not whole words use the separate steps.
TEST_P(GpuLatentCases, AreNormedRotatedRoundedOnceAndWritten) {
  LatentRowsScene s(GetParam(), rng);
  const MutableRowsView queries = gpu.bf16_rows(s.q_out);
  const PoolView there = pool_there(s);
  ASSERT_TRUE(prepare_latent(gpu.ops, on_device(s, queries), there).ok());
  std::vector<std::byte> written = read(there, s.bytes.size());

  Rows q = s.q, k = s.k, wanted = s.q_out;
  const PoolView pool = s.pool(s.bytes.data());
  ASSERT_TRUE(prepare_latent(ref.ops, s.op(q.out(), k.out(), wanted.out()), pool).ok());
  Rows got = gpu.read(queries);
  for (std::int64_t r = 0; r < got.rows; ++r) {
    if (!s.pads(r)) continue;
    std::fill_n(got.row(r), got.cols, 0.0f);
    std::fill_n(wanted.row(r), got.cols, 0.0f);
  }
  EXPECT_LT(error_of(got, wanted), 4e-3);  // GEMMs round q to bf16

  // Compares every slot, including slots that no row is written to. A value between two codes may
  // be rounded to either.
  Rows keys(CacheRows::kPages * CacheRows::kPage, s.k.cols), wanted_keys = keys;
  ASSERT_TRUE(decode_rows(s.pool(written.data()), Slot(0), keys.out(), kLatentScales).ok());
  ASSERT_TRUE(decode_rows(pool, Slot(0), wanted_keys.out(), kLatentScales).ok());
  std::int64_t differ = 0;
  for (std::int64_t r = 0; r < keys.rows; ++r) {
    for (std::int64_t c = 0; c < keys.cols; ++c) {
      const float w = wanted_keys.row(r)[c], g = keys.row(r)[c];
      differ += std::fabs(g - w) > std::fabs(w) * 0x1p-12f ? 1 : 0;
      ASSERT_NEAR(g, w, std::fabs(w) * 0x1p-2f + 0x1p-8f) << r << ", " << c;
    }
  }
  EXPECT_LT(differ, keys.rows * keys.cols / 500);
}

constexpr auto kLatentHalves = RopePairing::split_half;
INSTANTIATE_TEST_SUITE_P(
    Shapes, GpuLatentCases,
    ::testing::Values(
        LatentCase{"mla_bf16(nope=512,rope=64)", 7, 3, 128, true},
        LatentCase{"mla_bf16(nope=512,rope=64)", 9, 5, 192, false, kLatentHalves},
        LatentCase{"mla_fp8(nope=512,rope=64)", 6, 2, 128, true, kLatentHalves},
        LatentCase{"mla_fp8_block(nope=512,rope=64)", 11, 6, 128, true},
        LatentCase{"mla_fp8_block(nope=512,rope=64,scale=raw_f32)", 1, 1, 64, false},
        LatentCase{"mla_fp4(nope=512,rope=64)", 5, 2, 128, true},
        LatentCase{"mla_bf16(nope=256,rope=64)", 5, 2, 128, true},
        LatentCase{"mla_bf16(nope=512,rope=64)", 4, 2, 128, true, kLatentHalves, 3},
        LatentCase{"v4_fp8(nope=448,rope=64)", 9, 5, 448, false, RopePairing::interleaved, 4, true},
        LatentCase{"v4_fp8(nope=448,rope=64)", 1, 64, 448, false, kLatentHalves, 8, true},
        LatentCase{"mla_bf16(nope=448,rope=64)", 7, 2, 448, false, RopePairing::interleaved, 12,
                   true},
        LatentCase{"v4_fp8(nope=448,rope=64)", 4, 3, 448, false, kLatentHalves, 3, true},
        LatentCase{"v4_fp8(nope=192,rope=64)", 4, 3, 192, false, RopePairing::interleaved, 4,
                   true}));

// Fused and separate steps give the same bits.
TEST_F(GpuLatentRows, HaveTheBitsOfTheirParts) {
  for (const char* layout :
       {"mla_bf16(nope=512,rope=64)", "mla_fp8(nope=512,rope=64)",
        "mla_fp8_block(nope=512,rope=64)", "mla_fp8_block(nope=512,rope=64,scale=raw_f32)"}) {
    for (const bool absorbs : {false, true}) {
      SCOPED_TRACE(layout);
      LatentRowsScene s(
          {layout, 31, 5, 128, absorbs, absorbs ? kLatentHalves : RopePairing::interleaved}, rng);
      for (std::int64_t r = 0; r < s.k.rows; ++r) {  // some far beyond a scale's range
        for (std::int64_t c = 0; c < s.k.cols; c += 5) s.k.row(r)[c] *= r % 2 == 0 ? 40 : 1e-4f;
      }
      s.k.row(1)[3] = INFINITY;    // its latent becomes NaN and zeros
      s.k.row(2)[520] = INFINITY;  // its rotary part
      s.q.row(4)[130] = -INFINITY;
      ValueTally together, apart;
      const MutableRowsView fused = gpu.bf16_rows(s.q_out), parts = gpu.bf16_rows(s.q_out);
      const PoolView fused_pool = pool_there(s), parts_pool = pool_there(s);
      LatentRows op = on_device(s, fused);
      op.tally = &together;
      const auto done = gpu.backend->prepare_latent(gpu.ops, op, fused_pool);
      ASSERT_TRUE(done.ok() && *done);
      op = on_device(s, parts);
      op.tally = &apart;
      by_parts(op, parts_pool);
      const Rows got = gpu.read(fused), wanted = gpu.read(parts);
      for (std::int64_t r = 0; r < got.rows; ++r) {
        if (s.pads(r)) continue;
        ASSERT_EQ(std::memcmp(got.row(r), wanted.row(r), sizeof(float) * got.cols), 0) << r;
      }
      EXPECT_EQ(read(fused_pool, s.bytes.size()), read(parts_pool, s.bytes.size()));
      expect_equal_counts(together, apart, s.layout.kind() == LayoutKind::mla_fp8 ? 25 * 576 : 0);
    }
  }
}

// Heads of 512 columns, normed whole. A row without a slot, or past the table, has queries too.
TEST_F(GpuLatentRows, WholeRowsHaveTheBitsOfTheirParts) {
  const auto seed = test_seed(20261130);
  std::printf("seed %u\n", seed);
  rng.seed(seed);
  for (int i = 0; i < 12 * test_scale(); ++i) {
    const LatentCase shape{i % 3 == 2 ? "mla_bf16(nope=448,rope=64)" : "v4_fp8(nope=448,rope=64)",
                           i < 2 ? 1 : 20 + static_cast<std::int64_t>(rng() % 28),
                           i == 0 ? 64 : 1 + static_cast<std::int64_t>(rng() % 7),
                           448,
                           false,
                           i % 2 == 0 ? RopePairing::interleaved : kLatentHalves,
                           4 * static_cast<std::int64_t>(rng() % 4),
                           true};
    SCOPED_TRACE(::testing::PrintToString(shape));
    LatentRowsScene s(shape, rng);
    for (std::int64_t r = 0; r < s.k.rows; ++r) {
      for (std::int64_t c = 0; c < s.k.cols; c += 5) s.k.row(r)[c] *= r % 2 == 0 ? 40 : 1e-4f;
      std::fill_n(s.k.row(r) + 64 * (r % 7), r % 4 == 1 ? 64 : 0, 0.0f);  // a tile of zeros
    }
    if (s.k.rows > 15) {
      s.k.row(1)[3] = INFINITY;
      s.k.row(2)[460] = -INFINITY;
      s.k.row(4)[447] = NAN;
      std::fill_n(s.k.row(5), s.k.cols, 0.0f);
      s.q.row(6)[130] = -INFINITY;
      s.q.row(7)[511] = NAN;
      std::fill_n(s.k.row(9), s.k.cols, 3e38f);
      s.slots[10] = s.slots[11] = Slot(-1);
      s.positions[12] = LocalPos(50);
      s.slots[14] = Slot(CacheRows::kPages * CacheRows::kPage);
    }
    const MutableRowsView fused = gpu.bf16_rows(s.q_out), parts = gpu.bf16_rows(s.q_out);
    const PoolView fused_pool = pool_there(s), parts_pool = pool_there(s);
    const auto done = gpu.backend->prepare_latent(gpu.ops, on_device(s, fused), fused_pool);
    ASSERT_TRUE(done.ok() && *done);
    by_parts(on_device(s, parts), parts_pool);
    const Rows got = gpu.read(fused), wanted = gpu.read(parts);
    for (std::int64_t r = 0; r < got.rows; ++r) {
      ASSERT_EQ(std::memcmp(got.row(r), wanted.row(r), sizeof(float) * got.cols), 0) << r;
    }
    EXPECT_EQ(read(fused_pool, s.bytes.size()), read(parts_pool, s.bytes.size()));
  }
}

TEST_F(GpuLatentRows, AWrongCountIsReportedByItsPart) {
  LatentRowsScene s({"mla_bf16(nope=512,rope=64)", 4, 2, 128, true}, rng);
  LatentRows op = on_device(s, gpu.bf16_rows(s.q_out));
  const PoolView pool = pool_there(s);
  LatentRows few = op;
  few.positions = op.positions.first(3);
  Result<void> done = prepare_latent(gpu.ops, few, pool);
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().field, "positions");
  few = op;
  few.slots = op.slots.first(3);
  done = prepare_latent(gpu.ops, few, pool);
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().field, "k.rows");
  EXPECT_EQ(read(pool, s.bytes.size()), s.bytes);
}

}  // namespace
}  // namespace lathe
