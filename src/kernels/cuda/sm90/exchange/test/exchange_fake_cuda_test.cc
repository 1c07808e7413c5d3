// Tests the exchanges on two to eight devices of the fake runtime. The peer of every assertion is a
// host's sum in rank order, or the norm in double precision.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cuda/fake/fake_cuda.h"
#include "kernels/cuda/sm90/exchange/test/exchange_checks.h"

namespace lathe::cuda {
namespace {

constexpr ExchangeLaunch kFewBlocks{.sms = 4}, kManyBlocks{.sms = 400};

struct Devices {
  explicit Devices(int count) { fake::set_devices(count); }
  ~Devices() {
    ExchangeGroup::on(0);
    fake::shuffle_devices(0);
    fake::set_devices(1);
  }
};

std::int64_t plane_words(int ranks, std::int64_t rows, std::int64_t cols) {
  return std::max(plane_words_of(SumPath::push, ranks, rows, cols),
                  plane_words_of(SumPath::push_owned, ranks, rows, cols));
}

// x and h of the host; a NaN counts as any NaN.
void expect_equal_bits(const std::vector<std::uint32_t>& got, const std::vector<float>& wanted,
                       std::int64_t cols, std::pair<std::int64_t, std::int64_t> rows) {
  for (std::int64_t i = rows.first * cols; i < rows.second * cols; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (std::isnan(wanted[at])) {
      ASSERT_TRUE(std::isnan(__builtin_bit_cast(float, got[at]))) << i;
    } else {
      ASSERT_EQ(got[at], __builtin_bit_cast(std::uint32_t, wanted[at])) << i;
    }
  }
}
void expect_norm(const SumInputs& in, const std::vector<float>& x,
                 const std::vector<std::uint16_t>& h) {
  for (std::int64_t row = 0; row < in.rows; ++row) {
    const auto wanted = host_norm(in, x, row, double{kSumEps});
    for (std::int64_t i = 0; i < in.cols; ++i) {
      const std::uint16_t bits = h[static_cast<std::size_t>(row * in.cols + i)];
      const double v = double{to_f32(bf16{bits})}, want = wanted[static_cast<std::size_t>(i)];
      ASSERT_NE(bits, 0x8000);
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(v)) << row << ", " << i;
      } else {
        ASSERT_LE(std::abs(v - want), std::abs(want) / 200) << row << ", " << i;
      }
    }
  }
}

void check_sums(int ranks, std::int64_t rows, std::int64_t cols, const ExchangeLaunch& launch,
                unsigned seed) {
  SCOPED_TRACE(::testing::Message()
               << ranks << " ranks, " << rows << " rows of " << cols << ", seed " << seed);
  ExchangeGroup group(ranks, plane_words(ranks, rows, cols));
  SumInputs in = sum_inputs(ranks, rows, cols, seed);
  spoil(in, static_cast<std::size_t>(ranks - 1), rows / 2);
  const std::vector<float> wanted = host_sum(in, true);
  std::vector<std::uint16_t> h;
  for (const SumPath path : kSumPaths) {
    SCOPED_TRACE(name_of(path));
    const auto outputs = run_sum(group, in, path, launch);
    for (int r = 0; r < ranks; ++r) {
      const SumOutput& out = outputs[static_cast<std::size_t>(r)];
      const auto owned = owned_range(r, ranks, rows);
      expect_equal_bits(out.x, wanted, cols,
                        is_owned(path) ? owned : std::pair{std::int64_t{0}, rows});
      if (is_owned(path)) {
        expect_equal_bits(out.x, in.x, cols, {0, owned.first});
        expect_equal_bits(out.x, in.x, cols, {owned.second, rows});
      }
      if (h.empty()) expect_norm(in, wanted, h = out.h);
      EXPECT_EQ(out.h, h) << "rank " << r;
    }
  }
}

