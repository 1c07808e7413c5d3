// The chunked form's recurrence over chunks: for each one, with S before it,
//   V' = U - W S;  O = diag(e^G) Q S + scores V';  S = diag(e^G_last) S + K~^T V'
// where rows of K~ are faded until the chunk's end. With one gate per head (GDN), rows of Q and K
// are as the convolution left them, and sums and V' are faded instead.
//
// A block has 32 columns of a head's S: f32 sums in registers, and in shared memory a bf16 copy for
// the products. Chunks are copied to shared memory one ahead.
#pragma once

#include "kernels/cuda/sm90/delta/delta_tiles.cuh"

namespace lathe::cuda {

inline constexpr int kScanColumns = 32;

using ColumnTile = SharedTile<kScanColumns + 8>;  // [64 or 128, 32]

inline constexpr int kColumnTileBytes = kDeltaChunkRows * (kScanColumns + 8) * 2;

/// A chunk's operands in shared memory.
struct ScanStage {
  static constexpr int kFades = 3 * kKeyTileBytes + kScoreTileBytes + kColumnTileBytes;
  static constexpr int kBytes = kFades + kDeltaWidth * 4;
  std::uint32_t base;

  __device__ KeyTile w() const { return {base}; }
  __device__ KeyTile q() const { return {base + kKeyTileBytes}; }
  __device__ KeyTile k() const { return {base + 2 * kKeyTileBytes}; }
  __device__ ScoreTile scores() const { return {base + 3 * kKeyTileBytes}; }
  __device__ ColumnTile u() const { return {base + 3 * kKeyTileBytes + kScoreTileBytes}; }
  /// GDN: e^G and e^(G_last - G) of the 64 rows; KDA: e^G_last of the 128 channels.
  __device__ std::uint32_t fades() const { return base + kFades; }
};
inline constexpr int kScanShared = 2 * ScanStage::kBytes + 4 * kColumnTileBytes;

__device__ inline void copy_stage(const DeltaParams& p, const DeltaChunkRows& c, std::int64_t head,
                                  std::int64_t column, const ScanStage& to) {
  const std::int64_t at = c.number * p.heads + head;
  copy_tile(to.w(), p.w + at * kKeyTileElements, kDeltaWidth, kDeltaWidth);
  copy_tile(to.u(), p.u + at * kKeyTileElements + column, kScanColumns, kDeltaWidth);
  copy_tile(to.scores(), p.scores + at * kScoreTileElements, kDeltaChunkRows, kDeltaChunkRows);
  if (p.per_channel) {
    copy_tile(to.q(), p.q + at * kKeyTileElements, kDeltaWidth, kDeltaWidth);
    copy_tile(to.k(), p.k + at * kKeyTileElements, kDeltaWidth, kDeltaWidth);
  } else {
    const std::int64_t key_head = head / (p.heads / p.key_heads);
    copy_mixed(p, c, key_head * kDeltaWidth, to.q());
    copy_mixed(p, c, (p.key_heads + key_head) * kDeltaWidth, to.k());
  }
  const float* const fades = (p.per_channel ? p.last_fades : p.row_fades) + at * kDeltaWidth;
  const auto tid = static_cast<int>(threadIdx.x);
  if (tid < kDeltaWidth / 4) copy_async(to.fades() + tid * 16u, fades + tid * 4, true);
  end_copy_group();
}

/// A warp's part of S: rows 16 w to + 15 of the block's columns, as 4 tiles of sums.
struct ScanState {
  float s[kScanColumns / 8][4];

  /// The address of d[2 half], of the tile of columns n.
  template <class T>
  static __device__ T* at(T* state, int n, int half) {
    const auto l = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    return state + (16 * warp + l / 4 + 8 * half) * kDeltaWidth + 8 * n + l % 4 * 2;
  }
  __device__ void load(const float* from) {
    LATHE_UNROLL
    for (int n = 0; n < kScanColumns / 8; ++n) {
      LATHE_UNROLL
      for (int half = 0; half < 2; ++half) {
        float2 v = {};
        if (from != nullptr) v = *reinterpret_cast<const float2*>(at(from, n, half));
        s[n][2 * half] = v.x, s[n][2 * half + 1] = v.y;
      }
    }
  }
  __device__ void store(float* to) const {
    LATHE_UNROLL
    for (int n = 0; n < kScanColumns / 8; ++n) {
      LATHE_UNROLL
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<float2*>(at(to, n, half)) = {s[n][2 * half], s[n][2 * half + 1]};
      }
    }
  }
  __device__ void fade(float of_upper, float of_lower) {
    LATHE_UNROLL
    for (int n = 0; n < kScanColumns / 8; ++n) {
      s[n][0] *= of_upper, s[n][1] *= of_upper;
      s[n][2] *= of_lower, s[n][3] *= of_lower;
    }
  }
  __device__ void copy(const ColumnTile& to) const {
    LATHE_UNROLL
    for (int n = 0; n < kScanColumns / 8; ++n) {
      to.store(16 * static_cast<int>(threadIdx.x / 32), 8 * n, s[n]);
    }
  }
};

