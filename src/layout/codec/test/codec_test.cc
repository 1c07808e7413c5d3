// The codecs against numbers computed without them (codec_fixture.inc), and their edge cases. Most
// tests run on both paths.
#include "layout/codec/codec.h"

#include <sys/mman.h>

#include "base/test_scale.h"
#include "layout/codec/test/codec_test_util.h"

namespace lathe {
namespace {

#include "layout/codec/test/codec_fixture.inc"

std::vector<std::byte> from_hex(std::string_view text) {
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  std::vector<std::byte> out;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    out.push_back(static_cast<std::byte>(digit(text[i]) * 16 + digit(text[i + 1])));
  }
  return out;
}

unsigned byte_at(const OwnedPool& pool, PartRole role, int slot, int i = 0) {
  return std::to_integer<unsigned>(pool.view.at(*pool.view.layout.find(role), Slot(slot))[i]);
}

float scale_at(const OwnedPool& pool, int slot, int tile) {
  float s;
  std::memcpy(&s, pool.view.at(*pool.view.layout.find(PartRole::scale), Slot(slot)) + 4 * tile, 4);
  return s;
}

class Codec : public testing::TestWithParam<CodecPath> {
 protected:
  CodecPath path() const { return GetParam(); }

  // A pool of one page with one encoded row: `values`, then zeros.
  OwnedPool encode_one(const char* layout_text, std::vector<float> values,
                       TensorScales scales = {}) {
    const CacheLayout layout = *CacheLayout::parse(layout_text);
    OwnedRows row(DType::f32, 1, layout.row_elems());
    for (int c = 0; c < layout.row_elems(); ++c) row.set(0, c, 0);
    for (std::size_t c = 0; c < values.size(); ++c) {
      row.set(0, static_cast<std::int64_t>(c), values[c]);
    }
    OwnedPool pool(layout, 1, 1);
    EXPECT_TRUE(encode_rows(row.read(), to_slots({0}), pool.view, scales, path()).ok());
    return pool;
  }
  std::vector<float> decode_one(const OwnedPool& pool, TensorScales scales = {}) {
    OwnedRows row(DType::f32, 1, pool.view.layout.row_elems());
    EXPECT_TRUE(decode_rows(pool.view, Slot(0), row.view, scales, path()).ok());
    std::vector<float> out;
    for (int c = 0; c < pool.view.layout.row_elems(); ++c) out.push_back(row.get(0, c));
    return out;
  }
};

INSTANTIATE_TEST_SUITE_P(Paths, Codec, testing::Values(CodecPath::fast, CodecPath::reference),
                         [](const auto& test) { return std::string(name(test.param)); });

TEST_P(Codec, WritesTheFixtureBytes) {
  const std::vector<std::byte> raw = from_hex(kFixtureRows);
  ASSERT_EQ(raw.size(), 3u * 576 * 4);
  const RowsView all{raw.data(), DType::f32, 3, 576, 576};
  for (const FixturePage& page : kFixturePages) {
    const CacheLayout layout = *CacheLayout::parse(page.layout);
    for (DType dtype : {DType::f32, DType::bf16}) {
      OwnedRows rows(dtype, 3, layout.row_elems(), 7);
      for (int r = 0; r < 3; ++r) {
        for (int c = 0; c < layout.row_elems(); ++c) {
          float x;
          std::memcpy(&x, all.row(r) + 4 * c, 4);
          rows.set(r, c, x);
        }
      }
      const char* expected =
          dtype == DType::bf16 && page.from_bf16 != nullptr ? page.from_bf16 : page.from_f32;
      OwnedPool pool(layout, 3, 1);
      const TensorScales scales =
          is_gqa(layout.kind()) ? TensorScales{0.75f, 2.5f} : TensorScales{};
      ASSERT_TRUE(encode_rows(rows.read(), to_slots({2, 0, 1}), pool.view, scales, path()).ok());
      EXPECT_EQ(first_difference(pool.bytes, from_hex(expected)), -1)
          << page.layout << " from " << name(dtype);
    }
  }
}

unsigned long long fnv1a(const std::vector<std::byte>& bytes) {
  unsigned long long h = 0xcbf29ce484222325ull;
  for (std::byte b : bytes) h = (h ^ std::to_integer<unsigned>(b)) * 0x100000001b3ull;
  return h;
}

TEST_P(Codec, ReadsTheFixtureBytes) {
  for (const FixturePage& page : kFixturePages) {
    const CacheLayout layout = *CacheLayout::parse(page.layout);
    const std::vector<std::byte> bytes = from_hex(page.from_f32);
    const ConstPoolView pool(bytes.data(), layout, 3, 1);
    const TensorScales scales = is_gqa(layout.kind()) ? TensorScales{0.75f, 2.5f} : TensorScales{};
    for (DType dtype : {DType::f32, DType::bf16}) {
      OwnedRows rows(dtype, 3, layout.row_elems());
      ASSERT_TRUE(gather_decode(pool, to_slots({2, 0, 1}), rows.view, scales, path()).ok());
      EXPECT_EQ(fnv1a(rows.bytes), dtype == DType::f32 ? page.decoded_f32 : page.decoded_bf16)
          << page.layout << " to " << name(dtype);
    }
  }
}

// amax 448 gives scale 1, because 448 / 448 is a power of two; 449 gives 2. 1e-4 / 448 is a little
// above 2^-23, so a tile of zeros has 2^-22.
TEST_P(Codec, BlockScalesByHand) {
  const OwnedPool at = encode_one("mla_fp8_block(nope=128,rope=0)", {448, -448, 1, 447, 0.5f});
  EXPECT_EQ(scale_at(at, 0, 0), 1.0f);
  EXPECT_EQ(byte_at(at, PartRole::nope, 0, 0), 0x7eu);
  EXPECT_EQ(byte_at(at, PartRole::nope, 0, 1), 0xfeu);
  EXPECT_EQ(byte_at(at, PartRole::nope, 0, 2), 0x38u);
  EXPECT_EQ(byte_at(at, PartRole::nope, 0, 3), 0x7eu);
  EXPECT_EQ(byte_at(at, PartRole::nope, 0, 4), 0x30u);
  EXPECT_EQ(byte_at(at, PartRole::nope, 0, 5), 0u);

  const OwnedPool above = encode_one("mla_fp8_block(nope=128,rope=0)", {449, 1});
  EXPECT_EQ(scale_at(above, 0, 0), 2.0f);
  EXPECT_EQ(byte_at(above, PartRole::nope, 0, 0), 0x76u);  // 224
  EXPECT_EQ(byte_at(above, PartRole::nope, 0, 1), 0x30u);  // 0.5

  // The next f32 after 448: the quotient rounds to 1 + 2^-23, and the scale doubles.
  const OwnedPool next = encode_one("mla_fp8_block(nope=128,rope=0)", {0x1.c00002p8f});
  EXPECT_EQ(scale_at(next, 0, 0), 2.0f);
  const OwnedPool just = encode_one("mla_fp8_block(nope=128,rope=0)", {0x1.bffffep8f});
  EXPECT_EQ(scale_at(just, 0, 0), 1.0f);

  const OwnedPool zero = encode_one("mla_fp8_block(nope=128,rope=0)", {});
  EXPECT_EQ(scale_at(zero, 0, 0), 0x1p-22f);
  EXPECT_EQ(byte_at(zero, PartRole::nope, 0, 9), 0u);

  const OwnedPool raw = encode_one("mla_fp8_block(nope=128,rope=0,scale=raw_f32)", {7, -3.5f});
  EXPECT_EQ(scale_at(raw, 0, 0), 7.0f / 448.0f);
  EXPECT_EQ(byte_at(raw, PartRole::nope, 0, 0), 0x7eu);
  EXPECT_EQ(byte_at(raw, PartRole::nope, 0, 1), 0xf6u);  // -224
  const OwnedPool raw_zero = encode_one("mla_fp8_block(nope=128,rope=0,scale=raw_f32)", {});
  EXPECT_EQ(scale_at(raw_zero, 0, 0), 1e-4f / 448.0f);
}

TEST_P(Codec, ExponentBytesByHand) {
  const OwnedPool v4 = encode_one("v4_fp8(nope=128,rope=16)", std::vector<float>(64, 448.0f));
  EXPECT_EQ(byte_at(v4, PartRole::scale, 0, 0), 127u);
  EXPECT_EQ(byte_at(v4, PartRole::scale, 0, 1), 105u);  // the tile of zeros: 2^-22
  for (int i = 0; i < 6; ++i) EXPECT_EQ(byte_at(v4, PartRole::pad, 0, i), 0u);
  EXPECT_EQ(byte_at(encode_one("v4_fp8(nope=64,rope=0)", {1e30f}), PartRole::scale, 0),
            127u + 91);  // 1e30 / 448 = 1.76 * 2^90

  // 6 / 6 = 1. 1e-10 is a little above 2^-34, so a tile of zeros has 2^-33.
  const OwnedPool fp4 = encode_one("mla_fp4(nope=32,rope=0)", {6, -1.5f, 0.25f, 5, -0.75f, 2.5f});
  EXPECT_EQ(byte_at(fp4, PartRole::scale, 0, 0), 127u);
  EXPECT_EQ(byte_at(fp4, PartRole::scale, 0, 1), 127u - 33);
  EXPECT_EQ(byte_at(fp4, PartRole::nope, 0, 0), 0xb7u);  // 6, -1.5
  EXPECT_EQ(byte_at(fp4, PartRole::nope, 0, 1), 0x60u);  // 0.25 rounds to 0, 5 to 4: ties to even
  EXPECT_EQ(byte_at(fp4, PartRole::nope, 0, 2), 0x4au);  // -0.75 rounds to -1, 2.5 to 2
  EXPECT_EQ(byte_at(encode_one("mla_fp4(nope=16,rope=0)", {6.1f}), PartRole::scale, 0), 128u);

  EXPECT_EQ(scale_at(encode_one("index_fp8(dim=32)", {896}), 0, 0), 2.0f);
}

TEST_P(Codec, InfinityAndNanStayInTheirElements) {
  const float inf = std::numeric_limits<float>::infinity();
  const OwnedPool pool =
      encode_one("mla_fp8_block(nope=128,rope=0)", {224, inf, std::nanf(""), -inf, -224, 1});
  EXPECT_EQ(scale_at(pool, 0, 0), 0.5f);
  const std::vector<float> back = decode_one(pool);
  EXPECT_EQ(back[0], 224);
  EXPECT_EQ(back[1], 224);  // code 448, the tile's maximum
  EXPECT_TRUE(std::isnan(back[2]));
  EXPECT_EQ(back[3], -224);
  EXPECT_EQ(back[4], -224);
  EXPECT_EQ(back[5], 1);
  EXPECT_EQ(back[6], 0);

  // No finite value: the tile has the scale of the floor.
  const OwnedPool lost = encode_one("index_fp8(dim=16)", std::vector<float>(16, inf));
  EXPECT_EQ(scale_at(lost, 0, 0), 0x1p-22f);
  EXPECT_EQ(decode_one(lost)[3], 448 * 0x1p-22f);

  const OwnedPool fp4 = encode_one("mla_fp4(nope=16,rope=0)", {3, -std::nanf(""), inf, -inf});
  const std::vector<float> nibbles = decode_one(fp4);
  EXPECT_EQ(nibbles[0], 3);
  EXPECT_EQ(nibbles[1], 3);  // e2m1 has no NaN: it becomes code +6
  EXPECT_EQ(nibbles[2], 3);
  EXPECT_EQ(nibbles[3], -3);

  const OwnedPool plain = encode_one("mla_fp8(nope=16,rope=0)", {1e9f, -1e9f, inf, 448, 464, 0});
  const std::vector<float> cast = decode_one(plain);
  for (int i : {0, 2, 3, 4}) EXPECT_EQ(cast[static_cast<std::size_t>(i)], 448);
  EXPECT_EQ(cast[1], -448);
  EXPECT_EQ(cast[5], 0);
}

TEST_P(Codec, TensorScales) {
  const OwnedPool mla = encode_one("mla_fp8(nope=16,rope=16)", {3, 448}, {2, 64});
  EXPECT_EQ(byte_at(mla, PartRole::nope, 0, 0), 0x3cu);  // 1.5
  EXPECT_EQ(decode_one(mla, {2, 64})[0], 3);
  const OwnedPool gqa = encode_one("gqa_fp8(kv_heads=1,head_dim=16,v_head_dim=16)",
                                   std::vector<float>(32, 8), {2, 4});
  EXPECT_EQ(byte_at(gqa, PartRole::key, 0), 0x48u);    // 4
  EXPECT_EQ(byte_at(gqa, PartRole::value, 0), 0x40u);  // 2
  EXPECT_EQ(decode_one(gqa, {2, 4})[0], 8);
  EXPECT_EQ(decode_one(gqa, {2, 4})[31], 8);
}

TEST_P(Codec, DamagedScaleGivesNanNotGarbage) {
  OwnedPool pool = encode_one("v4_fp8(nope=64,rope=0)", {1, -1});
  *pool.view.at(*pool.view.layout.find(PartRole::scale), Slot(0)) = std::byte{255};
  for (float x : decode_one(pool)) EXPECT_TRUE(std::isnan(x));
  OwnedRows row(DType::bf16, 1, 64);
  ASSERT_TRUE(decode_rows(pool.view, Slot(0), row.view, {}, path()).ok());
  EXPECT_TRUE(std::isnan(row.get(0, 0)) && std::signbit(row.get(0, 1)));
}

// Many page sizes, with and without padding of the stride: every slot gives back its row, and no
// byte outside the records changes.
TEST_P(Codec, PagesStridesAndUntouchedBytes) {
  std::mt19937 rng(test_seed(11));
  for (const CacheLayout& layout : scaled(layouts_to_test())) {
    for (const std::int32_t page_size : {1, 2, 16, 64, 256}) {
      for (const std::int64_t extra : {0, 1, 640}) {
        OwnedPool pool(layout, page_size, 3, extra);
        const auto last = static_cast<int>(pool.view.slots()) - 1;
        const std::vector<Slot> slots = to_slots({last, 0, page_size});
        OwnedRows rows(DType::bf16, 3, layout.row_elems(), 1);
        fill_adversarial(rows, rng);
        ASSERT_TRUE(encode_rows(rows.read(), slots, pool.view, {}, path()).ok());

        std::vector<bool> owned(pool.bytes.size());
        for (Slot s : slots) {
          for (int p = 0; p < layout.part_count(); ++p) {
            const auto at = pool.view.at(layout.part(p), s) - pool.bytes.data();
            std::fill_n(owned.begin() + at, layout.part(p).bytes(), true);
          }
        }
        for (std::size_t i = 0; i < owned.size(); ++i) {
          ASSERT_TRUE(owned[i] || pool.bytes[i] == kPoison) << layout.serialize() << " byte " << i;
        }
        OwnedPool single(layout, 1, 1);
        for (int r = 0; r < 3; ++r) {
          const RowsView row{rows.view.row(r), DType::bf16, 1, layout.row_elems(),
                             layout.row_elems()};
          ASSERT_TRUE(encode_rows(row, to_slots({0}), single.view, {}, path()).ok());
          for (int p = 0; p < layout.part_count(); ++p) {
            ASSERT_EQ(std::memcmp(pool.view.at(layout.part(p), slots[static_cast<std::size_t>(r)]),
                                  single.view.at(layout.part(p), Slot(0)),
                                  static_cast<std::size_t>(layout.part(p).bytes())),
                      0)
                << layout.serialize() << " page size " << page_size;
          }
        }
      }
    }
  }
}

TEST_P(Codec, HolesDuplicatesAndLongLists) {
  const CacheLayout layout(LayoutKind::mla_fp8_block);
  OwnedRows rows(DType::bf16, 5, 576);
  for (int r = 0; r < 5; ++r) {
    for (int c = 0; c < 576; ++c) rows.set(r, c, static_cast<float>(r + 1));
  }
  OwnedPool pool(layout, 2, 2);
  ASSERT_TRUE(encode_rows(rows.read(), to_slots({1, 3, -1, 1, 0}), pool.view, {}, path()).ok());
  EXPECT_EQ(pool.bytes[2 * 656], kPoison);  // slot 2: not written

  const auto list = to_slots({1, 1, 0, 3, -1, 1, 0, 0, 3, -1});  // longer than the pool
  OwnedRows out(DType::bf16, 10, 576, 8);
  ASSERT_TRUE(gather_decode(pool.view, list, out.view, {}, path()).ok());
  const float want[] = {4, 4, 5, 2, 0, 4, 5, 5, 2, 0};  // slot 1 has the later row
  for (int r = 0; r < 10; ++r) {
    for (int c : {0, 511, 512, 575}) EXPECT_EQ(out.get(r, c), want[r]) << r << " " << c;
    // Between the rows nothing changes.
    EXPECT_EQ(out.view.row(r)[2 * 576], kPoison);
  }
}

TEST_P(Codec, NoRowsAreLegal) {
  const CacheLayout layout(LayoutKind::v4_fp8);
  OwnedPool pool(layout, 64, 1);
  const std::vector<std::byte> before = pool.bytes;
  const RowsView none{nullptr, DType::bf16, 0, 512, 512};
  const MutableRowsView out{nullptr, DType::f32, 0, 512, 512};
  EXPECT_TRUE(encode_rows(none, {}, pool.view, {}, path()).ok());
  EXPECT_TRUE(gather_decode(pool.view, {}, out, {}, path()).ok());
  EXPECT_TRUE(decode_rows(pool.view, Slot(0), out, {}, path()).ok());
  EXPECT_TRUE(decode_rows(pool.view, Slot(64), out, {}, path()).ok());
  const PoolView empty(nullptr, layout, 64, 0);
  EXPECT_TRUE(encode_rows(none, {}, empty, {}, path()).ok());
  EXPECT_TRUE(decode_rows(empty, Slot(0), out, {}, path()).ok());
  EXPECT_EQ(first_difference(pool.bytes, before), -1);
}

// Slots at byte offsets above 2^31 and 2^32, which do not fit an int32 (from slot 3.3 million on).
TEST_P(Codec, OffsetsBeyond32Bits) {
  const CacheLayout layout(LayoutKind::mla_fp8_block);
  const std::int64_t pages =
      110000;  // 64 slots each: 4.6 GB of address space, of which few pages are touched
  const std::size_t size = static_cast<std::size_t>(pages * layout.page_stride(64));
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "no address space";
  const PoolView pool(static_cast<std::byte*>(memory), layout, 64, pages);
  OwnedRows rows(DType::bf16, 3, 576);
  std::mt19937 rng(14);
  fill_adversarial(rows, rng);
  const auto last = static_cast<int>(pool.slots()) - 1;
  const auto slots = to_slots({3273604, last, 6547206});
  ASSERT_TRUE(encode_rows(rows.read(), slots, pool, {}, path()).ok());
  OwnedPool small(layout, 1, 3);
  ASSERT_TRUE(encode_rows(rows.read(), slots_from(0, 3), small.view, {}, path()).ok());
  OwnedRows a(DType::bf16, 3, 576);
  OwnedRows b(DType::bf16, 3, 576);
  ASSERT_TRUE(gather_decode(pool, slots, a.view, {}, path()).ok());
  ASSERT_TRUE(decode_rows(small.view, Slot(0), b.view, {}, path()).ok());
  EXPECT_EQ(first_difference(a.bytes, b.bytes), -1);
  EXPECT_EQ(std::memcmp(pool.data + size - 656, small.bytes.data() + 656, 656), 0);
  munmap(memory, size);
}

// 576 to 656 bytes at scale 1 loses nothing.
TEST_P(Codec, RequantisedAtUnitScaleDecodesTheSame) {
  std::mt19937 rng(test_seed(12));
  const CacheLayout plain(LayoutKind::mla_fp8);
  const CacheLayout block(LayoutKind::mla_fp8_block);
  for (int round = 0; round < test_scale(); ++round) {
    OwnedPool src(plain, 4, 4);
    for (std::byte& b : src.bytes) b = static_cast<std::byte>(rng());
    OwnedPool dst(block, 16, 1);
    const auto slots = slots_from(0, 16);
    const auto report = requantize(src.view, slots, dst.view, slots, {}, {}, path());
    ASSERT_TRUE(report.ok());
    EXPECT_EQ(report->worst_abs_error, 0);
    EXPECT_TRUE(report->worst_slot.is_hole());
    EXPECT_EQ(report->saturated, 0);
    for (DType dtype : {DType::bf16, DType::f32}) {
      OwnedRows a(dtype, 16, 576);
      OwnedRows b(dtype, 16, 576);
      ASSERT_TRUE(decode_rows(src.view, Slot(0), a.view, {}, path()).ok());
      ASSERT_TRUE(decode_rows(dst.view, Slot(0), b.view, {}, path()).ok());
      EXPECT_EQ(first_difference(a.bytes, b.bytes), -1);
    }
    for (int i = 0; i < 512; ++i) {
      ASSERT_EQ(byte_at(src, PartRole::nope, 5, i), byte_at(dst, PartRole::nope, 5, i));
    }
  }
}

TEST_P(Codec, RequantisingToOneScaleReportsTheLoss) {
  const CacheLayout block(LayoutKind::mla_fp8_block);
  const CacheLayout plain(LayoutKind::mla_fp8);
  OwnedRows rows(DType::f32, 3, 576);
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 576; ++c) rows.set(r, c, 1);
  }
  rows.set(1, 3, 896);     // above 448, and above 464
  rows.set(1, 520, 1000);  // in the rope part
  rows.set(2, 0, 0x1p-20f);
  OwnedPool src(block, 1, 3);
  OwnedPool dst(plain, 1, 3);
  ASSERT_TRUE(encode_rows(rows.read(), slots_from(0, 3), src.view).ok());
  const auto slots = slots_from(0, 3);
  const auto lossy = requantize(src.view, slots, dst.view, slots, {}, {}, path());
  ASSERT_TRUE(lossy.ok());
  EXPECT_EQ(lossy->saturated, 2);
  EXPECT_EQ(lossy->worst_abs_error, 1000 - 448);
  EXPECT_EQ(lossy->worst_slot, Slot(1));
  const auto wide = requantize(src.view, slots, dst.view, slots, {}, {4, 1}, path());
  ASSERT_TRUE(wide.ok());
  EXPECT_EQ(wide->saturated, 0);
  EXPECT_EQ(wide->worst_abs_error, 24);  // 1000 / 4 = 250 becomes 256
  const auto skipped = requantize(src.view, slots, dst.view, to_slots({0, -1, 2}), {}, {}, path());
  EXPECT_EQ(skipped->saturated, 0);
}

