// Combines the partials of work items that several workers share (gqa_params.h).
#pragma once

#include "kernels/cuda/common/hopper.cuh"
#include "kernels/cuda/sm90/attention/row_max.cuh"
#include "kernels/cuda/sm90/gqa/gqa_params.h"

namespace lathe::cuda {

inline constexpr int kGqaCombineThreads = 128;
inline constexpr int kGqaCombineAhead = 8;  // partials that a thread loads at a time

/// A work item that `worker` begins and others finish. Each worker has at most one, so a grid of
/// one block per worker finds all of them.
struct GqaCutItem {
  GqaBlock block;
  std::int32_t head = 0;
  std::int32_t parts = 0;  // partials; 0: the worker begins no such item
  std::int32_t worker;

  __device__ GqaCutItem(const GqaParams& p, std::int32_t of_worker) : worker(of_worker) {
    const GqaTotals totals = *p.schedule.totals;
    const std::int64_t next = (worker + 1) * totals.share;
    if (worker + 1 >= p.workers || next >= totals.cost) return;
    const GqaStart at = p.schedule.starts[worker + 1];
    // The next worker begins with tile `at.tile` of an item, so that item began this many tiles
    // before.
    if (at.tile <= 0 || at.tile > totals.share) return;
    block = p.schedule.blocks[at.block];
    head = at.head;
    const std::int64_t last = next - at.tile + block.tiles - 1;
    parts = static_cast<std::int32_t>(last / totals.share) - worker + 1;
  }
  __device__ std::int64_t partial(const GqaParams&, std::int32_t part) const {
    return part == 0 ? 2 * worker + 1 : 2 * (worker + part);
  }
};

/// The pieces of a request with one KV head, with fixed cuts. `number`: request x kv_heads + head.
struct GqaPieces {
  GqaBlock block;
  std::int32_t head;
  std::int32_t parts;  // partials; 0: the request is not cut
  std::int32_t first;  // block

  __device__ GqaPieces(const GqaParams& p, std::int32_t number) {
    const std::int32_t request = number / p.kv_heads;
    head = number - request * p.kv_heads;
    first = p.schedule.request_blocks[request];
    parts = p.schedule.request_blocks[request + 1] - first;
    if (parts < 2) parts = 0;
    if (parts > 0) block = p.schedule.blocks[first];
  }
  __device__ std::int64_t partial(const GqaParams& p, std::int32_t part) const {
    return std::int64_t{first + part} * p.kv_heads + head;
  }
};

/// Item: GqaCutItem or GqaPieces. Grid: (worker or number, run of 128 chunks of 4 dimensions of the
/// M rows). out = sum over partials i, in order, of 2^(lse_i - lse) out_i, so the bits do not
/// depend on timing.
template <class Item>
static __global__ void __launch_bounds__(kGqaCombineThreads)
    gqa_combine_kernel(const __grid_constant__ GqaParams p, std::int32_t head_dim) {
  let_next_begin();  // which loads its weights meanwhile
  wait_for_previous();
  const Item item(p, static_cast<std::int32_t>(blockIdx.x));
  const std::int32_t chunks = head_dim / 4;
  const auto at = static_cast<std::int32_t>(blockIdx.y * kGqaCombineThreads + threadIdx.x);
  const std::int32_t m_row = at / chunks, dim = at % chunks * 4;
  if (item.parts == 0 || m_row >= item.block.m_rows) return;
  float row_max = kNoKey, row_sum = 0;
  float4 acc = {0, 0, 0, 0};
  for (std::int32_t i = 0; i < item.parts; i += kGqaCombineAhead) {
    float lse[kGqaCombineAhead];
    float4 v[kGqaCombineAhead];
    LATHE_UNROLL
    for (int j = 0; j < kGqaCombineAhead; ++j) {
      lse[j] = kNoKey;
      v[j] = {};
      if (i + j >= item.parts) continue;
      const std::int64_t row = item.partial(p, i + j) * p.block_m + m_row;
      lse[j] = p.partial_lse[row];
      v[j] = *reinterpret_cast<const float4*>(p.partial_out + row * head_dim + dim);
    }
    const float before = row_max;
    LATHE_UNROLL
    for (int j = 0; j < kGqaCombineAhead; ++j) row_max = fmaxf(row_max, lse[j]);
    const float zero = row_max == kNoKey ? 0.f : row_max;
    const float factor = exp2_fast(before - zero);
    row_sum *= factor;
    acc = {acc.x * factor, acc.y * factor, acc.z * factor, acc.w * factor};
    LATHE_UNROLL
    for (int j = 0; j < kGqaCombineAhead; ++j) {
      const float w = exp2_fast(lse[j] - zero);
      row_sum += w;
      acc = {fmaf(w, v[j].x, acc.x), fmaf(w, v[j].y, acc.y), fmaf(w, v[j].z, acc.z),
             fmaf(w, v[j].w, acc.w)};
    }
  }
  const auto row =
      static_cast<std::int32_t>(p.group(static_cast<std::uint32_t>(item.block.head + m_row)));
  const auto group = static_cast<std::int32_t>(p.group.divisor);
  const std::int32_t head = item.head * group + item.block.head + m_row - row * group;
  const float lse2 = row_sum == 0 ? kNoKey : row_max + log2_fast(row_sum);
  float factor = row_sum == 0 ? 0.f : 1.f / row_sum;
  if (p.sink != nullptr) factor *= sink_factor(p.sink[head], lse2);
  const std::int64_t q_row = item.block.row + row;
  const std::int64_t to = q_row * p.out_stride + std::int64_t{head} * head_dim + dim;
  const float out[4] = {acc.x * factor, acc.y * factor, acc.z * factor, acc.w * factor};
  LATHE_UNROLL
  for (int i = 0; i < 4; ++i) {
    if (p.out_f32) {
      static_cast<float*>(p.out)[to + i] = out[i];
    } else {
      static_cast<std::uint16_t*>(p.out)[to + i] = static_cast<std::uint16_t>(pack_bf16(out[i], 0));
    }
  }
  if (dim == 0 && p.lse != nullptr) {
    p.lse[q_row * p.lse_stride + head] = stored_lse(p.lse_form, lse2);
  }
}

}  // namespace lathe::cuda
