#include "kernels/cuda/sm90/codec/codec_launch.h"

#include <gtest/gtest.h>

#include "layout/codec/test/codec_test_util.h"

namespace lathe::cuda {
namespace {

OwnedPool pool_of(const char* layout) { return {*CacheLayout::parse(layout), 64, 2}; }

// The assignment of chunks decides how many loads a lane has in flight, which no comparison of
// bytes shows.
TEST(CodecLaunch, LayoutsOfModelsFillTheRounds) {
  struct Case {
    const char* layout;
    int encode, decode;  // chunks of the first run per lane
  };
  for (const Case& c : {Case{"mla_bf16", 4, 4}, Case{"mla_fp8", 4, 4}, Case{"mla_fp8_block", 4, 4},
                        Case{"mla_fp4", 4, 4}, Case{"v4_fp8", 7, 7}, Case{"index_fp8", 4, 4},
                        Case{"gqa_bf16", 4, 4}, Case{"gqa_fp8", 4, 4}}) {
    const OwnedPool pool = pool_of(c.layout);
    const OwnedRows rows(DType::bf16, 128, pool.view.layout.row_elems());
    const std::vector<Slot> slots(128, Slot(0));
    const EncodeParams encode = encode_params(rows.read(), slots, pool.view, {});
    EXPECT_TRUE(encode.whole) << c.layout;
    EXPECT_EQ(encode.runs[0].lanes.rounds, c.encode) << c.layout;
    const DecodeParams decode = decode_params(pool.view, slots, Slot(), rows.view, {});
    EXPECT_TRUE(decode.whole) << c.layout;
    EXPECT_EQ(decode.runs[0].lanes.rounds, c.decode) << c.layout;
  }
}

TEST(CodecLaunch, RequantizedLatentsHaveFourLoadsALane) {
  const OwnedPool plain = pool_of("mla_fp8"), block = pool_of("mla_fp8_block");
  const std::vector<Slot> slots(128, Slot(0));
  for (const auto& [src, dst] : {std::pair(&plain, &block), std::pair(&block, &plain)}) {
    const RequantParams p = requant_params(src->view, slots, dst->view, slots, {}, {});
    EXPECT_TRUE(p.whole) << src->view.layout.name();
    EXPECT_EQ(p.src_runs[0].lanes.rounds, 4) << src->view.layout.name();
    EXPECT_EQ(p.src_runs[1].lanes.rounds, 2) << src->view.layout.name();
    EXPECT_TRUE(p.together) << src->view.layout.name();
  }
}

// Rotated rows load as many bytes of a row at a time as others.
TEST(CodecLaunch, RotatedRowsFillTheRounds) {
  const auto table = *RopeTable::make({.dim = 64}, 10);
  const std::vector<LocalPos> positions(128, LocalPos(0));
  const std::vector<Slot> slots(128, Slot(0));
  for (const char* name :
       {"mla_bf16", "mla_fp8", "mla_fp8_block", "mla_fp4", "v4_fp8", "index_fp8"}) {
    const OwnedPool pool = pool_of(name);
    const std::int32_t width = pool.view.layout.row_elems();
    for (DType dtype : {DType::bf16, DType::f32}) {
      const OwnedRows rows(dtype, 128, width);
      const RopeParams rope =
          rope_params(table.data().data(), 10, 64, RopePairing::interleaved, positions, width - 64);
      EXPECT_TRUE(encode_params(rows.read(), slots, pool.view, {}, rope).whole)
          << name << ", " << lathe::name(dtype);
    }
  }
}

// Index keys of the usual shape load a position's factors even for holes, so the table needs a
// position.
TEST(CodecLaunch, RotatedIndexKeysNeedAPosition) {
  const OwnedPool pool = pool_of("index_fp8");
  const OwnedRows rows(DType::bf16, 128, 128);
  const std::vector<Slot> slots(128, Slot(0));
  const std::vector<LocalPos> positions(128, LocalPos(-1));
  for (const std::int64_t known : {0, 1}) {
    const auto table = *RopeTable::make({.dim = 64}, known);
    const RopeParams rope =
        rope_params(table.data().data(), known, 64, RopePairing::interleaved, positions, 64);
    EXPECT_EQ(encode_params(rows.read(), slots, pool.view, {}, rope).index_keys, known > 0);
  }
}

TEST(CodecLaunch, TokensAreOrderedWhereTilesAreWhole) {
  struct Case {
    const char* layout;
    DType dtype;
    std::int64_t extra;  // stride beyond the row's elements
    bool ordered;
  };
  const std::vector<Slot> slots(128, Slot(0));
  for (const Case& c :
       {Case{"mla_fp8_block", DType::bf16, 0, true}, Case{"v4_fp8", DType::bf16, 0, true},
        Case{"mla_fp8_block(scale=raw_f32)", DType::bf16, 8, true},
        Case{"mla_fp4", DType::bf16, 0, true}, Case{"index_fp8", DType::bf16, 0, true},
        Case{"mla_bf16", DType::bf16, 0, false}, Case{"mla_fp8", DType::bf16, 0, false},
        Case{"gqa_bf16", DType::bf16, 0, false}, Case{"gqa_fp8", DType::bf16, 0, false},
        Case{"index_fp8", DType::f32, 0, false}, Case{"index_fp8", DType::bf16, 3, false},
        Case{"index_fp8(dim=208)", DType::bf16, 0, false}}) {
    const OwnedPool pool = pool_of(c.layout);
    const OwnedRows rows(c.dtype, 128, pool.view.layout.row_elems(), c.extra);
    EXPECT_EQ(can_order(encode_params(rows.read(), slots, pool.view, {}), c.dtype), c.ordered)
        << c.layout << ", " << name(c.dtype) << ", " << c.extra;
  }
}

// The parts cover the pool, and at most half of them are empty.
TEST(CodecLaunch, PartsOfAPoolAreAsManyAsItHasSlots) {
  for (const std::int64_t slots : {std::int64_t{100}, std::int64_t{256}, std::int64_t{257},
                                   std::int64_t{9600}, std::int64_t{1} << 31}) {
    EncodeParams p;
    p.slot_count = static_cast<std::uint32_t>(slots);
    const OrderParams order = order_params(p, {});
    const std::int64_t parts = ((slots - 1) >> order.shift) + 1;
    EXPECT_LE(parts, kOrderParts) << slots;
    EXPECT_GT(parts, std::min<std::int64_t>(slots, kOrderParts) / 2 - 1) << slots;
  }
}

// Records of two adjacent runs are staged if they fit in a block's shared memory.
TEST(CodecLaunch, RecordsAreStaged) {
  const std::vector<Slot> slots(128, Slot(0));
  for (const auto& [name, is_staged] :
       {std::pair("mla_fp8_block", true), std::pair("mla_fp8", false), std::pair("mla_fp4", false),
        std::pair("v4_fp8", true), std::pair("index_fp8", false)}) {
    const OwnedPool pool = pool_of(name);
    const OwnedRows rows(DType::bf16, 128, pool.view.layout.row_elems());
    const EncodeParams p = encode_params(rows.read(), slots, pool.view, {});
    EXPECT_EQ(stage_bytes_of(p, p.runs) > 0, is_staged) << name;
  }
  const OwnedPool plain = pool_of("mla_fp8"), block = pool_of("mla_fp8_block");
  const RequantParams there = requant_params(plain.view, slots, block.view, slots, {}, {});
  EXPECT_EQ(stage_bytes_of(there, there.dst_runs), stage_bytes(there.block_rows, 656));
  const RequantParams back = requant_params(block.view, slots, plain.view, slots, {}, {});
  EXPECT_EQ(stage_bytes_of(back, back.dst_runs), 0);
  for (const int nope : {4096, 32768, 57344}) {
    const OwnedPool pool(CacheLayout(LayoutKind::mla_fp8_block, {.nope = nope, .rope = 64}), 4, 1);
    const OwnedRows rows(DType::bf16, 128, pool.view.layout.row_elems());
    const EncodeParams p = encode_params(rows.read(), slots, pool.view, {});
    EXPECT_LE(stage_bytes_of(p, p.runs), kMostStageBytes) << nope;
    EXPECT_EQ(p.whole, nope < 57344) << nope;
  }
}

// A kernel that stages gets the shared memory for it, whatever the layout's runs.
TEST(CodecLaunch, StagesHaveSharedMemory) {
  for (const CacheLayout& layout : layouts_to_test()) {
    const OwnedPool pool(layout, 64, 2);
    const OwnedRows rows(DType::bf16, 128, layout.row_elems());
    const std::vector<Slot> slots(128, Slot(0));
    const EncodeParams p = encode_params(rows.read(), slots, pool.view, {});
    const bool one_run = p.run_count == 1 && p.runs[0].kind == RunKind::e4m3_f32;
    const bool stages = !one_run && visit_kinds(p.runs, [&](auto first, auto second) {
      return staged(first, second, p.whole);
    });
    EXPECT_EQ(stage_bytes_of(p, p.runs), stages ? stage_bytes(p.block_rows, p.runs[0].step) : 0)
        << layout.serialize();
  }
}

// Every chunk of every row of a block belongs to exactly one lane, in every instance.
TEST(CodecLaunch, BatchesCoverEveryChunkOnce) {
  for (const CacheLayout& layout : layouts_to_test()) {
    const OwnedPool pool(layout, 64, 2);
    const OwnedRows rows(DType::bf16, 128, layout.row_elems());
    const std::vector<Slot> slots(128, Slot(0));
    const DecodeParams p = decode_params(pool.view, slots, Slot(), rows.view, {});
    for (int i = 0; i < p.run_count; ++i) {
      const LaneMap& lanes = p.runs[i].lanes;
      const auto pieces = static_cast<int>(lanes.pieces.divisor);
      std::vector<int> seen(static_cast<std::size_t>(p.block_rows) * lanes.chunks);
      for (int batch = 0; batch < lanes.batches; ++batch) {
        for (int lane = 0; lane < 32; ++lane) {
          const int row = (batch / pieces << (5 - lanes.shift)) + (lane >> lanes.shift);
          for (int u = 0; u < lanes.rounds; ++u) {
            const int chunk = ((batch % pieces * lanes.rounds + u) << lanes.shift) +
                              (lane & ((1 << lanes.shift) - 1));
            const bool has_chunk = chunk < static_cast<int>(lanes.chunks);
            EXPECT_TRUE(has_chunk || !p.whole) << layout.serialize();
            if (row >= p.block_rows || !has_chunk) continue;
            ++seen[static_cast<std::size_t>(row) * lanes.chunks + static_cast<std::size_t>(chunk)];
          }
        }
      }
      for (const int n : seen) ASSERT_EQ(n, 1) << layout.serialize() << " run " << i;
    }
  }
}

}  // namespace
}  // namespace lathe::cuda
