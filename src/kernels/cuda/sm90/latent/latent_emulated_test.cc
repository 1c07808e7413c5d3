// Latent attention's kernels themselves, run thread by thread on the CPU (common/emulator.h), against
// the oracle in double: addresses, swizzles, barriers' counts and parities, roles that wait for one
// another.
#include <bit>

#include "attn/work_list.h"
#include "kernels/cuda/sm90/latent/latent_checks.h"
#include "kernels/cuda/sm90/latent/latent_launch.h"
#include "kernels/cuda/sm90/latent/latent_shape_checks.h"
#include "kernels/cuda/sm90/latent/latent_staging.h"
// The device code comes last: it gives CUDA's words a meaning of its own.
#include "kernels/cuda/sm90/latent/latent_combine.cuh"
#include "kernels/cuda/sm90/latent/latent_count.cuh"
#include "kernels/cuda/sm90/latent/latent_narrow.cuh"
#include "kernels/cuda/sm90/latent/latent_narrow_fp8.cuh"
#include "kernels/cuda/sm90/latent/latent_native.cuh"
#include "kernels/cuda/sm90/latent/latent_native_few.cuh"
#include "kernels/cuda/sm90/latent/latent_stage.cuh"
#include "kernels/cuda/sm90/latent/latent_wide.cuh"
#include "kernels/cuda/sm90/latent/latent_wide_fp8.cuh"