TEST(Exchange, SumsAndNormsAreTheHostsOnEveryPath) {
  for (const int ranks : {2, 4, 8}) {
    const Devices devices(ranks);
    check_sums(ranks, 1, 64, kManyBlocks, 1);
    check_sums(ranks, 5, 8, kFewBlocks, 2);
    check_sums(ranks, 13, 776, kFewBlocks, 3);
    check_sums(ranks, 3, 4096 + 264, kFewBlocks, 4);  // two words a thread
    check_sums(ranks, 2, 8192 + 8, kManyBlocks, 5);
    check_sums(ranks, 3, 16384, kFewBlocks, 6);
  }
}

TEST(Exchange, EveryNumberOfRowsGivesARowTheSameBits) {
  const Devices devices(2);
  constexpr std::int64_t kRows = 300, kCols = 40;
  ExchangeGroup group(2, plane_words(2, kRows, kCols));
  const SumInputs all = sum_inputs(2, kRows, kCols, 7);
  const auto whole = run_sum(group, all, SumPath::push, kManyBlocks);
  SumInputs in = all;
  for (in.rows = 1; in.rows <= kRows; ++in.rows) {
    const SumPath path = kSumPaths[in.rows % 4];
    const auto arrays = arrays_of(group, in);
    launch_on_all(group, in, arrays, path, in.rows % 3 == 0 ? kManyBlocks : kFewBlocks);
    group.wait();
    for (int r = 0; r < 2; ++r) {
      const SumOutput out = output_of(group.rank(r), arrays[static_cast<std::size_t>(r)]);
      const auto equal = [&](const auto& a, const auto& b,
                             std::pair<std::int64_t, std::int64_t> of) {
        return std::equal(a.begin() + of.first * kCols, a.begin() + of.second * kCols,
                          b.begin() + of.first * kCols);
      };
      const auto mine =
          is_owned(path) ? owned_range(r, 2, in.rows) : std::pair{std::int64_t{0}, in.rows};
      ASSERT_TRUE(equal(out.x, whole[0].x, mine)) << in.rows << " rows, " << name_of(path);
      ASSERT_TRUE(equal(out.h, whole[0].h, {0, in.rows})) << in.rows << " rows, " << name_of(path);
    }
  }
}

TEST(Exchange, SumsWithoutANormOrWithoutX) {
  const Devices devices(4);
  ExchangeGroup group(4, plane_words(4, 9, 72));
  const SumInputs in = sum_inputs(4, 9, 72, 8);
  for (const bool add : {true, false}) {
    for (const SumPath path : {SumPath::push, SumPath::pull}) {
      const auto outputs = run_sum(group, in, path, kFewBlocks, false, add);
      for (const SumOutput& out : outputs) {
        expect_equal_bits(out.x, host_sum(in, add), in.cols, {0, in.rows});
        EXPECT_EQ(out.h, std::vector<std::uint16_t>(out.h.size(), 0x7e7e));
      }
    }
  }
}

TEST(Exchange, F32PartialsAreRoundedOnce) {
  const Devices devices(2);
  ExchangeGroup group(2, plane_words(2, 3, 64));
  SumInputs in = sum_inputs(2, 3, 64, 9, false);
  std::mt19937 random(9);
  std::vector<RankArray<float>> wide;
  for (int r = 0; r < 2; ++r) {
    std::vector<float> values(static_cast<std::size_t>(in.rows * in.cols));
    for (float& v : values) v = std::normal_distribution<float>()(random);
    values[5] = -0.0f;
    for (std::size_t i = 0; i < values.size(); ++i) {
      in.partials[static_cast<std::size_t>(r)][i] = to_bf16(values[i]);
    }
    wide.emplace_back(group.rank(r), values);
  }
  for (const SumPath path : {SumPath::push, SumPath::pull}) {
    const auto arrays = arrays_of(group, in);
    for (int r = 0; r < 2; ++r) {
      const auto at = static_cast<std::size_t>(r);
      SumParams p = arrays[at].params(in, true, true);
      p.partial = {reinterpret_cast<const std::byte*>(wide[at].device.data()), in.cols, DType::f32};
      ExchangeGroup::on(r);
      ASSERT_TRUE(sum_takes(p));
      ASSERT_EQ(launch_sum(group.rank(r).peers, path, p, kFewBlocks, group.rank(r).stream),
                cudaSuccess);
    }
    group.wait();
    for (int r = 0; r < 2; ++r) {
      const SumOutput out = output_of(group.rank(r), arrays[static_cast<std::size_t>(r)]);
      expect_equal_bits(out.x, host_sum(in, true), in.cols, {0, in.rows});
    }
  }
}

