// Poisoned pools, random batches and owned matrices for the tests of the reference kernels.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "attn/attend.h"
#include "base/float_formats.h"
#include "step/schedule.h"

namespace lathe::ref_test {

using Rng = std::mt19937;
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInf = std::numeric_limits<double>::infinity();

/// A matrix that owns its elements. They start as NaN if T has one.
template <class T>
struct Matrix {
  std::int64_t rows;
  std::int64_t cols;
  std::vector<T> data;

  Matrix(std::int64_t r, std::int64_t c, T fill = {})
      : rows(r), cols(c), data(static_cast<std::size_t>(r * c), fill) {}
  static constexpr DType dtype() {
    if constexpr (std::is_same_v<T, double>) return DType::f64;
    if constexpr (std::is_same_v<T, float>) return DType::f32;
    if constexpr (std::is_same_v<T, bf16>) return DType::bf16;
    if constexpr (std::is_same_v<T, f16>) return DType::f16;
    if constexpr (std::is_same_v<T, e4m3>) return DType::e4m3;
  }
  RowsView view() const {
    return {reinterpret_cast<const std::byte*>(data.data()), dtype(), rows, cols, cols};
  }
  MutableRowsView mutable_view() {
    return {reinterpret_cast<std::byte*>(data.data()), dtype(), rows, cols, cols};
  }
  T& at(std::int64_t r, std::int64_t c) { return data[static_cast<std::size_t>(r * cols + c)]; }
  const T& at(std::int64_t r, std::int64_t c) const {
    return data[static_cast<std::size_t>(r * cols + c)];
  }
  std::span<const T> row(std::int64_t r) const {
    return std::span(data).subspan(static_cast<std::size_t>(r * cols),
                                   static_cast<std::size_t>(cols));
  }
};

/// Nearly normal numbers of mean 0 and deviation 1, for scenes of hundreds of millions of numbers:
/// sums of eight random bytes from SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom
/// Number Generators").
class NearlyNormal {
 public:
  explicit NearlyNormal(Rng& rng) : state_(rng()) {}
  float operator()() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    z ^= z >> 31;
    constexpr std::uint64_t kEven = 0x00ff00ff00ff00ff;
    const std::uint64_t pairs = (z & kEven) + (z >> 8 & kEven);
    const auto sum = static_cast<float>(pairs * 0x0001000100010001 >> 48);
    return (sum - 8 * 127.5f) / 209.02153f;  // sqrt(8 (256^2 - 1) / 12)
  }

 private:
  std::uint64_t state_;
};

/// The distribution of random numbers: normal, or (quick, for large scenes) nearly normal.
enum class Draw { normal, quick };

inline Matrix<float> random_matrix(std::int64_t rows, std::int64_t cols, Rng& rng,
                                   Draw draw = Draw::normal) {
  Matrix<float> m(rows, cols);
  if (draw == Draw::quick) {
    NearlyNormal normal(rng);
    for (float& x : m.data) x = normal();
    return m;
  }
  std::normal_distribution<float> normal;
  for (float& x : m.data) x = normal(rng);
  return m;
}

/// A pool with all bytes 0xff at first: NaN in bf16, e4m3, f32 and ue8m0.
class TestPool {
 public:
  TestPool(const CacheLayout& layout, std::int32_t page_size, std::int64_t pages,
           Draw draw = Draw::normal)
      : view_(nullptr, layout, page_size, pages),
        draw_(draw),
        bytes_(static_cast<std::size_t>(view_.bytes()), std::byte{0xff}) {
    view_.data = bytes_.data();
  }
  TestPool(const TestPool&) = delete;

  ConstPoolView view() const { return view_; }

