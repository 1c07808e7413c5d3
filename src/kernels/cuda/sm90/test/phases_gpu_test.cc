// One cache through the phases of serving on a GPU: written by prompts and by single tokens,
// converted, and attended to by alternating sparse extends, verification and draft extends.
#include "kernels/cuda/sm90/codec/codec.h"
#include "kernels/cuda/sm90/codec/test/codec_gpu_test_util.h"
#include "kernels/cuda/sm90/latent/test/latent_gpu_test_util.h"
#include "layout/rope/test/rope_write_test_util.h"

namespace lathe::cuda {
namespace {

constexpr std::int64_t kPositions = 400;
constexpr TensorScales kScales{0.25f, 1};

class PhasesGpu : public LatentGpu {
 protected:
  /// Rotates the keys of `positions` and writes them to `slots` in one call.
  void write(const OwnedRows& k, std::span<const std::int32_t> positions,
             std::span<const Slot> slots, const RopeCase& c, const PoolView& pool) {
    std::vector<float> table;
    if (c.dim > 0) {
      const auto made = *RopeTable::make({.dim = c.dim}, kPositions);
      table.assign(made.data().begin(), made.data().end());
    }
    const CopiedRows rows(*this, k);
    const DeviceCopy<float> gpu_table(*this, table);
    const DeviceCopy<Slot> list(*this, {slots.begin(), slots.end()});
    const DeviceCopy<LocalPos> at(*this, {positions.begin(), positions.end()});
    RopeWrite op;
    op.k = rows.read();
    op.positions = {at.data(), positions.size()};
    op.slots = span_of(list);
    if (c.dim > 0) op.table = {gpu_table.data(), kPositions, c.dim};
    op.place = c.place;
    op.scales = scales_of(pool.layout);
    must(rope_quantize_write(op, pool, stream()));
    must(stream().wait());
  }
  static TensorScales scales_of(const CacheLayout& layout) {
    return layout.scale_policy() == ScalePolicy::per_tensor ? kScales : TensorScales{};
  }
  static OwnedRows normal_rows(std::int64_t rows, std::int64_t cols, std::mt19937& rng) {
    OwnedRows out(DType::f32, rows, cols);
    std::normal_distribution<float> normal;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) out.set(r, c, normal(rng));
    }
    return out;
  }
  /// Rows [first, first + count) of k.
  static OwnedRows rows_of(const OwnedRows& k, std::int64_t first, std::int64_t count) {
    OwnedRows out(k.view.dtype, count, k.view.cols);
    std::memcpy(out.bytes.data(), k.view.row(first), out.bytes.size());
    return out;
  }
};

// A prompt's call, calls of a few tokens among padding, and calls of one token write the same
// bytes: a key is rotated once, whichever call writes it.
TEST_F(PhasesGpu, EveryPhaseWritesTheSameBytes) {
  constexpr std::int32_t kTokens = 57;
  std::mt19937 rng(41);
  for (const RopeCase& c : kRopeCases) {
    SCOPED_TRACE(c.layout);
    const CacheLayout layout = *CacheLayout::parse(c.layout);
    const OwnedRows k = normal_rows(kTokens, layout.row_elems(), rng);
    std::vector<Slot> slots = slots_from(0, 4 * 16);
    std::shuffle(slots.begin(), slots.end(), rng);
    Ints positions;
    for (int t = 0; t < kTokens; ++t) positions.push_back(300 - t);
    const OwnedPool empty(layout, 16, 4);
    const CopiedPool prompt(*this, empty), few(*this, empty), single(*this, empty);
    write(k, positions, {slots.data(), kTokens}, c, prompt.view);
    for (std::int32_t t = 0; t < kTokens; ++t) {
      write(rows_of(k, t, 1), {&positions[static_cast<std::size_t>(t)], 1},
            {&slots[static_cast<std::size_t>(t)], 1}, c, single.view);
    }
    constexpr std::int32_t kFew = 3, kPadded = 8;
    for (std::int32_t t = 0; t < kTokens; t += kFew) {
      Ints at(kPadded, -1);
      std::vector<Slot> to(kPadded);
      std::copy_n(positions.begin() + t, kFew, at.begin());
      std::copy_n(slots.begin() + t, kFew, to.begin());
      OwnedRows padded(DType::f32, kPadded, layout.row_elems());
      std::memcpy(padded.bytes.data(), k.view.row(t), rows_of(k, t, kFew).bytes.size());
      write(padded, at, to, c, few.view);
    }
    const auto bytes = prompt.bytes.read(*this);
    EXPECT_EQ(first_difference(bytes, single.bytes.read(*this)), -1);
    EXPECT_EQ(first_difference(bytes, few.bytes.read(*this)), -1);
    EXPECT_NE(first_difference(bytes, empty.bytes), -1);
  }
}

