#include "kernels/cpu/latent_gather.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "attn/check_args.h"
#include "kernels/cpu/latent_attend.h"
#include "kernels/cpu/latent_check.h"
#include "kernels/cpu/latent_keys.h"
#include "layout/codec.h"

namespace lathe {
namespace {

constexpr std::int64_t kAlign = 64;
std::int64_t aligned(std::int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// Arrays one after the other in the workspace; without a start it only counts.
class Carver {
 public:
  explicit Carver(std::byte* start) : start_(start) {}
  template <class T>
  std::span<T> take(std::int64_t n) {
    const std::int64_t at = used_;
    used_ += aligned(n * static_cast<std::int64_t>(sizeof(T)));
    if (start_ == nullptr) return {};
    return {reinterpret_cast<T*>(start_ + at), static_cast<std::size_t>(n)};
  }
  std::int64_t used() const { return used_; }

 private:
  std::byte* start_;
  std::int64_t used_ = 0;
};

// Requests first .. last - 1 of a batch as a batch of their own, the last and the first one maybe
// not with all their rows; and what sizes its workspace.
struct Group {
  std::int64_t first = 0, last = 0;          // requests
  std::int64_t first_row = 0, last_row = 0;  // of q
  std::int64_t pages = 0;                    // of the requests that have rows
  std::int64_t width = 1;                    // of the page table, or of the lists

  Group joined_by(const Group& next) const {
    return {first,         next.last,          first_row,
            next.last_row, pages + next.pages, std::max(width, next.width)};
  }
};

class Gatherer {
 public:
  Gatherer(const AttendArgs& args, std::byte* workspace)
      : args_(args), workspace_(workspace), dim_(args.problem.qk_dim()) {}

  // Bytes that a group takes.
  std::int64_t bytes(const Group& g) const {
    Carver carver(nullptr);
    if (shares_keys(args_)) {
      carve_pages(g, carver);
    } else {
      carve_rows(g, carver);
    }
    return carver.used();
  }

  Result<void> attend(const Group& g) {
    Carver carver(start());
    AttendArgs part = args_;
    part.q.data = args_.q.rows == 0 ? nullptr : args_.q.row(g.first_row);
    part.q.rows = part.out.rows = g.last_row - g.first_row;
    part.out.data = args_.out.row(g.first_row);
    if (args_.lse.data != nullptr) {
      part.lse.data = args_.lse.row(g.first_row);
      part.lse.rows = part.q.rows;
    }
    return shares_keys(args_) ? by_pages(g, part, carver) : by_rows(g, part, carver);
  }

 private:
  std::byte* start() const {
    const auto at = reinterpret_cast<std::uintptr_t>(workspace_);
    return workspace_ + (kAlign - at % kAlign) % kAlign;
  }
  std::int32_t kv_len(std::int64_t r) const { return args_.kv_lens[static_cast<std::size_t>(r)]; }
  std::int32_t row_of(std::int64_t r) const { return args_.q_indptr[static_cast<std::size_t>(r)]; }
  // Keys that a group needs of a request: none where it brings no rows.
  std::int32_t needed(std::int64_t r) const { return row_of(r) < row_of(r + 1) ? kv_len(r) : 0; }
  std::int64_t position(std::int64_t request, std::int64_t row) const {
    return kv_len(request) - (row_of(request + 1) - row);
  }

  // ------------------------------------------------ page tables: a small bf16 pool of the requests

  struct Pages {
    std::span<std::uint16_t> keys;  // [pages, page_size, dim]
    std::span<Slot> slots;          // [pages, page_size]
    std::span<PageId> table;        // [requests, width]
    std::span<std::int32_t> indptr;
    std::span<std::int32_t> kv_lens;
  };
  Pages carve_pages(const Group& g, Carver& carver) const {
    const std::int64_t page_size = args_.main.pool->page_size;
    Pages p;
    p.keys = carver.take<std::uint16_t>(g.pages * page_size * dim_);
    p.slots = carver.take<Slot>(g.pages * page_size);
    p.table = carver.take<PageId>((g.last - g.first) * g.width);
    p.indptr = carver.take<std::int32_t>(g.last - g.first + 1);
    p.kv_lens = carver.take<std::int32_t>(g.last - g.first);
    return p;
  }

  Result<void> by_pages(const Group& g, AttendArgs& part, Carver& carver) {
    const Pages p = carve_pages(g, carver);
    const ConstPoolView& pool = *args_.main.pool;
    std::ranges::fill(p.table, PageId());
    std::ranges::fill(p.slots, Slot());
    std::int32_t next = 0;
    for (std::int64_t r = g.first; r < g.last; ++r) {
      p.indptr[static_cast<std::size_t>(r - g.first)] =
          row_of(r) - static_cast<std::int32_t>(g.first_row);
      p.kv_lens[static_cast<std::size_t>(r - g.first)] = needed(r);
      for (std::int32_t at = 0; at < needed(r); at += pool.page_size, ++next) {
        const std::int64_t number = at / pool.page_size;
        const PageId page =
            args_.main.page_table[static_cast<std::size_t>(r * args_.main.table_width + number)];
        if (page.value < 0 || page.value >= pool.pages) continue;
        p.table[static_cast<std::size_t>((r - g.first) * g.width + number)] = PageId(next);
        // Only the tokens that the request has: what lies behind them may be anything.
        const std::int32_t tokens = std::min(pool.page_size, needed(r) - at);
        for (std::int32_t i = 0; i < tokens; ++i) {
          p.slots[static_cast<std::size_t>(std::int64_t{next} * pool.page_size + i)] =
              slot_of(page, pool.page_size, i);
        }
      }
    }
    p.indptr[static_cast<std::size_t>(g.last - g.first)] =
        static_cast<std::int32_t>(g.last_row - g.first_row);
    gather(args_.main, p.slots, p.keys.data());

    const LayoutDims dims{.nope = args_.problem.nope, .rope = args_.problem.rope};
    part.main = {};
    part.main.pool.emplace(reinterpret_cast<const std::byte*>(p.keys.data()),
                           CacheLayout(LayoutKind::mla_bf16, dims), pool.page_size, g.pages);
    part.main.page_table = p.table;
    part.main.table_width = g.width;
    part.q_indptr = p.indptr;
    part.kv_lens = p.kv_lens;
    return cpu_attend_latent(part);
  }

  // --------------------------------------------- lists and windows: every row's keys on their own

  struct Rows {
    std::span<std::uint16_t> keys;  // [rows * width, dim]: those of `main`, then those of `extra`
    std::span<Slot> main_slots;     // of the compact rows
    std::span<Slot> extra_slots;
    std::span<std::int32_t> index;  // [rows, width]
    std::span<std::int32_t> lengths;
    std::span<std::int32_t> indptr;
    std::span<std::int32_t> kv_lens;
  };
  Rows carve_rows(const Group& g, Carver& carver) const {
    const std::int64_t n = g.last_row - g.first_row;
    Rows rows;
    rows.keys = carver.take<std::uint16_t>(n * g.width * dim_);
    rows.main_slots = carver.take<Slot>(n * g.width);
    rows.extra_slots = carver.take<Slot>(args_.problem.two_sources() ? n * g.width : 0);
    rows.index = carver.take<std::int32_t>(n * g.width);
    rows.lengths = carver.take<std::int32_t>(n);
    rows.indptr = carver.take<std::int32_t>(n + 1);
    rows.kv_lens = carver.take<std::int32_t>(n);
    return rows;
  }

  Result<void> by_rows(const Group& g, AttendArgs& part, Carver& carver) {
    const Rows rows = carve_rows(g, carver);
    std::int32_t used = 0;  // compact rows
    std::int32_t from_main = 0, from_extra = 0;
    std::size_t n = 0;
    for (const bool extra : {false, true}) {
      if (extra && !args_.problem.two_sources()) break;
      n = 0;
      for (std::int64_t r = g.first; r < g.last; ++r) {
        const std::int64_t begin = std::max<std::int64_t>(row_of(r), g.first_row);
        const std::int64_t end = std::min<std::int64_t>(row_of(r + 1), g.last_row);
        for (std::int64_t row = begin; row < end; ++row, ++n) {
          if (!extra) rows.lengths[n] = 0;
          RowKeys list(args_, row, r, position(r, row));
          LatentKeys keys;
          for (list.fill(keys, kLatentTile); keys.count > 0; list.fill(keys, kLatentTile)) {
            for (const Slot slot : extra ? keys.extra() : keys.main()) {
              const std::size_t at = n * static_cast<std::size_t>(g.width) +
                                     static_cast<std::size_t>(rows.lengths[n]++);
              rows.index[at] = used++;
              (extra ? rows.extra_slots[static_cast<std::size_t>(from_extra++)]
                     : rows.main_slots[static_cast<std::size_t>(from_main++)]) = slot;
            }
          }
        }
      }
    }
    for (std::size_t i = 0; i <= n; ++i) rows.indptr[i] = static_cast<std::int32_t>(i);
    std::ranges::fill(rows.kv_lens,
                      1);  // a list names the keys; any length that admits a row will do
    gather(args_.main, rows.main_slots.first(static_cast<std::size_t>(from_main)),
           rows.keys.data());
    if (from_extra > 0) {
      gather(args_.extra, rows.extra_slots.first(static_cast<std::size_t>(from_extra)),
             rows.keys.data() + from_main * dim_);
    }
    part.main = {};
    part.extra = {};
    part.main.compact = {reinterpret_cast<const std::byte*>(rows.keys.data()), DType::bf16, used,
                         dim_, dim_};
    part.main.indices = rows.index;
    part.main.index_width = g.width;
    part.main.index_lengths = rows.lengths;
    part.problem.compress_ratio = 0;
    part.problem.window = 0;
    part.q_indptr = rows.indptr;
    part.kv_lens = rows.kv_lens;
    return cpu_attend_latent(part);
  }

  void gather(const KeySource& source, std::span<const Slot> slots, std::uint16_t* to) const {
    constexpr std::int64_t kBlock = 256;  // rows of a task
    const std::int64_t n = std::ssize(slots);
    auto block = [&](std::int64_t task, int) {
      const std::int64_t begin = task * kBlock;
      const std::int64_t rows = std::min(kBlock, n - begin);
      const MutableRowsView out{reinterpret_cast<std::byte*>(to + begin * dim_), DType::bf16, rows,
                                dim_, dim_};
      const Result<void> done = gather_decode(
          *source.pool,
          slots.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(rows)), out,
          {source.key_scale, 1});
      LATHE_CHECK(done.ok(), "decoding checked arguments");
    };
    const std::int64_t tasks = (n + kBlock - 1) / kBlock;
    if (args_.execution.threads != nullptr) return args_.execution.threads->run(tasks, block);
    for (std::int64_t t = 0; t < tasks; ++t) block(t, 0);
  }

  const AttendArgs& args_;
  std::byte* workspace_;
  std::int64_t dim_;
};

// The smallest groups there are: requests where they share keys, else rows.
template <class F>
void for_smallest(const AttendArgs& args, F f) {
  for (std::int64_t r = 0; r < std::ssize(args.kv_lens); ++r) {
    const std::int64_t begin = args.q_indptr[static_cast<std::size_t>(r)];
    const std::int64_t end = args.q_indptr[static_cast<std::size_t>(r) + 1];
    const std::int64_t keys = args.kv_lens[static_cast<std::size_t>(r)];
    if (begin == end) continue;
    if (shares_keys(args)) {
      const std::int64_t page_size = args.main.pool->page_size;
      const std::int64_t pages = (keys + page_size - 1) / page_size;
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

Result<void> cpu_gather_attend(const AttendArgs& args, std::span<std::byte> workspace) {
  if (Result<void> ok = check_cpu_latent_args(args); !ok) return ok;
  if (Result<void> ok = check_pool("main", args.main); !ok) return ok;
  if (Result<void> ok = check_pool("extra", args.extra); !ok) return ok;
  Gatherer gatherer(args, workspace.data());
  const std::int64_t room = std::ssize(workspace) - kAlign;
  std::int64_t least = 0;
  for_smallest(args, [&](const Group& g) { least = std::max(least, gatherer.bytes(g)); });
  if (least > room) {
    return Error{ErrorCode::exhausted, "workspace",
                 fmt::format("at least {} bytes", least + kAlign),
                 fmt::format("{}", workspace.size()), "raise the budget of the gather workspace"};
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
      if (gatherer.bytes(both) <= room) {
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
