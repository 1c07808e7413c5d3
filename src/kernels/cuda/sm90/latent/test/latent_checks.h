// Shared by tests of latent attention: layouts, a rounded q, and the bounds of FlashMLA's tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "kernels/cpu/latent/test/latent_test_util.h"
#include "kernels/cuda/sm90/latent/latent.h"

namespace lathe::cuda {

using ref_test::Matrix;
using ref_test::Outputs;

inline CacheLayout layout_of(LayoutKind kind) {
  return CacheLayout(kind, kind == LayoutKind::v4_fp8 ? LayoutDims{.nope = 448, .rope = 64}
                                                      : LayoutDims{.nope = 512, .rope = 64});
}

/// The shape of a call whose lists and lengths are on the host; without pools that may be staged.
inline LatentShape shape_of_call(const AttendArgs& args, std::int32_t min_block_m = 16) {
  LatentShape shape{.rows = args.q.rows,
                    .requests = std::ssize(args.kv_lens),
                    .heads = args.problem.heads,
                    .dense = args.main.index_width == 0,
                    .fp8 = args.q.dtype == DType::e4m3,
                    .fp8_pages = has_fp8_pages(args.main),
                    .min_block_m = min_block_m};
  for (std::size_t r = 0; r < args.kv_lens.size(); ++r) {
    shape.request_rows =
        std::max<std::int64_t>(shape.request_rows, args.q_indptr[r + 1] - args.q_indptr[r]);
    if (shape.dense) shape.keys = std::max<std::int64_t>(shape.keys, args.kv_lens[r]);
  }
  if (!shape.dense) {
    shape.keys = (args.main.index_width + 63) / 64 * 64;
    if (args.problem.two_sources()) shape.keys += args.extra.index_width;
  }
  return shape;
}

/// Changes the cut so that a call's last `rows` rows are split into items of `keys` keys, and the
/// others are whole.
inline void cut_last(LatentCut& cut, std::int64_t rows, std::int64_t keys = 128) {
  const std::int64_t work_tiles = cut.work_tiles();
  const auto share = [&](std::int64_t of, std::int64_t split) {
    LatentShares s{
        .work_tiles = of, .work = cut.all.work, .work_tile_items = (cut.keys + split - 1) / split};
    s.work.fixed_split = static_cast<std::int32_t>(split);
    s.items = max_work_items(of, cut.keys, s.work);
    return s;
  };
  cut.all = share(work_tiles - rows, (cut.keys + 127) / 128 * 128);
  cut.tail = share(rows, keys);
}

/// A V4 call with two pools: a window over large pages, and a list over pages of `page` tokens.
struct TwoPools {
  TwoPools(int page, int heads, const latent_test::Requests& requests, int window, int width)
      : scene(layout_of(LayoutKind::v4_fp8), 256, heads, requests),
        other(layout_of(LayoutKind::v4_fp8), page, heads, requests, 7) {
    window_list = scene.batch.causal_list(256, window, window);
    list = other.random_list(width);
    scene.by_two_sources(window_list, window, list);
    scene.args.extra.pool.emplace(other.pool.view());
  }
  latent_test::Scene scene, other;
  latent_test::Ints window_list, list;
};

/// q rounded to bf16, as the kernels read it.
inline Matrix<bf16> rounded(const Matrix<float>& q) {
  Matrix<bf16> out(q.rows, q.cols);
  for (std::size_t i = 0; i < q.data.size(); ++i) out.data[i] = to_bf16(q.data[i]);
  return out;
}

/// Lists of positions, some without a key, and the slots that they mean.
struct PositionLists {
  latent_test::Ints positions, slots;  // [rows, width]
};
inline PositionLists position_lists(latent_test::Scene& s, int width) {
  PositionLists lists;
  for (std::size_t r = 0; r < s.batch.kv_lens.size(); ++r) {
    const std::int32_t keys = s.batch.kv_lens[r];
    for (std::int32_t row = s.batch.q_indptr[r]; row < s.batch.q_indptr[r + 1]; ++row) {
      for (int j = 0; j < width; ++j) {
        const auto pos = static_cast<std::int32_t>(s.rng() % static_cast<unsigned>(keys + 40)) - 20;
        const bool key = pos >= 0 && pos < keys;
        lists.positions.push_back(pos);
        lists.slots.push_back(
            key ? slot_of(s.batch.entry(r, pos / s.page()), s.page(), pos % s.page()).value : -1);
      }
    }
  }
  return lists;
}

/// Lists of at least 320 slots for a scene of at least three rows. Missing entries: runs of half a
/// tile, a tile, and less, in row 0; all of row 1 if empty_row, else its ends; all but one key of
/// row 2.
inline latent_test::Ints lists_with_missing_runs(latent_test::Scene& s, int width, bool empty_row) {
  latent_test::Ints list = s.random_list(width);
  const auto miss = [&](int row, int first, int end) {
    std::fill(list.begin() + row * width + first, list.begin() + row * width + end, -1);
  };
  miss(0, 32, 64);
  miss(0, 128, 192);
  miss(0, 257, 320);
  miss(1, 0, empty_row ? width : 96);
  miss(1, 200, width);
  miss(2, 1, width);
  list[static_cast<std::size_t>(2 * width)] = slot_of(s.batch.entry(2, 0), s.page(), 5).value;
  return list;
}

/// Requests of very different lengths, some without keys and one of `longest`, with 1 to 3 rows
/// each.
inline latent_test::Requests unequal_requests(unsigned seed, int count, int most, int longest) {
  std::mt19937 rng(seed);
  const auto from = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(rng);
  };
  latent_test::Requests out;
  for (int i = 0; i < count; ++i) {
    const int keys = from(0, 5) == 0 ? 0 : from(1, from(1, most));
    out.emplace_back(keys, from(1, std::clamp(keys, 1, 3)));
  }
  out[static_cast<std::size_t>(from(0, count - 1))].first = longest;
  return out;
}

