// `--exchange nccl` on devices of the fake runtime with a fake of the library: sums, dealt rows,
// and what goes wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "kernels/cuda/exchange/test/cuda_ranks_test_util.h"
#include "kernels/cuda/exchange/test/fake_nccl_test_util.h"

namespace lathe::cuda {
namespace {

using testing::HasSubstr;

class NcclRanks : public testing::Test {
 protected:
  void SetUp() override { fake_nccl.reset(); }
  const Nccl library_ = fake_nccl_library();
};

// The test's sums are exact in bf16 up to four ranks.
TEST_F(NcclRanks, SumsAreTheHosts) {
  for (const int size : {2, 4}) {
    fake_nccl.reset();
    CudaRanks ranks(size, &library_);
    ranks.start({.rows = 20, .cols = 64, .dtype = DType::bf16});
    ranks.run([&](int r, const OpsContext& ops) {
      for (const std::int64_t rows : {1, 5, 20}) check_rank(size, r, ops, rows, 64);
    });
    EXPECT_EQ(std::move(ranks.communicator(0).finished()).value(), 6u);
    EXPECT_EQ(fake_nccl.late_calls, 0);
  }
}

TEST_F(NcclRanks, ColumnsAndRecordsAreDealt) {
  CudaRanks ranks(2, &library_);
  ranks.start({.rows = 4, .cols = 64, .dtype = DType::bf16, .logit_rows = 5, .vocab = 100});
  ranks.run([&](int r, const OpsContext& ops) { check_dealt_rows(r, ops); });
}

TEST_F(NcclRanks, ALibraryThatCannotStartIsNamedOnAllRanks) {
  fake_nccl.fails = 1;
  CudaRanks ranks(2, &library_);
  ranks.run([&](int r, const OpsContext&) {
    const Result<void> ok =
        ranks.communicator(r).reserve({.rows = 1, .cols = 64, .dtype = DType::bf16});
    ASSERT_FALSE(ok.ok());
    EXPECT_THAT(ok.error().message(), HasSubstr("rank 1: ncclCommInitRank"));
    EXPECT_THAT(ok.error().message(), HasSubstr("NCCL_DEBUG=WARN"));
  });
}

TEST_F(NcclRanks, AbortFromAnotherThreadEndsASum) {
  CudaRanks ranks(2, &library_);
  check_abort_ends_a_sum(ranks);
  EXPECT_EQ(fake_nccl.late_calls, 0);
}

// An abort frees the library's communicators while a rank's thread goes on with its step.
TEST_F(NcclRanks, NoCallComesAfterAnAbort) {
  CudaRanks ranks(2, &library_);
  ranks.start({.rows = 4, .cols = 64, .dtype = DType::bf16, .logit_rows = 5, .vocab = 100});
  ranks.run([&](int r, const OpsContext& ops) {
    if (r == 1) {
      std::this_thread::yield();
      ops.communicator->abort({ErrorCode::device, "rank 1", "a thread", "none", ""});
    }
    const MutableRowsView x = alloc_rows(*ops.tensors, 2, 64);
    std::byte* records = ops.tensors->take(5 * ShareRecords::kBytes);
    for (int i = 0; i < 300; ++i) {
      sum_rows(ops, {.partial = constant(alloc_partial(ops, 2, 64)), .out = x});
      ops.communicator->share_records(ops, {.records = records, .count = 5});
    }
    EXPECT_FALSE(ops.backend->wait().ok());
  });
  EXPECT_EQ(fake_nccl.late_calls, 0);
}

}  // namespace
}  // namespace lathe::cuda
