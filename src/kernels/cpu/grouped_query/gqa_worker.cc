#include "kernels/cpu/grouped_query/gqa_worker.h"

#include "kernels/cpu/common/attend_io.h"

namespace lathe {
namespace {

// Slot or compact row of key `pos` of the block; -1 if there is no such key.
std::int64_t slot_at(const GqaJob& job, const GqaBlock& block, std::int64_t pos) {
  const KeySource& source = job.args->main;
  if (source.table_width > 0) {
    const std::int64_t page =
        source.page_table.data()[block.request * source.table_width + pos / job.page_size].value;
    return page >= 0 && page < job.pages ? page * job.page_size + pos % job.page_size : -1;
  }
  const std::int64_t slot = source.indices.data()[block.row * source.index_width + pos];
  return slot >= 0 && slot < job.slots ? slot : -1;
}

}  // namespace

void find_keys(const GqaJob& job, const GqaBlock& block, std::int64_t first, std::int64_t from,
               std::int64_t end, TileKeys& tile) {
  tile.first = first;
  tile.any = false;
  tile.holes = false;
  for (std::size_t n = 0; n < kTile; ++n) {
    tile.key[n] = nullptr;
    tile.value[n] = nullptr;
    const std::int64_t pos = first + static_cast<std::int64_t>(n);
    if (pos < from || pos >= end) continue;
    const std::int64_t slot = slot_at(job, block, pos);
    if (slot < 0) {
      tile.holes = true;
      continue;
    }
    tile.any = true;
    const std::byte* page = job.bytes + slot / job.page_size * job.page_stride;
    const std::int64_t offset = slot % job.page_size;
    tile.key[n] =
        reinterpret_cast<const std::uint8_t*>(page + job.key_start + offset * job.key_step);
    tile.value[n] =
        reinterpret_cast<const std::uint8_t*>(page + job.value_start + offset * job.value_step);
  }
}

bool find_ranges(const GqaJob& job, const GqaBlock& block, std::int64_t first, RowRange* ranges) {
  const auto clip = [&](std::int64_t x) {
    const std::int64_t y = x - first;
    return static_cast<std::int32_t>(y < 0 ? 0 : y > std::int64_t{kTile} ? std::int64_t{kTile} : y);
  };
  const bool causal = job.args->main.table_width > 0;
  bool alike = true;
  for (std::int32_t r = 0; r < block.rows; ++r) {
    const std::int64_t end = causal ? block.position + r + 1 : block.end_key;
    const std::int64_t begin = causal ? job.args->problem.first_key(end - 1) : 0;
    const RowRange range{clip(begin), clip(end)};
    for (std::int32_t h = 0; h < job.group; ++h) ranges[r * job.group + h] = range;
    alike = alike && range.begin == ranges[0].begin && range.end == ranges[0].end;
  }
  return alike;
}

void load_queries(const GqaJob& job, const GqaBlock& block, std::int32_t kv_head, float* to) {
  for (std::int32_t r = 0; r < block.rows; ++r) {
    load_row(job.args->q, block.row + r, std::int64_t{kv_head} * job.group * job.head_dim,
             std::int64_t{job.group} * job.head_dim, job.query_scale,
             to + std::int64_t{r} * job.group * job.head_dim);
  }
}

void write_result(const GqaJob& job, std::int64_t row, std::int32_t head, SoftState state,
                  const float* acc) {
  const AttendArgs& args = *job.args;
  const float* sink = args.problem.sink ? args.sink.data() + head : nullptr;
  const Finished done = finish_softmax(state.max, state.sum, sink, job.value_scale);
  store_output(args.out, row, std::int64_t{head} * job.v_head_dim, job.v_head_dim, acc, done);
  store_lse(args, row, head, done);
}

}  // namespace lathe
