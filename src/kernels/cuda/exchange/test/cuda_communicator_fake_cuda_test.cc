// Communicators of two to eight devices of the fake runtime, a thread and a backend for each. Sums
// are compared with a host's, in rank order.
#include "kernels/cuda/exchange/cuda_communicator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/cuda/exchange/check_peers.h"
#include "kernels/cuda/exchange/nccl.h"
#include "kernels/cuda/exchange/test/cuda_ranks_test_util.h"

namespace lathe::cuda {
namespace {

// x and h of two sum_norm()s, of which the second reads what the first left in x.
std::pair<std::vector<float>, std::vector<bf16>> two_sum_norms(int r, const OpsContext& ops,
                                                               std::int64_t rows, std::int64_t cols,
                                                               bool owned) {
  const Arena::Scope scope(*ops.tensors);
  const MutableRowsView x = alloc_rows(*ops.tensors, rows, cols);
  const MutableRowsView h = alloc_rows(*ops.tensors, rows, cols, DType::bf16);
  std::vector<float> before(static_cast<std::size_t>(rows * cols));
  std::iota(before.begin(), before.end(), -5.0f);
  send_rows(ops, before, x);
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const MutableRowsView partial = send_partial(ops, r, rows, cols, dtype);
    sum_norm(
        ops,
        {.partial = constant(partial), .x = x, .weight = {}, .eps = 1e-5f, .h = h, .owned = owned});
  }
  EXPECT_TRUE(ops.backend->wait().ok());
  return {fetch_rows<float>(ops, x), fetch_rows<bf16>(ops, h)};
}

// Rows that a rank owns have the bits that all ranks have otherwise, and h is the same everywhere.
TEST(CudaCommunicator, RowsMayBeOwned) {
  for (const int size : {2, 4, 8}) {
    CudaRanks ranks(size);
    ranks.start({.rows = 400, .cols = 64, .dtype = DType::bf16});
    ranks.run([&](int r, const OpsContext& ops) {
      for (const std::int64_t rows :
           {std::int64_t{3}, pushed_rows(size, true) + 1, std::int64_t{256}, std::int64_t{300}}) {
        const auto [all_x, all_h] = two_sum_norms(r, ops, rows, 64, false);
        const auto [x, h] = two_sum_norms(r, ops, rows, 64, true);
        EXPECT_EQ(std::memcmp(h.data(), all_h.data(), h.size() * sizeof(bf16)), 0) << rows;
        const std::int64_t each = (rows + size - 1) / size;
        for (std::int64_t row = r * each; row < std::min(rows, (r + 1) * each); ++row) {
          for (std::int64_t i = row * 64; i < (row + 1) * 64; ++i) {
            ASSERT_EQ(x[static_cast<std::size_t>(i)], all_x[static_cast<std::size_t>(i)]) << row;
          }
        }
        const bool divided = rows > pushed_rows(size, true);
        EXPECT_EQ(x != all_x, divided) << rows << " rows of " << size << " ranks";
      }
    });
  }
}

TEST(CudaCommunicator, SumsArePushedAndRead) {
  for (const int size : {2, 4, 8}) {
    CudaRanks ranks(size);
    ranks.start({.rows = 400, .cols = 64, .dtype = DType::bf16});
    const std::int64_t most = pushed_rows(size, false);
    ranks.run([&](int r, const OpsContext& ops) {
      for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{5}, most, most + 1}) {
        check_rank(size, r, ops, rows, 64);
      }
      check_rank(size, r, ops, 3, 40);  // narrower than reserved
    });
    EXPECT_GE(std::move(ranks.communicator(0).finished()).value(), 8u);
  }
}

TEST(CudaCommunicator, ColumnsAndRecordsAreDealt) {
  CudaRanks ranks(2);
  ranks.start({.rows = 4, .cols = 64, .dtype = DType::bf16, .logit_rows = 5, .vocab = 100});
  ranks.run([&](int r, const OpsContext& ops) { check_dealt_rows(r, ops); });
}