TEST(Exchange, F32PartialsTravelExactlyIfAsked) {
  for (const int ranks : {2, 4, 8}) {
    const Devices devices(ranks);
    ExchangeGroup group(ranks, 1);
    for (const bool add : {true, false}) {
      const SumInputs in = sum_inputs(ranks, 5, 72, 10);
      const auto arrays = arrays_of(group, in);
      std::mt19937 random(10);
      std::vector<std::vector<float>> host;
      std::vector<RankArray<float>> partials;
      for (int r = 0; r < ranks; ++r) {
        auto& values = host.emplace_back(in.x.size());
        for (float& v : values) v = std::normal_distribution<float>()(random);
        values[3] = -0.0f;
        partials.emplace_back(group.rank(r), values);
      }
      std::vector<float> wanted(in.x.size());
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        float sum = 0;
        for (const auto& values : host) sum += values[i];
        wanted[i] = (add ? in.x[i] : 0.0f) + sum;
      }
      for (int r = 0; r < ranks; ++r) {
        const auto at = static_cast<std::size_t>(r);
        SumParams p = arrays[at].params(in, false, add);
        p.partial = {reinterpret_cast<const std::byte*>(partials[at].device.data()), in.cols,
                     DType::f32};
        p.exact = true;
        ExchangeGroup::on(r);
        ASSERT_TRUE(sum_takes(p));
        ASSERT_EQ(
            launch_sum(group.rank(r).peers, SumPath::push, p, kFewBlocks, group.rank(r).stream),
            cudaSuccess);
      }
      group.wait();
      for (int r = 0; r < ranks; ++r) {
        const SumOutput out = output_of(group.rank(r), arrays[static_cast<std::size_t>(r)]);
        expect_equal_bits(out.x, wanted, in.cols, {0, in.rows});
      }
    }
  }
}

// Sizes, data and paths change from call to call, devices run in random order, and the counter of
// calls passes 2^32. A plane that still held an older call's words would change some x.
TEST(Exchange, PlanesServeTenThousandCalls) {
  const Devices devices(2);
  constexpr std::int64_t kRows = 6, kCols = 16;
  constexpr std::uint64_t kFirst = (std::uint64_t{1} << 32) - 2;
  ExchangeGroup group(2, plane_words(2, kRows, kCols), kFirst);
  struct Set {
    SumInputs in;
    std::vector<SumArrays> arrays;
    std::vector<float> sum, x;
  };
  std::vector<Set> sets;
  for (unsigned i = 0; i < 7; ++i) {
    SumInputs in = sum_inputs(2, kRows, kCols, 20 + i);
    auto arrays = arrays_of(group, in);
    const auto sum = host_sum(in, false);
    const auto x = in.x;
    sets.push_back({std::move(in), std::move(arrays), sum, x});
  }
  std::mt19937 random(11);
  constexpr int kCalls = 10'000, kTogether = 100;
  for (int call = 0; call < kCalls; call += kTogether) {
    fake::shuffle_devices(static_cast<unsigned>(call + 1));
    for (int i = 0; i < kTogether; ++i) {
      Set& set = sets[random() % sets.size()];
      set.in.rows = static_cast<std::int64_t>(random() % kRows) + 1;
      const SumPath path = random() % 8 == 0 ? SumPath::pull : SumPath::push;
      launch_on_all(group, set.in, set.arrays, path, kFewBlocks);
      for (std::size_t j = 0; j < static_cast<std::size_t>(set.in.rows * kCols); ++j) {
        set.x[j] += set.sum[j];
      }
    }
    group.wait();
    for (const Set& set : sets) {
      for (int r = 0; r < 2; ++r) {
        ASSERT_EQ(set.arrays[static_cast<std::size_t>(r)].x.get(group.rank(r)), set.x) << call;
      }
    }
  }
  for (int r = 0; r < 2; ++r) {
    ExchangeRank& mine = group.rank(r);
    ExchangeGroup::on(r);
    std::vector<ExchangeState> state(1);
    need(copy_to_host(static_cast<const ExchangeState*>(mine.state.data()), std::span(state),
                      mine.stream));
    need(mine.stream.wait());
    EXPECT_EQ(state[0].call, kFirst + kCalls);
  }
}

