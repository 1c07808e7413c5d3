// Tests latent attention on a GPU against the oracle in double precision, with the bounds of
// latent_checks.h.
#include "kernels/cuda/sm90/latent/test/latent_gpu_test_util.h"

namespace lathe::cuda {
namespace {

TEST_F(LatentGpu, DenseByPageTable) {
  for (const LayoutKind kind :
       {LayoutKind::mla_bf16, LayoutKind::mla_fp8, LayoutKind::mla_fp8_block}) {
    for (const int heads : {64, 128, 48}) {
      SCOPED_TRACE(std::string(name(kind)) + ", heads " + std::to_string(heads));
      Scene s(layout_of(kind), 64, heads, {{1, 1}, {300, 1}, {64, 2}, {129, 1}, {0, 1}});
      check(s);
    }
  }
}

TEST_F(LatentGpu, DenseCutAmongBlocks) {
  for (const LayoutKind kind : {LayoutKind::mla_bf16, LayoutKind::mla_fp8_block}) {
    SCOPED_TRACE(name(kind));
    Scene s(layout_of(kind), 16, 64, {{1500, 1}, {700, 3}, {5, 1}});
    check(s, 0, 20);
  }
}

// Requests of several rows, shared among the SMs by length.
TEST_F(LatentGpu, UnequalLengths) {
  for (const LayoutKind kind :
       {LayoutKind::mla_bf16, LayoutKind::mla_fp8, LayoutKind::mla_fp8_block}) {
    for (const int heads : {16, 64, 128}) {
      const auto seed = static_cast<unsigned>(1000 * heads) + static_cast<unsigned>(kind);
      SCOPED_TRACE(std::string(name(kind)) + ", heads " + std::to_string(heads) + ", seed " +
                   std::to_string(seed));
      Scene s(layout_of(kind), 64, heads, unequal_requests(seed, 640 / heads, 900, 6000));
      check(s, 0, 3);
    }
  }
}

// As many partials as the combine reads in four slices, in eight, and in two rounds of eight.
TEST_F(LatentGpu, ManyPartials) {
  for (const int keys : {2300, 4500, 9000}) {
    for (const int heads : {8, 40}) {
      SCOPED_TRACE(std::to_string(keys) + " keys, heads " + std::to_string(heads));
      const LatentCut cut =
          cut_latent({.requests = 1, .keys = keys, .heads = heads, .dense = true});
      EXPECT_GT(cut.all.work_tile_items, keys / 140);
      Scene s(layout_of(LayoutKind::mla_bf16), 64, heads, {{keys, 1}});
      check(s, 0, 3);
    }
  }
}

// Work tiles whose M rows end in the second M block, or before it; page tables with missing pages;
// scores that rise by more than the slack from tile to tile.
TEST_F(LatentGpu, DenseByPageTableInPairsOfBlocks) {
  for (const LayoutKind kind : {LayoutKind::mla_bf16, LayoutKind::mla_fp8_block}) {
    for (const int page : {8, 64, 100}) {
      for (const int heads : {48, 128}) {
        SCOPED_TRACE(std::string(name(kind)) + ", page " + std::to_string(page) + ", heads " +
                     std::to_string(heads));
        Scene s(layout_of(kind), page, heads,
                {{400, 2}, {1, 1}, {150, 2}, {0, 1}, {129, 1}, {330, 1}});
        s.batch.entry(0, 0) = PageId(-1);
        s.batch.entry(0, 200 / page) = PageId(1 << 27);
        s.batch.entry(0, 399 / page) = PageId(-1);
        for (int i = 0; i * page < 150; ++i) s.batch.entry(2, i) = PageId(-1);
        s.batch.name_by_page(s.args.main);
        if (kind == LayoutKind::mla_bf16) s.args.problem.scale = 0.8f;
        check(s, heads == 48 ? 4 : 0, 3);
        // Not split: outputs are stored by TMA boxes.
        if (heads == 128) check(s, 4, 3);
      }
    }
  }
}

// A pair of blocks, one of which has no M row; the rows after it must stay as they are.
TEST_F(LatentGpu, OutputsOfHalfAPairOfBlocks) {
  Scene s(layout_of(LayoutKind::mla_bf16), 64, 64, {{2000, 1}, {5, 2}});
  EXPECT_EQ(
      cut_latent(
          {.requests = 2, .request_rows = 2, .keys = 2000, .heads = 64, .dense = true, .sms = 4})
          .all.work_tile_items,
      1);
  check(s, 4, 3);
}

TEST_F(LatentGpu, SparseLists) {
  for (const LayoutKind kind :
       {LayoutKind::mla_fp8_block, LayoutKind::mla_bf16, LayoutKind::mla_fp8}) {
    for (const int heads : {64, 96, 128}) {
      for (const int width : {64, 200, 1024}) {
        SCOPED_TRACE(std::string(name(kind)) + ", heads " + std::to_string(heads) + ", width " +
                     std::to_string(width));
        Scene s(layout_of(kind), 61, heads, {{512, 1}, {900, 2}, {3, 1}});
        const Ints list = s.random_list(width);
        s.by_index(list);
        check(s, width == 200 ? 2 : 0, 3);
      }
    }
  }
}

// Each kernel in a scene small enough for compute-sanitizer's racecheck: several items a block,
// work tiles split and whole, tiles with masked keys, several rows of a request.
TEST_F(LatentGpu, Small) {
  for (const int heads : {8, 16, 32, 64}) {
    for (const LayoutKind kind : {LayoutKind::mla_bf16, LayoutKind::mla_fp8_block}) {
      SCOPED_TRACE(std::string(name(kind)) + ", heads " + std::to_string(heads));
      Scene pages(layout_of(kind), 64, heads, {{300, 1}, {130, heads == 64 ? 2 : 1}, {0, 1}});
      check(pages, 1);
      check(pages, 2);
      Scene rows(layout_of(kind), 61, heads, {{200, 1}, {90, 1}});
      const Ints list = rows.random_list(300);
      rows.by_index(list);
      check(rows, 1);
      check(rows, 3);
    }
  }
  for (const int room : {1 << 20, 1}) {
    Scene staged(layout_of(LayoutKind::mla_fp8_block), 61, 64, {{200, 1}, {90, 2}});
    const Ints list = staged.random_list(130);
    staged.by_index(list);
    check(staged, 1, 1, room);
  }
}

// M blocks of 8, 16 and 32 rows.

TEST_F(LatentGpu, FewHeadsDenseByPageTable) {
  for (const LayoutKind kind :
       {LayoutKind::mla_bf16, LayoutKind::mla_fp8, LayoutKind::mla_fp8_block}) {
    for (const int heads : {1, 3, 8, 9, 16, 24, 32}) {
      SCOPED_TRACE(std::string(name(kind)) + ", heads " + std::to_string(heads));
      Scene one(layout_of(kind), 64, heads, {{1, 1}, {300, 1}, {64, 1}, {129, 1}, {0, 1}});
      check(one);
      Scene several(layout_of(kind), 64, heads, {{3, 3}, {130, 2}, {0, 0}, {260, 1}});
      check(several, 0, 2);
    }
  }
}

TEST_F(LatentGpu, FewHeadsDenseCutAmongBlocks) {
  for (const LayoutKind kind : {LayoutKind::mla_bf16, LayoutKind::mla_fp8_block}) {
    for (const int heads : {5, 8, 10, 16, 32}) {
      SCOPED_TRACE(std::string(name(kind)) + ", heads " + std::to_string(heads));
      Scene s(layout_of(kind), 16, heads, {{1500, 1}, {700, heads <= 10 ? 3 : 1}, {5, 1}});
      check(s, 0, 20);
      // Several items a block.
      check(s, 3, 3);
    }
  }
}

TEST_F(LatentGpu, FewHeadsPageSizes) {
  for (const int page : {1, 4, 8, 32, 100, 128, 256}) {
    SCOPED_TRACE(page);
    Scene s(layout_of(LayoutKind::mla_bf16), page, 16, {{300, 2}, {64, 1}, {129, 1}, {0, 1}});
    check(s, 0, 2);
    check(s, 1);
  }
}

TEST_F(LatentGpu, FewHeadsSparseLists) {
  for (const LayoutKind kind :
       {LayoutKind::mla_fp8_block, LayoutKind::mla_bf16, LayoutKind::mla_fp8}) {
    for (const int heads : {1, 8, 16, 24, 32}) {
      for (const int width : {64, 200, 1024}) {
        SCOPED_TRACE(std::string(name(kind)) + ", heads " + std::to_string(heads) + ", width " +
                     std::to_string(width));
        Scene s(layout_of(kind), 61, heads, {{512, 1}, {900, 2}, {3, 1}});
        const Ints list = s.random_list(width);
        s.by_index(list);
        Ints lengths{width, width / 3, 0, width - 1};
        s.args.main.index_lengths = lengths;
        const std::vector<float> sink(static_cast<std::size_t>(heads), 0.5f);
        s.args.problem.sink = true;
        s.args.sink = sink;
        check(s, width == 200 ? 2 : 0, width == 1024 ? 20 : 2);
      }
    }
  }
}

TEST_F(LatentGpu, FewHeadsOfTwoSources) {
  for (const int heads : {3, 8, 16, 32, 64}) {
    SCOPED_TRACE("heads " + std::to_string(heads));
    Scene s(layout_of(LayoutKind::v4_fp8), 64, heads, {{300, 2}, {40, 1}, {700, 1}});
    const Ints window = s.batch.causal_list(64, 100, 100);
    const Ints list = s.random_list(330);
    s.by_two_sources(window, 100, list);
    check(s, heads == 8 ? 3 : 0, 3);
  }
}

// Scores that rise by more than the slack from tile to tile, late, and in a few M rows only.
TEST_F(LatentGpu, FewHeadsWithRisingScores) {
  for (const int heads : {8, 16, 32}) {
    SCOPED_TRACE("heads " + std::to_string(heads));
    Scene s(layout_of(LayoutKind::mla_bf16), 64, heads, {{900, 1}, {400, 1}});
    s.args.problem.scale = 0.8f;
    check(s, 0, 2);
    check(s, 1, 2);
  }
}

TEST_F(LatentGpu, AGraphReplaysOverOtherContents) {
  const Requests before = {{300, 1}, {50, 1}, {1400, 1}, {0, 1}};
  const Requests after = {{1400, 1}, {0, 1}, {300, 1}, {50, 1}};
  for (const LayoutKind kind : {LayoutKind::mla_bf16, LayoutKind::mla_fp8_block}) {
    for (const int heads : {16, 64, 128}) {
      SCOPED_TRACE(std::string(name(kind)) + ", heads " + std::to_string(heads));
      Scene a(layout_of(kind), 64, heads, before), b(layout_of(kind), 64, heads, after, 7);
      replay(a, b);
    }
  }
}

// Staged pages: with room for all, and for fewer than are listed.
TEST_F(LatentGpu, StagedPages) {
  for (const LayoutKind kind :
       {LayoutKind::mla_fp8, LayoutKind::mla_fp8_block, LayoutKind::v4_fp8}) {
    for (const int heads : {64, 128}) {
      for (const int room : {1 << 20, 2}) {
        SCOPED_TRACE(std::string(name(kind)) + ", heads " + std::to_string(heads) + ", room " +
                     std::to_string(room));
        Scene s(layout_of(kind), 61, heads, {{512, 3}, {900, 2}, {3, 1}, {200, 1}});
        const int width = heads == 64 ? 200 : 1030;
        Ints list = s.random_list(width);
        std::fill(list.begin() + width, list.begin() + 2 * width, -1);
        list[3] = 1 << 30;
        const ProblemKind problem = kind == LayoutKind::v4_fp8 ? ProblemKind::window_compressed
                                                               : ProblemKind::sparse_latent;
        s.by_index(list, problem);
        const Ints lengths = {width, width, 64, 0, 1, width, width - 1};
        s.args.main.index_lengths = lengths;
        check(s, 4, 20, room);
        check(s, 4, 20, room, 3);
      }
    }
  }
}

TEST_F(LatentGpu, StagedPagesOfTwoSources) {
  for (const int room : {1 << 20, 3}) {
    SCOPED_TRACE(room);
    Scene s(layout_of(LayoutKind::v4_fp8), 64, 64, {{300, 2}, {40, 1}, {700, 1}});
    const Ints window = s.batch.causal_list(64, 100, 100);
    const Ints list = s.random_list(330);
    s.by_two_sources(window, 100, list);
    check(s, 2, 3, room);
    check(s, 2, 3, room, 1);
  }
}

// Only the last rows are split: with lengths and a sink, which must be applied by the combine.
TEST_F(LatentGpu, LastRowsCut) {
  for (const LayoutKind kind :
       {LayoutKind::mla_bf16, LayoutKind::mla_fp8, LayoutKind::mla_fp8_block}) {
    for (const int heads : {8, 32, 64, 128}) {
      SCOPED_TRACE(std::string(name(kind)) + ", heads " + std::to_string(heads));
      Scene s(layout_of(kind), 64, heads, {{500, 3}, {900, 2}, {5, 1}});
      const std::vector<float> sink(static_cast<std::size_t>(heads), 0.5f);
      s.args.problem.sink = true;
      s.args.sink = sink;
      const Ints list = s.random_list(300);
      s.by_index(list);
      const Ints lengths = {300, 0, 300, 140, 290, 0};
      s.args.main.index_lengths = lengths;
      for (const int last : {1, 4}) check(s, 4, 3, 0, last);
    }
  }
}

// cut_latent()'s own choice for a prefill that would leave its last wave nearly empty.
TEST_F(LatentGpu, LastRowsOfAnExtend) {
  Scene s(layout_of(LayoutKind::mla_fp8_block), 64, 64, {{700, 9}});
  const Ints list = s.random_list(2048);
  s.by_index(list);
  const Call call = prepare(s.args, 4);
  EXPECT_EQ(call.schedule.cut.tail.work_tiles, 1);
  EXPECT_GT(call.schedule.cut.tail.work_tile_items, 2);
  release();
  check(s, 4, 20);
}

// Replays with lists of fewer pages than there is room for, and of more.
TEST_F(LatentGpu, AGraphReplaysOverOtherPages) {
  Scene a(layout_of(LayoutKind::mla_fp8_block), 16, 64, {{600, 2}, {50, 2}});
  Scene b(layout_of(LayoutKind::mla_fp8_block), 16, 64, {{50, 2}, {600, 2}}, 7);
  Ints few = a.random_list(130), many = b.random_list(130);
  for (std::size_t i = 0; i < few.size(); ++i) few[i] = i % 3 == 0 ? -1 : few[i % 20];
  a.by_index(few);
  b.by_index(many);
  replay(a, b, 2, 20);
  replay(a, b, 2, 20, 1);
}

TEST_F(LatentGpu, LengthsAndSinks) {
  for (const int heads : {8, 64, 128}) {
    for (const LayoutKind kind : {LayoutKind::mla_fp8_block, LayoutKind::v4_fp8}) {
      SCOPED_TRACE(std::string(name(kind)) + ", heads " + std::to_string(heads));
      Scene s(layout_of(kind), 64, heads, {{200, 2}, {90, 2}, {5, 1}});
      Ints list = s.random_list(140);
      std::fill(list.begin() + 3 * 140, list.begin() + 4 * 140, -1);
      s.by_index(list, kind == LayoutKind::v4_fp8 ? ProblemKind::window_compressed
                                                  : ProblemKind::sparse_latent);
      const Ints lengths = {140, 64, 0, 140, 1};
      s.args.main.index_lengths = lengths;
      std::vector<float> sink(static_cast<std::size_t>(heads));
      for (std::size_t h = 0; h < sink.size(); ++h) sink[h] = static_cast<float>(h % 5) - 2;
      sink[1] = -std::numeric_limits<float>::infinity();
      s.args.problem.sink = true;
      s.args.sink = sink;
      check(s);
      check(s, 3);
    }
  }
}

}  // namespace
}  // namespace lathe::cuda

int main(int argc, char** argv) { return lathe::cuda::gpu_test_main(argc, argv); }
