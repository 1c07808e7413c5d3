// Scenes in the shapes of other libraries' tests: batches, contexts of any length, heads that fill
// no tile, pages of any size, lists longer than their context, entries without a key, caches that
// hold NaN wherever there is no key.
//
// Shapes: FlashMLA's tests of dense decode, sparse decode and sparse prefill. The oracle computes
// one request and a few heads at a time, so that sampling a large scene is cheap.
#pragma once

#include "kernels/cuda/sm90/latent/test/latent_checks.h"

namespace lathe::cuda {

/// Requests of `rows` rows, with at most `keys` tokens each. top_k 0: every key by page table.
struct SceneShape {
  LayoutKind layout;
  std::int32_t page = 64, requests = 1, rows = 1, keys = 0, heads = 1;
  std::int32_t top_k = 0;
  std::int32_t extra = 0;         // entries of the second source, v4_fp8
  bool ragged = false;            // contexts of 0 to `keys` tokens
  bool lengths_and_sink = false;  // list lengths, 0 among them, and a sink, infinite for some heads
  bool nothing = false;           // no entry of a list is a key
};

/// For failure messages.
inline std::string to_string(const SceneShape& s) {
  const auto n = [](std::int32_t i) { return std::to_string(i); };
  return std::string(name(s.layout)) + ", page " + n(s.page) + ", " + n(s.requests) + " x " +
         n(s.rows) + " rows, " + n(s.keys) + " keys, heads " + n(s.heads) + ", lists of " +
         n(s.top_k);
}

struct Bounds {
  double absolute, relative, angle;
};
// FlashMLA's bounds. Its absolute bounds are for values of 0.1; a scene's are about 1.
inline constexpr Bounds kDecodeBounds{10 * 8e-4, 2.01 / 128, 5e-6};
inline constexpr Bounds kExtendBounds{10 * 8e-4, 3.01 / 128, 7e-6};

class ShapeScene {
 public:
  explicit ShapeScene(const SceneShape& shape)
      : scene(layout_of(shape.layout), shape.page, shape.heads, requests_of(shape), test_seed(1),
              ref_test::Draw::quick),
        q_(rounded(scene.q)) {
    scene.args.q = q_.view();
    if (shape.top_k > 0) name(shape);
    if (!shape.lengths_and_sink) return;
    for (std::int32_t h = 0; h < shape.heads; ++h) {
      const float infinity = std::numeric_limits<float>::infinity();
      sink_.push_back(h % 7 == 3   ? infinity
                      : h % 7 == 5 ? -infinity
                                   : 0.5f * static_cast<float>(h % 4) - 1);
    }
    scene.args.problem.sink = true;
    scene.args.sink = sink_;
    if (shape.top_k == 0) return;
    for (std::int64_t row = 0; row < scene.batch.rows; ++row) {
      const auto half = shape.top_k / 2;
      lengths_.push_back(row % 3 == 0 ? shape.top_k : row % 3 == 1 ? half : 0);
    }
    scene.args.main.index_lengths = lengths_;
  }

  /// Compares the rows of request r, heads [first, first + heads).
  void expect(const ref_test::Outputs& got, std::size_t r, std::int32_t first, std::int32_t heads,
              const Bounds& bounds) const {
    const ref_test::Outputs want = oracle(r, first, heads);
    ref_test::Outputs part{{want.out.rows, want.out.cols, 0}, {want.lse.rows, want.lse.cols, 0}};
    const std::int64_t width = scene.args.problem.v_dim(), row = scene.batch.q_indptr[r];
    const auto copy = [&](const auto& from, auto& to, std::int64_t each) {
      for (std::int64_t i = 0; i < to.rows; ++i) {
        std::copy_n(from.data.begin() + (row + i) * from.cols + first * each, to.cols,
                    to.data.begin() + i * to.cols);
      }
    };
    copy(got.out, part.out, width);
    copy(got.lse, part.lse, 1);
    expect_within(part, want, bounds.absolute, bounds.relative, bounds.angle);
  }

  latent_test::Scene scene;

