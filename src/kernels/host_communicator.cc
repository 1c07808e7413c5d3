#include "kernels/host_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>

#include "base/check.h"
#include "base/pause.h"
#include "base/rows.h"
#include "kernels/backend.h"

namespace lathe {
namespace {

// A rank's part of an agreement.
struct Vote {
  Result<void> result;
  std::uint64_t key = 0;
};

// What a rank shows to the others between two waits.
struct Shown {
  const void* address = nullptr;
  // Of an exchange: its name and the shape of all ranks' data.
  const char* exchange = "";
  std::int64_t rows = 0, cols = 0;

  std::string text() const { return fmt::format("{} of {} x {}", exchange, rows, cols); }
};

// What the ranks of a group share.
class HostGroup {
 public:
  HostGroup(std::int32_t ranks, std::chrono::microseconds spin)
      : spin_(spin), shown_(static_cast<std::size_t>(ranks)) {
    for (auto& votes : votes_) votes.resize(static_cast<std::size_t>(ranks));
  }

  std::int32_t size() const { return static_cast<std::int32_t>(shown_.size()); }
  Shown& shown(std::int32_t rank) { return shown_[static_cast<std::size_t>(rank)]; }
  /// Of the even and the odd agreements: a rank that votes again in one of them has met the others
  /// in between, so they have read its last vote there, and agreeing needs one meeting.
  Vote& vote(bool odd, std::int32_t rank) {
    return votes_[odd ? 1 : 0][static_cast<std::size_t>(rank)];
  }

  /// Returns when all ranks have called it, or false once the group is aborted. If it returns true
  /// on one rank, it does on all.
  bool meet() { return wait(true); }
  /// The wait after a successful meet(): all ranks come, so abort() does not end it, and no rank
  /// leaves while another still reads its data.
  void part() { wait(false); }

  void abort(const Error& reason) {
    {
      const std::lock_guard lock(guard_);
      if (aborted_) return;
      aborted_ = reason;
      state_.fetch_or(kAborted);
    }
    changed_.notify_all();
  }
  Result<void> status() {
    if ((state_.load() & kAborted) == 0) return {};
    const std::lock_guard lock(guard_);
    return *aborted_;
  }

 private:
  // Ranks that meet do so within nanoseconds of each other. With a lock one of them would often
  // find it taken and sleep, which costs more than the rest of a step's launch. So what decides is
  // one word: meetings so far, ranks that have arrived at the next one, and whether it is aborted.
  static constexpr std::uint64_t kAborted = 1, kArrival = 2, kMeeting = std::uint64_t{1} << 32;
  static std::uint64_t meetings(std::uint64_t state) { return state / kMeeting; }

  bool wait(bool ends_on_abort) {
    std::uint64_t before = state_.load();
    std::uint64_t after = 0;
    do {
      if (ends_on_abort && (before & kAborted) != 0) return false;
      after = before + kArrival;
      const auto arrived = static_cast<std::int32_t>(after % kMeeting / kArrival);
      if (arrived == size()) after = (meetings(before) + 1) * kMeeting + (before & kAborted);
    } while (!state_.compare_exchange_weak(before, after));
    const std::uint64_t mine = meetings(before);
    if (meetings(after) != mine) {
      if (sleepers_.load() > 0) wake();
      return true;
    }
    const auto over = [&](std::uint64_t state) {
      return meetings(state) != mine || (ends_on_abort && (state & kAborted) != 0);
    };
    // Ranks most often arrive within a few microseconds of each other; sleeping costs more.
    const auto end = std::chrono::steady_clock::now() + spin_;
    std::uint64_t state = 0;
    do {
      for (int i = 0; i < 16; ++i) {
        if (over(state = state_.load())) return meetings(state) != mine;
        pause_thread();
      }
    } while (std::chrono::steady_clock::now() < end);
    std::unique_lock lock(guard_);
    sleepers_.fetch_add(1);
    changed_.wait(lock, [&] { return over(state = state_.load()); });
    sleepers_.fetch_sub(1);
    return meetings(state) != mine;
  }
  void wake() {
    { const std::lock_guard lock(guard_); }  // a rank that looks at the state is asleep after it
    changed_.notify_all();
  }

