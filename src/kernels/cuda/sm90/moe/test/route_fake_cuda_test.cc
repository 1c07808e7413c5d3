// Routes rows with emulated kernels, and dispatches them in one launch. Experts and weights are the
// oracle's; both ways of routing give equal bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cuda/sm90/matmul/quantize.h"
#include "kernels/cuda/sm90/moe/moe.h"
#include "kernels/ref/moe.h"

namespace lathe::cuda {
namespace {

struct Case {
  std::int32_t rows, experts, top_k, groups, top_groups, group_best;
  RouterScoring scoring;
};

class Route : public ::testing::Test {
 protected:
  static constexpr unsigned kSeed = 61;
  std::mt19937 rng{kSeed};
  std::normal_distribution<float> normal;
  std::vector<float> logits, bias, scale, weights;
  std::vector<std::int32_t> ids;

  void make(const Case& c) {
    logits.resize(static_cast<std::size_t>(c.rows * c.experts));
    bias.resize(static_cast<std::size_t>(c.experts));
    scale.resize(bias.size());
    // Values that repeat, so that ties are decided by the number.
    for (float& v : logits) v = std::round(4 * normal(rng)) / 4;
    for (float& v : bias) v = std::round(4 * normal(rng)) / 16;
    for (float& v : scale) v = 1 + std::fabs(normal(rng));
    const auto choices = static_cast<std::size_t>(c.rows * c.top_k);
    ids.assign(choices, -1);
    weights.assign(choices, -1);
  }
  RouteParams params(const Case& c) {
    return {.logits = logits.data(),
            .bias = bias.data(),
            .expert_scale = scale.data(),
            .ids = ids.data(),
            .weights = weights.data(),
            .rows = c.rows,
            .logits_stride = c.experts,
            .experts = c.experts,
            .top_k = c.top_k,
            .groups = c.groups,
            .top_groups = c.top_groups,
            .scoring = c.scoring,
            .scale = 2.5f,
            .group_by_best = c.group_best == 1};
  }
  Router router(const Case& c) const {
    return {.scoring = c.scoring,
            .experts = c.experts,
            .top_k = c.top_k,
            .groups = c.groups,
            .top_groups = c.top_groups,
            .group_best = c.group_best,
            .bias = bias,
            .scale = 2.5f,
            .expert_scale = scale};
  }
  void expect_as_the_oracle(const Case& c) {
    const RowsView rows{reinterpret_cast<const std::byte*>(logits.data()), DType::f32, c.rows,
                        c.experts, c.experts};
    std::vector<std::int32_t> wanted(ids.size());
    std::vector<float> shares(ids.size());
    ref_route(router(c), rows, wanted, shares);
    for (std::size_t row = 0; row < static_cast<std::size_t>(c.rows); ++row) {
      const auto k = static_cast<std::size_t>(c.top_k);
      // By number, as the kernels order them.
      std::vector<std::size_t> order(k);
      std::iota(order.begin(), order.end(), row * k);
      std::ranges::sort(order, {}, [&](std::size_t i) { return wanted[i]; });
      for (std::size_t j = 0; j < k; ++j) {
        ASSERT_EQ(ids[row * k + j], wanted[order[j]]) << "row " << row << ", choice " << j;
        ASSERT_NEAR(weights[row * k + j], shares[order[j]], 1e-5f * shares[order[j]]);
      }
    }
  }
};

// The dispatch's codes of its rows are those of a launch that quantizes; NaN and Inf among them.
void expect_codes(DispatchParams p, std::int32_t rows, std::vector<std::int32_t> routed,
                  const std::vector<std::int32_t>& places) {
  const std::int64_t choices = p.place.choices, own = choices + 3, all = own + rows;
  const std::int64_t cols = 8 * p.words, blocks = (cols + 127) / 128;
  struct Codes {
    std::vector<std::uint8_t> codes;
    std::vector<float> scales;
  };
  for (const bool in_order : {false, true}) {
    const auto make = [&] {
      return Codes{std::vector<std::uint8_t>(static_cast<std::size_t>(all * cols), 0x55),
                   std::vector<float>(static_cast<std::size_t>(blocks * all), -1)};
    };
    Codes joined = make(), apart = make();
    DispatchParams q = p;
    if (q.route.logits == nullptr) q.place.ids = routed.data();
    q.words = 0;
    q.codes = {.codes = joined.codes.data(),
               .scales = joined.scales.data(),
               .cols = cols,
               .scale_stride = all,
               .own = in_order ? own : -1,
               .power_of_two = in_order};
    ASSERT_EQ(launch_dispatch(q, nullptr), cudaSuccess);
    const RowsView x{p.x, DType::bf16, rows, cols, p.x_bytes / 2};
    const QuantizedRows out{.codes = apart.codes.data(),
                            .scales = apart.scales.data(),
                            .scale_stride = all,
                            .places = places.data(),
                            .copies = p.place.top_k,
                            .own = in_order ? own : -1};
    ASSERT_TRUE(quantize_rows_on_device(x, out, in_order, nullptr));
    ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    ASSERT_EQ(joined.codes, apart.codes);
    ASSERT_EQ(0, std::memcmp(joined.scales.data(), apart.scales.data(), 4 * joined.scales.size()));
  }
}

constexpr Case kCases[] = {
    {3, 8, 2, 1, 1, 2, RouterScoring::softmax},
    {5, 60, 4, 1, 1, 2, RouterScoring::softmax},
    {8, 128, 8, 1, 1, 2, RouterScoring::softmax},
    {4, 256, 8, 8, 4, 2, RouterScoring::sigmoid},
    {2, 256, 6, 1, 1, 2, RouterScoring::sqrt_softplus},
    {3, 160, 6, 8, 3, 1, RouterScoring::softmax},
    {2, 96, 5, 12, 5, 2, RouterScoring::sigmoid},
    {2, 12, 3, 12, 7, 2, RouterScoring::sigmoid},
    {2, 384, 8, 1, 1, 2, RouterScoring::sigmoid},
    {2, 512, 10, 1, 1, 2, RouterScoring::softmax},
    {1, 1000, 9, 40, 7, 2, RouterScoring::sigmoid},
};

TEST_F(Route, ChoosesAsTheOracle) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(std::to_string(c.experts) + " experts, seed " + std::to_string(kSeed));
    make(c);
    ASSERT_EQ(launch_route(params(c), nullptr), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    expect_as_the_oracle(c);
  }
}

// NaN ranks with -inf, ties go to the lower number, and -0 equals 0.
TEST_F(Route, RanksValuesThatAreNotFinite) {
  const Case c{1, 40, 6, 1, 1, 2, RouterScoring::sigmoid};
  make(c);
  std::ranges::fill(logits, -std::numeric_limits<float>::infinity());
  std::ranges::fill(bias, -1);
  bias[7] = std::numeric_limits<float>::quiet_NaN();
  bias[3] = -std::numeric_limits<float>::infinity();
  bias[30] = 0;
  bias[20] = -0.f;
  bias[35] = std::numeric_limits<float>::infinity();
  ASSERT_EQ(launch_route(params(c), nullptr), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  EXPECT_EQ(ids, (std::vector<std::int32_t>{0, 1, 2, 20, 30, 35}));
}

// Rows of x in the order of places, whether the launch routes or is given the choices.
TEST_F(Route, DispatchesInOneLaunch) {
  for (Case c : kCases) {
    for (const std::int32_t rows : {c.rows, 70}) {
      c.rows = rows;
      const std::int64_t choices = std::int64_t{rows} * c.top_k;
      if (!dispatch_takes(choices, c.experts)) continue;
      SCOPED_TRACE(std::to_string(c.experts) + " experts, " + std::to_string(rows) +
                   " rows, seed " + std::to_string(kSeed));
      make(c);
      ASSERT_EQ(launch_route(params(c), nullptr), cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
      const std::vector<std::int32_t> routed = ids;
      const std::vector<float> shares = weights;

      constexpr std::int64_t kWords = 37;  // of 16 bytes
      std::vector<std::uint32_t> x(static_cast<std::size_t>(rows * (kWords + 1) * 4));
      for (auto& v : x) v = static_cast<std::uint32_t>(rng());
      std::vector<std::uint32_t> sorted(static_cast<std::size_t>(choices * kWords * 4));
      const auto n = static_cast<std::size_t>(choices);
      std::vector<std::int32_t> offsets(static_cast<std::size_t>(c.experts) + 1, -1), places(n, -1),
          row_of(n, -1);
      DispatchParams p{.route = params(c),
                       .place = {.ids = routed.data(),
                                 .choices = choices,
                                 .experts = c.experts,
                                 .top_k = c.top_k,
                                 .offsets = offsets.data(),
                                 .places = places.data(),
                                 .rows = row_of.data()},
                       .x = reinterpret_cast<const std::byte*>(x.data()),
                       .sorted = reinterpret_cast<std::byte*>(sorted.data()),
                       .x_bytes = (kWords + 1) * 16,
                       .sorted_bytes = kWords * 16,
                       .words = kWords};
      std::ranges::fill(weights, -1);
      if (rows > kDispatchRoutes) {
        p.route.logits = nullptr;
      } else {
        p.place.ids = nullptr;
      }
      ASSERT_EQ(launch_dispatch(p, nullptr), cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
      if (rows <= kDispatchRoutes) {
        ASSERT_EQ(weights, shares);
      }
      std::vector<std::int32_t> order(n);
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, {},
                               [&](std::int32_t i) { return routed[static_cast<std::size_t>(i)]; });
      for (std::size_t place = 0; place < n; ++place) {
        const auto choice = static_cast<std::size_t>(order[place]);
        const auto row = choice / static_cast<std::size_t>(c.top_k);
        ASSERT_EQ(places[choice], static_cast<std::int32_t>(place));
        ASSERT_EQ(row_of[place], static_cast<std::int32_t>(row));
        ASSERT_TRUE(
            std::equal(sorted.begin() + static_cast<std::ptrdiff_t>(place * kWords * 4),
                       sorted.begin() + static_cast<std::ptrdiff_t>((place + 1) * kWords * 4),
                       x.begin() + static_cast<std::ptrdiff_t>(row * (kWords + 1) * 4)));
      }
      for (std::int32_t e = 0; e <= c.experts; ++e) {
        ASSERT_EQ(offsets[static_cast<std::size_t>(e)],
                  std::ranges::count_if(routed, [&](std::int32_t id) { return id < e; }));
      }
      expect_codes(p, rows, routed, places);
    }
  }
}

}  // namespace
}  // namespace lathe::cuda