  /// Writes a token of random numbers. Scales are powers of two, so decoded rows are exact in f32.
  void fill(Slot slot, Rng& rng) {
    if (draw_ == Draw::quick) {
      NearlyNormal normal(rng);
      return fill_with(slot, [&](DType dtype, std::byte* at) {
        return dtype == DType::bf16 || dtype == DType::e4m3
                   ? put(dtype, at, normal(), 0)
                   : put(dtype, at, 0, static_cast<int>(rng() % 256));
      });
    }
    std::normal_distribution<float> normal;
    std::uniform_int_distribution<int> byte(0, 255);
    fill_with(slot,
              [&](DType dtype, std::byte* at) { return put(dtype, at, normal(rng), byte(rng)); });
  }
  /// Makes a token NaN: it must not be read.
  void poison(Slot slot) {
    for (int i = 0; i < view_.layout.part_count(); ++i) {
      const Part& part = view_.layout.part(i);
      std::memset(view_.at(part, slot), 0xff, static_cast<std::size_t>(part.bytes()));
    }
  }
  /// Writes a token of given numbers, which must be exact in bf16, in a bf16 layout.
  void store(Slot slot, const std::vector<float>& row) {
    auto x = row.begin();
    for (int i = 0; i < view_.layout.part_count(); ++i) {
      const Part& part = view_.layout.part(i);
      for (std::int32_t e = 0; e < part.elems; ++e) {
        const bf16 value = to_bf16(x < row.end() ? *x++ : 0.0f);
        std::memcpy(view_.at(part, slot) + 2 * e, &value, 2);
      }
    }
  }

 private:
  template <class Put>
  void fill_with(Slot slot, const Put& put_element) {
    for (int i = 0; i < view_.layout.part_count(); ++i) {
      const Part& part = view_.layout.part(i);
      if (part.role == PartRole::pad) continue;
      std::byte* at = view_.at(part, slot);
      for (std::int32_t b = 0; b < part.bytes();) b += put_element(part.dtype, at + b);
    }
  }
  static std::int32_t put(DType dtype, std::byte* at, float normal, int byte) {
    if (dtype == DType::bf16) {
      const bf16 value = to_bf16(normal);
      std::memcpy(at, &value, 2);
      return 2;
    }
    if (dtype == DType::f32) {
      const float value = std::ldexp(1.0f, byte % 4 - 2);
      std::memcpy(at, &value, 4);
      return 4;
    }
    int code = byte;
    if (dtype == DType::e4m3) code = to_e4m3(normal).bits;
    if (dtype == DType::ue8m0) code = 124 + byte % 4;
    *at = static_cast<std::byte>(code);
    return 1;
  }

  PoolView view_;
  Draw draw_;
  std::vector<std::byte> bytes_;
};

/// Requests of (keys, rows) on shuffled pages of a pool; every key is filled with random numbers.
struct Batch {
  std::vector<std::int32_t> q_indptr{0};
  std::vector<std::int32_t> kv_lens;
  std::vector<PageId> table;  // [requests, width], -1 past a request's pages
  std::int64_t width = 1;
  std::int64_t rows = 0;

  Batch(TestPool& pool, const std::vector<std::pair<int, int>>& requests, Rng& rng) {
    const std::int32_t page_size = pool.view().page_size;
    for (const auto& [keys, q_rows] : requests) {
      kv_lens.push_back(keys);
      rows += q_rows;
      q_indptr.push_back(static_cast<std::int32_t>(rows));
      width = std::max<std::int64_t>(width, (keys + page_size - 1) / page_size);
    }
    std::vector<std::int32_t> pages(static_cast<std::size_t>(pool.view().pages));
    std::iota(pages.begin(), pages.end(), 0);
    std::ranges::shuffle(pages, rng);
    table.resize(requests.size() * static_cast<std::size_t>(width));
    for (std::size_t r = 0; r < requests.size(); ++r) {
      for (std::int32_t pos = 0; pos < kv_lens[r]; ++pos) {
        PageId& page = entry(r, pos / page_size);
        if (page.is_hole()) {
          EXPECT_FALSE(pages.empty()) << "the test's pool is too small";
          page = PageId(pages.back());
          pages.pop_back();
        }
        pool.fill(slot_of(page, page_size, pos % page_size), rng);
      }
    }
  }
  PageId& entry(std::size_t request, std::int64_t page) {
    return table[request * static_cast<std::size_t>(width) + static_cast<std::size_t>(page)];
  }
  /// An index list [rows, list_width] of the slots that each row sees causally, padded with holes.
  std::vector<std::int32_t> causal_list(std::int32_t page_size, std::int64_t list_width,
                                        std::int32_t window = 0) {
    std::vector<std::int32_t> list;
    for (std::size_t r = 0; r < kv_lens.size(); ++r) {
      for (std::int32_t row = q_indptr[r]; row < q_indptr[r + 1]; ++row) {
        const std::int32_t end = kv_lens[r] - (q_indptr[r + 1] - row) + 1;
        const std::int32_t begin = window > 0 ? std::max(0, end - window) : 0;
        for (std::int32_t pos = begin; pos < end; ++pos) {
          list.push_back(slot_of(entry(r, pos / page_size), page_size, pos % page_size).value);
        }
        EXPECT_LE(end - begin, list_width);
        list.resize(list.size() + static_cast<std::size_t>(list_width - (end - begin)), -1);
      }
    }
    return list;
  }
  void put_into(AttendArgs& args) const {
    args.q_indptr = q_indptr;
    args.kv_lens = kv_lens;
  }
  void name_by_page(KeySource& source) const {
    source.page_table = table;
    source.table_width = width;
  }
};

