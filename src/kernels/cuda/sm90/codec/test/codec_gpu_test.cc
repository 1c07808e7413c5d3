// The codecs on a GPU against the CPU's with hostile inputs: every byte of pools and rows is
// compared, poison included.
#include <cstring>
#include <numeric>
#include <optional>

#include "kernels/cuda/sm90/codec/codec.h"
#include "kernels/cuda/sm90/codec/test/codec_gpu_test_util.h"
#include "layout/codec/test/codec_test_util.h"
#include "layout/codec/value_tally.h"
#include "layout/pages/pool.h"
#include "layout/rope/rope_write.h"
#include "layout/rope/test/rope_write_test_util.h"

namespace lathe::cuda {
namespace {

class CodecGpu : public GpuTest {
 protected:
  // Distinct slots in random order, with holes of every kind.
  static std::vector<Slot> some_slots(std::int64_t slots, std::int64_t count, std::mt19937& rng) {
    std::vector<int> all(static_cast<std::size_t>(slots));
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), rng);
    all.resize(static_cast<std::size_t>(count), -1);
    for (std::size_t i = 2; i < all.size(); i += 17) {
      const int holes[] = {-1, static_cast<int>(slots), -1000, 0x7fffffff};
      all[i] = holes[i % 4];
    }
    return to_slots(all);
  }
  static std::vector<Slot> with_holes(std::vector<Slot> slots, std::int64_t pool_slots) {
    for (Slot& s : slots) {
      if (s.value < 0 || s.value >= pool_slots) s = Slot();
    }
    return slots;
  }
  static OwnedPool random_pool(const CacheLayout& layout, std::int32_t page_size,
                               std::int64_t pages, std::int64_t extra, std::mt19937& rng) {
    OwnedPool pool(layout, page_size, pages, extra);
    for (std::byte& b : pool.bytes) b = static_cast<std::byte>(rng());
    return pool;
  }
};

// Rows for one block and for many; strides that allow whole accesses and others that do not.
struct Shape {
  std::int64_t rows;
  std::int32_t page_size;
  std::int64_t extra;
};
constexpr Shape kShapes[] = {{1, 1, 0}, {37, 6, 3}, {300, 64, 0}, {1500, 64, 16}};

TEST_F(CodecGpu, EncodeWritesTheBytesOfTheCpu) {
  std::mt19937 rng(21);
  for (const CacheLayout& layout : layouts_to_test()) {
    for (const Shape& s : kShapes) {
      for (DType dtype : {DType::bf16, DType::f32}) {
        const std::int64_t pages = (s.rows + s.rows / 4) / s.page_size + 1;
        OwnedPool pool(layout, s.page_size, pages, s.extra);
        OwnedRows rows(dtype, s.rows, layout.row_elems(), s.extra);
        fill_adversarial(rows, rng);
        // Encoders have a shorter path for batches without infinities and NaN.
        if (rng() % 2 == 0) make_finite(rows);
        const auto slots = some_slots(pool.view.slots(), s.rows, rng);
        const TensorScales scales{0.7f, 3.0f};
        const CopiedPool on_gpu(*this, pool);
        const CopiedRows in(*this, rows);
        const DeviceCopy<Slot> list(*this, slots);
        const DeviceCopy<ValueWords> counted(*this, std::vector<ValueWords>(1));
        const auto in_pool = with_holes(slots, pool.view.slots());
        must(encode_rows(in.read(), span_of(list), on_gpu.view, scales, stream(), counted.data()));
        must(lathe::encode_rows(rows.read(), in_pool, pool.view, scales));
        ASSERT_EQ(first_difference(pool.bytes, on_gpu.bytes.read(*this)), -1)
            << layout.serialize() << " " << name(dtype) << " " << s.rows << " rows";
        if (layout.scale_policy() != ScalePolicy::per_tensor) continue;
        ValueTally tally;
        tally.add(rows.read(), in_pool, layout, scales);
        const ValueWords words = counted.read(*this).front();
        const ValueCounts wanted = tally.counts();
        ASSERT_EQ(words.stored, wanted.stored);
        ASSERT_EQ(words.saturated, wanted.saturated);
        ASSERT_EQ(words.flushed, wanted.flushed);
      }
    }
  }
}

