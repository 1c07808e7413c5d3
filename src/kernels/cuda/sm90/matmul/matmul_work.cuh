// Enumerates a GEMM's work tiles in the order in which clusters process them.
#pragma once

#include "kernels/cuda/common/arrivals.cuh"
#include "kernels/cuda/sm90/matmul/matmul_config.cuh"

namespace lathe::cuda {

/// Token tiles that are processed as neighbours, so that both operands of the tiles in flight stay
/// in L2.
inline constexpr std::int32_t kMatmulRaster = 8;

/// A block's part of a work tile.
struct MatmulWork {
  std::int32_t weight;  // index within the launch
  std::int32_t row;     // first weight row of the tile
  std::int32_t token;   // first token of the tile
  std::int32_t end;     // end of the tokens that the tile stores
  std::int32_t group;
  std::int32_t part = 0;  // of K, if the launch has work tiles of parts
};

/// The first token of group `group`, from L2: other kernels of the step store offsets there, too.
__device__ inline std::int32_t first_token(const MatmulParams& p, std::int32_t group) {
  return static_cast<std::int32_t>(
      load_sent(reinterpret_cast<const std::uint32_t*>(p.offsets) + group));
}

/// One warp lists how many token tiles precede each group; a lane counts those of consecutive
/// groups. All offsets are loaded at once: past the lane's last group the same one again, which
/// adds no tiles.
template <class T, class Shared>
__device__ void list_groups(const MatmulParams& p, const Shared& s, int lane) {
  constexpr int kMost = kMatmulGroups / 32;
  const std::int32_t each = (p.groups + 31) / 32;
  const std::int32_t first = lane * each;
  std::int32_t begins[kMost + 1], tiles[kMost], sum = 0;
  LATHE_UNROLL
  for (int i = 0; i <= kMost; ++i) {
    const std::int32_t mine = first + (i < each ? i : each);
    const std::int32_t group = mine < p.groups ? mine : p.groups;
    begins[i] = p.offsets == nullptr ? group * p.m : first_token(p, group);
  }
  LATHE_UNROLL
  for (int i = 0; i < kMost; ++i) {
    tiles[i] = (begins[i + 1] - begins[i] + T::kTokens - 1) / T::kTokens;
    sum += tiles[i];
  }
  std::int32_t before = sum;
  for (int d = 1; d < 32; d *= 2) {
    const std::int32_t other = shuffle_up(before, d);
    if (lane >= d) before += other;
  }
  before -= sum;
  LATHE_UNROLL
  for (int i = 0; i < kMost; ++i) {
    if (i < each && first + i <= p.groups) {
      store_shared_u32(s.tiles_before(first + i), static_cast<std::uint32_t>(before));
    }
    before += tiles[i];
  }
  if (lane == 31 && 32 * each == p.groups) {
    store_shared_u32(s.tiles_before(p.groups), static_cast<std::uint32_t>(before));
  }
}

/// Tokens of tile `tile` if `tokens` are dealt to tiles in boxes: `each`, and one more to the first
/// `more` tiles, so that no cluster waits for larger ones.
template <class T>
struct TokenBoxes {
  std::int32_t begin, end;
  __device__ TokenBoxes(std::int32_t tokens, std::int32_t tile, std::int32_t each,
                        std::int32_t more) {
    begin = (each * tile + (tile < more ? tile : more)) * T::kBoxTokens;
    end = begin + (each + (tile < more ? 1 : 0)) * T::kBoxTokens;
    if (end > tokens) end = tokens;
  }
};

/// A launch's work tiles as a block processes them: its cluster's number plus multiples of the
/// number of clusters.
template <class T>
struct MatmulWorkList {
  // The launch's parameters have the number of work tiles.
  static constexpr bool kKnown = !T::kGrouped && !T::kSplitsLast;

  const MatmulParams& p;
  const MatmulShared<T>& s;
  std::int32_t rank, cluster_blocks, item;
  std::int32_t items = 0;  // set by start(), if not kKnown
  std::int32_t found = 0;  // the group of the last work tile of one

