// Compiled alone: it includes kernels. The tests of latent attention share its instances.
#include "kernels/cuda/sm90/latent/test/latent_emulation.h"

#include <bit>

#include "attn/work_list.h"
#include "kernels/cuda/sm90/latent/latent_launch.h"
#include "kernels/cuda/sm90/latent/stage/staging.h"
// Device code comes last: it redefines CUDA's keywords.
#include "kernels/cuda/sm90/latent/combine/combine.cuh"
#include "kernels/cuda/sm90/latent/m64/m64_bf16.cuh"
#include "kernels/cuda/sm90/latent/m64/m64_fp8.cuh"
#include "kernels/cuda/sm90/latent/native/native_m64.cuh"
#include "kernels/cuda/sm90/latent/native/native_swap_ab.cuh"
#include "kernels/cuda/sm90/latent/schedule/count_keys.cuh"
#include "kernels/cuda/sm90/latent/schedule/share_fixed.cuh"
#include "kernels/cuda/sm90/latent/schedule/share_work.cuh"
#include "kernels/cuda/sm90/latent/stage/stage.cuh"
#include "kernels/cuda/sm90/latent/swap_ab/swap_ab_bf16.cuh"
#include "kernels/cuda/sm90/latent/swap_ab/swap_ab_fp8.cuh"