// Enough rows to be ordered, and fewer.
TEST_F(CodecGpu, EncodeScatteredWritesTheBytesOfTheCpu) {
  std::mt19937 rng(29);
  for (const char* text : {"mla_fp8_block", "mla_fp8_block(scale=raw_f32)", "mla_fp4", "v4_fp8",
                           "index_fp8", "mla_fp8", "gqa_fp8"}) {
    const CacheLayout layout = CacheLayout::parse(text).value();
    for (const std::int64_t count : {300, 70001}) {
      for (const std::int32_t page_size : {6, 64}) {
        const std::int64_t pages = count / page_size * 5 / 4 + 1;
        OwnedPool pool(layout, page_size, pages, 0);
        OwnedRows rows(DType::bf16, count, layout.row_elems(), 0);
        fill_adversarial(rows, rng);
        if (page_size == 64) make_finite(rows);
        const auto slots = some_slots(pool.view.slots(), count, rng);
        const CopiedPool on_gpu(*this, pool);
        const CopiedRows in(*this, rows);
        const DeviceCopy<Slot> list(*this, slots);
        const DeviceCopy<std::byte> scratch(
            *this,
            std::vector<std::byte>(static_cast<std::size_t>(order_scratch_bytes(count)), kPoison));
        const std::span room(scratch.data(), static_cast<std::size_t>(scratch.size()));
        must(encode_scattered(in.read(), span_of(list), on_gpu.view, {}, room, stream()));
        must(lathe::encode_rows(rows.read(), with_holes(slots, pool.view.slots()), pool.view));
        ASSERT_EQ(first_difference(pool.bytes, on_gpu.bytes.read(*this)), -1)
            << text << " " << count << " rows, page " << page_size;
      }
    }
  }
}

// Rows for which ordering has no kernel, and a graph that is replayed over two lists with the same
// scratch.
TEST_F(CodecGpu, EncodeScatteredServesOtherRowsAndReplays) {
  std::mt19937 rng(31);
  constexpr std::int64_t kCount = 70001;
  const CacheLayout layout(LayoutKind::index_fp8);
  const DeviceCopy<std::byte> scratch(
      *this,
      std::vector<std::byte>(static_cast<std::size_t>(order_scratch_bytes(kCount)), kPoison));
  const std::span room(scratch.data(), static_cast<std::size_t>(scratch.size()));
  for (const auto& [dtype, extra] :
       {std::pair{DType::f32, 0}, {DType::bf16, 3}, {DType::bf16, 0}}) {
    OwnedPool pool(layout, 64, kCount / 64 * 5 / 4, 0);
    OwnedRows rows(dtype, kCount, layout.row_elems(), extra);
    fill_adversarial(rows, rng);
    const CopiedPool on_gpu(*this, pool);
    const CopiedRows in(*this, rows);
    DeviceCopy<Slot> list(*this, std::vector<Slot>(kCount, Slot(0)));
    const auto graph = Graph::capture(stream(), [&] {
      return encode_scattered(in.read(), span_of(list), on_gpu.view, {}, room, stream());
    });
    must(graph);
    for (int replay = 0; replay < 2; ++replay) {
      const auto slots = some_slots(pool.view.slots(), kCount, rng);
      list.write(*this, slots);
      must(graph->launch(stream()));
      must(lathe::encode_rows(rows.read(), with_holes(slots, pool.view.slots()), pool.view));
      ASSERT_EQ(first_difference(pool.bytes, on_gpu.bytes.read(*this)), -1)
          << name(dtype) << " " << extra << " replay " << replay;
    }
  }
}

