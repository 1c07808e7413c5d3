#include "kernels/cpu/indexer/indexer_walk.h"

#include <cstring>
#include <limits>

namespace lathe {

void load_index_keys(const IndexKeys& keys, const IndexRows& rows, std::int32_t dim, std::int64_t t,
                     std::int64_t first, std::int64_t n, const TileMemory& memory) {
  const auto row = static_cast<std::size_t>(t);
  if (!keys.pool) {
    const std::int64_t at = rows.first[row] + first;
    index_decode(reinterpret_cast<const std::uint8_t*>(keys.codes.data()) + at * dim, n * dim,
                 memory.keys);
    std::memcpy(memory.scales, keys.scales.data() + at, static_cast<std::size_t>(4 * n));
    return;
  }
  const ConstPoolView& pool = *keys.pool;
  const Part& key = *pool.layout.find(PartRole::key);
  const Part& scale = *pool.layout.find(PartRole::scale);
  const std::int64_t request = rows.request[row];
  for (std::int64_t i = 0; i < n;) {
    const auto offset = static_cast<std::int32_t>((first + i) % pool.page_size);
    const std::int64_t count = std::min<std::int64_t>(pool.page_size - offset, n - i);
    const PageId page =
        request < 0 ? PageId() : keys.page_table.at(request, (first + i) / pool.page_size);
    if (page.value < 0 || page.value >= pool.pages) {
      // Keys without a page become zeros with a NaN scale, which gives NaN logits.
      std::fill_n(memory.keys + i * dim, count * dim, 0.0f);
      std::fill_n(memory.scales + i, count, std::numeric_limits<float>::quiet_NaN());
    } else {
      // A page has the codes of all its tokens, then their scales.
      const Slot slot = slot_of(page, pool.page_size, offset);
      index_decode(reinterpret_cast<const std::uint8_t*>(pool.at(key, slot)), count * dim,
                   memory.keys + i * dim);
      std::memcpy(memory.scales + i, pool.at(scale, slot), static_cast<std::size_t>(4 * count));
    }
    i += count;
  }
}

}  // namespace lathe