TEST(Exchange, GraphsReplayWithEagerCallsBetween) {
  const Devices devices(2);
  ExchangeGroup group(2, plane_words(2, 8, 64));
  const SumInputs in = sum_inputs(2, 4, 64, 12);
  SumInputs small = in;
  small.rows = 1;
  const auto arrays = arrays_of(group, in);
  std::vector<Graph> graphs;
  for (int r = 0; r < 2; ++r) {
    const auto at = static_cast<std::size_t>(r);
    ExchangeGroup::on(r);
    graphs.push_back(need(Graph::capture(group.rank(r).stream, [&]() -> Result<void> {
      for (const SumPath path : {SumPath::push, SumPath::pull, SumPath::push}) {
        if (auto ok = call_result(
                launch_sum(group.rank(r).peers, path, arrays[at].params(in, true, false),
                           kFewBlocks, group.rank(r).stream),
                "launch_sum");
            !ok) {
          return ok;
        }
      }
      return {};
    })));
  }
  for (int round = 0; round < 5; ++round) {
    for (int r = 0; r < 2; ++r) {
      ExchangeGroup::on(r);
      need(graphs[static_cast<std::size_t>(r)].launch(group.rank(r).stream));
    }
    launch_on_all(group, small, arrays, SumPath::push, kFewBlocks, true, false);
    group.wait();
    for (int r = 0; r < 2; ++r) {
      const SumOutput out = output_of(group.rank(r), arrays[static_cast<std::size_t>(r)]);
      expect_equal_bits(out.x, host_sum(in, false), in.cols, {0, in.rows});
    }
  }
}

// ---- A rank that does not come