TEST_F(CodecGpu, DecodeGivesTheBitsOfTheCpu) {
  std::mt19937 rng(22);
  for (const CacheLayout& layout : layouts_to_test()) {
    for (const Shape& s : kShapes) {
      for (DType dtype : {DType::bf16, DType::f32}) {
        const std::int64_t pages = s.rows / s.page_size + 1;
        const OwnedPool pool = random_pool(layout, s.page_size, pages, s.extra, rng);
        auto slots = some_slots(pool.view.slots(), s.rows, rng);
        for (std::size_t i = 1; i < slots.size(); i += 5) slots[i] = slots[0];
        OwnedRows rows(dtype, s.rows, layout.row_elems(), s.extra);
        const TensorScales scales{0.7f, 3.0f};
        const CopiedPool on_gpu(*this, pool);
        const CopiedRows out(*this, rows);
        const CopiedRows in_order(*this, rows);
        const DeviceCopy<Slot> list(*this, slots);
        must(gather_decode(on_gpu.view, span_of(list), out.view, scales, stream()));
        must(decode_rows(on_gpu.view, Slot(0), in_order.view, scales, stream()));
        OwnedRows wanted(rows);
        must(lathe::gather_decode(pool.view, with_holes(slots, pool.view.slots()), wanted.view,
                                  scales));
        ASSERT_EQ(first_difference(wanted.bytes, out.bytes.read(*this)), -1)
            << layout.serialize() << " " << name(dtype) << " " << s.rows << " rows";
        must(lathe::decode_rows(pool.view, Slot(0), rows.view, scales));
        ASSERT_EQ(first_difference(rows.bytes, in_order.bytes.read(*this)), -1)
            << layout.serialize() << " " << name(dtype) << " " << s.rows << " rows";
      }
    }
  }
}

TEST_F(CodecGpu, RequantizeGivesTheBytesAndTheReportOfTheCpu) {
  std::mt19937 rng(23);
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
        Pair{"mla_fp8(nope=128,rope=0)", "mla_fp8_block(nope=128,rope=0)", 1.0f}}) {
    for (const Shape& s : kShapes) {
      const CacheLayout from = *CacheLayout::parse(pair.src);
      const CacheLayout to = *CacheLayout::parse(pair.dst);
      const std::int64_t pages = s.rows / s.page_size + 1;
      const OwnedPool src = random_pool(from, s.page_size, pages, s.extra, rng);
      if (from.kind() == LayoutKind::mla_fp8_block) {
        OwnedRows rows(DType::f32, src.view.slots(), from.row_elems());
        fill_adversarial(rows, rng, 64);
        must(lathe::encode_rows(rows.read(), slots_from(0, src.view.slots()), src.view));
      }
      OwnedPool dst(to, 4, s.rows / 4 + 1, s.extra);
      const auto src_slots = some_slots(src.view.slots(), s.rows, rng);
      auto dst_slots = some_slots(dst.view.slots(), s.rows, rng);
      std::rotate(dst_slots.begin(), dst_slots.begin() + (s.rows > 1 ? 1 : 0), dst_slots.end());
      const CopiedPool gpu_src(*this, src), gpu_dst(*this, dst);
      const DeviceCopy<Slot> from_list(*this, src_slots), to_list(*this, dst_slots);
      DeviceCopy<RequantWords> words(*this, std::vector<RequantWords>{{99, 99}});
      const Requantize op{.src = gpu_src.view,
                          .src_slots = span_of(from_list),
                          .dst = gpu_dst.view,
                          .dst_slots = span_of(to_list),
                          .src_scales = {pair.src_scale, 1},
                          .dst_scales = {0.35f, 1},
                          .report = words.data()};
      must(requantize(op, stream()));
      const auto wanted =
          lathe::requantize(src.view, with_holes(src_slots, src.view.slots()), dst.view,
                            with_holes(dst_slots, dst.view.slots()), op.src_scales, op.dst_scales);
      must(wanted);
      ASSERT_EQ(first_difference(dst.bytes, gpu_dst.bytes.read(*this)), -1) << pair.src;
      const RequantReport got = requant_report(words.read(*this)[0], src_slots);
      EXPECT_EQ(got.worst_abs_error, wanted->worst_abs_error) << pair.src;
      EXPECT_EQ(got.worst_slot, wanted->worst_slot) << pair.src;
      EXPECT_EQ(got.saturated, wanted->saturated) << pair.src;
    }
  }
}

