// A decode step in one launch, for heads of 128: the recurrence, the gated norm, and the last
// inputs of the convolution. It saves the second launch of other steps, 1 to 3 us of a layer.
//
// The blocks of a key head's value heads are a cluster: four of each, with 32 columns of S. They
// exchange sums of squares for the norm. A block that has the others' sums also knows that they
// have read the convolution's old inputs, which may be in the slot that the step writes.
#pragma once

#include "kernels/cuda/common/cluster_store.cuh"
#include "kernels/cuda/common/cluster_wait.cuh"
#include "kernels/cuda/sm90/delta/delta_recurrence.cuh"

namespace lathe::cuda {

inline constexpr int kHeadBlocks = kDeltaWidth / kRecurrenceColumns;

template <int kBlocks>
struct DecodeShared {
  RecurrenceRow row;
  // Of the output norm; and the output gate, then its activation.
  float weight[kRecurrenceColumns], act[kRecurrenceColumns];
  // Each thread's windows of q, k and v after the row, which would need registers that S has.
  float windows[2][kDeltaTaps - 1][kDeltaMostKeys];
  float of_v[kDeltaTaps - 1][kRecurrenceColumns];
  // Sums of squares of 4 outputs each, by block. Other blocks write them.
  alignas(16) float squares[kBlocks][kRecurrenceColumns / 4];
  alignas(8) std::uint64_t full;  // barrier: all squares are there
};

template <int kThreads>
__device__ inline void keep_window(const ChannelWindow& w,
                                   float (&room)[kDeltaTaps - 1][kThreads]) {
  room[0][threadIdx.x] = w.a, room[1][threadIdx.x] = w.b, room[2][threadIdx.x] = w.c;
}
/// Writes the inputs of a channel's next convolution, which this thread has kept.
template <int kThreads>
__device__ inline void store_window(const DeltaParams& p, std::int32_t channel, float* state,
                                    const float (&room)[kDeltaTaps - 1][kThreads]) {
  LATHE_UNROLL
  for (int i = 0; i < kDeltaTaps - 1; ++i) {
    state[delta_matrix_size(p) + i * p.channels + channel] = room[i][threadIdx.x];
  }
}

/// Sends the first warp's sums of squares to all blocks of the cluster. o: a column's output.
template <int kBlocks>
__device__ inline void send_squares(DecodeShared<kBlocks>& shared, float o) {
  const std::uint32_t lane = threadIdx.x;
  float of_lane[4];
  LATHE_UNROLL
  for (std::uint32_t i = 0; i < 4; ++i) of_lane[i] = shuffle(o, lane / 4 * 4 + i);
  const float squares = sum_of_squares(of_lane[0], of_lane[1], of_lane[2], of_lane[3]);
  // Lane 2 b + h sends columns 16 h .. 16 h + 15 to block b.
  float of_half[4];
  LATHE_UNROLL
  for (std::uint32_t i = 0; i < 4; ++i) of_half[i] = shuffle(squares, lane % 2 * 16 + 4 * i);
  if (lane >= 2 * kBlocks) return;
  store_async_of(shared_address(&shared.squares[blockIdx.x][lane % 2 * 4]), lane / 2,
                 {of_half[0], of_half[1], of_half[2], of_half[3]}, shared_address(&shared.full));
}

/// Grid: blocks of a key head, key heads, requests. Loads before the wait are as in
/// delta_rows_kernel().
template <int kBlocks>
static __global__ void __launch_bounds__(kRecurrenceThreads, kSingleBlocks)
    delta_decode_kernel(const __grid_constant__ DeltaParams p) {
  LATHE_DYNAMIC_SHARED(shared_bytes);
  auto& shared = *reinterpret_cast<DecodeShared<kBlocks>*>(shared_bytes);
  const auto tid = static_cast<int>(threadIdx.x);
  const std::uint32_t full = shared_address(&shared.full);
  if (tid == 0) {
    barrier_init(full, 1);
    barriers_visible();
  }
  arrive_cluster();
  let_next_begin();
  const std::int64_t request = blockIdx.z;
  const auto of_cluster = static_cast<std::int32_t>(blockIdx.x);
  const std::int32_t head =
      static_cast<std::int32_t>(blockIdx.y) * (kBlocks / kHeadBlocks) + of_cluster / kHeadBlocks;
  const std::int32_t column = of_cluster % kHeadBlocks * kRecurrenceColumns;
  const DeltaRequest r = delta_request(p, request);
  if (r.count == 0) {
    wait_cluster();
    return wait_for_previous();
  }
  RecurrenceTile tile(p, r, head, column);
  RecurrenceInputs in(p, r, head, column);
  if (in.of_value) copy_async_4(shared_address(&shared.weight[tid]), p.norm + column + tid);
  wait_for_previous();
  in.load_row(p, r, head, 0);
  const std::int64_t of_row = std::int64_t{head} * p.dv + column + tid;
  if (in.of_value) {
    copy_async_4(shared_address(&shared.act[tid]), p.gate + r.first * p.gate_stride + of_row);
    end_copy_group();
  }
  if (tid == kRecurrenceThreads - 1) prefetch_later_state(p, request, head, column);
  float* const to = left_state(p, r, request, r.cached);
  const float beta = prepare_row(p, in, shared.row);
  keep_window(in.q, shared.windows[0]);
  keep_window(in.k, shared.windows[1]);
  if (in.of_value) {
    keep_window(in.v, shared.of_v);
    wait_copy_groups<0>();
    shared.act[tid] = delta_act(p, shared.act[tid]);
  }
  sync_block();
  const float o = to_f32(to_bf16(tile.advance(p, shared.row, beta, to)));
  wait_cluster();
  if (tid == 0) barrier_expect(full, sizeof shared.squares);
  if (tid < 32) send_squares<kBlocks>(shared, o);
  barrier_wait_cluster(full, 0);
  if (to != nullptr) {
    if (of_cluster == 0) {
      store_window(p, in.q_channel, to, shared.windows[0]);
      store_window(p, in.k_channel, to, shared.windows[1]);
    }
    if (in.of_value) store_window(p, in.v_channel, to, shared.of_v);
  }
  if (tid >= 32) return;
  float squares = shared.squares[of_cluster / kHeadBlocks * kHeadBlocks + tid / 8][tid % 8];
  LATHE_UNROLL
  for (int d = 16; d > 0; d /= 2) squares += shuffle_xor(squares, d);
  p.out[r.first * p.out_stride + of_row] =
      to_bf16(o * out_factor(p, squares) * shared.weight[tid] * shared.act[tid]);
}

}  // namespace lathe::cuda
