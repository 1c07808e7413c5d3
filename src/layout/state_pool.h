// StatePool: slots of bytes that layers carry from token to token of a request, such as a
// compressor's, next to the keys in pages.
//
// A slot is a page of a ledger that covers block_tokens tokens of its request and holds the state
// after the last of them that has been computed. A request moves from slot to slot as it passes a
// block's end, and the slot that it leaves holds the state at that boundary from then on:
// what the prefix cache keeps, and where a preempted request resumes, without a copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/memory.h"
#include "base/result.h"
#include "layout/page_ledger.h"
#include "layout/pool.h"

namespace lathe {

/// The slots of one layer, or the same part of each.
struct StateView {
  std::byte* data = nullptr;
  std::int64_t slot_bytes = 0;  // from a slot to the next

  /// Precondition: a slot of the pool.
  std::byte* at(PageId slot) const { return data + slot.value * slot_bytes; }
  StateView from(std::int64_t bytes) const { return {data + bytes, slot_bytes}; }
};

class StatePool {
 public:
  /// `slots` slots of `bytes` bytes for each of `layers` layers. Errors: counts below 1,
  /// block_tokens that are not a legal page size, out of memory.
  static Result<StatePool> create(std::int64_t bytes, std::int32_t layers,
                                  std::int64_t block_tokens, std::int64_t slots,
                                  const Memory& memory = kHostMemory);

  PageLedger& ledger() { return ledger_; }
  const PageLedger& ledger() const { return ledger_; }
  /// page_size: the tokens that a slot covers.
  const PoolShape& shape() const { return ledger_.shape(); }
  std::int64_t bytes() const { return slot_bytes_ * layers_ * ledger_.total(); }

  /// Precondition: a layer of the pool.
  StateView view(std::int32_t layer) {
    return {bytes_.get() + layer * ledger_.total() * slot_bytes_, slot_bytes_};
  }
  /// Precondition: a layer and a slot of the pool.
  std::span<std::byte> slot(std::int32_t layer, PageId slot) {
    const std::int64_t at = (layer * ledger_.total() + slot.value) * slot_bytes_;
    return {bytes_.get() + at, static_cast<std::size_t>(slot_bytes_)};
  }

  /// Fills every unheld slot with 0xff. Pools of the host only.
  void poison_free();

 private:
  StatePool(PoolShape shape, std::int64_t slot_bytes, std::int32_t layers, OwnedBytes bytes)
      : ledger_(shape), slot_bytes_(slot_bytes), layers_(layers), bytes_(std::move(bytes)) {}

  PageLedger ledger_;
  std::int64_t slot_bytes_ = 0;
  std::int64_t layers_ = 0;
  OwnedBytes bytes_;  // [layers, slots, slot_bytes]
};

}  // namespace lathe
