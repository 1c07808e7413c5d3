#include "kernels/cuda/runtime/upload.h"

#include "kernels/cuda/common/memory.h"

namespace lathe::cuda {
namespace {

std::int64_t blocks(std::int64_t n) { return (n + kWeightBlock - 1) / kWeightBlock; }

// Uploads arrays of `count_` weights each, one weight after the other.
class Uploads {
 public:
  Uploads(std::int64_t count, UploadRing& ring, const Stream& stream,
          std::vector<OwnedBytes>& owned)
      : count_(count), ring_(ring), stream_(stream), owned_(owned) {}

  /// source(i): the `each` elements of weight i on the host. A null source(0) means that no weight
  /// has this array.
  template <class T, class Source>
  Result<const T*> array(std::int64_t each, const Source& source) {
    if (count_ == 0 || each == 0 || source(0) == nullptr) return static_cast<const T*>(nullptr);
    auto bytes = allocate_device_bytes(count_ * each * static_cast<std::int64_t>(sizeof(T)));
    if (!bytes) return bytes.error();
    auto* to = reinterpret_cast<T*>(bytes->get());
    owned_.push_back(std::move(*bytes));
    std::vector<HostPiece> pieces;
    for (std::int64_t i = 0; i < count_; ++i) {
      const std::span from(source(i), static_cast<std::size_t>(each));
      pieces.push_back({std::as_bytes(from), reinterpret_cast<std::byte*>(to + i * each)});
    }
    if (auto ok = ring_.copy(pieces, stream_); !ok) return ok.error();
    return static_cast<const T*>(to);
  }

 private:
  std::int64_t count_;
  UploadRing& ring_;
  const Stream& stream_;
  std::vector<OwnedBytes>& owned_;
};

}  // namespace

Result<std::byte*> upload_bytes(std::span<const std::byte> host, UploadRing& ring,
                                const Stream& stream, std::vector<OwnedBytes>& owned) {
  Uploads uploads(1, ring, stream, owned);
  const auto at =
      uploads.array<std::byte>(std::ssize(host), [&](std::int64_t) { return host.data(); });
  if (!at) return at.error();
  return const_cast<std::byte*>(*at);
}

Result<WeightStack> upload_weights(const WeightStack& weights, UploadRing& ring,
                                   const Stream& stream, std::vector<OwnedBytes>& owned) {
  WeightStack out = weights;
  if (weights.count() == 0) return out;
  const std::int64_t bytes = bytes_of(weights.dtype, weights.rows * weights.cols);
  const std::int64_t scales = blocks(weights.rows) * blocks(weights.cols);
  const std::int64_t mx_scales = weights.rows * weights.cols / kMxBlock;
  Uploads uploads(weights.count(), ring, stream, owned);
  const auto data =
      uploads.array<std::byte>(bytes, [&](std::int64_t i) { return weights.at(i).data; });
  if (!data) return data.error();
  const auto factors =
      uploads.array<float>(scales, [&](std::int64_t i) { return weights.at(i).scales; });
  if (!factors) return factors.error();
  const auto exponents =
      uploads.array<ue8m0>(mx_scales, [&](std::int64_t i) { return weights.at(i).mx_scales; });
  if (!exponents) return exponents.error();
  for (std::int64_t i = 0; i < weights.count(); ++i) {
    out.set(i, {*data == nullptr ? nullptr : *data + i * bytes, weights.dtype, weights.rows,
                weights.cols, *factors == nullptr ? nullptr : *factors + i * scales,
                *exponents == nullptr ? nullptr : *exponents + i * mx_scales});
  }
  return out;
}

Result<WeightView> upload_weight(const WeightView& weight, UploadRing& ring, const Stream& stream,
                                 std::vector<OwnedBytes>& owned) {
  if (weight.data == nullptr) return weight;
  WeightStack one = WeightStack::of(1, weight.dtype, weight.rows, weight.cols);
  one.set(0, weight);
  const auto there = upload_weights(one, ring, stream, owned);
  if (!there) return there.error();
  return there->at(0);
}

}  // namespace lathe::cuda
