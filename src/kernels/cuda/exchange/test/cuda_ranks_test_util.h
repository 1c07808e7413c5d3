// CudaRanks: communicators and backends of several devices of the fake runtime, a thread for each.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <thread>
#include <vector>

#include "base/float_formats.h"
#include "base/rows.h"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/common/device.h"
#include "kernels/cuda/common/memory.h"
#include "kernels/cuda/exchange/cuda_communicator.h"
#include "kernels/cuda/exchange/host_part.h"
#include "kernels/cuda/fake/fake_cuda.h"
#include "kernels/host_communicator.h"
#include "ops/exchange.h"

namespace lathe::cuda {

inline Result<std::vector<std::unique_ptr<CudaCommunicator>>> make_peers(
    const std::vector<int>& gpus) {
  return make_cuda_communicators(make_host_communicators(static_cast<std::int32_t>(gpus.size())),
                                 gpus);
}

class CudaRanks {
 public:
  /// library: a fake of NCCL; null: peer memory.
  explicit CudaRanks(int size, const Nccl* library = nullptr) : size_(size) {
    fake::set_devices(size);
    std::vector<int> gpus(static_cast<std::size_t>(size));
    std::iota(gpus.begin(), gpus.end(), 0);
    communicators_ = library == nullptr
                         ? make_peers(gpus).value()
                         : make_nccl_communicators(make_host_communicators(size), gpus, *library);
  }
  ~CudaRanks() {
    run([&](int r, const OpsContext&) {
      const auto at = static_cast<std::size_t>(r);
      if (at < ranks_.size()) ranks_[at].reset();
      communicators_[at].reset();
    });
    static_cast<void>(OnDevice::make(0));
    fake::set_devices(1);
  }
  CudaCommunicator& communicator(int r) { return *communicators_[static_cast<std::size_t>(r)]; }

  /// Calls work(rank, ops) on a thread per rank, with the rank's device current.
  void run(const std::function<void(int, const OpsContext&)>& work) {
    std::vector<std::jthread> threads;
    for (int r = 0; r < size_; ++r) {
      threads.emplace_back([&, r] {
        ASSERT_TRUE(open_device(r).ok());
        const auto at = static_cast<std::size_t>(r);
        work(r, at < ranks_.size() && ranks_[at] ? ranks_[at]->ops : OpsContext());
      });
    }
  }
  /// Backends, and reserve() of all ranks.
  void start(const ExchangeLimits& limits) {
    ranks_.resize(static_cast<std::size_t>(size_));
    run([&](int r, const OpsContext&) {
      auto& rank = ranks_[static_cast<std::size_t>(r)];
      rank = std::make_unique<Rank>();
      rank->backend =
          std::move(*make_cuda_backend({.ordinal = r, .communicator = &communicator(r)}));
      rank->ops.backend = rank->backend.get();
      rank->ops.communicator = &communicator(r);
      rank->ops.tensors = &rank->tensors;
      rank->ops.control = &rank->control;
      const Result<void> ok = communicator(r).reserve(limits);
      EXPECT_TRUE(ok.ok()) << ok.error().message();
    });
  }

