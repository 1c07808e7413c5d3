// Runs the latent kernels thread by thread on the CPU (common/emulator.h), and compares them with
// the oracle in double precision. Covers addresses, swizzles, counts and parities of barriers, and
// roles that wait for one another.
#include "kernels/cuda/sm90/latent/test/latent_emulation.h"
#include "kernels/cuda/sm90/latent/test/latent_shape_checks.h"
#include "layout/codec/codec.h"

namespace lathe::cuda {
namespace {

/// check_scene() with work tiles in several small M blocks on `sms` SMs, split or whole.
void check_small_block_m(Scene& s, int sms, int m_rows, bool whole) {
  LatentShape shape = shape_of_call(s.args);
  shape.sms = sms;
  const LatentCut cut = cut_latent(shape);
  EXPECT_EQ(cut.block_m, m_rows);
  EXPECT_GT(cut.m_blocks, 1);
  EXPECT_EQ(cut.all.cut(), !whole);
  check_scene(s, sms, {}, {}, 0, 0, 16);
}

class LatentEmulated : public ::testing::TestWithParam<LayoutKind> {};
// V4's keys come by index lists only.
class LatentEmulatedPages : public LatentEmulated {};
// Work tiles of fp8 keys in several small M blocks.
class LatentEmulatedSmallBlockM : public LatentEmulated {};
class LatentEmulatedSmallBlockMPages : public LatentEmulated {};

TEST_P(LatentEmulatedPages, DenseByPageTable) {
  // Several items a worker, a split work tile, more M rows than a block, no keys at all; bf16 pages
  // by TMA boxes, or row by row.
  for (const int page : {16, 128, 100}) {
    Scene s(layout_of(GetParam()), page, 48, {{130, 2}, {1, 1}, {0, 1}, {200, 1}});
    check_scene(s, 3);
  }
}

// Each M block is heads of one row, so outputs are stored by TMA boxes: work tiles of one row, two
// and none, not split.
TEST_P(LatentEmulatedPages, WholeRows) {
  for (const int heads : {64, 128}) {
    SCOPED_TRACE("heads " + std::to_string(heads));
    Scene s(layout_of(GetParam()), 64, heads, {{70, 1}, {0, 0}, {130, 2}, {65, 1}});
    check_scene(s, heads / 32);
  }
}

// Items of three tiles of keys, which begin and end in the middle of a pair of tiles.
TEST_P(LatentEmulatedSmallBlockMPages, ItemsOfSingleTiles) {
  Scene s(layout_of(GetParam()), 64, 64, {{576, 1}, {330, 1}, {200, 1}});
  LatentShape shape = shape_of_call(s.args, 64);
  shape.sms = 9;
  EXPECT_EQ(cut_latent(shape).all.work.fixed_split, 192);
  check_scene(s, 9, {}, {}, 0, 0, 64);
}

// Work tiles of several items, with partials to combine.
TEST_P(LatentEmulatedPages, CutWorkTiles) {
  for (const int heads : {8, 48}) {
    Scene s(layout_of(GetParam()), 64, heads, {{700, 1}, {5, 1}, {0, 1}});
    EXPECT_GT(cut_latent({.requests = 3, .keys = 700, .heads = heads, .dense = true, .sms = 6})
                  .all.work_tile_items,
              1);
    check_scene(s, 6);
  }
}

// Requests of several rows, shared among workers by length.
TEST_P(LatentEmulatedPages, UnequalLengths) {
  for (const unsigned seed : {41u, 42u}) {
    for (const int heads : {8, 48}) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", heads " + std::to_string(heads));
      Scene s(layout_of(GetParam()), 64, heads, unequal_requests(seed, 7, 300, 1300));
      check_scene(s, 5);
    }
  }
}

// Scores that rise by more than the slack from tile to tile, late, and in a few M rows only.
TEST_P(LatentEmulatedPages, RisingScores) {
  for (const int heads : {8, 48}) {
    Scene s(layout_of(GetParam()), 16, heads, {{330, 2}});
    s.args.problem.scale = 0.8f;
    check_scene(s, 2);
  }
}

