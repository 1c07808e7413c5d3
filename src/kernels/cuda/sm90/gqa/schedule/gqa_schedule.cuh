// Makes the work list of grouped-query attention on the device from the step's lengths
// (gqa_params.h), in one block.
#pragma once

#include "kernels/cuda/common/dialect.cuh"
#include "kernels/cuda/sm90/gqa/gqa_params.h"

namespace lathe::cuda {

inline constexpr int kGqaScheduleThreads = 256;
// Least tiles of a worker besides item_cost. With fewer, combining costs more than reading saves.
inline constexpr std::int64_t kGqaLeastShare = 2;

/// Prefix sums over the block's threads, one chunk after another.
struct GqaScan {
  long long* sums;  // [warps] in shared memory
  std::int64_t before = 0;

  /// The sum of v over all earlier chunks, all earlier threads and this one.
  __device__ std::int64_t add(long long v) {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
    LATHE_UNROLL
    for (int d = 1; d < 32; d *= 2) {
      const long long u = shuffle_up(v, d);
      if (lane >= d) v += u;
    }
    if (lane == 31) sums[thread / 32] = v;
    sync_block();
    std::int64_t all = 0;
    LATHE_UNROLL
    for (int w = 0; w < kGqaScheduleThreads / 32; ++w) {
      if (w == thread / 32) v += before + all;
      all += sums[w];
    }
    sync_block();
    before += all;
    return v;
  }
};

/// Index of the last of `count` ascending entries that is at most x. The first must be at most x.
template <class T>
__device__ inline std::int32_t last_at_most(const T* entries, std::int32_t count, std::int64_t x) {
  std::int32_t low = 0, high = count;
  while (high - low > 1) {
    const std::int32_t middle = low + (high - low) / 2;
    if (entries[middle] <= x) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/// Rows of a request, without any beyond q.
struct GqaRows {
  std::int32_t begin, end;
  __device__ GqaRows(std::int32_t from, std::int32_t to) : begin(from), end(to) {}
  __device__ GqaRows(const GqaParams& p, std::int32_t request)
      : begin(p.indices == nullptr ? p.q_indptr[request] : request),
        end(p.indices == nullptr ? p.q_indptr[request + 1] : request + 1) {
    if (begin < 0) begin = 0;
    if (end > p.q_rows) end = p.q_rows;
    if (end < begin) end = begin;
  }
  __device__ std::int32_t count() const { return end - begin; }
};

/// M blocks of `rows` rows that share no M block with others.
__device__ inline std::int32_t gqa_blocks_of(const GqaParams& p, std::int32_t rows) {
  return static_cast<std::int32_t>((std::int64_t{rows} * p.group.divisor + p.block_m - 1) /
                                   p.block_m);
}

/// Keys of a request, or entries of a row's list.
__device__ inline std::int32_t gqa_keys(const GqaParams& p, std::int32_t request) {
  std::int32_t keys = p.max_keys;
  if (p.indices == nullptr) {
    keys = p.kv_lens[request];
  } else if (p.index_lengths != nullptr) {
    keys = p.index_lengths[request];
  }
  return keys < 0 ? 0 : keys > p.max_keys ? p.max_keys : keys;
}

/// A request's rows by chunks: `first` rows in the chunk of the first row, then whole chunks, then
/// the rest. Without chunks all rows are in the first one.
struct GqaChunks {
  std::int32_t rows, first, chunk;
  std::int32_t begin;  // first key of the first chunk

  /// keys: of the request.
  __device__ GqaChunks(const GqaParams& p, std::int32_t count, std::int32_t keys)
      : rows(count), first(count), chunk(p.chunk), begin(0) {
    if (chunk == 0) return;
    // Of the first row. Before 0 where a request has more rows than keys: those see none.
    const std::int64_t position = std::int64_t{keys} - count;
    if (position > 0) begin = static_cast<std::int32_t>(position - position % chunk);
    const std::int64_t to_next = begin + chunk - position;
    if (to_next < first) first = static_cast<std::int32_t>(to_next);
  }
  __device__ std::int32_t blocks(const GqaParams& p) const {
    const std::int32_t after = rows - first;
    if (after == 0) return gqa_blocks_of(p, first);
    return gqa_blocks_of(p, first) + after / chunk * gqa_blocks_of(p, chunk) +
           gqa_blocks_of(p, after % chunk);
  }
  /// Makes `number` count M blocks of the chunk that has M block `number`. Returns that chunk's
  /// rows, counted from the request's, and makes `begin` its first key.
  __device__ GqaRows find(const GqaParams& p, std::int32_t& number) {
    const std::int32_t before = gqa_blocks_of(p, first);
    if (number < before) return {0, first};
    number -= before;
    const std::int32_t each = gqa_blocks_of(p, chunk), skipped = number / each;
    number -= skipped * each;
    begin += (1 + skipped) * chunk;
    const std::int32_t row = first + skipped * chunk;
    return {row, rows - row < chunk ? rows : row + chunk};
  }
};

/// M block `number` of a request.
__device__ inline GqaBlock gqa_whole_block(const GqaParams& p, std::int32_t request,
                                           std::int32_t number) {
  const GqaRows rows(p, request);
  const std::int32_t keys = gqa_keys(p, request);
  GqaChunks chunks(p, rows.count(), keys);
  const GqaRows own = chunks.find(p, number);
  const auto first = static_cast<std::int32_t>(std::int64_t{number} * p.block_m);
  const std::int64_t left = std::int64_t{own.count()} * p.group.divisor - first;
  GqaBlock b;
  b.request = p.tables == nullptr ? request : p.tables[request];
  b.begin = p.begins == nullptr ? 0 : p.begins[request];
  if (b.begin < chunks.begin) b.begin = chunks.begin;
  b.m_rows = static_cast<std::int32_t>(left < p.block_m ? left : p.block_m);
  const auto row = static_cast<std::int32_t>(p.group(static_cast<std::uint32_t>(first)));
  b.row = rows.begin + own.begin + row;
  b.head = first - row * static_cast<std::int32_t>(p.group.divisor);
  if (p.slot_rows != nullptr) {
    b.limit = b.keys = keys;
  } else {
    b.limit = keys - (rows.end - b.row) + 1;
    b.keys = b.limit +
             static_cast<std::int32_t>(p.group(static_cast<std::uint32_t>(b.head + b.m_rows - 1)));
  }
  const std::int32_t seen = b.limit - p.window, begin = seen > b.begin ? seen : b.begin;
  b.tile = begin > 0 ? begin / p.tile : 0;
  const std::int32_t end = (b.keys + p.tile - 1) / p.tile;
  b.tiles = end > b.tile ? end - b.tile : 1;
  b.partial = -1;
  return b;
}

/// Tiles of each piece of a block but the last.
__device__ inline std::int32_t gqa_piece(const GqaParams& p, const GqaBlock& b) {
  const std::int32_t each = (b.tiles + p.pieces - 1) / p.pieces;
  return each > p.piece_tiles ? each : p.piece_tiles;
}

__device__ inline std::int64_t gqa_blocks(const GqaParams& p, std::int32_t request) {
  const std::int32_t rows = GqaRows(p, request).count();
  if (p.pieces < 2 || rows == 0) {
    return GqaChunks(p, rows, p.chunk == 0 ? 0 : gqa_keys(p, request)).blocks(p);
  }
  const GqaBlock b = gqa_whole_block(p, request, 0);
  const std::int32_t each = gqa_piece(p, b);
  return (b.tiles + each - 1) / each;
}

/// Block `number` of gqa_blocks().
__device__ inline GqaBlock gqa_block(const GqaParams& p, std::int32_t request,
                                     std::int32_t number) {
  if (p.pieces < 2) return gqa_whole_block(p, request, number);
  GqaBlock b = gqa_whole_block(p, request, 0);
  const std::int32_t each = gqa_piece(p, b), first = number * each;
  if (b.tiles > each) b.partial = (p.schedule.request_blocks[request] + number) * p.kv_heads;
  b.tile += first;
  b.tiles = b.tiles - first < each ? b.tiles - first : each;
  return b;
}

/// The place in the list of items that is `cost` from its begin.
__device__ inline GqaStart gqa_start(const GqaParams& p, std::int32_t blocks, std::int64_t cost) {
  const GqaSchedule& s = p.schedule;
  const std::int32_t i = last_at_most(s.costs, blocks, cost);
  const std::int64_t in_block = cost - s.costs[i], item = s.blocks[i].tiles + p.item_cost;
  const std::int64_t head = in_block / item;
  return {i, static_cast<std::int32_t>(head),
          static_cast<std::int32_t>(in_block - head * item) - p.item_cost, 0};
}

/// The first item that begins at `cost` or after, and where it begins.
__device__ inline GqaStart gqa_next_item(const GqaParams& p, std::int32_t blocks, std::int64_t cost,
                                         std::int64_t& begins) {
  if (cost >= p.schedule.costs[blocks]) {
    begins = p.schedule.costs[blocks];
    return {};
  }
  GqaStart at = gqa_start(p, blocks, cost);
  const std::int64_t before = at.tile + p.item_cost;  // cost of the item that `cost` is in
  at.tile = -p.item_cost;
  begins = cost - before;
  if (before == 0) return at;
  begins += p.schedule.blocks[at.block].tiles + p.item_cost;
  if (++at.head == p.kv_heads) {
    at.head = 0;
    ++at.block;
  }
  return at;
}

// Unused where a file needs only the prefix sums.
[[maybe_unused]] static __global__ void __launch_bounds__(kGqaScheduleThreads)
    gqa_schedule_kernel(const __grid_constant__ GqaParams p) {
  __shared__ long long sums[kGqaScheduleThreads / 32];
  const GqaSchedule& s = p.schedule;
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  GqaScan of_requests{sums};
  if (thread == 0) s.request_blocks[0] = 0;
  for (std::int32_t first = 0; first < p.requests; first += kGqaScheduleThreads) {
    const std::int32_t r = first + thread;
    std::int64_t blocks = 0;
    if (r < p.requests) blocks = gqa_blocks(p, r);
    const std::int64_t all = of_requests.add(blocks);
    if (r < p.requests) s.request_blocks[r + 1] = static_cast<std::int32_t>(all);
  }
  sync_block();
  const auto blocks = static_cast<std::int32_t>(
      of_requests.before < p.max_blocks ? of_requests.before : p.max_blocks);
  GqaScan of_costs{sums};
  if (thread == 0) s.costs[0] = 0;
  for (std::int32_t first = 0; first < blocks; first += kGqaScheduleThreads) {
    const std::int32_t i = first + thread;
    GqaBlock b = {};
    if (i < blocks) {
      const std::int32_t r = last_at_most(s.request_blocks, p.requests, i);
      b = gqa_block(p, r, i - s.request_blocks[r]);
      s.blocks[i] = b;
    }
    const std::int64_t item = i < blocks ? b.tiles + p.item_cost : 0;
    const std::int64_t all = of_costs.add(item * p.kv_heads);
    if (i < blocks) s.costs[i + 1] = all;
  }
  sync_block();
  const std::int64_t cost = of_costs.before, least = kGqaLeastShare + p.item_cost;
  std::int64_t share = (cost + p.workers - 1) / p.workers;
  if (share < least) share = least;
  if (thread == 0) *s.totals = {cost, share};
  for (std::int32_t w = thread; w < p.workers; w += kGqaScheduleThreads) {
    const std::int64_t begin = w * share, end = begin + share < cost ? begin + share : cost;
    GqaStart start = {};
    if (begin < end && p.pieces == 0) {
      start = gqa_start(p, blocks, begin);
      start.left = end - begin;
    } else if (begin < end) {
      std::int64_t first = 0, last = 0;
      start = gqa_next_item(p, blocks, begin, first);
      gqa_next_item(p, blocks, end, last);
      start.left = last - first;
    }
    s.starts[w] = start;
  }
}

}  // namespace lathe::cuda
