// Tests grouped-query attention on a GPU against the oracle in double precision.
#include <fmt/format.h>

#include <bit>

#include "kernels/cuda/common/test/gpu_test_util.h"
#include "kernels/cuda/sm90/gqa/gqa_attend.h"
#include "kernels/cuda/sm90/gqa/gqa_call.h"
#include "kernels/cuda/sm90/gqa/gqa_limits.h"
#include "kernels/cuda/sm90/gqa/test/gqa_checks.h"
#include "kernels/cuda/sm90/gqa/test/gqa_shared_scene.h"

namespace lathe::cuda {
namespace {

class GqaGpu : public GpuArraysTest,
               public ::testing::WithParamInterface<std::tuple<LayoutKind, int>> {
 protected:
  LayoutKind kind() const { return std::get<0>(GetParam()); }
  int dim() const { return std::get<1>(GetParam()); }
  GqaDims dims(int page, int group, int kv_heads = 2) const {
    return {kind(), page, group * kv_heads, kv_heads, dim(), dim()};
  }

  /// The call with all arrays on the device, outputs poisoned.
  AttendArgs on_device(const AttendArgs& host, DType out) {
    AttendArgs args = host;
    args.q.data =
        put(host.q.data,
            static_cast<std::size_t>(bytes_of(host.q.dtype, host.q.rows * host.q.row_stride)))
            .data();
    args.q_indptr = put(host.q_indptr);
    args.kv_lens = put(host.kv_lens);
    const ConstPoolView& pool = *host.main.pool;
    args.main.pool.emplace(put(pool.data, static_cast<std::size_t>(pool.bytes())).data(),
                           pool.layout, pool.page_size, pool.pages);
    args.main.page_table = put(host.main.page_table);
    args.sink = put(host.sink);
    args.prefixes.lists = put(host.prefixes.lists);
    const std::int64_t heads = host.problem.heads, width = heads * gqa_form(host.problem).value_dim;
    const std::int64_t stride = width + padding_;
    args.out = {room<std::byte>(bytes_of(out, host.q.rows * stride)).data(), out, host.q.rows,
                width, stride};
    args.lse = {room<std::byte>(4 * host.q.rows * heads).data(), DType::f32, host.q.rows, heads,
                heads};
    set_bounds_of(host, args);
    args.execution.scratch = &scratch_;
    args.execution.stream = stream().get();
    return args;
  }
  static void set_bounds_of(const AttendArgs& host, AttendArgs& args) {
    AttendArgs bounds = host;
    set_bounds(bounds);
    args.max_request_rows = bounds.max_request_rows;
    args.max_kv_len = bounds.max_kv_len;
  }
  std::vector<std::byte> bytes_at(const std::byte* device, std::int64_t bytes) {
    std::vector<std::byte> host(static_cast<std::size_t>(bytes));
    must(copy_to_host(device, std::span(host), stream()));
    must(stream().wait());
    return host;
  }
  static std::int64_t bytes_of_rows(const MutableRowsView& v) {
    return bytes_of(v.dtype, v.rows * v.row_stride);
  }
  static double element(const std::vector<std::byte>& bytes, DType dtype, std::size_t i) {
    if (dtype == DType::f32) {
      float v;
      std::memcpy(&v, bytes.data() + 4 * i, 4);
      return v;
    }
    std::uint16_t v;
    std::memcpy(&v, bytes.data() + 2 * i, 2);
    return std::bit_cast<float>(std::uint32_t{v} << 16);
  }
  Outputs read(const AttendArgs& args) {
    Outputs got{{args.out.rows, args.out.cols, 0}, {args.lse.rows, args.lse.cols, 0}};
    const auto out = bytes_at(args.out.data, bytes_of_rows(args.out));
    const auto lse = bytes_at(args.lse.data, bytes_of_rows(args.lse));
    for (std::size_t i = 0; i < got.out.data.size(); ++i) {
      const auto width = static_cast<std::size_t>(args.out.cols);
      const auto stride = static_cast<std::size_t>(args.out.row_stride);
      got.out.data[i] = element(out, args.out.dtype, i / width * stride + i % width);
    }
    for (std::size_t i = 0; i < got.lse.data.size(); ++i) {
      got.lse.data[i] = element(lse, DType::f32, i);
    }
    return got;
  }
  void check(Bf16Scene& s, DType out = DType::bf16, int repeats = 1) {
    check(s.args, s.oracle(), out, repeats);
  }
  void check(const AttendArgs& host, const Outputs& oracle, DType out, int repeats) {
    AttendArgs args = on_device(host, out);
    must(attend_gqa_on_device(args));
    std::vector<std::byte> first = bytes_at(args.out.data, bytes_of_rows(args.out));
    Schedule schedule(kDeviceMemory);
    must(prepare_gqa_on_device(args, schedule));
    args.schedule = &schedule;
    for (int i = 0; i < repeats; ++i) {
      must(attend_gqa_on_device(args));
      const auto bits = bytes_at(args.out.data, bytes_of_rows(args.out));
      EXPECT_TRUE(bits == first) << "repeat " << i;
    }
    expect_oracle(read(args), oracle);
    kept_.clear();
  }

  Scratch scratch_{kDeviceMemory};
  std::int64_t padding_ = 0;  // elements behind each row of out
};

TEST_P(GqaGpu, RandomBatches) {
  for (int i = 0; i < 24 * test_scale(); ++i) {
    const std::uint32_t seed = test_seed(500 + static_cast<std::uint32_t>(i));
    ref_test::Rng rng(seed);
    constexpr int kGroups[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16};
    const int group = kGroups[rng() % std::size(kGroups)];
    GqaDims d =
        dims(kGqaPages[rng() % std::size(kGqaPages)], group, 1 + static_cast<int>(rng() % 4));
    const int rows = rng() % 4 == 0 ? 150 : 1 + static_cast<int>(rng() % 6);
    Bf16Scene s(d, random_requests(rng, 1 + static_cast<int>(rng() % 8), rows, 1500), seed);
    if (rng() % 2 == 0) s.args.problem.window = 1 + static_cast<int>(rng() % 300);
    if (s.args.problem.window > 0) s.drop_left_pages();
    if (rng() % 2 == 0) s.add_random_sink();
    padding_ = static_cast<std::int64_t>(rng() % 4);
    SCOPED_TRACE(fmt::format("seed {} group {} page {} window {} rows {} padding {}", seed, group,
                             d.page, s.args.problem.window, rows, padding_));
    check(s, rng() % 2 == 0 ? DType::f32 : DType::bf16, i == 0 ? 20 : 1);
  }
}

// Decoded, verified and prompt rows about the edges of chunks; whole and split items.
TEST_P(GqaGpu, Chunks) {
  for (int i = 0; i < 24 * test_scale(); ++i) {
    const std::uint32_t seed = test_seed(1100 + static_cast<std::uint32_t>(i));
    ref_test::Rng rng(seed);
    const auto below = [&](int n) { return static_cast<int>(rng() % static_cast<unsigned>(n)); };
    constexpr int kRows[] = {1, 4, 8, 40, 300};
    const int page = 16 << below(4), group = 1 + below(16), rows = kRows[i % std::size(kRows)];
    Bf16Scene s(dims(page, group, 1 + below(4)),
                requests_about_edges(rng, 1 + below(8), rows, page * 8, 4), seed);
    s.make_chunks(8 >> below(4));
    s.drop_left_pages();
    if (below(2) == 0) s.add_random_sink();
    SCOPED_TRACE(fmt::format("seed {} group {} page {} chunk {} rows {}", seed, group, page,
                             s.args.problem.window, rows));
    check(s, below(2) == 0 ? DType::f32 : DType::bf16, i == 0 ? 20 : 1);
  }
}

TEST_P(GqaGpu, ManyRequestsAndLongOnes) {
  ref_test::Rng rng(test_seed(3));
  Bf16Scene many(dims(16, 4), random_requests(rng, 300, 2, 200));
  check(many, DType::bf16, 20);
  Bf16Scene one(dims(64, 8), {{20000, 1}});
  check(one, DType::bf16, 20);
  Bf16Scene wide(dims(32, 16), {{3000, 5}, {17, 3}});
  check(wide);
}

TEST_P(GqaGpu, A1MaskedKeyReachesNoRow) {
  struct Case {
    int group, rows, keys, window;
    bool chunked = false;
  };
  for (const Case& c :
       {Case{1, 2, 70, 0}, Case{4, 2, 3000, 0}, Case{7, 3, 70, 20}, Case{4, 9, 900, 70},
        Case{8, 20, 300, 0}, Case{1, 300, 700, 0}, Case{4, 200, 1000, 133},
        Case{5, 3, 322, 64, true}, Case{4, 200, 1000, 192, true}}) {
    SCOPED_TRACE(fmt::format("group {} rows {} keys {} window {}{}", c.group, c.rows, c.keys,
                             c.window, c.chunked ? " chunked" : ""));
    Bf16Scene s(dims(64, c.group), {{c.keys, c.rows}, {65, 1}});
    s.args.problem.window = c.window;
    s.args.problem.chunked = c.chunked;
    check_nonfinite_keys(s, [&](const AttendArgs& args) {
      const AttendArgs on = on_device(args, DType::bf16);
      must(attend_gqa_on_device(on));
      Outputs got = read(on);
      kept_.clear();
      return got;
    });
  }
}

TEST_P(GqaGpu, SharedPrefixes) {
  for (int i = 0; i < 24 * test_scale(); ++i) {
    const std::uint32_t seed = test_seed(700 + static_cast<std::uint32_t>(i));
    ref_test::Rng rng(seed);
    constexpr int kGroups[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16};
    const int group = kGroups[rng() % std::size(kGroups)];
    const GqaDims d =
        dims(kGqaPages[rng() % std::size(kGqaPages)], group, 1 + static_cast<int>(rng() % 4));
    const int rows = 1 + static_cast<int>(rng() % 8);
    Bf16Scene s(d, random_requests(rng, 2 + static_cast<int>(rng() % 40), rows, 1500), seed);
    share_randomly(s);
    if (rng() % 3 == 0) s.args.problem.window = 100 + static_cast<int>(rng() % 1500);
    if (rng() % 4 == 0) s.make_chunks(2 + static_cast<int>(rng() % 12));
    if (rng() % 2 == 0) s.add_random_sink();
    const SharedLists lists(s);
    SCOPED_TRACE(fmt::format("seed {} group {} page {} window {} rows {} groups {}", seed, group,
                             d.page, s.args.problem.window, rows, lists.savings.groups));
    check(s, rng() % 2 == 0 ? DType::f32 : DType::bf16, i == 0 ? 20 : 1);
  }
}

// 300 requests with the same 8192 keys, and 1 to 200 keys of their own.
TEST_P(GqaGpu, ManyRequestsBehindALongPrefix) {
  ref_test::Rng rng(test_seed(4));
  Requests requests = {{8400, 1}};
  for (int r = 1; r < 300; ++r) requests.emplace_back(8193 + static_cast<int>(rng() % 200), 1);
  Bf16Scene s(dims(128, 4), {{8400, 1}});
  s.batch.width = 66;
  s.batch.table.resize(300 * 66);
  const std::vector<PageId> first(s.batch.table.begin(), s.batch.table.begin() + 66);
  s.batch.kv_lens.clear();
  s.batch.q_indptr.assign(1, 0);
  for (std::size_t r = 0; r < requests.size(); ++r) {
    s.batch.kv_lens.push_back(requests[r].first);
    s.batch.q_indptr.push_back(static_cast<std::int32_t>(r + 1));
    std::copy(first.begin(), first.end(),
              s.batch.table.begin() + static_cast<std::ptrdiff_t>(r * 66));
  }
  s.batch.rows = 300;
  s.q = ref_test::random_matrix(300, s.dims.heads * s.dims.dim, s.rng);
  s.rounded_q = rounded(s.q);
  s.args.q = s.rounded_q.view();
  s.batch.put_into(s.args);
  s.batch.name_by_page(s.args.main);
  const SharedLists lists(s);
  ASSERT_EQ(s.args.prefixes.size, PrefixSize::many);
  check(s, DType::bf16, 20);
}

// One captured graph serves batches of other lengths, pages and rows.
TEST_P(GqaGpu, GraphsReplay) {
  Bf16Scene a(dims(16, 4), {{700, 1}, {3, 1}, {64, 1}});
  Bf16Scene b(dims(16, 4), {{20, 1}, {650, 1}, {0, 1}}, test_seed(8));
  AttendArgs args = on_device(a.args, DType::bf16);
  args.main.table_width = 0;
  const std::int64_t width = std::max(a.batch.width, b.batch.width);
  const std::int64_t pages = std::max(a.pool.view().pages, b.pool.view().pages);
  const auto bytes = [&](const Bf16Scene& s) { return s.pool.view().bytes(); };
  auto pool = room<std::byte>(std::max(bytes(a), bytes(b)));
  args.main.pool.emplace(pool.data(), a.pool.view().layout, 16, pages);
  auto table = room<PageId>(3 * width);
  args.main.page_table = table;
  args.main.table_width = width;
  args.max_kv_len = 0;
  must(attend_gqa_on_device(args));  // grows the scratch, which a capture can't
  const auto graph = Graph::capture(stream(), [&] { return attend_gqa_on_device(args); });
  ASSERT_TRUE(graph) << graph.error().message();
  for (int i = 0; i < 4; ++i) {
    const Bf16Scene& s = i % 2 == 0 ? a : b;
    std::vector<PageId> entries(static_cast<std::size_t>(3 * width));
    for (std::int64_t r = 0; r < 3; ++r) {
      std::copy_n(s.batch.table.begin() + r * s.batch.width, s.batch.width,
                  entries.begin() + r * width);
    }
    must(copy_to_device(std::span<const PageId>(entries), table.data(), stream()));
    must(copy_to_device(std::span(s.pool.view().data, static_cast<std::size_t>(bytes(s))),
                        pool.data(), stream()));
    must(copy_to_device(std::span(s.args.q.data, static_cast<std::size_t>(2 * s.q.rows * s.q.cols)),
                        const_cast<std::byte*>(args.q.data), stream()));
    must(copy_to_device(s.args.kv_lens, const_cast<std::int32_t*>(args.kv_lens.data()), stream()));
    must(graph->launch(stream()));
    must(stream().wait());
    expect_oracle(read(args), s.oracle());
  }
}

// Latents as grouped queries of one KV head, in blocks of 8 to 128 M rows.
using GqaLatentGpu = GqaGpu;
TEST_P(GqaLatentGpu, RandomBatches) {
  for (const int rope : {32, 64}) {
    if (!is_gqa_latent(dim(), rope)) continue;
    for (int i = 0; i < 12 * test_scale(); ++i) {
      const std::uint32_t seed = test_seed(900 + static_cast<std::uint32_t>(i));
      ref_test::Rng rng(seed);
      const int heads = 1 + static_cast<int>(rng() % 48), page = kGqaPages[i % 4];
      SCOPED_TRACE(fmt::format("seed {} rope {} heads {} page {}", seed, rope, heads, page));
      const int rows = 1 + static_cast<int>(rng() % 20);
      latent_test::Scene s(CacheLayout(kind(), {.nope = dim(), .rope = rope}), page, heads,
                           random_requests(rng, 5, rows, 900), seed);
      const Matrix<bf16> q = rounded(s.q);
      s.args.q = q.view();
      check(s.args, ref_test::run(ref_attend_latent, s.args, dim()), DType::bf16, 1);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(All, GqaLatentGpu,
                         ::testing::Combine(::testing::Values(LayoutKind::mla_bf16),
                                            ::testing::Values(256, 128)),
                         [](const auto& test) {
                           return fmt::format("nope{}", std::get<1>(test.param));
                         });

INSTANTIATE_TEST_SUITE_P(All, GqaGpu,
                         ::testing::Combine(::testing::Values(LayoutKind::gqa_bf16,
                                                              LayoutKind::gqa_fp8),
                                            ::testing::ValuesIn(kGqaHeadDims)),
                         [](const auto& test) {
                           return fmt::format("{}_d{}", name(std::get<0>(test.param)),
                                              std::get<1>(test.param));
                         });

}  // namespace
}  // namespace lathe::cuda

int main(int argc, char** argv) { return lathe::cuda::gpu_test_main(argc, argv); }
