// StatePool: slots for state that layers keep between a request's tokens (V4's compressor), in
// addition to keys in pages.
//
// A slot is a page of a ledger for block_tokens tokens of a request. It has the state after the
// last of these tokens that has been computed. When a request passes the end of a block it
// continues in another slot, and the old slot keeps the state at that boundary. The prefix cache
// stores such slots, and a preempted request resumes from one, without a copy.
//
// If steps verify drafts, a slot has a bank for every row of a request in such a step, addressed by
// the row's position. So the states after all rows are there, whichever drafts are rejected.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/memory.h"
#include "base/result.h"
#include "layout/pages/page_ledger.h"
#include "layout/pages/pool.h"

namespace lathe {

/// The slots of a layer, or a part of each bank of them (from()).
struct StateView {
  std::byte* data = nullptr;
  std::int64_t bank_bytes = 0;  // from a bank to the next
  std::int64_t banks = 1;

  /// The state after the token at `position`. Preconditions: slot is in the pool, position >= 0.
  std::byte* at(PageId slot, std::int64_t position) const {
    return data + (slot.value * banks + position % banks) * bank_bytes;
  }
  StateView from(std::int64_t bytes) const { return {data + bytes, bank_bytes, banks}; }
};

class StatePool {
 public:
  /// `slots` slots for each of `layers` layers; a slot has `banks` banks of `bytes` bytes. Errors:
  /// counts below 1, block_tokens that are not a legal page size, out of memory.
  static Result<StatePool> create(std::int64_t bytes, std::int64_t banks, std::int32_t layers,
                                  std::int64_t block_tokens, std::int64_t slots,
                                  const Memory& memory = kHostMemory);

  PageLedger& ledger() { return ledger_; }
  const PageLedger& ledger() const { return ledger_; }
  /// page_size is the number of tokens per slot.
  const PoolShape& shape() const { return ledger_.shape(); }
  std::int64_t bytes() const { return bank_bytes_ * banks_ * layers_ * ledger_.total(); }

  /// Precondition: 0 <= layer < layers.
  StateView view(std::int32_t layer) {
    return {bytes_.get() + layer * ledger_.total() * banks_ * bank_bytes_, bank_bytes_, banks_};
  }
  /// All banks of a slot. Precondition: layer and slot are in the pool.
  std::span<std::byte> slot(std::int32_t layer, PageId slot) {
    const std::int64_t size = banks_ * bank_bytes_;
    const std::int64_t at = (layer * ledger_.total() + slot.value) * size;
    return {bytes_.get() + at, static_cast<std::size_t>(size)};
  }

  /// Fills all free slots with 0xff. Host pools only.
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
