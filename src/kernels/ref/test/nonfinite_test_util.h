// Shared by tests of keys that are not finite: a row that may not see such a key must keep its
// bits, and a row that sees it must become NaN.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "kernels/ref/test/test_util.h"

namespace lathe::ref_test {

/// What a key's bytes become. infinite: in bf16 parts, where the layout has any. one: a single NaN
/// in the value of each head. values: NaN in a grouped-query value alone.
enum class Wild { ones, nan, infinite, one, scales, values };

struct WildKey {
  std::size_t request;
  std::int32_t position;
};

inline void fill_elements(std::byte* to, DType dtype, int count, Wild wild) {
  for (int i = 0; i < count; ++i) {
    if (dtype == DType::bf16) {
      const std::uint16_t v = wild == Wild::infinite ? 0x7f80 : 0xffc0;
      std::memcpy(to + 2 * i, &v, 2);
    } else if (dtype == DType::e4m3) {
      to[i] = i % 2 == 0 ? std::byte{0x7f} : std::byte{0xff};
    } else if (dtype == DType::f32) {
      const float v = NAN;
      std::memcpy(to + 4 * i, &v, 4);
    }
  }
}

/// Makes the values of a key's token not finite. Returns whether the layout can hold such values.
inline bool make_wild(const ConstPoolView& pool, PageId page, std::int32_t index, Wild wild) {
  auto* base = const_cast<std::byte*>(pool.data) + page.value * pool.page_stride;
  bool any = false;
  for (int i = 0; i < pool.layout.part_count(); ++i) {
    const Part& part = pool.layout.part(i);
    std::byte* to = base + pool.layout.offset_of(part, pool.page_size, index);
    const bool value = part.role == PartRole::nope || part.role == PartRole::value;
    const bool key = part.role == PartRole::rope || part.role == PartRole::key;
    if (wild == Wild::ones) {
      std::memset(to, 0xff, static_cast<std::size_t>(part.bytes()));
    } else if (wild == Wild::scales && part.role == PartRole::scale) {
      fill_elements(to, part.dtype, part.elems, wild);
    } else if (wild == Wild::values && part.role == PartRole::value) {
      fill_elements(to, part.dtype, part.elems, wild);
    } else if (wild == Wild::nan && (value || key)) {
      fill_elements(to, part.dtype, part.elems, wild);
    } else if (wild == Wild::infinite && value && part.dtype == DType::bf16) {
      fill_elements(to, part.dtype, part.elems, wild);
    } else if (wild == Wild::one && value) {
      const int heads = std::max(pool.layout.dims().kv_heads, 1), each = part.elems / heads;
      for (int at = each * 3 / 4 + 1; at < part.elems; at += each) {
        fill_elements(to + bytes_of(part.dtype, at), part.dtype, 1, wild);
      }
    } else {
      continue;
    }
    any = true;
  }
  return any;
}
template <class Scene>
bool make_wild(Scene& s, const WildKey& key, Wild wild) {
  const ConstPoolView pool = s.pool.view();
  const auto page = s.batch.entry(key.request, key.position / pool.page_size);
  return make_wild(pool, page, key.position % pool.page_size, wild);
}

/// Whether row `row` of request r sees a key.
inline bool sees(const AttendArgs& args, std::size_t r, std::int32_t row, std::int32_t position) {
  const std::int32_t rows = args.q_indptr[r + 1] - args.q_indptr[r];
  const std::int32_t own = args.kv_lens[r] - rows + row;
  return position <= own && position >= args.problem.first_key(own);
}

/// Rows that see no wild key have the bits of `clean`, the same call without them. Rows that see
/// one have NaN as outputs (whole: in all dimensions, else in one at least; infinite values may
/// also give an infinite output) and, with `lse`, as LSE.
inline void expect_wild_seen_alone(const AttendArgs& args, std::span<const WildKey> keys,
                                   const Outputs& got, const Outputs& clean, bool whole, bool lse,
                                   bool nan = true) {
  const std::int64_t heads = args.problem.heads, width = clean.out.cols / heads;
  int shown = 0, unseen = 0;
  for (std::size_t r = 0; r + 1 < args.q_indptr.size(); ++r) {
    const std::int32_t first = args.q_indptr[r], rows = args.q_indptr[r + 1] - first;
    for (std::int32_t row = 0; row < rows; ++row) {
      const bool wild = std::ranges::any_of(keys, [&](const WildKey& key) {
        return key.request == r && sees(args, r, row, key.position);
      });
      unseen += wild ? 0 : 1;
      for (std::int64_t h = 0; h < heads && shown < 5; ++h) {
        const auto at = static_cast<std::size_t>((first + row) * clean.out.cols + h * width);
        std::int64_t nans = 0, same = 0;
        for (std::size_t i = at; i < at + static_cast<std::size_t>(width); ++i) {
          nans += nan ? std::isnan(got.out.data[i]) : !std::isfinite(got.out.data[i]);
          same += got.out.data[i] == clean.out.data[i];
        }
        const auto lse_at = static_cast<std::size_t>((first + row) * heads + h);
        const double x = got.lse.data[lse_at], y = clean.lse.data[lse_at];
        const bool right = wild ? (whole ? nans == width : nans > 0) && (!lse || std::isnan(x))
                                : same == width && x == y;
        if (right) continue;
        ADD_FAILURE() << "request " << r << " row " << row << " head " << h
                      << (wild ? " sees" : " does not see") << " it: " << nans << " NaN, " << same
                      << " of " << width << " as without it; lse " << x << " against " << y;
        ++shown;
      }
    }
  }
  EXPECT_GT(unseen, 0);
}

/// Positions about the edges of what rows of request r see: the last key, the ones that some rows
/// see, and with a window the ones that some rows have left, or the last row's chunk.
inline std::vector<WildKey> edge_keys(const AttendArgs& args, std::size_t r) {
  const std::int32_t rows = args.q_indptr[r + 1] - args.q_indptr[r], keys = args.kv_lens[r];
  std::vector<WildKey> out = {{r, keys - 1}};
  if (rows > 2) out.push_back({r, keys - rows / 2});
  if (args.problem.chunked) {
    const auto first = static_cast<std::int32_t>(args.problem.first_key(keys - 1));
    out.push_back({r, first});
    if (first > 0) out.push_back({r, first - 1});
  } else if (args.problem.window > 0) {
    const std::int32_t left = keys - args.problem.window - 1;  // the last row has just left it
    if (left >= 0) out.push_back({r, left});
    if (left >= rows) out.push_back({r, left - rows + 1});
  }
  return out;
}

}  // namespace lathe::ref_test
