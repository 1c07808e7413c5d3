// Runs the codec kernels thread by thread on the CPU (common/emulator.h) and compares every byte of
// pools and rows, poison included, with the CPU's codecs.
// Compiled alone: it includes kernels.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/test_scale.h"
#include "kernels/cuda/sm90/codec/codec.h"
#include "kernels/cuda/sm90/codec/codec_kernels.h"
#include "kernels/cuda/sm90/codec/codec_launch.h"
#include "kernels/cuda/sm90/codec/decode.cuh"
#include "kernels/cuda/sm90/codec/index_keys.cuh"
#include "kernels/cuda/sm90/codec/move.cuh"
#include "kernels/cuda/sm90/codec/order.cuh"
#include "kernels/cuda/sm90/codec/requantize_tiles.cuh"
#include "layout/codec/test/codec_test_util.h"
#include "layout/pages/copy_records.h"
#include "layout/rope/rope_write.h"
#include "layout/rope/test/rope_write_test_util.h"

namespace lathe::cuda {
namespace {

constexpr int kRows = 11;

// Distinct slots of a pool in random order, with a hole and with numbers outside the pool, which
// count as holes on a device.
std::vector<Slot> some_slots(std::int64_t slots, int count, std::mt19937& rng) {
  std::vector<int> all(static_cast<std::size_t>(slots));
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), rng);
  all.resize(static_cast<std::size_t>(count), -1);
  all[2] = -1;
  all[5] = static_cast<int>(slots);
  all[7] = -1000;
  return to_slots(all);
}

// The same list for the CPU, which rejects slots outside the pool: they become holes.
std::vector<Slot> with_holes(std::vector<Slot> slots, std::int64_t pool_slots) {
  for (Slot& s : slots) {
    if (s.value < 0 || s.value >= pool_slots) s = Slot();
  }
  return slots;
}

// Runs with the default rows per block, and with a few per block, so that there are several blocks.
template <class Params, class Run>
void for_block_rows(Params p, Run run) {
  run(p);
  set_blocks(p, 4);
  run(p);
}

template <class Params, class Kernel>
void run(Kernel kernel, const Params& p) {
  emulate({blocks_of(p), 1, 1}, p.threads, kernel, p);
}

TEST(CodecEmulated, EncodeWritesTheBytesOfTheCpu) {
  std::mt19937 rng(test_seed(11));
  for (const CacheLayout& layout : scaled(layouts_to_test())) {
    for (DType dtype : {DType::bf16, DType::f32}) {
      for (std::int32_t page_size : {1, 6}) {
        // A stride and row length that allow 16-byte accesses, and others that do not.
        for (std::int64_t extra : {0, 16, 3}) {
          const std::int64_t pages = 24 / page_size;
          OwnedPool cpu(layout, page_size, pages, extra);
          OwnedPool gpu(cpu);
          OwnedRows rows(dtype, kRows, layout.row_elems(), extra);
          fill_adversarial(rows, rng);
          // Encoders have a shorter path for batches without infinities and NaN.
          if (rng() % 2 == 0) make_finite(rows);
          const auto slots = some_slots(cpu.view.slots(), kRows, rng);
          const TensorScales scales{0.7f, 3.0f};
          ASSERT_TRUE(
              lathe::encode_rows(rows.read(), with_holes(slots, 24), cpu.view, scales).ok());
          for_block_rows(encode_params(rows.read(), slots, gpu.view, scales), [&](auto p) {
            gpu.bytes.assign(gpu.bytes.size(), kPoison);
            run(encode_kernel_of(p, dtype, false), p);
            ASSERT_EQ(first_difference(cpu.bytes, gpu.bytes), -1)
                << layout.serialize() << " " << name(dtype) << " page " << page_size << " extra "
                << extra << " rows of a block " << p.block_rows;
          });
        }
      }
    }
  }
}

