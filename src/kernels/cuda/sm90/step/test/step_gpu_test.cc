// The step's builders on a GPU against the CPU's (step_checks.h).
#include "kernels/cuda/sm90/step/test/step_batch_checks.h"
#include "kernels/cuda/sm90/step/test/step_checks.h"

#include <memory>

#include "kernels/cuda/common/test/gpu_test_util.h"
#include "kernels/cuda/sm90/step/test/step_replay_checks.h"

namespace lathe::cuda {
namespace {

template <class T>
class GpuArray {
 public:
  GpuArray(const GpuTest& test, const std::vector<T>& values) : test_(test), copy_(test, values) {}
  std::span<T> span() const { return {copy_.data(), static_cast<std::size_t>(copy_.size())}; }
  std::vector<T> read() const { return copy_.read(test_); }
  void write(const std::vector<T>& values) { copy_.write(test_, values); }

 private:
  const GpuTest& test_;
  DeviceCopy<T> copy_;
};

class StepGpu : public GpuTest {};

struct OnGpu {
  const GpuTest& test;

  template <class T>
  GpuArray<T> array(const std::vector<T>& values) {
    return GpuArray<T>(test, values);
  }
  bool fast() const { return true; }
  cudaStream_t stream() const { return test.stream().get(); }

  Result<void> local_to_slots(const LocalLists& lists, std::span<const std::int32_t> row_request,
                              PageTableView table, PoolShape pool, std::span<Slot> out) {
    return cuda::local_to_slots(lists, row_request, table, pool, out, stream());
  }
  Result<void> local_to_ragged(const LocalLists& lists, std::span<const std::int32_t> row_offset,
                               std::int64_t compact_rows, std::span<RaggedRow> out) {
    return cuda::local_to_ragged(lists, row_offset, compact_rows, out, stream());
  }
  Result<void> combine_index_lists(const CombineLists& lists, std::span<RaggedRow> out,
                                   std::span<std::int32_t> lengths) {
    return cuda::combine_index_lists(lists, out, lengths, stream());
  }
  Result<void> step_rows(const StepRowsInput& in, const StepRowsOutput& out,
                         std::span<std::int64_t> workspace) {
    return cuda::step_rows(in, out, workspace, stream());
  }
  Result<void> page_table(const DevicePageLists& lists, PoolShape pool,
                          std::span<const std::int32_t> lens, DeviceTable<PageId> out) {
    return cuda::page_table(lists, pool, lens, out, stream());
  }
  Result<void> slot_table(const DevicePageLists& lists, PoolShape pool, TokenRanges ranges,
                          DeviceTable<Slot> out) {
    return cuda::slot_table(lists, pool, ranges, out, stream());
  }
  Result<void> ragged_slots(const DevicePageLists& lists, PoolShape pool, TokenRanges ranges,
                            DeviceRagged<Slot> out, std::span<std::int64_t> workspace) {
    return cuda::ragged_slots(lists, pool, ranges, out, workspace, stream());
  }
  Result<void> ragged_pages(const DevicePageLists& lists, PoolShape pool, TokenRanges ranges,
                            DeviceRagged<PageId> out, std::span<std::int64_t> workspace) {
    return cuda::ragged_pages(lists, pool, ranges, out, workspace, stream());
  }
  Result<void> plan_work(const KeyRanges& ranges, const WorkOptions& options,
                         const WorkBuffers& buffers, std::span<std::int64_t> workspace) {
    return cuda::plan_work(ranges, options, buffers, workspace, stream());
  }
  /// A graph, so every later run is a replay.
  template <class Work>
  auto capture(Work work) {
    auto graph = Graph::capture(test.stream(), [&] { return work(*this); });
    EXPECT_TRUE(graph.ok()) << graph.error().message();
    auto shared = std::make_shared<Graph>(std::move(graph).value());
    return [this, shared] { return shared->launch(test.stream()); };
  }
};

TEST_F(StepGpu, PageTables) {
  OnGpu device{*this};
  check_page_tables(device);
  check_hostile_lists(device);
}
TEST_F(StepGpu, RaggedLists) {
  OnGpu device{*this};
  check_ragged_lists(device);
}
TEST_F(StepGpu, IndexTransforms) {
  OnGpu device{*this};
  check_transforms(device);
}
TEST_F(StepGpu, CombinedIndexLists) {
  OnGpu device{*this};
  check_combinations(device);
}
TEST_F(StepGpu, WorkLists) {
  OnGpu device{*this};
  check_work_lists(device, {0, 1, 2, 7, 4096, 4097, 11622, 11623, 11673, 11674, 1'000'000});
  check_long_work(device);
  check_bad_work(device);
}
TEST_F(StepGpu, Steps) {
  OnGpu device{*this};
  check_hostile_lengths(device);
  check_steps(device);
}

// Replayed builders use the current contents of their arrays.
TEST_F(StepGpu, ListsReplay) {
  OnGpu device{*this};
  check_list_replays(device);
}
TEST_F(StepGpu, TransformsReplay) {
  OnGpu device{*this};
  check_transform_replays(device);
}
TEST_F(StepGpu, WorkListsReplay) {
  OnGpu device{*this};
  check_work_replays(device);
}
}  // namespace
}  // namespace lathe::cuda

int main(int argc, char** argv) { return lathe::cuda::gpu_test_main(argc, argv); }
