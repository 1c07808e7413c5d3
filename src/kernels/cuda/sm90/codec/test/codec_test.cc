// The codecs without a device: errors are reported before any launch, and a failed launch names
// itself.
#include "kernels/cuda/sm90/codec/codec.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>

namespace lathe::cuda {
namespace {

struct CodecCall {
  CacheLayout layout{LayoutKind::mla_fp8_block};
  std::array<std::byte, 64> memory{};  // never read
  std::array<Slot, 3> slots{};
  PoolView pool{memory.data(), layout, 64, 2};
  RowsView rows{memory.data(), DType::bf16, 3, 576, 576};
  MutableRowsView out{memory.data(), DType::bf16, 3, 576, 576};
  TensorScales scales;
};

std::string codec_field_of(const Result<void>& r) { return r.ok() ? "ok" : r.error().field; }

TEST(Codec, RefusesBeforeItLaunches) {
  const auto encode = [](auto change) {
    CodecCall c;
    change(c);
    return codec_field_of(encode_rows(c.rows, c.slots, c.pool, c.scales, nullptr));
  };
  EXPECT_EQ(encode([](CodecCall& c) { c.rows.dtype = DType::e4m3; }), "rows.dtype");
  EXPECT_EQ(encode([](CodecCall& c) { c.rows.rows = 2; }), "rows.rows");
  EXPECT_EQ(encode([](CodecCall& c) { c.rows.cols = 512; }), "rows.cols");
  EXPECT_EQ(encode([](CodecCall& c) { c.rows.row_stride = 1LL << 40; }), "rows.row_stride");
  EXPECT_EQ(encode([](CodecCall& c) { c.rows.row_stride = 1LL << 60; }), "rows.row_stride");
  EXPECT_EQ(encode([](CodecCall& c) { c.pool.page_size = 0; }), "pool.page_size");
  EXPECT_EQ(encode([](CodecCall& c) { c.scales.key = 0; }), "scales.key");
  const auto scattered = [](std::int64_t bytes, std::int64_t past) {
    CodecCall c;
    c.scales.key = 0;
    alignas(16) std::array<std::byte, 4096> scratch;
    const auto room =
        std::span(scratch).subspan(static_cast<std::size_t>(past), static_cast<std::size_t>(bytes));
    return codec_field_of(encode_scattered(c.rows, c.slots, c.pool, c.scales, room, nullptr));
  };
  // Counts of 256 parts, in total and per block, and the tokens.
  constexpr std::int64_t kThree = 2 * 256 * 4 + 3 * 8;
  EXPECT_EQ(order_scratch_bytes(3), kThree);
  EXPECT_EQ(order_scratch_bytes(4097), 3 * 256 * 4 + 4097 * 8);
  EXPECT_EQ(scattered(kThree - 1, 0), "scratch");
  EXPECT_EQ(scattered(kThree, 8), "scratch");
  EXPECT_EQ(scattered(kThree, 0), "scales.key");
  const auto decode = [](auto change, Slot first) {
    CodecCall c;
    change(c);
    return codec_field_of(decode_rows(c.pool, first, c.out, c.scales, nullptr));
  };
  EXPECT_EQ(decode([](CodecCall&) {}, Slot(126)), "first");
  EXPECT_EQ(decode([](CodecCall&) {}, Slot(-1)), "first");
  EXPECT_EQ(decode([](CodecCall& c) { c.out.rows = -1; }, Slot(0)), "out.rows");
  EXPECT_EQ(decode([](CodecCall& c) { c.out.row_stride = 1LL << 40; }, Slot(0)), "out.row_stride");

  CodecCall c;
  const auto fewer = std::span<const Slot>(c.slots).first(2);
  EXPECT_EQ(codec_field_of(gather_decode(c.pool, fewer, c.out, {}, nullptr)), "out.rows");
  EXPECT_EQ(codec_field_of(move_tokens(c.pool, c.slots, fewer, nullptr, nullptr)), "dst");
  EXPECT_EQ(codec_field_of(move_tokens(c.pool, c.slots, c.slots, c.memory.data() + 1, nullptr)),
            "staging");
  EXPECT_EQ(
      codec_field_of(requantize(
          {.src = c.pool, .src_slots = c.slots, .dst = c.pool, .dst_slots = c.slots}, nullptr)),
      "requantize");
  RopeWrite write;
  write.k = c.rows;
  write.slots = c.slots;
  EXPECT_EQ(codec_field_of(rope_quantize_write(write, c.pool, nullptr)), "table");
  write.table = {nullptr, 10, 64, RopePairing::interleaved};
  EXPECT_EQ(codec_field_of(rope_quantize_write(write, c.pool, nullptr)), "table.data");
  const std::array<float, 64> angles{};
  const std::array<LocalPos, 3> positions{};
  write.table.data = angles.data();
  EXPECT_EQ(codec_field_of(rope_quantize_write(write, c.pool, nullptr)), "positions");
  write.positions = positions;
  write.table.positions = -5;
  EXPECT_EQ(codec_field_of(rope_quantize_write(write, c.pool, nullptr)), "table.positions");
  write.table = {angles.data(), 1, -16, RopePairing::interleaved};
  EXPECT_EQ(codec_field_of(rope_quantize_write(write, c.pool, nullptr)), "table.dim");
  EXPECT_EQ(codec_field_of(
                apply_rope(write.table, positions, c.out, 1, 16, RopeDirection::forward, nullptr)),
            "table.dim");
  write.table.dim = 64;
  write.q = c.rows;
  write.q_out = c.out;
  EXPECT_EQ(codec_field_of(rope_quantize_write(write, c.pool, nullptr)), "q_out.data");
}

TEST(Codec, ZeroRowsNeedNoScratch) {
  CodecCall c;
  c.rows.rows = 0;
  EXPECT_EQ(order_scratch_bytes(0), 0);
  EXPECT_EQ(codec_field_of(encode_scattered(c.rows, {}, c.pool, {}, {}, nullptr)), "ok");
}

TEST(Codec, ALaunchThatFailsNamesItsShapeAndItsCaller) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) {
    GTEST_SKIP() << "there is a device, and the launch would not fail";
  }
  CodecCall c;
  const auto result = encode_rows(c.rows, c.slots, c.pool, {}, nullptr);
  const int line = __LINE__ - 1;
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().field,
            "kernel encode (mla_fp8_block(nope=512,rope=64,scale=pow2_ceil), 3 rows, page 64) "
            "launched at codec_test.cc:" +
                std::to_string(line));
  EXPECT_EQ(result.error().code, ErrorCode::device);
}

TEST(Codec, AReportIsReadFromItsWords) {
  const std::array slots = {Slot(7), Slot(8), Slot(9)};
  EXPECT_TRUE(requant_report({}, slots).worst_slot.is_hole());
  const std::uint64_t bits = std::bit_cast<std::uint32_t>(0.25f);
  const auto report = requant_report({bits << 32 | (0xffffffffu - 2), 5}, slots);
  EXPECT_EQ(report.worst_abs_error, 0.25f);
  EXPECT_EQ(report.worst_slot, Slot(9));
  EXPECT_EQ(report.saturated, 5);
}

TEST(Codec, StagingHoldsEveryPlane) {
  EXPECT_EQ(move_staging_bytes(CacheLayout(LayoutKind::mla_fp8_block), 3), 3 * 656);
  // 3 x 576, and 3 x 8 rounded up to 32.
  EXPECT_EQ(move_staging_bytes(CacheLayout(LayoutKind::v4_fp8), 3), 3 * 576 + 32);
}

}  // namespace
}  // namespace lathe::cuda