// More than two blocks of tokens, the last one partial, and slots of all parts; then a few tokens
// for every layout.
TEST(CodecEmulated, OrderedTokensAreWrittenLikeOthers) {
  std::mt19937 rng(test_seed(17));
  std::vector<CacheLayout> layouts = scaled(layouts_to_test());
  layouts.insert(layouts.begin(), CacheLayout(LayoutKind::index_fp8));
  bool many = true;
  for (const CacheLayout& layout : layouts) {
    const int count = many ? 2 * kOrderRows + 77 : kRows;
    const std::int64_t pages = many ? 256 : 4, page_size = many ? 64 : 6;
    many = false;
    OwnedPool cpu(layout, static_cast<std::int32_t>(page_size), pages, 0);
    OwnedPool gpu(cpu);
    OwnedRows rows(DType::bf16, count, layout.row_elems(), 0);
    fill_adversarial(rows, rng);
    const auto slots = some_slots(cpu.view.slots(), count, rng);
    EncodeParams p = encode_params(rows.read(), slots, gpu.view, {});
    if (!can_order(p, DType::bf16)) continue;
    std::vector<std::uint64_t> scratch(static_cast<std::size_t>(order_scratch_bytes(count)) / 8 + 1,
                                       0x5555555555555555u);
    const OrderParams order = order_params(p, std::as_writable_bytes(std::span(scratch)));
    std::fill_n(order.totals, kOrderParts, 0u);
    const auto blocks = static_cast<unsigned>(order_blocks(count));
    emulate({blocks, 1, 1}, kOrderThreads, order_count_kernel, order);
    emulate({blocks, 1, 1}, kOrderThreads, order_list_kernel, order);
    // Each token occurs once, with its slot, ordered by part.
    std::vector<bool> seen(static_cast<std::size_t>(count));
    const auto part = [&](const OrderEntry& e) {
      return std::min(static_cast<std::uint32_t>(e.slot) >> order.shift, kOrderParts - 1u);
    };
    for (int i = 0; i < count; ++i) {
      const OrderEntry& e = order.order[i];
      ASSERT_LT(e.token, static_cast<std::uint32_t>(count));
      ASSERT_FALSE(seen[e.token]);
      seen[e.token] = true;
      ASSERT_EQ(e.slot, slots[e.token].value);
      ASSERT_LE(part(order.order[std::max(i - 1, 0)]), part(e));
    }
    const auto plain = encode_kernel_of(p, DType::bf16, false);
    p.order = order.order;
    ASSERT_NE(encode_kernel_of(p, DType::bf16, false), plain) << layout.serialize();
    run(encode_kernel_of(p, DType::bf16, false), p);
    ASSERT_TRUE(
        lathe::encode_rows(rows.read(), with_holes(slots, cpu.view.slots()), cpu.view).ok());
    ASSERT_EQ(first_difference(cpu.bytes, gpu.bytes), -1) << layout.serialize();
  }
}

// A pool of random bytes: has every code and arbitrary scales.
OwnedPool random_pool(const CacheLayout& layout, std::int32_t page_size, std::int64_t pages,
                      std::int64_t extra, std::mt19937& rng) {
  OwnedPool pool(layout, page_size, pages, extra);
  for (std::byte& b : pool.bytes) b = static_cast<std::byte>(rng());
  return pool;
}

TEST(CodecEmulated, DecodeGivesTheBitsOfTheCpu) {
  std::mt19937 rng(test_seed(12));
  for (const CacheLayout& layout : scaled(layouts_to_test())) {
    for (DType dtype : {DType::bf16, DType::f32}) {
      for (std::int64_t extra : {0, 16, 3}) {
        const std::int32_t page_size = extra == 16 ? 1 : 6;
        const OwnedPool pool = random_pool(layout, page_size, 24 / page_size, extra, rng);
        auto slots = some_slots(24, kRows, rng);
        slots[9] = slots[8] = slots[0];  // a gather may read a slot more than once
        OwnedRows cpu(dtype, kRows, layout.row_elems(), extra);
        OwnedRows gpu(cpu);
        const TensorScales scales{0.7f, 3.0f};
        ASSERT_TRUE(lathe::gather_decode(pool.view, with_holes(slots, 24), cpu.view, scales).ok());
        for_block_rows(decode_params(pool.view, slots, Slot(), gpu.view, scales), [&](auto p) {
          gpu.bytes.assign(gpu.bytes.size(), kPoison);
          run(decode_kernel_of(p, dtype), p);
          ASSERT_EQ(first_difference(cpu.bytes, gpu.bytes), -1)
              << layout.serialize() << " " << name(dtype) << " extra " << extra;
        });
        ASSERT_TRUE(lathe::decode_rows(pool.view, Slot(9), cpu.view, scales).ok());
        const DecodeParams plain = decode_params(pool.view, {}, Slot(9), gpu.view, scales);
        run(decode_kernel_of(plain, dtype), plain);
        ASSERT_EQ(first_difference(cpu.bytes, gpu.bytes), -1) << layout.serialize();
      }
    }
  }
}