namespace lathe::cuda {
namespace {

CUtensorMap key_map(const LatentParams& p, std::int64_t row_bytes) {
  CUtensorMap map{};
  const PageMap m{reinterpret_cast<const unsigned char*>(p.main.pages), p.main.page_stride,
                  row_bytes, box_rows(p)};
  std::memcpy(&map, &m, sizeof m);
  return map;
}

template <class Format, int kBlockM>
CUtensorMap query_map(const LatentParams& p) {
  CUtensorMap map{};
  const PageMap m{reinterpret_cast<const unsigned char*>(p.q),
                  p.q_stride * 2,
                  kDimTiles<Format> * 128,
                  query_box_rows<kBlockM, kDimTiles<Format>>(p),
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
void emulate_m64_instance(const LatentParams& p) {
  const CUtensorMap map = kPages ? key_map(p, Format::kRowBytes)
                                 : query_map<Format, LatentM64<Format, kPages, kBlocks>::kMRows>(p);
  emulate_clusters(kBlocks, {static_cast<unsigned>(p.workers * p.m_blocks), 1, 1},
                   LatentM64<Format, kPages, kBlocks>::kThreads,
                   latent_m64_kernel<Format, kPages, kBlocks>, p, map, out_map(p));
}
template <class Format>
void emulate_m64(const LatentParams& p) {
  if (has_boxes(p)) {
    return p.m_blocks % 2 == 0 ? emulate_m64_instance<Format, true, 2>(p)
                               : emulate_m64_instance<Format, true, 1>(p);
  }
  emulate_m64_instance<Format, false, 1>(p);
}
template <class Format>
void emulate_m64_fp8(const LatentParams& p) {
  emulate({static_cast<unsigned>(p.workers * p.m_blocks), 1, 1}, M64Fp8<Format>::kThreads,
          latent_m64_fp8_kernel<Format>, p, query_map<Format, M64Fp8<Format>::kMRows>(p));
}
void emulate_m64(LayoutKind kind, const LatentParams& p) {
  if (kind == LayoutKind::mla_bf16) return emulate_m64<Bf16Format>(p);
  if (kind == LayoutKind::mla_fp8) return emulate_m64_fp8<Fp8Format>(p);
  if (kind == LayoutKind::mla_fp8_block) return emulate_m64_fp8<Fp8BlockFormat>(p);
  if (kind == LayoutKind::v4_fp8) return emulate_m64_fp8<V4Fp8Format>(p);
  FAIL() << "no m64 kernel for " << name(kind);
}

template <class Format, int kBlockM, bool kPages>
void emulate_swap_ab_instance(const LatentParams& p) {
  const CUtensorMap map = kPages ? key_map(p, Format::kRowBytes) : CUtensorMap{};
  emulate({static_cast<unsigned>(p.workers * p.m_blocks), 1, 1},
          LatentSwapAb<Format, kBlockM, kPages>::kThreads,
          latent_swap_ab_kernel<Format, kBlockM, kPages>, p, map);
}
template <class Format, int kBlockM>
void emulate_swap_ab_m(const LatentParams& p) {
  if (has_boxes(p)) return emulate_swap_ab_instance<Format, kBlockM, true>(p);
  emulate_swap_ab_instance<Format, kBlockM, false>(p);
}
template <class Format, int kBlockM>
void emulate_swap_ab_fp8(const LatentParams& p) {
  emulate({static_cast<unsigned>(p.workers * p.m_blocks), 1, 1},
          SwapAbFp8<Format, kBlockM>::kThreads, latent_swap_ab_fp8_kernel<Format, kBlockM>, p,
          query_map<Format, kBlockM>(p));
}
template <class Format, int kBlockM>
void emulate_swap_ab(const LatentParams& p) {
  if constexpr (Format::kFp8 > 0) {
    emulate_swap_ab_fp8<Format, kBlockM>(p);
  } else {
    emulate_swap_ab_m<Format, kBlockM>(p);
  }
}
template <class Format>
void emulate_swap_ab(const LatentParams& p, int block_m) {
  if (block_m == 8) return emulate_swap_ab<Format, 8>(p);
  if (block_m == 16) return emulate_swap_ab<Format, 16>(p);
  emulate_swap_ab<Format, 32>(p);
}
void emulate_swap_ab(LayoutKind kind, const LatentParams& p, int block_m) {
  if (kind == LayoutKind::mla_bf16) return emulate_swap_ab<Bf16Format>(p, block_m);
  if (kind == LayoutKind::mla_fp8) return emulate_swap_ab<Fp8Format>(p, block_m);
  if (kind == LayoutKind::mla_fp8_block) return emulate_swap_ab<Fp8BlockFormat>(p, block_m);
  if (kind == LayoutKind::v4_fp8) return emulate_swap_ab<V4Fp8Format>(p, block_m);
  FAIL() << "no swap_ab kernel for " << name(kind);
}

template <bool kLists>
void emulate_native(const LatentParams& p, int block_m, const NativeMaps& maps) {
  emulate({static_cast<unsigned>(p.workers * p.m_blocks), 1, 1}, Native::kThreads,
          block_m == 8    ? latent_native_swap_ab_kernel<8, kLists>
          : block_m == 16 ? latent_native_swap_ab_kernel<16, kLists>
          : block_m == 32 ? latent_native_swap_ab_kernel<32, kLists>
                          : latent_native_kernel<kLists>,
          p, maps);
}
void emulate_native(const LatentParams& p, int block_m) {
  NativeMaps maps{};
  if (!p.dense) return emulate_native<true>(p, block_m, maps);
  const auto page = static_cast<std::int64_t>(p.main.page_size.divisor);
  PageMap m{reinterpret_cast<const unsigned char*>(p.main.pages),
            p.main.page_stride,
            576,
            std::min<std::int64_t>(page, kLatentTile),
            1,
            128};
  std::memcpy(&maps.dims128, &m, sizeof m);
  m.box_bytes = 64;
  std::memcpy(&maps.dims64, &m, sizeof m);
  emulate_native<false>(p, block_m, maps);
}

/// Runs a kernel for all work tiles of a call, and the combine.
template <class Kernel>
void emulate_work_tiles(const Kernel& kernel, PartialLayout order, const LatentParams& p,
                        const LatentSchedule& schedule, DType q = DType::bf16) {
  const int m_rows = schedule.cut.block_m;
  const auto run = [&](const LatentParams& work_tiles) {
    kernel(work_tiles);
    if (!work_tiles.cut) return;
    const auto combine = [&](const Index3& grid, const auto& m64, const auto& swapped,
                             const auto& rows, auto... more) {
      emulate_blocks(1, grid, {kCombineThreads, 1, 1},
                     order == PartialLayout::m64       ? m64
                     : order == PartialLayout::swapped ? swapped
                                                       : rows,
                     work_tiles, m_rows, more...);
    };
    const auto runs = static_cast<unsigned>(work_tiles.m_blocks * m_rows);
    if (schedule.cut.shared) {  // fewer blocks than entries
      return combine({runs, 3, 1}, latent_combine_split_kernel<PartialLayout::m64>,
                     latent_combine_split_kernel<PartialLayout::swapped>,
                     latent_combine_split_kernel<PartialLayout::rows>);
    }
    combine({2 * runs, static_cast<unsigned>(work_tiles.work_tiles), 1},
            latent_combine_kernel<PartialLayout::m64>,
            latent_combine_kernel<PartialLayout::swapped>,
            latent_combine_kernel<PartialLayout::rows>, /*parts=*/2);
  };
  run(first_work_tiles(p, schedule));
  if (schedule.cut.tail.work_tiles > 0) run(last_work_tiles(p, schedule, q));
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
  emulate_work_tiles(emulate_m64<Rows>, PartialLayout::m64, staging.rows_of(p, cut), schedule);
  if (!staging.may_overflow) return;
  p.overflowed = true;
  emulate_work_tiles(emulate_m64_fp8<Format>, PartialLayout::swapped, p, schedule);
}
void emulate_staged(LayoutKind kind, const LatentParams& p, const LatentSchedule& schedule,
                    std::byte* workspace) {
  if (kind == LayoutKind::mla_fp8)
    return emulate_staged<Fp8Format, Bf16Format>(p, schedule, workspace);
  if (kind == LayoutKind::mla_fp8_block)
    return emulate_staged<Fp8BlockFormat, Bf16Format>(p, schedule, workspace);
  if (kind == LayoutKind::v4_fp8)
    return emulate_staged<V4Fp8Format, Bf16RowFormat512>(p, schedule, workspace);
  FAIL() << "pages of " << name(kind) << " are not staged";
}

}  // namespace

Outputs attend(Scene& s, int sms, std::span<const std::int32_t> row_request,
               std::span<const std::int32_t> positions, std::int64_t room_pages, std::int64_t last,
               std::int32_t min_block_m, std::int64_t last_keys, std::int64_t fixed_keys) {
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
  LatentShape shape = shape_of_call(args, min_block_m);
  shape.sms = sms;
  shape.fixed_keys = fixed_keys;
  LatentSchedule schedule;
  schedule.cut = cut_latent(shape);
  LatentCut& cut = schedule.cut;
  if (last > 0) cut_last(cut, last, last_keys);
  if (room_pages > 0) {
    shape.main = listed_pool(args.main);
    if (args.problem.two_sources()) shape.extra = listed_pool(args.extra);
    stage_latent(shape, cut);
    for (LatentStage* stage : {&cut.main, &cut.extra}) {
      EXPECT_EQ(stage->room, stage->pool.pages);
      stage->room = std::min(stage->room, room_pages);
    }
  }
  const auto work_tiles = static_cast<std::size_t>(cut.work_tiles());
  const auto first = static_cast<std::size_t>(cut.all.work_tiles);
  WorkList list, tail;
  std::vector<LatentSplitTile> split_tiles;
  if (cut.shared) {
    list.items.resize(static_cast<std::size_t>(cut.all.items));
    list.worker_items.resize(static_cast<std::size_t>(cut.all.work.workers) + 1);
    schedule.list = {list.items, {}, list.worker_items};
    split_tiles.resize(static_cast<std::size_t>(cut.split_entries()));
    schedule.split_tiles = split_tiles;
    emulate({1, 1, 1}, kShareWorkers + 1,
            cut.fixed > 0 ? latent_share_fixed_kernel : latent_share_kernel,
            latent_params(args, row_request, schedule), latent_sharing(schedule));
  } else {
    std::vector<std::int32_t> counts(work_tiles, -1);
    emulate({(static_cast<unsigned>(work_tiles) + 127) / 128, 1, 1}, 128, latent_count_kernel,
            latent_params(args, row_request, schedule), static_cast<std::int32_t>(shape.keys),
            counts.data());
    const std::span<const std::int32_t> keys(counts);
    list = make_work_list({keys.first(first), {}}, cut.all.work).value();
    tail = make_work_list({keys.subspan(first), {}}, cut.tail.work).value();
    schedule.list = {list.items, list.row_items, list.worker_items};
    schedule.tail = {tail.items, tail.row_items, tail.worker_items};
  }
  LatentParams p = latent_params(args, row_request, schedule);
  std::vector<float> part(static_cast<std::size_t>(cut.workspace_bytes()) / sizeof(float), NAN);
  p.partial_out = part.data();
  p.partial_lse = part.data() + cut.partials() * p.m_blocks * cut.block_m * 512;
  const LayoutKind kind = args.main.pool->layout.kind();
  const bool swap_ab = cut.block_m < 64;
  const PartialLayout order = kind != LayoutKind::mla_bf16 ? PartialLayout::swapped
                              : swap_ab                    ? PartialLayout::rows
                                                           : PartialLayout::m64;
  if (room_pages > 0) {
    emulate_staged(kind, p, schedule, reinterpret_cast<std::byte*>(part.data()));
  } else if (shape.fp8) {
    emulate_work_tiles([&](const LatentParams& of) { emulate_native(of, cut.block_m); }, order, p,
                       schedule, DType::e4m3);
  } else if (swap_ab) {
    emulate_work_tiles([&](const LatentParams& of) { emulate_swap_ab(kind, of, cut.block_m); },
                       order, p, schedule);
  } else {
    emulate_work_tiles([&](const LatentParams& of) { emulate_m64(kind, of); }, order, p, schedule);
  }

  Outputs got{{args.q.rows, width, 0}, {args.q.rows, args.problem.heads, 0}};
  for (std::size_t i = 0; i < out.size(); ++i) {
    got.out.data[i] = std::bit_cast<float>(std::uint32_t{out[i]} << 16);
  }
  for (std::size_t i = 0; i < lse.size(); ++i) got.lse.data[i] = lse[i];
  return got;
}

}  // namespace lathe::cuda
