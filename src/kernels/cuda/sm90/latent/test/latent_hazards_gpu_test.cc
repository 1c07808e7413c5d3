// Tests what has broken other latent kernels: slots whose byte or element offsets overflow int32,
// lengths around a list's width and beyond 128K, positions instead of slots, partials without keys,
// batches that change under a graph.
#include "kernels/cuda/sm90/latent/test/latent_gpu_test_util.h"
#include "kernels/cuda/sm90/latent/test/latent_shape_checks.h"
#include "layout/codec/codec.h"

namespace lathe::cuda {
namespace {

constexpr LayoutKind kMlaKinds[] = {LayoutKind::mla_bf16, LayoutKind::mla_fp8,
                                    LayoutKind::mla_fp8_block};
constexpr LayoutKind kKinds[] = {LayoutKind::mla_bf16, LayoutKind::mla_fp8,
                                 LayoutKind::mla_fp8_block, LayoutKind::v4_fp8};

class LatentHazardsGpu : public LatentGpu {
 protected:
  /// Places a scene's pages beyond 2^32 bytes and 2^31 elements of any layout.
  void go_far(const Scene& s) { before_ = (std::int64_t{5} << 30) / s.pool.view().page_stride; }
  /// The scene's pool as bf16 rows, one per slot.
  static Matrix<bf16> rows_of(const Scene& s) {
    const ConstPoolView& pool = s.pool.view();
    Matrix<bf16> rows(pool.slots(), pool.layout.row_elems());
    must(decode_rows(pool, Slot(0), rows.mutable_view(), {s.args.main.key_scale, 1}));
    return rows;
  }
  static ProblemKind listed(LayoutKind kind) {
    return kind == LayoutKind::v4_fp8 ? ProblemKind::window_compressed : ProblemKind::sparse_latent;
  }
};

TEST_F(LatentHazardsGpu, LargePoolsByPageTable) {
  for (const LayoutKind kind : kMlaKinds) {
    for (const int heads : {16, 128}) {
      SCOPED_TRACE(std::string(name(kind)) + ", heads " + std::to_string(heads));
      Scene s(layout_of(kind), 64, heads, {{300, 1}, {70, 2}});
      go_far(s);
      check(s);
    }
  }
}

TEST_F(LatentHazardsGpu, LargePoolsByList) {
  for (const LayoutKind kind : kKinds) {
    for (const int heads : {16, 128}) {
      SCOPED_TRACE(std::string(name(kind)) + ", heads " + std::to_string(heads));
      Scene s(layout_of(kind), 64, heads, {{300, 1}, {70, 2}});
      go_far(s);
      const Ints list = s.random_list(130);
      s.by_index(list, listed(kind));
      EXPECT_GT((before_ + 1) * 64, (std::int64_t{1} << 31) / 656);
      check(s);
    }
  }
}

TEST_F(LatentHazardsGpu, LargePoolsStaged) {
  for (const LayoutKind kind : {LayoutKind::mla_fp8, LayoutKind::mla_fp8_block}) {
    SCOPED_TRACE(name(kind));
    Scene s(layout_of(kind), 256, 64, {{300, 1}, {70, 2}, {600, 3}});
    go_far(s);
    const Ints list = s.random_list(130);
    s.by_index(list);
    check(s, 4, 3, 1 << 20);
    check(s, 4, 3, 2);
  }
  Scene s(layout_of(LayoutKind::v4_fp8), 256, 64, {{300, 2}, {700, 1}});
  go_far(s);
  const Ints window = s.batch.causal_list(256, 100, 100), list = s.random_list(330);
  s.by_two_sources(window, 100, list);
  check(s, 2, 3, 1 << 20);
}

TEST_F(LatentHazardsGpu, ManyCompactRows) {
  for (const LayoutKind kind : {LayoutKind::mla_fp8_block, LayoutKind::v4_fp8}) {
    for (const int heads : {8, 64, 128}) {
      for (const bool far : {false, true}) {
        SCOPED_TRACE(std::string(name(kind)) + ", heads " + std::to_string(heads));
        Scene s(layout_of(kind), 64, heads, {{300, 2}, {70, 1}, {3, 1}});
        const Matrix<bf16> rows = rows_of(s);
        before_ = far ? (std::int64_t{5} << 30) / (2 * rows.cols) : 0;
        const Ints list = s.random_list(200), window = s.batch.causal_list(64, 100, 100);
        if (kind == LayoutKind::v4_fp8) {
          s.by_two_sources(window, 100, list);
          s.args.extra.pool.reset();
          s.args.extra.compact = rows.view();
        } else {
          s.by_index(list);
        }
        s.args.main.pool.reset();
        s.args.main.compact = rows.view();
        check(s, 0, 3);
        check(s, 2);
      }
    }
  }
}

// Sources with pages of different sizes, as V4's window and compressed keys have.
TEST_F(LatentHazardsGpu, TwoPools) {
  for (const int page : {2, 64}) {
    for (const int heads : {8, 64, 128}) {
      for (const int width : {512, 1024}) {
        SCOPED_TRACE("page " + std::to_string(page) + ", heads " + std::to_string(heads) +
                     ", lists of " + std::to_string(width));
        TwoPools pools(page, heads, {{700, 2}, {40, 1}, {1300, 1}}, 128, width);
        check(pools.scene, 0, 3);
        check(pools.scene, 2);
        if (heads >= 64) check(pools.scene, 2, 3, 1 << 20);
      }
    }
  }
}

TEST_F(LatentHazardsGpu, PositionsAndPageTable) {
  for (const LayoutKind kind : kMlaKinds) {
    for (const int heads : {8, 32, 64, 128}) {
      for (const int page : {1, 16, 64}) {
        SCOPED_TRACE(std::string(name(kind)) + ", heads " + std::to_string(heads) + ", page " +
                     std::to_string(page));
        Scene s(layout_of(kind), page, heads, {{700, 2}, {70, 1}, {200, 3}});
        const PositionLists lists = position_lists(s, 330);
        const Matrix<bf16> q = rounded(s.q);
        s.args.q = q.view();
        s.by_index(lists.slots);
        const Outputs want = s.oracle();
        AttendArgs args = s.args;
        args.main.indices = lists.positions;
        s.batch.name_by_page(args.main);
        expect_oracle(attend(args, 0, 3), want);
        expect_oracle(attend(args, 2), want);
        expect_oracle(attend(args, 2, 1, 0, 2), want);
        if (heads < 64 || kind == LayoutKind::mla_bf16) continue;
        expect_oracle(attend(args, 2, 3, 1 << 20), want);
        expect_oracle(attend(args, 2, 3, 2), want);
      }
    }
  }
}

// A list as wide as most contexts here, and pages of every usual size.
TEST_F(LatentHazardsGpu, LengthsAboutTwoThousandAndFortyEight) {
  for (const LayoutKind kind : kMlaKinds) {
    for (const int page : {16, 32, 64, 128}) {
      for (const int heads : {10, 40}) {
        SCOPED_TRACE(std::string(name(kind)) + ", heads " + std::to_string(heads) + ", page " +
                     std::to_string(page));
        Scene s(layout_of(kind), page, heads, {{2047, 1}, {0, 1}, {2049, 2}, {1, 1}, {2048, 1}});
        check(s, 0, 2);
        const Ints list = s.batch.causal_list(page, 2048 + 1, 2048);
        s.by_index(list);
        check(s, 0, 2);
      }
    }
  }
}

TEST_F(LatentHazardsGpu, LengthsAbout128K) {
  for (const auto& [kind, keys] : {std::pair{LayoutKind::mla_bf16, 131073},
                                   {LayoutKind::mla_fp8, 131072},
                                   {LayoutKind::mla_fp8_block, 131071}}) {
    for (const int heads : {16, 128}) {
      SCOPED_TRACE(std::string(name(kind)) + ", heads " + std::to_string(heads));
      const ShapeScene s({.layout = kind, .keys = keys, .heads = heads});
      for (const int m_rows : {0, 64}) {
        const Outputs got = attend(s.scene.args, 0, 2, 0, 0, m_rows);
        s.expect(got, 0, heads - 2, 2, kDecodeBounds);
      }
    }
  }
}

// Lists whose splits hold no key, all of them or some.
TEST_F(LatentHazardsGpu, PartialsWithoutKeys) {
  for (const LayoutKind kind : kKinds) {
    for (const int heads : {8, 64}) {
      SCOPED_TRACE(std::string(name(kind)) + ", heads " + std::to_string(heads));
      constexpr std::ptrdiff_t kWidth = 2048;
      Scene s(layout_of(kind), 64, heads, {{300, 4}});
      Ints list = s.random_list(kWidth);
      std::fill(list.begin(), list.begin() + kWidth - 30, -1);               // in the last split
      std::fill(list.begin() + kWidth + 30, list.begin() + 2 * kWidth, -1);  // in the first
      std::fill(list.begin() + 2 * kWidth, list.begin() + 3 * kWidth, -1);   // in no split
      std::fill(list.begin() + 3 * kWidth + 300, list.end() - 300, -1);      // in the outer ones
      s.by_index(list, listed(kind));
      EXPECT_GT(cut_latent({.rows = 4, .requests = 1, .keys = kWidth, .heads = heads})
                    .all.work_tile_items,
                4);
      check(s, 0, 20);
      const std::vector<float> sink(static_cast<std::size_t>(heads), -1.0f);
      s.args.problem.sink = true;
      s.args.sink = sink;
      check(s, 0, 2);
    }
  }
}

// Under a graph: fewer requests with more rows, and then the first batch again. Both use the same
// number of pages.
TEST_F(LatentHazardsGpu, AGraphReplaysOverOtherBatches) {
  const Requests before = {{300, 2}, {1400, 2}, {50, 1}, {130, 1}, {0, 1}, {7, 1}};
  const Requests after = {{1400, 2}, {330, 2}, {10, 2}, {130, 2}, {0, 0}, {0, 0}};
  for (const LayoutKind kind : kMlaKinds) {
    for (const int heads : {16, 64, 128}) {
      SCOPED_TRACE(std::string(name(kind)) + ", heads " + std::to_string(heads));
      Scene a(layout_of(kind), 64, heads, before), b(layout_of(kind), 64, heads, after, 7);
      replay(a, b);
    }
  }
}

TEST_F(LatentHazardsGpu, NoRows) {
  for (const LayoutKind kind : kKinds) {
    Scene s(layout_of(kind), 64, 16, {});
    const Ints list;
    if (kind == LayoutKind::v4_fp8) s.by_index(list, listed(kind));
    Scratch scratch(kDeviceMemory);
    AttendArgs args = s.args;
    Matrix<bf16> q(0, s.q.cols), out(0, 16 * args.problem.v_dim());
    args.q = q.view();
    args.out = out.mutable_view();
    args.max_request_rows = 1;
    args.execution.scratch = &scratch;
    args.execution.stream = stream().get();
    must(attend_latent_on_device(args));
  }
}

}  // namespace
}  // namespace lathe::cuda

int main(int argc, char** argv) { return lathe::cuda::gpu_test_main(argc, argv); }