// M rows that see no key in the first tile, and later a single key with a score far below zero (all
// rows), or far above (one row).
TEST_P(LatentEmulatedPages, LowScoresAfterNoKey) {
  for (const float sign : {1.f, -1.f}) {
    Scene s(layout_of(GetParam()), 64, 48, {{65, 1}});
    s.batch.entry(0, 0) = PageId(-1);
    s.batch.name_by_page(s.args.main);
    s.args.problem.scale = 4;
    Matrix<float> key(1, s.q.cols / 48);
    const Slot slot = slot_of(s.batch.entry(0, 1), 64, 0);
    ASSERT_TRUE(decode_rows(s.pool.view(), slot, key.mutable_view(), {s.args.main.key_scale, 1}));
    const std::size_t dims = key.data.size();
    for (std::size_t i = 0; i < s.q.data.size(); ++i) {
      s.q.data[i] = (i < dims ? sign : 1) * -0.05f * key.data[i % dims];
    }
    check_scene(s, 2);
  }
}

// Page table entries without a page: their keys are masked, whatever shared memory holds.
TEST_P(LatentEmulatedPages, MissingPages) {
  for (const int page : {16, 64}) {
    Scene s(layout_of(GetParam()), page, 48, {{300, 2}, {90, 1}});
    s.batch.entry(0, 0) = PageId(-1);
    s.batch.entry(0, 100 / page) = PageId(1 << 27);
    s.batch.entry(0, 299 / page) = PageId(-1);
    for (int i = 0; i * page < 90; ++i) s.batch.entry(1, i) = PageId(-1);
    s.batch.name_by_page(s.args.main);
    check_scene(s, 3);
  }
}

// TMA boxes of queries with several rows in a tile and several tiles in a row, followed by a row
// beyond the work tile; rows of q that are apart. 24 heads don't fill boxes.
TEST_P(LatentEmulatedPages, QueriesOfSeveralRows) {
  struct Case {
    int heads, rows;
  };
  for (const Case c : {Case{8, 3}, Case{16, 2}, Case{16, 3}, Case{24, 2}, Case{128, 1}}) {
    Scene s(layout_of(GetParam()), 64, c.heads, {{100, c.rows}, {70, 1}});
    const Matrix<bf16> q = rounded(s.q);
    const RowsView dense = q.view();
    s.args.q = dense;
    const Outputs want = s.oracle();
    const std::int64_t stride = dense.cols + 64;
    std::vector<bf16> apart(static_cast<std::size_t>(dense.rows * stride),
                            to_bf16(std::numeric_limits<float>::quiet_NaN()));
    for (std::int64_t r = 0; r < dense.rows; ++r) {
      std::copy_n(q.data.begin() + r * dense.cols, dense.cols, apart.begin() + r * stride);
    }
    s.args.q.data = reinterpret_cast<const std::byte*>(apart.data());
    s.args.q.row_stride = stride;
    expect_oracle(attend(s, 2, {}, {}), want);
  }
}

TEST_P(LatentEmulated, SparseLists) {
  // The second block of 96 M rows is half full.
  for (const int heads : {64, 96}) {
    SCOPED_TRACE("heads " + std::to_string(heads));
    Scene s(layout_of(GetParam()), 61, heads, {{200, 1}, {90, 2}});
    const Ints list = s.random_list(150);
    s.by_index(list, GetParam() == LayoutKind::v4_fp8 ? ProblemKind::window_compressed
                                                      : ProblemKind::sparse_latent);
    check_scene(s, 2);
  }
}