TEST_F(CodecGpu, RopeWriteGivesTheBytesOfTheCpu) {
  std::mt19937 rng(24);
  constexpr std::int64_t kPositions = 200;
  for (const RopeCase& c : kRopeCases) {
    const CacheLayout layout = *CacheLayout::parse(c.layout);
    const std::int64_t w = layout.row_elems();
    for (RopePairing pairing : enum_values<RopePairing>()) {
      std::optional<RopeTable> table;
      if (c.dim > 0) table = *RopeTable::make({.dim = c.dim, .pairing = pairing}, kPositions);
      for (DType in : {DType::bf16, DType::f32}) {
        for (DType out : {DType::bf16, DType::e4m3, DType::f32}) {
          // With many heads a row has several slices.
          for (const auto& [rows, heads, extra] :
               {std::tuple{37, 3, 5}, std::tuple{300, 1, 16}, std::tuple{20, 16, 0}}) {
            OwnedRows k(in, rows, w, extra), q(in, rows, heads * w, extra);
            fill_adversarial(k, rng);
            // Index keys have a shorter path for rows without infinities and NaN.
            if (rng() % 2 == 0) make_finite(k);
            fill_adversarial(q, rng);
            OwnedRows q_out(out, rows, heads * w, extra);
            OwnedPool pool(layout, 16, rows / 16 + 3);
            const auto slots = some_slots(pool.view.slots(), rows, rng);
            std::vector<LocalPos> positions, clean;
            for (int t = 0; t < rows; ++t) {
              const int p = t % 13 == 5 ? -1 : static_cast<int>(rng() % kPositions);
              clean.emplace_back(p);
              positions.emplace_back(
                  p == -1 && c.dim > 0 && t % 2 == 0 ? static_cast<int>(kPositions) + t : p);
            }
            const auto clean_slots = with_holes(slots, pool.view.slots());
            const CopiedRows gpu_k(*this, k), gpu_q(*this, q), gpu_q_out(*this, q_out);
            const CopiedPool gpu_pool(*this, pool);
            const DeviceCopy<Slot> gpu_slots(*this, slots);
            const DeviceCopy<LocalPos> gpu_positions(*this, positions);
            const DeviceCopy<float> gpu_table(
                *this, table ? std::vector<float>(table->data().begin(), table->data().end())
                             : std::vector<float>{});
            RopeWrite op;
            op.k = gpu_k.read();
            op.q = gpu_q.read();
            op.positions = {gpu_positions.data(), positions.size()};
            op.slots = span_of(gpu_slots);
            if (table) op.table = {gpu_table.data(), kPositions, c.dim, pairing};
            op.place = c.place;
            op.scales = {0.25f, 1};
            op.q_scale = 0.7f;
            op.q_out = gpu_q_out.view;
            must(rope_quantize_write(op, gpu_pool.view, stream()));

            lathe::RopeWrite cpu;
            cpu.k = k.read();
            cpu.q = q.read();
            cpu.positions = clean;
            cpu.slots = clean_slots;
            cpu.table = table ? &*table : nullptr;
            cpu.place = c.place;
            cpu.scales = op.scales;
            cpu.q_scale = op.q_scale;
            cpu.q_out = q_out.view;
            must(lathe::rope_quantize_write(cpu, pool.view));
            ASSERT_EQ(first_difference(pool.bytes, gpu_pool.bytes.read(*this)), -1)
                << c.layout << " " << name(in) << " " << name(pairing) << " " << rows;
            ASSERT_EQ(first_difference(q_out.bytes, gpu_q_out.bytes.read(*this)), -1)
                << c.layout << " " << name(in) << " to " << name(out) << " " << name(pairing) << " "
                << rows;
          }
        }
      }
    }
  }
}

