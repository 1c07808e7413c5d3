// Tensors and pools of callers as the library's views.
#pragma once

#include <lathe/lathe.h>

#include <array>
#include <optional>
#include <string>

#include "base/result.h"
#include "capi/array_ref.h"
#include "layout/codec/codec.h"
#include "layout/pages/pool_view.h"

namespace lathe::capi {

inline constexpr int kMostAxes = 8;

/// Where a call's tensors are to lie.
struct Place {
  static constexpr std::int32_t kHost = -1;
  std::int32_t gpu = kHost;  // the ordinal of a GPU
  bool shapes_only = false;  // NULL is an address

  bool on_gpu() const { return gpu != kHost; }
};

/// That of a tensor; NULL lies on the host.
Place place_of(const lathe_tensor* tensor);

/// A checked tensor; `ref` looks into it, so it stays where it is.
class Tensor {
 public:
  Tensor() = default;
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  /// Errors: NULL, memory elsewhere, axes or sizes that are none, no data.
  Result<void> take(const lathe_tensor* tensor, std::string argument, Place place = {});
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
  Result<void> take(const lathe_pool_view* pool, const std::string& prefix, Place place = {});
};

/// A page size of a caller. Errors: check_page_size()'s.
Result<std::int32_t> page_size_of(std::int64_t page_size, const std::string& argument);

}  // namespace lathe::capi