void check_gives_up(bool abort) {
  const Devices devices(2);
  ExchangeGroup group(2, plane_words(2, 3, 64), 0, abort ? 1'000'000'000'000 : 50'000);
  const SumInputs in = sum_inputs(2, 3, 64, 13);
  for (const SumPath path : kSumPaths) {
    SCOPED_TRACE(name_of(path));
    ExchangeGroup late(2, plane_words(2, 3, 64), 0, abort ? 1'000'000'000'000 : 50'000);
    if (abort) late.rank(0).control().abort = 1;
    const auto arrays = arrays_of(late, in);
    ExchangeGroup::on(0);
    for (int call = 0; call < 3; ++call) {  // the second and third do not wait
      ASSERT_EQ(launch_sum(late.rank(0).peers, path, arrays[0].params(in, true, true), kFewBlocks,
                           late.rank(0).stream),
                cudaSuccess);
    }
    need(late.rank(0).stream.wait());
    EXPECT_EQ(late.rank(0).control().gave_up, abort ? GaveUp::aborted : GaveUp::too_late);
    EXPECT_EQ(late.rank(0).control().call, 0u);
    const SumOutput out = output_of(late.rank(0), arrays[0]);
    // push_owned's owner rows need the peer as well, so nothing was written.
    expect_equal_bits(out.x, in.x, in.cols, {0, in.rows});
    EXPECT_EQ(out.h, std::vector<std::uint16_t>(out.h.size(), 0x7e7e));
  }
}
TEST(Exchange, AnAbortWordEndsTheWait) { check_gives_up(true); }
TEST(Exchange, ALimitEndsTheWait) { check_gives_up(false); }

// ---- Dealt columns and records

TEST(Exchange, ColumnsAreDealtByRows) {
  for (const int ranks : {2, 4, 8}) {
    const Devices devices(ranks);
    ExchangeGroup group(ranks, 1);
    const std::int64_t each = 64, vocab = each * ranks - 13;
    for (const std::int64_t rows : {1, ranks == 8 ? 11 : 7}) {
      std::mt19937 random(static_cast<unsigned>(rows));
      std::vector<float> logits(static_cast<std::size_t>(rows * vocab));
      for (float& v : logits) v = std::normal_distribution<float>()(random);
      logits[0] = -0.0f;
      std::vector<RankArray<float>> columns, whole;
      for (int r = 0; r < ranks; ++r) {
        const std::int64_t first = r * each, last = std::min(first + each, vocab);
        std::vector<float> mine;
        for (std::int64_t row = 0; row < rows; ++row) {
          mine.insert(mine.end(), logits.begin() + row * vocab + first,
                      logits.begin() + row * vocab + last);
        }
        columns.emplace_back(group.rank(r), mine);
        whole.emplace_back(group.rank(r),
                           std::vector<float>(static_cast<std::size_t>((rows + 1) * (vocab + 1))));
      }
      for (int r = 0; r < ranks; ++r) {
        TradeParams p{.columns = columns[static_cast<std::size_t>(r)].device.data(),
                      .whole = whole[static_cast<std::size_t>(r)].device.data(),
                      .stride = std::min(each, vocab - r * each),
                      .whole_stride = vocab + 1,
                      .rows = rows};
        for (int i = 0; i <= ranks; ++i) p.first[i] = std::min(i * each, vocab);
        ExchangeGroup::on(r);
        ASSERT_EQ(launch_trade_columns(group.rank(r).peers, p, group.rank(r).stream), cudaSuccess);
      }
      group.wait();
      for (int r = 0; r < ranks; ++r) {
        const auto got = whole[static_cast<std::size_t>(r)].get(group.rank(r));
        for (std::int64_t row = r; row < rows; row += ranks) {
          for (std::int64_t i = 0; i < vocab; ++i) {
            ASSERT_EQ(
                __builtin_bit_cast(std::uint32_t,
                                   got[static_cast<std::size_t>(row / ranks * (vocab + 1) + i)]),
                __builtin_bit_cast(std::uint32_t,
                                   logits[static_cast<std::size_t>(row * vocab + i)]));
          }
        }
      }
    }
  }
}

TEST(Exchange, RecordsComeFromTheirOwners) {
  using Record = std::array<std::uint32_t, 4>;
  for (const int ranks : {2, 4, 8}) {
    const Devices devices(ranks);
    ExchangeGroup group(ranks, 1);
    for (const std::size_t count : {1u, 3u, 600u}) {
      std::vector<RankArray<Record>> records;
      for (int r = 0; r < ranks; ++r) {
        std::vector<Record> mine(count);
        for (std::size_t i = 0; i < count; ++i) {
          mine[i] = {static_cast<std::uint32_t>(r), static_cast<std::uint32_t>(i), 0x80008000u, 0};
        }
        records.emplace_back(group.rank(r), mine);
      }
      for (int r = 0; r < ranks; ++r) {
        ExchangeGroup::on(r);
        ASSERT_EQ(
            launch_share_records(group.rank(r).peers,
                                 {.records = records[static_cast<std::size_t>(r)].device.data(),
                                  .count = static_cast<std::int64_t>(count)},
                                 group.rank(r).stream),
            cudaSuccess);
      }
      group.wait();
      for (int r = 0; r < ranks; ++r) {
        const auto got = records[static_cast<std::size_t>(r)].get(group.rank(r));
        for (std::size_t i = 0; i < count; ++i) {
          EXPECT_EQ(got[i][0], i % static_cast<std::size_t>(ranks));
          EXPECT_EQ(got[i][1], i);
        }
      }
    }
  }
}

}  // namespace
}  // namespace lathe::cuda