// Enough keys that each warp of a block has several rows.
TEST_F(CodecGpu, WritesManyIndexKeys) {
  std::mt19937 rng(30);
  constexpr int kRows = 20000, kPositions = 500;
  const CacheLayout layout(LayoutKind::index_fp8);
  for (RopePairing pairing : enum_values<RopePairing>()) {
    const auto table = *RopeTable::make({.dim = 64, .pairing = pairing}, kPositions);
    const DeviceCopy<float> gpu_table(*this,
                                      std::vector<float>(table.data().begin(), table.data().end()));
    for (RopePlace place : {RopePlace::first, RopePlace::last}) {
      OwnedRows k(DType::bf16, kRows, 128);
      fill_adversarial(k, rng);
      if (place == RopePlace::last) make_finite(k);
      OwnedPool pool(layout, 64, kRows / 64 + 9);
      const auto slots = some_slots(pool.view.slots(), kRows, rng);
      const auto clean = with_holes(slots, pool.view.slots());
      std::vector<LocalPos> positions;
      for (int t = 0; t < kRows; ++t) {
        positions.emplace_back(t % 13 == 5 ? -1 : static_cast<int>(rng() % kPositions));
      }
      const CopiedRows gpu_k(*this, k);
      const CopiedPool gpu_pool(*this, pool);
      const DeviceCopy<Slot> gpu_slots(*this, slots);
      const DeviceCopy<LocalPos> gpu_positions(*this, positions);
      RopeWrite op;
      op.k = gpu_k.read();
      op.positions = {gpu_positions.data(), positions.size()};
      op.slots = span_of(gpu_slots);
      op.table = {gpu_table.data(), kPositions, 64, pairing};
      op.place = place;
      must(rope_quantize_write(op, gpu_pool.view, stream()));
      lathe::RopeWrite cpu;
      cpu.k = k.read();
      cpu.positions = positions;
      cpu.slots = clean;
      cpu.table = &table;
      cpu.place = place;
      must(lathe::rope_quantize_write(cpu, pool.view));
      ASSERT_EQ(first_difference(pool.bytes, gpu_pool.bytes.read(*this)), -1) << name(pairing);
    }
  }
}

// Normal numbers, so that most rows cannot lose more than others did, and ties for the worst of
// all.
TEST_F(CodecGpu, RequantizeTellsTheLossOfNumbers) {
  std::mt19937 rng(31);
  constexpr int kRows = 20000;
  const CacheLayout from(LayoutKind::mla_fp8_block), to(LayoutKind::mla_fp8);
  std::normal_distribution<float> normal;
  for (const auto& [scale, dst_scale] :
       {std::pair{1.0f, 1.0f}, std::pair{1.0f, 0.35f}, std::pair{0x1p-11f, 1.0f}}) {
    OwnedRows rows(DType::bf16, kRows, from.row_elems());
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < from.row_elems(); ++c) rows.set(r, c, normal(rng) * scale);
      if (r > kRows / 2 && r % 7 == 0) rows.set(r, 512 + r % 64, 8.5f * scale * dst_scale);
    }
    OwnedPool src(from, 64, kRows / 64 + 1), dst(to, 64, kRows / 64 + 1);
    const auto slots = slots_from(0, kRows);
    must(lathe::encode_rows(rows.read(), slots, src.view));
    const CopiedPool gpu_src(*this, src), gpu_dst(*this, dst);
    const DeviceCopy<Slot> list(*this, slots);
    DeviceCopy<RequantWords> words(*this, std::vector<RequantWords>{{99, 99}});
    const Requantize op{.src = gpu_src.view,
                        .src_slots = span_of(list),
                        .dst = gpu_dst.view,
                        .dst_slots = span_of(list),
                        .dst_scales = {dst_scale, 1},
                        .report = words.data()};
    const auto wanted =
        lathe::requantize(src.view, slots, dst.view, slots, op.src_scales, op.dst_scales);
    must(wanted);
    for (int i = 0; i < 5; ++i) {  // blocks run in any order
      must(requantize(op, stream()));
      ASSERT_EQ(first_difference(dst.bytes, gpu_dst.bytes.read(*this)), -1) << scale;
      const RequantReport got = requant_report(words.read(*this)[0], slots);
      EXPECT_EQ(got.worst_abs_error, wanted->worst_abs_error) << scale;
      EXPECT_EQ(got.worst_slot, wanted->worst_slot) << scale;
      EXPECT_EQ(got.saturated, wanted->saturated) << scale;
    }
  }
}

