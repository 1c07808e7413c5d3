// The CUDA backend's compressor, on a GPU or emulated: entries against double precision, and equal
// bits however the tokens are cut into steps.
#pragma once

#include "ops/test/compress_test_util.h"
#include "ops/test/gpu_test_util.h"

namespace lathe {
namespace {

using compress_test::coarse;
using compress_test::expect_entries;
using compress_test::expect_rejected_rows_leave_nothing;
using compress_test::fine;
using compress_test::Form;
using compress_test::index;
using compress_test::kSlotTokens;
using compress_test::Layer;
using compress_test::Sequence;
using compress_test::shared_keys;

/// An operator's data on the device.
class CompressThere {
 public:
  CompressThere(ops_test::GpuContext& gpu, const Compress& op, const PoolView& pool)
      : gpu_(gpu), host_(op), host_pool_(pool), op_(op) {
    const StepView& step = *op.step;
    step_ = step;
    step_.positions = bring(step.positions);
    step_.row_request = bring(step.row_request);
    step_.q_indptr = bring(step.q_indptr);
    step_.kv_lens = bring(step.kv_lens);
    step_.compressed_out_slots = bring(step.compressed_out_slots);
    step_.state_before = bring(step.state_before);
    const std::span table(step.state_table.data,
                          static_cast<std::size_t>(step.requests * step.state_table.width));
    step_.state_table.data = bring(table).data();
    page_bytes_ = pool.pages * pool.page_stride;
    state_bytes_ = Layer::kSlots * step.requests * op.state.banks * op.state.bank_bytes;
    op_.step = &step_;
    op_.kv = rows(op.kv);
    op_.gate = rows(op.gate);
    op_.position_bias = bring(op.position_bias);
    op_.norm = bring(op.norm);
    op_.state.data = gpu.bring(op.state.data, static_cast<std::size_t>(state_bytes_));
    pages_ = gpu.bring(pool.data, static_cast<std::size_t>(page_bytes_));
  }
  CompressThere(const CompressThere&) = delete;

  Result<void> run() {
    return compress(gpu_.ops, op_,
                    PoolView(pages_, host_pool_.layout, host_pool_.page_size, host_pool_.pages));
  }
  /// Copies pages and states back.
  void fetch() {
    const auto back = [&](const std::byte* from, std::byte* to, std::int64_t bytes) {
      EXPECT_TRUE(
          gpu_.backend->download(gpu_.ops, from, {to, static_cast<std::size_t>(bytes)}).ok());
    };
    back(pages_, host_pool_.data, page_bytes_);
    back(op_.state.data, host_.state.data, state_bytes_);
  }

 private:
  template <class T>
  std::span<const T> bring(std::span<const T> list) {
    return {reinterpret_cast<const T*>(gpu_.bring(list.data(), list.size_bytes())), list.size()};
  }
  RowsView rows(const RowsView& x) {
    // Padded to 64 bytes, as rows in an arena.
    ops_test::Rows copy(x.rows, x.cols, 0, 16 - x.cols % 16);
    for (std::int64_t r = 0; r < x.rows; ++r) {
      std::memcpy(copy.row(r), x.row(r), static_cast<std::size_t>(x.cols) * sizeof(float));
    }
    return constant(gpu_.rows(copy));
  }

