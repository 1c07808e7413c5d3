#include "kernels/cpu/latent/latent_gather.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>

#include "kernels/cpu/common/tasks.h"
#include "kernels/cpu/latent/latent_attend.h"
#include "kernels/cpu/latent/latent_check.h"
#include "kernels/cpu/latent/latent_keys.h"
#include "kernels/cpu/latent/latent_plan.h"
#include "layout/codec/codec.h"
#include "plan/budget.h"

namespace lathe {
namespace {

static_assert(kGatherTileKeys % kLatentFoldKeys == 0);

// Requests first .. last - 1 of a batch, to be run as a batch of their own, and the sizes of its
// workspace. The first and the last request may have only some of their rows in it.
struct Group {
  std::int64_t first = 0, last = 0;          // requests
  std::int64_t first_row = 0, last_row = 0;  // rows of q
  std::int64_t pages = 0;                    // pages of the requests that have rows
  std::int64_t width = 1;                    // width of the page table, or of the lists

  Group joined_by(const Group& next) const {
    return {first,         next.last,          first_row,
            next.last_row, pages + next.pages, std::max(width, next.width)};
  }
};

template <class T>
std::int64_t room_of(std::int64_t n) {
  return whole_lines(n * static_cast<std::int64_t>(sizeof(T)));
}

// Hands out consecutive arrays from memory. room_of() has computed its size.
class Arrays {
 public:
  explicit Arrays(std::byte* memory) : at_(memory) {}
  template <class T>
  std::span<T> take(std::int64_t n, T value = T()) {
    T* first = reinterpret_cast<T*>(at_);
    at_ += room_of<T>(n);
    std::uninitialized_fill_n(first, n, value);
    return {first, at(n)};
  }

 private:
  std::byte* at_;
};

class Gatherer {
 public:
  Gatherer(const AttendArgs& args, std::span<std::uint16_t> workspace, std::int64_t state_bytes)
      : args_(args),
        keys_(workspace.data()),
        dim_(args.problem.qk_dim()),
        room_(std::ssize(workspace) / dim_),
        state_bytes_(state_bytes),
        lists_(args.execution.scratch != nullptr ? args.execution.scratch->outer() : own_) {}

  // Compact rows that a group needs.
  std::int64_t rows(const Group& g) const {
    return shares_keys(args_) ? g.pages * args_.main.pool->page_size
                              : (g.last_row - g.first_row) * g.width;
  }
  bool fits(const Group& g) const { return rows(g) <= room_; }

  Result<void> attend(const Group& g) {
    if (!fits(g)) return in_runs(g);
    AttendArgs part = rows_of(g.first_row, g.last_row);
    return shares_keys(args_) ? by_pages(g, part) : by_rows(g, part);
  }

 private:
  std::int32_t kv_len(std::int64_t r) const { return args_.kv_lens[at(r)]; }
  std::int32_t row_of(std::int64_t r) const { return args_.q_indptr[at(r)]; }
  // Keys to gather for a request: none if it has no rows.
  std::int32_t needed(std::int64_t r) const { return row_of(r) < row_of(r + 1) ? kv_len(r) : 0; }
  std::int64_t position(std::int64_t request, std::int64_t row) const {
    return kv_len(request) - (row_of(request + 1) - row);
  }
  // The arguments for rows first .. last - 1 of q, out and lse.
  AttendArgs rows_of(std::int64_t first, std::int64_t last) const {
    AttendArgs part = args_;
    part.q.data = args_.q.row(first);
    part.out.data = args_.out.row(first);
    part.q.rows = part.out.rows = last - first;
    if (args_.lse.data != nullptr) {
      part.lse.data = args_.lse.row(first);
      part.lse.rows = last - first;
    }
    return part;
  }
  PageId page_of(std::int64_t request, std::int64_t number) const {
    const PageId page = args_.main.page_table[at(request * args_.main.table_width + number)];
    return page.value >= 0 && page.value < args_.main.pool->pages ? page : PageId();
  }
  // The workspace as a pool of bf16 pages.
  KeySource compact_pool(std::int32_t page_size, std::int64_t pages) const {
    const LayoutDims dims{.nope = args_.problem.nope, .rope = args_.problem.rope};
    KeySource source;
    source.pool.emplace(reinterpret_cast<const std::byte*>(keys_),
                        CacheLayout(LayoutKind::mla_bf16, dims), page_size, pages);
    return source;
  }