TEST_P(Codec, RequantiseRefusesWithAReason) {
  const CacheLayout plain(LayoutKind::mla_fp8);
  const CacheLayout block(LayoutKind::mla_fp8_block);
  OwnedPool src(plain, 4, 1);
  OwnedPool dst(block, 4, 1);
  const std::vector<std::byte> before = dst.bytes;
  const auto slots = slots_from(0, 4);
  const auto pow2 = requantize(src.view, slots, dst.view, slots, {0.3f, 1}, {}, path());
  ASSERT_FALSE(pow2.ok());
  EXPECT_EQ(pow2.error().field, "src_scales.key");
  EXPECT_NE(pow2.error().hint.find("raw_f32"), std::string::npos);
  EXPECT_TRUE(requantize(src.view, slots,
                         OwnedPool(*CacheLayout::parse("mla_fp8_block(scale=raw_f32)"), 4, 1).view,
                         slots, {0.3f, 1}, {}, path())
                  .ok());

  OwnedPool v4(CacheLayout(LayoutKind::v4_fp8), 4, 1);
  const auto pair = requantize(v4.view, slots, dst.view, slots, {}, {}, path());
  ASSERT_FALSE(pair.ok());
  EXPECT_EQ(pair.error().code, ErrorCode::unsupported);
  EXPECT_NE(pair.error().message().find("v4_fp8 to mla_fp8_block"), std::string::npos);
  EXPECT_NE(pair.error().message().find("mla_fp8 to mla_fp8_block"), std::string::npos);
  EXPECT_FALSE(requantize(dst.view, slots, dst.view, slots, {}, {}, path()).ok());

  OwnedPool narrow(*CacheLayout::parse("mla_fp8_block(nope=256)"), 4, 1);
  EXPECT_EQ(requantize(src.view, slots, narrow.view, slots, {}, {}, path()).error().field,
            "dst.layout");
  EXPECT_EQ(requantize(src.view, slots, dst.view, to_slots({0}), {}, {}, path()).error().field,
            "dst_slots");
  EXPECT_EQ(requantize(src.view, to_slots({0, 4}), dst.view, to_slots({0, 1}), {}, {}, path())
                .error()
                .field,
            "src_slots[1]");
  EXPECT_EQ(requantize(src.view, to_slots({0, 1}), dst.view, to_slots({0, 9}), {}, {}, path())
                .error()
                .field,
            "dst_slots[1]");
  EXPECT_EQ(requantize(src.view, slots, dst.view, slots, {}, {0, 1}, path()).error().field,
            "dst_scales.key");
  EXPECT_EQ(first_difference(dst.bytes, before), -1);
}

