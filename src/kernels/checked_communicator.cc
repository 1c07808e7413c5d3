#include "kernels/checked_communicator.h"

#include <fmt/format.h>

#include <functional>
#include <string_view>

#include "kernels/backend.h"

namespace lathe {
namespace {

class CheckedCommunicator : public Communicator {
 public:
  explicit CheckedCommunicator(Communicator& inner) : inner_(inner) {}

  std::int32_t rank() const override { return inner_.rank(); }
  std::int32_t size() const override { return inner_.size(); }
  Result<void> barrier() override { return inner_.barrier(); }
  Result<void> agree(const Result<void>& mine, std::uint64_t key) override {
    return inner_.agree(mine, key);
  }
  Result<std::vector<void*>> publish(void* address) override { return inner_.publish(address); }
  Result<void> reserve(const ExchangeLimits& limits) override { return inner_.reserve(limits); }
  void abort(const Error& reason) override { inner_.abort(reason); }
  Result<void> status() const override { return inner_.status(); }
  std::string name() const override { return inner_.name(); }
  Result<std::uint64_t> finished() override { return inner_.finished(); }
  bool records() const override { return false; }

  MutableRowsView partials(const OpsContext& ops, std::int64_t rows, std::int64_t cols,
                           DType dtype) override {
    return inner_.partials(ops, rows, cols, dtype);
  }
  void sum(const OpsContext& ops, const SumRows& op) override {
    inner_.sum(ops, op);
    check(ops, "sum", op.out);
  }
  void sum_norm(const OpsContext& ops, const SumNorm& op) override {
    inner_.sum_norm(ops, op);
    check(ops, "sum_norm", op.h);
  }
  void trade_columns(const OpsContext& ops, const TradeColumns& op) override {
    inner_.trade_columns(ops, op);
  }
  void share_records(const OpsContext& ops, const ShareRecords& op) override {
    inner_.share_records(ops, op);
  }

 private:
  void check(const OpsContext& ops, const char* exchange, const MutableRowsView& rows) {
    ++checks_;
    std::uint64_t hash = 0;
    Result<void> read;
    row_.resize(static_cast<std::size_t>(bytes_of(rows.dtype, rows.cols)));
    for (std::int64_t i = 0; read && i < rows.rows; ++i) {
      read = ops.backend->download(ops, rows.row(i), row_);
      const std::string_view bytes(reinterpret_cast<const char*>(row_.data()), row_.size());
      hash = 0x9e3779b97f4a7c15u * (hash ^ std::hash<std::string_view>()(bytes));
    }
    if (!read) return inner_.abort(read.error());
    const Result<void> same = inner_.agree({}, hash);
    if (same || !inner_.status()) return;
    inner_.abort({ErrorCode::device, same.error().field,
                  fmt::format("rank 0's rows after sum {} ({} of {} x {})", checks_, exchange,
                              rows.rows, rows.cols),
                  "others", "--check-ranks: a fault of that rank's device, or a bug in Lathe"});
  }

  Communicator& inner_;
  std::uint64_t checks_ = 0;
  std::vector<std::byte> row_;
};

}  // namespace

std::unique_ptr<Communicator> make_checked_communicator(Communicator& inner) {
  return std::make_unique<CheckedCommunicator>(inner);
}

}  // namespace lathe