// Every scale that a tile can get: the power-of-two shortcuts against the layout's own rule.
TEST(CodecEmulated, TileScalesAreThoseOfTheCpu) {
  const auto check = [](std::uint32_t bits) {
    const float amax = bits_to_float(bits);
    const auto wanted = lathe::tile_scale(amax, DType::e4m3, ScalePolicy::pow2_ceil);
    ASSERT_EQ(pow2_e4m3_scale(amax).scale, wanted) << amax;
    ASSERT_EQ(pow2_e4m3_scale(amax).inverse, 1.0f / wanted) << amax;
    const auto fp4 = lathe::tile_scale(amax, DType::e2m1, ScalePolicy::ue8m0);
    ASSERT_EQ(pow2_e2m1_scale(amax).scale, fp4) << amax;
    ASSERT_EQ(pow2_e2m1_scale(amax).inverse, 1.0f / fp4) << amax;
    ASSERT_EQ(float_to_bits(fp4) >> 23, to_ue8m0_ceil(fp4).bits) << amax;
    const auto raw = lathe::tile_scale(amax, DType::e4m3, ScalePolicy::raw_f32);
    ASSERT_EQ(raw_e4m3_scale(amax).scale, raw) << amax;
  };
  // Samples of the whole range, and all neighbours of the numbers where the power of two changes.
  for (std::uint32_t bits = 0; bits < 0x7f800000u; bits += 4093) check(bits);
  for (std::uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (std::uint32_t mantissa : {0u, 0x400000u, 0x600000u}) {
      for (std::uint32_t d = 0; d < 17; ++d) {
        const std::uint32_t bits = (exponent << 23) + mantissa + d;
        if (bits >= 8) check(bits - 8);
      }
    }
  }
}

TEST(CodecEmulated, E2m1CodesAreThoseOfTheCpu) {
  const auto check = [](std::uint32_t bits) {
    const float x[8] = {bits_to_float(bits), 0, 0, 0, 0, 0, 0, bits_to_float(bits ^ 0x80000000u)};
    const std::uint32_t codes = to_raw_e2m1(x, 1.0f);
    ASSERT_EQ(codes & 15u, to_e2m1(x[0]).bits) << x[0];
    ASSERT_EQ(codes >> 28, to_e2m1(x[7]).bits) << x[7];
  };
  for (std::uint64_t bits = 0; bits < 0x100000000u; bits += 65521) {
    check(static_cast<std::uint32_t>(bits));
  }
  for (float tie : {0.25f, 0.5f, 0.75f, 1.0f, 1.25f, 1.75f, 2.0f, 2.5f, 3.5f, 4.0f, 5.0f, 6.0f}) {
    for (std::uint32_t d = 0; d < 9; ++d) check(float_to_bits(tie) - 4 + d);
  }
}

// Every bf16 that the shorter path can see, with a scale of 1 and the extreme scales.
TEST(CodecEmulated, E2m1CodesOfBf16AreThoseOfTheCpu) {
  for (std::uint32_t bits = 0; bits <= 0xffffu; ++bits) {
    const float x = bits_to_float(bits << 16);
    for (float inverse : {1.0f, 0x1p33f, 0x1p-125f}) {
      if (!(std::fabs(x * inverse) <= kE2m1Max)) continue;
      const Raw<bf16> raw{{bits, bits << 16, 0, bits | bits << 16}};
      const std::uint32_t code = to_e2m1(x * inverse).bits;
      ASSERT_EQ(to_raw_e2m1_numbers(raw, inverse), code | code << 12 | code << 24 | code << 28)
          << x << " times " << inverse;
    }
  }
}

