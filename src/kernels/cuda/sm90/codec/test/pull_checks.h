// Pulls of pages and tokens from memory that another process has exported, against the CPU's copies
// and codecs, byte by byte.
#pragma once

#include <functional>
#include <numeric>
#include <string>

#include "base/test_scale.h"
#include "kernels/cuda/common/ipc_memory.h"
#include "kernels/cuda/sm90/codec/codec.h"
#include "kernels/cuda/sm90/codec/test/codec_gpu_test_util.h"
#include "layout/pages/copy_records.h"

namespace lathe::cuda {

/// Lets another process hold a copy of these bytes in device memory, and exports it.
using Share = std::function<Result<MemoryHandle>(const std::vector<std::byte>&)>;

class PullCheck {
 public:
  PullCheck(const GpuTest& gpu, Share share, std::int64_t tokens)
      : gpu_(gpu), share_(std::move(share)), tokens_(tokens) {}

  /// Every layout, and every pair that requantize() converts.
  void run() {
    unsigned seed = 60;
    for (const CacheLayout& layout : scaled(layouts_to_test())) {
      if (!begin(seed++)) return;
      SCOPED_TRACE(layout.serialize() + ", seed " + std::to_string(seed_));
      check_pages(layout);
      for (const auto& [from, to] : {std::pair(64, 16), std::pair(16, 64), std::pair(6, 64)}) {
        check_tokens(layout, from, to);
      }
      check_rows(layout, DType::bf16);
      check_rows(layout, DType::f32);
    }
    struct Pair {
      const char* from;
      const char* to;
      float scale;
    };
    for (const Pair& pair :
         scaled({Pair{"mla_fp8", "mla_fp8_block", 0.25f},
                 Pair{"mla_fp8", "mla_fp8_block(scale=raw_f32)", 0.7f},
                 Pair{"mla_fp8_block", "mla_fp8", 1.0f},
                 Pair{"mla_fp8_block(scale=raw_f32)", "mla_fp8", 1.0f},
                 Pair{"mla_fp8_block(nope=384,rope=80,scale=raw_f32)", "mla_fp8(nope=384,rope=80)",
                      1.0f},
                 Pair{"mla_fp8(nope=128,rope=0)", "mla_fp8_block(nope=128,rope=0)", 1.0f}})) {
      if (!begin(seed++)) return;
      SCOPED_TRACE(std::string(pair.from) + " to " + pair.to + ", seed " + std::to_string(seed_));
      check_conversion(*CacheLayout::parse(pair.from), *CacheLayout::parse(pair.to), pair.scale);
    }
  }

 private:
  // Pairs of places in two pools: sources in any order and several times, destinations once; holes
  // of every kind in both.
  template <class Index>
  struct Lists {
    std::vector<Index> src, dst;
    std::vector<Index> valid_src, valid_dst;  // the pairs without holes
  };

  struct Opened {
    PeerMemory memory;
    ConstPoolView view;
  };

  bool begin(unsigned seed) {
    seed_ = test_seed(seed);
    rng_.seed(seed_);
    return !::testing::Test::HasFailure();
  }

  int hole(std::int64_t count) {
    const int holes[] = {-1, static_cast<int>(count), -1000, 0x7fffffff};
    return holes[rng_() % 4];
  }
  template <class Index>
  Lists<Index> make_lists(std::int64_t sources, std::int64_t targets) {
    Lists<Index> out;
    std::vector<int> places(static_cast<std::size_t>(targets));
    std::iota(places.begin(), places.end(), 0);
    std::shuffle(places.begin(), places.end(), rng_);
    for (int place : places) {
      int source = static_cast<int>(rng_() % static_cast<std::uint64_t>(sources));
      const bool no_source = rng_() % 7 == 0, no_place = rng_() % 7 == 0;
      if (no_source) source = hole(sources);
      if (no_place) place = hole(targets);
      out.src.emplace_back(source);
      out.dst.emplace_back(place);
      if (no_source || no_place) continue;
      out.valid_src.emplace_back(source);
      out.valid_dst.emplace_back(place);
    }
    return out;
  }
  OwnedPool make_pool(const CacheLayout& layout, std::int32_t page_size, std::int64_t extra) {
    OwnedPool pool(layout, page_size, tokens_ / page_size + 1, extra);
    for (std::byte& b : pool.bytes) b = static_cast<std::byte>(rng_());
    return pool;
  }
  Result<Opened> open(const OwnedPool& pool) {
    const auto handle = share_(pool.bytes);
    if (!handle) return handle.error();
    auto memory = PeerMemory::open(*handle);
    if (!memory) return memory.error();
    const PoolView& v = pool.view;
    const ConstPoolView view(memory->data(), v.layout, v.page_size, v.pages, v.page_stride);
    return Opened{std::move(*memory), view};
  }
  // Closing memory needs an idle stream; to read `got` waits for it.
  void expect_equal(const std::vector<std::byte>& wanted, const DeviceCopy<std::byte>& got,
                    const char* what) {
    EXPECT_EQ(first_difference(wanted, got.read(gpu_)), -1) << what;
  }