/// Reduces `args`, with requests in order, to `count` requests beginning with `first`. indptr:
/// storage for the new one.
inline void keep_requests(AttendArgs& args, std::size_t first, std::size_t count,
                          latent_test::Ints& indptr) {
  const std::int32_t row = args.q_indptr[first], end = args.q_indptr[first + count];
  indptr.clear();
  for (std::size_t r = first; r <= first + count; ++r) indptr.push_back(args.q_indptr[r] - row);
  args.q.data += row * args.q.row_stride * bytes_of(args.q.dtype, 1);
  args.q.rows = end - row;
  args.q_indptr = indptr;
  args.kv_lens = args.kv_lens.subspan(first, count);
  const auto of = [](std::int64_t rows, std::int64_t width) {
    return static_cast<std::size_t>(rows * width);
  };
  if (args.main.table_width > 0) {
    const auto width = args.main.table_width;
    args.main.page_table = args.main.page_table.subspan(first * static_cast<std::size_t>(width),
                                                        count * static_cast<std::size_t>(width));
  }
  if (args.main.index_width > 0) {
    const auto width = args.main.index_width;
    args.main.indices = args.main.indices.subspan(of(row, width), of(end - row, width));
  }
}

/// Compares as FlashMLA's tests do: absolute or relative error, equal non-finite places, and the
/// angle.
inline void expect_within(const Outputs& got, const Outputs& want, double absolute, double relative,
                          double angle) {
  double dot = 0, a = 0, b = 0;
  int shown = 0;
  for (std::size_t i = 0; i < want.out.data.size() && shown < 5; ++i) {
    const double x = got.out.data[i], y = want.out.data[i];
    dot += x * y;
    a += x * x;
    b += y * y;
    if (std::abs(x - y) <= absolute || std::abs(x - y) <= relative * std::abs(y)) continue;
    ADD_FAILURE() << "out " << i << ": " << x << " against " << y;
    ++shown;
  }
  if (a + b > 0) {
    EXPECT_LE(1 - 2 * dot / (a + b), angle);
  }
  for (std::size_t i = 0; i < want.lse.data.size() && shown < 10; ++i) {
    const double x = got.lse.data[i], y = want.lse.data[i];
    if (x == y) continue;
    if (std::isfinite(y) && std::abs(x - y) <= std::max(1e-6, 8.01 / 65536 * std::abs(y))) continue;
    ADD_FAILURE() << "lse " << i << ": " << x << " against " << y;
    ++shown;
  }
}

/// FlashMLA's bounds for sparse decode. Its absolute bound is for values of 0.1; a scene's are
/// about 1.
inline void expect_oracle(const Outputs& got, const Outputs& want) {
  expect_within(got, want, 10 * 1e-3, 2.01 / 128, 5e-6);
}

/// Checks each LSE convention: attend(convention) must give the same outputs, and LSEs that match
/// the oracle's natural logs `want` within these bounds (of a natural log). The rows must include
/// some with and some without keys.
template <class Attend>
void expect_each_convention(const Matrix<double>& want, double absolute, double relative,
                            const Attend& attend) {
  using ref_test::kInf;
  const auto empty = std::ranges::count(want.data, -kInf);
  EXPECT_GT(empty, 0);
  EXPECT_LT(empty, std::ssize(want.data));
  const Outputs natural = attend(LseConvention{});
  for (const LseConvention c :
       {LseConvention{}, LseConvention{.base_2 = true}, LseConvention{.empty_plus_inf = true},
        LseConvention{.base_2 = true, .empty_plus_inf = true}}) {
    SCOPED_TRACE(std::string(c.base_2 ? "base 2" : "natural") +
                 (c.empty_plus_inf ? ", +inf" : ", -inf"));
    const Outputs got = c.base_2 || c.empty_plus_inf ? attend(c) : natural;
    EXPECT_TRUE(got.out.data == natural.out.data);
    int shown = 0;
    for (std::size_t i = 0; i < want.data.size() && shown < 5; ++i) {
      const double unit = c.base_2 ? std::log(2.0) : 1, x = got.lse.data[i];
      const double y =
          std::isinf(want.data[i]) ? (c.empty_plus_inf ? kInf : -kInf) : want.data[i] / unit;
      // Kernels compute the LSE in base 2 and multiply it in f32.
      const bool product = !c.base_2 || std::isinf(y) ||
                           natural.lse.data[i] == static_cast<float>(x) * 0.6931471805599453f;
      const double bound = std::max(absolute / unit, relative * std::abs(y));
      if (product && (x == y || (std::isfinite(y) && std::abs(x - y) <= bound))) continue;
      ADD_FAILURE() << "lse " << i << ": " << x << " against " << y << ", a natural "
                    << natural.lse.data[i];
      ++shown;
    }
  }
}

}  // namespace lathe::cuda
