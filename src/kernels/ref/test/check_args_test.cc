// Every refusal names its argument and writes no output.
#include "attn/check_args.h"

#include <gtest/gtest.h>

#include <functional>

#include "kernels/ref/attend_gqa.h"
#include "kernels/ref/attend_latent.h"
#include "kernels/ref/attend_ragged.h"
#include "kernels/ref/test/test_util.h"

namespace lathe {
namespace {

using namespace ref_test;
using Ints = std::vector<std::int32_t>;

// Two requests of 5 and 3 keys with 2 and 1 rows, pages of 2. Legal arguments for each kernel.
struct Legal {
  Rng rng{3};
  TestPool pool;
  Batch batch;
  Matrix<float> q;
  std::vector<float> w_uk, w_uv, sink;
  Ints list, lengths;
  Matrix<double> out;
  Matrix<double> lse;
  AttendArgs args;

  Legal(const CacheLayout& layout, std::int64_t q_cols, std::int64_t out_cols)
      : pool(layout, 2, 8),
        batch(pool, {{5, 2}, {3, 1}}, rng),
        q(random_matrix(3, q_cols, rng)),
        out(3, out_cols, -7),
        lse(3, 2, -7) {
    args.q = q.view();
    args.out = out.mutable_view();
    args.lse = lse.mutable_view();
    args.main.pool = pool.view();
    batch.put_into(args);
    batch.name_by_page(args.main);
  }
  Legal(const Legal&) = delete;
  void by_index(std::int64_t width) {
    args.main.page_table = {};
    args.main.table_width = 0;
    list.assign(static_cast<std::size_t>(3 * width), -1);
    name_by_index(args.main, list, width);
  }
};

struct Latent : Legal {
  explicit Latent(LayoutKind kind = LayoutKind::mla_bf16)
      : Legal(latent_layout(kind), 2 * 144, 2 * 128) {
    args.problem = latent_problem(ProblemKind::dense_latent, 2);
  }
};
struct Gqa : Legal {
  Gqa()
      : Legal(CacheLayout(LayoutKind::gqa_fp8, {.kv_heads = 1, .head_dim = 16, .v_head_dim = 32}),
              2 * 16, 2 * 32) {
    args.problem.kind = ProblemKind::grouped_query;
    args.problem.heads = 2;
    args.problem.kv_heads = 1;
    args.problem.head_dim = 16;
    args.problem.v_head_dim = 32;
    args.problem.scale = 1;
  }
};
struct Ragged : Legal {
  Ragged() : Legal(latent_layout(LayoutKind::mla_bf16), 2 * 24, 2 * 4) {
    args.problem = latent_problem(ProblemKind::dense_latent, 2);
    args.problem.qk_nope_head = 8;
    args.problem.v_head = 4;
    w_uk.resize(2 * 8 * 128);
    w_uv.resize(2 * 4 * 128);
    args.expansion = {w_uk, w_uv};
  }
};

template <class Case>
void refuses(AttendFn kernel, const std::string& field, const std::function<void(Case&)>& breaks) {
  Case legal;
  breaks(legal);
  const Result<void> result = kernel(legal.args);
  ASSERT_FALSE(result) << field << " was accepted";
  EXPECT_EQ(result.error().field, field) << result.error().message();
  EXPECT_FALSE(result.error().wanted.empty());
  EXPECT_FALSE(result.error().offered.empty());
  EXPECT_EQ(legal.out.data, std::vector<double>(legal.out.data.size(), -7));
  EXPECT_EQ(legal.lse.data, std::vector<double>(6, -7));
}
void latent(const std::string& field, const std::function<void(Latent&)>& breaks) {
  refuses<Latent>(ref_attend_latent, field, breaks);
}
void gqa(const std::string& field, const std::function<void(Gqa&)>& breaks) {
  refuses<Gqa>(ref_attend_gqa, field, breaks);
}
void ragged(const std::string& field, const std::function<void(Ragged&)>& breaks) {
  refuses<Ragged>(ref_attend_ragged, field, breaks);
}

TEST(CheckArgs, TheCasesAreLegalUnbroken) {
  EXPECT_TRUE(ref_attend_latent(Latent().args));
  EXPECT_TRUE(ref_attend_gqa(Gqa().args));
  EXPECT_TRUE(ref_attend_ragged(Ragged().args));
}

TEST(CheckArgs, Problem) {
  latent("problem.kind", [](Latent& c) { c.args.problem.kind = ProblemKind::grouped_query; });
  gqa("problem.kind", [](Gqa& c) { c.args.problem.kind = ProblemKind::dense_latent; });
  ragged("problem.kind", [](Ragged& c) { c.args.problem.kind = ProblemKind::window_compressed; });
  for (const float bad : {0.0f, -1.0f, static_cast<float>(kNaN), static_cast<float>(kInf)}) {
    latent("problem.scale", [&](Latent& c) { c.args.problem.scale = bad; });
  }
  latent("problem.heads", [](Latent& c) { c.args.problem.heads = 0; });
  latent("problem.nope", [](Latent& c) { c.args.problem.nope = 0; });
  latent("problem.rope", [](Latent& c) { c.args.problem.rope = -16; });
  latent("problem.window", [](Latent& c) { c.args.problem.window = 4; });
  gqa("problem.window", [](Gqa& c) { c.args.problem.window = -1; });
  gqa("problem.chunked", [](Gqa& c) { c.args.problem.chunked = true; });
  latent("problem.chunked", [](Latent& c) { c.args.problem.chunked = true; });
  gqa("problem.kv_heads", [](Gqa& c) { c.args.problem.kv_heads = 0; });
  gqa("problem.heads", [](Gqa& c) {
    c.args.problem.heads = 3;
    c.args.problem.kv_heads = 2;
  });
  ragged("problem.qk_nope_head", [](Ragged& c) { c.args.problem.qk_nope_head = 0; });
  ragged("problem.v_head", [](Ragged& c) { c.args.problem.v_head = 0; });
}

TEST(CheckArgs, Tensors) {
  latent("q.dtype", [](Latent& c) { c.args.q.dtype = DType::f16; });
  latent("q.cols", [](Latent& c) { c.args.q.cols = 144; });
  latent("q.rows", [](Latent& c) { c.args.q.rows = -1; });
  latent("q.row_stride", [](Latent& c) { c.args.q.row_stride = 287; });
  latent("q.data", [](Latent& c) { c.args.q.data = nullptr; });
  latent("q_scale", [](Latent& c) { c.args.q_scale = 2; });
  latent("out.dtype", [](Latent& c) { c.args.out.dtype = DType::e4m3; });
  latent("out.rows", [](Latent& c) { c.args.out.rows = 2; });
  latent("out.cols", [](Latent& c) { c.args.out.cols = 2 * 144; });
  latent("out.data", [](Latent& c) { c.args.out.data = nullptr; });
  latent("lse.dtype", [](Latent& c) { c.args.lse.dtype = DType::bf16; });
  latent("lse.cols", [](Latent& c) { c.args.lse.cols = 1; });
  latent("sink", [](Latent& c) { c.args.problem.sink = true; });
  latent("sink", [](Latent& c) {
    c.sink.resize(2);
    c.args.sink = c.sink;
  });
  ragged("expansion.w_uk", [](Ragged& c) { c.args.expansion.w_uk = {}; });
  ragged("expansion.w_uv", [](Ragged& c) { c.args.expansion.w_uv = c.w_uk; });
}

TEST(CheckArgs, Batch) {
  latent("q_indptr", [](Latent& c) { c.args.q_indptr = {}; });
  latent("q_indptr", [](Latent& c) { c.args.kv_lens = c.args.kv_lens.first(1); });
  latent("q_indptr[0]", [](Latent& c) { c.batch.q_indptr[0] = 1; });
  latent("q_indptr[2]", [](Latent& c) { c.batch.q_indptr[2] = 1; });
  latent("q_indptr[2]", [](Latent& c) { c.batch.q_indptr[2] = 4; });
  latent("kv_lens[0]", [](Latent& c) { c.batch.kv_lens[0] = 1; });
  latent("kv_lens[1]", [](Latent& c) { c.batch.kv_lens[1] = -1; });
}

TEST(CheckArgs, Pool) {
  latent("main.pool.layout",
         [](Latent& c) { c.args.main.pool->layout = CacheLayout(LayoutKind::mla_bf16); });
  latent("main.pool.layout", [](Latent& c) {
    c.args.main.pool->layout = CacheLayout(LayoutKind::index_fp8, {.dim = 144});
  });
  gqa("main.pool.layout",
      [](Gqa& c) { c.args.main.pool->layout = CacheLayout(LayoutKind::gqa_fp8); });
  latent("main.pool.page_size", [](Latent& c) { c.args.main.pool->page_size = 0; });
  latent("main.pool.pages", [](Latent& c) { c.args.main.pool->pages = -1; });
  latent("main.pool.pages", [](Latent& c) { c.args.main.pool->pages = (1LL << 30) + 1; });
  latent("main.pool.page_stride", [](Latent& c) { c.args.main.pool->page_stride -= 1; });
  latent("main.pool.data", [](Latent& c) { c.args.main.pool->data = nullptr; });
}

TEST(CheckArgs, Compact) {
  // 4 compact rows of 144 instead of the pool. The kernels must refuse before they read them.
  const auto compact = [](Latent& c) -> RowsView& {
    c.by_index(4);
    c.args.main.pool.reset();
    c.args.main.compact = {reinterpret_cast<const std::byte*>(c.q.data.data()), DType::f32, 4, 144,
                           144};
    return c.args.main.compact;
  };
  latent("main.compact.dtype", [&](Latent& c) { compact(c).dtype = DType::e4m3; });
  latent("main.compact.rows", [&](Latent& c) { compact(c).rows = -1; });
  latent("main.compact.cols", [&](Latent& c) { compact(c).cols = 128; });
  latent("main.compact.row_stride", [&](Latent& c) { compact(c).row_stride = 143; });
  latent("main.compact.data", [&](Latent& c) { compact(c).data = nullptr; });
  latent("main.page_table", [](Latent& c) { c.args.main.pool.reset(); });
  Latent empty;
  compact(empty) = {};
  EXPECT_TRUE(ref_attend_latent(empty.args)) << "no compact rows means no key";
}

TEST(CheckArgs, Scales) {
  latent("main.key_scale", [](Latent& c) { c.args.main.key_scale = 2; });
  latent("main.value_scale", [](Latent& c) { c.args.main.value_scale = 2; });
  gqa("main.key_scale", [](Gqa& c) { c.args.main.key_scale = 0; });
  gqa("main.value_scale", [](Gqa& c) { c.args.main.value_scale = static_cast<float>(kNaN); });
  Latent fp8(LayoutKind::mla_fp8);
  fp8.args.main.key_scale = 2;
  EXPECT_TRUE(check_latent_args(fp8.args));
  fp8.args.main.value_scale = 2;
  EXPECT_TRUE(check_latent_args(fp8.args));
  fp8.args.main.value_scale = 3;
  EXPECT_FALSE(check_latent_args(fp8.args));
}

TEST(CheckArgs, PageTable) {
  latent("main.table_width", [](Latent& c) { c.batch.kv_lens[0] = 7; });  // 3 pages of 2 hold 6
  latent("main.table_width", [](Latent& c) { c.args.main.table_width = -1; });
  latent("main.page_table",
         [](Latent& c) { c.args.main.page_table = c.args.main.page_table.first(5); });
  // A call with keys must name them.
  latent("main.table_width", [](Latent& c) { c.by_index(0); });
}

TEST(CheckArgs, IndexList) {
  latent("main", [](Latent& c) { name_by_index(c.args.main, c.list, 4); });
  latent("main.index_width", [](Latent& c) { c.args.main.index_width = -1; });
  latent("main.indices", [](Latent& c) {
    c.by_index(4);
    c.args.main.index_width = 3;
  });
  const auto lengths = [](Latent& c, Ints values) {
    c.by_index(4);
    c.lengths = std::move(values);
    c.args.main.index_lengths = c.lengths;
  };
  latent("main.index_lengths", [&](Latent& c) { lengths(c, {1, 2}); });
  latent("main.index_lengths[1]", [&](Latent& c) { lengths(c, {4, 5, 0}); });
  latent("main.index_lengths[2]", [&](Latent& c) { lengths(c, {4, 4, -1}); });
  ragged("main.indices", [](Ragged& c) { c.by_index(4); });
}

TEST(CheckArgs, ExtraSource) {
  const auto two_sources = [](Latent& c) {
    c.args.problem = latent_problem(ProblemKind::window_compressed, 2);
    c.args.problem.compress_ratio = 4;
    c.args.out.cols = 2 * 144;
    c.args.out.row_stride = 2 * 144;
  };
  latent("extra", [](Latent& c) { c.args.extra = c.args.main; });
  gqa("extra", [](Gqa& c) { c.args.extra.pool = c.args.main.pool; });
  ragged("extra", [](Ragged& c) { c.args.extra.index_width = 1; });
  // Here every token has an entry: the entries of 6 tokens are on 3 pages.
  latent("extra.table_width", [&](Latent& c) {
    two_sources(c);
    c.args.problem.compress_ratio = 1;
    c.args.extra = c.args.main;
    c.args.extra.table_width = 1;
    c.args.extra.page_table = c.args.extra.page_table.first(c.batch.kv_lens.size());
  });
  Latent tables;
  two_sources(tables);
  tables.args.extra = tables.args.main;
  EXPECT_TRUE(check_latent_args(tables.args).ok());
  latent("extra.indices", [&](Latent& c) {
    two_sources(c);
    c.args.extra.index_width = 4;
  });
  Latent none;
  two_sources(none);
  EXPECT_TRUE(check_latent_args(none.args)) << "no compressed entry yet is legal";
}

TEST(CheckArgs, MessageNamesWantedAndOffered) {
  Latent c;
  c.batch.kv_lens[0] = 7;
  EXPECT_EQ(ref_attend_latent(c.args).error().message(),
            "main.table_width: wanted at least 4 pages for the 7 keys of request 0, got 3");
}

}  // namespace
}  // namespace lathe