  // Page tables, whole requests: gathers their pages into a small pool.
  Result<void> by_pages(const Group& g, AttendArgs& part) {
    const std::int64_t requests = g.last - g.first;
    const std::int32_t page_size = args_.main.pool->page_size;
    Arrays arrays(
        lists_.take(room_of<Slot>(g.pages * page_size) + room_of<PageId>(requests * g.width) +
                    room_of<std::int32_t>(requests + 1) + room_of<std::int32_t>(requests)));
    const auto slots = arrays.take<Slot>(g.pages * page_size);
    const auto table = arrays.take<PageId>(requests * g.width);
    const auto indptr = arrays.take<std::int32_t>(requests + 1);
    const auto kv_lens = arrays.take<std::int32_t>(requests);
    std::int32_t next = 0;
    for (std::int64_t r = g.first; r < g.last; ++r) {
      indptr[at(r - g.first)] = row_of(r) - static_cast<std::int32_t>(g.first_row);
      kv_lens[at(r - g.first)] = needed(r);
      for (std::int32_t key = 0; key < needed(r); key += page_size, ++next) {
        const std::int64_t number = key / page_size;
        const PageId page = page_of(r, number);
        if (page.is_hole()) continue;
        table[at((r - g.first) * g.width + number)] = PageId(next);
        // Only the request's own tokens: the rest of the page may hold anything.
        const std::int32_t tokens = std::min(page_size, needed(r) - key);
        for (std::int32_t i = 0; i < tokens; ++i) {
          slots[at(std::int64_t{next} * page_size + i)] = slot_of(page, page_size, i);
        }
      }
    }
    indptr[at(requests)] = static_cast<std::int32_t>(g.last_row - g.first_row);
    gather(args_.main, slots, keys_);
    part.main = compact_pool(page_size, g.pages);
    part.main.page_table = table;
    part.main.table_width = g.width;
    part.q_indptr = indptr;
    part.kv_lens = kv_lens;
    return cpu_attend_latent(part);
  }

  // Page tables, one request that is larger than the workspace: gathers its keys run by run, in
  // pages of one key, for as many rows at a time as fit the memory for states.
  Result<void> in_runs(const Group& g) {
    const std::int64_t run_keys =
        needed(g.first) <= room_ ? room_ : room_ / kLatentFoldKeys * kLatentFoldKeys;
    const std::int64_t heads = args_.problem.heads;
    const std::int64_t out_stride = latent_padded(args_.problem.v_dim());
    const std::int64_t row_bytes = heads * (out_stride * 4 + std::int64_t{sizeof(SoftState)});
    const std::int64_t most_rows = std::max<std::int64_t>(1, state_bytes_ / row_bytes);
    const std::int64_t state_rows = std::min(most_rows, g.last_row - g.first_row);
    const std::int64_t most_keys = std::min<std::int64_t>(run_keys, needed(g.first));
    Arrays arrays(lists_.take(room_of<float>(state_rows * heads * out_stride) +
                              room_of<SoftState>(state_rows * heads) + room_of<Slot>(most_keys) +
                              room_of<PageId>(most_keys)));
    const auto out = arrays.take<float>(state_rows * heads * out_stride);
    const auto softmax = arrays.take<SoftState>(state_rows * heads);
    const auto all_slots = arrays.take<Slot>(most_keys);
    const auto all_pages = arrays.take<PageId>(most_keys);
    const std::int32_t page_size = args_.main.pool->page_size;
    for (std::int64_t row = g.first_row; row < g.last_row; row += most_rows) {
      const std::int64_t rows = std::min(most_rows, g.last_row - row);
      AttendArgs part = rows_of(row, row + rows);
      const std::int32_t indptr[] = {0, static_cast<std::int32_t>(rows)};
      // Only the keys up to the last of these rows; later rows gather more.
      const auto keys = static_cast<std::int32_t>(position(g.first, row + rows - 1) + 1);
      part.q_indptr = indptr;
      part.kv_lens = {&keys, 1};
      for (std::int64_t first = 0; first < keys; first += run_keys) {
        const std::int64_t count = std::min(run_keys, keys - first);
        const auto slots = all_slots.first(at(count));
        const auto table = all_pages.first(at(count));
        std::ranges::fill(slots, Slot());
        std::ranges::fill(table, PageId());
        for (std::int64_t i = 0; i < count; ++i) {
          const PageId page = page_of(g.first, (first + i) / page_size);
          if (page.is_hole()) continue;
          slots[at(i)] =
              slot_of(page, page_size, static_cast<std::int32_t>((first + i) % page_size));
          table[at(i)] = PageId(static_cast<std::int32_t>(i));
        }
        gather(args_.main, slots, keys_);
        part.main = compact_pool(1, count);
        part.main.page_table = table;
        part.main.table_width = count;
        const LatentRun run{first, count, out.data(), softmax.data(), first + count == keys};
        latent_attend_run(part, &run);
      }
    }
    return {};
  }

