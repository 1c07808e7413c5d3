// Runs the device's work sharing on the CPU (common/emulator.h), and checks who does what for any
// lengths.
// Compiled alone: it includes kernels.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "kernels/cuda/sm90/latent/latent.h"
#include "kernels/cuda/sm90/latent/latent_launch.h"
// Device code comes last: it redefines CUDA's keywords.
#include "kernels/cuda/common/emulator.h"

#include "kernels/cuda/sm90/latent/schedule/share_fixed.cuh"
#include "kernels/cuda/sm90/latent/schedule/share_work.cuh"

namespace lathe::cuda {
namespace {

using Lengths = std::vector<std::int32_t>;

struct Part {
  std::int32_t worker = 0, first = 0, count = 0, number = 0;

  bool operator==(const Part&) const = default;
};

/// A dense call of one row a request, and how the device shares it.
struct Shared {
  Shared(const Lengths& lens, const LatentCut& of) : lengths(lens), cut(of) {
    EXPECT_TRUE(cut.shared);
    LatentSchedule schedule;
    schedule.cut = cut;
    const auto room = [](auto& array, std::int64_t entries, auto& span) {
      array.resize(static_cast<std::size_t>(entries));
      span = array;
    };
    room(items, cut.all.items, schedule.list.items);
    room(worker_items, cut.all.work.workers + 1, schedule.list.worker_items);
    room(split_tiles, cut.split_entries(), schedule.split_tiles);
    indptr.resize(lengths.size() + 1);
    std::iota(indptr.begin(), indptr.end(), 0);
    AttendArgs args;
    args.problem.heads = 16;
    args.q_indptr = indptr;
    args.kv_lens = lengths;
    p = latent_params(args, {}, schedule);
    const int threads = std::max((p.work_tiles + 31) / 32 * 32, kShareWorkers + 1);
    emulate({1, 1, 1}, std::min(threads, kShareTiles),
            cut.fixed > 0 ? latent_share_fixed_kernel : latent_share_kernel, p,
            latent_sharing(schedule));
    parts.resize(lengths.size());
    for (std::int32_t w = 0; w < cut.all.work.workers; ++w) {
      LatentItems of_worker(p, w);
      std::int64_t cost = 0;
      while (of_worker.take<16>(p, 0)) {
        const LatentItem& i = of_worker.item;
        parts[static_cast<std::size_t>(i.work_tile)].push_back(
            {w, i.first, i.count, of_worker.part});
        cost += steps_of(i.count) * kLatentStepCost + cut.costs.item +
                (of_worker.part >= 0 ? cut.costs.split : 0);
      }
      most = std::max(most, cost);
    }
    for (auto& of_tile : parts) {
      std::sort(of_tile.begin(), of_tile.end(),
                [](const Part& a, const Part& b) { return a.first < b.first; });
    }
  }
  std::int64_t steps_of(std::int64_t keys) const {
    return (keys + cut.all.work.block - 1) / cut.all.work.block;
  }

  /// Checks that each key is in exactly one worker's item, and that the combine's entries match the
  /// splits.
  void check() const {
    std::map<std::int32_t, std::vector<std::int32_t>> split, told;
    std::set<std::int32_t> numbers;
    for (std::size_t r = 0; r < lengths.size(); ++r) {
      SCOPED_TRACE("request " + std::to_string(r));
      std::int32_t at = 0;
      for (const Part& part : parts[r]) {
        EXPECT_EQ(part.first, at);
        EXPECT_EQ(part.first % cut.all.work.block, 0);
        EXPECT_GT(part.count, 0);
        EXPECT_EQ(part.number >= 0, parts[r].size() > 1);
        at += part.count;
        if (part.number < 0) continue;
        split[static_cast<std::int32_t>(r)].push_back(part.number);
        EXPECT_TRUE(numbers.insert(part.number).second);
        EXPECT_LT(part.number, cut.partials());
      }
      EXPECT_EQ(at, std::max(lengths[r], 0));
      if (lengths[r] <= 0) split[static_cast<std::int32_t>(r)] = {};
    }
    EXPECT_EQ(split_tiles.back().parts, 0);
    for (std::size_t i = 0; split_tiles[i].parts > 0;) {
      const LatentSplitTile& tile = split_tiles[i];
      EXPECT_GE(tile.parts * kCombineAhead, std::min<int>(tile.items, 8 * kCombineAhead));
      for (int part = 0; part < tile.parts; ++part, ++i) {
        const LatentSplitTile& entry = split_tiles[i];
        EXPECT_EQ(entry.part, part);
        EXPECT_EQ(entry.parts, tile.parts);
        EXPECT_EQ(entry.row, tile.row);
        EXPECT_EQ(entry.first, tile.first);
        EXPECT_EQ(entry.items, tile.items);
        EXPECT_EQ(entry.m_rows, 16);
      }
      std::vector<std::int32_t> of(static_cast<std::size_t>(tile.items));
      std::iota(of.begin(), of.end(), tile.first);
      EXPECT_TRUE(told.emplace(tile.row, of).second);
    }
    EXPECT_EQ(told, split);
  }
  /// Load of each worker if work were dealt evenly without splits.
  double mean() const {
    std::int64_t all = 0;
    for (const std::int32_t keys : lengths) {
      if (keys > 0) all += steps_of(keys) * kLatentStepCost + cut.costs.item;
    }
    return static_cast<double>(all) / cut.all.work.workers;
  }