 private:
  struct Rank {
    std::unique_ptr<Backend> backend;
    Arena tensors{kDeviceMemory}, control;
    OpsContext ops;
  };
  int size_;
  std::vector<std::unique_ptr<CudaCommunicator>> communicators_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

template <class T>
void send(const OpsContext& ops, std::span<const T> host, std::byte* to) {
  EXPECT_TRUE(ops.backend->upload(ops, std::as_bytes(host), to).ok());
}
template <class T>
std::vector<T> fetch(const OpsContext& ops, const std::byte* from, std::int64_t count) {
  std::vector<T> out(static_cast<std::size_t>(count));
  const auto ok = ops.backend->download(ops, from, std::as_writable_bytes(std::span(out)));
  EXPECT_TRUE(ok.ok()) << ok.error().message();
  return out;
}
// Dense rows to a view's, and back.
template <class T>
void send_rows(const OpsContext& ops, const std::vector<T>& host, const MutableRowsView& to) {
  for (std::int64_t row = 0; row < to.rows; ++row) {
    send(ops,
         std::span(host).subspan(static_cast<std::size_t>(row * to.cols),
                                 static_cast<std::size_t>(to.cols)),
         to.row(row));
  }
}
template <class T>
std::vector<T> fetch_rows(const OpsContext& ops, const MutableRowsView& from) {
  std::vector<T> out;
  for (std::int64_t row = 0; row < from.rows; ++row) {
    const auto values = fetch<T>(ops, from.row(row), from.cols);
    out.insert(out.end(), values.begin(), values.end());
  }
  return out;
}

inline float partial_of(int rank, std::int64_t i) {
  return to_f32(to_bf16(static_cast<float>((i * 37 + rank * 11) % 101) / 16 - 3));
}
inline float sum_of(int ranks, std::int64_t i) {
  float sum = 0;
  for (int r = 0; r < ranks; ++r) sum += partial_of(r, i);
  return sum;
}

/// Rows of partial_of() on the device.
inline MutableRowsView send_partial(const OpsContext& ops, int r, std::int64_t rows,
                                    std::int64_t cols, DType dtype) {
  const MutableRowsView partial = alloc_partial(ops, rows, cols, dtype);
  std::vector<bf16> narrow;
  std::vector<float> wide;
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    wide.push_back(partial_of(r, i));
    narrow.push_back(to_bf16(wide.back()));
  }
  dtype == DType::f32 ? send_rows(ops, wide, partial) : send_rows(ops, narrow, partial);
  return partial;
}

/// Rank 1 aborts while rank 0 waits for a sum with it.
inline void check_abort_ends_a_sum(CudaRanks& ranks) {
  ranks.start({.rows = 4, .cols = 64, .dtype = DType::bf16});
  ranks.run([&](int r, const OpsContext& ops) {
    if (r == 1) {
      ops.communicator->abort({ErrorCode::device, "rank 1", "a thread", "none", ""});
      return;
    }
    const MutableRowsView x = alloc_rows(*ops.tensors, 2, 64);
    sum_rows(ops, {.partial = constant(alloc_partial(ops, 2, 64)), .out = x});
    const Result<void> ok = ops.backend->wait();
    ASSERT_FALSE(ok.ok());
    EXPECT_NE(ok.error().message().find("rank 1"), std::string::npos) << ok.error().message();
  });
}

/// Compares x and h of sums on this rank with a host's.
inline void check_rank(int size, int r, const OpsContext& ops, std::int64_t rows,
                       std::int64_t cols) {
  const Arena::Scope scope(*ops.tensors);
  const std::int64_t count = rows * cols;
  const MutableRowsView x = alloc_rows(*ops.tensors, rows, cols);
  const MutableRowsView h = alloc_rows(*ops.tensors, rows, cols, DType::bf16);
  std::vector<float> before(static_cast<std::size_t>(count));
  std::iota(before.begin(), before.end(), -5.0f);
  send_rows(ops, before, x);
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const MutableRowsView partial = send_partial(ops, r, rows, cols, dtype);
    if (dtype == DType::bf16) {
      sum_norm(ops, {.partial = constant(partial), .x = x, .weight = {}, .eps = 1e-5f, .h = h});
    } else {
      sum_rows(ops, {.partial = constant(partial), .out = x, .add = true, .exact = rows % 2 == 0});
    }
  }
  ASSERT_TRUE(ops.backend->wait().ok());
  const auto got = fetch_rows<float>(ops, x);
  const auto norm = fetch_rows<bf16>(ops, h);
  for (std::int64_t row = 0; row < rows; ++row) {
    double squares = 0;
    std::vector<float> once;
    for (std::int64_t i = row * cols; i < (row + 1) * cols; ++i) {
      once.push_back(before[static_cast<std::size_t>(i)] + sum_of(size, i));
      squares += double{once.back()} * double{once.back()};
      ASSERT_EQ(got[static_cast<std::size_t>(i)], once.back() + sum_of(size, i)) << i;
    }
    const double factor = 1 / std::sqrt(squares / static_cast<double>(cols) + 1e-5);
    for (std::int64_t i = 0; i < cols; ++i) {
      const double wanted = double{once[static_cast<std::size_t>(i)]} * factor;
      ASSERT_NEAR(double{to_f32(norm[static_cast<std::size_t>(row * cols + i)])}, wanted,
                  std::abs(wanted) / 200);
    }
  }
}

/// Five rows of 100 logits, of which rank 0 of two has 64 columns, and records of 16 bytes.
inline void check_dealt_rows(int r, const OpsContext& ops) {
  const std::vector<std::int64_t> first{0, 64, 100};
  const std::int64_t rows = 5, cols = first[static_cast<std::size_t>(r) + 1] - (r == 0 ? 0 : 64);
  const Arena::Scope scope(*ops.tensors);
  const MutableRowsView columns = alloc_rows(*ops.tensors, rows, cols);
  const MutableRowsView whole =
      alloc_rows(*ops.tensors, ops.communicator->owned_rows(rows), first.back());
  std::vector<float> mine;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t c = 0; c < cols; ++c) {
      mine.push_back(static_cast<float>(1000 * i + (r == 0 ? 0 : 64) + c));
    }
  }
  send_rows(ops, mine, columns);
  trade_columns(ops, {.columns = constant(columns), .first = first, .rows = whole});
  const auto got = fetch_rows<float>(ops, whole);
  for (std::int64_t own = 0; own < whole.rows; ++own) {
    for (std::int64_t c = 0; c < whole.cols; ++c) {
      ASSERT_EQ(got[static_cast<std::size_t>(own * whole.cols + c)],
                static_cast<float>(1000 * (2 * own + r) + c));
    }
  }
  std::byte* records = ops.tensors->take(rows * ShareRecords::kBytes);
  const std::vector<std::uint64_t> own(static_cast<std::size_t>(2 * rows), r == 0 ? 7u : 8u);
  send(ops, std::span(own), records);
  ops.communicator->share_records(ops, {.records = records, .count = rows});
  const auto shared = fetch<std::uint64_t>(ops, records, 2 * rows);
  for (std::size_t i = 0; i < shared.size(); ++i) EXPECT_EQ(shared[i], i / 2 % 2 == 0 ? 7u : 8u);
}

}  // namespace lathe::cuda
