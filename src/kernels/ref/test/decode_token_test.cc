#include "kernels/ref/decode_token.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "kernels/ref/test/test_util.h"

namespace lathe {
namespace {

// Every expected offset and value below is worked out by hand from docs/layouts.md, not computed by
// CacheLayout. The token is in slot 3 of pages of 2: page 1, offset 1.
class Bytes {
 public:
  explicit Bytes(const CacheLayout& layout)
      : layout_(layout), bytes_(static_cast<std::size_t>(2 * layout.page_stride(2)), 0xff) {}
  Bytes& zero(std::size_t at, std::size_t count) {
    std::fill_n(bytes_.begin() + static_cast<std::ptrdiff_t>(at), count, std::uint8_t{0});
    return *this;
  }
  Bytes& put(std::size_t at, std::initializer_list<std::uint8_t> values) {
    std::ranges::copy(values, bytes_.begin() + static_cast<std::ptrdiff_t>(at));
    return *this;
  }
  std::vector<double> decode(float key_scale = 1, float value_scale = 1) const {
    const ConstPoolView pool(reinterpret_cast<const std::byte*>(bytes_.data()), layout_, 2, 2);
    std::vector<double> row(static_cast<std::size_t>(layout_.row_elems()), ref_test::kNaN);
    decode_token(pool, Slot(3), key_scale, value_scale, row);
    return row;
  }