  void check_pages(const CacheLayout& layout) {
    const OwnedPool from = make_pool(layout, 16, rng_() % 3 == 0 ? 3 : 0);
    OwnedPool to(layout, 16, from.view.pages - 1, rng_() % 3 == 0 ? 4 : 0);
    const auto peer = open(from);
    ASSERT_TRUE(peer.ok()) << peer.error().message();
    const auto lists = make_lists<PageId>(from.view.pages, to.view.pages);
    const CopiedPool own(gpu_, to);
    const DeviceCopy<PageId> src(gpu_, lists.src), dst(gpu_, lists.dst);
    must(copy_pages(peer->view, {src.data(), lists.src.size()}, own.view,
                    {dst.data(), lists.dst.size()}, gpu_.stream()));
    must(lathe::copy_pages(from.view, lists.valid_src, to.view, lists.valid_dst));
    expect_equal(to.bytes, own.bytes, "pages");
  }

  void check_tokens(const CacheLayout& layout, std::int32_t from_size, std::int32_t to_size) {
    const OwnedPool from = make_pool(layout, from_size, 0);
    OwnedPool to(layout, to_size, tokens_ / to_size + 1, rng_() % 2 == 0 ? 0 : 16);
    const auto peer = open(from);
    ASSERT_TRUE(peer.ok()) << peer.error().message();
    const auto lists = make_lists<Slot>(from.view.slots(), to.view.slots());
    const CopiedPool own(gpu_, to);
    const DeviceCopy<Slot> src(gpu_, lists.src), dst(gpu_, lists.dst);
    must(copy_slots(peer->view, span_of(src), own.view, span_of(dst), gpu_.stream()));
    must(lathe::copy_slots(from.view, lists.valid_src, to.view, lists.valid_dst));
    expect_equal(to.bytes, own.bytes, "tokens");
  }

  void check_rows(const CacheLayout& layout, DType dtype) {
    const OwnedPool from = make_pool(layout, 64, 0);
    const auto peer = open(from);
    ASSERT_TRUE(peer.ok()) << peer.error().message();
    const auto lists = make_lists<Slot>(from.view.slots(), tokens_);
    std::vector<Slot> clean = lists.src;
    for (Slot& s : clean) s = from.view.holds(s) ? s : Slot();
    OwnedRows rows(dtype, tokens_, layout.row_elems());
    const CopiedRows own(gpu_, rows);
    const DeviceCopy<Slot> src(gpu_, lists.src);
    const TensorScales scales{0.7f, 3.0f};
    must(gather_decode(peer->view, span_of(src), own.view, scales, gpu_.stream()));
    must(lathe::gather_decode(from.view, clean, rows.view, scales));
    expect_equal(rows.bytes, own.bytes, "rows");
  }

  void check_conversion(const CacheLayout& from_layout, const CacheLayout& to_layout, float scale) {
    OwnedPool from = make_pool(from_layout, 64, 0);
    if (from_layout.kind() == LayoutKind::mla_fp8_block) {  // random bytes are no scales
      OwnedRows rows(DType::f32, from.view.slots(), from_layout.row_elems());
      fill_adversarial(rows, rng_, 64);
      must(lathe::encode_rows(rows.read(), slots_from(0, from.view.slots()), from.view));
    }
    OwnedPool to(to_layout, 16, tokens_ / 16 + 1);
    const auto peer = open(from);
    ASSERT_TRUE(peer.ok()) << peer.error().message();
    const auto lists = make_lists<Slot>(from.view.slots(), to.view.slots());
    const CopiedPool own(gpu_, to);
    const DeviceCopy<Slot> src(gpu_, lists.src), dst(gpu_, lists.dst);
    const DeviceCopy<RequantWords> words(gpu_, std::vector<RequantWords>(1));
    must(requantize({.src = peer->view,
                     .src_slots = span_of(src),
                     .dst = own.view,
                     .dst_slots = span_of(dst),
                     .src_scales = {scale, 1},
                     .dst_scales = {0.35f, 1},
                     .report = words.data()},
                    gpu_.stream()));
    const auto wanted = lathe::requantize(from.view, lists.valid_src, to.view, lists.valid_dst,
                                          {scale, 1}, {0.35f, 1});
    ASSERT_TRUE(wanted.ok()) << wanted.error().message();
    expect_equal(to.bytes, own.bytes, "converted tokens");
    const RequantReport got = requant_report(words.read(gpu_)[0], lists.src);
    EXPECT_EQ(got.worst_abs_error, wanted->worst_abs_error);
    EXPECT_EQ(got.worst_slot, wanted->worst_slot);
    EXPECT_EQ(got.saturated, wanted->saturated);
  }

  const GpuTest& gpu_;
  Share share_;
  std::int64_t tokens_;
  unsigned seed_ = 0;
  std::mt19937 rng_;
};

}  // namespace lathe::cuda
