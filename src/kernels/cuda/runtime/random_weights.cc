#include "kernels/cuda/runtime/random_weights.h"

#include "base/integers.h"
#include "kernels/cuda/common/memory.h"
#include "kernels/cuda/runtime/upload.h"
#include "kernels/cuda/sm90/random/fill_random.h"

namespace lathe::cuda {
namespace {

// An array of `count` equal values on the device.
template <class T>
Result<const T*> repeated(T value, std::int64_t count, UploadRing& ring, const Stream& stream,
                          std::vector<OwnedBytes>& owned) {
  const std::vector<T> values(static_cast<std::size_t>(count), value);
  const auto there = upload_bytes(std::as_bytes(std::span(values)), ring, stream, owned);
  if (!there) return there.error();
  return reinterpret_cast<const T*>(*there);
}

}  // namespace

Result<WeightStack> random_weights(const RandomWeights& w, UploadRing& ring, const Stream& stream,
                                   std::vector<OwnedBytes>& owned) {
  const std::int64_t count = std::ssize(w.seeds);
  const std::int64_t elements = w.rows * w.cols, bytes = bytes_of(w.dtype, elements);
  auto memory = allocate_device_bytes(count * bytes);
  if (!memory) return memory.error();
  std::byte* data = memory->get();
  owned.push_back(std::move(*memory));
  for (std::int64_t i = 0; i < count; ++i) {
    const FillRandomParams fill{.to = data + i * bytes,
                                .dtype = w.dtype,
                                .count = elements,
                                .first = w.first_of(i),
                                .cols = w.cols,
                                .stride = w.all_cols(),
                                .seed = w.seeds[static_cast<std::size_t>(i)],
                                .reach = random_reach(w.all_cols())};
    if (auto ok = call_result(launch_fill_random(fill, stream), "fill_random"); !ok) {
      return ok.error();
    }
  }
  const std::int64_t scales = ceil_div(w.rows, kWeightBlock) * ceil_div(w.cols, kWeightBlock);
  const float* factors = nullptr;
  if (w.dtype == DType::e4m3) {
    const auto made =
        repeated(random_e4m3_scale(w.all_cols()), count * scales, ring, stream, owned);
    if (!made) return made.error();
    factors = *made;
  }
  const std::int64_t mx_scales = elements / kMxBlock;
  const ue8m0* exponents = nullptr;
  if (w.dtype == DType::e2m1) {
    const auto made =
        repeated(random_e2m1_scale(w.all_cols()), count * mx_scales, ring, stream, owned);
    if (!made) return made.error();
    exponents = *made;
  }
  WeightStack out = WeightStack::of(count, w.dtype, w.rows, w.cols);
  for (std::int64_t i = 0; i < count; ++i) {
    out.set(i, {data + i * bytes, w.dtype, w.rows, w.cols,
                factors == nullptr ? nullptr : factors + i * scales,
                exponents == nullptr ? nullptr : exponents + i * mx_scales});
  }
  return out;
}

}  // namespace lathe::cuda
