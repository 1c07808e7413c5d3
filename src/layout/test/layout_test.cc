#include "layout/layout.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace lathe {
namespace {

// Byte counts from the formats' own documents, not computed by the code.
TEST(Layout, BytesPerTokenAndPageStride) {
  const std::map<LayoutKind, int> bytes = {
      {LayoutKind::mla_bf16, 1152}, {LayoutKind::mla_fp8, 576},  {LayoutKind::mla_fp8_block, 656},
      {LayoutKind::mla_fp4, 324},   {LayoutKind::v4_fp8, 584},   {LayoutKind::index_fp8, 132},
      {LayoutKind::gqa_bf16, 4096}, {LayoutKind::gqa_fp8, 2048},
  };
  for (LayoutKind kind : enum_values<LayoutKind>()) {
    EXPECT_EQ(CacheLayout(kind).bytes_per_token(), bytes.at(kind)) << name(kind);
  }
  const CacheLayout v4(LayoutKind::v4_fp8);
  EXPECT_EQ(v4.page_stride(128), 74880);
  EXPECT_EQ(v4.page_stride(1), 1152);
  EXPECT_EQ(CacheLayout(LayoutKind::mla_fp8).page_stride(64), 36864);
  EXPECT_EQ(CacheLayout(LayoutKind::mla_bf16).page_stride(kMaxPageSize), 1152LL * 65536);
}

TEST(Layout, OffsetsOfKnownTokens) {
  const CacheLayout block(LayoutKind::mla_fp8_block);
  EXPECT_EQ(block.offset_of(*block.find(PartRole::nope), 64, 3), 3 * 656);
  EXPECT_EQ(block.offset_of(*block.find(PartRole::scale), 64, 3), 3 * 656 + 512);
  EXPECT_EQ(block.offset_of(*block.find(PartRole::rope), 64, 3), 3 * 656 + 528);

  const CacheLayout v4(LayoutKind::v4_fp8);
  EXPECT_EQ(v4.offset_of(*v4.find(PartRole::nope), 256, 255), 255 * 576);
  EXPECT_EQ(v4.offset_of(*v4.find(PartRole::rope), 256, 255), 255 * 576 + 448);
  EXPECT_EQ(v4.offset_of(*v4.find(PartRole::scale), 256, 255), 256 * 576 + 255 * 8);
  EXPECT_EQ(v4.find(PartRole::scale)->elems, 7);

  const CacheLayout index(LayoutKind::index_fp8);
  EXPECT_EQ(index.offset_of(*index.find(PartRole::key), 64, 5), 5 * 128);
  EXPECT_EQ(index.offset_of(*index.find(PartRole::scale), 64, 5), 64 * 128 + 5 * 4);

  const CacheLayout fp4(LayoutKind::mla_fp4);
  EXPECT_EQ(fp4.offset_of(*fp4.find(PartRole::rope), 64, 1), 288 + 256);
  EXPECT_EQ(fp4.offset_of(*fp4.find(PartRole::scale), 64, 1), 64 * 288 + 36);

  const CacheLayout gqa(LayoutKind::gqa_bf16);
  EXPECT_EQ(gqa.offset_of(*gqa.find(PartRole::value), 16, 2), 16 * 2048 + 2 * 2048);
}

// Every byte of a page belongs to at most one part of one token, and no part is outside the page.
TEST(Layout, PartsTileThePage) {
  for (LayoutKind kind : enum_values<LayoutKind>()) {
    for (std::int32_t page : {1, 2, 16, 64}) {
      const CacheLayout l(kind);
      std::vector<int> used(static_cast<std::size_t>(l.page_stride(page)), 0);
      std::int64_t sum = 0;
      for (std::int32_t i = 0; i < page; ++i) {
        for (int p = 0; p < l.part_count(); ++p) {
          const std::int64_t at = l.offset_of(l.part(p), page, i);
          for (std::int64_t b = at; b < at + l.part(p).bytes(); ++b) {
            ASSERT_LT(b, l.page_stride(page));
            ASSERT_EQ(used[static_cast<std::size_t>(b)]++, 0) << name(kind) << " byte " << b;
            ++sum;
          }
        }
      }
      EXPECT_EQ(sum, std::int64_t{page} * l.bytes_per_token());
    }
  }
}

TEST(Layout, HomogeneousAndPolicies) {
  const std::set<LayoutKind> mixed = {LayoutKind::mla_fp8_block, LayoutKind::v4_fp8};
  for (LayoutKind kind : enum_values<LayoutKind>()) {
    EXPECT_EQ(CacheLayout(kind).homogeneous(), !mixed.contains(kind)) << name(kind);
  }
  EXPECT_EQ(CacheLayout(LayoutKind::mla_fp8_block).scale_tile(), 128);
  EXPECT_EQ(CacheLayout(LayoutKind::v4_fp8).scale_tile(), 64);
  EXPECT_EQ(CacheLayout(LayoutKind::mla_fp4).scale_tile(), 16);
  EXPECT_EQ(CacheLayout(LayoutKind::index_fp8).scale_tile(), 128);
}

TEST(Layout, RowElements) {
  EXPECT_EQ(CacheLayout(LayoutKind::mla_fp8_block).row_elems(), 576);
  EXPECT_EQ(CacheLayout(LayoutKind::v4_fp8).row_elems(), 512);
  EXPECT_EQ(CacheLayout(LayoutKind::index_fp8).row_elems(), 128);
  EXPECT_EQ(CacheLayout(LayoutKind::gqa_fp8).row_elems(), 2048);
  const CacheLayout no_rope(LayoutKind::mla_bf16, {.nope = 512});
  EXPECT_EQ(no_rope.row_elems(), 512);
  EXPECT_EQ(no_rope.find(PartRole::rope), nullptr);
}

TEST(Layout, SerialisationRoundTripsAndHashesDiffer) {
  std::set<std::uint64_t> hashes;
  std::vector<CacheLayout> all;
  for (LayoutKind kind : enum_values<LayoutKind>()) all.emplace_back(kind);
  all.emplace_back(LayoutKind::mla_fp8_block, default_dims(LayoutKind::mla_fp8_block),
                   ScalePolicy::raw_f32);
  all.emplace_back(LayoutKind::mla_fp8, LayoutDims{.nope = 256, .rope = 64});
  for (const CacheLayout& l : all) {
    const auto back = CacheLayout::parse(l.serialize());
    ASSERT_TRUE(back) << back.error().message();
    EXPECT_EQ(*back, l);
    hashes.insert(l.hash());
  }
  EXPECT_EQ(hashes.size(), all.size());
  // XXH3-64 of the serialised text, computed with Python's xxhash.
  EXPECT_EQ(CacheLayout(LayoutKind::mla_fp8).serialize(),
            "mla_fp8(nope=512,rope=64,scale=per_tensor)");
  EXPECT_EQ(CacheLayout(LayoutKind::mla_fp8).hash(), 0x9608c2a81a4970ecull);
}

TEST(Layout, ParseFillsDefaults) {
  EXPECT_EQ(*CacheLayout::parse("mla_fp8"), CacheLayout(LayoutKind::mla_fp8));
  EXPECT_EQ(*CacheLayout::parse("mla_fp8_block(scale=raw_f32)"),
            CacheLayout(LayoutKind::mla_fp8_block, default_dims(LayoutKind::mla_fp8_block),
                        ScalePolicy::raw_f32));
}

TEST(Layout, BadTextNamesWhatWasWanted) {
  const std::map<std::string, std::string> cases = {
      {"mla_fp9", "one of mla_bf16, mla_fp8"},
      {"", "one of mla_bf16"},
      {"mla_fp8(nope=512", "closing )"},
      {"mla_fp8(nope)", "key=value"},
      {"mla_fp8(nope=512,)", "key=value after ,"},
      {"mla_fp8(dim=128)", "keys nope, rope, scale"},
      {"mla_fp8(nope=x)", "nope as an integer"},
      {"mla_fp8(nope=512,nope=512)", "each key once"},
      {"mla_fp8(nope=99999999999)", "nope as an integer"},
      {"mla_fp8(nope=-16)", "a multiple of 16 from 16 to 16384"},
      {"mla_fp8(nope=0)", "a multiple of 16 from 16"},
      {"mla_fp8_block(nope=192)", "a multiple of 128"},
      {"v4_fp8(nope=100)", "a multiple of 64"},
      {"mla_fp8(scale=ue8m0)", "per_tensor"},
      {"mla_fp8(scale=x)", "scale from none, per_tensor"},
      {"gqa_bf16(kv_heads=0)", "a multiple of 1 from 1"},
      {"index_fp8(dim=7)", "a multiple of 16"},
  };
  for (const auto& [text, wanted] : cases) {
    const auto r = CacheLayout::parse(text);
    ASSERT_FALSE(r) << text;
    EXPECT_NE(r.error().message().find(wanted), std::string::npos) << r.error().message();
  }
  const auto alien = CacheLayout::make(LayoutKind::mla_fp8, {.nope = 512, .rope = 64, .dim = 128},
                                       ScalePolicy::per_tensor);
  ASSERT_FALSE(alien);
  EXPECT_EQ(alien.error().wanted, "nope, rope only");
}

TEST(Layout, PageSizeBounds) {
  EXPECT_TRUE(check_page_size(1));
  EXPECT_TRUE(check_page_size(65536));
  EXPECT_FALSE(check_page_size(0));
  EXPECT_FALSE(check_page_size(-64));
  EXPECT_EQ(check_page_size(65537).error().message(),
            "page_size: wanted 1 to 65536, got 65537; try 64");
}

}  // namespace
}  // namespace lathe