namespace lathe::cuda {
namespace {

using latent_test::Ints;
using latent_test::Scene;

CUtensorMap key_map(const LatentParams& p, std::int64_t row_bytes) {
  CUtensorMap map{};
  const PageMap m{reinterpret_cast<const unsigned char*>(p.main.pages), p.main.page_stride,
                  row_bytes, box_rows(p)};
  std::memcpy(&map, &m, sizeof m);
  return map;
}

template <class Format, int kTileLines>
CUtensorMap query_map(const LatentParams& p) {
  CUtensorMap map{};
  const PageMap m{reinterpret_cast<const unsigned char*>(p.q),
                  p.q_stride * 2,
                  kDimTiles<Format> * 128,
                  query_box_lines<kTileLines, kDimTiles<Format>>(p),
                  2,
                  128,
                  p.heads,
                  p.q_rows};
  std::memcpy(&map, &m, sizeof m);
  return map;
}

CUtensorMap out_map(const LatentParams& p) {
  CUtensorMap map{};
  const PageMap m{reinterpret_cast<const unsigned char*>(p.out),
                  p.out_stride * 2,
                  1024,
                  64,
                  2,
                  128,
                  p.heads,
                  p.q_rows};
  std::memcpy(&map, &m, sizeof m);
  return map;
}

template <class Format, bool kPages, int kBlocks>
void emulate_wide_fill(const LatentParams& p) {
  const CUtensorMap map = kPages
                              ? key_map(p, Format::kRowBytes)
                              : query_map<Format, LatentWide<Format, kPages, kBlocks>::kLines>(p);
  emulate_clusters(kBlocks, {static_cast<unsigned>(p.workers * p.tiles), 1, 1},
                   LatentWide<Format, kPages, kBlocks>::kThreads,
                   latent_wide_kernel<Format, kPages, kBlocks>, p, map, out_map(p));
}
template <class Format>
void emulate_wide(const LatentParams& p) {
  if (has_boxes(p)) {
    return p.tiles % 2 == 0 ? emulate_wide_fill<Format, true, 2>(p)
                            : emulate_wide_fill<Format, true, 1>(p);
  }
  emulate_wide_fill<Format, false, 1>(p);
}
template <class Format>
void emulate_wide_fp8(const LatentParams& p) {
  emulate({static_cast<unsigned>(p.workers * p.tiles), 1, 1}, WideFp8<Format>::kThreads,
          latent_wide_fp8_kernel<Format>, p, query_map<Format, WideFp8<Format>::kLines>(p));
}
void emulate_wide(LayoutKind kind, const LatentParams& p) {
  switch (kind) {
    case LayoutKind::mla_bf16:
      return emulate_wide<Bf16Format>(p);
    case LayoutKind::mla_fp8:
      return emulate_wide_fp8<Fp8Format>(p);
    case LayoutKind::mla_fp8_block:
      return emulate_wide_fp8<Fp8BlockFormat>(p);
    default:
      return emulate_wide_fp8<V4Fp8Format>(p);
  }
}

template <class Format, int kTileLines, bool kPages>
void emulate_narrow_fill(const LatentParams& p) {
  const CUtensorMap map = kPages ? key_map(p, Format::kRowBytes) : CUtensorMap{};
  emulate({static_cast<unsigned>(p.workers), 1, 1},
          LatentNarrow<Format, kTileLines, kPages>::kThreads,
          latent_narrow_kernel<Format, kTileLines, kPages>, p, map);
}
template <class Format, int kTileLines>
void emulate_narrow_lines(const LatentParams& p) {
  if (has_boxes(p)) return emulate_narrow_fill<Format, kTileLines, true>(p);
  emulate_narrow_fill<Format, kTileLines, false>(p);
}
template <class Format, int kTileLines>
void emulate_narrow_fp8(const LatentParams& p) {
  emulate({static_cast<unsigned>(p.workers), 1, 1}, NarrowFp8<Format, kTileLines>::kThreads,
          latent_narrow_fp8_kernel<Format, kTileLines>, p, query_map<Format, kTileLines>(p));
}
template <class Format, int kTileLines>
void emulate_narrow(const LatentParams& p) {
  if constexpr (Format::kFp8 > 0) {
    emulate_narrow_fp8<Format, kTileLines>(p);
  } else {
    emulate_narrow_lines<Format, kTileLines>(p);
  }
}
template <class Format>
void emulate_narrow(const LatentParams& p, int tile_lines) {
  if (tile_lines == 8) return emulate_narrow<Format, 8>(p);
  if (tile_lines == 16) return emulate_narrow<Format, 16>(p);
  emulate_narrow<Format, 32>(p);
}
void emulate_narrow(LayoutKind kind, const LatentParams& p, int tile_lines) {
  switch (kind) {
    case LayoutKind::mla_bf16:
      return emulate_narrow<Bf16Format>(p, tile_lines);
    case LayoutKind::mla_fp8:
      return emulate_narrow<Fp8Format>(p, tile_lines);
    case LayoutKind::mla_fp8_block:
      return emulate_narrow<Fp8BlockFormat>(p, tile_lines);
    default:
      return emulate_narrow<V4Fp8Format>(p, tile_lines);
  }
}

void emulate_native(const LatentParams& p, int tile_lines) {
  const auto page = static_cast<std::int64_t>(p.main.page_size.divisor);
  PageMap m{reinterpret_cast<const unsigned char*>(p.main.pages),
            p.main.page_stride,
            576,
            std::min<std::int64_t>(page, kLatentTile),
            1,
            128};
  NativeMaps maps;
  std::memcpy(&maps.wide, &m, sizeof m);
  m.box_bytes = 64;
  std::memcpy(&maps.narrow, &m, sizeof m);
  emulate({static_cast<unsigned>(p.workers * p.tiles), 1, 1}, Native::kThreads,
          tile_lines == 8    ? latent_native_few_kernel<8>
          : tile_lines == 16 ? latent_native_few_kernel<16>
          : tile_lines == 32 ? latent_native_few_kernel<32>
                             : latent_native_kernel,
          p, maps);
}

/// A kernel for all units of a call, and what puts parts of theirs together.
template <class Kernel>
void emulate_units(const Kernel& kernel, PartOrder order, const LatentParams& p,
                   const LatentSchedule& schedule) {
  const int lines = schedule.cut.tile_lines;
  const auto run = [&](const LatentParams& units) {
    kernel(units);
    if (!units.cut) return;
    emulate({static_cast<unsigned>(units.tiles * lines), static_cast<unsigned>(units.units), 1},
            kCombineThreads,
            order == PartOrder::wide     ? latent_combine_kernel<PartOrder::wide, 1>
            : order == PartOrder::turned ? latent_combine_kernel<PartOrder::turned, 1>
                                         : latent_combine_kernel<PartOrder::rows, 1>,
            units, lines);
  };
  run(first_units(p, schedule));
  if (schedule.cut.tail.units > 0) run(last_units(p, schedule));
}

template <class Format, class Rows>
void emulate_staged(const LatentParams& fp8, const LatentSchedule& schedule, std::byte* workspace) {
  const LatentCut& cut = schedule.cut;
  LatentParams p = fp8;
  const LatentStaging staging(cut, workspace);
  std::memset(staging.zeros.data(), 0, staging.zeros.size());
  const auto sources = static_cast<unsigned>(staging.arrays.sources);
  emulate({2, sources, 1}, kStageThreads, latent_mark_kernel, p, staging.arrays);
  emulate({sources, 1, 1}, kPlaceThreads, latent_place_kernel, staging.arrays);
  emulate({2, sources, 1}, kStageThreads, latent_decode_kernel<Format>, p, staging.arrays);
  if (staging.may_overflow) p.overflow = staging.arrays.overflow;
  emulate_units(emulate_wide<Rows>, PartOrder::wide, staging.rows_of(p, cut), schedule);
  if (!staging.may_overflow) return;
  p.overflowed = true;
  emulate_units(emulate_wide_fp8<Format>, PartOrder::turned, p, schedule);
}
void emulate_staged(LayoutKind kind, const LatentParams& p, const LatentSchedule& schedule,
                    std::byte* workspace) {
  switch (kind) {
    case LayoutKind::mla_fp8:
      return emulate_staged<Fp8Format, Bf16Format>(p, schedule, workspace);
    case LayoutKind::mla_fp8_block:
      return emulate_staged<Fp8BlockFormat, Bf16Format>(p, schedule, workspace);
    default:
      return emulate_staged<V4Fp8Format, Bf16RowFormat512>(p, schedule, workspace);
  }
}

/// Pages of each source: more than a scene has.
constexpr std::int64_t kRoomForAll = 1 << 20;

/// Runs a scene's call among `processors` blocks. With row_request, the kernels get `positions` and the
/// page table in place of the scene's slots. room_pages: of how many pages of each source there is room to stage them; 0:
/// they are not. last: rows that are cut by themselves.
Outputs attend(Scene& s, int processors, std::span<const std::int32_t> row_request = {},
               std::span<const std::int32_t> positions = {}, std::int64_t room_pages = 0,
               std::int64_t last = 0) {
  AttendArgs args = s.args;
  if (!row_request.empty()) {
    args.main.indices = positions;
    s.batch.name_by_page(args.main);
  }
  const std::int64_t width = args.problem.heads * args.problem.v_dim();
  std::vector<std::uint16_t> out(static_cast<std::size_t>(args.q.rows * width), 0xffff);
  std::vector<float> lse(static_cast<std::size_t>(args.q.rows * args.problem.heads), NAN);
  args.out = {reinterpret_cast<std::byte*>(out.data()), DType::bf16, args.q.rows, width, width};
  args.lse = {reinterpret_cast<std::byte*>(lse.data()), DType::f32, args.q.rows, args.problem.heads,
              args.problem.heads};
  LatentShape shape{.rows = args.q.rows,
                    .requests = std::ssize(args.kv_lens),
                    .heads = args.problem.heads,
                    .dense = args.main.index_width == 0,
                    .fp8 = args.q.dtype == DType::e4m3,
                    .processors = processors};
  for (std::size_t r = 0; shape.dense && r < args.kv_lens.size(); ++r) {
    const std::int32_t rows = args.q_indptr[r + 1] - args.q_indptr[r];
    shape.request_rows = std::max<std::int64_t>(shape.request_rows, rows);
    shape.keys = std::max<std::int64_t>(shape.keys, args.kv_lens[r]);
  }
  if (!shape.dense) shape.keys = (args.main.index_width + 63) / 64 * 64 + args.extra.index_width;
  LatentSchedule schedule;
  schedule.cut = cut_latent(shape);
  LatentCut& cut = schedule.cut;
  if (last > 0) cut_last(cut, last);
  if (room_pages > 0) {
    shape.main = listed_pool(args.main);
    if (args.problem.two_sources()) shape.extra = listed_pool(args.extra);
    stage_latent(shape, cut);
    for (LatentStage* stage : {&cut.main, &cut.extra}) {
      EXPECT_EQ(stage->room, stage->pool.pages);
      stage->room = std::min(stage->room, room_pages);
    }
  }
  const auto units = static_cast<std::size_t>(cut.units());
  const auto first = static_cast<std::size_t>(cut.all.units);
  std::vector<std::int32_t> counts(units, -1);
  emulate({(static_cast<unsigned>(units) + 127) / 128, 1, 1}, 128, latent_count_kernel,
          latent_params(args, row_request, schedule), static_cast<std::int32_t>(shape.keys),
          counts.data());
  const std::span<const std::int32_t> keys(counts);
  WorkList list = make_work_list({keys.first(first), {}}, cut.all.work).value();
  WorkList tail = make_work_list({keys.subspan(first), {}}, cut.tail.work).value();
  schedule.list = {list.items, list.row_items, list.worker_items};
  schedule.tail = {tail.items, tail.row_items, tail.worker_items};
  LatentParams p = latent_params(args, row_request, schedule);
  std::vector<float> part(static_cast<std::size_t>(cut.workspace_bytes()) / sizeof(float), NAN);
  p.part_out = part.data();
  p.part_lse = part.data() + cut.parts() * p.tiles * cut.tile_lines * 512;
  const LayoutKind kind = args.main.pool->layout.kind();
  const bool narrow = cut.tile_lines < 64;
  const PartOrder order = kind != LayoutKind::mla_bf16 ? PartOrder::turned
                          : narrow                     ? PartOrder::rows
                                                       : PartOrder::wide;
  if (room_pages > 0) {
    emulate_staged(kind, p, schedule, reinterpret_cast<std::byte*>(part.data()));
  } else if (shape.fp8) {
    emulate_units([&](const LatentParams& of) { emulate_native(of, cut.tile_lines); }, order, p,
                  schedule);
  } else if (narrow) {
    emulate_units([&](const LatentParams& of) { emulate_narrow(kind, of, cut.tile_lines); }, order,
                  p, schedule);
  } else {
    emulate_units([&](const LatentParams& of) { emulate_wide(kind, of); }, order, p, schedule);
  }

  Outputs got{{args.q.rows, width, 0}, {args.q.rows, args.problem.heads, 0}};
  for (std::size_t i = 0; i < out.size(); ++i) {
    got.out.data[i] = std::bit_cast<float>(std::uint32_t{out[i]} << 16);
  }
  for (std::size_t i = 0; i < lse.size(); ++i) got.lse.data[i] = lse[i];
  return got;
}

/// The same, compared with the oracle.
void check(Scene& s, int processors, std::span<const std::int32_t> row_request = {},
           std::span<const std::int32_t> positions = {}, std::int64_t room_pages = 0,
           std::int64_t last = 0) {
  const Matrix<bf16> q = rounded(s.q);
  s.args.q = q.view();
  const Outputs want = s.oracle();
  expect_oracle(attend(s, processors, row_request, positions, room_pages, last), want);
}

class LatentEmulated : public ::testing::TestWithParam<LayoutKind> {};
// V4's keys come by index lists.
class LatentEmulatedPages : public LatentEmulated {};
// fp8 pages that index lists name.
class LatentEmulatedStaged : public LatentEmulated {};

TEST_P(LatentEmulatedPages, DenseByPageTable) {
  // Several items a worker, a unit cut in two, more lines than a tile, no keys at all; of bf16 pages
  // come as boxes, or row by row.
  for (const int page : {16, 128, 100}) {
    Scene s(layout_of(GetParam()), page, 48, {{130, 2}, {1, 1}, {0, 1}, {200, 1}});
    check(s, 3);
  }
}

// Tiles of lines that are heads of one row each, as outputs go by boxes: units of one row, two and none, uncut.
TEST_P(LatentEmulatedPages, WholeRows) {
  for (const int heads : {64, 128}) {
    SCOPED_TRACE("heads " + std::to_string(heads));
    Scene s(layout_of(GetParam()), 64, heads, {{70, 1}, {0, 0}, {130, 2}, {65, 1}});
    check(s, heads / 32);
  }
}

// Units of several items, whose parts are combined.
TEST_P(LatentEmulatedPages, CutUnits) {
  for (const int heads : {8, 48}) {
    Scene s(layout_of(GetParam()), 64, heads, {{700, 1}, {5, 1}, {0, 1}});
    EXPECT_GT(
        cut_latent({.requests = 3, .keys = 700, .heads = heads, .dense = true, .processors = 6})
            .all.unit_items,
        1);
    check(s, 6);
  }
}

// Scores that rise by more than the slack from tile to tile, late and on a few lines alone.
TEST_P(LatentEmulatedPages, RisingScores) {
  for (const int heads : {8, 48}) {
    Scene s(layout_of(GetParam()), 16, heads, {{330, 2}});
    s.args.problem.scale = 0.8f;
    check(s, 2);
  }
}

// Lines whose first tile has no key and whose only key after it has a score far below zero, on all alike: with one
// of both signs of the query.
TEST_P(LatentEmulatedPages, LowScoresAfterNoKey) {
  for (const float sign : {1.f, -1.f}) {
    Scene s(layout_of(GetParam()), 64, 48, {{65, 1}});
    s.batch.entry(0, 0) = PageId(-1);
    s.batch.name_by_page(s.args.main);
    s.args.problem.scale = 4;
    const std::size_t dims = s.q.data.size() / 48;
    for (std::size_t i = 0; i < s.q.data.size(); ++i) {
      s.q.data[i] = i < dims ? sign * s.q.data[i] : s.q.data[i % dims];
    }
    check(s, 2);
  }
}

// Entries of the page table that name no page: their keys are none, whatever lies in shared memory.
TEST_P(LatentEmulatedPages, MissingPages) {
  for (const int page : {16, 64}) {
    Scene s(layout_of(GetParam()), page, 48, {{300, 2}, {90, 1}});
    s.batch.entry(0, 0) = PageId(-1);
    s.batch.entry(0, 100 / page) = PageId(1 << 27);
    s.batch.entry(0, 299 / page) = PageId(-1);
    for (int i = 0; i * page < 90; ++i) s.batch.entry(1, i) = PageId(-1);
    s.batch.name_by_page(s.args.main);
    check(s, 3);
  }
}

// Queries as boxes of a row's heads, of several rows a tile and of several tiles a row, with a row of none after the
// unit's last; rows of q that lie apart. 24 heads don't fill boxes.
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
  // The second tile of 96 lines is half full.
  for (const int heads : {64, 96}) {
    SCOPED_TRACE("heads " + std::to_string(heads));
    Scene s(layout_of(GetParam()), 61, heads, {{200, 1}, {90, 2}});
    const Ints list = s.random_list(150);
    s.by_index(list, GetParam() == LayoutKind::v4_fp8 ? ProblemKind::window_compressed
                                                      : ProblemKind::sparse_latent);
    check(s, 2);
  }
}

// Lengths of index rows, none and beyond the width among them, a sink, and rows without any key.
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
    check(s, 3);
  }
}