TEST(CodecEmulated, RequantizeGivesTheBytesAndTheReportOfTheCpu) {
  std::mt19937 rng(test_seed(13));
  struct Pair {
    const char* src;
    const char* dst;
    float src_scale;
  };
  for (const Pair& pair :
       {Pair{"mla_fp8", "mla_fp8_block", 0.25f},
        Pair{"mla_fp8", "mla_fp8_block(scale=raw_f32)", 0.7f},
        Pair{"mla_fp8_block", "mla_fp8", 1.0f},
        Pair{"mla_fp8_block(nope=384,rope=80,scale=raw_f32)", "mla_fp8(nope=384,rope=80)", 1.0f},
        Pair{"mla_fp8(nope=512,rope=192)", "mla_fp8_block(nope=512,rope=192)", 0.25f},
        Pair{"mla_fp8(nope=128,rope=0)", "mla_fp8_block(nope=128,rope=0)", 1}}) {
    const CacheLayout from = *CacheLayout::parse(pair.src);
    const CacheLayout to = *CacheLayout::parse(pair.dst);
    for (std::int64_t extra : {0, 3}) {
      const OwnedPool src = random_pool(from, 6, 4, extra, rng);
      if (from.kind() == LayoutKind::mla_fp8_block) {  // finite scales
        OwnedRows rows(DType::f32, 24, from.row_elems());
        fill_adversarial(rows, rng, 64);
        ASSERT_TRUE(lathe::encode_rows(rows.read(), slots_from(0, 24), src.view).ok());
      }
      OwnedPool cpu(to, 4, 6, extra);
      OwnedPool gpu(cpu);
      const auto src_slots = some_slots(24, kRows, rng);
      auto dst_slots = some_slots(24, kRows, rng);
      std::rotate(dst_slots.begin(), dst_slots.begin() + 1, dst_slots.end());
      const TensorScales src_scales{pair.src_scale, 1};
      const TensorScales dst_scales{0.35f, 1};
      const auto report = lathe::requantize(src.view, with_holes(src_slots, 24), cpu.view,
                                            with_holes(dst_slots, 24), src_scales, dst_scales);
      ASSERT_TRUE(report.ok()) << report.error().message();
      auto built = requant_params(src.view, src_slots, gpu.view, dst_slots, src_scales, dst_scales);
      for_block_rows(built, [&](auto p) {
        gpu.bytes.assign(gpu.bytes.size(), kPoison);
        run(requantize_kernel_of(p, to.kind() == LayoutKind::mla_fp8_block), p);
        ASSERT_EQ(first_difference(cpu.bytes, gpu.bytes), -1) << pair.src << " to " << pair.dst;
        gpu.bytes.assign(gpu.bytes.size(), kPoison);
        unsigned long long words[2] = {};
        p.report = words;
        run(requantize_kernel_of(p, to.kind() == LayoutKind::mla_fp8_block), p);
        ASSERT_EQ(first_difference(cpu.bytes, gpu.bytes), -1) << pair.src << " to " << pair.dst;
        EXPECT_EQ(bits_to_float(static_cast<std::uint32_t>(words[0] >> 32)),
                  report->worst_abs_error);
        if (words[0] != 0) {
          const auto row = 0xffffffffu - static_cast<std::uint32_t>(words[0]);
          EXPECT_EQ(src_slots.at(row), report->worst_slot);
        }
        EXPECT_EQ(static_cast<std::int64_t>(words[1]), report->saturated);
      });
    }
  }
}

// Among equal errors the first row is reported, even if the same lane processes it after the other.
TEST(CodecEmulated, RequantizeTellsTheFirstOfEquallyWorstRows) {
  const CacheLayout from = *CacheLayout::parse("mla_fp8_block(nope=384,rope=80)");
  const CacheLayout to = *CacheLayout::parse("mla_fp8(nope=384,rope=80)");
  const std::vector<Slot> slots = slots_from(0, kRows);
  for (int with_code = 1; with_code < kRows; ++with_code) {
    for (int with_rope = 0; with_rope < with_code; ++with_rope) {
      OwnedRows rows(DType::bf16, kRows, from.row_elems());
      std::fill(rows.bytes.begin(), rows.bytes.end(), std::byte{0});
      rows.set(with_code, 7, 1.25f);
      rows.set(with_rope, 390, 1.25f);
      OwnedPool src(from, 4, 3), dst(to, 4, 3);
      ASSERT_TRUE(lathe::encode_rows(rows.read(), slots, src.view).ok());
      RequantParams p = requant_params(src.view, slots, dst.view, slots, {}, {0.35f, 1});
      set_blocks(p, 16);
      unsigned long long words[2] = {};
      p.report = words;
      run(requantize_kernel_of(p, false), p);
      EXPECT_EQ(0xffffffffu - static_cast<std::uint32_t>(words[0]),
                static_cast<std::uint32_t>(with_rope))
          << with_code;
    }
  }
}

