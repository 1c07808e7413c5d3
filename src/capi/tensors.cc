#include "capi/tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>

#include "capi/handles.h"
#include "capi/status.h"

// The offsets of DLPack's DLTensor on 64-bit machines: callers may cast one.
static_assert(offsetof(lathe_tensor, device_type) == 8 && offsetof(lathe_tensor, ndim) == 16 &&
              offsetof(lathe_tensor, dtype_code) == 20 &&
              offsetof(lathe_tensor, dtype_bits) == 21 &&
              offsetof(lathe_tensor, dtype_lanes) == 22 && offsetof(lathe_tensor, shape) == 24 &&
              offsetof(lathe_tensor, strides) == 32 && offsetof(lathe_tensor, byte_offset) == 40 &&
              sizeof(lathe_tensor) == 48);

namespace lathe::capi {
namespace {

constexpr std::int32_t kCpu = 1;       // kDLCPU
constexpr std::int32_t kCuda = 2;      // kDLCUDA
constexpr std::int32_t kCudaHost = 3;  // kDLCUDAHost

std::string device_text(const lathe_tensor& t) {
  if (t.device_type == kCuda) return fmt::format("one on cuda:{}", t.device_id);
  if (t.device_type == kCpu) return "one in host memory";
  return fmt::format("one of DLPack device type {}", t.device_type);
}

// A non-null address for tensors without data (Place::shapes_only).
alignas(256) std::byte no_bytes[1];

}  // namespace

Place place_of(const lathe_tensor* tensor) {
  const bool on_gpu = tensor != nullptr && tensor->device_type == kCuda;
  return on_gpu ? Place{tensor->device_id} : Place{};
}

Result<void> Tensor::take(const lathe_tensor* tensor, std::string argument, Place place) {
  if (auto ok = need(tensor, argument.c_str()); !ok) return ok;
  const lathe_tensor& t = *tensor;
  const auto wrong = [&](std::string wanted, std::string offered) {
    return Error{ErrorCode::invalid_argument, argument, std::move(wanted), std::move(offered), ""};
  };
  if (place.on_gpu()) {
    if (t.device_type != kCuda || t.device_id != place.gpu) {
      return wrong(fmt::format("a tensor on cuda:{} (device_type 2), as q", place.gpu),
                   device_text(t));
    }
  } else if (t.device_type != kCpu && t.device_type != kCudaHost) {
    return Error{t.device_type == kCuda ? ErrorCode::unsupported : ErrorCode::invalid_argument,
                 argument, "a tensor in host memory (device_type 1)", device_text(t),
                 t.device_type == kCuda ? "lathe_attend() takes tensors of a GPU" : ""};
  }
  if (t.ndim < 1 || t.ndim > kMostAxes) {
    return wrong(fmt::format("1 to {} axes", kMostAxes), fmt::format("{}", t.ndim));
  }
  if (t.shape == nullptr) return wrong("a shape", "NULL");
  const auto axes = static_cast<std::size_t>(t.ndim);
  // Reject shapes with byte counts that would overflow int64 in the products below.
  std::int64_t elements = 1;
  for (std::size_t d = axes; d-- > 0;) {
    const std::int64_t n = t.shape[d];
    dense_[d] = elements;
    if (n < 0 || (n > 0 && elements > (std::int64_t{1} << 56) / n)) {
      return wrong("axes of 0 or more whose elements int64 can count",
                   fmt::format("{} on axis {}", n, d));
    }
    elements *= std::max<std::int64_t>(n, 1);
  }
  const bool empty = std::any_of(t.shape, t.shape + axes, [](std::int64_t n) { return n == 0; });
  const bool none = t.data == nullptr;
  if (none && !empty && !place.shapes_only) return wrong("data", "NULL");
  ref_ = {std::move(argument),
          !none               ? static_cast<std::byte*>(t.data) + t.byte_offset
          : place.shapes_only ? no_bytes
                              : nullptr,
          {t.dtype_code, t.dtype_bits, t.dtype_lanes},
          {t.shape, axes},
          t.strides != nullptr ? std::span<const std::int64_t>(t.strides, axes)
                               : std::span<const std::int64_t>(dense_.data(), axes)};
  return {};
}

Result<std::int32_t> page_size_of(std::int64_t page_size, const std::string& argument) {
  // A number beyond int32 is clamped; check_page_size() rejects the clamped one too.
  const auto narrow = static_cast<std::int32_t>(
      std::clamp<std::int64_t>(page_size, std::numeric_limits<std::int32_t>::min(),
                               std::numeric_limits<std::int32_t>::max()));
  if (const auto ok = check_page_size(narrow); !ok) {
    Error error = ok.error();
    error.field = argument;
    return error;
  }
  return narrow;
}

Result<void> PoolRef::take(const lathe_pool_view* pool, const std::string& prefix, Place place) {
  const auto fields = read_struct(pool, prefix.c_str());
  if (!fields) return fields.error();
  if (auto ok = need(fields->layout, (prefix + ".layout").c_str()); !ok) return ok;
  const auto page_size =
      page_size_of(fields->page_size == 0 ? 64 : fields->page_size, prefix + ".page_size");
  if (!page_size) return page_size.error();
  if (auto ok = pages.take(fields->pages, prefix + ".pages", place); !ok) return ok;
  const auto made = pool_view(pages.ref(), fields->layout->value, *page_size);
  if (!made) return made.error();
  view = *made;
  if (fields->key_scale != 0) scales.key = fields->key_scale;
  if (fields->value_scale != 0) scales.value = fields->value_scale;
  return {};
}

}  // namespace lathe::capi
