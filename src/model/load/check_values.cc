#include "model/load/check_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/float_formats.h"
#include "model/config/quantization.h"

namespace lathe {
namespace {

constexpr float kScaleLimit = 0x1p119f;

// "[3, 1]" of element i.
std::string place_of(std::span<const std::int64_t> shape, std::int64_t i) {
  std::string out;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    out = fmt::format("{}{}{}", i % shape[axis], out.empty() ? "" : ", ", out);
    i /= shape[axis];
  }
  return "[" + out + "]";
}

bool exponents(SafetensorsDType t) {
  return t == SafetensorsDType::F8_E8M0 || t == SafetensorsDType::U8;
}

// The first block of up to 1 MiB of `bytes` with a value that `is_wild`, as Value; its index, or -1
// if there is none. source: copies the bytes; null: they are read at their address.
template <class Value, class Wild>
Result<std::int64_t> find_value(std::span<const std::byte> bytes, const WeightSource* source,
                                const Wild& is_wild) {
  constexpr std::size_t kBlock = std::size_t{1} << 20;
  std::vector<Value> block(std::min(bytes.size(), kBlock) / sizeof(Value));
  for (std::size_t at = 0; at < bytes.size(); at += kBlock) {
    const std::size_t size = std::min(kBlock, bytes.size() - at);
    const auto to = std::as_writable_bytes(std::span(block)).first(size);
    if (source == nullptr) {
      std::memcpy(to.data(), bytes.data() + at, size);
    } else if (auto ok = source->copy(bytes.data() + at, to); !ok) {
      return ok.error();
    }
    const std::span values = std::span(block).first(size / sizeof(Value));
    if (std::ranges::count_if(values, is_wild) == 0) continue;  // which compilers vectorise
    return static_cast<std::int64_t>(at / sizeof(Value)) +
           (std::ranges::find_if(values, is_wild) - values.begin());
  }
  return -1;
}

Error bad_value(std::string tensor, std::string wanted, std::string offered) {
  return {ErrorCode::malformed, std::move(tensor), std::move(wanted), std::move(offered),
          "formats of weights: " + weight_formats_text()};
}

}  // namespace

float float_at(const CheckpointTensor& t, std::int64_t i) {
  const auto size = static_cast<std::size_t>(bits_of(t.dtype) / 8);
  const std::byte* at = t.bytes.data() + static_cast<std::size_t>(i) * size;
  if (exponents(t.dtype)) {
    return to_f32(ue8m0{std::to_integer<std::uint8_t>(*at)});
  }
  if (t.dtype == SafetensorsDType::F8_E4M3) {
    return to_f32(e4m3{std::to_integer<std::uint8_t>(*at)});
  }
  if (t.dtype == SafetensorsDType::F32) {
    float v;
    std::memcpy(&v, at, size);
    return v;
  }
  std::uint16_t bits;
  std::memcpy(&bits, at, size);
  return t.dtype == SafetensorsDType::BF16 ? to_f32(bf16{bits}) : to_f32(f16{bits});
}

std::optional<Error> wild_scale(const CheckpointTensor& scales, ScaleSign sign, bool inverse) {
  const auto size = static_cast<std::size_t>(bits_of(scales.dtype) / 8);
  const auto count = static_cast<std::int64_t>(scales.bytes.size() / size);
  if (exponents(scales.dtype) && !inverse) {
    // 2^119 and above, and NaN, are the codes from 246 on.
    const auto wild = [](std::byte b) { return b >= std::byte{246}; };
    if (std::ranges::count_if(scales.bytes, wild) == 0) return std::nullopt;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = float_at(scales, i);
    const float v = inverse ? 1 / value : value;
    const bool signed_right =
        sign == ScaleSign::any || v > 0 || (sign == ScaleSign::not_negative && v == 0);
    if (std::fabs(v) < kScaleLimit && signed_right) continue;
    constexpr std::string_view kSigns[] = {"", " that are not negative", " above 0"};
    return bad_value(
        scales.name,
        fmt::format("{}{}", inverse ? "factors whose inverse is below 2^119" : "scales below 2^119",
                    kSigns[static_cast<std::size_t>(sign)]),
        fmt::format("{} at {}", value, place_of(scales.shape, i)));
  }
  return std::nullopt;
}

std::optional<Error> nan_code(const WeightView& w, const std::string& tensor,
                              const TensorPart& part, const WeightSource* source) {
  const std::span codes(w.data, static_cast<std::size_t>(w.rows * w.cols));
  const auto found = find_value<std::uint8_t>(
      codes, source, [](std::uint8_t code) { return (code & 0x7f) == 0x7f; });
  if (!found) return found.error();
  if (*found < 0) return std::nullopt;
  return bad_value(
      tensor, "numbers",
      fmt::format("NaN codes, the first at [{}, {}]", part.rows.first + *found / w.cols,
                  part.cols.first + *found % w.cols));
}

std::optional<Error> nan_value(const CheckpointTensor& t, const WeightSource* source) {
  const auto found =
      t.dtype == SafetensorsDType::F32
          ? find_value<std::uint32_t>(t.bytes, source,
                                      [](std::uint32_t v) { return (v << 1) > 0xff000000u; })
          : find_value<std::uint16_t>(
                t.bytes, source,
                [least = t.dtype == SafetensorsDType::BF16 ? 0xff00u : 0xf800u](std::uint16_t v) {
                  return (static_cast<unsigned>(v) << 1 & 0xffffu) > least;
                });
  if (!found) return found.error();
  if (*found < 0) return std::nullopt;
  return Error{ErrorCode::malformed, t.name, "numbers", "NaN at " + place_of(t.shape, *found),
               "download or convert the checkpoint again"};
}

}  // namespace lathe
