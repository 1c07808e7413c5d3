#include "ops/exchange.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <thread>

#include "base/rows.h"
#include "kernels/checked_communicator.h"
#include "kernels/devices/all.h"
#include "kernels/host_communicator.h"
#include "kernels/test/faulty_communicator_test_util.h"

namespace lathe {
namespace {

// Ranks with a CPU backend each. run() runs a function on all of them.
class Ranks {
 public:
  explicit Ranks(std::int32_t n, std::uint64_t seed = 0, int most_delay = 0,
                 const std::function<void(std::int32_t, Faults&)>& change = nullptr) {
    std::int32_t r = 0;
    for (auto& inner : make_host_communicators(n)) {
      Faults faults{.seed = seed + static_cast<std::uint64_t>(r), .most_delay = most_delay};
      if (change) change(r, faults);
      Rank& rank = ranks_.emplace_back();
      rank.communicator = std::make_unique<FaultyCommunicator>(std::move(inner), faults);
      rank.backend = std::move(*make_backend(Device::cpu));
      ++r;
    }
    for (Rank& rank : ranks_) {
      rank.ops.backend = rank.backend.get();
      rank.ops.communicator = rank.communicator.get();
      rank.ops.tensors = &rank.tensors;
      rank.ops.control = &rank.control;
    }
  }
  std::int32_t size() const { return static_cast<std::int32_t>(ranks_.size()); }
  /// Calls body(rank, ops) on a thread per rank. A rank that throws RankEnded aborts the group.
  void run(const std::function<void(std::int32_t, const OpsContext&)>& body) {
    std::vector<std::thread> threads;
    for (std::int32_t r = 0; r < size(); ++r) {
      threads.emplace_back([this, r, &body] {
        const OpsContext& ops = ranks_[static_cast<std::size_t>(r)].ops;
        try {
          body(r, ops);
        } catch (const RankEnded& e) {
          ops.communicator->abort({ErrorCode::device, "rank", "a thread", e.what(), ""});
        }
      });
    }
    for (std::thread& t : threads) t.join();
  }

