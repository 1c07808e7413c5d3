#include "kernels/cuda/sm90/rowwise/attention_rows_params.h"

#include <algorithm>

#include "kernels/cuda/sm90/codec/codec_launch.h"

namespace lathe::cuda {
namespace {

constexpr std::int64_t kLatentCodeTile = 128;  // columns of an e4m3 tile of the latent

constexpr EnumSet<LayoutKind> kLatentRowsLayouts = {LayoutKind::mla_bf16, LayoutKind::mla_fp8,
                                                    LayoutKind::mla_fp8_block};

bool whole_words(const void* data, std::int64_t row_bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && row_bytes % 16 == 0;
}

bool qkv_suits(const QkvRows& op, const CacheLayout& layout, std::int64_t dim, std::int64_t cols) {
  const std::int64_t count = op.q.rows;
  return is_gqa(layout.kind()) && (cols == 64 || cols == 128 || cols == 256 || cols == 512) &&
         dim == cols && (op.kv.cols == 0 || layout.row_elems() == op.kv.cols) &&
         op.kv.cols % cols == 0 && op.kv.rows == count && std::ssize(op.positions) == count &&
         std::ssize(op.slots) == count && op.q_out.dtype == DType::bf16 &&
         count * (op.q.cols + op.kv.cols) / cols <= INT32_MAX &&
         whole_words(op.q.data, 4 * op.q.row_stride) &&
         whole_words(op.kv.data, 4 * op.kv.row_stride) &&
         whole_words(op.q_out.data, 2 * op.q_out.row_stride) && whole_words(op.q_norm.data(), 0) &&
         whole_words(op.k_norm.data(), 0);
}

bool absorbs_to_latent(const WeightStack* absorbs, const LatentRows& op) {
  return absorbs == nullptr || (absorbs->rows == kLatentColumns && absorbs->cols == op.qk_nope &&
                                absorbs->count() == op.heads);
}

bool latent_suits(const LatentRows& op, const CacheLayout& layout, std::int64_t dim) {
  const std::int64_t count = op.q.rows, q_head = op.q.cols / op.heads;
  const std::int64_t nope = op.absorbs != nullptr ? kLatentColumns : op.qk_nope;
  return kLatentRowsLayouts.contains(layout.kind()) && !op.norms_queries &&
         layout.row_elems() == kLatentColumns + kRotaryColumns && op.k.cols == layout.row_elems() &&
         op.k.rows == count && dim == kRotaryColumns && std::ssize(op.norm) == kLatentColumns &&
         q_head == op.qk_nope + kRotaryColumns && op.qk_nope % 4 == 0 &&
         op.qk_nope <= 2 * kLatentCodeTile && absorbs_to_latent(op.absorbs, op) &&
         std::ssize(op.positions) == count && std::ssize(op.slots) == count &&
         op.q_out.dtype == DType::bf16 && op.q_out.rows == count &&
         op.q_out.cols == op.heads * (nope + kRotaryColumns) &&
         count * (op.heads + 4) <= INT32_MAX && whole_words(op.q.data, 4 * op.q.row_stride) &&
         whole_words(op.k.data, 4 * op.k.row_stride) && whole_words(op.norm.data(), 0) &&
         whole_words(op.q_out.data, 2 * op.q_out.row_stride);
}

bool index_suits(const IndexerRows& op, const CacheLayout& layout, std::int64_t dim) {
  const std::int64_t count = std::ssize(op.positions);
  const bool keys = op.k.cols == kIndexColumns && op.k.rows == count &&
                    std::ssize(op.slots) == count && std::ssize(op.norm) == kIndexColumns &&
                    std::ssize(op.norm_bias) == kIndexColumns &&
                    whole_words(op.k.data, 4 * op.k.row_stride) && whole_words(op.norm.data(), 0) &&
                    whole_words(op.norm_bias.data(), 0);
  const bool queries = op.q.cols == op.heads * kIndexColumns && op.q.rows == count &&
                       whole_words(op.q.data, 4 * op.q.row_stride);
  return layout.kind() == LayoutKind::index_fp8 && layout.row_elems() == kIndexColumns &&
         dim == kIndexRotary && (op.k.rows == 0 || keys) && (op.q.rows == 0 || queries) &&
         count * (op.heads + 4) <= INT32_MAX;
}

// Nothing if scales, and so lanes' codes, are not whole words.
std::optional<IndexPlaces> index_places(const PoolView& pool) {
  const EncodeParams p = encode_params({}, {}, pool, {});
  const RunParams& run = p.runs[0];
  if (!run.vector_scale || p.pad_bytes != 0) return {};
  return IndexPlaces{p.pages, StoredPart::of(run), {run.scale_start, run.scale_step}};
}

bool whole_suits(const LatentRows& op, const CacheLayout& layout, std::int64_t dim) {
  const std::int64_t count = op.q.rows;
  return (layout.kind() == LayoutKind::v4_fp8 || layout.kind() == LayoutKind::mla_bf16) &&
         op.norms_queries && op.absorbs == nullptr && layout.row_elems() == kWholeColumns &&
         dim == kWholeRotary && op.qk_nope == kWholeColumns - kWholeRotary &&
         op.k.cols == kWholeColumns && std::ssize(op.norm) == kWholeColumns &&
         op.q.cols == op.heads * kWholeColumns && op.k.rows == count &&
         std::ssize(op.positions) == count && std::ssize(op.slots) == count &&
         op.q_out.dtype == DType::bf16 && op.q_out.rows == count && op.q_out.cols == op.q.cols &&
         count * (op.heads + 1) <= INT32_MAX && whole_words(op.q.data, 4 * op.q.row_stride) &&
         whole_words(op.k.data, 4 * op.k.row_stride) && whole_words(op.norm.data(), 0) &&
         whole_words(op.q_out.data, 2 * op.q_out.row_stride);
}

}  // namespace

std::optional<QkvParams> qkv_params(const QkvRows& op, const PoolView& pool,
                                    const RopeTableView& table, ValueWords* counts) {
  const std::int64_t cols = op.q.cols / op.heads, key_cols = cols * op.kv_heads;
  if (!qkv_suits(op, pool.layout, table.dim, cols)) return {};
  if (!check_pool("pool", pool) || !check_scales("scales", op.scales)) return {};
  const EncodeParams rows = encode_params(read_only(op.kv), op.slots, pool, op.scales);
  if (!runs_aligned(rows.runs, rows.run_count)) return {};
  const bool two = rows.run_count == 2;  // false: bf16 values follow the keys
  if (two && rows.runs[1].first_chunk * kChunk != key_cols) return {};
  const bool writes = op.kv.cols > 0;  // false: queries alone
  QkvParams p{.q = reinterpret_cast<const float*>(op.q.data),
              .kv = reinterpret_cast<const float*>(op.kv.data),
              .q_norm = op.q_norm.data(),
              .k_norm = op.k_norm.data(),
              .table = table.data,
              .positions = op.positions.empty() ? nullptr : &op.positions.data()->value,
              .slots = rows.slots,
              .q_out = reinterpret_cast<std::uint16_t*>(op.q_out.data),
              .q_stride = op.q.row_stride,
              .kv_stride = op.kv.row_stride,
              .q_out_stride = op.q_out.row_stride,
              .rows = op.q.rows,
              .heads = static_cast<std::int32_t>(op.heads),
              .kv_heads = static_cast<std::int32_t>(writes ? op.kv_heads : 0),
              .value_heads = static_cast<std::int32_t>(writes ? (op.kv.cols - key_cols) / cols : 0),
              .cols = static_cast<std::int32_t>(cols),
              .pages = rows.pages,
              .keys = StoredPart::of(rows.runs[0]),
              .values = StoredPart::of(rows.runs[two ? 1 : 0]),
              .counts = counts == nullptr ? nullptr : &counts->stored,
              .table_positions = static_cast<std::uint32_t>(table.positions),
              .eps = op.eps,
              .norms = op.norms,
              .interleaved = table.pairing == RopePairing::interleaved,
              .codes = rows.runs[0].kind == RunKind::e4m3_tensor};
  if (!two) p.values.start += 2 * key_cols;
  return p;
}

std::optional<LatentRowsParams> latent_rows_params(const LatentRows& op, const PoolView& pool,
                                                   const RopeTableView& table, ValueWords* counts,
                                                   const MutableRowsView& nope) {
  if (!latent_suits(op, pool.layout, table.dim)) return {};
  if (!check_pool("pool", pool) || !check_scales("scales", op.scales)) return {};
  const EncodeParams rows = encode_params(read_only(op.k), op.slots, pool, op.scales);
  const RunParams& latent = rows.runs[0];
  const bool two = rows.run_count == 2;  // false: the rotary part follows in the same format
  if (!runs_aligned(rows.runs, rows.run_count) || rows.pad_bytes != 0) return {};
  if (two && rows.runs[1].first_chunk * kChunk != kLatentColumns) return {};
  const bool tiles = latent.kind == RunKind::e4m3_f32;
  if (tiles && (1 << latent.tile_shift) * kChunk != kLatentCodeTile) return {};
  const MutableRowsView& wide = op.absorbs != nullptr ? nope : op.q_out;
  const std::int64_t out_head = op.q_out.cols / op.heads;
  auto* q_out = reinterpret_cast<std::uint16_t*>(op.q_out.data);
  LatentRowsParams p{.q = reinterpret_cast<const float*>(op.q.data),
                     .k = reinterpret_cast<const float*>(op.k.data),
                     .norm = op.norm.data(),
                     .table = table.data,
                     .positions = op.positions.empty() ? nullptr : &op.positions.data()->value,
                     .slots = rows.slots,
                     .nope_out = reinterpret_cast<std::uint16_t*>(wide.data),
                     .rope_out = q_out + (out_head - kRotaryColumns),
                     .q_stride = op.q.row_stride,
                     .k_stride = op.k.row_stride,
                     .nope_stride = wide.row_stride,
                     .rope_stride = op.q_out.row_stride,
                     .nope_head = static_cast<std::int32_t>(wide.cols / op.heads),
                     .rope_head = static_cast<std::int32_t>(out_head),
                     .rows = op.q.rows,
                     .qk_nope = static_cast<std::int32_t>(op.qk_nope),
                     .heads = static_cast<std::int32_t>(op.heads),
                     .pages = rows.pages,
                     .kind = latent.kind,
                     .latent = StoredPart::of(latent),
                     .rope = StoredPart::of(rows.runs[two ? 1 : 0]),
                     .scale_start = latent.scale_start,
                     .scale_step = latent.scale_step,
                     .raw_scale = latent.raw_scale,
                     .counts = counts == nullptr ? nullptr : &counts->stored,
                     .table_positions = static_cast<std::uint32_t>(table.positions),
                     .eps = op.eps,
                     .interleaved = table.pairing == RopePairing::interleaved};
  if (!two) p.rope.start += kLatentColumns * (latent.kind == RunKind::bf16 ? 2 : 1);
  return p;
}

std::optional<IndexerRowsParams> indexer_rows_params(const IndexerRows& op, const PoolView& pool,
                                                     const RopeTableView& table) {
  if (!index_suits(op, pool.layout, table.dim) || !check_pool("pool", pool)) return {};
  const auto keys = index_places(pool);
  const auto queries =
      index_places(PoolView(nullptr, pool.layout, static_cast<std::int32_t>(op.heads), op.q.rows));
  if (!keys || !queries) return {};
  return IndexerRowsParams{
      .q = reinterpret_cast<const float*>(op.q.data),
      .k = op.k.rows > 0 ? reinterpret_cast<const float*>(op.k.data) : nullptr,
      .norm = op.norm.data(),
      .bias = op.norm_bias.data(),
      .table = table.data,
      .positions = op.positions.empty() ? nullptr : &op.positions.data()->value,
      .slots = op.slots.empty() ? nullptr : &op.slots.data()->value,
      .q_stride = op.q.row_stride,
      .k_stride = op.k.row_stride,
      .rows = std::max(op.k.rows, op.q.rows),
      .heads = static_cast<std::int32_t>(op.q.rows > 0 ? op.heads : 0),
      .keys = *keys,
      .queries = *queries,
      .table_positions = static_cast<std::uint32_t>(table.positions),
      .eps = op.eps,
      .first = op.place == RopePlace::last ? kIndexColumns - kIndexRotary : 0,
      .interleaved = table.pairing == RopePairing::interleaved,
      .hadamard = op.hadamard,
      .raw_scale = pool.layout.scale_policy() == ScalePolicy::raw_f32};
}

std::optional<WholeRowsParams> whole_rows_params(const LatentRows& op, const PoolView& pool,
                                                 const RopeTableView& table) {
  if (!whole_suits(op, pool.layout, table.dim) || !check_pool("pool", pool)) return {};
  const EncodeParams rows = encode_params(read_only(op.k), op.slots, pool, op.scales);
  const RunParams& nope = rows.runs[0];
  const bool codes = nope.kind == RunKind::e4m3_ue8m0;
  if (!runs_aligned(rows.runs, rows.run_count) || rows.run_count != 2) return {};
  if (rows.runs[1].first_chunk * kChunk != kWholeColumns - kWholeRotary) return {};
  if (codes && (!nope.scale_word || (1 << nope.tile_shift) * kChunk != kWholeTile)) return {};
  return WholeRowsParams{.q = reinterpret_cast<const float*>(op.q.data),
                         .k = reinterpret_cast<const float*>(op.k.data),
                         .norm = op.norm.data(),
                         .table = table.data,
                         .positions = op.positions.empty() ? nullptr : &op.positions.data()->value,
                         .slots = rows.slots,
                         .q_out = reinterpret_cast<std::uint16_t*>(op.q_out.data),
                         .q_stride = op.q.row_stride,
                         .k_stride = op.k.row_stride,
                         .q_out_stride = op.q_out.row_stride,
                         .rows = op.q.rows,
                         .heads = static_cast<std::int32_t>(op.heads),
                         .pages = rows.pages,
                         .codes = codes,
                         .nope = StoredPart::of(nope),
                         .rope = StoredPart::of(rows.runs[1]),
                         .scale_start = nope.scale_start,
                         .scale_step = nope.scale_step,
                         .table_positions = static_cast<std::uint32_t>(table.positions),
                         .eps = op.eps,
                         .interleaved = table.pairing == RopePairing::interleaved};
}

}  // namespace lathe::cuda