  __device__ MatmulWorkList(const MatmulParams& params, const MatmulShared<T>& shared)
      : p(params), s(shared) {
    cluster_blocks = T::kPair ? T::kPairBlocks : p.split;
    rank = static_cast<std::int32_t>(blockIdx.x) % cluster_blocks;
    item = static_cast<std::int32_t>(blockIdx.x) / cluster_blocks;
  }
  /// Which of the cluster's two tiles of weight rows, or of tokens, the block has.
  __device__ std::int32_t row_rank() const { return T::kQuad ? rank % 2 : rank; }
  __device__ std::int32_t token_rank() const { return T::kQuad ? rank / 2 : rank; }
  /// A consumer warp frees a stage: for its block, and for those that load into it.
  __device__ void release(std::uint32_t empty) const {
    barrier_arrive(empty);
    if constexpr (T::kPair) barrier_arrive_of(empty, static_cast<std::uint32_t>(rank ^ 1));
    if constexpr (T::kQuad) barrier_arrive_of(empty, static_cast<std::uint32_t>(rank ^ 2));
  }
  /// Precondition: groups have been listed.
  __device__ void start() {
    if constexpr (kKnown) return;
    items = columns() * (T::kGrouped ? tiles_before(p.groups) : p.token_tiles);
    if constexpr (T::kSplitsLast) items = p.whole + (items - p.whole) * p.split;
    if constexpr (T::kDense) items += p.dense.items;
  }
  __device__ std::int32_t tiles_before(std::int32_t group) const {
    return static_cast<std::int32_t>(load_shared_u32(s.tiles_before(group)));
  }
  /// Tiles of weight rows, or pairs of them.
  __device__ std::int32_t columns() const { return T::kRowPair ? (p.tiles + 1) / 2 : p.tiles; }
  __device__ bool more() const { return item < (kKnown ? p.whole : items); }
  __device__ void next() { item += static_cast<std::int32_t>(gridDim.x) / cluster_blocks; }
  /// Whether the item is a part of K of a work tile.
  __device__ bool is_part() const { return T::kSpread || (T::kSplitsLast && item >= p.whole); }
  /// Precondition: not before the item of an earlier call.
  __device__ MatmulWork work() {
    if constexpr (T::kDense) {
      return item < p.dense.items ? dense_work() : grouped_work(item - p.dense.items);
    }
    if constexpr (T::kGrouped) return grouped_work(item);
    std::int32_t tiles = item, part = 0;
    if (is_part()) {
      const std::int32_t whole = T::kSplitsLast ? p.whole : 0;
      const std::int32_t before = (item - whole) / p.split;
      tiles = whole + before;
      part = p.split - 1 - (item - whole - before * p.split);
    }
    const std::int32_t group = tiles / (columns() * kMatmulRaster);
    const std::int32_t first = group * kMatmulRaster;
    const std::int32_t width =
        p.token_tiles - first < kMatmulRaster ? p.token_tiles - first : kMatmulRaster;
    const std::int32_t in_group = tiles - first * columns();
    const std::int32_t column = in_group / width;
    std::int32_t in_column = in_group - column * width;
    // Some tiles of tokens have less to do. They are others of each column's, or the same clusters
    // would get them in all columns.
    if constexpr (T::kTails) in_column = (in_column + column) % width;
    const std::int32_t token_tile = first + in_column;
    // A pair's second tile may be past the last weight's rows or the tokens; then it does nothing.
    const std::int32_t tile = T::kRowPair ? 2 * column + row_rank() : column;
    std::int32_t weight = 0;
    while (weight + 1 < p.weight_count && tile >= p.weights[weight + 1].first_tile) ++weight;
    const std::int32_t row = (tile - p.weights[weight].first_tile) * p.tile_rows;
    if constexpr (T::kDeals) {
      // Clusters that read the same weights take as long, so that one does not run ahead by more
      // than L2 holds.
      const TokenBoxes<T> boxes(p.m, token_tile, p.boxes_each, p.boxes_more);
      return {weight, row, boxes.begin, boxes.end, 0, part};
    }
    return {weight, row, (T::kTokenPair ? 2 * token_tile + token_rank() : token_tile) * T::kTokens,
            p.m,    0,   part};
  }
  /// A pair's producer stores work tile `n` before it loads its first stage. Consumers read it once
  /// they have that stage: finding it takes a search, divisions and loads of offsets.
  __device__ void put(int n, const MatmulWork& w) const {
    store_shared(s.work(n), static_cast<std::uint32_t>(w.row), static_cast<std::uint32_t>(w.token),
                 static_cast<std::uint32_t>(w.end),
                 static_cast<std::uint32_t>(w.group * 64 + w.part * 8 + w.weight));
  }
  __device__ MatmulWork get(int n) const {
    const uint4 v = load_shared_u128(s.work(n));
    const auto row = static_cast<std::int32_t>(warp_value(v.x));
    const auto token = static_cast<std::int32_t>(warp_value(v.y));
    const auto end = static_cast<std::int32_t>(warp_value(v.z));
    const auto ids = static_cast<std::int32_t>(warp_value(v.w));
    return {ids % 8, row, token, end, ids / 64, ids / 8 % 8};
  }
  /// Boxes of a work tile that have tokens to store.
  __device__ static int boxes(const MatmulWork& w) {
    const std::int32_t left = (w.end - w.token + T::kBoxTokens - 1) / T::kBoxTokens;
    return T::kTails && left < T::kBoxes ? left : T::kBoxes;
  }
  /// Tokens of a work tile that are loaded: boxes past the last token are not. TMA fills rows
  /// beyond a tensor's end more slowly than it loads others, and the block's next copies wait.
  /// Products with what is in shared memory instead are not stored.
  __device__ std::int32_t loaded_tokens(const MatmulWork& w) const {
    const std::int32_t left = w.end - w.token;
    if (left >= T::kTokens) return T::kTokens;
    if (left <= 0) return 0;
    const std::int32_t whole = left / T::kBoxTokens * T::kBoxTokens;
    if (whole == left) return whole;
    return whole + (p.tail_tokens > 0 ? p.tail_tokens : T::kBoxTokens);
  }
  /// Whether a work tile is of the dense GEMM next to the groups.
  __device__ static bool is_dense(const MatmulWork& w) { return T::kDense && w.weight != 0; }
  /// The chunks of K of a work tile.
  __device__ MatmulPart chunks(const MatmulWork& w) const {
    if (is_dense(w)) {
      const bool whole = p.dense.parts == 1;
      return whole ? MatmulPart(0, p.dense.chunks) : MatmulPart(p.dense, w.part);
    }
    if (is_part()) return MatmulPart(p, w.part);
    return T::kPair || T::kGrouped ? MatmulPart(0, p.chunks) : MatmulPart(p, rank);
  }
  /// Tiles that read the same weights are neighbours.
  __device__ MatmulWork dense_work() const {
    const MatmulDense& b = p.dense;
    const std::int32_t width = (b.m + T::kTokens - 1) / T::kTokens;
    const std::int32_t strip = item / width, column = strip / b.parts;
    return {kDenseWeight,
            column * p.tile_rows,
            (item - strip * width) * T::kTokens,
            b.m,
            0,
            strip - column * b.parts};
  }
  /// Steps on to the group of token tile `tile`. Few groups are between it and the last tile's, so
  /// eight are compared at once. A search by halves has nine loads that wait for each other.
  __device__ void find_group(std::int32_t tile) {
    for (std::int32_t count = 8; count == 8; found += count) {
      count = 0;
      LATHE_UNROLL
      for (std::int32_t i = 1; i <= 8; ++i) {
        const std::int32_t next = found + i < p.groups ? found + i : p.groups;
        count += tiles_before(next) <= tile ? 1 : 0;
      }
    }
  }
  /// A group's work tiles are neighbours, and within it the tiles that read the same weights.
  __device__ MatmulWork grouped_work(std::int32_t of_groups) {
    find_group(static_cast<std::int32_t>(p.columns(static_cast<std::uint32_t>(of_groups))));
    const std::int32_t group = found, first = tiles_before(group);
    const std::int32_t width = tiles_before(group + 1) - first;
    const std::int32_t in_group = of_groups - first * columns();
    const std::int32_t column = width == 1 ? in_group : in_group / width;
    // A group's last tile has less to do. It is another one of each column's, or the same clusters
    // would get it in all columns.
    const std::int32_t tile_of_group =
        width == 1 ? 0 : (in_group - column * width + column) % width;
    const std::int32_t row = (T::kPair ? 2 * column + rank : column) * p.tile_rows;
    const std::int32_t begin = p.offsets == nullptr ? 0 : first_token(p, group);
    const std::int32_t end = p.offsets == nullptr ? p.m : first_token(p, group + 1);
    if constexpr (T::kDeals) {
      const std::int32_t all = (end - begin + T::kBoxTokens - 1) / T::kBoxTokens;
      const TokenBoxes<T> boxes(end - begin, tile_of_group, all / width, all % width);
      return {0, row, begin + boxes.begin, begin + boxes.end, group};
    }
    return {0, row, begin + tile_of_group * T::kTokens, end, group};
  }
};

/// A row of one of the launch's weights.
struct MatmulRow {
  std::int32_t weight, row;
};
/// The weight row of a thread's tile row `row` (i = 0) or row + 8 (i = 1); past the last row, the
/// last one.
__device__ inline MatmulRow matmul_row(const MatmulParams& p, const MatmulWork& w, std::int32_t row,
                                       int i) {
  const std::int32_t rows = p.weights[w.weight].rows;
  if (p.gate_step == 0) return {w.weight, row + 8 * i < rows ? row + 8 * i : rows - 1};
  std::int32_t of_both = row / 16 * 8 + row % 8;
  if (of_both >= rows / 2) of_both = rows / 2 - 1;
  return {w.weight + i, p.gate_step * of_both + (p.gate_step - 1) * i};
}

}  // namespace lathe::cuda
