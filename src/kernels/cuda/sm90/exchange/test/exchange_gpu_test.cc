// The exchanges on two GPUs or more against a host's sum in rank order (exchange_checks.h). With
// one GPU everything is skipped. LATHE_EXCHANGE_SMALL=1: small shapes and few calls, for
// compute-sanitizer.
#include <cstdlib>

#include "kernels/cuda/common/test/gpu_test_util.h"
#include "kernels/cuda/sm90/exchange/test/exchange_checks.h"

namespace lathe::cuda {
namespace {

bool small() { return std::getenv("LATHE_EXCHANGE_SMALL") != nullptr; }

class ExchangeGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    ASSERT_EQ(cudaGetDeviceCount(&devices), cudaSuccess);
    ranks_ = devices >= 8 ? 8 : devices >= 4 ? 4 : 2;
    if (devices < 2) GTEST_SKIP() << "one GPU";
    ExchangeGroup::on(0);
    launch_.sms = need(count_sms());
  }
  void TearDown() override { ExchangeGroup::on(0); }
  std::int64_t plane_words(std::int64_t rows, std::int64_t cols) const {
    return std::max(plane_words_of(SumPath::push, ranks_, rows, cols),
                    plane_words_of(SumPath::push_owned, ranks_, rows, cols));
  }
  // x's bits are the host's on every path, and h is the same on all ranks and paths.
  void check(ExchangeGroup& group, std::int64_t rows, std::int64_t cols, unsigned seed) {
    SCOPED_TRACE(::testing::Message() << rows << " rows of " << cols << ", seed " << seed);
    const SumInputs in = sum_inputs(ranks_, rows, cols, seed);
    const std::vector<float> wanted = host_sum(in, true);
    std::vector<std::uint16_t> h;
    for (const SumPath path : kSumPaths) {
      SCOPED_TRACE(name_of(path));
      const auto outputs = run_sum(group, in, path, launch_);
      for (int r = 0; r < ranks_; ++r) {
        const SumOutput& out = outputs[static_cast<std::size_t>(r)];
        const auto rows_of =
            is_owned(path) ? owned_range(r, ranks_, rows) : std::pair{std::int64_t{0}, rows};
        for (std::int64_t i = rows_of.first * cols; i < rows_of.second * cols; ++i) {
          const auto at = static_cast<std::size_t>(i);
          ASSERT_EQ(out.x[at], __builtin_bit_cast(std::uint32_t, wanted[at])) << i;
        }
        if (h.empty()) h = out.h;
        ASSERT_EQ(out.h, h) << "rank " << r;
      }
    }
    for (std::int64_t row = 0; row < rows; row += rows / 4 + 1) {
      const auto norm = host_norm(in, wanted, row, double{kSumEps});
      for (std::int64_t i = 0; i < cols; ++i) {
        const auto at = static_cast<std::size_t>(row * cols + i);
        const double want = norm[static_cast<std::size_t>(i)];
        ASSERT_NEAR(double{to_f32(bf16{h[at]})}, want, std::abs(want) / 200) << row << ", " << i;
      }
    }
  }

  int ranks_ = 2;
  ExchangeLaunch launch_;
};

TEST_F(ExchangeGpu, SumsAndNormsAreTheHosts) {
  const std::int64_t most = small() ? 5 : 300;
  ExchangeGroup group(ranks_, plane_words(most, 16384));
  unsigned seed = 1;
  for (const std::int64_t cols : {8, 2880, 4096, 7168, 8192, 16384}) {
    for (const std::int64_t rows : {1, 2, 3, 7, 64, 133, 256, 300}) {
      if (rows <= most && !(small() && cols > 4096)) check(group, rows, cols, ++seed);
    }
  }
}

// Replays of graphs of many calls with rows and paths at random, and eager calls between: after
// each round x is the host's, who adds the same sums in the same order.
TEST_F(ExchangeGpu, GraphsAndEagerCallsKeepTheirBits) {
  constexpr std::int64_t kCols = 7168;
  const std::int64_t most = small() ? 4 : 260;
  const int calls = small() ? 5 : 50, rounds = small() ? 2 : 40;
  ExchangeGroup group(ranks_, plane_words(most, kCols));
  std::mt19937 random(3);
  SumInputs in = sum_inputs(ranks_, most, kCols, 4);
  const auto arrays = arrays_of(group, in);
  std::vector<float> x = in.x;
  const std::vector<float> sum = host_sum(in, false);
  struct Call {
    std::int64_t rows;
    SumPath path;
  };
  const auto pick = [&] {
    const std::int64_t rows =
        random() % 2 == 0 ? 1 + static_cast<std::int64_t>(random() % 4) : most;
    return Call{rows, random() % 4 == 0 ? SumPath::pull : SumPath::push};
  };
  const auto start = [&](int r, const Call& call) {
    SumInputs some = {.rows = call.rows, .cols = kCols, .partials = {}, .x = {}, .weight = {}};
    return call_result(launch_sum(group.rank(r).peers, call.path,
                                  arrays[static_cast<std::size_t>(r)].params(some, true, true),
                                  launch_, group.rank(r).stream),
                       "launch_sum");
  };
  std::vector<Call> recorded;
  for (int i = 0; i < calls; ++i) recorded.push_back(pick());
  std::vector<Graph> graphs;
  for (int r = 0; r < ranks_; ++r) {
    ExchangeGroup::on(r);
    graphs.push_back(need(Graph::capture(group.rank(r).stream, [&]() -> Result<void> {
      for (const Call& call : recorded) {
        if (auto ok = start(r, call); !ok) return ok;
      }
      return {};
    })));
  }
  for (int round = 0; round < rounds; ++round) {
    const Call between = pick();
    for (int r = 0; r < ranks_; ++r) {
      ExchangeGroup::on(r);
      need(graphs[static_cast<std::size_t>(r)].launch(group.rank(r).stream));
      need(start(r, between));
    }
    group.wait();
    std::vector<Call> done = recorded;
    done.push_back(between);
    for (const Call& call : done) {
      for (std::size_t i = 0; i < static_cast<std::size_t>(call.rows * kCols); ++i) x[i] += sum[i];
    }
    for (int r = 0; r < ranks_; ++r) {
      ASSERT_EQ(arrays[static_cast<std::size_t>(r)].x.get(group.rank(r)), x) << "round " << round;
    }
  }
}

