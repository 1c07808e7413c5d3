// prepare_index() of the emulated CUDA backend.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "base/test_scale.h"
#include "layout/codec/codec.h"
#include "layout/hadamard.h"
#include "ops/cache_write.h"
#include "ops/elementwise.h"
#include "ops/indexer_rows.h"
#include "ops/test/gpu_cache_rows_test_util.h"

namespace lathe {
namespace {

using ops_test::CacheRows;
using ops_test::GpuCacheRows;
using ops_test::Rows;

struct IndexCase {
  const char* layout;
  std::int64_t rows, heads;
  bool keys, queries, hadamard;
  RopePlace place = RopePlace::last;
  RopePairing pairing = RopePairing::interleaved;
  std::int32_t rope = 64;
  std::int64_t gap = 4;  // between rows
};

void PrintTo(const IndexCase& c, std::ostream* out) {
  *out << c.layout << ", " << c.rows << " rows" << (c.keys ? ", keys" : "");
  if (c.queries) *out << ", " << c.heads << (c.hadamard ? " turned heads" : " heads");
  *out << (c.place == RopePlace::last ? ", last " : ", first ") << c.rope << " " << name(c.pairing)
       << ", gaps of " << c.gap;
}

/// A case's tensors on the host.
struct IndexScene : CacheRows {
  IndexCase c;
  std::int64_t dim;
  RopeTable table;
  Rows q, k;
  std::vector<float> norm, bias;

