// Errors of the step builders before they launch, and the message of a failed launch.
#include "kernels/cuda/sm90/step/step.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

namespace lathe::cuda {
namespace {

std::string field_of(const Result<void>& r) { return r.ok() ? "ok" : r.error().field; }

// Two requests with three rows in all; none of the data is read.
struct StepCall {
  std::array<std::int64_t, 3> indptr{};
  std::array<PageId, 4> pages{};
  std::array<std::int32_t, 2> cached{}, brought{};
  std::array<std::int32_t, 3> q_indptr{}, row_request{}, row_lens{}, attend_lens{}, window_lens{},
      compressed_lens{};
  std::array<std::int32_t, 2> kv_lens{};
  std::array<LocalPos, 3> positions{};
  std::array<Slot, 3> out_slots{}, compressed_out_slots{};
  std::array<Slot, 24> window_slots{};
  std::array<PageId, 8> table{};
  std::array<std::int64_t, 4> workspace{};
  PoolShape pool{16, 100};
  StepRowsInput in;
  StepRowsOutput out;

  StepCall() {
    in.lists = {indptr, pages};
    in.pool = pool;
    in.cached = cached;
    in.rows = brought;
    out.q_indptr = q_indptr;
    out.kv_lens = kv_lens;
    out.page_table = {table.data(), 2, 4};
    out.positions = positions;
    out.row_request = row_request;
    out.row_lens = row_lens;
    out.out_slots = out_slots;
    out.attend_lens = attend_lens;
  }
  void with_window() {
    in.window = 8;
    out.window_lens = window_lens;
    out.window_slots = {window_slots.data(), 3, 8};
  }
};

template <class Change>
std::string refused(Change change) {
  StepCall c;
  change(c);
  return field_of(step_rows(c.in, c.out, c.workspace, nullptr));
}

TEST(Step, RefusesBeforeItLaunches) {
  EXPECT_EQ(refused([](StepCall& c) { c.in.cached = {}; }), "cached");
  EXPECT_EQ(refused([](StepCall& c) { c.in.lists.indptr = {}; }), "indptr");
  EXPECT_EQ(refused([](StepCall& c) { c.in.top_k = -1; }), "top_k");
  EXPECT_EQ(refused([](StepCall& c) { c.in.pool.page_size = 0; }), "page_size");
  EXPECT_EQ(refused([](StepCall& c) { c.out.kv_lens = {}; }), "kv_lens");
  EXPECT_EQ(refused([](StepCall& c) { c.out.attend_lens = {}; }), "attend_lens");
  EXPECT_EQ(refused([](StepCall& c) { c.out.page_table.requests = 3; }), "page_table");
  EXPECT_EQ(refused([](StepCall& c) { c.out.page_table.requests = 1; }), "page_table");
  EXPECT_EQ(refused([](StepCall& c) { c.out.window_slots.width = 4; }), "window_slots");
  EXPECT_EQ(refused([](StepCall& c) {
              c.out.window_slots = {c.window_slots.data(), 3, 4};
            }),
            "window_slots.width");
  EXPECT_EQ(refused([](StepCall& c) { c.in.window = 8; }), "window_lens");
  // Would omit a row's newest keys.
  EXPECT_EQ(refused([](StepCall& c) {
              c.with_window();
              c.out.window_slots.width = 7;
            }),
            "window_slots.width");
  EXPECT_EQ(refused([](StepCall& c) { c.in.ratio = 4; }), "ratio");
  EXPECT_EQ(refused([](StepCall& c) {
              c.with_window();
              c.in.ratio = 4;
              c.in.compressed_lists = c.in.lists;
              c.in.compressed_pool = c.pool;
            }),
            "compressed_lens");

  StepCall c;
  EXPECT_EQ(field_of(step_rows(c.in, c.out, {}, nullptr)), "workspace");
  EXPECT_EQ(field_of(page_table(c.in.lists, c.pool, c.q_indptr, c.out.page_table, nullptr)),
            "lens");
  EXPECT_EQ(field_of(page_table(c.in.lists, c.pool, {}, {c.table.data(), 1, 4}, nullptr)),
            "out.requests");
  DeviceRagged<Slot> ragged{c.indptr, c.out_slots};
  EXPECT_EQ(
      field_of(ragged_slots(c.in.lists, c.pool, {c.q_indptr, {}}, ragged, c.workspace, nullptr)),
      "lengths");
  EXPECT_EQ(field_of(slot_table(c.in.lists, c.pool, {c.cached, c.q_indptr},
                                {c.window_slots.data(), 2, 4}, nullptr)),
            "starts");
}

TEST(Step, WorkListsRefuseBeforeTheyLaunch) {
  const std::vector<std::int32_t> counts(5);
  std::vector<std::int64_t> row_items(6), worker_items(4), workspace(2);
  alignas(16) std::array<WorkItem, 8> items{};
  const auto plan = [&](auto change) {
    WorkOptions options{.workers = 3, .block = 64};
    WorkBuffers buffers{items, row_items, worker_items};
    change(options, buffers);
    return field_of(plan_work({counts, {}}, options, buffers, workspace, nullptr));
  };
  EXPECT_EQ(plan([](WorkOptions& o, WorkBuffers&) { o.workers = 0; }), "workers");
  EXPECT_EQ(plan([](WorkOptions& o, WorkBuffers&) { o.block = 0; }), "block");
  EXPECT_EQ(plan([](WorkOptions& o, WorkBuffers&) { o.fixed_split = -64; }), "fixed_split");
  EXPECT_EQ(plan([](WorkOptions& o, WorkBuffers&) { o.workers = 4; }), "worker_items");
  EXPECT_EQ(plan([](WorkOptions&, WorkBuffers& b) { b.row_items = b.row_items.first(5); }),
            "row_items");
  // Off by four bytes: allowed by WorkItem's alignment, but not by a 16-byte store.
  EXPECT_EQ(plan([](WorkOptions&, WorkBuffers& b) {
              b.items = {reinterpret_cast<WorkItem*>(&b.items[0].first), 7};
            }),
            "items");
}

TEST(Step, ALaunchThatFailsNamesItsShapeAndItsCaller) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) {
    GTEST_SKIP() << "there is a device, and the launch would not fail";
  }
  StepCall c;
  const auto result = step_rows(c.in, c.out, c.workspace, nullptr);
  const int line = __LINE__ - 1;
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(
      result.error().field,
      "kernel step_rows (2 requests, 3 rows) launched at step_test.cc:" + std::to_string(line));
  EXPECT_EQ(result.error().code, ErrorCode::device);
}

}  // namespace
}  // namespace lathe::cuda