  // Lists and windows: gathers every row's keys separately, first of `main`, then of `extra`.
  Result<void> by_rows(const Group& g, AttendArgs& part) {
    const std::int64_t n = g.last_row - g.first_row;
    Arrays arrays(lists_.take(2 * room_of<Slot>(n * g.width) + room_of<std::int32_t>(n * g.width) +
                              2 * room_of<std::int32_t>(n) + room_of<std::int32_t>(n + 1)));
    // The compact rows' slots in `main` and in `extra`.
    const std::span<Slot> slots[2] = {arrays.take<Slot>(n * g.width),
                                      arrays.take<Slot>(n * g.width)};
    std::int64_t count[2] = {0, 0};
    const auto index = arrays.take<std::int32_t>(n * g.width);
    const auto lengths = arrays.take<std::int32_t>(n);
    const auto indptr = arrays.take<std::int32_t>(n + 1);
    // The list names the keys, so any length that allows a row is right.
    const auto kv_lens = arrays.take<std::int32_t>(n, 1);
    std::int32_t used = 0;  // compact rows so far
    for (const bool extra : {false, true}) {
      if (extra && !args_.problem.two_sources()) break;
      std::int64_t i = 0;
      for (std::int64_t r = g.first; r < g.last; ++r) {
        const std::int64_t begin = std::max<std::int64_t>(row_of(r), g.first_row);
        const std::int64_t end = std::min<std::int64_t>(row_of(r + 1), g.last_row);
        for (std::int64_t row = begin; row < end; ++row, ++i) {
          RowKeys list(args_, row, r, position(r, row));
          LatentKeys keys;
          for (list.fill(keys, kLatentTile); keys.count > 0; list.fill(keys, kLatentTile)) {
            for (const Slot slot : extra ? keys.extra() : keys.main()) {
              index[at(i * g.width + lengths[at(i)]++)] = used++;
              slots[extra ? 1 : 0][at(count[extra ? 1 : 0]++)] = slot;
            }
          }
        }
      }
    }
    std::iota(indptr.begin(), indptr.end(), 0);
    gather(args_.main, slots[0].first(at(count[0])), keys_);
    gather(args_.extra, slots[1].first(at(count[1])), keys_ + count[0] * dim_);
    part.main = {};
    part.extra = {};
    part.main.compact = {reinterpret_cast<const std::byte*>(keys_), DType::bf16, used, dim_, dim_};
    part.main.indices = index;
    part.main.index_width = g.width;
    part.main.index_lengths = lengths;
    part.problem.compress_ratio = 0;
    part.problem.window = 0;
    part.q_indptr = indptr;
    part.kv_lens = kv_lens;
    return cpu_attend_latent(part);
  }

