// The emulated CUDA backend's GEMMs and indexer, against the oracle.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <list>
#include <numeric>
#include <random>

#include "kernels/backend.h"
#include "kernels/cuda/common/memory.h"
#include "kernels/cuda/fake/fake_cuda.h"
#include "ops/cache_write.h"
#include "ops/indexer.h"
#include "ops/indexer_rows.h"
#include "ops/matmul.h"
#include "ops/test/gpu_test_util.h"
#include "plan/budget.h"

namespace lathe {
namespace {

using ops_test::error_of;
using ops_test::GpuContext;
using ops_test::Rows;
using ops_test::Weight;

constexpr DType kWeights[] = {DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e2m1};

class GpuProducts : public ::testing::Test {
 protected:
  Rows bf16_values(std::int64_t rows, std::int64_t cols) {
    return ops_test::bf16_values(rng, rows, cols);
  }
  std::mt19937 rng{3};
  GpuContext gpu;
  ops_test::Context ref{1, Device::ref};
};

TEST_F(GpuProducts, EveryWeightAndOddSizes) {
  for (const DType dtype : kWeights) {
    for (const auto& [m, n, k] : {std::tuple{1, 5, 33}, {19, 70, 200}, {33, 130, 129}}) {
      const std::int64_t cols = ops_test::whole_blocks(dtype, k);
      const Weight w(rng, dtype, n, cols, dtype == DType::e4m3);
      Rows x = bf16_values(m, cols), out(m, n);
      out.randomize(rng);
      std::vector<float> bias(static_cast<std::size_t>(n));
      for (float& v : bias) v = std::normal_distribution<float>()(rng);
      const MutableRowsView there = gpu.rows(out);
      const bool add = m == 19;
      matmul(gpu.ops,
             {constant(gpu.bf16_rows(x)), gpu.weight(w), there, gpu.list(bias).data(), add});
      matmul(ref.ops, {x.view(), w.view, out.out(), bias.data(), add});
      EXPECT_LT(error_of(gpu.read(there), out), 1e-5)
          << name(dtype) << " " << m << " x " << n << " x " << cols;
    }
  }
}

// u4 or NVFP4 weights whose values are exact in bf16.
struct GroupWeight {
  std::vector<std::byte> data, scales;
  std::vector<std::uint8_t> zeros;
  std::vector<std::int32_t> columns;
  float factor = 0.75f;
  WeightView view;