  std::chrono::microseconds spin_;
  std::vector<Shown> shown_;    // [ranks] each written by its rank before a wait
  std::vector<Vote> votes_[2];  // [ranks] each written by its rank before a meeting
  std::atomic<std::uint64_t> state_ = 0;
  std::atomic<int> sleepers_ = 0;
  std::mutex guard_;
  std::condition_variable changed_;
  std::optional<Error> aborted_;
};

// The first failure in the order of ranks, or else the first key that differs from rank 0's.
Result<void> joined(HostGroup& group, bool odd) {
  for (std::int32_t r = 0; r < group.size(); ++r) {
    const Result<void>& result = group.vote(odd, r).result;
    if (result) continue;
    Error error = result.error();
    error.field = fmt::format("rank {}: {}", r, error.field);
    return error;
  }
  const std::uint64_t key = group.vote(odd, 0).key;
  for (std::int32_t r = 1; r < group.size(); ++r) {
    const std::uint64_t other = group.vote(odd, r).key;
    if (other == key) continue;
    return Error{ErrorCode::device, fmt::format("rank {}", r),
                 fmt::format("rank 0's step ({:016x})", key),
                 fmt::format("another one ({:016x})", other), "this is a bug in Lathe"};
  }
  return {};
}

class HostCommunicator : public Communicator {
 public:
  HostCommunicator(std::shared_ptr<HostGroup> group, std::int32_t rank)
      : group_(std::move(group)), rank_(rank) {}

  std::int32_t rank() const override { return rank_; }
  std::int32_t size() const override { return group_->size(); }

  Result<void> barrier() override { return group_->meet() ? Result<void>() : group_->status(); }

  Result<void> agree(const Result<void>& result, std::uint64_t key) override {
    // Ranks that have met and that were aborted afterwards may still read the other votes.
    if (auto ok = group_->status(); !ok) return ok;
    odd_ = !odd_;
    Vote& mine = group_->vote(odd_, rank_);
    mine.result = result;
    mine.key = key;
    return group_->meet() ? joined(*group_, odd_) : group_->status();
  }

  Result<std::vector<void*>> publish(void* address) override {
    group_->shown(rank_).address = address;
    if (!group_->meet()) return group_->status().error();
    std::vector<void*> out;
    for (std::int32_t r = 0; r < size(); ++r) {
      out.push_back(const_cast<void*>(group_->shown(r).address));
    }
    group_->part();
    return out;
  }

  Result<void> reserve(const ExchangeLimits&) override { return group_->status(); }
  void abort(const Error& reason) override { group_->abort(reason); }
  Result<void> status() const override { return group_->status(); }
  Result<std::uint64_t> finished() override { return finished_.load(std::memory_order_relaxed); }

  MutableRowsView partials(const OpsContext& ops, std::int64_t rows, std::int64_t cols,
                           DType dtype) override {
    return alloc_rows(*ops.tensors, rows, cols, dtype);
  }

  void sum(const OpsContext& ops, const SumRows& op) override { (void)try_sum(ops, "sum", op); }

  void sum_norm(const OpsContext& ops, const SumNorm& op) override {
    if (!try_sum(ops, "sum_norm", {op.partial, op.x, true})) return;
    ops.backend->rms_norm(ops,
                          {.x = constant(op.x), .weight = op.weight, .eps = op.eps, .out = op.h});
  }

  void trade_columns(const OpsContext&, const TradeColumns& op) override {
    if (!meet("trade_columns", &op, op.columns.rows, op.rows.cols)) return;
    for (std::int32_t r = 0; r < size(); ++r) {
      const RowsView& from = static_cast<const TradeColumns*>(group_->shown(r).address)->columns;
      const MutableRowsView to = cols_at(op.rows, op.first[static_cast<std::size_t>(r)], from.cols);
      for (std::int64_t i = 0; i < to.rows; ++i) {
        std::memcpy(to.row(i), from.row(rank_ + i * size()),
                    static_cast<std::size_t>(bytes_of(from.dtype, from.cols)));
      }
    }
    part();
  }

