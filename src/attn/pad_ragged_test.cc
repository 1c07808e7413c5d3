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

TEST(PadRagged, RefusesViewsThatAreNone) {
  const std::vector<std::int32_t> indptr = {0, 1, 2};
  const std::vector<float> from(4);
  std::vector<float> to(4, -7);
  const auto field = [&](auto change) {
    RowsView ragged = view(from, 2);
    MutableRowsView dense = view(to, 2);
    std::int64_t max_len = 1;
    change(ragged, dense, max_len);
    const auto done = pad_ragged(ragged, indptr, max_len, dense);
    return done ? "none" : done.error().field;
  };
  using V = RowsView;
  using M = MutableRowsView;
  EXPECT_EQ(field([](V&, M&, std::int64_t&) {}), "none");
  to.assign(4, -7);
  EXPECT_EQ(field([](V&, M& m, std::int64_t&) { m.row_stride = 1; }), "dense.row_stride");
  EXPECT_EQ(field([](V& v, M&, std::int64_t&) { v.row_stride = 1; }), "ragged.row_stride");
  EXPECT_EQ(field([](V& v, M& m, std::int64_t&) { v.cols = m.cols = -1; }), "ragged.cols");
  EXPECT_EQ(field([](V&, M& m, std::int64_t&) { m.data = nullptr; }), "dense.data");
  EXPECT_EQ(field([](V& v, M& m, std::int64_t&) {
              v.dtype = m.dtype = DType::e2m1;
              v.cols = m.cols = 1;
            }),
            "ragged.cols");
  // Two requests of 2^63 - 2 rows are -4 rows in 64 bits.
  EXPECT_EQ(field([](V&, M& m, std::int64_t& max_len) {
              max_len = INT64_MAX - 1;
              m.rows = -4;
            }),
            "dense.rows");
  EXPECT_EQ(field([](V&, M&, std::int64_t& max_len) { max_len = INT64_MAX; }), "max_len");
  EXPECT_EQ(to, std::vector<float>(4, -7));
}

}  // namespace
}  // namespace lathe