  GroupWeight(std::mt19937& rng, std::int64_t n, std::int64_t k, DType dtype, std::int32_t size,
              DType of_scales, bool has_zeros, bool ordered) {
    const auto draw = [&](int most) { return std::uniform_int_distribution<int>(0, most)(rng); };
    data.resize(static_cast<std::size_t>(n * k / 2));
    for (std::byte& v : data) v = std::byte(draw(255));
    const std::int64_t groups = n * (k / size);
    for (std::int64_t i = 0; i < groups; ++i) {
      const float scale = std::ldexp(1.f + 0.5f * static_cast<float>(draw(1)), draw(3) - 4);
      const std::uint32_t bits = of_scales == DType::bf16  ? to_bf16(scale).bits
                                 : of_scales == DType::f16 ? to_f16(scale).bits
                                                           : to_e4m3(scale).bits;
      for (int b = 0; b < bits_of(of_scales) / 8; ++b) {
        scales.push_back(std::byte(bits >> (8 * b) & 0xff));
      }
      if (has_zeros) zeros.push_back(static_cast<std::uint8_t>(draw(16)));
    }
    if (ordered) {
      columns.resize(static_cast<std::size_t>(k));
      std::iota(columns.begin(), columns.end(), 0);
      std::shuffle(columns.begin(), columns.end(), rng);
    }
    view = {.data = data.data(),
            .dtype = dtype,
            .rows = n,
            .cols = k,
            .scales = dtype == DType::e2m1 ? &factor : nullptr,
            .groups = {scales.data(), of_scales, size, has_zeros ? zeros.data() : nullptr},
            .columns = ordered ? columns.data() : nullptr};
  }
};

// By tensor cores, and, where rows of x are not at multiples of 16 bytes, by the plain GEMM.
TEST_F(GpuProducts, ScalesOfGroups) {
  struct Case {
    DType dtype;
    std::int32_t size;
    DType scales;
    bool zeros, ordered;
  };
  for (const Case c : {Case{DType::u4, 32, DType::bf16, false, false},
                       {DType::u4, 128, DType::f16, true, true},
                       {DType::u4, 64, DType::bf16, true, false},
                       {DType::e2m1, 16, DType::e4m3, false, false}}) {
    for (const std::int64_t gap : {8, 3}) {
      const GroupWeight w(rng, 70, 384, c.dtype, c.size, c.scales, c.zeros, c.ordered);
      Rows x = ops_test::bf16_values(rng, 19, 384, gap), out(19, 70);
      out.randomize(rng);
      const MutableRowsView there = gpu.rows(out);
      const WeightView on_device = std::move(gpu.backend->prepare(w.view, gpu.owned)).value();
      const std::int64_t before = cuda::fake::counts().launches;
      matmul(gpu.ops, {constant(gpu.bf16_rows(x)), on_device, there, nullptr, true});
      const Rows got = gpu.read(there);
      EXPECT_EQ(cuda::fake::counts().launches - before, gap == 8 && c.ordered ? 2 : 1);
      matmul(ref.ops, {x.view(), w.view, out.out(), nullptr, true});
      EXPECT_LT(error_of(got, out), 1e-5) << name(c.dtype) << " of " << c.size << ", gap " << gap;
    }
  }
}

TEST_F(GpuProducts, ThoseThatShareXAreOneLaunch) {
  const Weight q(rng, DType::bf16, 96, 256), k(rng, DType::bf16, 40, 256);
  const Weight coded(rng, DType::e4m3, 72, 256, true), other(rng, DType::bf16, 24, 128);
  // Rows of whole 16-byte words, so that tensor cores can be used.
  Rows x = ops_test::bf16_values(rng, 21, 256, 8), narrow = ops_test::bf16_values(rng, 21, 128, 8);
  Rows outs[] = {Rows(21, 96), Rows(21, 40), Rows(21, 72), Rows(21, 40), Rows(21, 24)};
  for (Rows& out : outs) out.randomize(rng);
  MutableRowsView there[5];
  for (int i = 0; i < 5; ++i) there[i] = gpu.rows(outs[i]);
  const RowsView x_there = constant(gpu.bf16_rows(x));
  const WeightView k_there = gpu.weight(k);
  // Two GEMMs, then one with another dtype, then one of the first dtype that adds, then one with
  // another x.
  const std::array products = {
      Product{x_there, gpu.weight(q), there[0]},
      Product{x_there, k_there, there[1]},
      Product{x_there, gpu.weight(coded), there[2]},
      Product{x_there, k_there, there[3], nullptr, true},
      Product{constant(gpu.bf16_rows(narrow)), gpu.weight(other), there[4]},
  };
  const std::int64_t before = cuda::fake::counts().launches;
  matmul(gpu.ops, products);
  EXPECT_EQ(cuda::fake::counts().launches - before, 4);
  const std::array wanted = {
      Product{x.view(), q.view, outs[0].out()},
      Product{x.view(), k.view, outs[1].out()},
      Product{x.view(), coded.view, outs[2].out()},
      Product{x.view(), k.view, outs[3].out(), nullptr, true},
      Product{narrow.view(), other.view, outs[4].out()},
  };
  matmul(ref.ops, wanted);
  for (int i = 0; i < 5; ++i) EXPECT_LT(error_of(gpu.read(there[i]), outs[i]), 1e-5) << i;
}

TEST_F(GpuProducts, ARowsBitsDoNotDependOnTheRowsBesideIt) {
  const Weight w(rng, DType::bf16, 40, 300);
  const WeightView weight = gpu.weight(w);
  Rows x(50, 300), all(50, 40), one(1, 40);
  x.randomize(rng);
  const RowsView from = constant(gpu.rows(x));
  const MutableRowsView out = gpu.rows(all), single = gpu.rows(one);
  matmul(gpu.ops, {from, weight, out});
  const Rows whole = gpu.read(out);
  for (const std::int64_t row : {0, 17, 49}) {
    matmul(gpu.ops, {rows_at(from, row, 1), weight, single});
    const Rows alone = gpu.read(single);
    for (std::int64_t c = 0; c < 40; ++c) ASSERT_EQ(alone.row(0)[c], whole.row(row)[c]);
  }
}

TEST_F(GpuProducts, Heads) {
  for (const DType dtype : {DType::f16, DType::bf16, DType::e4m3}) {
    for (const bool wide : {false, true}) {  // x in f32
      std::vector<Weight> weights;
      WeightStack stack = WeightStack::of(3, dtype, 128, 256);
      for (int h = 0; h < 3; ++h) {
        weights.emplace_back(rng, dtype, 128, 256, dtype == DType::e4m3);
        stack.set(h, weights.back().view);
      }
      Rows x = bf16_values(5, 3 * 320), out(5, 3 * 140);
      const MutableRowsView there = gpu.rows(out);
      const WeightStack prepared = gpu.backend->prepare(stack, gpu.owned).value();
      const MutableRowsView from = wide ? gpu.rows(x) : gpu.bf16_rows(x);
      head_matmul(gpu.ops, {constant(from), 320, &prepared, there, 140});
      head_matmul(ref.ops, {x.view(), 320, &stack, out.out(), 140});
      // Gaps between heads are not written.
      Rows got = gpu.read(there);
      for (std::int64_t r = 0; r < 5; ++r) {
        for (int h = 0; h < 3; ++h) {
          for (std::int64_t c = h * 140 + 128; c < (h + 1) * 140; ++c) {
            ASSERT_TRUE(std::isnan(got.row(r)[c]));
            got.row(r)[c] = out.row(r)[c] = 0;
          }
        }
      }
      EXPECT_LT(error_of(got, out), 1e-5) << name(dtype) << (wide ? ", f32 x" : "");
    }
  }
}

// Against the CPU in the same precision; its arithmetic is f32.
class GpuFp8 : public GpuProducts, public ::testing::WithParamInterface<MatmulPrecision> {
 protected:
  GpuFp8() {
    gpu.ops.precision = GetParam();
    cpu.ops.precision = GetParam();
  }
  // Random rows, aligned to 16 bytes in bf16.
  Rows values(std::int64_t rows, std::int64_t cols) {
    Rows out(rows, cols, 0, 8);
    std::normal_distribution<float> normal;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) out.row(r)[c] = to_f32(to_bf16(normal(rng)));
    }
    return out;
  }
  ops_test::Context cpu{2};
};

