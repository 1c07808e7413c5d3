// Runs the step kernels thread by thread on the CPU (common/emulator.h) against the CPU's builders.
// Compiled alone: it includes kernels.
#include "kernels/cuda/sm90/step/step_launch.h"
#include "kernels/cuda/sm90/step/test/step_batch_checks.h"
#include "kernels/cuda/sm90/step/test/step_checks.h"
#include "kernels/cuda/sm90/step/test/step_replay_checks.h"
// Device code is included last: it redefines CUDA's keywords.
#include "kernels/cuda/sm90/step/lists.cuh"
#include "kernels/cuda/sm90/step/rows.cuh"
#include "kernels/cuda/sm90/step/work.cuh"

namespace lathe::cuda {
namespace {

template <class T>
class HostArray {
 public:
  explicit HostArray(std::vector<T> values) : values_(std::move(values)) {}
  std::span<T> span() const { return values_; }
  std::vector<T> read() const { return values_; }
  void write(const std::vector<T>& values) {
    std::copy(values.begin(), values.end(), values_.begin());
  }

 private:
  mutable std::vector<T> values_;
};

unsigned blocks(std::int64_t count, std::int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

template <class Params, class Kernel>
void run(Kernel kernel, std::int64_t grid, int threads, const Params& p, unsigned lists = 1) {
  emulate({static_cast<unsigned>(grid), lists, 1}, threads, kernel, p);
}

// The launches of step.cu; kernels that accept any grid get few blocks.
struct Emulated {
  template <class T>
  HostArray<T> array(std::vector<T> values) {
    return HostArray<T>(std::move(values));
  }
  bool fast() const { return false; }

  Result<void> page_table(const DevicePageLists& lists, PoolShape pool,
                          std::span<const std::int32_t> lens, DeviceTable<PageId> out) {
    const auto p = page_table_params(lists, pool, lens, out);
    if (p.rows > 0 && p.width > 0) {
      run(page_table_kernel, blocks(p.rows, p.lanes.rows()), kStepThreads, p);
    }
    return {};
  }
  Result<void> slot_table(const DevicePageLists& lists, PoolShape pool, TokenRanges ranges,
                          DeviceTable<Slot> out) {
    const auto p = slot_table_params(lists, pool, ranges, out);
    run(slot_table_kernel, blocks(p.rows, p.lanes.rows()), kStepThreads, p);
    return {};
  }
  void prefix(const PrefixParams& p) {
    const std::int64_t tiles = scan_tiles(p.count);
    if (tiles > 1) run(prefix_sums_kernel, tiles, kScanThreads, p);
    run(prefix_kernel, tiles, kScanThreads, p);
  }
  template <class Index>
  Result<void> ragged(const DevicePageLists& lists, PoolShape pool, TokenRanges ranges,
                      DeviceRagged<Index> out, std::int64_t divisor,
                      std::span<std::int64_t> workspace) {
    auto tile_sums = prefix_params(ranges.lengths, divisor, workspace);
    tile_sums.out = out.indptr.data();
    prefix(tile_sums);
    auto p = ragged_list_params(lists, pool, ranges);
    p.indptr = out.indptr.data();
    p.items = out.items.empty() ? nullptr : &out.items.data()->value;
    p.room = std::ssize(out.items);
    p.of_pages = std::is_same_v<Index, PageId>;
    run(ragged_kernel, 3, kStepThreads, p);
    return {};
  }
  Result<void> ragged_slots(const DevicePageLists& lists, PoolShape pool, TokenRanges ranges,
                            DeviceRagged<Slot> out, std::span<std::int64_t> workspace) {
    return ragged(lists, pool, ranges, out, 1, workspace);
  }
  Result<void> ragged_pages(const DevicePageLists& lists, PoolShape pool, TokenRanges ranges,
                            DeviceRagged<PageId> out, std::span<std::int64_t> workspace) {
    return ragged(lists, pool, ranges, out, pool.page_size, workspace);
  }
  void transform(const TransformParams& p) {
    if (p.rows == 0 || p.width == 0) return;
    run(transform_kernel, blocks(p.rows, p.lanes.rows()), kStepThreads, p);
  }
  Result<void> local_to_slots(const LocalLists& lists, std::span<const std::int32_t> row_request,
                              PageTableView table, PoolShape pool, std::span<Slot> out) {
    auto p = transform_params(lists, row_request, out.empty() ? nullptr : &out.data()->value);
    p.to_slots = true;
    p.requests = table.requests;
    p.table = &table.data->value;
    p.table_width = table.width;
    p.limit = pool.pages;
    p.page_size = FastDiv(pool.page_size);
    transform(p);
    return {};
  }
  Result<void> local_to_ragged(const LocalLists& lists, std::span<const std::int32_t> row_offset,
                               std::int64_t compact_rows, std::span<RaggedRow> out) {
    auto p = transform_params(lists, row_offset, out.empty() ? nullptr : &out.data()->value);
    p.limit = compact_rows;
    transform(p);
    return {};
  }
  Result<void> combine_index_lists(const CombineLists& lists, std::span<RaggedRow> out,
                                   std::span<std::int32_t> lengths) {
    const auto p = combine_params(lists, out, lengths);
    run(combine_kernel, blocks(p.rows, kStepThreads / 32), kStepThreads, p);
    return {};
  }
  Result<void> plan_work(const KeyRanges& ranges, const WorkOptions& options,
                         const WorkBuffers& buffers, std::span<std::int64_t> workspace) {
    const auto p = work_params(ranges, options, buffers, workspace);
    const std::int64_t tiles = scan_tiles(p.rows);
    if (tiles > 1) run(work_key_blocks_kernel, tiles, kScanThreads, p);
    if (tiles > 1 && !p.fixed) run(work_open_kernel, tiles, kScanThreads, p);
    const unsigned slices = std::min(work_slices(p), 3u);
    run(p.fixed                        ? work_fixed_kernel
        : work_rows_per_thread(p) == 1 ? work_balanced_kernel<1>
                                       : work_balanced_kernel<kScanPerThread>,
        tiles, kScanThreads, p, slices);
    return {};
  }
  Result<void> step_rows(const StepRowsInput& in, const StepRowsOutput& out,
                         std::span<std::int64_t> workspace) {
    const auto p = step_rows_params(in, out);
    if (scan_tiles(p.batch.requests) == 1) {
      run(step_rows_kernel<false>, step_rows_blocks(p), kScanThreads, p);
      return {};
    }
    prefix(q_indptr_params(in, out, workspace));
    run(step_rows_kernel<true>, step_rows_blocks(p), kScanThreads, p);
    return {};
  }
  template <class Work>
  auto capture(Work work) {
    return [this, work] { return work(*this); };
  }
};

TEST(StepEmulated, PageTables) {
  Emulated device;
  check_page_tables(device);
  check_hostile_lists(device);
}
TEST(StepEmulated, RaggedLists) {
  Emulated device;
  check_ragged_lists(device);
}
TEST(StepEmulated, IndexTransforms) {
  Emulated device;
  check_transforms(device);
}
TEST(StepEmulated, CombinedIndexLists) {
  Emulated device;
  check_combinations(device);
}
TEST(StepEmulated, WorkLists) {
  Emulated device;
  check_work_lists(device, {0, 1, 2, 7, 4096, 4097, 11623});
  check_long_work(device);
  check_bad_work(device);
}
TEST(StepEmulated, Replays) {
  Emulated device;
  check_list_replays(device);
  check_transform_replays(device);
  check_work_replays(device);
}
TEST(StepEmulated, Steps) {
  Emulated device;
  check_hostile_lengths(device);
  check_steps(device);
}

}  // namespace
}  // namespace lathe::cuda