// Normal numbers times `scale`; `ties` numbers are half way between two codes.
OwnedRows normal_rows(const CacheLayout& layout, int rows, float scale, int ties,
                      std::mt19937& rng) {
  std::normal_distribution<float> normal;
  OwnedRows out(DType::bf16, rows, layout.row_elems());
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < layout.row_elems(); ++c) out.set(r, c, normal(rng) * scale);
  }
  for (int i = 0; i < ties; ++i) {
    out.set(static_cast<int>(rng() % static_cast<unsigned>(rows)),
            layout.row_elems() - 1 - static_cast<int>(rng() % 64), 4.25f * scale);
  }
  return out;
}

// Reports the worst loss whatever was reported before: a smaller one, the same one from an earlier
// or later row, or a larger one.
TEST(CodecEmulated, RequantizeTellsTheWorstOfAllThatIsTold) {
  std::mt19937 rng(test_seed(17));
  constexpr int kMany = 37;
  const CacheLayout to = *CacheLayout::parse("mla_fp8");
  struct Numbers {
    float rows, dst_scale;
    int ties;
  };
  for (const char* text : {"mla_fp8_block", "mla_fp8_block(scale=raw_f32)"}) {
    const CacheLayout from = *CacheLayout::parse(text);
    for (const Numbers& n :
         {Numbers{1, 1, 0}, Numbers{1, 1, 9}, Numbers{1, 0.35f, 9}, Numbers{0x1p-11f, 1, 0},
          Numbers{0x1p-11f, 1, 9}, Numbers{1e-3f, 1e-7f, 0}, Numbers{1e30f, 1, 0},
          Numbers{1, 0x1p-70f, 0}, Numbers{0, 1, 0}}) {
      const OwnedRows rows = normal_rows(from, kMany, n.rows, n.ties, rng);
      OwnedPool src(from, 8, 5), cpu(to, 8, 5), gpu(cpu);
      const auto slots = some_slots(40, kMany, rng);
      const auto clean = with_holes(slots, 40);
      const auto in_order = slots_from(0, kMany);
      ASSERT_TRUE(lathe::encode_rows(rows.read(), in_order, src.view).ok());
      const TensorScales scales{n.dst_scale, 1};
      const auto report = lathe::requantize(src.view, in_order, cpu.view, clean, {}, scales);
      ASSERT_TRUE(report.ok());
      RequantParams p = requant_params(src.view, in_order, gpu.view, slots, {}, scales);
      ASSERT_TRUE(p.tiles);
      using Word = unsigned long long;
      const auto word = [](float error, int row) {
        return Word{float_to_bits(error)} << 32 | (0xffffffffu - static_cast<unsigned>(row));
      };
      const float worst = report->worst_abs_error;
      const int row = report->worst_slot.value;
      const Word own = worst == 0 ? 0 : word(worst, row);
      for (const Word told : {Word{0}, word(worst, row + 1), word(worst, row - 1),
                              word(worst / 2, 0), word(std::nextafter(worst, 0.0f), 0),
                              word(std::nextafter(worst, 1e38f), kMany), word(1e38f, 99)}) {
        for (const int block_rows : {1, 16}) {
          set_blocks(p, block_rows);
          gpu.bytes.assign(gpu.bytes.size(), kPoison);
          Word words[2] = {told, 5};
          p.report = words;
          run(requantize_kernel_of(p, false), p);
          EXPECT_EQ(words[0], std::max(own, told))
              << n.rows << " over " << n.dst_scale << ": " << worst << " of row " << row;
          EXPECT_EQ(static_cast<std::int64_t>(words[1]) - 5, report->saturated) << n.rows;
          ASSERT_EQ(first_difference(cpu.bytes, gpu.bytes), -1) << n.rows;
        }
      }
    }
  }
}