TEST_P(GpuFp8, RoundsXOfFp8WeightsAlone) {
  for (const std::int64_t m : {1, 21, 150}) {
    const Weight a(rng, DType::e4m3, 96, 400, true), b(rng, DType::e4m3, 200, 400, true),
        c(rng, DType::bf16, 64, 400);
    const Rows x = values(m, 400);
    const RowsView from = constant(gpu.bf16_rows(x));
    std::vector<Product> here, there;
    std::list<Rows> wanted;
    std::vector<MutableRowsView> got;
    for (const Weight* w : {&a, &b, &c}) {
      wanted.emplace_back(m, w->view.rows, 1.f, 8);
      got.push_back(gpu.rows(wanted.back()));
      there.push_back({from, gpu.weight(*w), got.back(), nullptr, true});
      here.push_back({x.view(), w->view, wanted.back().out(), nullptr, true});
    }
    matmul(gpu.ops, there);
    matmul(cpu.ops, here);
    std::size_t i = 0;
    for (const Rows& want : wanted) {
      EXPECT_LT(error_of(gpu.read(got[i]), want), i < 2 ? 1e-3 : 1e-5) << m << " rows, " << i;
      ++i;
    }
    // Without rounding x the result would differ.
    Rows exact(m, 200, 1.f);
    matmul(ref.ops, {x.view(), b.view, exact.out(), nullptr, true});
    EXPECT_GT(error_of(gpu.read(got[1]), exact), 1e-2);
  }
}

