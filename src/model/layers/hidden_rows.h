// HiddenRows: rows of input to the model's head, kept in the backend's memory for a draft layer. A
// pass of the model writes the rows of its step, and a pass of the draft layer the rows of its
// drafts. Rows for later are copied to a ring. Each row has a place, its index in all(). If later
// uses of the draft layer reuse its selection of keys, choices() has the selected keys of the
// drafts' rows.
#pragma once

#include <cstdint>
#include <vector>

#include "base/memory.h"
#include "base/result.h"
#include "base/rows.h"
#include "kernels/backend.h"
#include "plan/model_plan.h"

namespace lathe {

/// Most rows per request that are kept for the draft layer while an answer has no drafts: reading
/// many in one pass is faster than one after each step, and rows left at the answer's end are never
/// read.
inline constexpr std::int64_t kUnreadRows = 64;

struct HiddenRowSizes {
  /// Rows of kUnreadRows steps are kept and then read in the next step, which keeps rows as well.
  static constexpr std::int64_t kKeptSteps = kUnreadRows + 2;

  std::int64_t step = 0;    // rows of the largest step
  std::int64_t kept = 0;    // decode rows of a kept step
  std::int64_t drafts = 0;  // rows of a draft pass with logits
  std::int64_t choice = 0;  // keys of a selection that uses of the layer share; 0: none is shared

  std::int64_t rows() const { return step + kKeptSteps * kept + drafts; }
  /// Sizes for draft_tokens drafts per request.
  static HiddenRowSizes of(const ModelPlan& plan, std::int64_t draft_tokens,
                           std::int64_t choice = 0);
};

/// Bytes of HiddenRows with rows of `width` values.
std::int64_t hidden_row_bytes(const HiddenRowSizes& sizes, std::int64_t width, DType dtype);

class HiddenRows {
 public:
  /// Values have the backend's activation type. Errors: no memory.
  static Result<HiddenRows> create(Backend& backend, std::int64_t width,
                                   const HiddenRowSizes& sizes);

  const HiddenRowSizes& sizes() const { return sizes_; }
  RowsView all() const { return constant(view_); }
  /// Where a step writes its rows, and where a draft pass writes its rows with logits.
  MutableRowsView step(std::int64_t rows) const;
  MutableRowsView drafts(std::int64_t rows) const;
  std::int32_t step_place(std::int64_t row) const { return static_cast<std::int32_t>(row); }
  std::int32_t draft_place(std::int64_t row) const {
    return static_cast<std::int32_t>(sizes_.rows() - sizes_.drafts + row);
  }
  /// [sizes().drafts, sizes().choice] slots of the keys chosen for the rows of drafts().
  std::span<std::int32_t> choices() const {
    return {reinterpret_cast<std::int32_t*>(choices_.get()),
            static_cast<std::size_t>(sizes_.drafts * sizes_.choice)};
  }

  /// Copies the first `rows` <= sizes().kept rows of the step to the ring and returns the place of
  /// the first. They stay valid while has() is true. Launches one operator.
  std::int32_t keep(const OpsContext& ops, std::int64_t rows);
  /// Calls of keep() so far, and so the number of the next call.
  std::int64_t keeps() const { return keeps_; }
  /// Whether the rows of that call survive one more call.
  bool has(std::int64_t keep) const { return keeps_ - keep < HiddenRowSizes::kKeptSteps; }

 private:
  HiddenRows(const HiddenRowSizes& sizes, OwnedBytes bytes)
      : sizes_(sizes), bytes_(std::move(bytes)) {}

  HiddenRowSizes sizes_;
  OwnedBytes bytes_;
  OwnedBytes choices_{nullptr, [](std::byte*) {}};
  MutableRowsView view_;
  std::vector<std::int32_t> numbers_;   // [kept] 0, 1, ...
  std::span<const std::int32_t> list_;  // the same, in the backend's memory
  std::vector<OwnedBytes> owned_;
  std::int64_t keeps_ = 0;
};

}  // namespace lathe
