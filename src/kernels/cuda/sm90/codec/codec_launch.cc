#include "kernels/cuda/sm90/codec/codec_launch.h"

#include <algorithm>
#include <bit>

namespace lathe::cuda {
namespace {

// SMs of an H100 or H200. Affects only how rows are split into blocks, not the results.
constexpr std::int64_t kSms = 132;

bool aligned(const void* data, std::int64_t multiple, std::initializer_list<std::int64_t> strides) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  if (address % static_cast<std::uintptr_t>(multiple) != 0) return false;
  return std::all_of(strides.begin(), strides.end(),
                     [&](std::int64_t s) { return s % multiple == 0; });
}

RunKind kind_of(const ValueRun& run) {
  if (run.source == ScaleSource::plain) return RunKind::bf16;
  if (run.dtype == DType::e2m1) return RunKind::e2m1_ue8m0;
  if (run.source == ScaleSource::tile_f32) return RunKind::e4m3_f32;
  if (run.source == ScaleSource::tile_ue8m0) return RunKind::e4m3_ue8m0;
  return RunKind::e4m3_tensor;
}

RunParams run_params(const ValueRun& run, const ConstPoolView& pool, ScalePolicy policy,
                     const TensorScales& scales) {
  RunParams p;
  p.kind = kind_of(run);
  p.raw_scale = policy == ScalePolicy::raw_f32;
  p.first_chunk = static_cast<std::uint32_t>(run.first / kChunk);
  p.first_tile = static_cast<std::uint32_t>(run.first_tile);
  p.start = run.values.start;
  p.step = static_cast<std::uint32_t>(run.values.step);
  p.lanes.chunks = static_cast<std::uint32_t>(run.elems / kChunk);
  const std::int64_t chunk_bytes = bytes_of(run.dtype, kChunk);
  p.vector = aligned(pool.data, chunk_bytes, {pool.page_stride, p.start, p.step});
  p.vector_scale = true;
  if (run.tile == 0) {
    p.scale = tensor_scale(run.source, scales);
    p.inverse = 1.0f / p.scale;
    return p;
  }
  const auto threads = static_cast<std::uint32_t>(run.tile / kChunk);
  p.tile_shift =
      std::has_single_bit(threads) && threads <= 32 ? std::countr_zero(threads) : kWideTile;
  p.scale_start = run.scales.start;
  p.scale_step = static_cast<std::uint32_t>(run.scales.step);
  p.vector_scale = aligned(pool.data, 4, {pool.page_stride, p.scale_start, p.scale_step});
  p.scale_word = p.kind == RunKind::e4m3_ue8m0 && p.lanes.chunks == 7 * threads &&
                 p.scale_step == 8 && aligned(pool.data, 8, {pool.page_stride, p.scale_start});
  return p;
}

// Fills in the runs of a layout and returns their number.
std::int32_t set_runs(const RowPlan& plan, const ConstPoolView& pool, const TensorScales& scales,
                      RunParams (&runs)[2]) {
  for (int i = 0; i < plan.run_count; ++i) {
    runs[i] = run_params(plan.runs[static_cast<std::size_t>(i)], pool, plan.policy, scales);
  }
  return plan.run_count;
}

template <class Index>
const std::int32_t* values(std::span<const Index> list) {
  return list.empty() ? nullptr : &list.data()->value;
}

std::int32_t batches_of(const LaneMap& lanes, std::int32_t rows) {
  const std::int32_t of_warp = 32 >> lanes.shift;
  return (rows + of_warp - 1) / of_warp * static_cast<std::int32_t>(lanes.pieces.divisor);
}
double accesses_of(const LaneMap& lanes) { return lanes.chunks; }
double room_of(const LaneMap& lanes) { return 32 * lanes.rounds; }

std::int32_t batches_of(const MoveLaneMap& lanes, std::int32_t rows) {
  const std::uint32_t accesses = static_cast<std::uint32_t>(rows) * lanes.accesses.divisor;
  return static_cast<std::int32_t>((accesses + lanes.batch - 1) / lanes.batch);
}
double accesses_of(const MoveLaneMap& lanes) { return lanes.accesses.divisor; }
double room_of(const MoveLaneMap& lanes) { return lanes.batch; }

// Fewest warps of a block, if there are enough rows.
constexpr std::int32_t kFewestWarps = 3;
constexpr std::int32_t kFewestRequantWarps = 2;

// Rows per block: `most`, but few enough that every SM gets two blocks.
std::int32_t spread_rows(std::int64_t count, std::int32_t most) {
  const std::int64_t spread = (count + 2 * kSms - 1) / (2 * kSms);
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(spread, 1, most));
}

