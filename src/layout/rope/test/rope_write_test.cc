#include "layout/rope/rope_write.h"

#include "base/test_scale.h"
#include "layout/codec/test/codec_test_util.h"
#include "layout/rope/test/rope_write_test_util.h"

namespace lathe {
namespace {

std::optional<RopeTable> table_for(const RopeCase& c, RopePairing pairing) {
  if (c.dim == 0) return std::nullopt;
  return *RopeTable::make({.dim = c.dim, .pairing = pairing}, 64);
}

const std::vector<LocalPos> kPositions = {LocalPos(0),  LocalPos(63), LocalPos(5), LocalPos(-1),
                                          LocalPos(17), LocalPos(17), LocalPos(1), LocalPos(2),
                                          LocalPos(9),  LocalPos(30), LocalPos(4)};
const std::vector<Slot> kSlots = to_slots({7, 0, -1, 3, 2, 2, 11, 10, 1, 6, 4});

struct Inputs {
  OwnedRows k;
  OwnedRows q;
  OwnedRows q_out;
};

Inputs make_inputs(const CacheLayout& layout, DType in, DType q_out, std::mt19937& rng) {
  const std::int64_t w = layout.row_elems();
  Inputs x{OwnedRows(in, 11, w, 5), OwnedRows(in, 11, 3 * w, 2), OwnedRows(q_out, 11, 3 * w, 6)};
  fill_adversarial(x.k, rng);
  fill_adversarial(x.q, rng);
  return x;
}

RopeWrite op_of(const Inputs& x, const std::optional<RopeTable>& table, RopePlace place) {
  RopeWrite op;
  op.k = x.k.read();
  op.q = x.q.read();
  op.positions = kPositions;
  op.slots = kSlots;
  op.table = table ? &*table : nullptr;
  op.place = place;
  op.scales = {0.25f, 1};
  op.q_scale = 0.7f;
  op.q_out = x.q_out.view;
  return op;
}

TEST(RopeWrite, FastGivesTheReferenceBits) {
  for_each_target([](const std::string& target) {
    std::mt19937 rng(test_seed(3));
    for (const RopeCase& c : scaled(std::vector(std::begin(kRopeCases), std::end(kRopeCases)))) {
      const CacheLayout layout = *CacheLayout::parse(c.layout);
      for (RopePairing pairing : enum_values<RopePairing>()) {
        const auto table = table_for(c, pairing);
        for (DType in : {DType::bf16, DType::f32}) {
          for (DType out : {DType::bf16, DType::e4m3, DType::f32}) {
            const Inputs slow = make_inputs(layout, in, out, rng);
            const Inputs fast(slow);
            OwnedPool a(layout, 4, 3);
            OwnedPool b(a);
            ASSERT_TRUE(
                rope_quantize_write(op_of(slow, table, c.place), a.view, CodecPath::reference)
                    .ok());
            ASSERT_TRUE(
                rope_quantize_write(op_of(fast, table, c.place), b.view, CodecPath::fast).ok());
            ASSERT_EQ(first_difference(a.bytes, b.bytes), -1) << target << " " << c.layout;
            ASSERT_EQ(first_difference(slow.q_out.bytes, fast.q_out.bytes), -1)
                << target << " " << c.layout << " " << name(in) << " to " << name(out);
          }
        }
      }
    }
  });
}

// The pool must have the bytes of rotating a copy and encoding it, and q_out the result of rotating
// and converting q: the fused operation rounds only once.
TEST(RopeWrite, EqualsRotateThenEncode) {
  std::mt19937 rng(test_seed(4));
  for (CodecPath path : scaled({CodecPath::fast, CodecPath::reference})) {
    for (const RopeCase& c : kRopeCases) {
      const CacheLayout layout = *CacheLayout::parse(c.layout);
      const auto table = table_for(c, RopePairing::interleaved);
      const std::int64_t w = layout.row_elems();
      const std::int64_t first = c.place == RopePlace::last ? w - c.dim : 0;
      const Inputs x = make_inputs(layout, DType::bf16, DType::e4m3, rng);
      OwnedPool fused(layout, 4, 3);
      OwnedPool apart(fused);
      ASSERT_TRUE(rope_quantize_write(op_of(x, table, c.place), fused.view, path).ok());

      OwnedRows k(DType::f32, 11, w);
      std::vector<Slot> slots = kSlots;
      for (int t = 0; t < 11; ++t) {
        const LocalPos p = kPositions[static_cast<std::size_t>(t)];
        if (p.is_hole()) slots[static_cast<std::size_t>(t)] = Slot();
        for (int i = 0; i < w; ++i) k.set(t, i, x.k.get(t, i));
        if (p.is_hole() || !table) continue;
        float* row = reinterpret_cast<float*>(k.view.row(t));
        rotate_row(*table, p, RopeDirection::forward, row + first);
      }
      ASSERT_TRUE(encode_rows(k.read(), slots, apart.view, {0.25f, 1}).ok());
      ASSERT_EQ(first_difference(fused.bytes, apart.bytes), -1) << c.layout;

      for (int t = 0; t < 11; ++t) {
        const bool hole = slots[static_cast<std::size_t>(t)].is_hole();
        std::vector<float> q(static_cast<std::size_t>(3 * w));
        for (int i = 0; i < 3 * w; ++i) q[static_cast<std::size_t>(i)] = x.q.get(t, i);
        for (int h = 0; h < 3 && table && !hole; ++h) {
          rotate_row(*table, kPositions[static_cast<std::size_t>(t)], RopeDirection::forward,
                     q.data() + h * w + first);
        }
        for (int i = 0; i < 3 * w; ++i) {
          const auto want =
              hole ? e4m3{0} : to_e4m3(q[static_cast<std::size_t>(i)] * (1.0f / 0.7f));
          ASSERT_EQ(static_cast<std::uint8_t>(x.q_out.view.row(t)[i]), want.bits)
              << c.layout << " row " << t << " element " << i;
        }
      }
    }
  }
}

TEST(RopeWrite, WorksWithoutQAndWithoutRows) {
  const CacheLayout layout(LayoutKind::mla_fp8_block);
  std::mt19937 rng(5);
  const auto table = table_for(kRopeCases[2], RopePairing::interleaved);
  const Inputs x = make_inputs(layout, DType::bf16, DType::bf16, rng);
  for (CodecPath path : enum_values<CodecPath>()) {
    OwnedPool with_q(layout, 4, 3);
    OwnedPool without(with_q);
    RopeWrite op = op_of(x, table, RopePlace::last);
    ASSERT_TRUE(rope_quantize_write(op, with_q.view, path).ok());
    op.q = {};
    op.q_out = {};
    ASSERT_TRUE(rope_quantize_write(op, without.view, path).ok());
    EXPECT_EQ(first_difference(with_q.bytes, without.bytes), -1);

    op.k.rows = 0;
    op.k.data = nullptr;
    op.positions = {};
    op.slots = {};
    OwnedPool untouched(layout, 4, 3);
    ASSERT_TRUE(rope_quantize_write(op, untouched.view, path).ok());
    EXPECT_EQ(first_difference(untouched.bytes, OwnedPool(layout, 4, 3).bytes), -1);
  }
}

TEST(RopeWrite, RefusesWithAReasonAndWritesNothing) {
  const CacheLayout block(LayoutKind::mla_fp8_block);
  std::mt19937 rng(6);
  const auto table = table_for(kRopeCases[2], RopePairing::interleaved);
  const auto wide = RopeTable::make({.dim = 128}, 64);
  const Inputs x = make_inputs(block, DType::bf16, DType::bf16, rng);
  OwnedPool pool(block, 4, 3);
  const auto pool_before = pool.bytes;
  const auto q_before = x.q_out.bytes;
  const auto field_of = [&](auto change) {
    RopeWrite op = op_of(x, table, RopePlace::last);
    change(op);
    const auto r = rope_quantize_write(op, pool.view);
    EXPECT_EQ(first_difference(pool.bytes, pool_before), -1);
    EXPECT_EQ(first_difference(x.q_out.bytes, q_before), -1);
    return r.ok() ? std::string("ok") : r.error().field;
  };
  auto beyond = kPositions;
  beyond[10] = LocalPos(64);
  auto outside = kSlots;
  outside[10] = Slot(12);
  EXPECT_EQ(field_of([&](RopeWrite& op) { op.positions = beyond; }), "positions[10]");
  EXPECT_EQ(field_of([&](RopeWrite& op) { op.slots = outside; }), "slots[10]");
  EXPECT_EQ(field_of([&](RopeWrite& op) { op.table = nullptr; }), "table");
  EXPECT_EQ(field_of([&](RopeWrite& op) { op.table = &*wide; }), "table");
  EXPECT_EQ(field_of([&](RopeWrite& op) { op.place = RopePlace::first; }), "place");
  EXPECT_EQ(field_of([&](RopeWrite& op) { op.positions = op.positions.first(3); }), "positions");
  EXPECT_EQ(field_of([&](RopeWrite& op) { op.k.cols = 512; }), "k.cols");
  EXPECT_EQ(field_of([&](RopeWrite& op) { op.k.rows = 10; }), "k.rows");
  EXPECT_EQ(field_of([&](RopeWrite& op) { op.k.dtype = DType::e4m3; }), "k.dtype");
  EXPECT_EQ(field_of([&](RopeWrite& op) { op.q.cols = 577; }), "q.cols");
  EXPECT_EQ(field_of([&](RopeWrite& op) { op.q.rows = 0; }), "q.rows");
  EXPECT_EQ(field_of([&](RopeWrite& op) { op.q_out.rows = 0; }), "q_out.rows");
  EXPECT_EQ(field_of([&](RopeWrite& op) { op.q_out.cols = 576; }), "q_out.cols");
  EXPECT_EQ(field_of([&](RopeWrite& op) { op.q_out.dtype = DType::f64; }), "q_out.dtype");
  EXPECT_EQ(field_of([&](RopeWrite& op) { op.q_scale = 0; }), "q_scale");
  EXPECT_EQ(field_of([&](RopeWrite& op) { op.scales.key = std::nanf(""); }), "scales.key");

  const CacheLayout gqa(LayoutKind::gqa_fp8);
  OwnedPool heads(gqa, 16, 1);
  const auto r = rope_quantize_write(op_of(x, table, RopePlace::last), heads.view);
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.error().code, ErrorCode::unsupported);
  EXPECT_NE(r.error().message().find("gqa_fp8"), std::string::npos);

  const CacheLayout index(LayoutKind::index_fp8);
  OwnedPool keys(index, 4, 3);
  const auto too_wide = RopeTable::make({.dim = 256}, 64);
  const Inputs y = make_inputs(index, DType::bf16, DType::bf16, rng);
  RopeWrite op = op_of(y, table, RopePlace::first);
  op.table = &*too_wide;
  EXPECT_EQ(rope_quantize_write(op, keys.view).error().field, "table");
}

}  // namespace
}  // namespace lathe
