// Lists of keys of which several share an index key.
#include "kernels/key_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace lathe {
namespace {

using ::testing::ElementsAre;

// Groups of four tokens in pages of 16. Rows: one whose last group is complete, one with two tokens
// of a group, one that has begun its first group, and one that only pads the batch.
TEST(KeyGroups, ListsTheTokensOfSelectedKeysAndThoseWithoutOne) {
  const std::array<std::int32_t, 4> lens = {32, 18, 3, 0};
  const std::array slots = {Slot(5 * 16 + 15), Slot(7 * 16 + 1), Slot(2 * 16 + 2), Slot()};
  StepView step;
  step.rows = 4;
  step.row_lens = lens;
  step.out_slots = slots;
  // Slots of keys: page * 4 + group.
  const std::array<std::int32_t, 8> keys = {3 * 4 + 1, 5 * 4 + 3, 6 * 4 + 2, -1, -1, -1, -1, -1};
  std::vector<std::int32_t> out(4 * 11, 99);
  const SelectKeys op{.step = &step,
                      .keys = ConstPoolView(nullptr, CacheLayout(LayoutKind::index_fp8), 4, 0),
                      .main = {4, 8},
                      .k = 2,
                      .tokens_per_key = 4,
                      .slots = out};
  list_tokens(op, keys);
  const auto row = [&](int r) {
    return std::vector<std::int32_t>(out.begin() + 11 * r, out.begin() + 11 * (r + 1));
  };
  EXPECT_THAT(row(0), ElementsAre(52, 53, 54, 55, 92, 93, 94, 95, -1, -1, -1));
  EXPECT_THAT(row(1), ElementsAre(104, 105, 106, 107, 112, 113, -1, -1, -1, -1, -1));
  EXPECT_THAT(row(2), ElementsAre(32, 33, 34, -1, -1, -1, -1, -1, -1, -1, -1));
  EXPECT_THAT(row(3), ElementsAre(-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
}

}  // namespace
}  // namespace lathe
