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

// Copies all data to the device, runs the operator, and copies pages and states back.
Result<void> run_there(const Compress& op, const PoolView& pool) {
  ops_test::GpuContext gpu;
  const auto bring = [&]<class T>(std::span<const T> list) {
    return std::span<const T>(reinterpret_cast<const T*>(gpu.bring(list.data(), list.size_bytes())),
                              list.size());
  };
  const auto rows = [&](const RowsView& x) {
    // Padded to 64 bytes, as rows in an arena.
    ops_test::Rows copy(x.rows, x.cols, 0, 16 - x.cols % 16);
    for (std::int64_t r = 0; r < x.rows; ++r) {
      std::memcpy(copy.row(r), x.row(r), static_cast<std::size_t>(x.cols) * sizeof(float));
    }
    return constant(gpu.rows(copy));
  };
  const StepView& step = *op.step;
  StepView v = step;
  v.positions = bring(step.positions);
  v.row_request = bring(step.row_request);
  v.q_indptr = bring(step.q_indptr);
  v.kv_lens = bring(step.kv_lens);
  v.compressed_out_slots = bring(step.compressed_out_slots);
  v.state_before = bring(step.state_before);
  const std::span table(step.state_table.data,
                        static_cast<std::size_t>(step.requests * step.state_table.width));
  v.state_table.data = bring(table).data();
  const std::int64_t page_bytes = pool.pages * pool.page_stride;
  const std::int64_t state_bytes =
      Layer::kSlots * step.requests * op.state.banks * op.state.bank_bytes;
  Compress there = op;
  there.step = &v;
  there.kv = rows(op.kv);
  there.gate = rows(op.gate);
  there.position_bias = bring(op.position_bias);
  there.norm = bring(op.norm);
  there.state.data = gpu.bring(op.state.data, static_cast<std::size_t>(state_bytes));
  const PoolView pages(gpu.bring(pool.data, static_cast<std::size_t>(page_bytes)), pool.layout,
                       pool.page_size, pool.pages);
  if (auto ok = compress(gpu.ops, there, pages); !ok) return ok;
  if (auto ok = gpu.backend->wait(); !ok) return ok;
  const auto back = [&](const std::byte* from, std::byte* to, std::int64_t bytes) {
    EXPECT_TRUE(gpu.backend->download(gpu.ops, from, {to, static_cast<std::size_t>(bytes)}).ok());
  };
  back(pages.data, pool.data, page_bytes);
  back(there.state.data, op.state.data, state_bytes);
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
