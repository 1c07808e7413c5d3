// Tensors and pools of callers as the library's views.
#pragma once

#include <lathe/lathe.h>

#include <array>
#include <optional>
#include <string>

#include "base/result.h"
#include "layout/array_ref.h"
#include "layout/codec.h"
#include "layout/pool_view.h"

namespace lathe::capi {

inline constexpr int kMostAxes = 8;

/// A checked tensor; `ref` looks into it, so it stays where it is.
class Tensor {
 public:
  Tensor() = default;
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  /// Errors: NULL, memory of a GPU, axes or sizes that are none, no data.
  Result<void> take(const lathe_tensor* tensor, std::string argument);
  const ArrayRef& ref() const { return ref_; }

 private:
  ArrayRef ref_;
  std::array<std::int64_t, kMostAxes> dense_{};
};

/// A checked pool.
struct PoolRef {
  Tensor pages;
  std::optional<PoolView> view;
  TensorScales scales;

  /// `prefix` names it in errors: "pool".
  Result<void> take(const lathe_pool_view* pool, const std::string& prefix);
};

/// A page size of a caller. Errors: check_page_size()'s.
Result<std::int32_t> page_size_of(std::int64_t page_size, const std::string& argument);

}  // namespace lathe::capi