// Keys in a pool with one scale decode to the same bits after conversion to blocks with scales.
TEST_F(PhasesGpu, ConvertedKeysDecodeToTheSameBits) {
  constexpr std::int32_t kTokens = 300;
  std::mt19937 rng(42);
  const CacheLayout plain(LayoutKind::mla_fp8), block(LayoutKind::mla_fp8_block);
  const OwnedRows k = normal_rows(kTokens, plain.row_elems(), rng);
  std::vector<Slot> slots = slots_from(0, kTokens);
  std::shuffle(slots.begin(), slots.end(), rng);
  Ints positions(kTokens);
  std::iota(positions.begin(), positions.end(), 0);
  const CopiedPool from(*this, OwnedPool(plain, 64, 5)), to(*this, OwnedPool(block, 64, 5));
  write(k, positions, slots, kRopeCases[1], from.view);
  const DeviceCopy<Slot> list(*this, slots);
  DeviceCopy<RequantWords> words(*this, std::vector<RequantWords>{{99, 99}});
  must(requantize({.src = from.view,
                   .src_slots = span_of(list),
                   .dst = to.view,
                   .dst_slots = span_of(list),
                   .src_scales = kScales,
                   .report = words.data()},
                  stream()));
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const OwnedRows poisoned(dtype, kTokens, plain.row_elems());
    const CopiedRows before(*this, poisoned), after(*this, poisoned);
    must(gather_decode(from.view, span_of(list), before.view, kScales, stream()));
    must(gather_decode(to.view, span_of(list), after.view, {}, stream()));
    EXPECT_EQ(first_difference(before.bytes.read(*this), after.bytes.read(*this)), -1);
    EXPECT_NE(first_difference(before.bytes.read(*this), poisoned.bytes), -1);
  }
  EXPECT_EQ(requant_report(words.read(*this)[0], slots).worst_abs_error, 0);
}

// A prompt with a cached prefix and one without are extended by index lists over blocks, converted
// from the pool. Verification and draft extends attend to that pool by page table. Rejected tokens
// remain in the pool until they are overwritten.
TEST_F(PhasesGpu, SparseExtendThenVerifyThenDraftExtend) {
  const CacheLayout plain(LayoutKind::mla_fp8), block(LayoutKind::mla_fp8_block);
  for (const int heads : {16, 64}) {
    SCOPED_TRACE("heads " + std::to_string(heads));
    // Enough pages for the last phase.
    Scene s(plain, 64, heads, {{260, 40}, {130, 60}});
    std::mt19937 rng(43);
    OwnedPool host(plain, 64, s.pool.view().pages);
    std::ranges::fill(host.bytes, std::byte{0xff});
    const CopiedPool pool(*this, host);
    const auto slot_at = [&](std::size_t r, std::int32_t pos) {
      return slot_of(s.batch.entry(r, pos / 64), 64, pos % 64);
    };
    const auto append = [&](std::size_t r, std::int32_t begin, std::int32_t end, bool at_once) {
      Ints positions;
      std::vector<Slot> slots;
      for (std::int32_t p = begin; p < end; ++p) {
        positions.push_back(p);
        slots.push_back(slot_at(r, p));
      }
      const OwnedRows k = normal_rows(end - begin, plain.row_elems(), rng);
      const std::int32_t step = at_once ? end - begin : 1;
      for (std::int32_t i = 0; i < end - begin; i += step) {
        write(rows_of(k, i, step),
              std::span(positions).subspan(static_cast<std::size_t>(i),
                                           static_cast<std::size_t>(step)),
              std::span(slots).subspan(static_cast<std::size_t>(i), static_cast<std::size_t>(step)),
              kRopeCases[1], pool.view);
      }
    };
    // Attends to the keys that the device wrote; the queries are the last rows of each request.
    const auto attend_to = [&](const CopiedPool& keys, const Ints& lens, const Ints& rows) {
      const CacheLayout& layout = keys.view.layout;
      std::vector<std::byte> bytes = keys.bytes.read(*this);
      s.batch.kv_lens = lens;
      s.batch.q_indptr = {0, rows[0], rows[0] + rows[1]};
      s.batch.rows = s.batch.q_indptr[2];
      s.batch.put_into(s.args);
      s.q = ref_test::random_matrix(s.batch.rows, heads * plain.row_elems(), s.rng);
      s.args.main = {};
      s.args.main.pool.emplace(bytes.data(), layout, 64, keys.view.pages, keys.view.page_stride);
      s.args.main.key_scale = scales_of(layout).key;
      const bool by_list = layout.kind() == LayoutKind::mla_fp8_block;
      const Ints list = by_list ? s.batch.causal_list(64, 128, 128) : Ints{};
      s.args.problem.kind = ProblemKind::dense_latent;
      if (by_list) {
        s.by_index(list);
      } else {
        s.batch.name_by_page(s.args.main);
      }
      check(s, 0, 2);
    };

    append(0, 0, 200, true);
    append(0, 200, 240, true);
    append(1, 0, 60, true);
    const CopiedPool converted(*this, OwnedPool(block, 64, host.view.pages));
    std::vector<Slot> written;
    for (std::int32_t p = 0; p < 240; ++p) written.push_back(slot_at(0, p));
    for (std::int32_t p = 0; p < 60; ++p) written.push_back(slot_at(1, p));
    const DeviceCopy<Slot> list(*this, written);
    must(requantize({.src = pool.view,
                     .src_slots = span_of(list),
                     .dst = converted.view,
                     .dst_slots = span_of(list),
                     .src_scales = kScales},
                    stream()));
    attend_to(converted, {240, 60}, {40, 60});

    append(0, 240, 244, true);
    append(1, 60, 64, false);
    attend_to(pool, {244, 64}, {4, 4});
    // Accepts three of the first request's four tokens, and one of the second's.
    attend_to(pool, {243, 61}, {3, 1});
    append(0, 243, 247, false);
    append(1, 61, 65, true);
    attend_to(pool, {247, 65}, {4, 4});
  }
}

}  // namespace
}  // namespace lathe::cuda

int main(int argc, char** argv) { return lathe::cuda::gpu_test_main(argc, argv); }
