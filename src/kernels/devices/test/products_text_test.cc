#include "kernels/devices/products_text.h"

#include <gtest/gtest.h>

namespace lathe {
namespace {

// Each CPU's line says what its products are; fp8 weights without AVX512_VBMI have no integers.
TEST(ProductsText, Int8SaysWhatTheCpuDoes) {
  const auto text = [](bool fp8, bool bf16) {
    return products_text(MatmulPrecision::int8, fp8, bf16);
  };
  EXPECT_EQ(text(true, true),
            "8-bit integers with int4 and fp8 weights, bf16 with other 4-bit and bf16 weights, f32 "
            "with others; f32 sums");
  EXPECT_EQ(text(true, false),
            "8-bit integers with int4 and fp8 weights, f32 with others; f32 sums");
  EXPECT_EQ(text(false, true),
            "8-bit integers with int4 weights, bf16 with other 4-bit, fp8 and bf16 weights, f32 "
            "with others; f32 sums");
  EXPECT_EQ(text(false, false), "8-bit integers with int4 weights, f32 with others; f32 sums");
}

TEST(ProductsText, OtherPrecisionsAreTheSameEverywhere) {
  for (const MatmulPrecision p : {MatmulPrecision::f32, MatmulPrecision::bf16, MatmulPrecision::fp8,
                                  MatmulPrecision::fp8_pow2}) {
    EXPECT_EQ(products_text(p, false, false), products_text(p, true, true));
    EXPECT_TRUE(products_text(p, true, true).ends_with(p == MatmulPrecision::f32 ? "f32" : "sums"));
  }
}

}  // namespace
}  // namespace lathe