// Rows of which the last ones are cut: with lengths and a sink, which their parts leave to the combination.
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
    for (const int last : {1, 4}) check(s, 2, {}, {}, 0, last);
  }
}

TEST_P(LatentEmulatedPages, PositionsAndPageTable) {
  for (const int heads : {8, 64}) {
    Scene s(layout_of(GetParam()), 16, heads, {{200, 2}, {70, 1}});
    Ints positions, slots, row_request;
    for (std::size_t r = 0; r < s.batch.kv_lens.size(); ++r) {
      for (std::int32_t row = s.batch.q_indptr[r]; row < s.batch.q_indptr[r + 1]; ++row) {
        row_request.push_back(static_cast<std::int32_t>(r));
        for (int j = 0; j < 90; ++j) {
          const auto pos = static_cast<std::int32_t>(s.rng() % 300) - 20;
          const bool key = pos >= 0 && pos < s.batch.kv_lens[r];
          positions.push_back(pos);
          slots.push_back(
              key ? slot_of(s.batch.entry(r, pos / s.page()), s.page(), pos % s.page()).value : -1);
        }
      }
    }
    s.by_index(slots);
    check(s, 2, row_request, positions);
    check(s, 2, row_request, positions, 0, 1);
    if (heads == 64 && GetParam() != LayoutKind::mla_bf16) {
      check(s, 2, row_request, positions, kRoomForAll);
    }
  }
}