TEST_F(CodecGpu, RotatesInPlaceBothWays) {
  std::mt19937 rng(25);
  for (RopePairing pairing : enum_values<RopePairing>()) {
    const auto table = *RopeTable::make({.dim = 64, .pairing = pairing}, 300);
    const DeviceCopy<float> gpu_table(*this,
                                      std::vector<float>(table.data().begin(), table.data().end()));
    for (RopeDirection direction : enum_values<RopeDirection>()) {
      for (DType dtype : {DType::bf16, DType::f32}) {
        std::vector<LocalPos> positions;
        for (int i = 0; i < 200; ++i) positions.emplace_back(i % 4 == 1 ? -1 : i + 7);
        OwnedRows rows(dtype, 200, 16 * 512, 16);
        fill_adversarial(rows, rng);
        const CopiedRows on_gpu(*this, rows);
        const DeviceCopy<LocalPos> list(*this, positions);
        must(apply_rope({gpu_table.data(), 300, 64, pairing}, {list.data(), positions.size()},
                        on_gpu.view, 16, 448, direction, stream()));
        must(lathe::apply_rope(table, positions, rows.view, 16, 448, direction));
        ASSERT_EQ(first_difference(rows.bytes, on_gpu.bytes.read(*this)), -1) << name(pairing);
      }
    }
  }
}

TEST_F(CodecGpu, MovesTokensThatOverlapThroughStaging) {
  std::mt19937 rng(26);
  for (const CacheLayout& layout : layouts_to_test()) {
    for (std::int64_t extra : {0, 3}) {
      const OwnedPool before = random_pool(layout, 6, 100, extra, rng);
      // A permutation of half of the slots with some holes: would show a source read after it was
      // overwritten.
      auto src = some_slots(600, 300, rng);
      auto dst = with_holes(src, 600);
      std::shuffle(dst.begin(), dst.end(), rng);
      OwnedPool wanted(before);
      for (std::size_t i = 0; i < src.size(); ++i) {
        if (src[i].value < 0 || src[i].value >= 600 || dst[i].is_hole()) continue;
        for (int part = 0; part < layout.part_count(); ++part) {
          std::memcpy(wanted.view.at(layout.part(part), dst[i]),
                      before.view.at(layout.part(part), src[i]),
                      static_cast<std::size_t>(layout.part(part).bytes()));
        }
      }
      const CopiedPool on_gpu(*this, before);
      const DeviceCopy<Slot> from(*this, src), to(*this, dst);
      const DeviceCopy<std::byte> staging(
          *this, std::vector<std::byte>(static_cast<std::size_t>(move_staging_bytes(layout, 300))));
      must(move_tokens(on_gpu.view, span_of(from), span_of(to), staging.data(), stream()));
      ASSERT_EQ(first_difference(wanted.bytes, on_gpu.bytes.read(*this)), -1) << layout.serialize();
      // Disjoint sources and destinations need no staging.
      const CopiedPool direct(*this, before);
      std::vector<Slot> low = slots_from(0, 300), high = slots_from(300, 300);
      std::shuffle(high.begin(), high.end(), rng);
      OwnedPool moved(before);
      for (std::size_t i = 0; i < low.size(); ++i) {
        for (int part = 0; part < layout.part_count(); ++part) {
          std::memcpy(moved.view.at(layout.part(part), high[i]),
                      before.view.at(layout.part(part), low[i]),
                      static_cast<std::size_t>(layout.part(part).bytes()));
        }
      }
      const DeviceCopy<Slot> low_list(*this, low), high_list(*this, high);
      must(move_tokens(direct.view, span_of(low_list), span_of(high_list), nullptr, stream()));
      ASSERT_EQ(first_difference(moved.bytes, direct.bytes.read(*this)), -1) << layout.serialize();
    }
  }
}

