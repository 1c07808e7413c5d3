// The parameters of launches.
#include "kernels/cuda/sm90/matmul/matmul_call.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "base/integers.h"
#include "kernels/cuda/sm90/matmul/pack/packed_weights.h"

namespace lathe::cuda {
namespace {

RowBoxes boxes_of(const RowsView& x, const MatmulTiling& tiling) {
  return {.base = x.data,
          .rows = x.rows,
          .row_bytes = bytes_of(x.dtype, x.cols),
          .row_stride = bytes_of(x.dtype, x.row_stride),
          .element_bytes = bits_of(x.dtype) / 8,
          .box_rows = tiling.pair && !tiling.by_tokens ? matmul_pair_tokens(tiling.tile_tokens)
                                                       : tiling.tile_tokens};
}
RowBoxes boxes_of(const WeightView& w, const MatmulTiling& tiling) {
  return {.base = w.data,
          .rows = w.rows,
          .row_bytes = bytes_of(w.dtype, w.cols),
          .row_stride = bytes_of(w.dtype, w.cols),
          .element_bytes = w.dtype == DType::bf16 ? 2 : 1,
          .box_bytes = bits_of(w.dtype) == 4 && !is_deep(tiling, 4) ? 64 : 128,
          .box_rows = tiling.by_tokens || tiling.quad ? tiling.tile_rows / 2 : tiling.tile_rows};
}

// Lower boxes for the tokens after the last whole box of x, if few of such a box's rows had tokens
// and it has more rows than TMA can fill while others are loaded.
void set_tail(MatmulLaunch& l) {
  constexpr std::int64_t kHidden = 32;
  const std::int64_t rows = round_up(l.x.rows % l.x.box_rows, 8);
  if (l.x.box_rows <= kHidden || rows == 0 || rows == l.x.box_rows) return;
  l.params.tail_tokens = static_cast<std::int32_t>(rows);
  l.x_tail = l.x;
  l.x_tail.box_rows = rows;
}

// Whether every row of `out` consists of whole 16-byte words, which TMA and vector stores need.
bool has_whole_words(const MutableRowsView& out) {
  const std::int64_t word = 128 / bits_of(out.dtype);
  return at_multiple(out.data, 16) && out.row_stride % word == 0 && out.cols % word == 0;
}
// Sets up the boxes in which a weight's output is stored, if it is staged.
void set_out(MatmulLaunch& l, int weight, const MutableRowsView& out) {
  if (l.params.weights[weight].staged == 0) return;
  const bool many = l.instance.pair && has_tokens_on_m(l.params);
  l.out[weight] = {.base = out.data,
                   .rows = l.params.m,
                   .row_bytes = bytes_of(out.dtype, out.cols),
                   .row_stride = bytes_of(out.dtype, out.row_stride),
                   .element_bytes = bits_of(out.dtype) / 8,
                   .box_bytes = l.params.gate_step != 0 && !many ? 64 : 128,
                   .box_rows = many ? kMatmulManyOutTokens : kMatmulOutTokens};
}

// Whether a pair of codes is converted by one fma.
bool has_one_fma(const WeightView& w) { return w.dtype == DType::u4 && !may_have_zeros(w); }

const void* scales_of(const WeightView& w) {
  return is_packed(w) ? static_cast<const void*>(w.groups.data) : w.scales;
}

// Sets up weight tiles that interleave the two weights by 8 rows, starting with the one at the
// lower address.
void gate(MatmulLaunch& l, const Activation& activation, const WeightView& w,
          const WeightView& up) {
  MatmulParams& p = l.params;
  p.activation = activation_terms(activation);
  MatmulWeight &a = p.weights[0], &b = p.weights[1];
  b = a;
  RowBoxes& boxes = l.weights[0];
  if (up.data == nullptr) {
    p.gate_step = 2;
    boxes.turn_stride = boxes.row_stride;
    boxes.row_stride *= 2;
    boxes.rows /= 2;
    return;
  }
  p.gate_step = 1;
  a.rows *= 2;
  p.tiles = (a.rows + p.tile_rows - 1) / p.tile_rows;
  b.scales = scales_of(up);
  b.zeros = up.groups.zeros;
  b.factor = up.scales;
  b.bias = nullptr;
  p.up_first = up.data < w.data;
  if (p.up_first) {
    std::swap(a.scales, b.scales);
    std::swap(a.zeros, b.zeros);
    std::swap(a.factor, b.factor);
    std::swap(a.bias, b.bias);
    boxes.base = up.data;
  }
  boxes.turn_stride = std::abs(up.data - w.data);
}

// Choices of experts up to which nearly each has an expert of its own.
constexpr std::int64_t kFewChoices = 32;

// Rows per tile. With many tokens, or where it is not known how many groups have any, the height of
// tiles matters little, or cannot be chosen well.
int group_tile_rows(const GroupedMatmulCall& c, const MatmulCall& first, int tokens, int sms) {
  const bool heads = c.offsets == nullptr;
  if (tokens > 32 || is_packed(c.w) || !(heads || c.x.rows <= kFewChoices)) return kMatmulTileRows;
  MatmulShape shape = shape_of(std::span(&first, 1), sms);
  shape.gated = c.activation != nullptr;
  if (shape.gated && c.up.data != nullptr) shape.rows *= 2;
  const std::int64_t tiles =
      heads ? c.groups * ceil_div(c.x.rows, tokens) : std::min(c.groups, c.x.rows);
  if (c.dense == nullptr) return choose_group_rows(shape, tiles, tokens);
  const MatmulCall& b = c.dense->call;
  const MatmulShape dense = shape_of(std::span(&b, 1), sms);
  const int parts = shape.gated ? 1 : choose_tiling(dense).split;
  return choose_group_rows(shape, tiles, tokens, dense.rows,
                           ceil_div(b.x.rows, std::int64_t{tokens}) * parts);
}

// Adds the dense GEMM next to the groups to their launch, before the number of clusters is known.
void add_dense(MatmulLaunch& l, const DenseCall& dense, int tokens, int sms) {
  const MatmulCall& c = dense.call;
  const int split = choose_tiling(shape_of(std::span(&c, 1), sms)).split;
  const MatmulLaunch own =
      make_launch(std::span(&c, 1), {split, l.params.tile_rows, tokens, false}, sms);
  const MatmulParams& p = own.params;
  const int parts = c.activation == nullptr ? split : 1;
  l.x_dense = own.x;
  l.weights[kDenseWeight] = own.weights[0];
  l.params.weights[kDenseWeight] = p.weights[0];
  l.params.weights[kDenseWeight + 1] = p.weights[1];
  l.params.dense = {.items = p.tiles * p.token_tiles * parts,
                    .tiles = p.tiles,
                    .m = p.m,
                    .chunks = p.chunks,
                    .split = split,
                    .parts = parts,
                    .out_part = c.x.rows * c.out.row_stride,
                    .up_first = p.up_first,
                    .x_scale_stride = p.x_scale_stride,
                    .x_scales = p.x_scales,
                    .factor = dense.factor,
                    .factor_stride = dense.factor_stride};
}

}  // namespace

MatmulCall first_group(const GroupedMatmulCall& c) {
  MutableRowsView out = c.out;
  out.cols = c.w.rows;
  return {.x = c.x,
          .w = c.w,
          .out = out,
          .bias = c.bias,
          .x_scales = c.x_scales,
          .x_scale_stride = c.x_scale_stride};
}

MatmulShape shape_of(std::span<const MatmulCall> calls, int sms) {
  MatmulShape shape{.k = calls[0].w.cols,
                    .m = calls[0].x.rows,
                    .weight_bits = bits_of(calls[0].w.dtype),
                    .sms = sms,
                    .x_bits = bits_of(calls[0].x.dtype),
                    .factors = calls[0].w.dtype == DType::e4m3,
                    .packed = is_packed(calls[0].w),
                    .gated = calls[0].activation != nullptr,
                    .keeps = calls[0].kept != nullptr,
                    .spreads = calls[0].kept != nullptr && calls[0].arrivals != nullptr,
                    .least_wide = has_one_fma(calls[0].w) ? 4 : 9};
  shape.many = shape.x_bits == 8;
  shape.boxes = true;
  for (const MatmulCall& c : calls) {
    shape.rows += c.w.rows * (shape.gated ? 2 : 1);
    shape.many = shape.many && !c.w.scale_rows;
    shape.boxes = shape.boxes && c.out.dtype == DType::bf16 && has_whole_words(c.out);
  }
  shape.spreads = shape.spreads && (shape.many || calls[0].w.dtype == DType::bf16);
  return shape;
}

MatmulLaunch make_launch(std::span<const MatmulCall> calls, const MatmulTiling& tiling, int sms) {
  const RowsView& x = calls[0].x;
  const std::int64_t chunk = matmul_chunk(bits_of(calls[0].w.dtype)) *
                             (is_deep(tiling, bits_of(calls[0].w.dtype)) ? 2 : 1);
  MatmulLaunch l{};
  MatmulParams& p = l.params;
  p.m = static_cast<std::int32_t>(x.rows);
  p.k = static_cast<std::int32_t>(x.cols);
  p.chunks = static_cast<std::int32_t>((x.cols + chunk - 1) / chunk);
  if (const GroupScales& g = calls[0].w.groups; is_packed(calls[0].w)) {
    const auto each = static_cast<std::int32_t>(kPackedChunk / g.size);
    p.scale_bytes = each * bits_of(g.dtype) / 8;
    p.zero_bytes = g.zeros == nullptr ? 0 : each;
  }
  p.x_scales = calls[0].x_scales;
  p.x_scale_stride = static_cast<std::int32_t>(calls[0].x_scale_stride);
  p.kept = calls[0].kept;
  p.arrivals = calls[0].arrivals;
  p.split = tiling.split;
  p.tile_rows = tiling.tile_rows;
  // Or pairs of them.
  p.token_tiles = static_cast<std::int32_t>(ceil_div(
      x.rows, std::int64_t{tiling.tile_tokens} * (tiling.by_tokens || tiling.quad ? 2 : 1)));
  l.x = boxes_of(x, tiling);
  const auto boxes = static_cast<std::int32_t>(ceil_div(x.rows, l.x.box_rows));
  p.boxes_each = boxes / std::max(1, p.token_tiles);
  p.boxes_more = boxes % std::max(1, p.token_tiles);
  set_tail(l);
  for (const MatmulCall& c : calls) {
    if (c.w.rows == 0) continue;
    l.weights[p.weight_count] = boxes_of(c.w, tiling);
    const bool staged = tiling.pair && has_whole_words(c.out);
    LATHE_CHECK(!tiling.tall || (staged && c.out.dtype == DType::bf16), "boxes of bf16");
    p.weights[p.weight_count++] = {
        .out = c.out.data,
        .bias = c.bias,
        .scales = scales_of(c.w),
        .zeros = c.w.groups.zeros,
        .factor = c.w.scales,
        .out_stride = c.out.row_stride,
        .rows = static_cast<std::int32_t>(c.w.rows),
        .first_tile = p.tiles,
        .out_bf16 = c.out.dtype == DType::bf16,
        .add = c.add,
        .staged = staged,
        .scale_rows = c.w.scale_rows,
        .packed_rows = static_cast<std::int32_t>(round_up(c.w.rows, kPackedRows)),
        .scale_blocks = p.chunks};
    p.tiles += static_cast<std::int32_t>((c.w.rows + tiling.tile_rows - 1) / tiling.tile_rows);
  }
  if (calls[0].activation != nullptr) gate(l, *calls[0].activation, calls[0].w, calls[0].up);
  const std::int64_t items =
      std::int64_t{tiling.pair && !tiling.by_tokens ? (p.tiles + 1) / 2 : p.tiles} * p.token_tiles *
      (tiling.spread ? tiling.split : 1);
  // An SM runs two narrow blocks, unless they have many tokens.
  const int blocks = tiling.warpgroups == 1 && tiling.tile_tokens <= 32 ? 2 * sms : sms;
  const std::int64_t clusters = tiling.quad
                                    ? clusters_at_once(sms, 4)
                                    : std::max(1, blocks / (tiling.pair ? 2 : tiling.split));
  // Boxes are dealt to tiles, so that those of 192 tokens are tiles of 256 that are not full.
  const bool dealt = tiling.pair && !tiling.spread && tiling.tile_tokens == 192;
  l.instance = {.tokens = dealt ? 256 : tiling.tile_tokens,
                .pair = tiling.pair,
                .spread = tiling.spread,
                .tall = tiling.tall,
                .by_tokens = tiling.by_tokens,
                .quad = tiling.quad,
                .warpgroups = static_cast<std::uint8_t>(tiling.warpgroups),
                .clusters = static_cast<int>(std::min<std::int64_t>(items, clusters))};
  p.whole = static_cast<std::int32_t>(items);
  if (tiling.splits_last) p.whole -= p.whole % l.instance.clusters;
  for (int i = 0, weight = 0; i < static_cast<int>(calls.size()); ++i) {
    if (calls[i].w.rows > 0) set_out(l, weight++, calls[i].out);
  }
  return l;
}

int grouped_tile_tokens(const GroupedMatmulCall& c) {
  const bool heads = c.offsets == nullptr;
  const bool many = c.x.dtype == DType::e4m3 && !c.w.scale_rows;
  const bool wide = (c.w.dtype == DType::bf16 || many) && c.w.rows > kMatmulTileRows;
  const auto rows = static_cast<double>(c.x.rows);
  const double mean = heads ? rows : rows / static_cast<double>(c.groups);
  // A group that needs a second tile reads its weights from L2 again. Sizes of groups spread as
  // those of random choices, so few are larger than the mean and 2.5 deviations.
  const double most = heads ? mean : mean + 2.5 * std::sqrt(mean);
  // A dense GEMM has at most two tiles of tokens, because each reads the weights again.
  const std::int64_t dense = c.dense == nullptr ? 0 : c.dense->call.x.rows;
  for (const int tokens : {8, 16, 32}) {
    const bool wide_enough = most <= tokens || (tokens == 32 && mean < 33);
    if (wide_enough && (dense <= 2 * tokens || tokens == 32)) return tokens;
  }
  // Of a group's last tile only the boxes with tokens are computed, so the wider tile wastes no
  // more of them, and reads weights less often.
  return wide && mean >= 96 ? 256 : 128;
}

MatmulLaunch make_launch(const GroupedMatmulCall& c, int tokens, int sms) {
  const MatmulCall first = first_group(c);
  const bool heads = c.offsets == nullptr;
  // A pair needs two tiles of weight rows.
  const bool pair = tokens >= 128 && (first.w.rows > kMatmulTileRows || tokens > 128);
  MatmulLaunch l =
      make_launch({&first, 1}, {1, group_tile_rows(c, first, tokens, sms), tokens, pair}, sms);
  MatmulParams& p = l.params;
  const bool f32 = c.out.dtype == DType::f32;
  // A box would also write the tile's tokens past the end of the group, or rows of other heads.
  const bool whole_boxes = heads && c.w.rows % kMatmulTileRows == 0 && c.out_stride % 4 == 0;
  p.weights[0].staged =
      tokens >= 128 && has_whole_words(first.out) && (f32 ? whole_boxes : c.out_stride % 8 == 0);
  p.offsets = c.offsets;
  p.offsets_known = c.offsets_known;
  p.groups = static_cast<std::int32_t>(c.groups);
  p.x_by_group = heads;
  p.out_group = c.out_stride;
  p.bias_group = c.w.rows;
  p.scale_group = c.scale_stride;
  if (p.x_by_group) {
    l.x.pages = c.groups;
    l.x.page_stride = bytes_of(c.x.dtype, c.x_stride);
    set_tail(l);  // of each page
  } else {
    p.tail_tokens = 0;  // groups end anywhere in x
  }
  l.weights[0].pages = c.groups;
  l.weights[0].page_stride = bytes_of(c.w.dtype, c.weight_stride);
  // An upper bound, because groups may end inside tiles.
  const std::int64_t tiles =
      p.x_by_group ? p.token_tiles * c.groups : std::min(c.x.rows, p.token_tiles + c.groups);
  if (c.activation != nullptr) gate(l, *c.activation, c.w, c.up);
  MutableRowsView all = c.out;
  all.cols = (p.gate_step == 0 ? p.weights[0].rows : p.weights[0].rows / 2) +
             (c.groups - 1) * c.out_stride;
  set_out(l, 0, all);
  if (c.dense != nullptr) add_dense(l, *c.dense, tokens, sms);
  const std::int64_t columns = pair ? (p.tiles + 1) / 2 : p.tiles;
  p.columns = FastDiv(columns);
  l.instance.clusters = static_cast<int>(
      std::min<std::int64_t>(pair ? sms / 2 : sms, tiles * columns + p.dense.items));
  return l;
}

}  // namespace lathe::cuda
