#include "kernels/ref/visible_keys.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include "kernels/ref/decode_token.h"
#include "kernels/ref/rows_io.h"

namespace lathe {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

std::vector<std::int32_t> keys_by_page(const KeySource& source, const RowPlace& place,
                                       std::int64_t first_key) {
  const ConstPoolView& pool = *source.pool;
  std::vector<std::int32_t> keys;
  for (std::int64_t pos = first_key; pos <= place.position; ++pos) {
    const PageId page =
        source.page_table[at(place.request * source.table_width + pos / pool.page_size)];
    // Check the page id before it becomes a slot: with a wild id the multiplication would overflow.
    if (page.value < 0 || page.value >= pool.pages) continue;
    const auto offset = static_cast<std::int32_t>(pos % pool.page_size);
    keys.push_back(slot_of(page, pool.page_size, offset).value);
  }
  return keys;
}

std::vector<std::int32_t> keys_by_index(const KeySource& source, const RowPlace& place) {
  const std::int64_t available = source.pool ? source.pool->slots() : source.compact.rows;
  const std::int64_t length =
      source.index_lengths.empty() ? source.index_width : source.index_lengths[at(place.row)];
  std::vector<std::int32_t> keys;
  for (std::int64_t j = 0; j < length; ++j) {
    const std::int32_t index = source.indices[at(place.row * source.index_width + j)];
    if (index >= 0 && index < available) keys.push_back(index);
  }
  return keys;
}

}  // namespace

std::vector<RowPlace> row_places(const AttendArgs& args) {
  std::vector<RowPlace> places;
  for (std::size_t r = 0; r < args.kv_lens.size(); ++r) {
    const std::int32_t begin = args.q_indptr[r];
    const std::int32_t end = args.q_indptr[r + 1];
    for (std::int32_t row = begin; row < end; ++row) {
      places.push_back({row, static_cast<std::int64_t>(r), args.kv_lens[r] - (end - row)});
    }
  }
  return places;
}

std::vector<std::int32_t> visible_keys(const KeySource& source, const RowPlace& place,
                                       std::int64_t first_key) {
  return source.table_width > 0 ? keys_by_page(source, place, first_key)
                                : keys_by_index(source, place);
}

void append_key_rows(const KeySource& source, const std::vector<std::int32_t>& keys,
                     std::int32_t width, std::vector<double>& rows) {
  for (const std::int32_t key : keys) {
    rows.resize(rows.size() + at(width));
    const std::span<double> row = std::span(rows).last(at(width));
    if (source.pool) {
      decode_token(*source.pool, Slot(key), source.key_scale, source.value_scale, row);
    } else {
      read_row(source.compact, RaggedRow(key).value, 1.0, row);
    }
  }
}

}  // namespace lathe
