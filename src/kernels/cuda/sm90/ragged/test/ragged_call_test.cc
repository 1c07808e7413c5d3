// Tests what attention over expanded keys rejects before it needs a device, and how it splits calls
// into passes.
#include "kernels/cuda/sm90/ragged/ragged_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "attn/expansion.h"
#include "kernels/cuda/common/memory.h"
#include "kernels/cuda/sm90/gqa/gqa_limits.h"
#include "kernels/cuda/sm90/ragged/ragged_attend.h"

namespace lathe::cuda {
namespace {

using ::testing::HasSubstr;

// Requests by page table. The arrays are never read.
struct RaggedCall {
  alignas(16) std::array<std::byte, 64> bytes{};
  std::vector<std::int32_t> indptr, lens;
  std::vector<PageId> table;
  Scratch scratch{kDeviceMemory};
  AttendArgs args;

  explicit RaggedCall(std::int32_t heads = 128, std::int64_t rows = 8192, std::int64_t keys = 8192,
                      std::int64_t requests = 1) {
    AttentionProblem& p = args.problem;
    p = deepseek_v3_problem();
    p.heads = heads;
    const std::int64_t width = heads * (p.qk_nope_head + p.rope), out = heads * p.v_head;
    args.q = {bytes.data(), DType::bf16, rows, width, width};
    args.out = {bytes.data(), DType::bf16, rows, out, out};
    indptr.resize(static_cast<std::size_t>(requests + 1));
    lens.resize(static_cast<std::size_t>(requests));
    args.q_indptr = indptr;
    args.kv_lens = lens;
    args.main.table_width = (keys + 63) / 64;
    table.resize(static_cast<std::size_t>(requests * args.main.table_width));
    args.main.page_table = table;
    args.main.pool.emplace(bytes.data(), CacheLayout(LayoutKind::mla_bf16), 64, 8);
    args.expansion.kv_b = bytes.data();
    args.max_request_rows = rows;
    args.max_kv_len = keys;
    args.execution.scratch = &scratch;
  }
  RaggedShape shape(int sms = 132) const {
    const auto checked = check_ragged_call(args);
    EXPECT_TRUE(checked.ok()) << (checked ? "" : checked.error().message());
    const auto shape = ragged_shape(args, sms);
    EXPECT_TRUE(shape.ok()) << (shape ? "" : shape.error().message());
    return *shape;
  }
};

template <class Change>
std::string ragged_refusal(Change change) {
  RaggedCall c;
  change(c);
  const auto done = attend_ragged_on_device(c.args);
  return done ? "ran" : done.error().message();
}

TEST(AttendRaggedOnDevice, RefusesWhatTheKernelsDoNotTake) {
  EXPECT_EQ(ragged_refusal([](RaggedCall& c) { c.args.q.dtype = DType::f32; }),
            "q.dtype: wanted bf16, got f32");
  EXPECT_EQ(ragged_refusal([](RaggedCall& c) { c.args.out.dtype = DType::f64; }),
            "out.dtype: wanted bf16 or f32, got f64");
  EXPECT_THAT(ragged_refusal([](RaggedCall& c) { c.args.q.data += 2; }),
              HasSubstr("q: wanted an address and strides of whole 16 bytes"));
  EXPECT_THAT(ragged_refusal([](RaggedCall& c) { c.args.expansion = {}; }),
              HasSubstr("expansion.kv_b: wanted weights on the device, got none"));
  EXPECT_THAT(ragged_refusal([](RaggedCall& c) { c.args.execution.batch_invariant = true; }),
              HasSubstr("execution.batch_invariant: wanted off"));
  EXPECT_THAT(ragged_refusal([](RaggedCall& c) { c.args.execution.scratch = nullptr; }),
              HasSubstr("execution.scratch: wanted scratch of device memory, got none"));
  EXPECT_THAT(
      ragged_refusal([](RaggedCall& c) { c.args.max_request_rows = 5; }),
      HasSubstr("max_request_rows: wanted at least 8192 (8192 rows over 1 requests), got 5"));
  EXPECT_THAT(ragged_refusal([](RaggedCall& c) {
                c.args.problem.v_head = 64;
                c.args.out.cols = c.args.out.row_stride = 128 * 64;
              }),
              HasSubstr("problem.v_head: wanted one of 128, 256, got 64"));
  EXPECT_THAT(ragged_refusal([](RaggedCall& c) {
                c.args.main.pool.emplace(c.bytes.data(), CacheLayout(LayoutKind::mla_fp4), 64, 8);
              }),
              HasSubstr("mla_fp4"));
}

TEST(RaggedShape, GivesAPassTheHeadsThatAreWorthIt) {
  const RaggedShape s = RaggedCall().shape();
  EXPECT_EQ(s.requests, 1);
  EXPECT_EQ(s.keys, 8192);
  EXPECT_EQ(s.heads, 8);
  EXPECT_EQ(s.gqa.tile, 128);
  EXPECT_EQ(RaggedCall(128, 8192, 160000).shape().heads, 1);
  EXPECT_EQ(RaggedCall(128, 320, 8192).shape().heads, 128);
  EXPECT_EQ(RaggedCall(16, 320, 512).shape().heads, 16);
  // As many heads as fit the workspace.
  EXPECT_EQ(RaggedCall(128, 128, 100000).shape().heads, 8);
}

TEST(RaggedShape, KeepsToTheDeclaredBytes) {
  for (const std::int64_t keys : {1, 1000, 100000, 400000}) {
    for (const std::int64_t requests : {1, 7, 64}) {
      for (const std::int32_t heads : {1, 20, 128}) {
        RaggedCall c(heads, 640, keys, requests);
        c.args.problem.qk_nope_head = 192;
        c.args.problem.v_head = 256;
        c.args.q.cols = c.args.q.row_stride = heads * 256;
        c.args.out.cols = c.args.out.row_stride = heads * 256;
        if (keys > kRaggedWorkspaceBytes /
                       expanded_key_bytes(c.args.problem, least_expanded_heads(c.args.problem))) {
          EXPECT_THAT(ragged_shape(c.args, 132).error().message(), HasSubstr("max_kv_len"));
          continue;
        }
        const RaggedShape s = c.shape();
        EXPECT_LE(s.keys * expanded_key_bytes(c.args.problem, s.heads), kRaggedWorkspaceBytes);
        EXPECT_LE(s.pass_bytes, kRaggedWorkspaceBytes + kGqaPartialBytes + 1024);
        EXPECT_GE(s.keys, s.requests * std::min<std::int64_t>(keys, c.args.max_kv_len));
        EXPECT_TRUE(s.heads % 2 == 0 || heads == 1);
      }
    }
  }
}

// total_keys is a tighter bound than requests times the longest one.
TEST(RaggedShape, CountsKeysAsTheHostDoes) {
  RaggedCall c(128, 640, 100000, 10);
  EXPECT_EQ(c.shape().requests, 4);
  c.args.total_keys = 101000;
  EXPECT_EQ(c.shape().requests, 10);
  EXPECT_EQ(c.shape().keys, 101000);
  EXPECT_TRUE(c.shape().shares_list(c.args));
}

}  // namespace
}  // namespace lathe::cuda
