#include "kernels/cuda/runtime/random_weights.h"

#include "base/integers.h"
#include "kernels/cuda/common/memory.h"
#include "kernels/cuda/runtime/upload.h"
#include "kernels/cuda/sm90/matmul/pack/pack_weights.h"
#include "kernels/cuda/sm90/matmul/pack/packed_weights.h"
#include "kernels/cuda/sm90/random/fill_random.h"

namespace lathe::cuda {
namespace {

// An array of `count` equal values on the device.
template <class T>
Result<const T*> repeated(T value, std::int64_t count, UploadRing& ring, const Stream& stream,
                          WeightMemory& memory) {
  const std::vector<T> values(static_cast<std::size_t>(count), value);
  const auto there = upload_bytes(std::as_bytes(std::span(values)), ring, stream, memory);
  if (!there) return there.error();
  if (auto ok = ring.flush(stream); !ok) return ok.error();
  return reinterpret_cast<const T*>(*there);
}

// The value of each group of w's matrices, on the device; places without a group have 0.
template <class T>
Result<const T*> of_groups(T value, const RandomWeights& w, UploadRing& ring, const Stream& stream,
                           WeightMemory& memory) {
  const PackedGroups places = packed_groups(w.rows, w.cols, w.group);
  std::vector<T> one(static_cast<std::size_t>(places.count()));
  for (std::int64_t r = 0; r < w.rows; ++r) {
    for (std::int64_t g = 0; g < w.cols / w.group; ++g) {
      one[static_cast<std::size_t>(places.at(r, g))] = value;
    }
  }
  std::vector<T> all;
  all.reserve(one.size() * w.seeds.size());
  for (std::size_t i = 0; i < w.seeds.size(); ++i) all.insert(all.end(), one.begin(), one.end());
  const auto there = upload_bytes(std::as_bytes(std::span(all)), ring, stream, memory);
  if (!there) return there.error();
  if (auto ok = ring.flush(stream); !ok) return ok.error();
  return reinterpret_cast<const T*>(*there);
}

// Packs the codes of weights of 4 bits, and adds their scales.
Result<void> add_groups(const RandomWeights& of, WeightStack& stack, UploadRing& ring,
                        const Stream& stream, WeightMemory& memory) {
  RandomWeights w = of;
  const bool u4 = w.dtype == DType::u4, mx = !u4 && w.group == 0;
  if (mx) w.group = kMxBlock;
  const std::int64_t count = stack.count(), each = packed_groups(w.rows, w.cols, w.group).count();
  const PackCodes pack{const_cast<std::byte*>(stack.data[0]),
                       count * w.rows * w.cols / kPackedColumns, u4};
  if (auto ok = call_result(launch_pack_codes(pack, stream), "pack_codes"); !ok) return ok;
  const std::byte* scales = nullptr;
  const float* factors = nullptr;
  const std::uint8_t* zeros = nullptr;
  if (u4) {
    const auto made = of_groups(random_u4_scale(w.all_cols()), w, ring, stream, memory);
    if (!made) return made.error();
    scales = reinterpret_cast<const std::byte*>(*made);
  } else if (mx) {
    const auto made = of_groups(random_e2m1_scale(w.all_cols()), w, ring, stream, memory);
    if (!made) return made.error();
    scales = reinterpret_cast<const std::byte*>(*made);
  } else {
    const auto made = of_groups(to_e4m3(1.f), w, ring, stream, memory);
    if (!made) return made.error();
    scales = reinterpret_cast<const std::byte*>(*made);
    const auto factor = repeated(random_nvfp4_factor(w.all_cols()), count, ring, stream, memory);
    if (!factor) return factor.error();
    factors = *factor;
  }
  if (w.zeros) {
    const auto made = of_groups(kU4Zero, w, ring, stream, memory);
    if (!made) return made.error();
    zeros = *made;
  }
  const DType dtype = u4 ? DType::bf16 : mx ? DType::ue8m0 : DType::e4m3;
  for (std::int64_t i = 0; i < count; ++i) {
    WeightView view = stack.at(i);
    view.scales = factors == nullptr ? nullptr : factors + i;
    view.groups = {scales + bytes_of(dtype, i * each), dtype, w.group,
                   zeros == nullptr ? nullptr : zeros + i * each};
    stack.set(i, view);
  }
  return {};
}

}  // namespace

Result<WeightStack> random_weights(const RandomWeights& w, UploadRing& ring, const Stream& stream,
                                   WeightMemory& memory) {
  const std::int64_t count = std::ssize(w.seeds);
  const std::int64_t elements = w.rows * w.cols, bytes = bytes_of(w.dtype, elements);
  const auto taken = memory.take(count * bytes);
  if (!taken) return taken.error();
  std::byte* const data = *taken;
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
        repeated(random_e4m3_scale(w.all_cols()), count * scales, ring, stream, memory);
    if (!made) return made.error();
    factors = *made;
  }
  WeightStack out = WeightStack::of(count, w.dtype, w.rows, w.cols);
  for (std::int64_t i = 0; i < count; ++i) {
    out.set(i, {data + i * bytes, w.dtype, w.rows, w.cols,
                factors == nullptr ? nullptr : factors + i * scales});
  }
  if (w.group == 0 && w.dtype != DType::e2m1) return out;
  if (auto ok = add_groups(w, out, ring, stream, memory); !ok) return ok.error();
  return out;
}

}  // namespace lathe::cuda