 private:
  struct Rank {
    std::unique_ptr<Communicator> communicator;
    std::unique_ptr<Backend> backend;
    Arena tensors, control;
    OpsContext ops;
  };
  std::deque<Rank> ranks_;
};

using Values = std::vector<float>;

// What rank r puts at (row, col): integers, so that sums in any order are exact.
float partial_at(std::int32_t r, std::int64_t row, std::int64_t col) {
  return static_cast<float>((r + 1) * 1000 + row * 10 + col % 7);
}

void fill(const MutableRowsView& v, std::int32_t r) {
  for (std::int64_t i = 0; i < v.rows; ++i) {
    for (std::int64_t c = 0; c < v.cols; ++c) {
      reinterpret_cast<float*>(v.row(i))[c] = partial_at(r, i, c);
    }
  }
}

float at(const MutableRowsView& v, std::int64_t row, std::int64_t col) {
  return reinterpret_cast<const float*>(v.row(row))[col];
}

class HostCommunicatorTest : public testing::TestWithParam<std::int32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, HostCommunicatorTest, testing::Values(2, 3, 4, 8));

TEST_P(HostCommunicatorTest, SumsAreThoseOfAllRanks) {
  Ranks ranks(GetParam());
  ranks.run([&](std::int32_t r, const OpsContext& ops) {
    for (const auto& [rows, cols] : {std::pair{1, 1}, {3, 64}, {5, 200}, {300, 96}}) {
      for (const bool add : {false, true}) {
        const Arena::Scope scope(*ops.tensors);
        const MutableRowsView partial = alloc_partial(ops, rows, cols);
        const MutableRowsView out = alloc_rows(*ops.tensors, rows, cols);
        fill(partial, r);
        for (std::int64_t i = 0; i < rows; ++i) {
          std::fill_n(reinterpret_cast<float*>(out.row(i)), cols, 5.0f);
        }
        sum_rows(ops, {constant(partial), out, add});
        for (std::int64_t i = 0; i < rows; ++i) {
          for (std::int64_t c = 0; c < cols; ++c) {
            float wanted = add ? 5 : 0;
            for (std::int32_t k = 0; k < GetParam(); ++k) wanted += partial_at(k, i, c);
            ASSERT_EQ(at(out, i, c), wanted) << rows << " x " << cols << ": " << i << ", " << c;
          }
        }
      }
    }
  });
}

// 1 + 2^-24 + 2^-24 in f32 is 1 from the left and 1 + 2^-23 from the right.
TEST(HostCommunicator, SumsFollowTheOrderOfRanks) {
  Ranks ranks(3, 7, 200);
  for (int round = 0; round < 50; ++round) {
    ranks.run([&](std::int32_t r, const OpsContext& ops) {
      const Arena::Scope scope(*ops.tensors);
      const MutableRowsView partial = alloc_partial(ops, 1, 2);
      const MutableRowsView out = alloc_rows(*ops.tensors, 1, 2);
      auto* values = reinterpret_cast<float*>(partial.row(0));
      values[0] = r == 0 ? 1.0f : 0x1p-24f;
      values[1] = r == 2 ? 1.0f : 0x1p-24f;
      sum_rows(ops, {constant(partial), out});
      EXPECT_EQ(at(out, 0, 0), 1.0f);
      EXPECT_EQ(at(out, 0, 1), 1.0f + 0x1p-23f);
    });
  }
}

TEST(HostCommunicator, SumsOfNegativeZerosArePositiveAndNanReachesAll) {
  Ranks ranks(2);
  ranks.run([&](std::int32_t r, const OpsContext& ops) {
    const MutableRowsView partial = alloc_partial(ops, 1, 2);
    const MutableRowsView out = alloc_rows(*ops.tensors, 1, 2);
    auto* values = reinterpret_cast<float*>(partial.row(0));
    values[0] = -0.0f;
    values[1] = r == 1 ? std::numeric_limits<float>::quiet_NaN() : 1;
    sum_rows(ops, {constant(partial), out});
    EXPECT_FALSE(std::signbit(at(out, 0, 0)));
    EXPECT_TRUE(std::isnan(at(out, 0, 1)));
  });
}

TEST_P(HostCommunicatorTest, NormsTheSum) {
  Ranks ranks(GetParam());
  ranks.run([&](std::int32_t r, const OpsContext& ops) {
    constexpr std::int64_t kRows = 3, kCols = 48;
    const MutableRowsView partial = alloc_partial(ops, kRows, kCols);
    const MutableRowsView x = alloc_rows(*ops.tensors, kRows, kCols);
    const MutableRowsView h = alloc_rows(*ops.tensors, kRows, kCols);
    Values weight(kCols);
    std::iota(weight.begin(), weight.end(), 1.0f);
    fill(partial, r);
    for (std::int64_t i = 0; i < kRows; ++i) {
      std::fill_n(reinterpret_cast<float*>(x.row(i)), kCols, -3.0f);
    }
    sum_norm(ops, {constant(partial), x, weight, 1e-5f, h});
    for (std::int64_t i = 0; i < kRows; ++i) {
      double squares = 0;
      for (std::int64_t c = 0; c < kCols; ++c) {
        double sum = -3;
        for (std::int32_t k = 0; k < GetParam(); ++k) sum += partial_at(k, i, c);
        EXPECT_EQ(at(x, i, c), static_cast<float>(sum));
        squares += sum * sum;
      }
      for (std::int64_t c = 0; c < kCols; ++c) {
        const double wanted =
            at(x, i, c) / std::sqrt(squares / kCols + 1e-5) * static_cast<double>(c + 1);
        EXPECT_NEAR(at(h, i, c), wanted, 1e-5 * std::fabs(wanted));
      }
    }
  });
}

TEST_P(HostCommunicatorTest, TradesColumnsForWholeRows) {
  const std::int32_t n = GetParam();
  Ranks ranks(n, 3, 50);
  // Unequal shares; the last rank has none.
  std::vector<std::int64_t> first = {0};
  for (std::int32_t r = 0; r < n; ++r) first.push_back(first.back() + (r + 1 < n ? 3 + r : 0));
  const std::int64_t vocab = first.back();
  for (const std::int64_t rows : {0, 1, 2, 7, 16}) {
    ranks.run([&](std::int32_t r, const OpsContext& ops) {
      const Arena::Scope scope(*ops.tensors);
      const std::int64_t mine = first[static_cast<std::size_t>(r)];
      const MutableRowsView columns =
          alloc_rows(*ops.tensors, rows, first[static_cast<std::size_t>(r) + 1] - mine);
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t c = 0; c < columns.cols; ++c) {
          reinterpret_cast<float*>(columns.row(i))[c] = static_cast<float>(i * vocab + mine + c);
        }
      }
      std::int64_t owned = 0;
      for (std::int64_t i = r; i < rows; i += n) ++owned;
      EXPECT_EQ(ops.communicator->owned_rows(rows), owned);
      const MutableRowsView whole = alloc_rows(*ops.tensors, owned, vocab);
      trade_columns(ops, {constant(columns), first, whole});
      for (std::int64_t i = 0; i < owned; ++i) {
        for (std::int64_t c = 0; c < vocab; ++c) {
          ASSERT_EQ(at(whole, i, c), static_cast<float>((r + i * n) * vocab + c));
        }
      }
    });
  }
}