  void share_records(const OpsContext&, const ShareRecords& op) override {
    if (!meet("share_records", op.records, op.count, ShareRecords::kBytes)) return;
    for (std::int64_t i = 0; i < op.count; ++i) {
      const auto owner = static_cast<std::int32_t>(i % size());
      if (owner == rank_) continue;
      const auto* from = static_cast<const std::byte*>(group_->shown(owner).address);
      const std::int64_t at = i * ShareRecords::kBytes;
      std::memcpy(op.records + at, from + at, static_cast<std::size_t>(ShareRecords::kBytes));
    }
    part();
  }

 private:
  // Shows the address and waits for all ranks. False if the group is aborted, or if ranks differ,
  // and then it has been aborted.
  bool meet(const char* exchange, const void* address, std::int64_t rows, std::int64_t cols) {
    Shown& mine = group_->shown(rank_);
    mine.address = address;
    mine.exchange = exchange;
    mine.rows = rows;
    mine.cols = cols;
    if (!group_->meet()) return false;
    const Shown& first = group_->shown(0);
    for (std::int32_t r = 1; r < size(); ++r) {
      const Shown& other = group_->shown(r);
      const auto key = [](const Shown& s) {
        return std::tuple(std::string_view(s.exchange), s.rows, s.cols);
      };
      if (key(other) == key(first)) continue;
      group_->abort({ErrorCode::device, fmt::format("rank {}", r), "rank 0's " + first.text(),
                     other.text(), "this is a bug in Lathe"});
      group_->part();
      return false;
    }
    return true;
  }

  bool try_sum(const OpsContext& ops, const char* name, const SumRows& op) {
    LATHE_CHECK(op.partial.dtype == DType::f32 && op.out.dtype == DType::f32,
                "partials in host memory are f32");
    if (!meet(name, &op.partial, op.out.rows, op.out.cols)) return false;
    // Enough elements to outweigh the threads' start.
    constexpr std::int64_t kTaskElements = 16 * 1024;
    const std::int64_t rows =
        std::max<std::int64_t>(1, kTaskElements / std::max<std::int64_t>(1, op.out.cols));
    const std::int64_t tasks = (op.out.rows + rows - 1) / rows;
    auto body = [&](std::int64_t task, int) {
      for (std::int64_t i = task * rows; i < std::min((task + 1) * rows, op.out.rows); ++i) {
        sum_row(op, i);
      }
    };
    if (ops.execution.threads != nullptr && tasks > 1) {
      ops.execution.threads->run(tasks, body);
    } else {
      for (std::int64_t t = 0; t < tasks; ++t) body(t, 0);
    }
    part();
    return true;
  }

  void sum_row(const SumRows& op, std::int64_t i) const {
    constexpr std::int64_t kBlock = 64;  // columns whose sums stay in registers
    float* out = reinterpret_cast<float*>(op.out.row(i));
    for (std::int64_t first = 0; first < op.out.cols; first += kBlock) {
      const std::int64_t n = std::min(kBlock, op.out.cols - first);
      float sums[kBlock] = {};
      for (std::int32_t r = 0; r < size(); ++r) {
        const auto* partial = static_cast<const RowsView*>(group_->shown(r).address);
        const float* from = reinterpret_cast<const float*>(partial->row(i)) + first;
        for (std::int64_t c = 0; c < n; ++c) sums[c] += from[c];
      }
      for (std::int64_t c = 0; c < n; ++c) {
        out[first + c] = op.add ? out[first + c] + sums[c] : sums[c];
      }
    }
  }

  // The end of an exchange, which meet() began.
  void part() {
    finished_.fetch_add(1, std::memory_order_relaxed);
    group_->part();
  }

  std::shared_ptr<HostGroup> group_;
  std::int32_t rank_;
  bool odd_ = false;                         // the last agreement
  std::atomic<std::uint64_t> finished_ = 0;  // exchanges
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_host_communicators(std::int32_t ranks,
                                                                   std::chrono::microseconds spin) {
  LATHE_CHECK(ranks >= 2, "a rank that is alone has no communicator");
  const auto group = std::make_shared<HostGroup>(ranks, spin);
  std::vector<std::unique_ptr<Communicator>> out;
  for (std::int32_t r = 0; r < ranks; ++r) {
    out.push_back(std::make_unique<HostCommunicator>(group, r));
  }
  return out;
}

}  // namespace lathe
