// StoredCounts: counts of stored, saturated and flushed values on the GPU, one set per ValueTally.
#pragma once

#include <map>

#include "base/memory.h"
#include "base/result.h"
#include "kernels/cuda/common/stream.h"
#include "kernels/cuda/sm90/codec/codec.h"
#include "layout/codec/value_tally.h"

namespace lathe::cuda {

class StoredCounts {
 public:
  /// The device counters of `tally`. Their address never changes, so replayed graphs add to them.
  /// Null for a null tally. The first call for a tally allocates.
  Result<ValueWords*> of(ValueTally* tally, const Stream& stream);
  /// Adds the counts to their tallies and resets them to 0. Waits for the stream.
  Result<void> collect(const Stream& stream);

 private:
  std::map<ValueTally*, OwnedBytes> words_;
};

}  // namespace lathe::cuda
