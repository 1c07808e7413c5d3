// Places choices with emulated kernels and compares with a stable sort.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cuda/sm90/moe/moe.h"

namespace lathe::cuda {
namespace {

// Few choices fit in one block; with many, the last warps of some blocks have none.
TEST(Place, IsAStableSortByExpert) {
  const unsigned seed = 20;
  std::mt19937 rng(seed);
  for (const auto& [rows, top_k, experts] : {std::tuple{1, 1, 1},
                                             {5, 3, 7},
                                             {256, 8, 128},
                                             {257, 8, 128},
                                             {2049, 1, 1000},
                                             {1111, 6, 64},
                                             {3000, 4, 32}}) {
    SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(top_k) + ", " +
                 std::to_string(experts) + " experts, seed " + std::to_string(seed));
    const auto choices = static_cast<std::size_t>(rows * top_k);
    std::vector<std::int32_t> ids(choices), offsets(static_cast<std::size_t>(experts) + 1, -1),
        places(choices, -1), row_of(choices, -1);
    // Half of them go to one expert.
    for (auto& id : ids) {
      id = rng() % 2 == 0 ? experts / 2
                          : static_cast<std::int32_t>(rng() % static_cast<unsigned>(experts));
    }
    std::vector<std::int32_t> counts(static_cast<std::size_t>(place_blocks(rows * top_k) * experts),
                                     -1);
    ASSERT_EQ(launch_place({.ids = ids.data(),
                            .choices = rows * top_k,
                            .experts = experts,
                            .top_k = top_k,
                            .block_counts = counts.data(),
                            .offsets = offsets.data(),
                            .places = places.data(),
                            .rows = row_of.data()},
                           nullptr),
              cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    std::vector<std::int32_t> sorted(choices);
    std::iota(sorted.begin(), sorted.end(), 0);
    std::stable_sort(sorted.begin(), sorted.end(), [&](std::int32_t a, std::int32_t b) {
      return ids[static_cast<std::size_t>(a)] < ids[static_cast<std::size_t>(b)];
    });
    for (std::size_t place = 0; place < choices; ++place) {
      const auto choice = static_cast<std::size_t>(sorted[place]);
      ASSERT_EQ(places[choice], static_cast<std::int32_t>(place));
      ASSERT_EQ(row_of[place], sorted[place] / top_k);
    }
    for (std::int32_t e = 0; e <= experts; ++e) {
      ASSERT_EQ(offsets[static_cast<std::size_t>(e)],
                std::count_if(ids.begin(), ids.end(), [&](std::int32_t id) { return id < e; }));
    }
  }
}

}  // namespace
}  // namespace lathe::cuda