inline void name_by_index(KeySource& source, const std::vector<std::int32_t>& list,
                          std::int64_t width) {
  source.indices = list;
  source.index_width = width;
}

struct Outputs {
  Matrix<double> out;
  Matrix<double> lse;
};

/// Runs a kernel into NaN-poisoned f64 outputs of out_width elements per head.
inline Outputs run(AttendFn kernel, AttendArgs args, std::int32_t out_width) {
  Outputs o{{args.q.rows, args.problem.heads * out_width, kNaN},
            {args.q.rows, args.problem.heads, kNaN}};
  args.out = o.out.mutable_view();
  args.lse = o.lse.mutable_view();
  const Result<void> done = kernel(args);
  EXPECT_TRUE(done.ok()) << (done ? "" : done.error().message());
  return o;
}

/// Makes a kernel's schedule of a step. The arguments lack the pointers that it must not read.
inline void prepare(PrepareFn kernel, AttendArgs args, Schedule& schedule) {
  args.q.data = nullptr;
  for (KeySource* source : {&args.main, &args.extra}) {
    source->indices = {};
    source->compact.data = nullptr;
    if (source->pool) source->pool->data = nullptr;
  }
  const Result<void> done = kernel(args, schedule);
  EXPECT_TRUE(done.ok()) << (done ? "" : done.error().message());
}

/// Equal within an absolute or relative 1e-12; infinities must be equal, and NaN never passes.
inline void expect_near(const Outputs& a, const Outputs& b, double tolerance = 1e-12) {
  for (const auto& [x, y] : {std::pair{&a.out, &b.out}, std::pair{&a.lse, &b.lse}}) {
    ASSERT_EQ(x->data.size(), y->data.size());
    for (std::size_t i = 0; i < x->data.size(); ++i) {
      const double u = x->data[i];
      const double v = y->data[i];
      if (u == v) continue;
      ASSERT_LE(std::abs(u - v), std::isfinite(v) ? tolerance * std::max(1.0, std::abs(v)) : 0)
          << (x == &a.out ? "out " : "lse ") << i << ": " << u << " against " << v;
    }
  }
}
inline void expect_equal(const Outputs& a, const Outputs& b) {
  EXPECT_EQ(a.out.data, b.out.data);
  EXPECT_EQ(a.lse.data, b.lse.data);
}

inline AttentionProblem latent_problem(ProblemKind kind, std::int32_t heads,
                                       std::int32_t nope = 128, std::int32_t rope = 16) {
  AttentionProblem p;
  p.kind = kind;
  p.heads = heads;
  p.nope = nope;
  p.rope = rope;
  p.scale = 0.125f;
  return p;
}
inline CacheLayout latent_layout(LayoutKind kind) {
  return CacheLayout(kind, {.nope = 128, .rope = 16});
}
inline const std::vector<LayoutKind> kLatentKinds = [] {
  std::vector<LayoutKind> kinds;
  for (const LayoutKind kind : enum_values<LayoutKind>()) {
    if (is_latent(kind)) kinds.push_back(kind);
  }
  return kinds;
}();

/// "mla_fp8_page16_heads3", the name of a parametrised test.
using LayoutPageHeads = std::tuple<LayoutKind, int, int>;
inline std::string layout_page_heads(const ::testing::TestParamInfo<LayoutPageHeads>& test) {
  return std::string(name(std::get<0>(test.param))) + "_page" +
         std::to_string(std::get<1>(test.param)) + "_heads" +
         std::to_string(std::get<2>(test.param));
}

}  // namespace lathe::ref_test
