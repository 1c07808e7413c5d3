// Random index caches and batches for the tests of the CPU indexer.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cpu/indexer/indexer.h"
#include "kernels/ref/test/test_util.h"

namespace lathe::indexer_test {

using Rng = std::mt19937;

/// Queries, and keys on shuffled pages of a NaN-poisoned pool (or contiguous). Each row sees a
/// different number of keys.
struct Case {
  std::int32_t heads, dim;
  std::vector<e4m3> q;
  std::vector<float> w;
  std::vector<std::int32_t> lens, request, first;
  ref_test::TestPool pool;
  std::vector<PageId> table;
  std::int64_t width = 0;
  std::vector<e4m3> codes;
  std::vector<float> scales;
  bool paged;

  /// lens_of[r]: how many keys each row of request r sees.
  Case(Rng& rng, std::int32_t heads_, std::int32_t dim_,
       const std::vector<std::vector<int>>& lens_of, std::int32_t page_size, bool paged_ = true)
      : heads(heads_),
        dim(dim_),
        pool(CacheLayout(LayoutKind::index_fp8, {.dim = dim_}), page_size,
             pages_needed(lens_of, page_size) + 3),
        paged(paged_) {
    std::normal_distribution<float> normal;
    std::vector<int> free(static_cast<std::size_t>(pool.view().pages));
    for (std::size_t i = 0; i < free.size(); ++i) free[i] = static_cast<int>(i);
    std::shuffle(free.begin(), free.end(), rng);
    for (const auto& rows : lens_of) {
      for (int len : rows) width = std::max<std::int64_t>(width, (len + page_size - 1) / page_size);
    }
    table.resize(lens_of.size() * static_cast<std::size_t>(width));
    for (std::size_t r = 0; r < lens_of.size(); ++r) {
      int longest = 0;
      for (int len : lens_of[r]) longest = std::max(longest, len);
      const auto first_key = static_cast<std::int32_t>(scales.size());
      for (int j = 0; j < longest; ++j) {
        PageId& page =
            table[r * static_cast<std::size_t>(width) + static_cast<std::size_t>(j / page_size)];
        if (page.is_hole()) {
          page = PageId(free.back());
          free.pop_back();
        }
        const Slot slot = slot_of(page, page_size, j % page_size);
        pool.fill(slot, rng);
        copy_key(slot);
      }
      for (int len : lens_of[r]) {
        lens.push_back(len);
        request.push_back(static_cast<std::int32_t>(r));
        first.push_back(first_key);
        for (std::int32_t i = 0; i < heads; ++i) w.push_back(normal(rng));
        for (std::int32_t i = 0; i < heads * dim; ++i) q.push_back(to_e4m3(4 * normal(rng)));
      }
    }
  }

  static std::int64_t pages_needed(const std::vector<std::vector<int>>& lens_of, int page_size) {
    std::int64_t n = 0;
    for (const auto& rows : lens_of) {
      int longest = 0;
      for (int len : rows) longest = std::max(longest, len);
      n += (longest + page_size - 1) / page_size;
    }
    return n;
  }
  void copy_key(Slot slot) {
    const ConstPoolView v = pool.view();
    const auto at = codes.size();
    codes.resize(at + static_cast<std::size_t>(dim));
    std::memcpy(codes.data() + at, v.at(*v.layout.find(PartRole::key), slot),
                static_cast<std::size_t>(dim));
    scales.emplace_back();
    std::memcpy(&scales.back(), v.at(*v.layout.find(PartRole::scale), slot), 4);
  }
  std::byte* key_bytes(std::int64_t row, std::int64_t j) {
    const ConstPoolView v = pool.view();
    const Slot slot =
        slot_of(table[static_cast<std::size_t>(request[static_cast<std::size_t>(row)] * width +
                                               j / v.page_size)],
                v.page_size, static_cast<std::int32_t>(j % v.page_size));
    return const_cast<std::byte*>(v.at(*v.layout.find(PartRole::key), slot));
  }

  std::int64_t rows() const { return std::ssize(lens); }
  std::int64_t longest() const {
    return lens.empty() ? 0 : *std::max_element(lens.begin(), lens.end());
  }
  IndexQuery query() const { return {heads, dim, q, w}; }
  IndexKeys keys() const {
    if (!paged) return {std::nullopt, {}, codes, scales};
    return {pool.view(),
            {table.data(), std::ssize(table) / std::max<std::int64_t>(1, width), width},
            {},
            {}};
  }
  IndexRows index_rows() const {
    if (!paged) return {lens, {}, first};
    return {lens, request, {}};
  }
};

inline ref_test::Matrix<float> logits_of(const Case& c, IndexTiling tiling = {},
                                         const Execution& execution = {}, std::int64_t extra = 0) {
  ref_test::Matrix<float> out(c.rows(), c.longest() + extra,
                              std::numeric_limits<float>::quiet_NaN());
  const auto done =
      index_logits({c.query(), c.keys(), c.index_rows(), out.mutable_view(), tiling, execution});
  EXPECT_TRUE(done.ok()) << (done ? "" : done.error().message());
  return out;
}

struct Selected {
  std::vector<std::int32_t> out, lengths;
  bool operator==(const Selected&) const = default;
};
inline Selected top_k_of(const Case& c, std::int64_t k, IndexTiling tiling = {},
                         const Execution& execution = {}, const IndexTarget& target = {}) {
  Selected s{std::vector<std::int32_t>(static_cast<std::size_t>(c.rows() * k), -77),
             std::vector<std::int32_t>(c.lens.size(), -77)};
  const auto done = index_top_k(
      {c.query(), c.keys(), c.index_rows(), target, k, s.out, s.lengths, tiling, execution});
  EXPECT_TRUE(done.ok()) << (done ? "" : done.error().message());
  return s;
}

}  // namespace lathe::indexer_test
