// Latent attention on fp8 pages that are decoded first, emulated, against the oracle in double
// precision.
#include "kernels/cuda/sm90/latent/test/latent_emulation.h"

namespace lathe::cuda {
namespace {

// fp8 pages with index lists.
class LatentEmulatedStaged : public ::testing::TestWithParam<LayoutKind> {};

// Staged pages: all of a pool or some, and more than there is room for. Some rows list nothing or
// have entries without a page.
TEST_P(LatentEmulatedStaged, SparseLists) {
  for (const int page : {16, 61}) {
    for (const std::int64_t room : {kRoomForAll, std::int64_t{2}}) {
      SCOPED_TRACE("page " + std::to_string(page) + ", room " + std::to_string(room));
      Scene s(layout_of(GetParam()), page, 64, {{200, 1}, {90, 2}, {300, 1}});
      // With and without entries that are read four at a time.
      const int width = page == 16 ? 72 : 70;
      Ints list = s.random_list(width);
      std::fill(list.begin() + width, list.begin() + 2 * width, -1);
      list[3] = 1 << 30;
      const Ints lengths = {width, width, 62, 1};
      s.by_index(list, GetParam() == LayoutKind::v4_fp8 ? ProblemKind::window_compressed
                                                        : ProblemKind::sparse_latent);
      s.args.main.index_lengths = lengths;
      check_scene(s, 2, {}, {}, room);
      check_scene(s, 2, {}, {}, room, 3);
    }
  }
}

// The last rows are split at single tiles of keys, as kernels on fp8 pages support; the kernel on
// decoded rows works in pairs.
TEST_P(LatentEmulatedStaged, LastRowsCutAtSingleTiles) {
  for (const std::int64_t room : {kRoomForAll, std::int64_t{2}}) {
    for (const std::int64_t keys : {64, 192}) {
      SCOPED_TRACE("room " + std::to_string(room) + ", items of " + std::to_string(keys));
      Scene s(layout_of(GetParam()), 64, 64, {{500, 1}, {90, 2}, {300, 1}});
      const Ints list = s.random_list(450);
      s.by_index(list, GetParam() == LayoutKind::v4_fp8 ? ProblemKind::window_compressed
                                                        : ProblemKind::sparse_latent);
      const Ints lengths = {450, 449, 200, 65};
      s.args.main.index_lengths = lengths;
      check_scene(s, 2, {}, {}, room, 3, 64, keys);
    }
  }
}

// Lists of fewer pages than there is room for, of a pool that has more.
TEST_P(LatentEmulatedStaged, RoomForWhatListsHold) {
  Scene s(layout_of(GetParam()), 16, 64, {{200, 1}, {90, 2}, {300, 1}});
  Ints list = s.random_list(140);
  for (std::size_t i = 0; i < list.size(); ++i) list[i] = list[i % 20];
  s.by_index(list, GetParam() == LayoutKind::v4_fp8 ? ProblemKind::window_compressed
                                                    : ProblemKind::sparse_latent);
  check_scene(s, 2, {}, {}, 25);
  check_scene(s, 2, {}, {}, 25, 3);
}

TEST(LatentEmulatedStagedV4, TwoSources) {
  for (const std::int64_t room : {kRoomForAll, std::int64_t{3}}) {
    Scene s(layout_of(LayoutKind::v4_fp8), 64, 64, {{300, 1}, {40, 1}});
    const Ints window = s.batch.causal_list(64, 100, 100);
    const Ints list = s.random_list(130);
    s.by_two_sources(window, 100, list);
    check_scene(s, 2, {}, {}, room);
    check_scene(s, 2, {}, {}, room, 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, LatentEmulatedStaged,
                         ::testing::Values(LayoutKind::mla_fp8, LayoutKind::mla_fp8_block,
                                           LayoutKind::v4_fp8),
                         [](const auto& test) { return std::string(name(test.param)); });

}  // namespace
}  // namespace lathe::cuda
