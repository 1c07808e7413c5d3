// Communicator: what one rank of a tensor-parallel group exchanges with the others. Every rank has
// a device, a thread and a Communicator of its own; OpsContext::communicator is null for a rank
// that is alone.
//
// All ranks call the same functions in the same order, with the same shapes. The functions of the
// host block until every rank has called them. Exchanges are operators: they run in the order of
// the rank's other operators, allocate nothing, may be recorded, and return before they have run.
// ops/exchange.h documents and checks them, and nothing else calls them.
//
// An exchange returns nothing. If the group was aborted, it leaves its outputs as they were, and
// the next function that returns a Result reports why.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/rows_view.h"
#include "kernels/context.h"

namespace lathe {

/// out = the sum of all ranks' partials, or out += the sum. The sum is computed in f32: +0, then
/// rank 0's partial, then rank 1's, and so on. So its bits depend neither on the number of rows nor
/// on timing, and -0 partials sum to +0.
struct SumRows {
  RowsView partial;     // [T, n] from partials(), not read after the exchange
  MutableRowsView out;  // [T, n] f32
  bool add = false;
  // f32 partials keep their bits; else they are rounded to Backend::activations() first.
  bool exact = false;
};

/// x += the sum of all ranks' partials (as SumRows), then h = RmsNorm of x.
struct SumNorm {
  RowsView partial;               // [T, n] as in SumRows without `exact`
  MutableRowsView x;              // [T, n] f32
  std::span<const float> weight;  // [n], or empty: 1
  float eps = 0;
  MutableRowsView h;  // [T, n] activations
  // Lets a rank leave x as it was in rows that it does not own: rank r owns rows [r c, (r + 1) c),
  // with c = T / size, rounded up. Until x is written anew, only such exchanges of T rows may
  // follow. h is whole on all ranks, and its bits do not depend on this.
  bool owned = false;
};

/// Rank r has columns [first[r], first[r + 1]) of all rows, and gets rows r, r + size(), .. whole.
struct TradeColumns {
  RowsView columns;                     // [T, first[rank + 1] - first[rank]] f32
  std::span<const std::int64_t> first;  // [size + 1] ascending, from 0; on the host
  MutableRowsView rows;                 // [owned_rows(T), first[size]] f32
};

/// Copies record i from rank i % size() to all other ranks.
struct ShareRecords {
  static constexpr std::int64_t kBytes = 16;
  std::byte* records = nullptr;  // [count, kBytes] in the backend's memory, 16-byte aligned
  std::int64_t count = 0;
};

/// The largest exchanges of a plan.
struct ExchangeLimits {
  std::int64_t rows = 0;          // T of SumRows and SumNorm
  std::int64_t cols = 0;          // n
  DType dtype = DType::f32;       // of partials: Backend::activations(); f32 is always legal, too
  std::int64_t logit_rows = 0;    // T of TradeColumns
  std::int64_t most_columns = 0;  // the widest rank's columns
  std::int64_t vocab = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual std::int32_t rank() const = 0;
  virtual std::int32_t size() const = 0;  // >= 2
  /// How many of `rows` dealt rows are this rank's: rank(), rank() + size(), ..
  std::int64_t owned_rows(std::int64_t rows) const { return (rows + size() - 1 - rank()) / size(); }

  // ---- On the host, blocking

  /// Waits for all ranks' threads. Errors: the group was aborted.
  virtual Result<void> barrier() = 0;
  /// Succeeds on all ranks if all pass success and the same key; else every rank gets the same
  /// error: the lowest failing rank's with its name, or the first two ranks with different keys.
  /// `key`: a hash of what must be equal, such as a step's shape. Errors also: an aborted group.
  virtual Result<void> agree(const Result<void>& mine, std::uint64_t key = 0) = 0;
  /// Returns every rank's address, [size]. Errors: the group was aborted.
  virtual Result<std::vector<void*>> publish(void* address) = 0;

  /// Allocates what exchanges within these limits need. Call once, on all ranks. Errors: out of
  /// memory, after which the ranks still have to agree(); an aborted group.
  virtual Result<void> reserve(const ExchangeLimits& limits) = 0;

  /// Ends all waits of all ranks, in exchanges too. Every later call fails with the reason of the
  /// first abort(). From any thread.
  virtual void abort(const Error& reason) = 0;
  /// The reason of abort(), if it was called.
  virtual Result<void> status() const = 0;

  // ---- Exchanges, in the order of the rank's operators

  /// Memory for the partial of the next exchange, in ops.tensors or in memory of the communicator.
  /// Write it with operators, then exchange it before the next call and before the caller's scope
  /// of ops.tensors ends. dtype: f32 or Backend::activations(), equal on all ranks.
  virtual MutableRowsView partials(const OpsContext& ops, std::int64_t rows, std::int64_t cols,
                                   DType dtype) = 0;
  virtual void sum(const OpsContext& ops, const SumRows& op) = 0;
  virtual void sum_norm(const OpsContext& ops, const SumNorm& op) = 0;
  virtual void trade_columns(const OpsContext& ops, const TradeColumns& op) = 0;
  virtual void share_records(const OpsContext& ops, const ShareRecords& op) = 0;

  /// Whether a backend may record exchanges.
  virtual bool records() const { return true; }

  // ---- For a watchdog, from any thread

  /// "rank 1", with its device if it has one of its own.
  virtual std::string name() const { return "rank " + std::to_string(rank()); }
  /// Exchanges that this rank has finished; of a recorded step, those that its device has. Answers
  /// while an exchange waits. Errors: the device's.
  virtual Result<std::uint64_t> finished() = 0;
};

}  // namespace lathe