// Runs of missing keys: half a tile, a tile, all but one key, and the end of a list.
TEST_P(LatentEmulated, RunsOfMissingKeys) {
  for (const int heads : {8, 64}) {
    SCOPED_TRACE("heads " + std::to_string(heads));
    constexpr int kWidth = 450;
    Scene s(layout_of(GetParam()), 61, heads, {{200, 1}, {90, 1}, {300, 1}});
    const Ints list = lists_with_missing_runs(s, kWidth, /*empty_row=*/false);
    s.by_index(list, GetParam() == LayoutKind::v4_fp8 ? ProblemKind::window_compressed
                                                      : ProblemKind::sparse_latent);
    check_scene(s, 2);
  }
}

/// Whether requests `first` to `first` + `count` of a call get the same bits as in the whole batch.
void expect_bits_of_requests(Scene& s, const Outputs& all, std::size_t first, std::size_t count,
                             int sms, std::int64_t fixed_keys) {
  SCOPED_TRACE("requests " + std::to_string(first) + " to " + std::to_string(first + count));
  const AttendArgs whole = s.args;
  Ints indptr;
  keep_requests(s.args, first, count, indptr);
  const Outputs got = attend(s, sms, {}, {}, 0, 0, 16, 128, fixed_keys);
  const std::int64_t before = whole.q_indptr[first];
  for (std::int64_t r = 0; r < got.out.rows; ++r) {
    EXPECT_TRUE(std::ranges::equal(got.out.row(r), all.out.row(before + r))) << r;
    EXPECT_TRUE(std::ranges::equal(got.lse.row(r), all.lse.row(before + r))) << r;
  }
  s.args = whole;
}

// A request's bits are the same alone, with other neighbours, and on a GPU of another size, however
// it is split.
TEST_P(LatentEmulatedPages, BatchInvariantByPageTable) {
  for (const int heads : {8, 64}) {
    SCOPED_TRACE("heads " + std::to_string(heads));
    Scene s(layout_of(GetParam()), 64, heads, {{900, 1}, {70, 1}, {0, 1}, {1500, 1}, {257, 1}});
    const Matrix<bf16> q = rounded(s.q);
    s.args.q = q.view();
    const Outputs all = attend(s, 4, {}, {}, 0, 0, 16, 128, 256);
    expect_oracle(all, s.oracle());
    expect_bits_of_requests(s, all, 0, 1, 4, 256);
    expect_bits_of_requests(s, all, 3, 1, 132, 256);
    expect_bits_of_requests(s, all, 0, 4, 7, 256);
    expect_bits_of_requests(s, all, 2, 3, 2, 256);
  }
}
TEST_P(LatentEmulated, BatchInvariantByLists) {
  for (const int heads : {8, 64}) {
    SCOPED_TRACE("heads " + std::to_string(heads));
    Scene s(layout_of(GetParam()), 64, heads, {{400, 2}, {90, 1}, {300, 2}});
    const Ints list = s.random_list(300);
    s.by_index(list, GetParam() == LayoutKind::v4_fp8 ? ProblemKind::window_compressed
                                                      : ProblemKind::sparse_latent);
    const Matrix<bf16> q = rounded(s.q);
    s.args.q = q.view();
    for (const std::int64_t keys : {128, 4096}) {
      const Outputs all = attend(s, 4, {}, {}, 0, 0, 16, 128, keys);
      expect_oracle(all, s.oracle());
      expect_bits_of_requests(s, all, 0, 1, 132, keys);
      expect_bits_of_requests(s, all, 1, 2, 3, keys);
    }
  }
}

// List lengths, including 0 and beyond the width; a sink; rows without any key.
TEST_P(LatentEmulated, LengthsAndSinks) {
  for (const int heads : {8, 64}) {
    Scene s(layout_of(GetParam()), 64, heads, {{200, 2}, {90, 2}, {5, 1}});
    Ints list = s.random_list(140);
    std::fill(list.begin() + 3 * 140, list.begin() + 4 * 140, -1);
    s.by_index(list, GetParam() == LayoutKind::v4_fp8 ? ProblemKind::window_compressed
                                                      : ProblemKind::sparse_latent);
    const Ints lengths = {140, 64, 0, 140, 1};
    s.args.main.index_lengths = lengths;
    std::vector<float> sink(static_cast<std::size_t>(heads));
    for (std::size_t h = 0; h < sink.size(); ++h) sink[h] = static_cast<float>(h % 5) - 2;
    sink[1] = -std::numeric_limits<float>::infinity();
    s.args.problem.sink = true;
    s.args.sink = sink;
    check_scene(s, 3);
  }
}

