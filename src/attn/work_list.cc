#include "attn/work_list.h"

#include <fmt/format.h>

#include <algorithm>

#include "attn/check_count.h"
#include "base/integers.h"

namespace lathe {
namespace {

Result<void> check(const KeyRanges& ranges, const WorkOptions& options) {
  if (options.workers < 1) return bad_number("workers", "1 or more", options.workers);
  if (options.block < 1) return bad_number("block", "1 or more", options.block);
  if (options.fixed_split < 0) return bad_number("fixed_split", "0 or more", options.fixed_split);
  if (!ranges.firsts.empty() && ranges.firsts.size() != ranges.counts.size()) {
    return bad_number("firsts", fmt::format("{} entries, or none", ranges.counts.size()),
                      std::ssize(ranges.firsts));
  }
  if (std::ssize(ranges.counts) > kMaxInt32) {
    return bad_number("rows", fmt::format("at most {}", kMaxInt32), std::ssize(ranges.counts));
  }
  for (std::size_t r = 0; r < ranges.counts.size(); ++r) {
    const std::int64_t first = ranges.firsts.empty() ? 0 : ranges.firsts[r];
    if (ranges.counts[r] < 0)
      return bad_number(fmt::format("counts[{}]", r), "0 or more", ranges.counts[r]);
    if (first < 0 || first + ranges.counts[r] > kMaxInt32) {
      return bad_number(fmt::format("firsts[{}]", r),
                        fmt::format("0 up to an end of {}", kMaxInt32), first);
    }
  }
  return {};
}

Result<void> check_room(const char* field, std::int64_t needed, std::int64_t available) {
  if (needed <= available) return {};
  return Error{ErrorCode::exhausted, field, fmt::format("room for {}", needed),
               fmt::format("{}", available), "size it with max_work_items()"};
}

// The unit at which each worker's work ends. The first workers get one unit more if there is a
// rest.
class Shares {
 public:
  Shares(std::int64_t units, std::int64_t workers)
      : base_(units / workers), extra_(units % workers) {}
  std::int64_t begin(std::int64_t worker) const {
    return worker * base_ + std::min(worker, extra_);
  }

 private:
  std::int64_t base_;
  std::int64_t extra_;
};

}  // namespace

std::int64_t max_work_items(std::int64_t rows, std::int64_t longest, const WorkOptions& options) {
  if (rows == 0 || longest <= 0) return 0;
  if (options.fixed_split > 0) return rows * ceil_div(longest, options.fixed_split);
  // Each border between workers adds at most one item, and a row has at most one item per block.
  return std::min(rows + options.workers - 1, rows * ceil_div(longest, options.block));
}

Result<WorkListView> plan_work(const KeyRanges& ranges, const WorkOptions& options,
                               const WorkBuffers& buffers) {
  if (auto ok = check(ranges, options); !ok) return ok.error();
  const std::int64_t rows = std::ssize(ranges.counts);
  const std::int64_t workers = options.workers;
  if (auto ok = check_room("row_items", rows + 1, std::ssize(buffers.row_items)); !ok) {
    return ok.error();
  }
  if (auto ok = check_room("worker_items", workers + 1, std::ssize(buffers.worker_items)); !ok) {
    return ok.error();
  }
  // A unit is never split: a block of keys, or a whole split of fixed length.
  const bool fixed = options.fixed_split > 0;
  const std::int64_t unit = fixed ? options.fixed_split : options.block;
  std::int64_t units = 0;
  for (std::int32_t count : ranges.counts) units += ceil_div(count, unit);

  const Shares shares(units, workers);
  const std::int64_t room = std::ssize(buffers.items);
  std::int64_t items = 0;   // items made so far
  std::int64_t done = 0;    // units in these items
  std::int64_t worker = 0;  // worker that gets the next unit
  buffers.worker_items[0] = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto row = static_cast<std::size_t>(r);
    buffers.row_items[row] = items;
    const std::int64_t count = ranges.counts[row];
    const std::int64_t first = ranges.firsts.empty() ? 0 : ranges.firsts[row];
    std::int32_t split = 0;
    for (std::int64_t key = 0; key < count; ++split) {
      while (done == shares.begin(worker + 1)) {
        buffers.worker_items[static_cast<std::size_t>(++worker)] = items;
      }
      const std::int64_t take = fixed ? 1 : shares.begin(worker + 1) - done;
      const std::int64_t keys = std::min(count - key, take * unit);
      if (items < room) {
        buffers.items[static_cast<std::size_t>(items)] = {static_cast<std::int32_t>(r),
                                                          static_cast<std::int32_t>(first + key),
                                                          static_cast<std::int32_t>(keys), split};
      }
      ++items;
      key += keys;
      done += ceil_div(keys, unit);
    }
  }
  if (auto ok = check_room("items", items, room); !ok) return ok.error();
  buffers.row_items[static_cast<std::size_t>(rows)] = items;
  while (worker < workers) buffers.worker_items[static_cast<std::size_t>(++worker)] = items;
  return WorkListView{buffers.items.first(static_cast<std::size_t>(items)),
                      buffers.row_items.first(static_cast<std::size_t>(rows + 1)),
                      buffers.worker_items.first(static_cast<std::size_t>(workers + 1))};
}

Result<WorkList> make_work_list(const KeyRanges& ranges, const WorkOptions& options) {
  if (auto ok = check(ranges, options); !ok) return ok.error();
  std::int64_t room = 0;
  if (options.fixed_split > 0) {
    for (std::int32_t count : ranges.counts) room += ceil_div(count, options.fixed_split);
  } else {
    room = std::ssize(ranges.counts) + options.workers;
  }
  WorkList list;
  list.items.resize(static_cast<std::size_t>(room));
  list.row_items.resize(ranges.counts.size() + 1);
  list.worker_items.resize(static_cast<std::size_t>(options.workers) + 1);
  const auto view = plan_work(ranges, options, {list.items, list.row_items, list.worker_items});
  if (!view) return view.error();
  list.items.resize(view->items.size());
  return list;
}

}  // namespace lathe