TEST_P(Codec, ErrorsNameTheArgumentAndChangeNothing) {
  const CacheLayout layout(LayoutKind::mla_fp8_block);
  OwnedPool pool(layout, 4, 2, 100);
  const std::vector<std::byte> before = pool.bytes;
  OwnedRows rows(DType::bf16, 3, 576);
  std::mt19937 rng(13);
  fill_adversarial(rows, rng);
  const auto encode = [&](RowsView r, const std::vector<int>& slots, PoolView p,
                          TensorScales s = {}) {
    const auto result = encode_rows(r, to_slots(slots), p, s, path());
    EXPECT_EQ(first_difference(pool.bytes, before), -1);
    return result.ok() ? std::string("ok") : result.error().field;
  };
  const RowsView good = rows.read();
  const auto changed = [](auto v, auto change) {
    change(v);
    return v;
  };
  EXPECT_EQ(encode(good, {0, 1, 8}, pool.view), "slots[2]");
  EXPECT_EQ(encode(good, {0, -2, 7}, pool.view), "slots[1]");
  EXPECT_EQ(encode(good, {0, 1}, pool.view), "rows.rows");
  EXPECT_EQ(encode(changed(good, [](auto& r) { r.dtype = DType::e4m3; }), {0, 1, 2}, pool.view),
            "rows.dtype");
  EXPECT_EQ(encode(changed(good, [](auto& r) { r.cols = 512; }), {0, 1, 2}, pool.view),
            "rows.cols");
  EXPECT_EQ(encode(changed(good, [](auto& r) { r.row_stride = 575; }), {0, 1, 2}, pool.view),
            "rows.row_stride");
  EXPECT_EQ(encode(changed(good, [](auto& r) { r.data = nullptr; }), {0, 1, 2}, pool.view),
            "rows.data");
  EXPECT_EQ(encode(changed(good, [](auto& r) { r.data += 1; }), {0, 1, 2}, pool.view), "rows.data");
  EXPECT_EQ(encode(good, {0, 1, 2}, changed(pool.view, [](auto& p) { p.page_size = 0; })),
            "pool.page_size");
  EXPECT_EQ(encode(good, {0, 1, 2}, changed(pool.view, [](auto& p) { p.page_stride = 2623; })),
            "pool.page_stride");
  EXPECT_EQ(encode(good, {0, 1, 2}, changed(pool.view, [](auto& p) { p.pages = -1; })),
            "pool.pages");
  EXPECT_EQ(encode(good, {0, 1, 2}, changed(pool.view, [](auto& p) { p.data = nullptr; })),
            "pool.data");
  EXPECT_EQ(encode(good, {0, 1, 2}, pool.view, {0, 1}), "scales.key");
  EXPECT_EQ(encode(good, {0, 1, 2}, pool.view, {1, -1}), "scales.value");
  EXPECT_EQ(encode(good, {0, 1, 2}, pool.view, {std::nanf(""), 1}), "scales.key");
  EXPECT_EQ(encode(good, {0, 1, 2}, pool.view, {std::numeric_limits<float>::infinity(), 1}),
            "scales.key");

  const auto slot_error = encode_rows(good, to_slots({0, 1, 8}), pool.view, {}, path()).error();
  EXPECT_EQ(slot_error.message(),
            "slots[2]: wanted -1 or 0 to 7, got 8; the pool has 2 pages of 4 slots");

  OwnedRows out(DType::bf16, 3, 576);
  const std::vector<std::byte> out_before = out.bytes;
  const auto field = [&](const Result<void>& r) {
    EXPECT_EQ(first_difference(out.bytes, out_before), -1);
    return r.ok() ? std::string("ok") : r.error().field;
  };
  EXPECT_EQ(field(decode_rows(pool.view, Slot(6), out.view, {}, path())), "first");
  EXPECT_EQ(field(decode_rows(pool.view, Slot(-1), out.view, {}, path())), "first");
  EXPECT_EQ(field(gather_decode(pool.view, to_slots({0, 1, 8}), out.view, {}, path())), "slots[2]");
  EXPECT_EQ(field(gather_decode(pool.view, to_slots({0, 1}), out.view, {}, path())), "out.rows");
  EXPECT_EQ(field(gather_decode(pool.view, to_slots({0, 1, 2}),
                                changed(out.view, [](auto& r) { r.cols = 577; }), {}, path())),
            "out.cols");
  EXPECT_EQ(
      field(decode_rows(pool.view, Slot(0),
                        changed(out.view, [](auto& r) { r.dtype = DType::f16; }), {}, path())),
      "out.dtype");
  EXPECT_EQ(field(decode_rows(pool.view, Slot(0), out.view, {0, 1}, path())), "scales.key");
}

}  // namespace
}  // namespace lathe
