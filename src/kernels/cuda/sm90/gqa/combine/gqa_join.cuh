// Joins the parts of rows of requests that share keys (gqa_shared.h).
#pragma once

#include "kernels/cuda/common/hopper.cuh"
#include "kernels/cuda/sm90/attention/row_max.cuh"
#include "kernels/cuda/sm90/gqa/gqa_params.h"

namespace lathe::cuda {

inline constexpr int kGqaJoinThreads = 128;

/// The parts of an M row in one of the two calls: the result of a whole work item, or the partials
/// of one that workers share.
struct GqaItemParts {
  std::int32_t m_row = 0;   // of its block
  std::int32_t worker = 0;  // the first one
  std::int32_t count = 0;   // 1: whole

  /// m: the M row of the request, head: its KV head, row: the request's first row.
  __device__ GqaItemParts(const GqaParams& p, std::int32_t request, std::int32_t m,
                          std::int32_t head, std::int32_t row) {
    const std::int32_t number = m / p.block_m;
    std::int32_t at = p.schedule.request_blocks[request] + number;
    m_row = m - number * p.block_m;
    if (p.chunk != 0) {  // an M block ends with its chunk, so it may be a later one
      const auto first = [&](std::int32_t block) {
        const GqaBlock& b = p.schedule.blocks[block];
        return (b.row - row) * static_cast<std::int32_t>(p.group.divisor) + b.head;
      };
      while (at + 1 < p.schedule.request_blocks[request + 1] && first(at + 1) <= m) ++at;
      m_row = m - first(at);
    }
    const std::int32_t tiles = p.schedule.blocks[at].tiles;
    const std::int64_t first =
        p.schedule.costs[at] + std::int64_t{head} * (tiles + p.item_cost) + p.item_cost;
    worker = worker_of(first, p.schedule.totals->share);
    count = worker_of(first + tiles - 1, p.schedule.totals->share) - worker + 1;
  }
  __device__ std::int64_t partial(const GqaParams& p, std::int32_t i) const {
    const std::int32_t index = i == 0 ? 2 * worker + 1 : 2 * (worker + i);
    return std::int64_t{index} * p.block_m + m_row;
  }

 private:
  // Divisions of 64 bits cost more than the join's loads.
  __device__ static std::int32_t worker_of(std::int64_t cost, std::int64_t share) {
    if (cost < (std::int64_t{1} << 31)) {
      return static_cast<std::int32_t>(static_cast<std::uint32_t>(cost) /
                                       static_cast<std::uint32_t>(share));
    }
    return static_cast<std::int32_t>(cost / share);
  }
};

/// Four dimensions of an output: sum over parts, in order, of 2^(lse_i - lse) out_i.
struct GqaJoined {
  float row_max = kNoKey, row_sum = 0;
  float4 acc = {0, 0, 0, 0};

  __device__ void add(float lse, float4 v) {
    const float before = row_max;
    row_max = fmaxf(row_max, lse);
    const float zero = row_max == kNoKey ? 0.f : row_max;
    const float factor = exp2_fast(before - zero), w = exp2_fast(lse - zero);
    row_sum = fmaf(row_sum, factor, w);
    acc = {fmaf(acc.x, factor, w * v.x), fmaf(acc.y, factor, w * v.y), fmaf(acc.z, factor, w * v.z),
           fmaf(acc.w, factor, w * v.w)};
  }
};

/// Grid: (row, run of 128 chunks of 4 dimensions of all heads). The order of parts is fixed, so the
/// bits do not depend on timing.
static __global__ void __launch_bounds__(kGqaJoinThreads)
    gqa_join_kernel(const __grid_constant__ GqaJoin p) {
  let_next_begin();  // which loads its weights meanwhile
  wait_for_previous();
  const auto row = static_cast<std::int32_t>(blockIdx.x);
  const std::int32_t chunks = p.value_dim / 4;
  const auto at = static_cast<std::int32_t>(blockIdx.y * kGqaJoinThreads + threadIdx.x);
  const std::int32_t head = at / chunks, dim = (at - head * chunks) * 4;
  if (head >= p.requests.kv_heads * static_cast<std::int32_t>(p.requests.group.divisor)) return;
  GqaJoined joined;
  // local: the row, counted from the request's first one; place: in the call's results.
  const auto add = [&](const GqaParams& call, std::int32_t request, std::int32_t local,
                       std::int32_t place) {
    // One of the calls may have pairs of KV heads.
    const auto group = static_cast<std::int32_t>(call.group.divisor);
    const auto kv_head = static_cast<std::int32_t>(call.group(static_cast<std::uint32_t>(head)));
    const GqaItemParts parts(call, request, local * group + head - kv_head * group, kv_head,
                             place - local);
    if (parts.count == 1) {
      const float* out = static_cast<const float*>(call.out) + place * call.out_stride +
                         std::int64_t{head} * p.value_dim + dim;
      joined.add(call.lse[place * call.lse_stride + head], *reinterpret_cast<const float4*>(out));
      return;
    }
    for (std::int32_t i = 0; i < parts.count; ++i) {
      const std::int64_t from = parts.partial(call, i);
      joined.add(call.partial_lse[from],
                 *reinterpret_cast<const float4*>(call.partial_out + from * p.value_dim + dim));
    }
  };
  for (std::int32_t level = 0; level < p.levels; ++level) {
    const std::int32_t* part = p.parts + 2 * (std::int64_t{row} * p.levels + level);
    const std::int32_t slot = part[0], of = part[1];
    if (slot < 0) break;
    add(p.groups, of, slot - p.groups.q_indptr[of], slot);
  }
  const std::int32_t request = p.row_requests[row];
  add(p.requests, request, row - p.requests.q_indptr[request], row);

  const float lse2 = joined.row_sum == 0 ? kNoKey : joined.row_max + log2_fast(joined.row_sum);
  float factor = joined.row_sum == 0 ? 0.f : 1.f / joined.row_sum;
  if (p.sink != nullptr) factor *= sink_factor(p.sink[head], lse2);
  const std::int64_t to = row * p.out_stride + std::int64_t{head} * p.value_dim + dim;
  const float out[4] = {joined.acc.x * factor, joined.acc.y * factor, joined.acc.z * factor,
                        joined.acc.w * factor};
  LATHE_UNROLL
  for (int i = 0; i < 4; ++i) {
    if (p.out_f32) {
      static_cast<float*>(p.out)[to + i] = out[i];
    } else {
      static_cast<std::uint16_t*>(p.out)[to + i] = static_cast<std::uint16_t>(pack_bf16(out[i], 0));
    }
  }
  if (dim == 0 && p.lse != nullptr) {
    p.lse[row * p.lse_stride + head] = stored_lse(p.lse_form, lse2);
  }
}

}  // namespace lathe::cuda
