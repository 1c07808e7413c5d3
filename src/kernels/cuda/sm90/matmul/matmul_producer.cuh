// The producer warp: fills stages with weights and tokens by TMA.
#pragma once

#include "kernels/cuda/common/multicast.cuh"
#include "kernels/cuda/common/prefetch_map.cuh"
#include "kernels/cuda/sm90/matmul/matmul_work.cuh"

namespace lathe::cuda {

template <class T>
struct MatmulProducer {
  using Format = typename T::Format;

  /// The packed scales of a tile in the next chunk. One thread issues all copies, so the loop over
  /// chunks computes little.
  struct Packed {
    const std::uint8_t *scales, *zeros;  // of the tile's weight, or of a gated GEMM's first
    std::int64_t at;                     // index of the tile's first row, counted over all chunks
    std::int32_t step;                   // rows of a chunk
    std::uint32_t rows;                  // of the tile, and of each weight if there are two
  };

  const MatmulParams& p;
  const MatmulMaps& maps;
  const MatmulShared<T>& s;
  MatmulWorkList<T> list;
  std::uint64_t policy;  // L2 policy for weights
  Packed packed = {};

  __device__ MatmulProducer(const MatmulParams& params, const MatmulMaps& tensor_maps,
                            const MatmulShared<T>& shared)
      : p(params), maps(tensor_maps), s(shared), list(params, shared) {
    // Weights that are read only once may be evicted first. Those of a small group are read once,
    // or twice if it has more tokens than a tile. Tall tiles have no registers for a policy that is
    // known at run time.
    policy = cache_policy(T::kGrouped ? !T::kPair : !T::kTall && p.token_tiles == 1);
  }

  __device__ std::int32_t x_scale_stride(const MatmulWork& w) const {
    return list.is_dense(w) ? p.dense.x_scale_stride : p.x_scale_stride;
  }
  /// Bytes to load for a tile's token scales; the load starts at a multiple of 4 tokens.
  __device__ std::uint32_t scale_bytes(const MatmulWork& w) const {
    const std::int32_t left = x_scale_stride(w) - (w.token & ~3);
    constexpr std::int32_t kMost = T::kScaleBytes / 4;
    if (T::kTokenPair && left < 0) return 0;
    return static_cast<std::uint32_t>(left < kMost ? left : kMost) * 4;
  }
  /// Whether a tile has rows of two arrays.
  __device__ bool two_weights() const { return p.gate_step == 1; }
  __device__ void find_packed(const MatmulWork& w, std::int32_t chunk) {
    const std::int32_t row = two_weights() ? w.row / 2 : w.row;
    const std::int32_t rows = two_weights() ? p.tile_rows / 2 : p.tile_rows;
    const MatmulWeight& weight = p.weights[w.weight];
    const std::int32_t left = weight.packed_rows - row;
    packed = {
        static_cast<const std::uint8_t*>(weight.scales), weight.zeros,
        (std::int64_t{w.group} * p.chunks + chunk) * Format::kDepth * weight.packed_rows + row,
        weight.packed_rows,
        static_cast<std::uint32_t>(left < 0      ? 0
                                   : left < rows ? left
                                                 : rows)};
  }
  /// Chunks of 128 columns in a stage.
  __device__ std::int32_t packed_chunks(std::int32_t chunk) const {
    return Format::kDepth == 1 || (2 * chunk + 1) * 128 < p.k ? Format::kDepth : 1;
  }
  __device__ std::uint32_t packed_bytes(std::int32_t chunk) const {
    return packed.rows * static_cast<std::uint32_t>((p.scale_bytes + p.zero_bytes) *
                                                    (two_weights() ? 2 : 1) * packed_chunks(chunk));
  }
  __device__ void copy_packed(const std::uint8_t* from, std::int32_t bytes, std::uint32_t to,
                              int stage) const {
    copy_row(to, from + packed.at * bytes, packed.rows * static_cast<std::uint32_t>(bytes),
             s.full(stage), policy);
  }
  /// Loads those of a stage and steps to the next.
  __device__ void load_packed(std::int32_t chunk, int stage) {
    if (packed.rows == 0) return;
    const std::int32_t count = packed_chunks(chunk);
    for (std::int32_t i = 0; i < count; ++i) load_packed_chunk(stage, i);
  }
  __device__ void load_packed_chunk(int stage, int chunk) {
    const std::uint32_t scales = s.packed_scales(stage, chunk);
    const std::uint32_t zeros = s.packed_zeros(stage, chunk);
    copy_packed(packed.scales, p.scale_bytes, scales, stage);
    if (p.zero_bytes > 0) copy_packed(packed.zeros, p.zero_bytes, zeros, stage);
    if (two_weights()) {
      const MatmulWeight& second = p.weights[1];
      const std::int32_t half = p.tile_rows / 2;
      copy_packed(static_cast<const std::uint8_t*>(second.scales), p.scale_bytes,
                  scales + static_cast<std::uint32_t>(half * p.scale_bytes), stage);
      if (p.zero_bytes > 0) {
        copy_packed(second.zeros, p.zero_bytes,
                    zeros + static_cast<std::uint32_t>(half * p.zero_bytes), stage);
      }
    }
    packed.at += packed.step;
  }
  __device__ void load_weights(const MatmulWork& w, std::int32_t chunk, int stage) {
    auto bytes = static_cast<std::uint32_t>(p.tile_rows * Format::kWeightRowBytes +
                                            list.loaded_tokens(w) * Format::kTokenBoxes * 128);
    if constexpr (Format::kTokenScales) bytes += scale_bytes(w);
    if constexpr (T::kPackedBytes > 0) bytes += packed_bytes(chunk);
    barrier_expect(s.full(stage), bytes);
    if constexpr (T::kPackedBytes > 0) load_packed(chunk, stage);
    const std::int32_t k = chunk * Format::kWeightStep;
    const void* const map = &maps.weights[w.weight];
    if constexpr (T::kTokenPair) {
      const std::int32_t first = list.token_rank() * (T::kTileRows / 2);
      const std::uint32_t to = s.weights(stage) + static_cast<std::uint32_t>(first * 128);
      const std::uint32_t blocks = T::kQuad ? 5u << list.row_rank() : 3;
      if (p.gate_step != 0) {
        copy_turns_box_to_blocks(to, map, k, (w.row + first) / 16, w.group, s.full(stage), blocks);
      } else {
        copy_box_to_blocks(to, map, k, w.row + first, w.group, s.full(stage), blocks);
      }
    } else if (p.gate_step != 0) {
      copy_turns_box(s.weights(stage), map, k, w.row / 16, w.group, s.full(stage), policy);
    } else {
      copy_box(s.weights(stage), map, k, w.row, w.group, s.full(stage), policy);
    }
  }
  /// Of the box of a work tile's tokens from `token` on.
  __device__ const CUtensorMap* map_of(const MatmulWork& w, std::int32_t token) const {
    const bool whole = p.tail_tokens == 0 || w.token + token + T::kBoxTokens <= w.end;
    return whole ? &maps.x : &maps.x_tail;
  }
  __device__ void load_tokens(const MatmulWork& w, std::int32_t chunk, int stage) const {
    const std::int32_t page = p.x_by_group ? w.group : 0;
    if constexpr (Format::kTokenScales) {
      const float* scales = list.is_dense(w) ? p.dense.x_scales : p.x_scales;
      const std::uint32_t bytes = scale_bytes(w);
      if (!T::kTokenPair || bytes > 0) {
        copy_row(s.scales(stage), scales + std::int64_t{chunk} * x_scale_stride(w) + (w.token & ~3),
                 bytes, s.full(stage), policy);
      }
    }
    LATHE_UNROLL
    for (int box = 0; box < Format::kTokenBoxes; ++box) {
      const std::int32_t k = chunk * Format::kChunk + box * (Format::kChunk / Format::kTokenBoxes);
      const std::uint32_t to =
          s.tokens(stage) + static_cast<std::uint32_t>(box * T::kTokenBoxBytes);
      if constexpr (T::kRowPair) {
        const std::int32_t rank = list.row_rank();
        const std::uint32_t blocks = T::kQuad ? 3u << 2 * list.token_rank() : 3;
        const std::int32_t left = w.end - w.token < T::kTokens ? w.end - w.token : T::kTokens;
        LATHE_ROLLED
        for (std::int32_t token = rank * T::kBoxTokens; token < left; token += 2 * T::kBoxTokens) {
          copy_box_to_blocks(to + static_cast<std::uint32_t>(token * 128), map_of(w, token), k,
                             w.token + token, page, s.full(stage), blocks);
        }
      } else if (!T::kTokenPair || w.token < w.end) {
        copy_box(to, list.is_dense(w) ? &maps.x_dense : map_of(w, 0), k, w.token, page,
                 s.full(stage));
      }
    }
  }

