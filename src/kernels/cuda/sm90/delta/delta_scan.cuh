// The chunked form's recurrence over chunks: for each one, with S before it,
//   V' = U - W S;  O = diag(e^G) Q S + scores V';  S = diag(e^G_last) S + K~^T V'
// where rows of K~ are faded until the chunk's end. With one gate per head (GDN), rows of Q and K
// are as the convolution left them, and sums and V' are faded instead.
//
// A block has 32 columns of a head's S: f32 sums in registers, and in shared memory a bf16 copy for
// the products. A warp of its own copies the operands of the next two chunks meanwhile.
#pragma once

#include "kernels/cuda/sm90/delta/delta_tiles.cuh"

namespace lathe::cuda {

inline constexpr int kScanThreads = kDeltaThreads + 32;  // the last warp copies

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
inline constexpr int kScanStages = 3;
/// The stages, tiles of V', of V' faded and of S, and a pair of barriers per stage.
inline constexpr int kScanTiles = kScanStages * ScanStage::kBytes;
inline constexpr int kScanBarriers = kScanTiles + 4 * kColumnTileBytes;
inline constexpr int kScanShared = kScanBarriers + kScanStages * 16;

/// Starts the copies of a chunk's operands, by one thread. `full` counts them. A copy moves a whole
/// tile: copies of single rows are several times slower.
__device__ inline void copy_stage(const DeltaParams& p, std::int64_t chunk, std::int64_t head,
                                  int part, const ScanStage& to, std::uint32_t full) {
  const std::int64_t at = chunk * p.heads + head, keys = key_tile_of(p, chunk, head);
  const std::uint64_t once = cache_policy(true), normal = cache_policy(false);
  barrier_expect(full, 3 * kKeyTileBytes + kScoreTileBytes + kColumnTileBytes + 4 * kDeltaWidth);
  copy_row(to.w().base, p.w + at * kKeyTileElements, kKeyTileBytes, full, normal);
  copy_row(to.q().base, p.q + keys * kKeyTileElements, kKeyTileBytes, full, normal);
  copy_row(to.u().base, p.u + (at * kColumnTiles + part) * kColumnTileElements, kColumnTileBytes,
           full, once);
  const float* const fades = (p.per_channel ? p.last_fades : p.row_fades) + at * kDeltaWidth;
  copy_row(to.fades(), fades, 4 * kDeltaWidth, full, normal);
  copy_row(to.scores().base, p.scores + at * kScoreTileElements, kScoreTileBytes, full, normal);
  copy_row(to.k().base, p.k + keys * kKeyTileElements, kKeyTileBytes, full, normal);
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
  group_sync(1, kDeltaThreads);
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
static __global__ void __launch_bounds__(kScanThreads, 1)
    delta_scan_kernel(const __grid_constant__ DeltaParams p) {
  LATHE_DYNAMIC_SHARED(shared);
  let_next_begin();
  wait_for_previous();
  const std::int64_t request = blockIdx.z, head = blockIdx.y;
  const std::int64_t column = std::int64_t{blockIdx.x} * kScanColumns;
  DeltaChunkRows c;
  c.request = delta_request(p, request);
  const auto chunks = static_cast<int>(count_chunks(c.request));
  if (chunks == 0) return;
  c.number = first_chunk(p, request);
  c.position = c.request.cached / kDeltaChunkRows * kDeltaChunkRows;
  const std::uint32_t base = shared_address(shared);
  const auto full = [&](int i) { return base + kScanBarriers + i % kScanStages * 16u; };
  const auto empty = [&](int i) { return full(i) + 8; };
  const auto stage = [&](int i) {
    return ScanStage{base + static_cast<std::uint32_t>(i % kScanStages) * ScanStage::kBytes};
  };
  if (threadIdx.x == 0) {
    for (int i = 0; i < kScanStages; ++i) {
      barrier_init(full(i), 1);
      barrier_init(empty(i), kDeltaThreads / 32);
    }
    barriers_visible();
  }
  sync_block();
  if (threadIdx.x >= kDeltaThreads) {
    for (int i = 0; i < chunks && threadIdx.x == kDeltaThreads; ++i) {
      if (i >= kScanStages) barrier_wait(empty(i), (i / kScanStages - 1) & 1);
      copy_stage(p, c.number + i, head, static_cast<int>(blockIdx.x), stage(i), full(i));
    }
    return;
  }
  const std::uint32_t tiles = base + kScanTiles;
  const ColumnTile v{tiles}, faded_v{tiles + kColumnTileBytes};
  const ColumnTile s_copy{tiles + 2 * kColumnTileBytes};
  const std::int64_t at = head * kDeltaWidth * kDeltaWidth + column;
  ScanState state;
  state.load(c.request.before == nullptr ? nullptr : c.request.before + at);
  state.copy(s_copy);
  std::int64_t next = next_left(p, c.request, c.request.cached);
  for (int i = 0; i < chunks; ++i) {
    group_sync(1, kDeltaThreads);
    barrier_wait(full(i), (i / kScanStages) & 1);
    scan_chunk(p, c, head, column, stage(i), s_copy, v, faded_v, state);
    sync_warp();
    if (threadIdx.x % 32 == 0) barrier_arrive(empty(i));
    c.position += kDeltaChunkRows;
    const std::int64_t end = c.position < c.request.end() ? c.position : c.request.end();
    if (next != end - 1) continue;
    float* const left = left_state(p, c.request, request, next);
    if (left != nullptr) state.store(left + at);
    if (end < c.request.end()) next = next_left(p, c.request, end);
  }
}

}  // namespace lathe::cuda
