#include "ops/philox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lathe {
namespace {

using ::testing::ElementsAre;

// The known answers that the authors publish with Random123 (kat_vectors, philox4x32 10 rounds).
TEST(Philox, GivesThePublishedAnswers) {
  EXPECT_THAT(philox4x32({0, 0, 0, 0}, {0, 0}),
              ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  constexpr std::uint32_t f = 0xffffffff;
  EXPECT_THAT(philox4x32({f, f, f, f}, {f, f}),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(
      philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(Philox, BitsAreTheFirstTwoWords) {
  EXPECT_EQ(random_bits(0, 0), 0x6627e8d5e169c58du);
  EXPECT_EQ(random_unit(0, 0), static_cast<double>(0x6627e8d5e169c58du >> 11) / 0x1p53);
  // Both halves of seed and position count.
  EXPECT_NE(random_bits(std::uint64_t{1} << 32, 0), random_bits(0, 0));
  EXPECT_NE(random_bits(0, std::uint64_t{1} << 32), random_bits(0, 0));
}

}  // namespace
}  // namespace lathe