 private:
  CacheLayout layout_;
  std::vector<std::uint8_t> bytes_;
};

// A row of zeros except for the given elements.
std::vector<double> row_of(std::size_t size, const std::map<std::size_t, double>& values) {
  std::vector<double> row(size, 0.0);
  for (const auto& [at, value] : values) row[at] = value;
  return row;
}

TEST(DecodeToken, MlaBf16) {
  // 32 + 32 bytes per token: slot 3 at 2 * 64 + 64 = 192, its rope at 224.
  Bytes b(CacheLayout(LayoutKind::mla_bf16, {.nope = 16, .rope = 16}));
  b.zero(192, 64).put(192, {0x80, 0x3f}).put(222, {0x49, 0x40}).put(224, {0x00, 0xc0});
  EXPECT_EQ(b.decode(), row_of(32, {{0, 1.0}, {15, 3.140625}, {16, -2.0}}));
}

TEST(DecodeToken, MlaFp8WithPerTensorScale) {
  // 32 bytes per token: slot 3 at 96.
  Bytes b(CacheLayout(LayoutKind::mla_fp8, {.nope = 16, .rope = 16}));
  b.zero(96, 32).put(96, {0x38, 0x01}).put(111, {0x7e}).put(112, {0xbc});
  EXPECT_EQ(b.decode(), row_of(32, {{0, 1.0}, {1, 0x1p-9}, {15, 448.0}, {16, -1.5}}));
  // The key scale multiplies nope and rope; the value scale is not used for a latent row.
  EXPECT_EQ(b.decode(0.5f, 7.0f), row_of(32, {{0, 0.5}, {1, 0x1p-10}, {15, 224.0}, {16, -0.75}}));
}

TEST(DecodeToken, MlaFp8Block) {
  // 256 nope, 2 scales of 4, 16 rope of 2: 296 bytes. Slot 3 at 3 * 296 = 888; scales 1144, rope
  // 1152.
  Bytes b(CacheLayout(LayoutKind::mla_fp8_block, {.nope = 256, .rope = 16}));
  b.zero(888, 296).put(888, {0x38}).put(888 + 127, {0x40}).put(888 + 128, {0x38}).put(1143, {0xb8});
  b.put(1144, {0, 0, 0, 0x40});           // 2.0f
  b.put(1148, {0xcd, 0xcc, 0xcc, 0x3d});  // 0.1f: no power of two, kept exactly
  b.put(1152, {0x80, 0x3f}).put(1182, {0x80, 0xbf});
  EXPECT_EQ(b.decode(), row_of(272, {{0, 2.0},
                                     {127, 4.0},
                                     {128, double{0.1f}},
                                     {255, -double{0.1f}},
                                     {256, 1.0},
                                     {271, -1.0}}));
}

TEST(DecodeToken, MlaFp4) {
  // 48 elements in 24 bytes, 3 exponents. A page of 2 has 54 bytes: data at 54 + 24, exponents at
  // 54 + 48 + 3. The low nibble is the even element.
  Bytes b(CacheLayout(LayoutKind::mla_fp4, {.nope = 32, .rope = 16}));
  b.zero(78, 24).put(78, {0x21}).put(78 + 7, {0xf0}).put(78 + 8, {0x07}).put(78 + 16, {0xa3});
  b.put(105, {127, 128, 125});
  EXPECT_EQ(b.decode(),
            row_of(48, {{0, 0.5}, {1, 1.0}, {15, -6.0}, {16, 12.0}, {32, 0.375}, {33, -0.25}}));
}

TEST(DecodeToken, EveryE2m1Code) {
  Bytes b(CacheLayout(LayoutKind::mla_fp4, {.nope = 16}));
  // 8 bytes and 1 exponent per token, a page of 2 has 18 bytes.
  b.put(26, {0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe}).put(18 + 16 + 1, {127});
  EXPECT_EQ(b.decode(),
            (std::vector<double>{0, .5, 1, 1.5, 2, 3, 4, 6, -0.0, -.5, -1, -1.5, -2, -3, -4, -6}));
}

TEST(DecodeToken, V4Fp8) {
  // Data 128 + 32 = 160 bytes, scales 2 + 6 pad. 2 * 168 = 336 bytes, rounded up to 480.
  // Slot 3: data 480 + 160 = 640, rope 768, scales 480 + 320 + 8 = 808.
  Bytes b(CacheLayout(LayoutKind::v4_fp8, {.nope = 128, .rope = 16}));
  b.zero(640, 160).put(640, {0x38}).put(703, {0x44}).put(704, {0x38}).put(767, {0x38});
  b.put(768, {0x80, 0x3f}).put(808, {130, 0});
  EXPECT_EQ(b.decode(),
            row_of(144, {{0, 8.0}, {63, 24.0}, {64, 0x1p-127}, {127, 0x1p-127}, {128, 1.0}}));
}

TEST(DecodeToken, Ue8m0NaNReachesItsTileOnly) {
  Bytes b(CacheLayout(LayoutKind::v4_fp8, {.nope = 128, .rope = 16}));
  b.zero(640, 160).put(808, {127, 255});
  const std::vector<double> row = b.decode();
  for (std::size_t i = 0; i < row.size(); ++i) {
    EXPECT_EQ(std::isnan(row[i]), i >= 64 && i < 128) << i;
  }
}

TEST(DecodeToken, IndexFp8) {
  // 16 key bytes and an f32 per token; a page of 2 has 40 bytes: key 40 + 16, scale 40 + 32 + 4.
  Bytes b(CacheLayout(LayoutKind::index_fp8, {.dim = 16}));
  b.zero(56, 16).put(56, {0x38}).put(71, {0xc0}).put(76, {0, 0, 0x80, 0x3e});
  EXPECT_EQ(b.decode(), row_of(16, {{0, 0.25}, {15, -0.5}}));
}

TEST(DecodeToken, GqaBf16) {
  // Keys 2 * 16 * 2 = 64 bytes, values 2 * 32 * 2 = 128; a page of 2 has 384: key 384 + 64, value
  // 384 + 128 + 128.
  Bytes b(CacheLayout(LayoutKind::gqa_bf16, {.kv_heads = 2, .head_dim = 16, .v_head_dim = 32}));
  b.zero(448, 64).zero(640, 128).put(448, {0x80, 0x3f}).put(448 + 32, {0, 0x40});
  b.put(640, {0x40, 0x40}).put(640 + 126, {0x80, 0xc0});
  EXPECT_EQ(b.decode(), row_of(96, {{0, 1.0}, {16, 2.0}, {32, 3.0}, {95, -4.0}}));
}

TEST(DecodeToken, GqaFp8) {
  // Keys 32 bytes, values 64; a page of 2 has 192: key 192 + 32, value 192 + 64 + 64.
  Bytes b(CacheLayout(LayoutKind::gqa_fp8, {.kv_heads = 2, .head_dim = 16, .v_head_dim = 32}));
  b.zero(224, 32).zero(320, 64).put(224, {0x38}).put(255, {0x40}).put(320, {0x38}).put(383, {0xb8});
  EXPECT_EQ(b.decode(2.0f, 0.5f), row_of(96, {{0, 2.0}, {31, 4.0}, {32, 0.5}, {95, -0.5}}));
}

TEST(DecodeToken, OffsetsBeyondFourGigabytes) {
  // Only the last page is ever touched, so the mapping costs no memory.
  const CacheLayout layout(LayoutKind::mla_bf16, {.nope = 16});
  constexpr std::int64_t kStride = std::int64_t{3} << 30;
  constexpr std::size_t kSize = std::size_t{2} * kStride + 4096;
  void* memory = mmap(nullptr, kSize, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "no address space for a pool of 6 GiB";
  auto* bytes = static_cast<std::byte*>(memory);
  bytes[2 * kStride + 1] = std::byte{0x40};
  const ConstPoolView pool(bytes, layout, 1, 3, kStride);
  std::vector<double> row(16);
  decode_token(pool, Slot(2), 1, 1, row);
  EXPECT_EQ(row[0], 2.0);
  munmap(memory, kSize);
}

}  // namespace
}  // namespace lathe