// Chooses the rows of a block and its threads.
template <class Params, class AnyMap>
void set_block_rows(Params& p, std::int32_t rows, std::initializer_list<AnyMap*> maps,
                    std::int32_t fewest_warps = kFewestWarps) {
  const auto all = [&](std::int32_t r) {
    std::int32_t batches = 0;
    for (const AnyMap* c : maps) batches += batches_of(*c, r);
    return batches;
  };
  if (rows == 0) {
    // The batches with the fewest idle lanes that fit a block's warps. Among equals the fewest
    // rows, because a block runs as long as its slowest warp; but an SM holds at most 32 blocks.
    rows = 1;
    double best = 0;
    for (std::int32_t r = 1; r <= kMaxBlockRows && (r == 1 || all(r) <= kCodecWarps); ++r) {
      double chunks = 0, room = 0;
      for (const AnyMap* c : maps) {
        chunks += r * accesses_of(*c);
        room += batches_of(*c, r) * room_of(*c);
      }
      if (chunks / room < best || (chunks / room == best && all(rows) >= fewest_warps)) continue;
      best = chunks / room;
      rows = r;
    }
    rows = spread_rows(p.count, rows);
  }
  p.block_rows = rows;
  p.threads = 32 * std::clamp(all(rows), 1, kCodecWarps);
  for (AnyMap* c : maps) c->batches = batches_of(*c, rows);
}

template <class Params, class AnyMap>
void set_run_rows(Params& p, std::int32_t rows, AnyMap& first, AnyMap& second) {
  if (p.run_count == 2) {
    set_block_rows<Params, AnyMap>(p, rows, {&first, &second});
  } else {
    set_block_rows<Params, AnyMap>(p, rows, {&first});
  }
}

// Assigns a run's chunks to lanes so that `rounds` of 2^shift lanes divide them evenly and a tile
// is within a round or is the whole row. Neighbouring lanes of a row access at least 64 contiguous
// bytes, if the run allows it. False if no shift works.
bool map_whole_rounds(RunParams& run, int rounds, int least_shift, bool encodes) {
  LaneMap& lanes = run.lanes;
  for (int shift = 5; shift >= least_shift; --shift) {
    const auto piece = static_cast<std::uint32_t>(rounds) << shift;
    if (lanes.chunks % piece != 0) continue;
    // Paired halves rotate in place only if all chunks of a row are in one warp.
    if (run.rotates && lanes.chunks != piece) continue;
    const bool within = run.tile_shift <= shift;
    const bool spans = run.kind != RunKind::e2m1_ue8m0 && piece == 1u << run.tile_shift;
    if (encodes && !within && !spans) continue;
    // With rotation there is one round, and each lane stores its own scale byte. Otherwise the
    // scales of e2m1 are stored as joined words, which must come out whole.
    const bool joins = run.kind == RunKind::e2m1_ue8m0 && !run.rotates;
    if (encodes && joins && !scales_join(rounds, shift)) continue;
    lanes.shift = shift;
    lanes.rounds = rounds;
    lanes.pieces = FastDiv(lanes.chunks / piece);
    return true;
  }
  return false;
}

// As map_whole_rounds() with one round, in which some lanes may be idle. wide: a wide tile is
// encoded, which needs a warp per row.
void map_one_round(RunParams& run, bool wide) {
  LaneMap& lanes = run.lanes;
  lanes.shift = wide ? 5 : std::min(static_cast<int>(std::bit_width(lanes.chunks - 1)), 5);
  lanes.rounds = 1;
  lanes.pieces = FastDiv(wide ? 1 : ((lanes.chunks - 1) >> lanes.shift) + 1);
}

