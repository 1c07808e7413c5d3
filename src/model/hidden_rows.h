// HiddenRows: what the model's head reads of rows, kept for a draft layer in the memory where it
// was made. A pass of the model writes those of its step, a pass of the draft layer those of its
// drafts; rows that the layer reads later are copied to where they stay for a while. Each has a
// place, a row of all().
#pragma once

#include <cstdint>
#include <vector>

#include "attn/model_plan.h"
#include "base/memory.h"
#include "base/result.h"
#include "base/rows.h"
#include "kernels/backend.h"

namespace lathe {

/// Rows of an answer without drafts wait for the draft layer, up to so many of each request: it
/// reads many in one pass sooner than one after each step, and never those that the answer's end
/// leaves.
inline constexpr std::int64_t kUnreadRows = 64;

struct HiddenRowSizes {
  /// As rows wait for so many steps, then are read in the one after them, which keeps some too.
  static constexpr std::int64_t kKeptSteps = kUnreadRows + 2;

  std::int64_t step = 0;    // rows of the largest step
  std::int64_t kept = 0;    // rows of those who decode in a step that is kept
  std::int64_t drafts = 0;  // rows of a draft pass that give logits

  std::int64_t rows() const { return step + kKeptSteps * kept + drafts; }
  /// Of so many drafts of a request.
  static HiddenRowSizes of(const ModelPlan& plan, std::int64_t draft_tokens);
};

/// Bytes of HiddenRows in rows of `width` values.
std::int64_t hidden_row_bytes(const HiddenRowSizes& sizes, std::int64_t width, DType dtype);

class HiddenRows {
 public:
  /// In the type of the backend's activations. Errors: no memory.
  static Result<HiddenRows> create(Backend& backend, std::int64_t width,
                                   const HiddenRowSizes& sizes);

  const HiddenRowSizes& sizes() const { return sizes_; }
  RowsView all() const { return constant(view_); }
  /// Where a step's rows go, and the rows with logits of a draft pass.
  MutableRowsView step(std::int64_t rows) const;
  MutableRowsView drafts(std::int64_t rows) const;
  std::int32_t step_place(std::int64_t row) const { return static_cast<std::int32_t>(row); }
  std::int32_t draft_place(std::int64_t row) const {
    return static_cast<std::int32_t>(sizes_.rows() - sizes_.drafts + row);
  }

  /// Copies the first `rows` rows of the step, at most sizes().kept, and returns the first's place.
  /// They stay while has() says so. One operator.
  std::int32_t keep(const OpsContext& ops, std::int64_t rows);
  /// How often keep() was called: the number of the next call.
  std::int64_t keeps() const { return keeps_; }
  /// Whether what a call has kept is there, even if one more comes.
  bool has(std::int64_t keep) const { return keeps_ - keep < HiddenRowSizes::kKeptSteps; }

 private:
  HiddenRows(const HiddenRowSizes& sizes, OwnedBytes bytes)
      : sizes_(sizes), bytes_(std::move(bytes)) {}

  HiddenRowSizes sizes_;
  OwnedBytes bytes_;
  MutableRowsView view_;
  std::vector<std::int32_t> numbers_;   // [kept] 0, 1, ...
  std::span<const std::int32_t> list_;  // the same, in the backend's memory
  std::vector<OwnedBytes> owned_;
  std::int64_t keeps_ = 0;
};

}  // namespace lathe
