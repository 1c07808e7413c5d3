// Inputs of sums over ranks, a host's sum in rank order, and a run of all ranks; for tests on the
// emulator and on GPUs.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "base/float_formats.h"
#include "kernels/cuda/sm90/exchange/test/exchange_ranks_test_util.h"

namespace lathe::cuda {

struct SumInputs {
  std::int64_t rows = 0, cols = 0;
  std::vector<std::vector<bf16>> partials;  // by rank, [rows, cols]
  std::vector<float> x, weight;             // [rows, cols], [cols]
};

inline SumInputs sum_inputs(int ranks, std::int64_t rows, std::int64_t cols, unsigned seed,
                            bool special = true) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  SumInputs in{.rows = rows, .cols = cols, .partials = {}, .x = {}, .weight = {}};
  const auto count = static_cast<std::size_t>(rows * cols);
  for (int r = 0; r < ranks; ++r) {
    auto& partial = in.partials.emplace_back(count);
    for (bf16& v : partial) {
      v = to_bf16(normal(random));
      // Zeros of either sign, and the subnormal number next to -0.
      if (special && random() % 16 == 0) v.bits = static_cast<std::uint16_t>(random() % 3 << 15);
      if (special && random() % 4096 == 0) v.bits = 0x8001;
    }
  }
  in.x.resize(count);
  for (float& v : in.x) v = special && random() % 16 == 0 ? -0.0f : normal(random);
  in.weight.resize(static_cast<std::size_t>(cols));
  for (float& v : in.weight) v = normal(random);
  return in;
}
/// One NaN and one infinity, in some rank's row `row`.
inline void spoil(SumInputs& in, std::size_t rank, std::int64_t row) {
  in.partials[rank][static_cast<std::size_t>(row * in.cols + 1)].bits = 0xffc1;
  in.partials[rank][static_cast<std::size_t>(row * in.cols + 2)].bits = 0xff80;
}

/// x after the sum: +0, then rank after rank, then x.
inline std::vector<float> host_sum(const SumInputs& in, bool add) {
  std::vector<float> out(in.x.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    float sum = 0;
    for (const auto& partial : in.partials) sum += to_f32(partial[i]);
    out[i] = (add ? in.x[i] : 0.0f) + sum;
  }
  return out;
}
/// Row `row` of the norm of x, in double precision.
inline std::vector<double> host_norm(const SumInputs& in, const std::vector<float>& x,
                                     std::int64_t row, double eps) {
  std::vector<double> out(static_cast<std::size_t>(in.cols));
  double squares = 0;
  const float* from = x.data() + row * in.cols;
  for (std::int64_t i = 0; i < in.cols; ++i) squares += double{from[i]} * double{from[i]};
  const double factor = 1 / std::sqrt(squares / static_cast<double>(in.cols) + eps);
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = double{from[i]} * factor * double{in.weight[i]};
  }
  return out;
}

inline constexpr float kSumEps = 1e-6f;

/// The inputs on all ranks' devices.
struct SumArrays {
  RankArray<bf16> partial;
  RankArray<float> x, weight;
  RankArray<bf16> h;

  SumArrays(const ExchangeRank& r, const SumInputs& in)
      : partial(r, in.partials[static_cast<std::size_t>(r.peers.rank)]),
        x(r, in.x),
        weight(r, in.weight),
        h(r, std::vector<bf16>(in.x.size(), bf16{0x7e7e})) {}
  SumParams params(const SumInputs& in, bool norm, bool add) const {
    const auto bytes = [](auto* p) { return reinterpret_cast<std::byte*>(p); };
    SumParams p{.partial = {bytes(partial.device.data()), in.cols, DType::bf16},
                .x = {bytes(x.device.data()), in.cols, DType::f32},
                .weight = weight.device.data(),
                .rows = in.rows,
                .cols = in.cols,
                .eps = kSumEps,
                .add = add};
    if (norm) p.h = {bytes(h.device.data()), in.cols, DType::bf16};
    return p;
  }
};

/// What one rank has after a sum.
struct SumOutput {
  std::vector<std::uint32_t> x;  // bits
  std::vector<std::uint16_t> h;
  bool operator==(const SumOutput&) const = default;
};
inline SumOutput output_of(const ExchangeRank& r, const SumArrays& a) {
  SumOutput out;
  for (const float v : a.x.get(r)) out.x.push_back(__builtin_bit_cast(std::uint32_t, v));
  for (const bf16 v : a.h.get(r)) out.h.push_back(v.bits);
  return out;
}

/// The rows that a rank owns.
inline std::pair<std::int64_t, std::int64_t> owned_range(int rank, int ranks, std::int64_t rows) {
  const std::int64_t share = (rows + ranks - 1) / ranks;
  return {std::min(rank * share, rows), std::min((rank + 1) * share, rows)};
}

inline std::vector<SumArrays> arrays_of(ExchangeGroup& group, const SumInputs& in) {
  std::vector<SumArrays> out;
  for (int r = 0; r < group.size(); ++r) out.emplace_back(group.rank(r), in);
  return out;
}

inline void launch_on_all(ExchangeGroup& group, const SumInputs& in,
                          const std::vector<SumArrays>& arrays, SumPath path,
                          const ExchangeLaunch& launch, bool norm = true, bool add = true) {
  for (int r = 0; r < group.size(); ++r) {
    ExchangeGroup::on(r);
    need(launch_result(launch_sum(group.rank(r).peers, path,
                                  arrays[static_cast<std::size_t>(r)].params(in, norm, add), launch,
                                  group.rank(r).stream),
                       {"sum", "", std::source_location::current()}));
  }
}

inline std::vector<SumOutput> run_sum(ExchangeGroup& group, const SumInputs& in, SumPath path,
                                      const ExchangeLaunch& launch, bool norm = true,
                                      bool add = true) {
  const auto arrays = arrays_of(group, in);
  launch_on_all(group, in, arrays, path, launch, norm, add);
  group.wait();
  std::vector<SumOutput> out;
  for (int r = 0; r < group.size(); ++r) {
    out.push_back(output_of(group.rank(r), arrays[static_cast<std::size_t>(r)]));
  }
  return out;
}

inline constexpr SumPath kSumPaths[] = {SumPath::push, SumPath::push_owned, SumPath::pull,
                                        SumPath::pull_owned};
inline bool is_owned(SumPath path) {
  return path == SumPath::push_owned || path == SumPath::pull_owned;
}
inline const char* name_of(SumPath path) {
  constexpr const char* kNames[] = {"push", "push_owned", "pull", "pull_owned"};
  return kNames[static_cast<int>(path)];
}

}  // namespace lathe::cuda
