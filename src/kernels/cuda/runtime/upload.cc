#include "kernels/cuda/runtime/upload.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "kernels/cuda/common/cuda_error.h"
#include "kernels/cuda/common/memory.h"
#include "kernels/cuda/sm90/matmul/pack/pack_weights.h"
#include "kernels/cuda/sm90/matmul/pack/packed_weights.h"

namespace lathe::cuda {
namespace {

// Uploads arrays of `count_` weights each, one weight after the other.
class Uploads {
 public:
  Uploads(std::int64_t count, UploadRing& ring, const Stream& stream, WeightMemory& memory)
      : count_(count), ring_(ring), stream_(stream), memory_(memory) {}

  /// source(i): the `each` elements of weight i on the host. A null source(0) means that no weight
  /// has this array.
  template <class T, class Source>
  Result<const T*> array(std::int64_t each, const Source& source) {
    if (count_ == 0 || each == 0 || source(0) == nullptr) return static_cast<const T*>(nullptr);
    const auto bytes = memory_.take(count_ * each * static_cast<std::int64_t>(sizeof(T)));
    if (!bytes) return bytes.error();
    auto* to = reinterpret_cast<T*>(*bytes);
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
  WeightMemory& memory_;
};

// MXFP4 is packed by its scales of groups, so they are put there. Errors: a scale too large for the
// GEMMs (Mxfp4Row).
Result<WeightStack> with_groups(const WeightStack& weights) {
  WeightStack out = weights;
  for (std::int64_t i = 0; i < weights.count(); ++i) {
    WeightView w = weights.at(i);
    if (w.mx_scales == nullptr) return weights;
    const std::span scales(w.mx_scales, static_cast<std::size_t>(w.rows * w.cols / kMxBlock));
    std::uint8_t most = 0;
    for (const ue8m0 scale : scales) most = std::max(most, scale.bits);
    if (most > kMxfp4MostScale) {
      return Error{ErrorCode::unsupported, "MXFP4 scales", "at most 2^41 on a GPU",
                   fmt::format("2^{}", most - 127), "--device cpu"};
    }
    w.groups = {reinterpret_cast<const std::byte*>(w.mx_scales), DType::ue8m0, kMxBlock, nullptr};
    w.mx_scales = nullptr;
    out.set(i, w);
  }
  return out;
}

// Packed scales and zeros of a stack, one weight after the other.
struct UploadedGroups {
  const std::byte* scales = nullptr;
  const std::uint8_t* zeros = nullptr;
  std::int64_t each = 0;  // elements of a weight
};

// Uploads an array of the groups and packs it. bytes: of an element.
Result<std::byte*> upload_packed(const WeightStack& weights, std::int32_t bytes,
                                 const std::function<const std::byte*(std::int64_t)>& source,
                                 UploadRing& ring, const Stream& stream, WeightMemory& memory) {
  const std::int32_t size = weights.groups[0].size;
  const std::int64_t groups = weights.cols / size;
  std::vector<OwnedBytes> before;
  WeightMemory temporary(before);
  Uploads uploads(weights.count(), ring, stream, temporary);
  const auto from = uploads.array<std::byte>(weights.rows * groups * bytes, source);
  if (!from) return from.error();
  if (*from == nullptr) return static_cast<std::byte*>(nullptr);
  const std::int64_t each = packed_groups(weights.rows, weights.cols, size).count();
  const auto to = memory.take(weights.count() * each * bytes);
  if (!to) return to.error();
  if (auto ok = ring.flush(stream); !ok) return ok.error();
  const PackScales pack{.from = *from,
                        .to = *to,
                        .weights = weights.count(),
                        .rows = weights.rows,
                        .groups = groups,
                        .cols = weights.cols,
                        .size = size,
                        .bytes = bytes};
  if (auto ok = call_result(launch_pack_scales(pack, stream), "pack_scales"); !ok) {
    return ok.error();
  }
  // The array in the checkpoint's order is freed on return.
  if (auto ok = stream.wait(); !ok) return ok.error();
  return *to;
}

Result<UploadedGroups> upload_groups(const WeightStack& weights, UploadRing& ring,
                                     const Stream& stream, WeightMemory& memory) {
  const WeightView first = weights.at(0);
  if (!is_packed(first)) return UploadedGroups{};
  const auto scales = upload_packed(
      weights, bits_of(first.groups.dtype) / 8,
      [&](std::int64_t i) { return weights.at(i).groups.data; }, ring, stream, memory);
  if (!scales) return scales.error();
  const auto zeros = upload_packed(
      weights, 1,
      [&](std::int64_t i) {
        return reinterpret_cast<const std::byte*>(weights.at(i).groups.zeros);
      },
      ring, stream, memory);
  if (!zeros) return zeros.error();
  return UploadedGroups{*scales, reinterpret_cast<const std::uint8_t*>(*zeros),
                        packed_groups(weights.rows, weights.cols, first.groups.size).count()};
}

// data: on the device, `count` weights like w.
Result<void> pack_codes(const WeightView& w, const std::byte* data, std::int64_t count,
                        UploadRing& ring, const Stream& stream) {
  if (!is_packed(w)) return {};
  if (auto ok = ring.flush(stream); !ok) return ok;
  const PackCodes pack{.data = const_cast<std::byte*>(data),
                       .units = count * w.rows * w.cols / kPackedColumns,
                       .u4 = w.dtype == DType::u4};
  return call_result(launch_pack_codes(pack, stream), "pack_codes");
}

}  // namespace

Result<std::byte*> upload_bytes(std::span<const std::byte> host, UploadRing& ring,
                                const Stream& stream, WeightMemory& memory) {
  Uploads uploads(1, ring, stream, memory);
  const auto at =
      uploads.array<std::byte>(std::ssize(host), [&](std::int64_t) { return host.data(); });
  if (!at) return at.error();
  return const_cast<std::byte*>(*at);
}

Result<WeightStack> upload_weights(const WeightStack& host, UploadRing& ring, const Stream& stream,
                                   WeightMemory& memory) {
  const auto grouped = with_groups(host);
  if (!grouped) return grouped.error();
  const WeightStack& weights = *grouped;
  WeightStack out = weights;
  if (weights.count() == 0) return out;
  const WeightView first = weights.at(0);
  const std::int64_t bytes = bytes_of(weights.dtype, weights.rows * weights.cols);
  const std::int64_t scales = first.scale_count();
  Uploads uploads(weights.count(), ring, stream, memory);
  const auto data =
      uploads.array<std::byte>(bytes, [&](std::int64_t i) { return weights.at(i).data; });
  if (!data) return data.error();
  const auto factors =
      uploads.array<float>(scales, [&](std::int64_t i) { return weights.at(i).scales; });
  if (!factors) return factors.error();
  auto groups = upload_groups(weights, ring, stream, memory);
  if (!groups) return groups.error();
  if (auto ok = pack_codes(first, *data, weights.count(), ring, stream); !ok) return ok.error();
  const auto columns = uploads.array<std::int32_t>(
      weights.cols, [&](std::int64_t i) { return weights.at(i).columns; });
  if (!columns) return columns.error();
  const auto place = [](auto* base, std::int64_t at) { return base == nullptr ? base : base + at; };
  for (std::int64_t i = 0; i < weights.count(); ++i) {
    WeightView w = first;
    w.data = place(*data, i * bytes);
    w.scales = place(*factors, i * scales);
    w.groups.data = place(groups->scales, i * bytes_of(first.groups.dtype, groups->each));
    w.groups.zeros = place(groups->zeros, i * groups->each);
    w.columns = place(*columns, i * weights.cols);
    out.set(i, w);
  }
  return out;
}

Result<WeightView> upload_weight(const WeightView& weight, UploadRing& ring, const Stream& stream,
                                 WeightMemory& memory) {
  if (weight.data == nullptr) return weight;
  WeightStack one = WeightStack::of(1, weight.dtype, weight.rows, weight.cols);
  one.set(0, weight);
  const auto there = upload_weights(one, ring, stream, memory);
  if (!there) return there.error();
  return there->at(0);
}

}  // namespace lathe::cuda
