// FaultyCommunicator: passes calls on to another communicator, late and in any order of arrival,
// not at all, or with NaN.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <latch>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <thread>
#include <utility>

#include "kernels/communicator.h"

namespace lathe {

/// What goes wrong on one rank. Calls are counted from 0: host calls and exchanges separately.
struct Faults {
  // Before every call the rank sleeps up to `most_delay` microseconds, chosen from `seed`: 0:
  // never. Ranks with different seeds arrive in all orders.
  std::uint64_t seed = 0;
  int most_delay = 0;
  std::int64_t fail_agree = -1;  // this call of agree() passes an error instead of success
  std::int64_t wrong_key = -1;   // this call of agree() passes another key
  std::int64_t end_thread = -1;  // this exchange throws RankEnded instead of taking place
  // This exchange, if it sums, gets NaN in column 0 of row nan_row of the rank's f32 partial.
  std::int64_t nan_exchange = -1, nan_row = 0;
  std::int64_t stall = -1;  // before this exchange the rank waits for `stalled`
  std::latch* stalled = nullptr;
};

struct RankEnded : std::runtime_error {
  RankEnded() : std::runtime_error("a test ends this rank's thread") {}
};

class FaultyCommunicator : public Communicator {
 public:
  FaultyCommunicator(std::unique_ptr<Communicator> inner, const Faults& faults)
      : owned_(std::move(inner)), inner_(owned_.get()), faults_(faults), random_(faults.seed) {}
  /// inner must outlive it.
  FaultyCommunicator(Communicator& inner, const Faults& faults)
      : inner_(&inner), faults_(faults), random_(faults.seed) {}

  std::int32_t rank() const override { return inner_->rank(); }
  std::int32_t size() const override { return inner_->size(); }
  std::int64_t exchanges() const { return exchanges_; }
  std::int64_t agreements() const { return agreements_; }
  /// Called after every exchange that writes rows equal on all ranks, with these rows.
  std::function<void(const RowsView&)> on_rows;

  Result<void> barrier() override {
    delay();
    return inner_->barrier();
  }
  Result<void> agree(const Result<void>& mine, std::uint64_t key) override {
    delay();
    const std::int64_t call = agreements_++;
    if (call == faults_.wrong_key) return inner_->agree(mine, key + 1);
    if (call != faults_.fail_agree) return inner_->agree(mine, key);
    return inner_->agree(
        Error{ErrorCode::exhausted, "memory", "enough", "less", "this is a test's choice"}, key);
  }
  Result<std::vector<void*>> publish(void* address) override {
    delay();
    return inner_->publish(address);
  }
  Result<void> reserve(const ExchangeLimits& limits) override { return inner_->reserve(limits); }
  void abort(const Error& reason) override { inner_->abort(reason); }
  Result<void> status() const override { return inner_->status(); }
  Result<std::uint64_t> finished() override { return inner_->finished(); }

  MutableRowsView partials(const OpsContext& ops, std::int64_t rows, std::int64_t cols,
                           DType dtype) override {
    return inner_->partials(ops, rows, cols, dtype);
  }
  void sum(const OpsContext& ops, const SumRows& op) override {
    begin();
    inner_->sum(ops, op);
    if (on_rows) on_rows({op.out.data, op.out.dtype, op.out.rows, op.out.cols, op.out.row_stride});
  }
  void sum_norm(const OpsContext& ops, const SumNorm& op) override {
    begin();
    spoil(op.partial);
    inner_->sum_norm(ops, op);
    if (on_rows) on_rows({op.x.data, op.x.dtype, op.x.rows, op.x.cols, op.x.row_stride});
    if (on_rows) on_rows({op.h.data, op.h.dtype, op.h.rows, op.h.cols, op.h.row_stride});
  }
  void trade_columns(const OpsContext& ops, const TradeColumns& op) override {
    begin();
    inner_->trade_columns(ops, op);
  }
  void share_records(const OpsContext& ops, const ShareRecords& op) override {
    begin();
    inner_->share_records(ops, op);
  }

 private:
  void spoil(const RowsView& partial) const {
    if (exchanges_ - 1 != faults_.nan_exchange || faults_.nan_row >= partial.rows) return;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(const_cast<std::byte*>(partial.row(faults_.nan_row)), &nan, sizeof nan);
  }
  void begin() {
    delay();
    if (exchanges_ == faults_.stall) faults_.stalled->wait();
    if (exchanges_++ == faults_.end_thread) throw RankEnded();
  }
  void delay() {
    if (faults_.most_delay == 0) return;
    const auto micros = std::uniform_int_distribution<int>(0, faults_.most_delay)(random_);
    if (micros % 2 == 0) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(micros));
    }
  }

  std::unique_ptr<Communicator> owned_;
  Communicator* inner_;
  Faults faults_;
  std::mt19937_64 random_;
  std::int64_t exchanges_ = 0, agreements_ = 0;
};

}  // namespace lathe
