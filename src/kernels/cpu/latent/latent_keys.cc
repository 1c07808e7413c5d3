#include "kernels/cpu/latent/latent_keys.h"

#include <algorithm>
#include <cstddef>

namespace lathe {
namespace {

// Returns a hole if the page is not in the pool. The page id is checked before it becomes a slot:
// with a wild id the multiplication would overflow.
std::int32_t slot_at(const KeySource& source, std::int64_t request, std::int64_t position) {
  const ConstPoolView& pool = *source.pool;
  const PageId page =
      source.page_table[at(request * source.table_width + position / pool.page_size)];
  if (page.value < 0 || page.value >= pool.pages) return -1;
  return slot_of(page, pool.page_size, static_cast<std::int32_t>(position % pool.page_size)).value;
}

std::int64_t available(const KeySource& source) {
  return source.pool ? source.pool->slots() : source.compact.rows;
}

std::int64_t list_length(const KeySource& source, std::int64_t row) {
  return source.index_lengths.empty() ? source.index_width : source.index_lengths[at(row)];
}

bool next_entry(const KeySource& source, std::int64_t row, std::int64_t& i, std::int64_t end,
                std::int64_t keys, std::int32_t& key) {
  const std::int32_t* list = source.indices.data() + row * source.index_width;
  while (i < end) {
    key = list[i++];
    if (key >= 0 && key < keys) return true;
  }
  return false;
}

}  // namespace

void PositionKeys::fill(const KeySource& source, std::int64_t request, std::int64_t first,
                        std::int64_t end) {
  const ConstPoolView& pool = *source.pool;
  const PageId* table = source.page_table.data() + request * source.table_width;
  std::int32_t count = 0;
  std::int64_t i = 0;
  // A page at a time: divisions are expensive.
  while (i < kLatentTile && first + i < end) {
    const std::int64_t number = (first + i) / pool.page_size;
    const PageId page = table[number];
    const std::int64_t stop =
        std::min({kLatentTile, end - first, (number + 1) * pool.page_size - first});
    const bool hole = page.value < 0 || page.value >= pool.pages;
    std::int32_t slot = hole ? 0 : slot_at(source, request, first + i);
    for (; i < stop; ++i) {
      before[at(i)] = count;
      if (!hole) keys.index[at(count++)] = Slot(slot++);
    }
  }
  for (; i <= kLatentTile; ++i) before[at(i)] = count;
  keys.count = count;
  keys.from_main = count;
}

RowKeys::RowKeys(const AttendArgs& args, std::int64_t row, std::int64_t request,
                 std::int64_t position)
    : args_(args), row_(row), request_(request), main_keys_(available(args.main)) {
  if (args.main.table_width > 0) {
    main_end_ = std::max<std::int64_t>(0, position + 1);
    main_at_ = args.problem.first_key(position);
  } else {
    main_end_ = list_length(args.main, row);
  }
  if (args.problem.two_sources()) {
    extra_end_ = args.extra.table_width > 0
                     ? std::max<std::int64_t>(0, position + 1) / args.problem.compress_ratio
                     : list_length(args.extra, row);
    extra_keys_ = available(args.extra);
  }
}

bool RowKeys::next_main(std::int32_t& key) {
  if (args_.main.table_width == 0) {
    return next_entry(args_.main, row_, main_at_, main_end_, main_keys_, key);
  }
  while (main_at_ < main_end_) {
    key = slot_at(args_.main, request_, main_at_++);
    if (key >= 0) return true;
  }
  return false;
}

bool RowKeys::next_extra(std::int32_t& key) {
  if (args_.extra.table_width == 0) {
    return next_entry(args_.extra, row_, extra_at_, extra_end_, extra_keys_, key);
  }
  while (extra_at_ < extra_end_) {
    key = slot_at(args_.extra, request_, extra_at_++);
    if (key >= 0) return true;
  }
  return false;
}

void RowKeys::skip(std::int64_t n) {
  std::int32_t key;
  while (n > 0 && (next_main(key) || next_extra(key))) --n;
}

void RowKeys::fill(LatentKeys& keys, std::int64_t most) {
  std::int32_t key;
  keys.count = 0;
  while (keys.count < most && next_main(key)) keys.index[at(keys.count++)] = Slot(key);
  keys.from_main = keys.count;
  while (keys.count < most && next_extra(key)) keys.index[at(keys.count++)] = Slot(key);
}

}  // namespace lathe