/// Advances S by a chunk and writes the chunk's outputs. Warp w computes rows 16 (w % 4) to + 15 of
/// V' and O, and 16 of the 32 columns.
__device__ inline void scan_chunk(const DeltaParams& p, const DeltaChunkRows& c, std::int64_t head,
                                  std::int64_t column, const ScanStage& stage,
                                  const ColumnTile& s_copy, const ColumnTile& v,
                                  const ColumnTile& faded_v, ScanState& state) {
  const auto l = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int m = warp % 4 * 16, n = warp / 4 * 16;
  float known[2][4] = {}, o[2][4] = {};
  LATHE_UNROLL
  for (int k = 0; k < kDeltaWidth; k += 16) {
    std::uint32_t w[4], q[4], s[4];
    stage.w().load_a(m, k, w);
    stage.q().load_a(m, k, q);
    s_copy.load_b(k, n, s);
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      warp_mma(known[i], w, s[2 * i], s[2 * i + 1]);
      warp_mma(o[i], q, s[2 * i], s[2 * i + 1]);
    }
  }
  const std::uint32_t fades = stage.fades();
  const int upper = m + l / 4, lower = upper + 8;
  float faded[2] = {1, 1}, until_end[2] = {1, 1};
  if (!p.per_channel) {
    faded[0] = load_float(fades + 4u * upper), faded[1] = load_float(fades + 4u * lower);
    until_end[0] = load_float(fades + 4u * (kDeltaChunkRows + upper));
    until_end[1] = load_float(fades + 4u * (kDeltaChunkRows + lower));
  }
  LATHE_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int at = n + 8 * i + l % 4 * 2;
    const std::uint32_t u[2] = {load_shared_u32(stage.u().at(upper, at)),
                                load_shared_u32(stage.u().at(lower, at))};
    float d[4], e[4];
    LATHE_UNROLL
    for (int half = 0; half < 2; ++half) {
      d[2 * half] = bits_to_float(u[half] << 16) - known[i][2 * half];
      d[2 * half + 1] = bits_to_float(u[half] & 0xffff0000u) - known[i][2 * half + 1];
      e[2 * half] = d[2 * half] * until_end[half];
      e[2 * half + 1] = d[2 * half + 1] * until_end[half];
      o[i][2 * half] *= faded[half], o[i][2 * half + 1] *= faded[half];
    }
    v.store(m, n + 8 * i, d);
    faded_v.store(m, n + 8 * i, e);
  }
  sync_block();
  for (int k = 0; k <= m; k += 16) {
    std::uint32_t a[4], b[4];
    stage.scores().load_a(m, k, a);
    v.load_b(k, n, b);
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) warp_mma(o[i], a, b[2 * i], b[2 * i + 1]);
  }
  LATHE_UNROLL
  for (int half = 0; half < 2; ++half) {
    const std::int64_t row = c.row(half == 0 ? upper : lower);
    if (row < 0) continue;
    bf16* const out = p.out + row * p.out_stride + head * kDeltaWidth + column + n + l % 4 * 2;
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      *reinterpret_cast<std::uint32_t*>(out + 8 * i) =
          pack_bf16(o[i][2 * half], o[i][2 * half + 1]);
    }
  }
  if (p.per_channel) {
    const std::uint32_t at = fades + 4u * (16 * warp + l / 4);
    state.fade(load_float(at), load_float(at + 4 * 8));
  } else {
    const float last = load_float(fades + 4u * (kDeltaChunkRows - 1));
    state.fade(last, last);
  }
  LATHE_UNROLL
  for (int k = 0; k < kDeltaChunkRows; k += 16) {
    std::uint32_t a[4];
    stage.k().load_a_trans(16 * warp, k, a);
    LATHE_UNROLL
    for (int i = 0; i < kScanColumns; i += 16) {
      std::uint32_t b[4];
      faded_v.load_b(k, i, b);
      warp_mma(state.s[i / 8], a, b[0], b[1]);
      warp_mma(state.s[i / 8 + 1], a, b[2], b[3]);
    }
  }
  state.copy(s_copy);
}

/// Grid: parts of 32 columns, heads, requests.
static __global__ void __launch_bounds__(kDeltaThreads, 1)
    delta_scan_kernel(const __grid_constant__ DeltaParams p) {
  LATHE_DYNAMIC_SHARED(shared);
  let_next_begin();
  wait_for_previous();
  const std::int64_t request = blockIdx.z, head = blockIdx.y;
  const std::int64_t column = std::int64_t{blockIdx.x} * kScanColumns;
  DeltaChunkRows c;
  c.request = delta_request(p, request);
  const std::int64_t chunks = count_chunks(c.request);
  if (chunks == 0) return;
  c.number = first_chunk(p, request);
  c.position = c.request.cached / kDeltaChunkRows * kDeltaChunkRows;
  const std::uint32_t base = shared_address(shared);
  // Not an array, which would be in local memory.
  const auto stage_of = [&](std::int64_t i) {
    return ScanStage{base + static_cast<std::uint32_t>(i % 2) * ScanStage::kBytes};
  };
  const std::uint32_t tiles = base + 2 * ScanStage::kBytes;
  const ColumnTile v{tiles}, faded_v{tiles + kColumnTileBytes},
      s_copy{tiles + 2 * kColumnTileBytes};
  copy_stage(p, c, head, column, stage_of(0));
  const std::int64_t at = head * kDeltaWidth * kDeltaWidth + column;
  ScanState state;
  state.load(c.request.before == nullptr ? nullptr : c.request.before + at);
  state.copy(s_copy);
  for (std::int64_t i = 0; i < chunks; ++i) {
    if (i + 1 < chunks) {
      DeltaChunkRows next = c;
      ++next.number;
      next.position += kDeltaChunkRows;
      copy_stage(p, next, head, column, stage_of(i + 1));
      wait_copy_groups<1>();
    } else {
      wait_copy_groups<0>();
    }
    sync_block();
    scan_chunk(p, c, head, column, stage_of(i), s_copy, v, faded_v, state);
    std::int64_t last = c.position + kDeltaChunkRows;
    if (last > c.request.end()) last = c.request.end();
    float* const left = left_state(p, c.request, request, last - 1);
    if (left != nullptr) state.store(left + at);
    ++c.number;
    c.position += kDeltaChunkRows;
    sync_block();
  }
}

}  // namespace lathe::cuda
