#include "kernels/philox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lathe {
namespace {

using ::testing::ElementsAre;

// The known answers published with Random123 (kat_vectors, philox4x32 10 rounds).
TEST(Philox, GivesThePublishedAnswers) {
  EXPECT_THAT(philox4x32({{0, 0, 0, 0}}, 0).word,
              ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  constexpr std::uint32_t f = 0xffffffff;
  EXPECT_THAT(philox4x32({{f, f, f, f}}, ~std::uint64_t{0}).word,
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(
      philox4x32({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0x299f31d0a4093822).word,
      ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(Philox, BitsAreTheFirstTwoWords) {
  EXPECT_EQ(random_bits(0, 0), 0x6627e8d5e169c58du);
  // All 64 bits of seed and position matter.
  EXPECT_NE(random_bits(std::uint64_t{1} << 32, 0), random_bits(0, 0));
  EXPECT_NE(random_bits(0, std::uint64_t{1} << 32), random_bits(0, 0));
}

}  // namespace
}  // namespace lathe
