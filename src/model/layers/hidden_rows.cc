#include "model/layers/hidden_rows.h"

#include <algorithm>
#include <numeric>

#include "attn/draft_rows.h"
#include "base/check.h"
#include "base/dtype.h"
#include "ops/elementwise.h"

namespace lathe {
namespace {

// Most running requests while some have drafts.
constexpr std::int64_t kDrafting = 63;
static_assert(drafts_at(kDrafting) > 0 && drafts_at(kDrafting + 1) == 0);

std::int64_t choice_bytes(const HiddenRowSizes& sizes) {
  return sizes.drafts * sizes.choice * static_cast<std::int64_t>(sizeof(std::int32_t));
}

std::int64_t stride(std::int64_t width, DType dtype) {
  return (bytes_of(dtype, width) + 63) / 64 * 64;
}

}  // namespace

HiddenRowSizes HiddenRowSizes::of(const ModelPlan& plan, std::int64_t draft_tokens,
                                  std::int64_t choice) {
  const std::int64_t requests = plan.max_requests();
  const std::int64_t decoding = recorded_verify_rows(requests, draft_tokens);
  return {.step = plan.max_rows() + decoding,
          .kept = decoding_rows(std::min(requests, kDrafting), draft_tokens),
          .drafts = decoding,
          .choice = choice};
}

std::int64_t hidden_row_bytes(const HiddenRowSizes& sizes, std::int64_t width, DType dtype) {
  return sizes.rows() * stride(width, dtype) + choice_bytes(sizes);
}

Result<HiddenRows> HiddenRows::create(Backend& backend, std::int64_t width,
                                      const HiddenRowSizes& sizes) {
  const DType dtype = backend.activations();
  auto bytes = backend.memory().allocate(sizes.rows() * stride(width, dtype));
  if (!bytes) return bytes.error();
  HiddenRows out(sizes, std::move(*bytes));
  out.view_ = {out.bytes_.get(), dtype, sizes.rows(), width,
               stride(width, dtype) * 8 / bits_of(dtype)};
  if (sizes.choice > 0) {
    auto choices = backend.memory().allocate(choice_bytes(sizes));
    if (!choices) return choices.error();
    out.choices_ = std::move(*choices);
  }
  out.numbers_.resize(static_cast<std::size_t>(sizes.kept));
  std::iota(out.numbers_.begin(), out.numbers_.end(), 0);
  auto list = backend.prepare(std::span<const std::int32_t>(out.numbers_), out.owned_);
  if (!list) return list.error();
  out.list_ = *list;
  return out;
}

MutableRowsView HiddenRows::step(std::int64_t rows) const {
  LATHE_CHECK(rows <= sizes_.step, "more rows than a planned step has");
  return rows_at(view_, 0, rows);
}

MutableRowsView HiddenRows::drafts(std::int64_t rows) const {
  LATHE_CHECK(rows <= sizes_.drafts, "more rows than a planned draft pass has");
  return rows_at(view_, draft_place(0), rows);
}

std::int32_t HiddenRows::keep(const OpsContext& ops, std::int64_t rows) {
  LATHE_CHECK(rows <= sizes_.kept, "more rows than are kept of a step");
  const std::int64_t first = sizes_.step + keeps_++ % HiddenRowSizes::kKeptSteps * sizes_.kept;
  gather_rows(ops, all(), list_.first(static_cast<std::size_t>(rows)), rows_at(view_, first, rows));
  return static_cast<std::int32_t>(first);
}

}  // namespace lathe