// Only the last rows are split: with lengths and a sink, which must be applied by the combine.
TEST_P(LatentEmulated, LastRowsCut) {
  for (const int heads : {8, 64}) {
    Scene s(layout_of(GetParam()), 64, heads, {{400, 2}, {90, 3}});
    const Ints list = s.random_list(300);
    s.by_index(list, GetParam() == LayoutKind::v4_fp8 ? ProblemKind::window_compressed
                                                      : ProblemKind::sparse_latent);
    const Ints lengths = {300, 0, 300, 140, 290};
    s.args.main.index_lengths = lengths;
    std::vector<float> sink(static_cast<std::size_t>(heads), 0.5f);
    s.args.problem.sink = true;
    s.args.sink = sink;
    for (const int last : {1, 4}) check_scene(s, 2, {}, {}, 0, last);
  }
}

TEST_P(LatentEmulatedPages, PositionsAndPageTable) {
  for (const int heads : {8, 64}) {
    Scene s(layout_of(GetParam()), 16, heads, {{200, 2}, {70, 1}});
    const PositionLists lists = position_lists(s, 90);
    const Ints row_request{0, 0, 1};
    s.by_index(lists.slots);
    check_scene(s, 2, row_request, lists.positions);
    check_scene(s, 2, row_request, lists.positions, 0, 1);
    if (heads == 64 && GetParam() != LayoutKind::mla_bf16) {
      check_scene(s, 2, row_request, lists.positions, kRoomForAll);
    }
  }
}

// Keys with the largest supported scale, 2^7: the largest products that f16 holds.
TEST(LatentEmulatedFp8Block, LargestKeys) {
  for (const int heads : {8, 64}) {
    Scene s(layout_of(LayoutKind::mla_fp8_block), 64, heads, {{200, 1}});
    constexpr float kMost = 448 * 128;
    const ConstPoolView small = s.pool.view();
    std::vector<std::byte> bytes(static_cast<std::size_t>(small.bytes()), std::byte{0xff});
    const PoolView large(bytes.data(), small.layout, 64, small.pages);
    s.args.main.pool.emplace(bytes.data(), small.layout, 64, small.pages);
    Matrix<float> key(1, 576);
    for (int pos = 0; pos < 200; ++pos) {
      const std::array slot = {slot_of(s.batch.entry(0, pos / 64), 64, pos % 64)};
      ASSERT_TRUE(decode_rows(small, slot[0], key.mutable_view(), {}));
      float amax = 0;
      for (int i = 0; i < 512; ++i) amax = std::max(amax, std::abs(key.data[i]));
      for (float& x : key.data) x *= kMost / amax;
      ASSERT_TRUE(encode_rows(key.view(), slot, large, {}));
    }
    s.args.problem.scale *= 3 / kMost;
    const Matrix<bf16> q = rounded(s.q);
    s.args.q = q.view();
    Outputs got = attend(s, 2), want = s.oracle();
    for (Outputs* o : {&got, &want}) {
      for (auto& x : o->out.data) x *= 3 / kMost;
    }
    expect_oracle(got, want);
  }
}