// Numbers below harmless_below() lose less than the reported loss. Checks midpoints between codes,
// which lose most, and their neighbours.
TEST(CodecEmulated, HarmlessNumbersLoseLess) {
  for (const float scale : {1.0f, 0.35f, 0x1p-11f, 3.0f, 0x1p-60f, 0x1p60f}) {
    for (const float share :
         {0x1p-12f, 0x1p-10f, 0x1.01p-10f, 0x1.02p-10f, 0x1p-8f, 0.01f, 0.5f, 3.0f, 30.0f}) {
      const float worst = share * scale, below = harmless_below(worst, scale);
      EXPECT_EQ(below > 0, share > 0x1.01p-10f) << scale << ", " << share;
      for (int code = 0; code < 0x7e; ++code) {
        const float middle = (to_f32(e4m3{static_cast<std::uint8_t>(code)}) +
                              to_f32(e4m3{static_cast<std::uint8_t>(code + 1)})) /
                             2 * scale;
        for (const float x :
             {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, 1e38f)}) {
          if (x >= below) continue;
          const float y = to_f32(to_e4m3(x * (1 / scale))) * scale;
          ASSERT_LT(std::abs(x - y), worst) << scale << ", " << share << ", code " << code;
        }
      }
      EXPECT_LE(below, 448 * scale);
    }
  }
  EXPECT_EQ(harmless_below(1, 0x1p-61f), 0);
  EXPECT_EQ(harmless_below(0x1p70f, 0x1p61f), 0);
}

// Index keys for several steps of a warp, in rows with and without infinities and NaN.
TEST(CodecEmulated, WritesIndexKeysOfEveryRotation) {
  std::mt19937 rng(test_seed(18));
  constexpr int kMany = 70;
  const CacheLayout layout(LayoutKind::index_fp8);
  for (RopePairing pairing : enum_values<RopePairing>()) {
    const auto table = *RopeTable::make({.dim = 64, .pairing = pairing}, 100);
    for (RopeDirection direction : enum_values<RopeDirection>()) {
      for (const int first : {0, 64}) {
        for (const int special : {0, 1, 70}) {  // rows
          OwnedRows k(DType::bf16, kMany, 128, 8);
          fill_adversarial(k, rng);
          OwnedRows numbers(k);
          make_finite(numbers);
          const auto bytes = k.bytes.size() / kMany * static_cast<std::size_t>(special);
          std::copy(numbers.bytes.begin() + static_cast<std::ptrdiff_t>(bytes), numbers.bytes.end(),
                    k.bytes.begin() + static_cast<std::ptrdiff_t>(bytes));
          auto slots = some_slots(96, kMany, rng);
          auto clean = with_holes(slots, 96);
          std::vector<LocalPos> positions, known;
          for (int t = 0; t < kMany; ++t) {
            const bool hole = t % 9 == 4;
            positions.emplace_back(!hole ? static_cast<int>(rng() % 100) : t % 2 == 0 ? -1 : 100);
            known.emplace_back(hole ? -1 : positions.back().value);
            if (hole) clean[static_cast<std::size_t>(t)] = Slot();
          }
          // The rotated row in f32, which is not rounded.
          OwnedRows rotated(DType::f32, kMany, 128);
          for (int r = 0; r < kMany; ++r) {
            for (int c = 0; c < 128; ++c) rotated.set(r, c, k.get(r, c));
          }
          OwnedPool cpu(layout, 32, 3), gpu(cpu);
          ASSERT_TRUE(lathe::apply_rope(table, known, rotated.view, 1, first, direction).ok());
          ASSERT_TRUE(lathe::encode_rows(rotated.read(), clean, cpu.view).ok());
          RopeParams rope = rope_params(table.data().data(), 100, 64, pairing, positions, first);
          rope.inverse = direction == RopeDirection::inverse;
          EncodeParams p = encode_params(k.read(), slots, gpu.view, {}, rope);
          ASSERT_EQ(p.index_keys, direction == RopeDirection::forward);
          for (const int block_rows : {1, 7, 64}) {
            set_blocks(p, block_rows);
            gpu.bytes.assign(gpu.bytes.size(), kPoison);
            run(encode_kernel_of(p, DType::bf16, true), p);
            ASSERT_EQ(first_difference(cpu.bytes, gpu.bytes), -1)
                << name(pairing) << " " << first << " " << special << " " << block_rows;
          }
        }
      }
    }
  }
}