TEST_P(HostCommunicatorTest, SharesRecordsOfTheirOwners) {
  const std::int32_t n = GetParam();
  Ranks ranks(n);
  ranks.run([&](std::int32_t r, const OpsContext& ops) {
    constexpr std::int64_t kCount = 13;
    std::vector<std::int64_t> records(2 * kCount, -1);
    for (std::int64_t i = r; i < kCount; i += n) {
      records[static_cast<std::size_t>(2 * i)] = 100 * i;
      records[static_cast<std::size_t>(2 * i + 1)] = r;
    }
    ops.communicator->share_records(ops, {reinterpret_cast<std::byte*>(records.data()), kCount});
    for (std::int64_t i = 0; i < kCount; ++i) {
      EXPECT_EQ(records[static_cast<std::size_t>(2 * i)], 100 * i);
      EXPECT_EQ(records[static_cast<std::size_t>(2 * i + 1)], i % n);
    }
  });
}

TEST_P(HostCommunicatorTest, AgreesOnTheFirstError) {
  const std::int32_t n = GetParam();
  Ranks ranks(n, 1, 50);
  ranks.run([&](std::int32_t r, const OpsContext& ops) {
    Communicator& c = *ops.communicator;
    EXPECT_TRUE(c.agree({}, 7));
    Result<void> mine;
    if (r > 0) {
      mine = Error{ErrorCode::exhausted, fmt::format("pool {}", r), "8 bytes", "4 bytes", ""};
    }
    const Result<void> ok = c.agree(mine, static_cast<std::uint64_t>(r));
    ASSERT_FALSE(ok);
    EXPECT_EQ(ok.error().message(), "rank 1: pool 1: wanted 8 bytes, got 4 bytes");
    EXPECT_EQ(ok.error().code, ErrorCode::exhausted);
    EXPECT_TRUE(c.agree({}, 9)) << "a failed agreement changes nothing";
  });
}

TEST(HostCommunicator, AgreesOnlyOnEqualKeys) {
  Ranks ranks(3, 1, 50, [](std::int32_t r, Faults& f) { f.wrong_key = r == 2 ? 1 : -1; });
  ranks.run([&](std::int32_t, const OpsContext& ops) {
    EXPECT_TRUE(ops.communicator->agree({}, 7));
    const Result<void> ok = ops.communicator->agree({}, 7);
    ASSERT_FALSE(ok);
    EXPECT_EQ(ok.error().field, "rank 2");
    EXPECT_NE(ok.error().message().find("0000000000000008"), std::string::npos);
  });
}

TEST(HostCommunicator, PublishesAddresses) {
  Ranks ranks(4);
  std::vector<int> places(4);
  ranks.run([&](std::int32_t r, const OpsContext& ops) {
    EXPECT_TRUE(ops.communicator->barrier());
    const auto all = ops.communicator->publish(&places[static_cast<std::size_t>(r)]);
    ASSERT_TRUE(all);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ((*all)[i], &places[i]);
  });
}