// Seven rounds work only where a row's scales are one word.
Rounds rounds_of_run(const RunParams& run, Rounds rounds) {
  const bool words = run.kind == RunKind::e4m3_ue8m0 && rounds.many == 7;
  return words && !run.scale_word ? Rounds{rounds.few, rounds.few} : rounds;
}

// Assigns the chunks of all runs; returns whether no access is partial and no lane idle in any
// batch. `encodes`: lanes also compute the maxima of tiles.
template <class RoundsOf>
bool map_lanes(RunParams (&runs)[2], std::int32_t count, bool aligned, bool encodes,
               RoundsOf rounds_of) {
  const auto wide = [&](const RunParams& run) { return encodes && run.tile_shift == kWideTile; };
  const auto is_dealt = [&](RunParams& run) {
    if (wide(run)) {
      map_one_round(run, true);
      return true;
    }
    const Rounds rounds = rounds_of_run(run, rounds_of(run));
    return map_whole_rounds(run, rounds.many, 2, encodes) ||
           map_whole_rounds(run, rounds.few, 2, encodes) ||
           map_whole_rounds(run, rounds.few, 0, encodes) ||
           map_whole_rounds(run, rounds.many, 0, encodes);
  };
  bool whole = aligned;
  for (std::int32_t i = 0; i < count && whole; ++i) whole = is_dealt(runs[i]);
  for (std::int32_t i = 0; i < count && !whole; ++i) map_one_round(runs[i], wide(runs[i]));
  return whole;
}

// Chunks [first, first + chunks) of a run without tiles.
RunParams part_of(RunParams run, std::uint32_t first, std::uint32_t chunks) {
  const std::int64_t bytes = run.kind == RunKind::bf16 ? 16 : run.kind == RunKind::f32 ? 32 : 8;
  run.start += first * bytes;
  run.first_chunk += first;
  run.lanes.chunks = chunks;
  return run;
}

// Marks the runs that rotate. A run without tiles is split so that only its rotary part rotates;
// that part is at one end of the row.
void set_rotation(EncodeParams& p) {
  const RopeParams& rope = p.rope;
  if (rope.half == 0) return;
  const auto first = static_cast<std::uint32_t>(rope.first);
  const auto end = first + 2 * static_cast<std::uint32_t>(rope.half);
  for (int i = 0; i < p.run_count; ++i) {
    RunParams& run = p.runs[i];
    const std::uint32_t run_end = run.first_chunk + run.lanes.chunks;
    if (first >= run_end || end <= run.first_chunk) continue;
    const bool tiles =
        run.kind != RunKind::bf16 && run.kind != RunKind::f32 && run.kind != RunKind::e4m3_tensor;
    const bool head = first == run.first_chunk && end < run_end;
    const bool tail = first > run.first_chunk && end == run_end;
    if (p.run_count == 1 && !tiles && (head || tail)) {
      const std::uint32_t middle = head ? end : first;
      const RunParams whole = run;
      p.runs[0] = part_of(whole, 0, middle - whole.first_chunk);
      p.runs[1] = part_of(whole, middle - whole.first_chunk, run_end - middle);
      p.runs[head ? 0 : 1].rotates = true;
      p.run_count = 2;
      return;
    }
    run.rotates = true;
  }
}

// Whether a block's staged records fit in shared memory. Blocks of several rows need 16 KB at most
// (what 8 warps hold), so only a single long row can exceed it.
bool stage_fits(const RunParams (&runs)[2], std::int32_t run_count) {
  return !stages(runs, run_count) || stage_bytes(1, runs[0].step) <= kMostStageBytes;
}
// Whether staged records start at multiples of 16.
bool stage_aligned(const RunParams (&runs)[2], std::int32_t run_count, const PagesParams& pages) {
  return !stages(runs, run_count) ||
         aligned(pages.data, 16, {pages.stride, runs[0].start, runs[0].step});
}

// Rows per block of write_index_keys_kernel for one step of its eight warps. set_block_rows()
// counts a step of a warp as its batch.
constexpr std::int32_t kMostKeyRows = 32;