// Scales that are not powers of two, as SGLang writes them: by page table, by list, and staged.
TEST(LatentEmulatedFp8Block, RawScales) {
  const CacheLayout layout(LayoutKind::mla_fp8_block, {.nope = 512, .rope = 64},
                           ScalePolicy::raw_f32);
  for (const int heads : {8, 64}) {
    SCOPED_TRACE("heads " + std::to_string(heads));
    Scene pages(layout, 64, heads, {{330, 2}, {1, 1}, {90, 1}});
    check_scene(pages, 3);
    Scene lists(layout, 64, heads, {{200, 1}, {90, 2}, {300, 1}});
    const Ints list = lists.random_list(140);
    lists.by_index(list);
    const Ints lengths = {140, 1, 62, 140};
    lists.args.main.index_lengths = lengths;
    check_scene(lists, 2);
    if (heads == 64) check_scene(lists, 2, {}, {}, kRoomForAll);
  }
}

TEST(LatentEmulatedV4, TwoSources) {
  for (const int heads : {8, 64}) {
    Scene s(layout_of(LayoutKind::v4_fp8), 64, heads, {{300, 1}, {40, 1}});
    const Ints window = s.batch.causal_list(64, 100, 100);
    const Ints list = s.random_list(130);
    s.by_two_sources(window, 100, list);
    check_scene(s, 3);
  }
}

// Sources with pages of different sizes.
TEST(LatentEmulatedV4, TwoPools) {
  for (const int page : {2, 64}) {
    for (const int heads : {8, 64}) {
      SCOPED_TRACE("page " + std::to_string(page) + ", heads " + std::to_string(heads));
      TwoPools pools(page, heads, {{300, 1}, {40, 1}}, 100, 130);
      check_scene(pools.scene, 2);
      if (heads == 64) check_scene(pools.scene, 2, {}, {}, kRoomForAll);
    }
  }
}

TEST_P(LatentEmulatedPages, FewHeadsDense) {
  for (const int page : {16, 100}) {
    Scene s(layout_of(GetParam()), page, 7, {{130, 2}, {1, 1}, {0, 1}, {300, 1}});
    check_scene(s, 3);
  }
}

TEST_P(LatentEmulated, FewHeadsSparse) {
  for (const int heads : {8, 20}) {
    Scene s(layout_of(GetParam()), 61, heads, {{200, 1}, {90, 1}});
    const Ints list = s.random_list(150);
    s.by_index(list, GetParam() == LayoutKind::v4_fp8 ? ProblemKind::window_compressed
                                                      : ProblemKind::sparse_latent);
    check_scene(s, 2);
  }
}

// More than 32 M rows in small blocks of one row each; work tiles split and whole; by lists with
// lengths and a sink, and by page table, where each row sees one more key.
TEST_P(LatentEmulatedSmallBlockM, ByLists) {
  for (const bool whole : {false, true}) {
    const int heads = whole ? 96 : 48, width = whole ? 200 : 700;
    SCOPED_TRACE("heads " + std::to_string(heads));
    Scene s(layout_of(GetParam()), 64, heads, {{700, 2}, {90, 1}});
    const Ints list = s.random_list(width);
    s.by_index(list, GetParam() == LayoutKind::v4_fp8 ? ProblemKind::window_compressed
                                                      : ProblemKind::sparse_latent);
    const Ints lengths = {width, 140, 0};
    s.args.main.index_lengths = lengths;
    std::vector<float> sink(static_cast<std::size_t>(heads));
    for (std::size_t h = 0; h < sink.size(); ++h) sink[h] = static_cast<float>(h % 5) - 2;
    s.args.problem.sink = true;
    s.args.sink = sink;
    check_small_block_m(s, whole ? 14 : 132, whole ? 32 : 16, whole);
  }
}
TEST_P(LatentEmulatedSmallBlockMPages, ByPageTable) {
  for (const bool whole : {false, true}) {
    const int heads = whole ? 64 : 16, keys = whole ? 200 : 700;
    SCOPED_TRACE("heads " + std::to_string(heads));
    Scene s(layout_of(GetParam()), 64, heads, {{keys, 3}, {66, 2}, {0, 1}, {1, 1}});
    check_small_block_m(s, whole ? 40 : 132, whole ? 32 : 16, whole);
  }
}

