// Builds the parameters of the step kernels from a step's spans. Internal to the steps; counts have
// been checked.
#pragma once

#include "kernels/cuda/sm90/step/step.h"
#include "kernels/cuda/sm90/step/step_params.h"

namespace lathe::cuda {

PageTableParams page_table_params(const DevicePageLists& lists, PoolShape pool,
                                  std::span<const std::int32_t> lens, DeviceTable<PageId> out);
SlotTableParams slot_table_params(const DevicePageLists& lists, PoolShape pool, TokenRanges ranges,
                                  DeviceTable<Slot> out);
/// For the prefix sums of ceil(value / divisor).
PrefixParams prefix_params(std::span<const std::int32_t> values, std::int64_t divisor,
                           std::span<std::int64_t> workspace);
RaggedListParams ragged_list_params(const DevicePageLists& lists, PoolShape pool,
                                    TokenRanges ranges);
TransformParams transform_params(const LocalLists& lists, std::span<const std::int32_t> row_value,
                                 std::int32_t* out);
CombineParams combine_params(const CombineLists& lists, std::span<RaggedRow> out,
                             std::span<std::int32_t> lengths);
WorkParams work_params(const KeyRanges& ranges, const WorkOptions& options,
                       const WorkBuffers& buffers, std::span<std::int64_t> workspace);
/// For q_indptr, if the requests exceed a tile.
PrefixParams q_indptr_params(const StepRowsInput& in, const StepRowsOutput& out,
                             std::span<std::int64_t> workspace);
StepRowsParams step_rows_params(const StepRowsInput& in, const StepRowsOutput& out);
}  // namespace lathe::cuda