TEST(LatentEmulatedV4, TwoSources) {
  for (const int heads : {8, 64}) {
    Scene s(layout_of(LayoutKind::v4_fp8), 64, heads, {{300, 1}, {40, 1}});
    const Ints window = s.batch.causal_list(64, 100, 100);
    const Ints list = s.random_list(130);
    s.by_two_sources(window, 100, list);
    check(s, 3);
  }
}

TEST_P(LatentEmulatedPages, FewHeadsDense) {
  for (const int page : {16, 100}) {
    Scene s(layout_of(GetParam()), page, 7, {{130, 2}, {1, 1}, {0, 1}, {300, 1}});
    check(s, 3);
  }
}

TEST_P(LatentEmulated, FewHeadsSparse) {
  for (const int heads : {8, 20}) {
    Scene s(layout_of(GetParam()), 61, heads, {{200, 1}, {90, 1}});
    const Ints list = s.random_list(150);
    s.by_index(list, GetParam() == LayoutKind::v4_fp8 ? ProblemKind::window_compressed
                                                      : ProblemKind::sparse_latent);
    check(s, 2);
  }
}

// Pages that lists name, decoded first: all of a pool's or some, and more of them than there is room for. Rows that
// name nothing and entries that name no page.
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
      check(s, 2, {}, {}, room);
      check(s, 2, {}, {}, room, 3);
    }
  }
}