  Lengths lengths;
  LatentCut cut;
  LatentParams p;
  std::vector<WorkItem> items;
  std::vector<std::int64_t> worker_items;
  std::vector<LatentSplitTile> split_tiles;
  std::vector<std::int32_t> indptr;
  std::vector<std::vector<Part>> parts;  // of requests, in key order
  std::int64_t most = 0;                 // cost of the most loaded worker
};

LatentCut cut_of(const Lengths& lengths, int heads, std::int64_t bound = 0, int sms = 132,
                 bool fp8 = false, std::int64_t fixed_keys = 0) {
  const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  return cut_latent({.rows = std::ssize(lengths),
                     .requests = std::ssize(lengths),
                     .keys = std::max<std::int64_t>(std::max(longest, bound), 1),
                     .heads = heads,
                     .dense = true,
                     .fp8 = fp8,
                     .fp8_pages = fp8,
                     .fixed_keys = fixed_keys,
                     .sms = sms});
}

class ShareWork : public ::testing::Test {
 protected:
  int from(int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng_); }
  Lengths draw(int n, int low, int high) {
    Lengths out(static_cast<std::size_t>(n));
    for (auto& x : out) x = from(low, high);
    return out;
  }
  Lengths normal(int n, int mean) {
    std::normal_distribution<double> d(mean, 0.5 * mean);
    Lengths out;
    for (int i = 0; i < n; ++i) {
      out.push_back(static_cast<std::int32_t>(std::clamp(d(rng_), 1.0, 2.0 * mean)));
    }
    return out;
  }
  std::mt19937 rng_{17};
};

TEST_F(ShareWork, CoversEachKeyOnce) {
  for (int i = 0; i < 120; ++i) {
    const int kind = i % 6, n = kind == 5 ? from(257, kShareTiles) : from(1, 300);
    Lengths lengths = kind == 0   ? draw(n, 1, from(1, 9000))
                      : kind == 1 ? normal(n, from(64, 8192))
                      : kind == 2 ? Lengths(static_cast<std::size_t>(n), from(1, 9000))
                                  : draw(n, 0, from(1, 4096));
    if (kind == 3) lengths[static_cast<std::size_t>(from(0, n - 1))] = from(1, 1 << 20);
    if (kind == 4) {
      for (auto& x : lengths) x = from(0, 2) == 0 ? x : -from(0, 5);
    }
    const int heads = 16 << from(0, 3), sms = from(2, 132);
    SCOPED_TRACE("case " + std::to_string(i) + ", " + std::to_string(n) + " requests, " +
                 std::to_string(heads) + " heads, " + std::to_string(sms) + " SMs");
    const LatentCut cut = cut_of(lengths, heads, from(0, 1) * 131072, std::max(sms, heads / 32));
    Shared s(lengths, cut);
    s.check();
    if (HasFailure()) return;
  }
}

TEST_F(ShareWork, NoKeys) {
  Shared({0}, cut_of({1}, 16)).check();
  Shared(Lengths(1024, 0), cut_of(Lengths(1024, 1), 128)).check();
  Shared({0, -3, 5}, cut_of({1, 1, 5}, 128)).check();
}

// Lengths beyond the host's bound are cut to it.
TEST_F(ShareWork, LengthsBeyondTheBound) {
  Shared s({5000, 100}, cut_of({256, 100}, 64));
  EXPECT_EQ(s.parts[0].back().first + s.parts[0].back().count, 256);
}

// Equal lengths are split as the host would split them, whatever the bound.
TEST_F(ShareWork, EqualLengthsAsByTheBound) {
  for (const int heads : {16, 64, 128}) {
    for (const int n : {1, 3, 8, 16, 32, 64, 66, 128, 132}) {
      for (const int keys : {300, 2048, 8192}) {
        SCOPED_TRACE("heads " + std::to_string(heads) + ", " + std::to_string(n) + " of " +
                     std::to_string(keys));
        const Lengths lengths(static_cast<std::size_t>(n), keys);
        const Shared exact(lengths, cut_of(lengths, heads)),
            loose(lengths, cut_of(lengths, heads, 16 * keys));
        exact.check();
        EXPECT_EQ(exact.parts, loose.parts);
        const std::int64_t whole =
            (n + exact.cut.all.work.workers - 1) / exact.cut.all.work.workers;
        EXPECT_LE(exact.most, whole * (exact.steps_of(keys) * kLatentStepCost +
                                       exact.cut.costs.item + exact.cut.costs.split));
        if (n == 8 || n == 64) {
          EXPECT_EQ(std::ssize(exact.parts[0]), exact.cut.all.work_tile_items);
        }
      }
    }
  }
}

// The most loaded worker is close to the mean where there is much work.
TEST_F(ShareWork, Balances) {
  for (int i = 0; i < 40; ++i) {
    const int n = from(20, 300);
    const Lengths lengths = i % 2 == 0 ? normal(n, 4096) : draw(n, 1, 9000);
    for (const int heads : {16, 64, 128}) {
      const Shared s(lengths, cut_of(lengths, heads));
      EXPECT_LT(static_cast<double>(s.most), 1.25 * s.mean() + 64)
          << "case " << i << ", " << n << " requests, " << heads << " heads";
    }
  }
  Lengths one_long = draw(36, 1, 4096);
  one_long.push_back(65536);
  const Shared s(one_long, cut_of(one_long, 128));
  EXPECT_LT(static_cast<double>(s.most), 1.25 * s.mean() + 64);
}

TEST_F(ShareWork, SameLengthsSameList) {
  const Lengths lengths = normal(128, 4096);
  const LatentCut cut = cut_of(lengths, 128);
  EXPECT_EQ(Shared(lengths, cut).parts, Shared(lengths, cut).parts);
}

// Splits follow a request's own keys alone, whatever its neighbours, their number and the bound.
TEST_F(ShareWork, BatchInvariant) {
  std::map<std::int32_t, std::vector<std::int32_t>> cuts;  // by length: ends of splits
  for (int i = 0; i < 60; ++i) {
    const int n = i % 5 == 4 ? from(1025, 3000) : from(1, 300);
    Lengths lengths = i % 3 == 0 ? normal(n, 4096) : draw(n, -1, from(1, 20) * 2048);
    if (i % 4 == 0) lengths[static_cast<std::size_t>(from(0, n - 1))] = from(1, 1 << 18);
    const int heads = 16 << from(0, 3);
    SCOPED_TRACE("case " + std::to_string(i) + ", " + std::to_string(n) + " requests, " +
                 std::to_string(heads) + " heads");
    const Shared s(lengths, cut_of(lengths, heads, from(0, 1) * 131072, from(2, 132), false,
                                   kLatentFixedKeys));
    s.check();
    for (std::size_t r = 0; r < lengths.size(); ++r) {
      std::vector<std::int32_t> ends;
      for (const Part& part : s.parts[r]) ends.push_back(part.first + part.count);
      EXPECT_LE(ends.size(), std::size_t{kLatentFixedPieces});
      EXPECT_EQ(cuts.emplace(lengths[r], ends).first->second, ends);
    }
    if (HasFailure()) return;
  }
}

// Splits of many requests are dealt so that the most loaded worker is close to the mean.
TEST_F(ShareWork, BatchInvariantBalances) {
  for (int i = 0; i < 20; ++i) {
    const Lengths lengths = i % 2 == 0 ? normal(128, 4096) : draw(128, 1, 9000);
    for (const int heads : {16, 64, 128}) {
      const Shared s(lengths, cut_of(lengths, heads, 0, 132, false, kLatentFixedKeys));
      EXPECT_LT(static_cast<double>(s.most), 1.4 * s.mean()) << i << ", " << heads << " heads";
    }
  }
}

}  // namespace
}  // namespace lathe::cuda
