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
  constexpr std::int64_t kBlock = std::int64_t{1} << 20;
  const std::int64_t n = w.rows * w.cols;
  std::vector<std::byte> block(
      static_cast<std::size_t>(source == nullptr ? 0 : std::min(n, kBlock)));
  for (std::int64_t at = 0; at < n; at += kBlock) {
    std::span codes(w.data + at, static_cast<std::size_t>(std::min(kBlock, n - at)));
    if (source != nullptr) {
      const std::span to = std::span(block).first(codes.size());
      if (auto ok = source->copy(codes.data(), to); !ok) return ok.error();
      codes = to;
    }
    const auto nan = [](std::byte b) { return (b & std::byte{0x7f}) == std::byte{0x7f}; };
    if (std::ranges::count_if(codes, nan) == 0) continue;  // which compilers vectorise
    const std::int64_t i = at + (std::ranges::find_if(codes, nan) - codes.begin());
    return bad_value(tensor, "numbers",
                     fmt::format("NaN codes, the first at [{}, {}]", part.rows.first + i / w.cols,
                                 part.cols.first + i % w.cols));
  }
  return std::nullopt;
}

}  // namespace lathe