// Shapes from other libraries' tests (latent_shape_checks.h) that run quickly: one of each number
// of rows and pages.
void check_shape(const SceneShape& shape, const Bounds& bounds) {
  SCOPED_TRACE(to_string(shape));
  ShapeScene s(shape);
  const Outputs got = attend(s.scene, shape.heads > 64 ? 6 : 3);
  for (std::int32_t r = 0; r < shape.requests; ++r) {
    s.expect(got, static_cast<std::size_t>(r), 0, shape.heads, bounds);
  }
}

TEST_P(LatentEmulatedPages, ShapesOfDenseDecode) {
  struct Shape {
    int requests, rows, keys, heads;
  };
  for (const Shape s :
       {Shape{1, 1, 20, 1}, Shape{2, 4, 20, 3}, Shape{6, 2, 140, 9}, Shape{1, 2, 140, 63},
        Shape{2, 1, 140, 64}, Shape{1, 4, 20, 126}, Shape{2, 2, 140, 128}, Shape{1, 1, 4096, 3}}) {
    check_shape({.layout = GetParam(),
                 .page = 64,
                 .requests = s.requests,
                 .rows = s.rows,
                 .keys = s.keys,
                 .heads = s.heads,
                 .ragged = true},
                kDecodeBounds);
  }
}

TEST_P(LatentEmulated, ShapesOfSparseDecode) {
  struct Shape {
    int page, requests, rows, keys, heads, top_k;
  };
  for (const Shape s : {Shape{2, 4, 1, 512, 64, 64}, Shape{64, 4, 3, 512, 128, 64},
                        Shape{69, 4, 1, 512, 64, 64}, Shape{61, 1, 1, 1024, 64, 576}}) {
    SceneShape shape{.layout = GetParam(),
                     .page = s.page,
                     .requests = s.requests,
                     .rows = s.rows,
                     .keys = s.keys,
                     .heads = s.heads,
                     .top_k = s.top_k,
                     .ragged = true};
    check_shape(shape, kDecodeBounds);
    if (s.top_k > 64) continue;
    shape.lengths_and_sink = true;
    if (GetParam() == LayoutKind::v4_fp8) shape.extra = 100;
    check_shape(shape, kDecodeBounds);
    shape.nothing = true;
    check_shape(shape, kDecodeBounds);
  }
}

// Lists longer than their context.
TEST_P(LatentEmulated, ShapesOfSparseExtend) {
  for (const int rows : {1, 30}) {
    check_shape({.layout = GetParam(),
                 .page = 64,
                 .requests = 1,
                 .rows = rows,
                 .keys = 50,
                 .heads = 64,
                 .top_k = 128,
                 .lengths_and_sink = rows == 30},
                kExtendBounds);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, LatentEmulatedPages,
                         ::testing::Values(LayoutKind::mla_bf16, LayoutKind::mla_fp8,
                                           LayoutKind::mla_fp8_block),
                         [](const auto& test) { return std::string(name(test.param)); });
INSTANTIATE_TEST_SUITE_P(Layouts, LatentEmulated,
                         ::testing::Values(LayoutKind::mla_bf16, LayoutKind::mla_fp8,
                                           LayoutKind::mla_fp8_block, LayoutKind::v4_fp8),
                         [](const auto& test) { return std::string(name(test.param)); });
INSTANTIATE_TEST_SUITE_P(Layouts, LatentEmulatedSmallBlockM,
                         ::testing::Values(LayoutKind::mla_fp8, LayoutKind::mla_fp8_block,
                                           LayoutKind::v4_fp8),
                         [](const auto& test) { return std::string(name(test.param)); });
INSTANTIATE_TEST_SUITE_P(Layouts, LatentEmulatedSmallBlockMPages,
                         ::testing::Values(LayoutKind::mla_fp8, LayoutKind::mla_fp8_block),
                         [](const auto& test) { return std::string(name(test.param)); });

}  // namespace
}  // namespace lathe::cuda