TEST(CudaCommunicator, ARankThatDoesNotComeIsNamedAtTheLimit) {
  CudaRanks ranks(2);
  ranks.start({.rows = 4, .cols = 64, .dtype = DType::bf16});
  ranks.run([&](int r, const OpsContext& ops) {
    ASSERT_TRUE(ops.communicator->barrier().ok());
    if (r == 1) return;
    ranks.communicator(0).set_limit(1e-4);
    const MutableRowsView x = alloc_rows(*ops.tensors, 2, 64);
    sum_rows(ops, {.partial = constant(alloc_partial(ops, 2, 64)), .out = x});
    const Result<void> ok = ops.backend->wait();
    ASSERT_FALSE(ok.ok());
    const std::string message = ok.error().message();
    EXPECT_NE(message.find("rank 0 (GPU 0) waited"), std::string::npos) << message;
    EXPECT_NE(message.find("for rank 1"), std::string::npos) << message;
    EXPECT_FALSE(ops.communicator->status().ok());
  });
  EXPECT_FALSE(ranks.communicator(1).barrier().ok());  // the group is aborted
}

TEST(CudaCommunicator, AbortFromAnotherThreadEndsAnExchange) {
  CudaRanks ranks(2);
  check_abort_ends_a_sum(ranks);
}

TEST(CudaCommunicator, OutOfMemoryOnOneRankFailsOnAll) {
  CudaRanks ranks(2);
  std::optional<OwnedBytes> kept;
  ranks.run([&](int r, const OpsContext&) {
    if (r == 0) kept = std::move(allocate_device_bytes(32 << 20)).value();
  });
  fake::set_device_memory(40 << 20);
  ranks.run([&](int r, const OpsContext&) {
    const Result<void> ok =
        ranks.communicator(r).reserve({.rows = 256, .cols = 8192, .dtype = DType::bf16});
    ASSERT_FALSE(ok.ok());
    EXPECT_EQ(ok.error().code, ErrorCode::exhausted);
    EXPECT_NE(ok.error().message().find("rank 0"), std::string::npos) << ok.error().message();
  });
  fake::set_device_memory(std::int64_t{16} << 30);
}

TEST(CudaCommunicator, PairsWithoutPeerAccessAreNamed) {
  fake::set_devices(2, false);
  const std::vector<int> gpus{0, 1};
  const auto made = make_peers(gpus);
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.error().message().find("GPU 0 cannot access GPU 1"), std::string::npos);
  EXPECT_NE(made.error().message().find("--exchange nccl"), std::string::npos);
  fake::set_devices(1);
}

TEST(CudaCommunicator, OtherNumbersOfRanksAreRefused) { EXPECT_FALSE(make_peers({0, 1, 2}).ok()); }

TEST(CudaCommunicator, WidthsThatAreNotWholeWordsAreRefused) {
  CudaRanks ranks(2);
  ranks.run([&](int r, const OpsContext&) {
    const Result<void> ok =
        ranks.communicator(r).reserve({.rows = 1, .cols = 100, .dtype = DType::bf16});
    ASSERT_FALSE(ok.ok());
    EXPECT_NE(ok.error().message().find("multiple of 8"), std::string::npos);
  });
}

TEST(ExchangeSelfTest, AWrongSumTellsWhosePartIsWrong) {
  for (const int ranks : {2, 4, 8}) {
    for (std::int64_t i = 0; i < 6; ++i) {
      float sum = 0;
      for (int r = 0; r < ranks; ++r) {
        sum += test_part(i, r);
        EXPECT_EQ(to_f32(to_bf16(test_part(i, r))), test_part(i, r));
      }
      EXPECT_EQ(wrong_part(sum, i, ranks), -1);
      for (int r = 0; r < ranks; ++r) EXPECT_EQ(wrong_part(sum - test_part(i, r), i, ranks), r);
      EXPECT_EQ(wrong_part(std::nanf(""), i, ranks), 0);
      EXPECT_EQ(wrong_part(sum + 0.5f, i, ranks), 0);
    }
  }
}

TEST(Nccl, AMissingLibraryIsOneLine) {
  const auto none = load_nccl("libnccl-that-is-not-there.so.2");
  ASSERT_FALSE(none.ok());
  const std::string message = none.error().message();
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  EXPECT_NE(message.find("2.27.0 or newer"), std::string::npos) << message;
  EXPECT_NE(message.find("--exchange nccl"), std::string::npos) << message;
  const auto another = load_nccl("libc.so.6");
  ASSERT_FALSE(another.ok());
  EXPECT_NE(another.error().message().find("ncclGetVersion"), std::string::npos);
}

}  // namespace
}  // namespace lathe::cuda
