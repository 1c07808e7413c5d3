// Pools, rows and difficult inputs for codec tests.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/float_formats.h"
#include "layout/simd_targets.h"

#include "hwy/highway.h"
#include "layout/codec/codec.h"

namespace lathe {

inline constexpr std::byte kPoison{0xa5};

/// A pool filled with poison bytes.
struct OwnedPool {
  std::vector<std::byte> bytes;
  PoolView view;

  OwnedPool(const CacheLayout& layout, std::int32_t page_size, std::int64_t pages,
            std::int64_t extra_stride = 0)
      : bytes(static_cast<std::size_t>(pages * (layout.page_stride(page_size) + extra_stride)),
              kPoison),
        view(bytes.data(), layout, page_size, pages, layout.page_stride(page_size) + extra_stride) {
  }
  OwnedPool(const OwnedPool& o) : bytes(o.bytes), view(o.view) { view.data = bytes.data(); }
  OwnedPool& operator=(const OwnedPool&) = delete;
};

/// Rows of bf16 or f32, with poison between them if the stride is wider.
struct OwnedRows {
  std::vector<std::byte> bytes;
  MutableRowsView view;

  OwnedRows(DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t extra = 0)
      : bytes(static_cast<std::size_t>(bytes_of(dtype, rows * (cols + extra))), kPoison),
        view{bytes.data(), dtype, rows, cols, cols + extra} {}
  OwnedRows(const OwnedRows& o) : bytes(o.bytes), view(o.view) { view.data = bytes.data(); }
  OwnedRows& operator=(const OwnedRows&) = delete;

  RowsView read() const { return {view.data, view.dtype, view.rows, view.cols, view.row_stride}; }
  void set(std::int64_t r, std::int64_t c, float x) {
    std::byte* at = view.row(r) + bytes_of(view.dtype, c);
    if (view.dtype == DType::bf16) {
      const bf16 b = to_bf16(x);
      std::memcpy(at, &b, sizeof b);
    } else {
      std::memcpy(at, &x, sizeof x);
    }
  }
  float get(std::int64_t r, std::int64_t c) const {
    const std::byte* at = view.row(r) + bytes_of(view.dtype, c);
    if (view.dtype == DType::bf16) {
      bf16 b;
      std::memcpy(&b, at, sizeof b);
      return to_f32(b);
    }
    float x;
    std::memcpy(&x, at, sizeof x);
    return x;
  }
};

inline std::vector<Slot> to_slots(const std::vector<int>& v) {
  std::vector<Slot> out;
  for (int s : v) out.emplace_back(s);
  return out;
}

inline std::vector<Slot> slots_from(int first, std::int64_t n) {
  std::vector<Slot> out;
  for (int i = 0; i < n; ++i) out.emplace_back(first + i);
  return out;
}

/// Index of the first byte that differs, or -1. Gives a readable failure.
inline std::int64_t first_difference(const std::vector<std::byte>& a,
                                     const std::vector<std::byte>& b) {
  if (a.size() != b.size()) return static_cast<std::int64_t>(std::min(a.size(), b.size()));
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) return static_cast<std::int64_t>(i);
  }
  return -1;
}

/// Fills rows with tiles of different kinds: random bits, numbers of similar magnitude, rounding
/// ties, zeros, and tiles with infinities and NaNs.
inline void fill_adversarial(OwnedRows& rows, std::mt19937& rng, std::int64_t tile = 16) {
  const auto bits = [&] { return std::bit_cast<float>(static_cast<std::uint32_t>(rng())); };
  std::normal_distribution<float> normal;
  const float inf = std::numeric_limits<float>::infinity();
  const float special[] = {0.0f,
                           -0.0f,
                           inf,
                           -inf,
                           std::nanf(""),
                           -std::nanf(""),
                           448.0f,
                           -448.0f,
                           464.0f,
                           464.1f,
                           465.0f,
                           0x1p-9f,
                           0x1p-10f,
                           0x1.8p-10f,
                           0x1p-149f,
                           0x1.fffffep127f,
                           6.0f,
                           1e-4f,
                           std::bit_cast<float>(0x7f800001u),
                           std::bit_cast<float>(0xffabcdefu)};
  for (std::int64_t r = 0; r < rows.view.rows; ++r) {
    for (std::int64_t c = 0; c < rows.view.cols; c += tile) {
      const unsigned mode = rng() % 8;
      const float scale = std::ldexp(1.0f, static_cast<int>(rng() % 60) - 40);
      for (std::int64_t i = c; i < std::min(c + tile, rows.view.cols); ++i) {
        float x = normal(rng) * scale;
        if (mode == 0) x = bits();
        if (mode == 1) x = 0.0f;
        // Few mantissa bits: ties of e4m3 and e2m1, and subnormals at the tile's scale.
        if (mode == 2) {
          x = std::ldexp(static_cast<float>(rng() % 64), static_cast<int>(rng() % 24) - 20) *
              (rng() % 2 == 0 ? 1.0f : -1.0f);
        }
        if (mode == 3 && rng() % 4 == 0) x = special[rng() % std::size(special)];
        if (mode == 4 && rng() % 8 == 0) x *= 4096.0f;
        rows.set(r, i, x);
      }
    }
  }
}

/// Replaces values that are not finite.
inline void make_finite(OwnedRows& rows) {
  for (std::int64_t r = 0; r < rows.view.rows; ++r) {
    for (std::int64_t c = 0; c < rows.view.cols; ++c) {
      if (!std::isfinite(rows.get(r, c))) rows.set(r, c, 448.0f);
    }
  }
}

/// Layouts of every kind and policy, with various dims.
inline std::vector<CacheLayout> layouts_to_test() {
  std::vector<CacheLayout> out;
  for (const char* text : {"mla_bf16",
                           "mla_bf16(nope=16,rope=0)",
                           "mla_bf16(nope=48,rope=16)",
                           "mla_fp8",
                           "mla_fp8(nope=16,rope=0)",
                           "mla_fp8(nope=80,rope=48)",
                           "mla_fp8(nope=256,rope=64)",
                           "mla_fp8_block",
                           "mla_fp8_block(scale=raw_f32)",
                           "mla_fp8_block(nope=128,rope=0)",
                           "mla_fp8_block(nope=2560,rope=16)",
                           "mla_fp8_block(nope=384,rope=80,scale=raw_f32)",
                           "mla_fp4",
                           "mla_fp4(nope=16,rope=0)",
                           "mla_fp4(nope=48,rope=112)",
                           "v4_fp8",
                           "v4_fp8(nope=64,rope=0)",
                           "v4_fp8(nope=512,rope=16)",
                           "v4_fp8(nope=896,rope=64)",
                           "v4_fp8(nope=1216,rope=48)",
                           "index_fp8",
                           "index_fp8(scale=raw_f32)",
                           "index_fp8(dim=16)",
                           "index_fp8(dim=208,scale=raw_f32)",
                           "gqa_bf16",
                           "gqa_bf16(kv_heads=3,head_dim=16,v_head_dim=48)",
                           "gqa_fp8",
                           "gqa_fp8(kv_heads=1,head_dim=208,v_head_dim=16)"}) {
    auto layout = CacheLayout::parse(text);
    EXPECT_TRUE(layout.ok()) << text;
    out.push_back(*layout);
  }
  return out;
}

/// Calls body(name) for every SIMD target that this machine supports.
template <class F>
void for_each_target(F body) {
  for (std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    body(std::string(hwy::TargetName(target)));
  }
  hwy::SetSupportedTargetsForTest(0);
}

}  // namespace lathe
