// Builds page tables, slot tables and ragged lists, and translates positions to slots.
#pragma once

#include "kernels/cuda/common/scan.cuh"
#include "kernels/cuda/sm90/step/step_params.h"

namespace lathe::cuda {

__device__ __forceinline__ std::int32_t held_page(std::int32_t page, std::int32_t pool_pages) {
  return page >= 0 && page < pool_pages ? page : -1;
}

// The pages of one request, located once for many lookups.
struct RequestPages {
  const std::int32_t* pages;
  std::int32_t count;
  std::int32_t pool_pages;

  // No pages if the list exceeds the array of pages.
  __device__ __forceinline__ RequestPages(const ListsParams& lists, std::int64_t request)
      : pool_pages(lists.pool_pages) {
    const std::int64_t begin = lists.indptr[request], end = lists.indptr[request + 1];
    pages = lists.pages + begin;
    const bool held = begin >= 0 && begin <= end && end <= lists.page_count;
    count = held ? static_cast<std::int32_t>(end - begin) : 0;
  }
  // Page i, or -1.
  __device__ __forceinline__ std::int32_t operator()(std::int64_t i) const {
    return i >= 0 && i < count ? held_page(pages[i], pool_pages) : -1;
  }
};

// The slot of position p, with its page from `page_of_index`, or -1.
template <class PageOf>
__device__ __forceinline__ std::int32_t slot_on(const FastDiv& page_size, std::int64_t p,
                                                const PageOf& page_of_index) {
  if (p < 0 || p > 0x7fffffff) return -1;
  const auto position = static_cast<std::uint32_t>(p);
  const std::uint32_t index = page_size(position);
  const std::int32_t page = page_of_index(index);
  if (page < 0) return -1;
  const auto size = static_cast<std::int32_t>(page_size.divisor);
  return page * size + static_cast<std::int32_t>(position - index * page_size.divisor);
}

__device__ __forceinline__ std::int32_t list_slot(const ListsParams& lists, std::int64_t request,
                                                  std::int64_t p) {
  return slot_on(lists.page_size, p, RequestPages(lists, request));
}

// The table row that a thread helps to fill, and its first column.
template <int kThreads = kStepThreads>
__device__ __forceinline__ std::int64_t table_row(const RowLanes& lanes, int block,
                                                  std::int32_t& column) {
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  column = thread & (lanes.lanes() - 1);
  return std::int64_t{block} * lanes.rows(kThreads) + (thread >> lanes.shift);
}

// Fills row r of a table with value(i) in column i.
template <class Value>
__device__ __forceinline__ void fill_columns(std::int32_t* out, std::int64_t r, std::int64_t width,
                                             std::int32_t first, const RowLanes& lanes,
                                             const Value& value) {
  for (std::int64_t i = first; i < width; i += lanes.lanes()) out[r * width + i] = value(i);
}

// Grid: ceil(rows / lanes.rows()).
static __global__ void __launch_bounds__(kStepThreads)
    page_table_kernel(const __grid_constant__ PageTableParams p) {
  std::int32_t first;
  const std::int64_t r = table_row(p.lanes, static_cast<int>(blockIdx.x), first);
  if (r >= p.rows) return;
  if (r >= p.lists.requests) {
    return fill_columns(p.out, r, p.width, first, p.lanes, [](std::int64_t) { return -1; });
  }
  const RequestPages pages(p.lists, r);
  const std::int64_t size = p.lists.page_size.divisor;
  const std::int64_t tokens = p.lens == nullptr ? p.width * size : p.lens[r];
  fill_columns(p.out, r, p.width, first, p.lanes,
               [&](std::int64_t i) { return i * size < tokens ? pages(i) : -1; });
}

// Grid: ceil(rows / lanes.rows()).
static __global__ void __launch_bounds__(kStepThreads)
    slot_table_kernel(const __grid_constant__ SlotTableParams p) {
  std::int32_t first;
  const std::int64_t r = table_row(p.lanes, static_cast<int>(blockIdx.x), first);
  if (r >= p.rows) return;
  if (r >= p.lists.requests) {
    return fill_columns(p.out, r, p.width, first, p.lanes, [](std::int64_t) { return -1; });
  }
  const RequestPages pages(p.lists, r);
  const std::int64_t length = p.lengths[r];
  const std::int64_t start = p.starts == nullptr ? 0 : p.starts[r];
  fill_columns(p.out, r, p.width, first, p.lanes, [&](std::int64_t i) {
    return start >= 0 && i < length ? slot_on(p.lists.page_size, start + i, pages) : -1;
  });
}

__device__ __forceinline__ long long prefix_value(const PrefixParams& p, std::int64_t i) {
  if (i >= p.count || p.values[i] <= 0) return 0;
  const auto n = static_cast<std::uint32_t>(p.values[i]);
  // n - 1 stays within FastDiv's 31 bits.
  return std::int64_t{p.divisor(n - 1)} + 1;
}

// Grid: scan_tiles(count). Writes each tile's sum.
static __global__ void __launch_bounds__(kScanThreads, 1)
    prefix_sums_kernel(const __grid_constant__ PrefixParams p) {
  let_next_begin();
  wait_for_previous();
  store_tile_sum(p.tile_sums, [&](std::int64_t i) { return prefix_value(p, i); });
}

// Grid: scan_tiles(count). Reads tile_sums if there are several tiles.
static __global__ void __launch_bounds__(kScanThreads, 1)
    prefix_kernel(const __grid_constant__ PrefixParams p) {
  let_next_begin();
  wait_for_previous();
  for_prefix_sums(
      p.count, p.tile_sums, [&](std::int64_t i) { return prefix_value(p, i); },
      [&](std::int64_t i, long long sum) {
        if (p.out != nullptr) p.out[i] = sum;
        if (p.out32 != nullptr) p.out32[i] = static_cast<std::int32_t>(sum);
      });
}

// Any grid with kStepThreads threads.
static __global__ void __launch_bounds__(kStepThreads)
    ragged_kernel(const __grid_constant__ RaggedListParams p) {
  const std::int64_t requests = p.lists.requests;
  const std::int64_t total = requests == 0 ? 0 : p.indptr[requests];
  const std::int64_t step = std::int64_t{gridDim.x} * kStepThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kStepThreads + threadIdx.x; i < p.room;
       i += step) {
    std::int32_t item = -1;
    if (i < total) {
      const std::int64_t r = last_not_above(p.indptr, requests, i);
      const std::int64_t start = p.starts == nullptr ? 0 : p.starts[r];
      const std::int64_t within = i - p.indptr[r];
      const RequestPages pages(p.lists, r);
      if (start < 0) {
        item = -1;
      } else if (p.of_pages) {
        item = pages(p.lists.page_size(static_cast<std::uint32_t>(start)) + within);
      } else {
        item = slot_on(p.lists.page_size, start + within, pages);
      }
    }
    p.items[i] = item;
  }
}