  IndexScene(const IndexCase& of, std::int64_t table_positions, std::mt19937& rng)
      : CacheRows(*CacheLayout::parse(of.layout), of.rows, rng),
        c(of),
        dim(layout.row_elems()),
        table(*RopeTable::make({.dim = c.rope, .pairing = c.pairing}, table_positions)),
        q(c.queries ? c.rows : 0, c.heads * dim, 0, c.gap),
        k(c.keys ? c.rows : 0, dim, 0, c.gap) {
    std::normal_distribution<float> normal;
    q.randomize(rng);
    k.randomize(rng);
    for (std::int64_t i = 0; i < dim; ++i) norm.push_back(normal(rng));
    for (std::int64_t i = 0; i < dim; ++i) bias.push_back(normal(rng));
  }
  IndexerRows op(const MutableRowsView& queries, const MutableRowsView& keys) const {
    return {.k = keys,
            .norm = norm,
            .norm_bias = bias,
            .eps = 1e-6f,
            .q = queries,
            .heads = c.heads,
            .hadamard = c.hadamard,
            .table = &table,
            .place = c.place,
            .positions = positions,
            .slots = slots};
  }
  std::int64_t page() const { return layout.page_stride(static_cast<std::int32_t>(c.heads)); }
};

class GpuIndexerRows : public GpuCacheRows {
 protected:
  IndexerRows on_device(IndexScene& s) {
    IndexerRows op = s.op(gpu.rows(s.q), gpu.rows(s.k));
    op.norm = gpu.list(s.norm);
    op.norm_bias = gpu.list(s.bias);
    op.positions = gpu.list(s.positions);
    op.slots = gpu.list(s.slots);
    return op;
  }
  /// Codes and scales of a row's heads, without the padding of pages.
  std::vector<std::byte> row_of(const IndexScene& s, const std::vector<std::byte>& pages,
                                std::int64_t row) {
    const auto first = pages.begin() + row * s.page();
    return {first, first + s.c.heads * s.layout.bytes_per_token()};
  }
  /// As select_keys() quantizes rotated queries, with encode_rows().
  std::vector<std::byte> quantized(const IndexScene& s, Rows rotated) {
    std::vector<std::byte> zeros(static_cast<std::size_t>(s.c.rows * s.page()));
    const PoolView pages(gpu.bring(zeros.data(), zeros.size()), s.layout,
                         static_cast<std::int32_t>(s.c.heads), s.c.rows);
    for (std::int64_t r = 0; r < s.c.rows; ++r) {
      Rows heads(s.c.heads, s.dim, 0, 0);
      std::copy_n(rotated.row(r), heads.data.size(), heads.data.begin());
      std::vector<Slot> slots;
      for (std::int64_t h = 0; h < s.c.heads; ++h) {
        if (s.c.hadamard) hadamard(heads.row(h), s.dim);
        slots.emplace_back(static_cast<std::int32_t>(r * s.c.heads + h));
      }
      EXPECT_TRUE(write_rows(gpu.ops, constant(gpu.rows(heads)), gpu.list(slots), pages).ok());
    }
    return read(pages, zeros.size());
  }
  void by_parts(const IndexerRows& op, const PoolView& pool) {
    if (op.k.rows > 0) {
      layer_norm(gpu.ops, constant(op.k), op.norm, op.norm_bias, op.eps, op.k);
      ASSERT_TRUE(rope_write(gpu.ops,
                             {.k = constant(op.k),
                              .positions = op.positions,
                              .slots = op.slots,
                              .table = op.table,
                              .place = op.place},
                             pool)
                      .ok());
    }
    if (op.q.rows == 0) return;
    const std::int64_t dim = op.q.cols / op.heads;
    const std::int64_t first = op.place == RopePlace::last ? dim - op.table->dim() : 0;
    ASSERT_TRUE(rotate_rows(gpu.ops, *op.table, op.positions, op.q, op.heads, first).ok());
  }
  /// Fused and separate steps on scene s must give the same bytes.
  void expect_same_bits(IndexScene& s) {
    const PoolView fused = pool_there(s), parts = pool_there(s);
    const auto codes = gpu.backend->prepare_index(gpu.ops, on_device(s), fused);
    ASSERT_TRUE(codes.ok() && codes->has_value());
    const IndexerRows op = on_device(s);
    by_parts(op, parts);
    EXPECT_EQ(read(fused, s.bytes.size()), read(parts, s.bytes.size()));
    if (!s.c.queries) {
      EXPECT_EQ((*codes)->pages, nullptr);
      return;
    }
    std::vector<std::byte> got(static_cast<std::size_t>(s.c.rows * s.page()));
    ASSERT_TRUE(gpu.backend->download(gpu.ops, (*codes)->pages, got).ok());
    const std::vector<std::byte> wanted = quantized(s, gpu.read(op.q));
    for (std::int64_t r = 0; r < s.c.rows; ++r) {
      ASSERT_EQ(row_of(s, got, r), row_of(s, wanted, r)) << "row " << r;
    }
  }
};

class GpuIndexCases : public GpuIndexerRows, public ::testing::WithParamInterface<IndexCase> {};

// Against the oracle. Other widths, and rows that are not whole words, use the separate steps.
TEST_P(GpuIndexCases, AreNormedRotatedAndQuantized) {
  IndexScene s(GetParam(), 50, rng);
  const PoolView there = pool_there(s);
  const IndexerRows op = on_device(s);
  const auto codes = prepare_index(gpu.ops, op, there);
  ASSERT_TRUE(codes.ok()) << codes.error().message();
  const std::vector<std::byte> written = read(there, s.bytes.size());

  Rows q = s.q, k = s.k;
  const PoolView pool = s.pool(s.bytes.data());
  ASSERT_TRUE(prepare_index(ref.ops, s.op(q.out(), k.out()), pool).ok());
  // Compares every slot, including slots that no row is written to. A value between two codes may
  // be rounded to either.
  const auto expect_near = [](const ConstPoolView& got, const ConstPoolView& want) {
    Rows a(got.slots(), got.layout.row_elems()), b = a;
    ASSERT_TRUE(decode_rows(got, Slot(0), a.out(), {}).ok());
    ASSERT_TRUE(decode_rows(want, Slot(0), b.out(), {}).ok());
    std::int64_t differ = 0;
    for (std::int64_t r = 0; r < a.rows; ++r) {
      for (std::int64_t c = 0; c < a.cols; ++c) {
        const float w = b.row(r)[c], g = a.row(r)[c];
        differ += std::fabs(g - w) > std::fabs(w) * 0x1p-12f ? 1 : 0;
        ASSERT_NEAR(g, w, std::fabs(w) * 0x1p-2f + 0x1p-7f) << r << ", " << c;
      }
    }
    EXPECT_LE(differ, a.rows * a.cols / 500);
  };
  expect_near(s.pool(const_cast<std::byte*>(written.data())), pool);
  const bool fuses = s.dim == 128 && s.c.rope == 64 && s.c.gap % 4 == 0;
  ASSERT_EQ(codes->pages != nullptr, fuses && s.c.queries);
  if (codes->pages == nullptr) return;
  std::vector<std::byte> got(static_cast<std::size_t>(s.c.rows * s.page())), wanted = got;
  ASSERT_TRUE(gpu.backend->download(gpu.ops, codes->pages, got).ok());
  const auto heads = static_cast<std::int32_t>(s.c.heads);
  const PoolView want(wanted.data(), s.layout, heads, s.c.rows);
  for (std::int64_t i = 0; i < s.c.rows * s.c.heads; ++i) {
    float* const head = q.row(i / heads) + i % heads * s.dim;
    if (s.c.hadamard) hadamard(head, s.dim);
    const RowsView one{reinterpret_cast<const std::byte*>(head), DType::f32, 1, s.dim, s.dim};
    const Slot slot(static_cast<std::int32_t>(i));
    ASSERT_TRUE(encode_rows(one, std::span(&slot, 1), want).ok());
  }
  expect_near({got.data(), s.layout, heads, s.c.rows}, want);
}

constexpr auto kHalves = RopePairing::split_half;
constexpr auto kFirst = RopePlace::first;
constexpr const char* kPlain = "index_fp8(dim=128)";
constexpr const char* kRaw = "index_fp8(dim=128,scale=raw_f32)";
INSTANTIATE_TEST_SUITE_P(
    Shapes, GpuIndexCases,
    ::testing::Values(IndexCase{kPlain, 9, 6, true, true, false, kFirst, kHalves},
                      IndexCase{kPlain, 1, 4, true, true, false, kFirst},
                      IndexCase{kRaw, 7, 3, true, true, true},
                      IndexCase{kPlain, 11, 1, true, false, false, RopePlace::last, kHalves},
                      IndexCase{kRaw, 6, 8, false, true, true, RopePlace::last, kHalves},
                      IndexCase{"index_fp8(dim=64)", 5, 2, true, true, false},
                      IndexCase{kPlain, 5, 2, true, true, false, kFirst, kHalves, 32},
                      IndexCase{kPlain, 5, 2, true, true, false, kFirst, kHalves, 64, 3}));

// Fused and separate steps give the same bits, also for positions outside the table, slots outside
// the pool, NaN and infinities.
TEST_F(GpuIndexerRows, HaveTheBitsOfTheirParts) {
  const std::uint32_t seed = test_seed(11);
  SCOPED_TRACE(seed);
  rng.seed(seed);
  const auto below = [&](int n) {
    return static_cast<std::int64_t>(rng() % static_cast<unsigned>(n));
  };
  for (int round = 0; round < 24 * test_scale(); ++round) {
    const bool keys = below(4) != 0;
    const IndexCase c{.layout = below(2) == 0 ? kPlain : kRaw,
                      .rows = round % 5 == 0 ? 1 : 1 + below(40),
                      .heads = 1 + below(9),
                      .keys = keys,
                      .queries = !keys || below(3) != 0,
                      .hadamard = below(2) == 0,
                      .place = below(2) == 0 ? RopePlace::first : RopePlace::last,
                      .pairing = below(2) == 0 ? kHalves : RopePairing::interleaved,
                      .gap = 4 * below(3)};
    SCOPED_TRACE(::testing::PrintToString(c));
    IndexScene s(c, 40, rng);
    if (c.rows > 4) s.slots[4] = Slot(CacheRows::kPage * CacheRows::kPages);
    const auto special = [&](Rows& rows) {
      for (std::int64_t r = 0; r < rows.rows; ++r) {
        const float scale = r % 4 == 0 ? 1e-30f : r % 4 == 1 ? 1e5f : 1;
        for (std::int64_t i = 0; i < rows.cols; ++i) rows.row(r)[i] *= scale;
        float* const one = rows.row(r) + below(static_cast<int>(rows.cols));
        if (r % 3 == 1) *one = INFINITY;
        if (r % 7 == 2) *one = -INFINITY;
        if (r % 7 == 3) *one = NAN;
        if (r % 7 == 4) *one = -NAN;
      }
    };
    special(s.q);
    special(s.k);
    expect_same_bits(s);
    if (HasFailure()) return;
  }
}

TEST_F(GpuIndexerRows, AWrongCountIsReportedByItsPart) {
  IndexScene s({kPlain, 4, 2, true, true, false}, 50, rng);
  const IndexerRows op = on_device(s);
  const PoolView pool = pool_there(s);
  IndexerRows few = op;
  few.positions = op.positions.first(3);
  auto done = prepare_index(gpu.ops, few, pool);
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().field, "positions");
  few = op;
  few.slots = op.slots.first(3);
  done = prepare_index(gpu.ops, few, pool);
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().field, "k.rows");
  EXPECT_EQ(read(pool, s.bytes.size()), s.bytes);
}

}  // namespace
}  // namespace lathe
