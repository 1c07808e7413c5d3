// Random weights and activations for the operators' tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "base/float_formats.h"
#include "kernels/devices/all.h"
#include "kernels/linear.h"

namespace lathe::ops_test {

/// Rows with a gap after each. Everything is `fill` at first (default: NaN).
struct Rows {
  std::int64_t rows, cols, stride;
  std::vector<float> data;

  Rows(std::int64_t r, std::int64_t c, float fill = __builtin_nanf(""), std::int64_t gap = 3)
      : rows(r), cols(c), stride(c + gap), data(static_cast<std::size_t>(r * stride), fill) {}

  float* row(std::int64_t r) { return data.data() + r * stride; }
  const float* row(std::int64_t r) const { return data.data() + r * stride; }
  template <class Rng>
  void randomize(Rng& rng) {
    std::normal_distribution<float> normal;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) row(r)[c] = normal(rng);
    }
  }
  Rows copy(std::int64_t first, std::int64_t n) const {
    Rows out(n, cols);
    for (std::int64_t r = 0; r < n; ++r) std::copy_n(row(first + r), cols, out.row(r));
    return out;
  }
  RowsView view() const { return view(0, rows); }
  RowsView view(std::int64_t first, std::int64_t n) const {
    const auto* at = reinterpret_cast<const std::byte*>(data.data() + first * stride);
    return {at, DType::f32, n, cols, stride};
  }
  MutableRowsView out() { return out(0, rows); }
  MutableRowsView out(std::int64_t first, std::int64_t n) {
    return {reinterpret_cast<std::byte*>(data.data() + first * stride), DType::f32, n, cols,
            stride};
  }
  /// Compares all bytes, gaps included, so that a stray write is found.
  bool same_bits(const Rows& other) const {
    if (data.size() != other.data.size()) return false;
    return data.empty() ||
           std::memcmp(data.data(), other.data.data(), data.size() * sizeof(float)) == 0;
  }
};

/// |got - wanted| / |wanted|, with Euclidean norms.
inline double error_of(const Rows& got, const Rows& wanted) {
  double difference = 0, norm = 0;
  for (std::int64_t r = 0; r < wanted.rows; ++r) {
    for (std::int64_t c = 0; c < wanted.cols; ++c) {
      const double d = double{got.row(r)[c]} - wanted.row(r)[c];
      difference += d * d;
      norm += double{wanted.row(r)[c]} * wanted.row(r)[c];
    }
  }
  return std::sqrt(difference / norm);
}

/// Rows that are exact in bf16, so that both sides multiply the same numbers.
template <class Rng>
Rows bf16_values(Rng& rng, std::int64_t rows, std::int64_t cols, std::int64_t gap = 3) {
  Rows x(rows, cols, 0, gap);
  x.randomize(rng);
  for (float& v : x.data) v = to_f32(to_bf16(v));
  return x;
}

/// K of at least `k` that a weight of this dtype can have.
inline std::int64_t whole_blocks(DType dtype, std::int64_t k) {
  return dtype == DType::e2m1 ? (k + kMxBlock - 1) / kMxBlock * kMxBlock : k;
}

/// A random weight of any dtype. e4m3: codes of every magnitude, subnormals included, no NaN. e2m1:
/// scales from 2^-9 to 2^-2, and one in eight that counts as 0; cols are whole blocks.
struct Weight {
  std::vector<std::byte> bytes;
  std::vector<float> scales;
  std::vector<ue8m0> mx_scales;
  WeightView view;

  template <class Rng>
  Weight(Rng& rng, DType dtype, std::int64_t rows, std::int64_t cols, bool scaled = false) {
    const std::int64_t n = rows * cols;
    bytes.resize(static_cast<std::size_t>(bytes_of(dtype, n)));
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < n; ++i) {
      if (dtype == DType::f32) put(i, normal(rng));
      if (dtype == DType::bf16) put(i, to_bf16(normal(rng)));
      if (dtype == DType::f16) put(i, to_f16(normal(rng)));
      if (dtype == DType::e4m3) {
        const auto code = static_cast<std::uint8_t>(rng() & 0xff);
        put(i, e4m3{static_cast<std::uint8_t>((code & 0x7f) == 0x7f ? code - 1 : code)});
      }
    }
    if (dtype == DType::e2m1) {
      for (std::byte& pair : bytes) pair = static_cast<std::byte>(rng() & 0xff);
      for (std::int64_t i = 0; i < n / kMxBlock; ++i) {
        const auto code = static_cast<std::uint8_t>(118 + rng() % 8);
        mx_scales.push_back({static_cast<std::uint8_t>(rng() % 8 == 0 ? 0 : code)});
      }
    } else if (scaled) {
      const std::int64_t down = (rows + kWeightBlock - 1) / kWeightBlock;
      const std::int64_t across = (cols + kWeightBlock - 1) / kWeightBlock;
      std::uniform_real_distribution<float> uniform(1e-4f, 1e-2f);
      for (std::int64_t i = 0; i < down * across; ++i) scales.push_back(uniform(rng));
    }
    view = {bytes.data(),
            dtype,
            rows,
            cols,
            scales.empty() ? nullptr : scales.data(),
            mx_scales.empty() ? nullptr : mx_scales.data()};
  }
  Weight(Weight&&) = default;
  Weight(const Weight&) = delete;

 private:
  template <class T>
  void put(std::int64_t i, T x) {
    std::memcpy(bytes.data() + i * static_cast<std::int64_t>(sizeof(T)), &x, sizeof(T));
  }
};

/// An OpsContext with `threads` threads.
struct Context {
  ThreadPool pool;
  Arena arena, control;
  std::unique_ptr<Backend> backend;
  OpsContext ops;

  explicit Context(int threads, Device device = Device::cpu)
      : pool(threads), backend(std::move(*make_backend(device))) {
    ops.backend = backend.get();
    ops.execution.threads = threads > 1 ? &pool : nullptr;
    ops.tensors = &arena;
    ops.control = &control;
  }
};

}  // namespace lathe::ops_test