// Whether a call writes rotated index keys of the usual shape. Holes read the table's first
// position.
bool writes_index_keys(const EncodeParams& p) {
  const RunParams& run = p.runs[0];
  const RopeParams& rope = p.rope;
  return p.whole && !p.to_rows && p.run_count == 1 && run.kind == RunKind::e4m3_f32 &&
         !run.raw_scale && run.lanes.chunks == 16 && run.tile_shift == 4 && rope.half == 4 &&
         (rope.first == 0 || rope.first == 8) && !rope.inverse && rope.positions != nullptr &&
         p.slots != nullptr && rope.table_positions > 0 && rope.table_positions <= 0x7fffffff &&
         p.heads.divisor == 1;
}

// Whether slots of mla_fp8_block have the usual shape and all 16-byte accesses are aligned.
bool four_tiles(const RequantParams& p) {
  const RunParams& src = p.src_runs[0];
  const RunParams& src_rope = p.src_runs[1];
  const RunParams& dst = p.dst_runs[0];
  return src.kind == RunKind::e4m3_f32 && src.lanes.chunks == 64 && src.tile_shift == 4 &&
         src.first_tile == 0 && src_rope.lanes.chunks == 8 &&
         aligned(p.src.data, 16,
                 {p.src.stride, src.start, src.step, src.scale_start, src_rope.start}) &&
         aligned(p.dst.data, 16, {p.dst.stride, dst.start, dst.step});
}

template <class Index>
MoveParams lists_to_move(std::span<const Index> src, std::span<const Index> dst) {
  MoveParams p;
  p.src_slots = values(src);
  p.dst_slots = values(dst);
  p.count = std::ssize(src);
  return p;
}

// Records of `step` bytes, with the widest access that both pools allow.
MovePlane move_plane(const MoveParams& p, std::int64_t src_start, std::int64_t dst_start,
                     std::int64_t step) {
  MovePlane plane;
  plane.src_start = src_start;
  plane.dst_start = dst_start;
  plane.step = static_cast<std::uint32_t>(step);
  plane.access = 1;
  for (const std::int32_t access : {16, 8, 4}) {
    if (plane.access == 1 && aligned(p.src.data, access, {p.src.stride, src_start, step}) &&
        aligned(p.dst.data, access, {p.dst.stride, dst_start})) {
      plane.access = access;
    }
  }
  plane.lanes.accesses = FastDiv(step / plane.access);
  return plane;
}

// A slot number has 31 bits.
std::uint32_t slot_limit(std::int64_t slots) {
  return static_cast<std::uint32_t>(std::min(slots, std::int64_t{1} << 31));
}

}  // namespace

void set_blocks(EncodeParams& p, std::int32_t block_rows) {
  p.whole = map_lanes(
      p.runs, p.run_count,
      p.aligned() && stage_fits(p.runs, p.run_count) && stage_aligned(p.runs, p.run_count, p.pages),
      true, [](const RunParams& run) { return encode_rounds(true, run.rotates, run.kind); });
  p.index_keys = writes_index_keys(p);
  if (p.index_keys) {
    const std::int32_t most = kMostKeyRows * key_steps(p.rope.interleaved);
    block_rows = block_rows == 0 ? spread_rows(p.count, most) : std::min(block_rows, most);
  }
  set_run_rows(p, block_rows, p.runs[0].lanes, p.runs[1].lanes);
}

void set_blocks(DecodeParams& p, std::int32_t block_rows) {
  p.whole = map_lanes(p.runs, p.run_count, p.aligned(), false,
                      [](const RunParams& run) { return decode_rounds(true, run.kind); });
  set_run_rows(p, block_rows, p.runs[0].lanes, p.runs[1].lanes);
}

