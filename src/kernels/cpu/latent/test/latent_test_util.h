// Scenes for the tests of the CPU's latent attention, and the comparison with the oracle.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "base/test_scale.h"
#include "kernels/cpu/latent/latent_attend.h"
#include "kernels/ref/attend_latent.h"
#include "kernels/ref/test/test_util.h"

namespace lathe::latent_test {

using namespace ref_test;
using Requests = std::vector<std::pair<int, int>>;
using Ints = std::vector<std::int32_t>;

/// A batch over one NaN-poisoned pool. By page table until by_index() is called.
struct Scene {
  Rng rng;
  TestPool pool;
  Batch batch;
  Matrix<float> q;
  AttendArgs args;

  Scene(const CacheLayout& layout, int page, int heads, const Requests& requests,
        std::uint32_t seed = test_seed(1), Draw draw = Draw::normal)
      : rng(seed),
        pool(layout, page, pages_for(requests, page) + 3, draw),
        batch(pool, requests, rng),
        q(random_matrix(batch.rows, heads * layout.row_elems(), rng, draw)) {
    args.problem =
        latent_problem(ProblemKind::dense_latent, heads, layout.dims().nope, layout.dims().rope);
    if (layout.row_elems() > 300) args.problem.scale = 0.042f;
    args.q = q.view();
    batch.put_into(args);
    args.main.pool = pool.view();
    if (layout.scale_policy() == ScalePolicy::per_tensor) args.main.key_scale = 0.5f;
    batch.name_by_page(args.main);
  }
  Scene(const Scene&) = delete;

  static std::int64_t pages_for(const Requests& requests, int page) {
    std::int64_t pages = 0;
    for (const auto& r : requests) pages += (r.first + page - 1) / page;
    return pages;
  }
  int page() const { return pool.view().page_size; }
  std::int64_t longest() const {
    return batch.kv_lens.empty() ? 1 : std::max(1, *std::ranges::max_element(batch.kv_lens));
  }
  /// The caller keeps `list` alive.
  void by_index(const Ints& list, ProblemKind kind = ProblemKind::sparse_latent) {
    args.problem.kind = kind;
    args.main.page_table = {};
    args.main.table_width = 0;
    name_by_index(args.main, list, batch.rows == 0 ? 1 : std::ssize(list) / batch.rows);
  }
  /// V4's two sources, here both on the same pages: a list for the window and another list. The
  /// caller keeps both lists alive.
  void by_two_sources(const Ints& window_list, std::int32_t window, const Ints& list) {
    by_index(window_list, ProblemKind::window_compressed);
    args.problem.window = window;
    args.problem.compress_ratio = 4;
    args.extra = args.main;
    name_by_index(args.extra, list, std::ssize(list) / batch.rows);
  }
  /// Random slots of each row's request, with holes, wild values and duplicates.
  Ints random_list(std::int64_t width) {
    Ints list;
    for (std::size_t r = 0; r < batch.kv_lens.size(); ++r) {
      for (std::int32_t row = batch.q_indptr[r]; row < batch.q_indptr[r + 1]; ++row) {
        for (std::int64_t j = 0; j < width; ++j) list.push_back(random_key(r));
      }
    }
    return list;
  }
  Outputs attend(AttendFn kernel = cpu_attend_latent) const {
    return run(kernel, args, args.problem.v_dim());
  }
  Outputs oracle() const { return attend(ref_attend_latent); }

 private:
  std::int32_t random_key(std::size_t r) {
    const auto die = rng() % 8;
    if (die == 0) return rng() % 2 == 0 ? -1 : INT32_MIN;
    if (die == 1)
      return static_cast<std::int32_t>(pool.view().slots()) +
             static_cast<std::int32_t>(rng() % 1000);
    const auto pos = static_cast<std::int32_t>(rng() % static_cast<unsigned>(batch.kv_lens[r]));
    return slot_of(batch.entry(r, pos / page()), page(), pos % page()).value;
  }
};

/// For f32 sums of some thousand terms: far inside the bounds of bf16 arithmetic
/// (8e-4, 8.01/65536).
inline void expect_f32_close(const Outputs& got, const Outputs& want) {
  expect_near(got, want, 2e-5);
  double dot = 0, a = 0, b = 0;
  for (std::size_t i = 0; i < got.out.data.size(); ++i) {
    dot += got.out.data[i] * want.out.data[i];
    a += got.out.data[i] * got.out.data[i];
    b += want.out.data[i] * want.out.data[i];
  }
  if (a + b > 0) {
    EXPECT_LE(1 - 2 * dot / (a + b), 1e-10);
  }
}
inline void expect_oracle(const Scene& s) { expect_f32_close(s.attend(), s.oracle()); }

}  // namespace lathe::latent_test