// One recording of a write, a conversion and a read, replayed over other rows, slots and positions
// at the same addresses.
TEST_F(CodecGpu, AGraphReplaysOverOtherContents) {
  std::mt19937 rng(27);
  constexpr std::int64_t kRows = 64;
  const CacheLayout layout(LayoutKind::mla_fp8_block);
  const CacheLayout plain(LayoutKind::mla_fp8);
  const std::int64_t w = layout.row_elems();
  const auto table = *RopeTable::make({.dim = 64}, 100);
  const DeviceCopy<float> gpu_table(*this,
                                    std::vector<float>(table.data().begin(), table.data().end()));
  OwnedPool pool(layout, 16, 8), second(plain, 16, 8);
  OwnedRows q_out(DType::e4m3, kRows, 4 * w), read(DType::bf16, kRows, w);
  CopiedPool gpu_pool(*this, pool), gpu_second(*this, second);
  CopiedRows gpu_k(*this, OwnedRows(DType::bf16, kRows, w));
  CopiedRows gpu_q(*this, OwnedRows(DType::bf16, kRows, 4 * w));
  CopiedRows gpu_q_out(*this, q_out), gpu_read(*this, read);
  DeviceCopy<Slot> gpu_slots(*this, slots_from(0, kRows));
  DeviceCopy<LocalPos> gpu_positions(*this, std::vector<LocalPos>(kRows, LocalPos(0)));
  RopeWrite op;
  op.k = gpu_k.read();
  op.q = gpu_q.read();
  op.positions = {gpu_positions.data(), kRows};
  op.slots = span_of(gpu_slots);
  op.table = {gpu_table.data(), 100, 64, RopePairing::interleaved};
  op.q_out = gpu_q_out.view;
  const auto graph = Graph::capture(stream(), [&]() -> Result<void> {
    if (auto ok = rope_quantize_write(op, gpu_pool.view, stream()); !ok) return ok;
    const Requantize change{gpu_pool.view, span_of(gpu_slots), gpu_second.view, span_of(gpu_slots)};
    if (auto ok = requantize(change, stream()); !ok) return ok;
    return gather_decode(gpu_second.view, span_of(gpu_slots), gpu_read.view, {}, stream());
  });
  must(graph);
  for (int replay = 0; replay < 5; ++replay) {
    OwnedRows k(DType::bf16, kRows, w), q(DType::bf16, kRows, 4 * w);
    fill_adversarial(k, rng);
    fill_adversarial(q, rng);
    const auto slots = with_holes(some_slots(128, kRows, rng), 128);
    std::vector<LocalPos> positions;
    // Later replays have fewer rows; the rest are holes.
    for (int t = 0; t < kRows; ++t) {
      positions.emplace_back(t < kRows - 9 * replay ? static_cast<int>(rng() % 100) : -1);
    }
    gpu_k.bytes.write(*this, k.bytes);
    gpu_q.bytes.write(*this, q.bytes);
    gpu_slots.write(*this, slots);
    gpu_positions.write(*this, positions);
    must(graph->launch(stream()));

    lathe::RopeWrite cpu;
    cpu.k = k.read();
    cpu.q = q.read();
    cpu.positions = positions;
    cpu.slots = slots;
    cpu.table = &table;
    cpu.q_out = q_out.view;
    must(lathe::rope_quantize_write(cpu, pool.view));
    must(lathe::requantize(pool.view, slots, second.view, slots));
    must(lathe::gather_decode(second.view, slots, read.view));
    ASSERT_EQ(first_difference(pool.bytes, gpu_pool.bytes.read(*this)), -1) << replay;
    ASSERT_EQ(first_difference(second.bytes, gpu_second.bytes.read(*this)), -1) << replay;
    ASSERT_EQ(first_difference(q_out.bytes, gpu_q_out.bytes.read(*this)), -1) << replay;
    ASSERT_EQ(first_difference(read.bytes, gpu_read.bytes.read(*this)), -1) << replay;
  }
}