TEST(CodecEmulated, RopeWriteGivesTheBytesOfTheCpu) {
  std::mt19937 rng(test_seed(14));
  std::vector<LocalPos> positions = {LocalPos(0),  LocalPos(63), LocalPos(5), LocalPos(-1),
                                     LocalPos(17), LocalPos(17), LocalPos(1), LocalPos(2),
                                     LocalPos(9),  LocalPos(30), LocalPos(4)};
  for (const RopeCase& c : scaled(std::vector(std::begin(kRopeCases), std::end(kRopeCases)))) {
    const CacheLayout layout = *CacheLayout::parse(c.layout);
    const std::int64_t w = layout.row_elems();
    for (RopePairing pairing : enum_values<RopePairing>()) {
      for (DType in : {DType::bf16, DType::f32}) {
        for (DType out : {DType::bf16, DType::e4m3, DType::f32}) {
          const std::int64_t extra = out == DType::bf16 ? 5 : 16;
          std::optional<RopeTable> table;
          if (c.dim > 0) table = *RopeTable::make({.dim = c.dim, .pairing = pairing}, 64);
          OwnedRows k(in, kRows, w, extra), q(in, kRows, 3 * w, extra);
          fill_adversarial(k, rng);
          if (rng() % 2 == 0) make_finite(k);
          fill_adversarial(q, rng);
          OwnedRows cpu_q(out, kRows, 3 * w, extra), gpu_q(cpu_q);
          OwnedPool cpu(layout, 4, 6), gpu(cpu);
          const auto slots = some_slots(24, kRows, rng);
          const auto clean = with_holes(slots, 24);
          lathe::RopeWrite op;
          op.k = k.read();
          op.q = q.read();
          op.positions = positions;
          op.slots = clean;
          op.table = table ? &*table : nullptr;
          op.place = c.place;
          op.scales = {0.25f, 1};
          op.q_scale = 0.7f;
          op.q_out = cpu_q.view;
          ASSERT_TRUE(lathe::rope_quantize_write(op, cpu.view).ok());

          auto beyond = positions;
          if (c.dim > 0) beyond[3] = LocalPos(64);  // a hole, too
          const std::int64_t first = c.place == RopePlace::last ? w - c.dim : 0;
          const RopeParams rope =
              rope_params(table ? table->data().data() : nullptr, table ? table->positions() : 0,
                          c.dim, pairing, beyond, first);
          if (out == DType::bf16) {  // k does not depend on q's type
            const auto k_params = encode_params(k.read(), slots, gpu.view, op.scales, rope);
            for_block_rows(k_params, [&](const EncodeParams& p) {
              gpu.bytes.assign(gpu.bytes.size(), kPoison);
              run(encode_kernel_of(p, in, true), p);
              ASSERT_EQ(first_difference(cpu.bytes, gpu.bytes), -1)
                  << c.layout << " " << name(in) << " " << name(pairing);
            });
          }
          const auto q_params =
              rotate_params(q.read(), gpu_q.view, 3, slots, 24, 0.7f, rope, false);
          for_block_rows(q_params, [&](const EncodeParams& p) {
            gpu_q.bytes.assign(gpu_q.bytes.size(), kPoison);
            run(encode_kernel_of(p, in, true), p);
            ASSERT_EQ(first_difference(cpu_q.bytes, gpu_q.bytes), -1)
                << c.layout << " " << name(in) << " to " << name(out) << " " << name(pairing);
          });
        }
      }
    }
  }
}