 private:
  static latent_test::Requests requests_of(const SceneShape& s) {
    latent_test::Requests out;
    for (std::int32_t r = 0; r < s.requests; ++r) {
      // A context has at least its rows' tokens, or none.
      const std::int32_t keys = !s.ragged || r == 0 ? s.keys : s.keys * (r % 4 + 1) / 5;
      out.emplace_back(s.ragged && r % 5 == 4 ? 0 : std::max(s.rows, keys), s.rows);
    }
    return out;
  }
  /// Lists the first tokens of each row's own request, with holes and entries beyond the pool.
  /// Tokens that no list has hold NaN.
  void name(const SceneShape& s) {
    list_ = list_of(s, s.top_k);
    const ProblemKind kind = s.layout == LayoutKind::v4_fp8 ? ProblemKind::window_compressed
                                                            : ProblemKind::sparse_latent;
    if (s.extra > 0) {
      extra_ = list_of(s, s.extra);
      scene.by_two_sources(list_, s.top_k, extra_);
    } else {
      scene.by_index(list_, kind);
    }
    std::vector<bool> listed(static_cast<std::size_t>(scene.pool.view().slots()));
    for (const auto* entries : {&list_, &extra_}) {
      for (const std::int32_t slot : *entries) {
        if (slot >= 0 && slot < std::ssize(listed)) listed[static_cast<std::size_t>(slot)] = true;
      }
    }
    for (std::size_t slot = 0; slot < listed.size(); ++slot) {
      if (!listed[slot]) scene.pool.poison(Slot(static_cast<std::int32_t>(slot)));
    }
  }
  latent_test::Ints list_of(const SceneShape& s, std::int32_t width) {
    latent_test::Ints list(static_cast<std::size_t>(scene.batch.rows) *
                           static_cast<std::size_t>(width));
    const auto slots = static_cast<std::int32_t>(scene.pool.view().slots());
    const std::int32_t none[] = {-1, INT32_MIN, slots, slots + 1000, INT32_MAX};
    std::size_t at = 0;
    for (std::size_t r = 0; r < scene.batch.kv_lens.size(); ++r) {
      const std::int32_t keys = std::min(scene.batch.kv_lens[r], s.keys);
      const std::int32_t rows = scene.batch.q_indptr[r + 1] - scene.batch.q_indptr[r];
      for (std::int64_t i = 0; i < std::int64_t{rows} * width; ++i) {
        if (s.nothing || keys == 0 || scene.rng() % 8 == 0) {
          list[at++] = none[scene.rng() % std::size(none)];
          continue;
        }
        const auto pos = static_cast<std::int32_t>(scene.rng() % static_cast<unsigned>(keys));
        list[at++] = slot_of(scene.batch.entry(r, pos / s.page), s.page, pos % s.page).value;
      }
    }
    return list;
  }

  ref_test::Outputs oracle(std::size_t r, std::int32_t first, std::int32_t heads) const {
    AttendArgs args = scene.args;
    const std::int64_t row = scene.batch.q_indptr[r];
    const std::int64_t rows = scene.batch.q_indptr[r + 1] - row;
    const std::int32_t indptr[] = {0, static_cast<std::int32_t>(rows)};
    const std::int64_t width = args.problem.qk_dim();
    args.problem.heads = heads;
    args.q.data += bytes_of(args.q.dtype, row * args.q.row_stride + first * width);
    args.q.rows = rows;
    args.q.cols = heads * width;
    args.q_indptr = indptr;
    args.kv_lens = args.kv_lens.subspan(r, 1);
    if (args.problem.sink) {
      args.sink =
          args.sink.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(heads));
    }
    const auto at = static_cast<std::size_t>(row), n = static_cast<std::size_t>(rows);
    for (KeySource* s : {&args.main, &args.extra}) {
      const auto entries = static_cast<std::size_t>(s->index_width);
      if (s->table_width > 0) {
        const auto pages = static_cast<std::size_t>(s->table_width);
        s->page_table = s->page_table.subspan(r * pages, pages);
      }
      if (entries > 0) s->indices = s->indices.subspan(at * entries, n * entries);
      if (!s->index_lengths.empty()) s->index_lengths = s->index_lengths.subspan(at, n);
    }
    return ref_test::run(ref_attend_latent, args, args.problem.v_dim());
  }

  ref_test::Matrix<bf16> q_;
  latent_test::Ints list_, extra_, lengths_;
  std::vector<float> sink_;
};

}  // namespace lathe::cuda