// Byte offsets beyond 2^32 in the pool.
TEST_F(CodecGpu, ReachesTheEndOfALargePool) {
  const CacheLayout layout(LayoutKind::mla_fp8_block);
  constexpr std::int64_t kPages = 110'000;  // of 64 tokens: 4.6 GB
  auto bytes = allocate_device_bytes(kPages * layout.page_stride(64));
  must(bytes);
  const PoolView pool(bytes->get(), layout, 64, kPages);
  std::mt19937 rng(28);
  OwnedRows rows(DType::bf16, 100, layout.row_elems());
  fill_adversarial(rows, rng);
  const auto slots = slots_from(static_cast<int>(pool.slots() - 100), 100);
  const CopiedRows in(*this, rows), out(*this, OwnedRows(DType::bf16, 100, layout.row_elems()));
  const DeviceCopy<Slot> list(*this, slots);
  must(encode_rows(in.read(), span_of(list), pool, {}, stream()));
  must(gather_decode(pool, span_of(list), out.view, {}, stream()));
  OwnedPool small(layout, 64, 2);
  must(lathe::encode_rows(rows.read(), slots_from(0, 100), small.view));
  must(lathe::decode_rows(small.view, Slot(0), rows.view));
  EXPECT_EQ(first_difference(rows.bytes, out.bytes.read(*this)), -1);
}

// A Pool in device memory.
TEST_F(CodecGpu, PoolsLieOnTheDevice) {
  const CacheLayout layout(LayoutKind::v4_fp8);
  auto pool =
      Pool::create({.layout = layout, .page_size = 64, .layers = 2, .pages = 3}, kDeviceMemory);
  must(pool);
  std::mt19937 rng(29);
  OwnedRows rows(DType::bf16, 100, layout.row_elems());
  fill_adversarial(rows, rng);
  const auto slots = slots_from(50, 100);
  const CopiedRows in(*this, rows), out(*this, OwnedRows(DType::f32, 100, layout.row_elems()));
  const DeviceCopy<Slot> list(*this, slots);
  must(encode_rows(in.read(), span_of(list), pool->view(1), {}, stream()));
  must(gather_decode(pool->view(1), span_of(list), out.view, {}, stream()));
  auto host = Pool::create({.layout = layout, .page_size = 64, .pages = 3});
  OwnedRows wanted(DType::f32, 100, layout.row_elems());
  must(lathe::encode_rows(rows.read(), slots, host->view()));
  must(lathe::gather_decode(host->view(), slots, wanted.view));
  EXPECT_EQ(first_difference(wanted.bytes, out.bytes.read(*this)), -1);
}

TEST_F(CodecGpu, NothingToDoIsLegal) {
  const CacheLayout layout(LayoutKind::v4_fp8);
  const PoolView empty(nullptr, layout, 64, 0);
  const std::int64_t w = layout.row_elems();
  must(encode_rows({nullptr, DType::bf16, 0, w, w}, {}, empty, {}, stream()));
  must(gather_decode(empty, {}, {nullptr, DType::f32, 0, w, w}, {}, stream()));
  must(decode_rows(empty, Slot(0), {nullptr, DType::f32, 0, w, w}, {}, stream()));
  must(move_tokens(empty, {}, {}, nullptr, stream()));
  // In a pool without pages every slot is a hole.
  OwnedRows rows(DType::f32, 3, w);
  const CopiedRows out(*this, rows);
  const DeviceCopy<Slot> list(*this, to_slots({0, 5, -1}));
  must(gather_decode(empty, span_of(list), out.view, {}, stream()));
  EXPECT_EQ(first_difference(out.bytes.read(*this), std::vector<std::byte>(rows.bytes.size())), -1);
}

TEST_F(CodecGpu, MoreMemoryThanThereIsSaysHowMuch) {
  const auto none = allocate_device_bytes(std::int64_t{1} << 50);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ErrorCode::exhausted);
  EXPECT_NE(none.error().message().find("1125899906842624 bytes"), std::string::npos)
      << none.error().message();
  // A launch does not report an earlier call's error.
  const cudaError_t refused = cudaMemcpy(nullptr, nullptr, 1, cudaMemcpyHostToDevice);
  EXPECT_FALSE(call_result(refused, "cudaMemcpy").ok());
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  const DeviceCopy<Slot> list(*this, to_slots({0}));
  EXPECT_EQ(list.read(*this)[0], Slot(0));
}

}  // namespace
}  // namespace lathe::cuda

int main(int argc, char** argv) { return lathe::cuda::gpu_test_main(argc, argv); }