  /// Chunks of a block's first tile, at most, for which there are stages.
  __device__ static std::int32_t ahead_of(const MatmulPart& part) {
    const std::int32_t chunks = part.end - part.begin;
    return chunks < T::kStages ? chunks : T::kStages;
  }
  /// Before the previous launch has ended and groups are listed, in the thread of run(): fetches
  /// the tensor maps, and loads weights of the block's first tile if it is not of a group.
  __device__ void begin() {
    prefetch_map(&maps.x);
    if constexpr (T::kGrouped) prefetch_map(&maps.weights[0]);
    if constexpr (T::kDense) {
      if (list.item >= p.dense.items) return;
      const MatmulWork w = list.work();
      const MatmulPart part = list.chunks(w);
      for (std::int32_t c = 0; c < ahead_of(part); ++c) load_weights(w, part.begin + c, c);
      prefetch_map(&maps.x_dense);
    }
  }
  /// Runs in one thread, after begin(). Loads of the first stages' weights are issued before the
  /// previous launch has ended.
  __device__ void run() {
    list.start();
    MatmulStage<T> stage;
    for (int n = 0; list.more(); list.next(), ++n) {
      MatmulWork w = list.work();
      if constexpr (T::kPair) list.put(n, w);
      // A pair's second tile may be past the last weight's rows, which TMA would fill slowly.
      if (T::kRowPair && w.row >= p.weights[w.weight].rows) w.row = 0;
      const MatmulPart part = list.chunks(w);
      std::int32_t c = part.begin;
      if constexpr (T::kPackedBytes > 0) find_packed(w, c);
      // Which groups have tokens may be known only after the wait.
      const bool known = !T::kGrouped || p.offsets == nullptr || p.offsets_known != 0;
      if (n == 0 && (known || list.is_dense(w))) {
        const std::int32_t ahead = ahead_of(part);
        LATHE_ROLLED
        for (std::int32_t i = 0; i < ahead && !list.is_dense(w); ++i) load_weights(w, c + i, i);
        wait_for_previous();
        LATHE_ROLLED
        for (std::int32_t i = 0; i < ahead; ++i, ++c, stage.next()) load_tokens(w, c, i);
      }
      LATHE_ROLLED
      for (; c < part.end; ++c, stage.next()) {
        barrier_wait(s.empty(stage.index), stage.parity ^ 1);
        load_weights(w, c, stage.index);
        load_tokens(w, c, stage.index);
      }
    }
  }
};

}  // namespace lathe::cuda
