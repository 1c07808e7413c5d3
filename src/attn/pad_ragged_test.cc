#include "attn/pad_ragged.h"

#include <gtest/gtest.h>

#include <vector>

namespace lathe {
namespace {

RowsView view(const std::vector<float>& v, std::int64_t cols) {
  return {reinterpret_cast<const std::byte*>(v.data()), DType::f32, std::ssize(v) / cols, cols,
          cols};
}
MutableRowsView view(std::vector<float>& v, std::int64_t cols) {
  return {reinterpret_cast<std::byte*>(v.data()), DType::f32, std::ssize(v) / cols, cols, cols};
}

TEST(PadRagged, ThereAndBack) {
  const std::vector<float> ragged = {1, 2, 3, 4, 5, 6, 7, 8, 9, 9};  // the last row is padding
  const std::vector<std::int32_t> indptr = {0, 1, 1, 4};
  std::vector<float> dense(3 * 3 * 2, -7);
  ASSERT_TRUE(pad_ragged(view(ragged, 2), indptr, 3, view(dense, 2)).ok());
  EXPECT_EQ(dense, (std::vector<float>{1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 4, 5, 6, 7, 8}));
  std::vector<float> back(10, -7);
  ASSERT_TRUE(unpad_ragged(view(std::as_const(dense), 2), indptr, 3, view(back, 2)).ok());
  EXPECT_EQ(back, (std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8, 0, 0}));
}

TEST(PadRagged, NothingAndErrors) {
  std::vector<float> none, some(4);
  const std::vector<std::int32_t> empty = {0};
  EXPECT_TRUE(pad_ragged(view(std::as_const(none), 2), empty, 3, view(none, 2)).ok());
  const std::vector<std::int32_t> two = {0, 2};
  EXPECT_FALSE(pad_ragged(view(std::as_const(some), 2), two, 1, view(none, 2)).ok());
  EXPECT_FALSE(pad_ragged(view(std::as_const(none), 2), two, 2, view(some, 2)).ok());
  EXPECT_FALSE(pad_ragged(view(std::as_const(some), 2), {}, 2, view(some, 2)).ok());
  const std::vector<std::int32_t> falling = {0, 2, 1};
  EXPECT_FALSE(pad_ragged(view(std::as_const(some), 2), falling, 1, view(some, 2)).ok());
}

}  // namespace
}  // namespace lathe
