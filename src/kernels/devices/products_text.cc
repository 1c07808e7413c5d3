#include "kernels/devices/products_text.h"

#include "kernels/cpu/matmul/matmul_bf16.h"
#include "kernels/cpu/matmul/matmul_int8.h"

namespace lathe {
namespace {

std::string int8_text(bool fp8, bool bf16) {
  std::string out = "8-bit integers with int4";
  if (fp8) out += " and fp8";
  out += " weights";
  if (bf16) {
    out += ", bf16 with other 4-bit";
    out += fp8 ? " and bf16" : ", fp8 and bf16";
    out += " weights";
  }
  return out + ", f32 with others; f32 sums";
}

}  // namespace

std::string products_text(MatmulPrecision precision, bool fp8, bool bf16) {
  switch (precision) {
    case MatmulPrecision::f32:
      return "f32";
    case MatmulPrecision::bf16:
      return "bf16 with bf16, fp8 and 4-bit weights, f32 with others; f32 sums";
    case MatmulPrecision::fp8:
    case MatmulPrecision::fp8_pow2:
      return "e4m3 with fp8 weights, bf16 with bf16 and 4-bit weights, f32 with others; f32 sums";
    case MatmulPrecision::int8:
      return int8_text(fp8, bf16);
  }
  return "";
}

std::string products_text(MatmulPrecision precision) {
  return products_text(precision, is_int8_dot_weight(DType::e4m3), cpu_has_bf16_dot());
}

}  // namespace lathe