  void gather(const KeySource& source, std::span<const Slot> slots, std::uint16_t* to) const {
    constexpr std::int64_t kBlock = 256;  // rows per task
    const std::int64_t n = std::ssize(slots);
    run_tasks(args_.execution, ceil_div(n, kBlock), [&](std::int64_t task, int) {
      const std::int64_t begin = task * kBlock;
      const std::int64_t rows = std::min(kBlock, n - begin);
      const MutableRowsView out{reinterpret_cast<std::byte*>(to + begin * dim_), DType::bf16, rows,
                                dim_, dim_};
      const Result<void> done = gather_decode(
          *source.pool,
          slots.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(rows)), out,
          {source.key_scale, 1});
      LATHE_CHECK(done.ok(), "decoding checked arguments");
    });
  }

  const AttendArgs& args_;
  std::uint16_t* keys_;  // the workspace, [room_, dim_]
  std::int64_t dim_;
  std::int64_t room_;
  std::int64_t state_bytes_;
  Scratch own_;
  Scratch& lists_;
};

// Calls f for the smallest possible groups: requests if their rows share keys, else rows.
template <class F>
void for_smallest(const AttendArgs& args, F f) {
  for (std::int64_t r = 0; r < std::ssize(args.kv_lens); ++r) {
    const std::int64_t begin = args.q_indptr[static_cast<std::size_t>(r)];
    const std::int64_t end = args.q_indptr[static_cast<std::size_t>(r) + 1];
    const std::int64_t keys = args.kv_lens[static_cast<std::size_t>(r)];
    if (begin == end) continue;
    if (shares_keys(args)) {
      const std::int64_t page_size = args.main.pool->page_size;
      const std::int64_t pages = ceil_div(keys, page_size);
      f(Group{r, r + 1, begin, end, pages, pages});
      continue;
    }
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t width = RowKeys(args, row, r, keys - (end - row)).bound();
      f(Group{r, r + 1, row, row + 1, 0, std::max<std::int64_t>(1, width)});
    }
  }
}

Result<void> check_pool(const char* name, const KeySource& source) {
  if (source.pool || source.compact.rows == 0) return {};
  return Error{ErrorCode::unsupported, fmt::format("{}.pool", name), "a pool to gather from",
               "compact rows", "attend to them by cpu_attend_latent"};
}

}  // namespace

Result<void> cpu_gather_attend(const AttendArgs& args, std::span<std::uint16_t> workspace,
                               std::int64_t state_bytes) {
  if (Result<void> ok = check_cpu_latent_args(args); !ok) return ok;
  if (Result<void> ok = check_pool("main", args.main); !ok) return ok;
  if (Result<void> ok = check_pool("extra", args.extra); !ok) return ok;
  Gatherer gatherer(args, workspace, state_bytes);
  const std::int64_t dim = args.problem.qk_dim();
  std::int64_t least = 0;
  for_smallest(args, [&](const Group& g) {
    const std::int64_t keys = args.kv_lens[at(g.first)];
    least = std::max(least, shares_keys(args) ? std::min(keys, kGatherTileKeys) : gatherer.rows(g));
  });
  if (least * dim > std::ssize(workspace)) {
    return Error{ErrorCode::exhausted, "workspace",
                 fmt::format("at least {} bytes, {} rows", least * dim * 2, least),
                 fmt::format("{} bytes", workspace.size_bytes()),
                 "raise the budget of the gather workspace"};
  }
  std::optional<Group> open;
  Result<void> done;
  const auto flush = [&] {
    if (open && done) done = gatherer.attend(*open);
    open.reset();
  };
  for_smallest(args, [&](const Group& g) {
    if (open) {
      const Group both = open->joined_by(g);
      if (gatherer.fits(both)) {
        open = both;
        return;
      }
    }
    flush();
    open = g;
  });
  flush();
  return done;
}

}  // namespace lathe
