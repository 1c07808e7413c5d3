// StoredCounts: what a GPU has counted of the values that it stored, per ValueTally.
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
  /// Where kernels count for `tally`: on the device, at the same address in every call, so that
  /// replays of a graph add to it. Null for a null tally. Allocates at a tally's first call.
  Result<ValueWords*> of(ValueTally* tally, const Stream& stream);
  /// Adds the counts to their tallies and starts again from 0. Waits for the stream.
  Result<void> collect(const Stream& stream);

 private:
  std::map<ValueTally*, OwnedBytes> words_;
};

}  // namespace lathe::cuda
