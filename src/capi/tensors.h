// Checks callers' tensors and pools and converts them to the library's views.
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

/// Where a call's tensors must be.
struct Place {
  static constexpr std::int32_t kHost = -1;
  std::int32_t gpu = kHost;  // the ordinal of a GPU
  bool shapes_only = false;  // data may be NULL

  bool on_gpu() const { return gpu != kHost; }
};

/// Where a tensor is; NULL counts as the host.
Place place_of(const lathe_tensor* tensor);

/// A checked tensor. Not movable, since `ref` points into it.
class Tensor {
 public:
  Tensor() = default;
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  /// Errors: NULL, memory in another place, an invalid rank or shape, no data.
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

/// Checks a caller's page size. Errors: check_page_size()'s.
Result<std::int32_t> page_size_of(std::int64_t page_size, const std::string& argument);

}  // namespace lathe::capi
