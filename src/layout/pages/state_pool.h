// StatePool: slots of bytes that layers carry from token to token of a request, such as a
// compressor's, next to the keys in pages.
//
// A slot is a page of a ledger that covers block_tokens tokens of its request and holds the state
// after the last of them that has been computed. A request moves from slot to slot as it passes a
// block's end, and the slot that it leaves holds the state at that boundary from then on:
// what the prefix cache keeps, and where a preempted request resumes, without a copy.
//
// Where steps check drafts, a slot has a bank for every row that such a step brings, addressed by
// the row's position: the states after all of them are there, whichever drafts are rejected.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/memory.h"
#include "base/result.h"
#include "layout/pages/page_ledger.h"
#include "layout/pages/pool.h"

namespace lathe {

/// The slots of one layer, or the same part of each bank.
struct StateView {
  std::byte* data = nullptr;
  std::int64_t bank_bytes = 0;  // from a bank of a slot to the next
  std::int64_t banks = 1;

  /// The state after the token at `position`. Precondition: a slot of the pool; not negative.
  std::byte* at(PageId slot, std::int64_t position) const {
    return data + (slot.value * banks + position % banks) * bank_bytes;
  }
  StateView from(std::int64_t bytes) const { return {data + bytes, bank_bytes, banks}; }
};

class StatePool {
 public:
  /// `slots` slots of `banks` banks of `bytes` bytes for each of `layers` layers. Errors: counts
  /// below 1, block_tokens that are not a legal page size, out of memory.
  static Result<StatePool> create(std::int64_t bytes, std::int64_t banks, std::int32_t layers,
                                  std::int64_t block_tokens, std::int64_t slots,
                                  const Memory& memory = kHostMemory);

  PageLedger& ledger() { return ledger_; }
  const PageLedger& ledger() const { return ledger_; }
  /// page_size: the tokens that a slot covers.
  const PoolShape& shape() const { return ledger_.shape(); }
  std::int64_t bytes() const { return bank_bytes_ * banks_ * layers_ * ledger_.total(); }

  /// Precondition: a layer of the pool.
  StateView view(std::int32_t layer) {
    return {bytes_.get() + layer * ledger_.total() * banks_ * bank_bytes_, bank_bytes_, banks_};
  }
  /// All banks. Precondition: a layer and a slot of the pool.
  std::span<std::byte> slot(std::int32_t layer, PageId slot) {
    const std::int64_t size = banks_ * bank_bytes_;
    const std::int64_t at = (layer * ledger_.total() + slot.value) * size;
    return {bytes_.get() + at, static_cast<std::size_t>(size)};
  }

  /// Fills every unheld slot with 0xff. Pools of the host only.
  void poison_free();

 private:
  StatePool(PoolShape shape, std::int64_t bank_bytes, std::int64_t banks, std::int32_t layers,
            OwnedBytes bytes)
      : ledger_(shape),
        bank_bytes_(bank_bytes),
        banks_(banks),
        layers_(layers),
        bytes_(std::move(bytes)) {}

  PageLedger ledger_;
  std::int64_t bank_bytes_ = 0;
  std::int64_t banks_ = 1;
  std::int64_t layers_ = 0;
  OwnedBytes bytes_;  // [layers, slots, banks, bank_bytes]
};

}  // namespace lathe