// One that is alone shares the codes of x with its neighbours, and leaves their bits alone.
TEST_P(GpuFp8, OneThatIsAloneSharesCodesButNoLaunch) {
  const Weight a(rng, DType::e4m3, 96, 2048, true), b(rng, DType::e4m3, 200, 2048, true);
  const WeightView weights[] = {gpu.weight(a), gpu.weight(b)};
  for (const std::int64_t m : {1, 40}) {
    const RowsView x = constant(gpu.bf16_rows(values(m, 2048)));
    Rows outs[] = {Rows(m, 96), Rows(m, 96), Rows(m, 200), Rows(m, 200)};
    MutableRowsView to[4];
    for (int i = 0; i < 4; ++i) to[i] = gpu.rows(outs[i]);
    std::int64_t before = cuda::fake::counts().launches;
    matmul(gpu.ops, {x, weights[0], to[0]});
    const std::int64_t one = cuda::fake::counts().launches - before;
    matmul(gpu.ops, {x, weights[1], to[2]});
    before = cuda::fake::counts().launches;
    const std::array products = {
        Product{x, weights[0], to[1]},
        Product{.x = x, .w = weights[1], .out = to[3], .alone = true},
    };
    matmul(gpu.ops, products);
    EXPECT_EQ(cuda::fake::counts().launches - before, one + 1);
    EXPECT_TRUE(gpu.read(to[0]).same_bits(gpu.read(to[1]))) << m;
    EXPECT_TRUE(gpu.read(to[2]).same_bits(gpu.read(to[3]))) << m;
  }
}

