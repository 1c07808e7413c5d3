#include "kernels/cuda/sm90/codec/codec_launch.h"

#include <algorithm>
#include <bit>

namespace lathe::cuda {
namespace {

// Of an H100 or H200. It decides how rows are cut into blocks, not what they give.
constexpr std::int64_t kProcessors = 132;

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
  p.chunks = FastDiv(run.elems / kChunk);
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
  return p;
}

// The runs of a layout; returns how many.
std::int32_t set_runs(const RowPlan& plan, const ConstPoolView& pool, const TensorScales& scales,
                      RunParams (&runs)[2]) {
  for (int i = 0; i < plan.run_count; ++i) {
    runs[i] = run_params(plan.runs[static_cast<std::size_t>(i)], pool, plan.policy, scales);
  }
  return plan.run_count;
}

const std::int32_t* values(std::span<const Slot> slots) {
  return slots.empty() ? nullptr : &slots.data()->value;
}

}  // namespace

std::int32_t block_rows(std::int64_t rows, std::int64_t chunks) {
  const std::int64_t full =
      std::clamp<std::int64_t>(kCodecThreads * kUnroll / chunks, 1, kMaxBlockRows);
  const std::int64_t spread = (rows + 2 * kProcessors - 1) / (2 * kProcessors);
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(spread, 1, full));
}

RowsParams rows_params(const RowsView& rows) {
  const std::int64_t stride = bytes_of(rows.dtype, rows.row_stride);
  // Kernels write through it where the view they were made from may be written.
  auto* data = const_cast<std::byte*>(rows.data);
  return {data, static_cast<std::uint32_t>(stride), aligned(data, 16, {stride})};
}

PagesParams pages_params(const ConstPoolView& pool) {
  return {const_cast<std::byte*>(pool.data), pool.page_stride, pool.slots(),
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
                           const TensorScales& scales) {
  const RowPlan plan(pool.layout, pool.page_size);
  EncodeParams p;
  p.rows = rows_params(rows);
  p.slots = values(slots);
  p.count = rows.rows;
  p.block_rows = block_rows(rows.rows, plan.elems / kChunk);
  p.run_count = set_runs(plan, pool, scales, p.runs);
  p.pad_start = plan.pad.start;
  p.pad_step = static_cast<std::uint32_t>(plan.pad.step);
  p.pad_bytes = plan.pad.bytes;
  p.pages = pages_params(pool);
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
  p.block_rows = block_rows(out.rows, plan.elems / kChunk);
  p.run_count = set_runs(plan, pool, scales, p.runs);
  p.pages = pages_params(pool);
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
  p.block_rows = block_rows(p.count, from.elems / kChunk);
  p.run_count = set_runs(from, src, src_scales, p.src_runs);
  set_runs(to, dst, dst_scales, p.dst_runs);
  p.src = pages_params(src);
  p.dst = pages_params(dst);
  return p;
}

MoveParams move_params(const PoolView& pool, int plane, std::span<const Slot> src,
                       std::span<const Slot> dst) {
  MoveParams p;
  p.src = p.dst = pool.data;
  p.src_slots = values(src);
  p.dst_slots = values(dst);
  p.slots = pool.slots();
  p.count = std::ssize(src);
  p.page_stride = pool.page_stride;
  p.start = pool.layout.plane_start(pool.page_size, plane);
  p.step = pool.layout.plane_bytes(plane);
  p.page_size = FastDiv(pool.page_size);
  p.unit = 1;
  for (std::int32_t unit : {16, 4}) {
    if (p.unit == 1 && aligned(pool.data, unit, {p.page_stride, p.start, p.step})) p.unit = unit;
  }
  p.units = FastDiv(p.step / p.unit);
  p.block_rows = block_rows(p.count, p.step / p.unit);
  return p;
}

RotateParams rotate_params(const RowsView& in, const MutableRowsView& out, std::int64_t heads) {
  RotateParams p;
  p.in = rows_params(in);
  p.out = rows_params(read_only(out));
  p.rows = in.rows;
  p.chunks = static_cast<std::int32_t>(in.cols / kChunk);
  // Rows that are wide are cut, narrow ones share a block.
  p.slice = std::min(p.chunks, kCodecThreads * kUnroll);
  p.slice_chunks = FastDiv(p.slice);
  p.head_chunks = FastDiv(in.cols / heads / kChunk);
  p.block_rows = block_rows(in.rows, p.slice);
  p.in_place = in.data == out.data;
  return p;
}

}  // namespace lathe::cuda
