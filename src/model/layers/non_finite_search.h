// Where NaN or Inf first appears in the rows of a forward pass.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/context.h"
#include "model/model.h"

namespace lathe {

class NonFiniteSearch {
 public:
  /// Over `rows` rows of a batch; not `active`: finds nothing. Allocates in ops.tensors.
  NonFiniteSearch(const OpsContext& ops, std::int64_t rows, bool active);
  /// Row i of x is row rows[i] of the batch, or row i if `rows` is empty.
  void look(const RowsView& x, std::span<const std::int32_t> rows, std::int32_t layer);
  /// The rows with NaN or Inf, and the layer where each begins.
  Result<ForwardResult> result() const;

 private:
  std::size_t count() const { return static_cast<std::size_t>(rows_); }
  const OpsContext& ops_;
  std::int64_t rows_;
  std::int32_t* first_;  // [rows] as FindNonFinite::first
  Result<void> uploaded_;
};

}  // namespace lathe