// Grid: ceil(rows / lanes.rows()).
static __global__ void __launch_bounds__(kStepThreads)
    transform_kernel(const __grid_constant__ TransformParams p) {
  std::int32_t first;
  const std::int64_t t = table_row(p.lanes, static_cast<int>(blockIdx.x), first);
  if (t >= p.rows) return;
  const std::int32_t value = p.row_value[t];
  const std::int32_t end = p.lens == nullptr ? 0x7fffffff : p.lens[t];
  const bool real = !p.to_slots || (value >= 0 && value < p.requests);
  for (std::int64_t i = t * p.width + first; i < (t + 1) * p.width; i += p.lanes.lanes()) {
    const std::int32_t position = p.positions[i];
    std::int32_t out = -1;
    if (real && position >= 0 && position < end) {
      if (!p.to_slots) {
        const std::int64_t row = std::int64_t{value} + position;
        if (row >= 0 && row < p.limit) out = static_cast<std::int32_t>(row);
      } else {
        out = slot_on(p.page_size, position, [&](std::int64_t index) {
          return index < p.table_width ? held_page(p.table[value * p.table_width + index],
                                                   static_cast<std::int32_t>(p.limit))
                                       : -1;
        });
      }
    }
    p.out[i] = out;
  }
}

// Grid: ceil(rows / warps of a block). A warp per row, because the window starts after the last
// entry that is not a hole.
static __global__ void __launch_bounds__(kStepThreads)
    combine_kernel(const __grid_constant__ CombineParams p) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const std::int64_t t =
      std::int64_t{blockIdx.x} * (kStepThreads / 32) + static_cast<int>(threadIdx.x / 32);
  if (t >= p.rows) return;
  const std::int64_t position = p.positions[t];
  const bool real = position >= 0;
  const std::int64_t visible = real ? (position + 1) / p.ratio : 0;
  const std::int64_t base = p.entry_base[t];
  const auto compact = [&](std::int64_t row) {
    return row >= 0 && row < p.compact_rows ? static_cast<std::int32_t>(row) : -1;
  };
  const auto entry = [&](std::int64_t i) {
    const std::int64_t j = p.entries == nullptr ? i : p.entries[t * p.entry_width + i];
    return j >= 0 && j < visible ? compact(base + j) : -1;
  };
  std::int64_t listed = 0;
  if (real) listed = p.entries != nullptr || visible > p.entry_width ? p.entry_width : visible;
  int last = 0;
  for (std::int64_t i = lane; i < listed; i += 32) {
    if (entry(i) >= 0) last = static_cast<int>(i) + 1;
  }
  for (int d = 1; d < 32; d *= 2) {
    const int other = shuffle_xor(last, d);
    last = other > last ? other : last;
  }
  const std::int64_t begin = position - p.window + 1 > 0 ? position - p.window + 1 : 0;
  const std::int64_t keys = real ? position - begin + 1 : 0;
  const std::int64_t start = p.window_start[t];
  const std::int64_t window = p.window_base[t];
  for (std::int64_t i = lane; i < p.width; i += 32) {
    std::int32_t out = -1;
    if (i < last) {
      out = entry(i);
    } else if (i < last + keys) {
      const std::int64_t key = begin + i - last;
      if (key >= start) out = compact(window + key - start);
    }
    p.out[t * p.width + i] = out;
  }
  if (lane == 0) p.lengths[t] = static_cast<std::int32_t>(last + keys);
}

}  // namespace lathe::cuda