TEST_F(ExchangeGpu, AnAbortWordAndALimitEndTheWait) {
  for (const bool abort : {true, false}) {
    ExchangeGroup group(ranks_, plane_words(3, 4096), 0, abort ? 20'000'000'000 : 1'000'000);
    const SumInputs in = sum_inputs(ranks_, 3, 4096, 5);
    const auto arrays = arrays_of(group, in);
    ExchangeGroup::on(0);
    for (const SumPath path : {SumPath::push, SumPath::pull}) {
      ASSERT_EQ(launch_sum(group.rank(0).peers, path, arrays[0].params(in, true, true), launch_,
                           group.rank(0).stream),
                cudaSuccess);
    }
    auto* word = const_cast<volatile std::uint32_t*>(&group.rank(0).control().abort);
    if (abort) *word = 1;
    need(group.rank(0).stream.wait());
    EXPECT_EQ(group.rank(0).control().gave_up, abort ? GaveUp::aborted : GaveUp::too_late);
    EXPECT_EQ(arrays[0].x.get(group.rank(0)), in.x);
  }
}

TEST_F(ExchangeGpu, ColumnsAndRecordsAreDealt) {
  ExchangeGroup group(ranks_, 1);
  const std::int64_t each = 64 * 253, vocab = each * ranks_ - 29, rows = small() ? 3 : 37;
  std::mt19937 random(6);
  std::vector<float> logits(static_cast<std::size_t>(rows * vocab));
  for (float& v : logits) v = std::normal_distribution<float>()(random);
  using Record = std::array<std::uint32_t, 4>;
  std::vector<RankArray<float>> columns, whole;
  std::vector<RankArray<Record>> records;
  for (int r = 0; r < ranks_; ++r) {
    const std::int64_t first = r * each, last = std::min(first + each, vocab);
    std::vector<float> mine;
    for (std::int64_t row = 0; row < rows; ++row) {
      mine.insert(mine.end(), logits.begin() + row * vocab + first,
                  logits.begin() + row * vocab + last);
    }
    columns.emplace_back(group.rank(r), mine);
    whole.emplace_back(group.rank(r),
                       std::vector<float>(static_cast<std::size_t>((rows / ranks_ + 1) * vocab)));
    records.emplace_back(group.rank(r), std::vector<Record>(static_cast<std::size_t>(rows),
                                                            Record{static_cast<unsigned>(r)}));
  }
  // Rank after rank in each call, because compute-sanitizer starts a kernel only when the one
  // before it on the device has ended.
  for (int i = 0; i < 3; ++i) {
    for (int r = 0; r < ranks_; ++r) {
      TradeParams p{.columns = columns[static_cast<std::size_t>(r)].device.data(),
                    .whole = whole[static_cast<std::size_t>(r)].device.data(),
                    .stride = std::min(each, vocab - r * each),
                    .whole_stride = vocab,
                    .rows = rows};
      for (int k = 0; k <= ranks_; ++k) p.first[k] = std::min(k * each, vocab);
      ExchangeGroup::on(r);
      ASSERT_EQ(launch_trade_columns(group.rank(r).peers, p, group.rank(r).stream), cudaSuccess);
    }
    for (int r = 0; r < ranks_; ++r) {
      ExchangeGroup::on(r);
      ASSERT_EQ(launch_share_records(
                    group.rank(r).peers,
                    {.records = records[static_cast<std::size_t>(r)].device.data(), .count = rows},
                    group.rank(r).stream),
                cudaSuccess);
    }
  }
  group.wait();
  for (int r = 0; r < ranks_; ++r) {
    const auto got = whole[static_cast<std::size_t>(r)].get(group.rank(r));
    const auto dealt = records[static_cast<std::size_t>(r)].get(group.rank(r));
    for (std::int64_t row = 0; row < rows; ++row) {
      EXPECT_EQ(dealt[static_cast<std::size_t>(row)][0], static_cast<unsigned>(row % ranks_));
      if (row % ranks_ != r) continue;
      EXPECT_TRUE(std::equal(logits.begin() + row * vocab, logits.begin() + (row + 1) * vocab,
                             got.begin() + row / ranks_ * vocab))
          << row;
    }
  }
}

}  // namespace
}  // namespace lathe::cuda

int main(int argc, char** argv) { return lathe::cuda::gpu_test_main(argc, argv); }