TEST(HostCommunicator, NamesBothSidesOfDifferentExchanges) {
  Ranks ranks(2);
  ranks.run([&](std::int32_t r, const OpsContext& ops) {
    const MutableRowsView partial = alloc_partial(ops, 2 + r, 8);
    const MutableRowsView out = alloc_rows(*ops.tensors, 2 + r, 8);
    fill(partial, r);
    fill(out, 40);
    sum_rows(ops, {constant(partial), out});
    EXPECT_EQ(at(out, 0, 0), partial_at(40, 0, 0)) << "outputs stay as they were";
    const Result<void> ok = ops.communicator->barrier();
    ASSERT_FALSE(ok);
    EXPECT_EQ(ok.error().message(),
              "rank 1: wanted rank 0's sum of 2 x 8, got sum of 3 x 8; this is a bug in Lathe");
  });
}

// Rank 2 has another x before the second of three exchanges.
TEST(CheckedCommunicator, NamesTheRankAndTheExchangeThatDiffer) {
  Ranks ranks(3);
  ranks.run([&](std::int32_t r, const OpsContext& plain) {
    const auto checked = make_checked_communicator(*plain.communicator);
    OpsContext ops = plain;
    ops.communicator = checked.get();
    EXPECT_FALSE(checked->records());
    const MutableRowsView x = alloc_rows(*ops.tensors, 4, 16);
    const MutableRowsView h = alloc_rows(*ops.tensors, 4, 16);
    fill(x, 40);
    for (int i = 0; i < 3; ++i) {
      const Arena::Scope scope(*ops.tensors);
      const MutableRowsView partial = alloc_partial(ops, 4, 16);
      fill(partial, r);
      if (i == 1 && r == 2) reinterpret_cast<float*>(x.row(3))[15] += 1;
      sum_norm(ops, {.partial = constant(partial), .x = x, .weight = {}, .eps = 1e-5f, .h = h});
      EXPECT_EQ(checked->status().ok(), i == 0);
    }
    EXPECT_EQ(checked->status().error().message(),
              "rank 2: wanted rank 0's rows after sum 2 (sum_norm of 4 x 16), got others; "
              "--check-ranks: a fault of that rank's device, or a bug in Lathe");
  });
}

TEST(HostCommunicator, AThreadThatEndsReleasesTheOthers) {
  for (int round = 0; round < 20; ++round) {
    Ranks ranks(4, static_cast<std::uint64_t>(round), 30,
                [](std::int32_t r, Faults& f) { f.end_thread = r == 2 ? 5 : -1; });
    std::atomic<int> told = 0;
    ranks.run([&](std::int32_t r, const OpsContext& ops) {
      for (int i = 0; i < 8; ++i) {
        const Arena::Scope scope(*ops.tensors);
        const MutableRowsView partial = alloc_partial(ops, 2, 8);
        const MutableRowsView out = alloc_rows(*ops.tensors, 2, 8);
        fill(partial, r);
        sum_rows(ops, {constant(partial), out});
      }
      const Result<void> ok = ops.communicator->agree({});
      if (!ok && ok.error().offered == "a test ends this rank's thread") ++told;
    });
    EXPECT_EQ(told, 3);
  }
}

TEST(HostCommunicator, DelaysChangeNoBits) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  constexpr std::int32_t kRanks = 4;
  constexpr std::int64_t kCols = 40;
  std::vector<Values> inputs(kRanks);
  for (Values& v : inputs) {
    for (std::int64_t i = 0; i < kCols; ++i) v.push_back(normal(random));
  }
  Values first;
  for (std::uint64_t run = 0; run < 100; ++run) {
    Ranks ranks(kRanks, run * 10, run == 0 ? 0 : 60);
    std::vector<Values> sums(kRanks, Values(kCols));
    ranks.run([&](std::int32_t r, const OpsContext& ops) {
      const auto at_rank = static_cast<std::size_t>(r);
      const MutableRowsView partial = alloc_partial(ops, 1, kCols);
      std::memcpy(partial.row(0), inputs[at_rank].data(), sizeof(float) * kCols);
      sum_rows(ops,
               {constant(partial),
                {reinterpret_cast<std::byte*>(sums[at_rank].data()), DType::f32, 1, kCols, kCols}});
    });
    if (first.empty()) first = sums[0];
    for (const Values& v : sums) {
      ASSERT_EQ(std::memcmp(v.data(), first.data(), sizeof(float) * kCols), 0) << "run " << run;
    }
  }
}

}  // namespace
}  // namespace lathe
