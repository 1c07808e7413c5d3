#include "model/layers/non_finite_search.h"

#include <algorithm>
#include <vector>

#include "ops/elementwise.h"

namespace lathe {

NonFiniteSearch::NonFiniteSearch(const OpsContext& ops, std::int64_t rows, bool active)
    : ops_(ops), rows_(active ? rows : 0), first_(ops.tensors->take_array<std::int32_t>(rows_)) {
  if (!active) return;
  const Arena::Scope scope(*ops.control);
  const auto finite = ops.control->take_array<std::int32_t>(rows);
  std::fill_n(finite, rows, kFinite);
  uploaded_ = ops.backend->upload(ops, std::as_bytes(std::span(finite, count())),
                                  reinterpret_cast<std::byte*>(first_));
}

void NonFiniteSearch::look(const RowsView& x, std::span<const std::int32_t> rows,
                           std::int32_t layer) {
  if (rows_ > 0) find_non_finite(ops_, {x, rows, layer, {first_, count()}});
}

Result<ForwardResult> NonFiniteSearch::result() const {
  ForwardResult out;
  if (rows_ == 0) return out;
  if (!uploaded_) return uploaded_.error();
  std::vector<std::int32_t> first(count());
  auto ok = ops_.backend->download(ops_, reinterpret_cast<const std::byte*>(first_),
                                   std::as_writable_bytes(std::span(first)));
  if (!ok) return ok.error();
  for (std::int64_t row = 0; row < rows_; ++row) {
    const std::int32_t layer = first[static_cast<std::size_t>(row)];
    if (layer != kFinite) out.non_finite.push_back({row, layer});
  }
  return out;
}

}  // namespace lathe