  ops_test::GpuContext& gpu_;
  const Compress& host_;
  PoolView host_pool_;
  StepView step_;
  Compress op_;
  std::byte* pages_ = nullptr;
  std::int64_t page_bytes_ = 0, state_bytes_ = 0;
};

// Copies all data to the device, runs the operator, and copies pages and states back.
Result<void> run_there(const Compress& op, const PoolView& pool) {
  ops_test::GpuContext gpu;
  CompressThere there(gpu, op, pool);
  if (auto ok = there.run(); !ok) return ok;
  if (auto ok = gpu.backend->wait(); !ok) return ok;
  there.fetch();
  return {};
}

// At the sizes of DeepSeek V4.
Form wide() {
  return {4, 2, CacheLayout(LayoutKind::v4_fp8, LayoutDims{.nope = 448, .rope = 64}), 64, false};
}

TEST(GpuCompress, EntriesAreWeightedMeans) {
  const auto seed = test_seed(20261126);
  std::printf("seed %u\n", seed);
  std::mt19937 rng(seed);
  for (const Form& form : {fine(), coarse(), index(), wide(), shared_keys()}) {
    const Sequence sequence(rng, form, form.ratio == 4 ? 83 : 300);
    Layer layer(form, run_there, 1);
    layer.step({&sequence}, {sequence.tokens()});
    expect_entries(layer, 0, sequence, form.rounding());
  }
}

void expect_states_near(std::span<const float> got, std::span<const float> want) {
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (std::isinf(want[i])) {
      EXPECT_EQ(got[i], want[i]) << i;
    } else {
      EXPECT_NEAR(got[i], want[i], 1e-5 * (1 + std::fabs(want[i]))) << i;
    }
  }
}

TEST(GpuCompress, StatesHoldTheMeansThatHaveBegun) {
  std::mt19937 rng(test_seed(11));
  for (const Form& form : {fine(), coarse()}) {
    for (const std::int64_t tokens : {1, 3, 4, 5, 128, 129, 257}) {
      const Sequence sequence(rng, form, tokens);
      Layer cpu(form, Device::cpu, 1), gpu(form, run_there, 1);
      for (Layer* layer : {&cpu, &gpu}) layer->step({&sequence}, {tokens});
      expect_states_near(gpu.state(0), cpu.state(0));
    }
  }
}

// At every offset in a group of 4, around the end of a group of 128, and across the end of a slot.
TEST(GpuCompress, EveryRowThatChecksADraftLeavesItsState) {
  constexpr std::int64_t kBanks = 6;
  std::mt19937 rng(test_seed(12));
  for (const Form& form : {fine(), coarse()}) {
    const std::int64_t end = form.ratio == 4 ? 4 : 128;
    for (const std::int64_t cached : {std::int64_t{0}, end - 3, end - 2, end - 1, end, end + 1,
                                      std::int64_t{kSlotTokens - 2}}) {
      for (const std::int64_t rows : {std::int64_t{2}, kBanks}) {
        SCOPED_TRACE(std::to_string(rows) + " rows behind " + std::to_string(cached));
        const Sequence sequence(rng, form, cached + rows);
        Layer cpu(form, Device::cpu, 1, 1, kBanks), gpu(form, run_there, 1, kBanks);
        for (Layer* layer : {&cpu, &gpu}) {
          if (cached > 0) layer->step({&sequence}, {cached});
          layer->step(Phase::verify, {&sequence}, {rows});
        }
        for (std::int64_t p = cached; p < cached + rows; ++p) {
          SCOPED_TRACE(p);
          expect_states_near(gpu.state(0, p), cpu.state(0, p));
        }
      }
    }
  }
}

TEST(GpuCompress, RejectedRowsLeaveNothing) {
  const auto seed = test_seed(35);
  std::printf("seed %u\n", seed);
  std::mt19937 rng(seed);
  for (const Form& form : {fine(), coarse(), index(), shared_keys()}) {
    const auto make = [&](std::int64_t banks) { return Layer(form, run_there, 1, banks); };
    expect_rejected_rows_leave_nothing(rng, form, kSlotTokens + 16, make, true);
  }
}

TEST(GpuCompress, AnyCutGivesTheSameBits) {
  const auto seed = test_seed(5);
  std::printf("seed %u\n", seed);
  std::mt19937 rng(seed);
  for (const Form& form : {fine(), coarse(), index(), shared_keys()}) {
    const std::int64_t tokens = form.ratio == 4 ? 60 : 400;
    const Sequence sequence(rng, form, tokens);
    Layer whole(form, run_there, 1);
    whole.step({&sequence}, {tokens});
    std::vector<std::vector<std::int64_t>> cuts;
    if (form.ratio == 4) cuts.emplace_back(static_cast<std::size_t>(tokens), 1);
    for (std::int64_t first = 1; first <= 5; ++first) cuts.push_back({first, tokens - first});
    for (int i = 0; i < 3; ++i) {
      cuts.emplace_back();
      for (std::int64_t left = tokens; left > 0;) {
        const auto n = std::min<std::int64_t>(left, 1 + static_cast<std::int64_t>(rng() % 150));
        cuts.back().push_back(n);
        left -= n;
      }
    }
    for (const auto& cut : cuts) {
      Layer parts(form, run_there, 1);
      for (const std::int64_t n : cut) parts.step({&sequence}, {n});
      EXPECT_TRUE(parts.bytes() == whole.bytes());
      EXPECT_EQ(
          std::memcmp(parts.state(0).data(), whole.state(0).data(), whole.state(0).size_bytes()),
          0);
    }
  }
}

// Entries and index keys of the same rows, one operator right after the other.
TEST(GpuCompress, PairsHaveTheBitsOfTheirParts) {
  const auto seed = test_seed(20261130);
  std::printf("seed %u\n", seed);
  std::mt19937 rng(seed);
  const Form forms[] = {wide(), index()};
  const Sequence entries(rng, forms[0], 60), keys(rng, forms[1], 60);
  Layer alone(forms[0], run_there, 1), keys_alone(forms[1], run_there, 1);
  const Compress* first = nullptr;
  PoolView first_pool = alone.pool();
  Layer paired_keys(
      forms[1],
      [&](const Compress& op, const PoolView& pool) -> Result<void> {
        ops_test::GpuContext gpu;
        CompressThere a(gpu, *first, first_pool), b(gpu, op, pool);
        if (auto ok = a.run(); !ok) return ok;
        if (auto ok = b.run(); !ok) return ok;
        if (auto ok = gpu.backend->wait(); !ok) return ok;
        a.fetch();
        b.fetch();
        return {};
      },
      1);
  std::int64_t rows = 0;
  Layer paired(
      forms[0],
      [&](const Compress& op, const PoolView& pool) -> Result<void> {
        first = &op;
        first_pool = pool;
        paired_keys.step({&keys}, {rows});
        return {};
      },
      1);
  for (std::int64_t left = 60; left > 0; left -= rows) {
    rows = std::min<std::int64_t>(left, 1 + static_cast<std::int64_t>(rng() % 9));
    alone.step({&entries}, {rows});
    keys_alone.step({&keys}, {rows});
    paired.step({&entries}, {rows});
  }
  EXPECT_TRUE(paired.bytes() == alone.bytes());
  EXPECT_TRUE(paired_keys.bytes() == keys_alone.bytes());
  const auto same = [](std::span<const float> a, std::span<const float> b) {
    return std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
  };
  EXPECT_TRUE(same(paired.state(0), alone.state(0)));
  EXPECT_TRUE(same(paired_keys.state(0), keys_alone.state(0)));
}

TEST(GpuCompress, RequestsOfABatchDoNotTouchEachOther) {
  std::mt19937 rng(test_seed(4));
  const Form form = fine();
  const Sequence sequence(rng, form, 100);
  Layer layer(form, run_there, 3);
  const std::vector<const Sequence*> all(3, &sequence);
  layer.step(all, {5, 0, 17});
  layer.step(all, {95, 2, 1});
  layer.step(all, {0, 98, 82});
  for (std::size_t r = 0; r < 3; ++r) expect_entries(layer, r, sequence, 0.003);
}

TEST(GpuCompress, ExtremeLogits) {
  std::mt19937 rng(test_seed(8));
  for (const Form& form : {fine(), coarse()}) {
    for (const float spread : {0.0f, 1e4f}) {
      const Sequence sequence(rng, form, 256, spread);
      Layer layer(form, run_there, 1);
      layer.step({&sequence}, {256});
      expect_entries(layer, 0, sequence, 0.003);
    }
  }
}

}  // namespace
}  // namespace lathe
