// Shared by tests of grouped-query attention: random scenes, the host's bounds, the oracle.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/cpu/grouped_query/test/gqa_test_util.h"
#include "kernels/cuda/sm90/latent/test/latent_checks.h"
#include "kernels/ref/attend_gqa.h"
#include "kernels/ref/test/nonfinite_test_util.h"

namespace lathe::cuda {

using cpu_test::GqaDims;
using cpu_test::GqaScene;
using ref_test::edge_keys, ref_test::Wild, ref_test::WildKey;
using Requests = std::vector<std::pair<int, int>>;  // keys, rows

/// Sets max_request_rows and max_kv_len from lengths in host memory.
inline void set_bounds(AttendArgs& args) {
  args.max_request_rows = 1;
  args.max_kv_len = 1;
  for (std::size_t r = 0; r < args.kv_lens.size(); ++r) {
    args.max_request_rows =
        std::max<std::int64_t>(args.max_request_rows, args.q_indptr[r + 1] - args.q_indptr[r]);
    args.max_kv_len = std::max<std::int64_t>(args.max_kv_len, args.kv_lens[r]);
  }
}

/// A scene with q in bf16, as the kernels read it.
struct Bf16Scene : GqaScene {
  Bf16Scene(const GqaDims& shape, const Requests& requests, std::uint32_t seed = test_seed(7))
      : GqaScene(shape, requests, seed), rounded_q(rounded(q)) {
    args.q = rounded_q.view();
  }
  void add_random_sink() {
    std::vector<float> logits;
    for (int h = 0; h < dims.heads; ++h) {
      logits.push_back(static_cast<float>(rng() % 800) / 100.f - 4.f);
    }
    add_sink(std::move(logits));
  }
  /// Drops pages that no row's window or chunk reaches: their table entries become holes, their
  /// bytes NaN.
  void drop_left_pages() {
    for (std::size_t r = 0; r < batch.kv_lens.size(); ++r) {
      const int rows = batch.q_indptr[r + 1] - batch.q_indptr[r];
      const std::int64_t first = args.problem.first_key(batch.kv_lens[r] - rows);
      for (int page = 0; page < first / dims.page; ++page) {
        const ConstPoolView view = pool.view();
        PageId& entry = batch.entry(r, page);
        std::memset(const_cast<std::byte*>(view.data) + entry.value * view.page_stride, 0xff,
                    static_cast<std::size_t>(view.page_stride));
        entry = PageId();
      }
    }
  }
  /// Gives the problem chunks of so many pages.
  void make_chunks(int pages) {
    args.problem.window = pages * dims.page;
    args.problem.chunked = true;
  }
  Outputs oracle() const { return ref_test::run(ref_attend_gqa, args, dims.v_dim); }

  Matrix<bf16> rounded_q;
};

/// Outputs of the emulated kernels for a call on a device of `sms` SMs. Out is bf16 or f32, with
/// `padding` elements behind each row, which keep their NaN. Defined by gqa_emulation.h, which one
/// file of the program includes.
Outputs attend(AttendArgs args, int sms, DType out_dtype = DType::bf16, std::int64_t padding = 0);

/// Requests with few rows: some without keys, with one key, with whole pages and tiles, and longer.
inline Requests random_requests(ref_test::Rng& rng, int count, int max_rows, int max_keys) {
  Requests requests;
  const int edges[] = {0, 1, 16, 63, 64, 65, 128};
  for (int i = 0; i < count; ++i) {
    int keys = static_cast<int>(rng() % static_cast<unsigned>(max_keys + 1));
    if (rng() % 3 == 0) keys = std::min(edges[rng() % std::size(edges)], max_keys);
    int rows = 1 + static_cast<int>(rng() % static_cast<unsigned>(max_rows));
    if (keys > 0) rows = std::min(rows, keys);
    requests.emplace_back(keys, rows);
  }
  return requests;
}

/// Requests whose rows lie about the edges of chunks of `chunk` keys, and some without keys.
inline Requests requests_about_edges(ref_test::Rng& rng, int count, int max_rows, int chunk,
                                     int chunks) {
  const auto below = [&](int n) { return static_cast<int>(rng() % static_cast<unsigned>(n)); };
  Requests requests;
  for (int i = 0; i < count; ++i) {
    if (below(8) == 0) requests.emplace_back(0, 1);
    const int rows = 1 + below(max_rows);
    const int keys = chunk * below(chunks + 1) + below(2 * rows + 1) - below(2);
    requests.emplace_back(std::max(keys, rows), rows);
  }
  return requests;
}

/// Gives keys at the edges of what rows see values that are not finite, one after another, and
/// checks which rows attend(args) changes.
template <class Attend>
void check_nonfinite_keys(Bf16Scene& s, const Attend& attend) {
  const Outputs clean = attend(s.args);
  expect_oracle(clean, s.oracle());
  const ConstPoolView pool = s.pool.view();
  auto* bytes = const_cast<std::byte*>(pool.data);
  const std::vector<std::byte> kept(bytes, bytes + pool.bytes());
  for (std::size_t r = 0; r < s.args.kv_lens.size(); ++r) {
    if (s.args.q_indptr[r + 1] - s.args.q_indptr[r] < 2) continue;
    for (const WildKey& key : edge_keys(s.args, r)) {
      for (const Wild wild : {Wild::ones, Wild::values, Wild::one, Wild::infinite}) {
        SCOPED_TRACE(
            fmt::format("wild {} request {} position {}", static_cast<int>(wild), r, key.position));
        if (!make_wild(s, key, wild)) continue;
        const bool whole = wild == Wild::ones || wild == Wild::values;
        // Values alone do not change the LSE of a row in a tile that all rows see.
        expect_wild_seen_alone(s.args, {&key, 1}, attend(s.args), clean, whole, wild == Wild::ones,
                               wild != Wild::infinite);
        std::memcpy(bytes, kept.data(), kept.size());
      }
    }
  }
}

}  // namespace lathe::cuda