void set_blocks(RequantParams& p, std::int32_t block_rows) {
  // A single run of e4m3_f32 is not staged, so its records may start at any address.
  const bool stageable = p.dst_runs[0].kind != RunKind::e4m3_f32 || p.run_count == 2;
  p.whole = map_lanes(p.src_runs, p.run_count,
                      p.aligned() && stageable && stage_fits(p.dst_runs, p.run_count), false,
                      [](const RunParams&) { return requant_rounds(true); });
  const LaneMap& first = p.src_runs[0].lanes;
  p.together = p.whole && p.run_count == 2 && first.rounds == requant_rounds(true).many &&
               first.pieces.divisor == 1 && p.src_runs[1].lanes.chunks <= 1u << first.shift;
  p.tiles = p.together && four_tiles(p);
  if (p.tiles) {
    p.block_rows = spread_rows(p.count, kMostTileRows);
    if (block_rows != 0) p.block_rows = std::min(block_rows, kMostTileRows);
    p.threads = (p.block_rows + 3) / 4 * 32;
    return;
  }
  if (p.together) {
    return set_block_rows<RequantParams, LaneMap>(p, block_rows, {&p.src_runs[0].lanes},
                                                  kFewestRequantWarps);
  }
  set_run_rows(p, block_rows, p.src_runs[0].lanes, p.src_runs[1].lanes);
}

void set_blocks(MoveParams& p, std::int32_t block_rows) {
  for (MovePlane& plane : p.planes) {
    // At most 32 records per batch, one per lane (move_batch()).
    plane.lanes.batch =
        32 *
        std::min(static_cast<std::uint32_t>(move_rounds(static_cast<std::size_t>(plane.access))),
                 plane.lanes.accesses.divisor);
  }
  set_run_rows(p, block_rows, p.planes[0].lanes, p.planes[1].lanes);
}

RowsParams rows_params(const RowsView& rows) {
  const std::int64_t stride = bytes_of(rows.dtype, rows.row_stride);
  // Kernels write through this pointer only where the view came from a mutable one.
  auto* data = const_cast<std::byte*>(rows.data);
  return {data, static_cast<std::uint32_t>(stride), aligned(data, 16, {stride})};
}

PagesParams pages_params(const ConstPoolView& pool) {
  return {const_cast<std::byte*>(pool.data), pool.page_stride, slot_limit(pool.slots()),
          FastDiv(pool.page_size)};
}

RopeParams rope_params(const float* table, std::int64_t table_positions, std::int32_t dim,
                       RopePairing pairing, std::span<const LocalPos> positions,
                       std::int64_t first) {
  RopeParams p;
  p.table = table;
  p.positions = positions.empty() ? nullptr : &positions.data()->value;
  p.table_positions = table_positions;
  p.first = static_cast<std::int32_t>(first / kChunk);
  p.half = dim / (2 * kChunk);
  p.interleaved = pairing == RopePairing::interleaved;
  p.vector = aligned(table, 16, {});
  return p;
}

EncodeParams encode_params(const RowsView& rows, std::span<const Slot> slots, const PoolView& pool,
                           const TensorScales& scales, const RopeParams& rope) {
  const RowPlan plan(pool.layout, pool.page_size);
  EncodeParams p;
  p.rows = rows_params(rows);
  p.slots = values(slots);
  p.count = rows.rows;
  p.run_count = set_runs(plan, pool, scales, p.runs);
  p.pad_start = plan.pad.start;
  p.pad_step = static_cast<std::uint32_t>(plan.pad.step);
  p.pad_bytes = plan.pad.bytes;
  p.pages = pages_params(pool);
  p.slot_count = p.pages.slots;
  p.rope = rope;
  set_rotation(p);
  set_blocks(p);
  return p;
}

bool can_order(const EncodeParams& p, DType dtype) {
  const RunKind kind = p.runs[0].kind;
  return dtype == DType::bf16 && p.whole && p.runs[0].tile_shift != kWideTile &&
         (kind == RunKind::e4m3_f32 || kind == RunKind::e4m3_ue8m0 || kind == RunKind::e2m1_ue8m0);
}

OrderParams order_params(const EncodeParams& p, std::span<std::byte> scratch) {
  OrderParams o;
  o.slots = p.slots;
  o.count = p.count;
  while (p.slot_count >> o.shift > kOrderParts) ++o.shift;
  o.totals = reinterpret_cast<std::uint32_t*>(scratch.data());
  o.places = o.totals + kOrderParts;
  o.order = reinterpret_cast<OrderEntry*>(o.places + order_blocks(p.count) * kOrderParts);
  return o;
}