TEST(CodecEmulated, RotatesInPlaceBothWays) {
  std::mt19937 rng(test_seed(15));
  for (RopePairing pairing : enum_values<RopePairing>()) {
    for (RopeDirection direction : enum_values<RopeDirection>()) {
      for (DType dtype : {DType::bf16, DType::f32}) {
        const auto table = *RopeTable::make({.dim = 64, .pairing = pairing}, 20);
        std::vector<LocalPos> positions;
        for (int i = 0; i < kRows; ++i) positions.emplace_back(i % 4 == 1 ? -1 : i + 7);
        OwnedRows cpu(dtype, kRows, 3 * 112, 16);
        fill_adversarial(cpu, rng);
        OwnedRows gpu(cpu);
        ASSERT_TRUE(lathe::apply_rope(table, positions, cpu.view, 3, 32, direction).ok());
        RopeParams rope = rope_params(table.data().data(), 20, 64, pairing, positions, 32);
        rope.inverse = direction == RopeDirection::inverse;
        const auto p = rotate_params(gpu.read(), gpu.view, 3, {}, 0, 1, rope, true);
        run(encode_kernel_of(p, dtype, true), p);
        ASSERT_EQ(first_difference(cpu.bytes, gpu.bytes), -1) << name(pairing);
      }
    }
  }
}

TEST(CodecEmulated, MovesRecordsOfEveryPlane) {
  std::mt19937 rng(test_seed(16));
  for (const CacheLayout& layout : scaled(layouts_to_test())) {
    for (std::int64_t extra : {0, 4, 3}) {
      const OwnedPool before = random_pool(layout, 6, 8, extra, rng);
      // Sources are slots 0-23, destinations 24-47, so a direct move is legal.
      auto src = some_slots(24, kRows, rng);
      src[5] = Slot(48);
      auto dst = with_holes(some_slots(24, kRows, rng), 24);
      std::rotate(dst.begin(), dst.begin() + 1, dst.end());
      for (Slot& s : dst) s = s.is_hole() ? s : Slot(s.value + 24);
      OwnedPool cpu(before), gpu(before), staged(before);
      for (std::size_t i = 0; i < src.size(); ++i) {
        if (src[i].value < 0 || src[i].value >= 48 || dst[i].is_hole()) continue;
        for (int part = 0; part < layout.part_count(); ++part) {
          std::memcpy(cpu.view.at(layout.part(part), dst[i]),
                      before.view.at(layout.part(part), src[i]),
                      static_cast<std::size_t>(layout.part(part).bytes()));
        }
      }
      run(move_kernel, move_params(gpu.view, src, gpu.view, dst));
      std::vector<std::byte> staging(
          static_cast<std::size_t>(move_staging_bytes(layout, std::ssize(src))));
      MoveParams p = move_params(staged.view, src, staged.view, dst);
      p.dense_dst = staging.data();
      run(move_kernel, p);
      std::swap(p.dense_src, p.dense_dst);
      run(move_kernel, p);
      ASSERT_EQ(first_difference(cpu.bytes, gpu.bytes), -1) << layout.serialize();
      ASSERT_EQ(first_difference(cpu.bytes, staged.bytes), -1) << layout.serialize();
    }
  }
}

// Pages of a stride that allows narrow accesses alone, in one pool or in both.
TEST(CodecEmulated, CopiesRecordsOfAnotherPool) {
  std::mt19937 rng(test_seed(17));
  for (const CacheLayout& layout : scaled(layouts_to_test())) {
    for (const auto& [extra, to_extra] : {std::pair(0, 0), std::pair(16, 4), std::pair(8, 3)}) {
      const OwnedPool from = random_pool(layout, 16, 4, extra, rng);
      OwnedPool cpu(layout, 4, 14, to_extra), gpu(cpu);
      const auto src = slots_from(7, kRows);
      const auto dst = with_holes(some_slots(56, kRows, rng), 56);
      std::vector<Slot> kept, places;
      for (std::size_t i = 0; i < src.size(); ++i) {
        if (dst[i].is_hole()) continue;
        kept.push_back(src[i]);
        places.push_back(dst[i]);
      }
      ASSERT_TRUE(lathe::copy_slots(from.view, kept, cpu.view, places).ok());
      for_block_rows(move_params(from.view, src, gpu.view, dst),
                     [](const MoveParams& p) { run(move_kernel, p); });
      ASSERT_EQ(first_difference(cpu.bytes, gpu.bytes), -1) << layout.serialize();
    }
  }
}

}  // namespace
}  // namespace lathe::cuda