// Lists that name fewer pages than there is room for, of a pool that has more.
TEST_P(LatentEmulatedStaged, RoomForWhatListsName) {
  Scene s(layout_of(GetParam()), 16, 64, {{200, 1}, {90, 2}, {300, 1}});
  Ints list = s.random_list(140);
  for (std::size_t i = 0; i < list.size(); ++i) list[i] = list[i % 20];
  s.by_index(list, GetParam() == LayoutKind::v4_fp8 ? ProblemKind::window_compressed
                                                    : ProblemKind::sparse_latent);
  check(s, 2, {}, {}, 25);
  check(s, 2, {}, {}, 25, 3);
}

TEST(LatentEmulatedStagedV4, TwoSources) {
  for (const std::int64_t room : {kRoomForAll, std::int64_t{3}}) {
    Scene s(layout_of(LayoutKind::v4_fp8), 64, 64, {{300, 1}, {40, 1}});
    const Ints window = s.batch.causal_list(64, 100, 100);
    const Ints list = s.random_list(130);
    s.by_two_sources(window, 100, list);
    check(s, 2, {}, {}, room);
    check(s, 2, {}, {}, room, 1);
  }
}

// Shapes of others' tests (latent_shape_checks.h), those that are quick: one of each row's numbers and pages.
void check(const SceneShape& shape, const Bounds& bounds) {
  SCOPED_TRACE(std::string(name(shape.layout)) + ", page " + std::to_string(shape.page) + ", " +
               std::to_string(shape.requests) + " x " + std::to_string(shape.rows) + " rows, " +
               std::to_string(shape.keys) + " keys, heads " + std::to_string(shape.heads) +
               ", lists of " + std::to_string(shape.top_k));
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
    check({.layout = GetParam(),
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
    check(shape, kDecodeBounds);
    if (s.top_k > 64) continue;
    shape.facts = true;
    if (GetParam() == LayoutKind::v4_fp8) shape.extra = 100;
    check(shape, kDecodeBounds);
    shape.nothing = true;
    check(shape, kDecodeBounds);
  }
}

// Lists longer than their context.
TEST_P(LatentEmulated, ShapesOfSparseExtend) {
  for (const int rows : {1, 30}) {
    check({.layout = GetParam(),
           .page = 64,
           .requests = 1,
           .rows = rows,
           .keys = 50,
           .heads = 64,
           .top_k = 128,
           .facts = rows == 30},
          kExtendBounds);
  }
}

// fp8 arithmetic, with latent_native_gpu_test.cc's bounds: weights are rounded to e4m3.
TEST(LatentEmulatedFp8, DenseByPageTable) {
  for (const int page : {16, 64, 128}) {
    for (const int heads : {4, 5, 12, 48}) {
      SCOPED_TRACE("page " + std::to_string(page) + ", heads " + std::to_string(heads));
      const bool cut = page == 64;
      Scene s(layout_of(LayoutKind::mla_fp8), page, heads,
              cut ? latent_test::Requests{{700, 1}, {5, 1}, {0, 1}}
                  : latent_test::Requests{{130, 2}, {1, 1}, {0, 1}, {300, 1}});
      Matrix<e4m3> q(s.q.rows, s.q.cols);
      for (std::size_t i = 0; i < q.data.size(); ++i) q.data[i] = to_e4m3(s.q.data[i] * 3);
      s.args.q = q.view();
      s.args.q_scale = 0.3f;
      const Outputs want = s.oracle(), got = attend(s, cut ? 6 : 3);
      double error = 0, all = 0;
      for (std::size_t i = 0; i < want.out.data.size(); ++i) {
        const double off = got.out.data[i] - want.out.data[i];
        error += off * off;
        all += want.out.data[i] * want.out.data[i];
      }
      EXPECT_LE(std::sqrt(error / all), 0.04);
      for (std::size_t i = 0; i < want.lse.data.size(); ++i) {
        if (want.lse.data[i] == got.lse.data[i]) continue;
        EXPECT_NEAR(got.lse.data[i], want.lse.data[i], 4e-3) << i;
      }
    }
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
INSTANTIATE_TEST_SUITE_P(Layouts, LatentEmulatedStaged,
                         ::testing::Values(LayoutKind::mla_fp8, LayoutKind::mla_fp8_block,
                                           LayoutKind::v4_fp8),
                         [](const auto& test) { return std::string(name(test.param)); });

}  // namespace
}  // namespace lathe::cuda