EncodeParams rotate_params(const RowsView& in, const MutableRowsView& out, std::int64_t heads,
                           std::span<const Slot> slots, std::int64_t pool_slots, float scale,
                           const RopeParams& rope, bool in_place) {
  const std::int64_t width = in.cols / heads;
  const RowsParams target = rows_params(read_only(out));
  EncodeParams p;
  p.rows = rows_params(in);
  p.head_bytes = static_cast<std::uint32_t>(bytes_of(in.dtype, width));
  p.heads = FastDiv(heads);
  p.slots = values(slots);
  p.slot_count = slot_limit(pool_slots);
  p.count = in.rows * heads;
  p.to_rows = true;
  p.zero_holes = !in_place;
  p.run_count = 1;
  RunParams& run = p.runs[0];
  run.kind = out.dtype == DType::e4m3   ? RunKind::e4m3_tensor
             : out.dtype == DType::bf16 ? RunKind::bf16
                                        : RunKind::f32;
  run.scale = scale;
  run.inverse = 1.0f / scale;
  run.step = static_cast<std::uint32_t>(bytes_of(out.dtype, width));
  run.vector = target.vector;
  run.vector_scale = true;
  run.lanes.chunks = static_cast<std::uint32_t>(width / kChunk);
  p.pages = {target.data, target.stride, slot_limit(p.count), p.heads};
  p.rope = rope;
  if (!in_place) {
    set_rotation(p);
  } else {
    run = part_of(run, static_cast<std::uint32_t>(rope.first),
                  2 * static_cast<std::uint32_t>(rope.half));
    run.rotates = true;
  }
  set_blocks(p);
  return p;
}

DecodeParams decode_params(const ConstPoolView& pool, std::span<const Slot> slots, Slot first,
                           const MutableRowsView& out, const TensorScales& scales) {
  const RowPlan plan(pool.layout, pool.page_size);
  DecodeParams p;
  p.out = rows_params(read_only(out));
  p.slots = values(slots);
  p.first = first.value;
  p.count = out.rows;
  p.run_count = set_runs(plan, pool, scales, p.runs);
  p.pages = pages_params(pool);
  set_blocks(p);
  return p;
}

RequantParams requant_params(const ConstPoolView& src, std::span<const Slot> src_slots,
                             const PoolView& dst, std::span<const Slot> dst_slots,
                             const TensorScales& src_scales, const TensorScales& dst_scales) {
  const RowPlan from(src.layout, src.page_size);
  const RowPlan to(dst.layout, dst.page_size);
  RequantParams p;
  p.src_slots = values(src_slots);
  p.dst_slots = values(dst_slots);
  p.count = std::ssize(src_slots);
  p.run_count = set_runs(from, src, src_scales, p.src_runs);
  set_runs(to, dst, dst_scales, p.dst_runs);
  p.src = pages_params(src);
  p.dst = pages_params(dst);
  set_blocks(p);
  return p;
}

MoveParams move_params(const ConstPoolView& from, std::span<const Slot> src, const PoolView& to,
                       std::span<const Slot> dst) {
  MoveParams p = lists_to_move(src, dst);
  p.src = pages_params(from);
  p.dst = pages_params(to);
  p.run_count = from.layout.plane_count();
  std::int64_t dense = 0;
  for (int i = 0; i < p.run_count; ++i) {
    const std::int32_t step = from.layout.plane_bytes(i);
    p.planes[i] = move_plane(p, from.layout.plane_start(from.page_size, i),
                             to.layout.plane_start(to.page_size, i), step);
    p.planes[i].dense = dense;
    dense += (p.count * step + 15) / 16 * 16;
  }
  set_blocks(p);
  return p;
}

MoveParams page_params(const ConstPoolView& from, std::span<const PageId> src, const PoolView& to,
                       std::span<const PageId> dst) {
  MoveParams p = lists_to_move(src, dst);
  const auto by_page = [](PagesParams pages, std::int64_t count) {
    pages.slots = slot_limit(count);
    pages.page_size = FastDiv(1);
    return pages;
  };
  p.src = by_page(pages_params(from), from.pages);
  p.dst = by_page(pages_params(to), to.pages);
  p.run_count = 1;
  p.planes[0] = move_plane(p, 0, 0, from.layout.page_stride(from.page_size));
  set_blocks(p);
  return p;
}

}  // namespace lathe::cuda
