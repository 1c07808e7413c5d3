// The fast codecs give the reference's bits, for every kind of input, layout and SIMD target.
#include "layout/codec/codec_fast.h"

#include "base/test_scale.h"
#include "layout/codec/test/codec_test_util.h"

namespace lathe {
namespace {

constexpr TensorScales kScales[] = {{1, 1}, {0.5f, 4}, {0.037f, 1.3f}, {0x1p-126f, 0x1p126f}};

TEST(CodecFast, RunsOnTheTargetThatATestAsksFor) {
  for_each_target([](const std::string& target) { EXPECT_EQ(codec_simd_target(), target); });
}

TEST(CodecFast, EncodesTheReferenceBytes) {
  for_each_target([](const std::string& target) {
    std::mt19937 rng(test_seed(7));
    for (const CacheLayout& layout : scaled(layouts_to_test())) {
      for (DType dtype : {DType::bf16, DType::f32}) {
        for (const TensorScales& scales : kScales) {
          OwnedRows rows(dtype, 12, layout.row_elems(), 3);
          fill_adversarial(rows, rng);
          OwnedPool slow(layout, 5, 3);
          OwnedPool fast(slow);
          const auto slots = to_slots({14, 3, -1, 0, 7, 7, 13, 1, 2, 9, 11, 4});
          ASSERT_TRUE(
              encode_rows(rows.read(), slots, slow.view, scales, CodecPath::reference).ok());
          ASSERT_TRUE(encode_rows(rows.read(), slots, fast.view, scales, CodecPath::fast).ok());
          ASSERT_EQ(first_difference(slow.bytes, fast.bytes), -1)
              << target << " " << layout.serialize() << " " << name(dtype);
        }
      }
    }
  });
}

// Pools of random bytes: every code with every kind of scale, including NaN and negative ones.
TEST(CodecFast, DecodesTheReferenceBits) {
  for_each_target([](const std::string& target) {
    std::mt19937 rng(test_seed(8));
    for (const CacheLayout& layout : layouts_to_test()) {
      OwnedPool pool(layout, 4, 4, 3);
      for (int round = 0; round < 8 * test_scale(); ++round) {
        for (std::byte& b : pool.bytes) b = static_cast<std::byte>(rng());
        const TensorScales scales = kScales[round % 4];
        const auto slots = to_slots({3, 3, 15, -1, 0, 8, 1, 2, 5, 7, 11, 14, 13, -1, 12, 3, 3, 6});
        for (DType dtype : {DType::bf16, DType::f32}) {
          OwnedRows slow(dtype, 18, layout.row_elems(), 5);
          OwnedRows fast(slow);
          ASSERT_TRUE(
              gather_decode(pool.view, slots, slow.view, scales, CodecPath::reference).ok());
          ASSERT_TRUE(gather_decode(pool.view, slots, fast.view, scales, CodecPath::fast).ok());
          ASSERT_EQ(first_difference(slow.bytes, fast.bytes), -1)
              << target << " " << layout.serialize() << " " << name(dtype);
          slow.view.rows = fast.view.rows = 11;
          ASSERT_TRUE(
              decode_rows(pool.view, Slot(5), slow.view, scales, CodecPath::reference).ok());
          ASSERT_TRUE(decode_rows(pool.view, Slot(5), fast.view, scales, CodecPath::fast).ok());
          ASSERT_EQ(first_difference(slow.bytes, fast.bytes), -1)
              << target << " " << layout.serialize() << " " << name(dtype);
        }
      }
    }
  });
}

// All 65536 bf16 inputs and a sweep of f32 inputs through the e4m3 encoder.
TEST(CodecFast, EncodesEveryBf16) {
  const CacheLayout layout = *CacheLayout::parse("mla_fp8(nope=4096,rope=0)");
  OwnedRows half(DType::bf16, 16, 4096);
  OwnedRows full(DType::f32, 16, 4096);
  std::mt19937 rng(test_seed(9));
  for (int i = 0; i < 65536; ++i) {
    const auto b = static_cast<std::uint16_t>(i);
    std::memcpy(half.view.row(i / 4096) + 2 * (i % 4096), &b, 2);
    // More of the magnitudes 2^-12 to 2^10, where e4m3 has its values.
    const auto r = static_cast<std::uint32_t>(rng());
    const std::uint32_t u = ((115u << 23) + r % (22u << 23)) | (r & 0x80000000u);
    full.set(i / 4096, i % 4096, std::bit_cast<float>(u));
  }
  const auto slots = slots_from(0, 16);
  for_each_target([&](const std::string& target) {
    for (const float key : {1.0f, 0x1p-3f, 3.0f, 0.7f, 1e30f, 1e-30f}) {
      for (const OwnedRows* rows : {&half, &full}) {
        OwnedPool slow(layout, 16, 1);
        OwnedPool fast(slow);
        ASSERT_TRUE(
            encode_rows(rows->read(), slots, slow.view, {key, 1}, CodecPath::reference).ok());
        ASSERT_TRUE(encode_rows(rows->read(), slots, fast.view, {key, 1}, CodecPath::fast).ok());
        ASSERT_EQ(first_difference(slow.bytes, fast.bytes), -1) << target << " " << key;
      }
    }
  });
}

// Every code with every exponent byte, and with f32 scales at the limits of the fast path.
TEST(CodecFast, DecodesEveryCodeUnderEveryScale) {
  const CacheLayout v4 = *CacheLayout::parse("v4_fp8(nope=256,rope=0)");
  const CacheLayout fp4 = *CacheLayout::parse("mla_fp4(nope=16,rope=0)");
  const CacheLayout block = *CacheLayout::parse("mla_fp8_block(nope=256,rope=0)");
  std::vector<float> scales;
  for (std::uint32_t e = 0; e < 256; ++e) {
    for (std::uint32_t m : {0u, 1u, 0x400000u, 0x7fffffu}) {
      scales.push_back(std::bit_cast<float>(e << 23 | m));
      scales.push_back(std::bit_cast<float>(0x80000000u | e << 23 | m));
    }
  }
  OwnedPool a(v4, 1, 256);
  OwnedPool b(fp4, 1, 256);
  OwnedPool c(block, 1, static_cast<std::int64_t>(scales.size()));
  const auto fill = [](OwnedPool& pool, std::int64_t i) {
    std::byte* values = pool.view.at(pool.view.layout.part(0), Slot(static_cast<int>(i)));
    for (int k = 0; k < pool.view.layout.part(0).bytes(); ++k) {
      values[k] = static_cast<std::byte>(k * (pool.view.layout.dims().nope == 16 ? 34 : 1));
    }
    return pool.view.at(*pool.view.layout.find(PartRole::scale), Slot(static_cast<int>(i)));
  };
  for (int i = 0; i < 256; ++i) {
    std::memset(fill(a, i), i, 4);
    std::memset(fill(b, i), i, 1);
  }
  for (std::size_t i = 0; i < scales.size(); ++i) {
    std::byte* at = fill(c, static_cast<std::int64_t>(i));
    std::memcpy(at, &scales[i], 4);
    std::memcpy(at + 4, &scales[scales.size() - 1 - i], 4);
  }
  for_each_target([&](const std::string& target) {
    for (const OwnedPool* pool : {&a, &b, &c}) {
      for (DType dtype : {DType::bf16, DType::f32}) {
        OwnedRows slow(dtype, pool->view.slots(), pool->view.layout.row_elems());
        OwnedRows fast(slow);
        ASSERT_TRUE(decode_rows(pool->view, Slot(0), slow.view, {}, CodecPath::reference).ok());
        ASSERT_TRUE(decode_rows(pool->view, Slot(0), fast.view, {}, CodecPath::fast).ok());
        ASSERT_EQ(first_difference(slow.bytes, fast.bytes), -1)
            << target << " " << pool->view.layout.serialize() << " " << name(dtype);
      }
    }
  });
}

TEST(CodecFast, RequantisesAsTheReference) {
  for_each_target([](const std::string& target) {
    std::mt19937 rng(test_seed(10));
    for (const char* dims : scaled({"nope=512,rope=64", "nope=128,rope=0", "nope=384,rope=48"})) {
      for (const char* policy : {"pow2_ceil", "raw_f32"}) {
        const auto plain = *CacheLayout::parse(std::string("mla_fp8(") + dims + ")");
        const auto block =
            *CacheLayout::parse(std::string("mla_fp8_block(") + dims + ",scale=" + policy + ")");
        const auto src_slots = to_slots({0, 5, 5, -1, 2, 7, 1});
        const auto dst_slots = to_slots({6, 1, 0, 3, -1, 2, 2});
        for (const bool to_block : {true, false}) {
          OwnedPool src(to_block ? plain : block, 2, 4);
          for (std::byte& b : src.bytes) b = static_cast<std::byte>(rng());
          if (!to_block) {
            OwnedRows rows(DType::f32, 8, plain.row_elems());
            fill_adversarial(rows, rng);
            ASSERT_TRUE(encode_rows(rows.read(), slots_from(0, 8), src.view).ok());
          }
          for (const float key : {1.0f, 0.25f, 0x1p100f, 0.3f}) {
            if (to_block && key == 0.3f && block.scale_policy() == ScalePolicy::pow2_ceil) continue;
            OwnedPool slow(to_block ? block : plain, 4, 2);
            OwnedPool fast(slow);
            const auto r = requantize(src.view, src_slots, slow.view, dst_slots, {key, 1}, {key, 1},
                                      CodecPath::reference);
            const auto f = requantize(src.view, src_slots, fast.view, dst_slots, {key, 1}, {key, 1},
                                      CodecPath::fast);
            ASSERT_TRUE(r.ok() && f.ok());
            ASSERT_EQ(first_difference(slow.bytes, fast.bytes), -1) << target << " " << key;
            EXPECT_EQ(r->worst_abs_error, f->worst_abs_error) << target << " " << key;
            EXPECT_EQ(r->worst_slot, f->worst_slot);
            EXPECT_EQ(r->saturated, f->saturated);
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace lathe