TEST_P(GpuFp8, Gated) {
  for (const DType dtype : {DType::e4m3, DType::bf16}) {
    for (const std::int64_t m : {1, 21, 150}) {
      const Weight gate(rng, dtype, 96, 272, dtype == DType::e4m3),
          up(rng, dtype, 96, 272, dtype == DType::e4m3);
      const Rows x = values(m, 272);
      Rows want(m, 96, 0, 8);
      const MutableRowsView got = gpu.bf16_rows(want);
      const GatedProduct there{constant(gpu.bf16_rows(x)), gpu.weight(gate), gpu.weight(up),
                               Activation{}, got};
      EXPECT_TRUE(gpu.backend->gated_matmul(gpu.ops, there));
      gated_matmul(cpu.ops, {x.view(), gate.view, up.view, Activation{}, want.out()});
      EXPECT_LT(error_of(gpu.read(got), want), 3e-3) << name(dtype) << ", " << m << " rows";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Scales, GpuFp8,
                         ::testing::Values(MatmulPrecision::fp8, MatmulPrecision::fp8_pow2),
                         [](const auto& p) { return std::string(name(p.param)); });

class GpuSelection : public GpuProducts, public ::testing::WithParamInterface<bool> {};

// Lengths below and above k, equal scores, holes in the page table. For tokens, and for compressed
// entries with Hadamard-rotated queries.
TEST_P(GpuSelection, IsThatOfTheCpu) {
  const bool entries = GetParam();
  constexpr std::int32_t heads = 4, dim = 128, page = 16;
  constexpr std::int64_t k = 24, pages = 40, rows = 7, width = 12;
  ops_test::Context cpu(1);
  const CacheLayout layout(LayoutKind::index_fp8, {.dim = dim});
  std::vector<std::byte> pool(static_cast<std::size_t>(pages * layout.page_stride(page)),
                              std::byte{0xff});
  Rows keys(pages * page, dim), q(rows, heads * dim, 0, 4), weights(rows, heads);
  keys.randomize(rng);
  q.randomize(rng);
  weights.randomize(rng);
  // Equal tokens on a page, for equal scores.
  for (std::int64_t t = 3 * page + 1; t < 5 * page; ++t) {
    std::copy_n(keys.row(3 * page), dim, keys.row(t));
  }
  std::vector<Slot> slots;
  for (std::int32_t t = 0; t < pages * page; ++t) slots.emplace_back(t);
  ASSERT_TRUE(write_rows(cpu.ops, keys.view(), slots, {pool.data(), layout, page, pages}).ok());

  std::vector<PageId> table;
  for (std::int64_t i = 0; i < 3 * width; ++i) {
    table.emplace_back(static_cast<std::int32_t>((i * 7 + 3) % pages));
  }
  const std::vector<std::int32_t> request = {0, 0, 1, 1, 2, 2, 2};
  const std::vector<std::int32_t> lens = {1, 24, 25, 192, 0, 100, 77};
  StepView step;
  step.rows = rows;
  step.requests = 3;
  step.max_context = 192;
  step.selecting_rows = 4;
  step.row_request = request;
  step.index_lens = lens;
  (entries ? step.compressed_table : step.page_table) = {table.data(), 3, width};
  if (entries) step.compressed_lens = lens;
  std::vector<std::int32_t> wanted(rows * k, 7), got(rows * k, 7);
  SelectKeys op{.step = &step,
                .keys = PoolView(pool.data(), layout, page, pages),
                .main = {page, pages},
                .heads = heads,
                .dim = dim,
                .q = q.view(),
                .weights = weights.view(),
                .hadamard = entries,
                .most_keys = 192,
                .k = k,
                .slots = wanted};
  const auto chosen_by_cpu = select_keys(cpu.ops, op);
  ASSERT_TRUE(chosen_by_cpu.ok()) << chosen_by_cpu.error().message();

  StepView there = step;
  there.row_request = gpu.list(request);
  there.index_lens = gpu.list(lens);
  (entries ? there.compressed_table : there.page_table).data = gpu.list(table).data();
  SelectKeys on_gpu = op;
  on_gpu.step = &there;
  on_gpu.budget_bytes = 3 * 192 * 4;  // three rows at a time
  const PoolView pool_there(gpu.bring(pool.data(), pool.size()), layout, page, pages);
  on_gpu.keys = pool_there;
  on_gpu.weights = constant(gpu.rows(weights));
  const auto chosen = gpu.list(got);
  on_gpu.slots = {const_cast<std::int32_t*>(chosen.data()), chosen.size()};
  // Queries of f32, then codes of them; position 0 does not rotate.
  const RopeTable table_of_one = *RopeTable::make({.dim = 64}, 1);
  const std::vector<LocalPos> positions(rows, LocalPos(0));
  for (const bool codes : {false, true}) {
    SCOPED_TRACE(codes);
    if (codes) {
      const auto made = prepare_index(gpu.ops,
                                      {.q = gpu.rows(q),
                                       .heads = heads,
                                       .hadamard = entries,
                                       .table = &table_of_one,
                                       .positions = gpu.list(positions)},
                                      pool_there);
      ASSERT_TRUE(made.ok() && made->pages != nullptr);
      on_gpu.codes = *made;
      on_gpu.q = {};
    } else {
      on_gpu.q = constant(gpu.rows(q));
    }
    const auto done = select_keys(gpu.ops, on_gpu);
    ASSERT_TRUE(done.ok()) << done.error().message();
    ASSERT_TRUE(gpu.backend->wait().ok());
    ASSERT_TRUE(gpu.backend
                    ->download(gpu.ops, reinterpret_cast<const std::byte*>(chosen.data()),
                               std::as_writable_bytes(std::span(got)))
                    .ok());
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto row = [&](const std::vector<std::int32_t>& list) {
        return std::vector(list.begin() + r * k, list.begin() + (r + 1) * k);
      };
      EXPECT_EQ(row(got), row(wanted)) << "row " << r;
    }
  }
}

// Keys of eight tokens: rows with fewer keys than they select and with more, in the middle of a
// group and at its end, and a row that only pads the batch; then a step whose rows see few keys.
TEST_F(GpuProducts, KeysOfSeveralTokensSelectAllOfThem) {
  constexpr std::int32_t kHeads = 4, kDim = 48, kGroup = 8, kPageTokens = 4 * kGroup,
                         kPoolPages = 40;
  constexpr std::int64_t kKeys = 5, kRows = 6, kWidth = 12;
  constexpr std::int64_t kListed = kKeys * kGroup + kGroup - 1;
  const CacheLayout layout(LayoutKind::index_fp8, {.dim = kDim});
  constexpr std::int32_t kPageKeys = kPageTokens / kGroup;
  std::vector<std::byte> pool(static_cast<std::size_t>(kPoolPages * layout.page_stride(kPageKeys)));
  Rows keys(kPoolPages * kPageKeys, kDim), q(kRows, kHeads * kDim), weights(kRows, kHeads);
  keys.randomize(rng);
  q.randomize(rng);
  weights.randomize(rng);
  std::vector<Slot> all;
  for (std::int32_t t = 0; t < kPoolPages * kPageKeys; ++t) all.emplace_back(t);
  const PoolView pages(pool.data(), layout, kPageKeys, kPoolPages);
  ASSERT_TRUE(write_rows(ref.ops, keys.view(), all, pages).ok());
  std::vector<PageId> table;
  for (std::int32_t i = 0; i < 3 * kWidth; ++i) table.emplace_back((i * 7 + 3) % kPoolPages);
  const std::vector<std::int32_t> request = {0, 0, 1, 1, 2, 2};
  for (const std::vector<std::int32_t>& lens :
       {std::vector<std::int32_t>{3, 40, 48, 383, 100, 0}, {1, 2, 8, 9, 47, 0}}) {
    std::vector<std::int32_t> index_lens;
    std::vector<Slot> own;
    StepView step;
    for (std::size_t row = 0; row < lens.size(); ++row) {
      index_lens.push_back(lens[row] / kGroup);
      step.selecting_rows += index_lens.back() > kKeys ? 1 : 0;
      const std::int32_t last = lens[row] - 1;
      const auto page = static_cast<std::size_t>(request[row] * kWidth + last / kPageTokens);
      own.push_back(last < 0 ? Slot() : slot_of(table[page], kPageTokens, last % kPageTokens));
    }
    step.rows = kRows;
    step.requests = 3;
    step.max_context = kWidth * kPageTokens;
    step.row_request = request;
    step.row_lens = lens;
    step.index_lens = index_lens;
    step.out_slots = own;
    step.page_table = {table.data(), 3, kWidth};
    const std::int64_t ranked = step.selecting_rows > 0 ? kRows : 0;
    std::vector<std::int32_t> wanted(kRows * kListed, 7), got(kRows * kListed, 7);
    const SelectKeys op{.step = &step,
                        .keys = pages,
                        .main = {kPageKeys, kPoolPages},
                        .heads = kHeads,
                        .dim = kDim,
                        .q = rows_at(q.view(), 0, ranked),
                        .weights = rows_at(weights.view(), 0, ranked),
                        .most_keys = step.max_context / kGroup,
                        .k = kKeys,
                        .tokens_per_key = kGroup,
                        .slots = wanted};
    ASSERT_TRUE(select_keys(ref.ops, op).ok());

    StepView there = step;
    there.row_request = gpu.list(request);
    there.row_lens = gpu.list(lens);
    there.index_lens = gpu.list(index_lens);
    there.out_slots = gpu.list(own);
    there.page_table.data = gpu.list(table).data();
    SelectKeys on_gpu = op;
    on_gpu.step = &there;
    on_gpu.budget_bytes = 4 * op.most_keys * 4;  // four rows at a time
    on_gpu.keys = PoolView(gpu.bring(pool.data(), pool.size()), layout, kPageKeys, kPoolPages);
    on_gpu.q = rows_at(constant(gpu.rows(q)), 0, ranked);
    on_gpu.weights = rows_at(constant(gpu.rows(weights)), 0, ranked);
    const auto chosen = gpu.list(got);
    on_gpu.slots = {const_cast<std::int32_t*>(chosen.data()), chosen.size()};
    ASSERT_TRUE(select_keys(gpu.ops, on_gpu).ok());
    ASSERT_TRUE(gpu.backend->wait().ok());
    ASSERT_TRUE(gpu.backend
                    ->download(gpu.ops, reinterpret_cast<const std::byte*>(chosen.data()),
                               std::as_writable_bytes(std::span(got)))
                    .ok());
    EXPECT_EQ(got, wanted);
  }
}

// Rows reuse other rows' lists, which are wider or narrower, or get their first keys, which may be
// fewer than k.
TEST_F(GpuProducts, RowsTakeTheKeysThatOthersChose) {
  constexpr std::int64_t kRows = 5, kWidth = 3, kPool = 9;
  ops_test::Context cpu(1);
  std::vector<PageId> table;
  for (std::int32_t p = 0; p < 2 * kWidth; ++p) table.emplace_back((p * 5 + 2) % kPool);
  const std::vector<std::int32_t> request = {0, 1, 1, 0, -1}, lens = {9, 2, 11, 9, 0};
  const std::vector<std::int32_t> rows = {1, -1, -1, 0, -1};
  for (const std::int64_t choice : {4, 12}) {
    std::vector<std::int32_t> choices;
    for (std::int32_t i = 0; i < 2 * choice; ++i) choices.push_back(i % 5 == 4 ? -1 : 30 - i);
    const std::int64_t k = 8;
    StepView step;
    step.rows = kRows;
    step.requests = 2;
    step.max_context = 12;
    step.selecting_rows = 1;
    step.row_request = request;
    step.index_lens = lens;
    step.page_table = {table.data(), 2, kWidth};
    std::vector<std::int32_t> want(kRows * k, -1);
    for (std::int64_t r = 0; r < kRows; ++r) {
      const auto at = static_cast<std::size_t>(r);
      for (std::int64_t i = 0; i < k; ++i) {
        std::int32_t& slot = want[static_cast<std::size_t>(r * k + i)];
        if (rows[at] >= 0 && i < choice) {
          slot = choices[static_cast<std::size_t>(rows[at] * choice + i)];
        } else if (rows[at] < 0 && i < lens[at]) {
          const auto page = table[static_cast<std::size_t>(request[at] * kWidth + i / 4)];
          slot = page.value * 4 + static_cast<std::int32_t>(i % 4);
        }
      }
    }
    std::vector<std::int32_t> got(kRows * k, 7);
    SelectKeys op{.step = &step,
                  .keys = ConstPoolView(nullptr, CacheLayout(LayoutKind::index_fp8), 4, kPool),
                  .main = {4, kPool},
                  .most_keys = 12,
                  .k = k,
                  .slots = got,
                  .choice_rows = rows,
                  .choices = choices,
                  .choice_width = choice};
    ASSERT_TRUE(select_keys(cpu.ops, op).ok());
    EXPECT_EQ(got, want) << "cpu, lists of " << choice;
    std::ranges::fill(got, 7);
    ASSERT_TRUE(select_keys(ref.ops, op).ok());
    EXPECT_EQ(got, want) << "ref, lists of " << choice;

    StepView there = step;
    there.row_request = gpu.list(request);
    there.index_lens = gpu.list(lens);
    there.page_table.data = gpu.list(table).data();
    std::ranges::fill(got, 7);
    const auto out = gpu.list(got);
    op.step = &there;
    op.slots = {const_cast<std::int32_t*>(out.data()), out.size()};
    op.choice_rows = gpu.list(rows);
    op.choices = gpu.list(choices);
    ASSERT_TRUE(select_keys(gpu.ops, op).ok());
    ASSERT_TRUE(gpu.backend->wait().ok());
    ASSERT_TRUE(gpu.backend
                    ->download(gpu.ops, reinterpret_cast<const std::byte*>(out.data()),
                               std::as_writable_bytes(std::span(got)))
                    .ok());
    EXPECT_EQ(got, want) << "gpu, lists of " << choice;
  }
}

INSTANTIATE_TEST_SUITE_P(Keys, GpuSelection, ::testing::Bool(),
                         [](const auto& entries) { return entries.param ? "Entries" : "Tokens"; });

}  // namespace
}  // namespace lathe
