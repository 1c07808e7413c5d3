#include "kernels/cuda/runtime/upload.h"

#include "kernels/cuda/common/memory.h"

namespace lathe::cuda {
namespace {

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
  const WeightView first = weights.at(0);
  const std::int64_t bytes = bytes_of(weights.dtype, weights.rows * weights.cols);
  const std::int64_t scales = first.scale_count();
  const std::int64_t mx_scales = weights.rows * weights.cols / kMxBlock;
  const std::int64_t groups =
      first.groups.size == 0 ? 0 : weights.rows * (weights.cols / first.groups.size);
  const std::int64_t group_bytes = bytes_of(first.groups.dtype, groups);
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
  const auto of_groups = uploads.array<std::byte>(
      group_bytes, [&](std::int64_t i) { return weights.at(i).groups.data; });
  if (!of_groups) return of_groups.error();
  const auto zeros = uploads.array<std::uint8_t>(
      groups, [&](std::int64_t i) { return weights.at(i).groups.zeros; });
  if (!zeros) return zeros.error();
  const auto columns = uploads.array<std::int32_t>(
      weights.cols, [&](std::int64_t i) { return weights.at(i).columns; });
  if (!columns) return columns.error();
  const auto place = [](auto* base, std::int64_t at) { return base == nullptr ? base : base + at; };
  for (std::int64_t i = 0; i < weights.count(); ++i) {
    WeightView w = first;
    w.data = place(*data, i * bytes);
    w.scales = place(*factors, i * scales);
    w.mx_scales = place(*exponents, i * mx_scales);
    w.groups.data = place(*of_groups, i * group_bytes);
    w.groups.zeros = place(*zeros, i * groups);
    w.columns = place(*columns, i * weights.cols);
    out.set(i, w);
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
