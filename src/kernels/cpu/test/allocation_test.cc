// A kernel allocates nothing once a first call has grown the scratch. Counts calls of operator new.
// Compiled alone: GCC must not see its operator new and the calls of it together.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "kernels/cpu/grouped_query/gqa_attend.h"
#include "kernels/cpu/grouped_query/test/gqa_test_util.h"
#include "kernels/cpu/indexer/test/indexer_test_util.h"
#include "kernels/cpu/latent/latent_attend.h"
#include "kernels/cpu/latent/latent_gather.h"
#include "kernels/cpu/latent/test/latent_test_util.h"
#include "kernels/cpu/ragged/ragged_attend.h"

namespace {
std::atomic<long> allocations{0};

void* counted(std::size_t bytes, std::size_t align) {
  ++allocations;
  const std::size_t rounded = (bytes + align - 1) / align * align;
  if (void* p = std::aligned_alloc(align, rounded == 0 ? align : rounded)) return p;
  throw std::bad_alloc();
}
}  // namespace

// Not inlined, or GCC would see malloc() and free() and report a mismatch of new and delete.
[[gnu::noinline]] void* operator new(std::size_t n) {
  return counted(n, alignof(std::max_align_t));
}
[[gnu::noinline]] void* operator new(std::size_t n, std::align_val_t a) {
  return counted(n, static_cast<std::size_t>(a));
}
[[gnu::noinline]] void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(n == 0 ? 1 : n);
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  std::free(p);
}

namespace lathe {
namespace {

// Calls f(execution) twice to warm up, then three times under count.
template <class F>
void expect_no_allocation(F f) {
  for (const bool invariant : {false, true}) {
    ThreadPool threads(3);
    Scratch scratch;
    const Execution execution{&threads, &scratch, invariant};
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(f(execution).ok());
    const long before = allocations;
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(f(execution).ok());
    EXPECT_EQ(allocations - before, 0);
  }
}

void expect_no_allocation(AttendFn kernel, AttendArgs args, std::int64_t v_dim) {
  const std::int64_t heads = args.problem.heads;
  std::vector<float> out(static_cast<std::size_t>(args.q.rows * heads * v_dim));
  std::vector<float> lse(static_cast<std::size_t>(args.q.rows * heads));
  args.out = {reinterpret_cast<std::byte*>(out.data()), DType::f32, args.q.rows, heads * v_dim,
              heads * v_dim};
  args.lse = {reinterpret_cast<std::byte*>(lse.data()), DType::f32, args.q.rows, heads, heads};
  expect_no_allocation([&](const Execution& execution) {
    args.execution = execution;
    return kernel(args);
  });
}

TEST(Allocation, CountingWorks) {
  const long before = allocations;
  // A direct call: a compiler may remove a new-expression.
  ::operator delete(::operator new(8));
  EXPECT_EQ(allocations - before, 1);
}

TEST(Allocation, Latent) {
  latent_test::Scene dense(CacheLayout(LayoutKind::mla_fp8_block), 16, 4,
                           {{900, 3}, {20, 1}, {3000, 1}});
  expect_no_allocation(cpu_attend_latent, dense.args, 512);
  const latent_test::Ints list = dense.random_list(300);
  dense.by_index(list);
  dense.args.problem.top_k = 300;
  expect_no_allocation(cpu_attend_latent, dense.args, 512);
}

// Whole requests, a request in runs, and rows with lists.
TEST(Allocation, Gather) {
  latent_test::Scene scene(CacheLayout(LayoutKind::mla_fp8_block), 16, 4,
                           {{900, 3}, {20, 1}, {3000, 1}});
  std::vector<float> out(static_cast<std::size_t>(scene.args.q.rows * 4 * 512));
  scene.args.out = {reinterpret_cast<std::byte*>(out.data()), DType::f32, scene.args.q.rows,
                    4 * 512, 4 * 512};
  scene.args.lse = {};
  const auto none_with_rows = [&](std::int64_t rows) {
    std::vector<std::uint16_t> workspace(static_cast<std::size_t>(rows * 576));
    expect_no_allocation([&](const Execution& execution) {
      scene.args.execution = execution;
      return cpu_gather_attend(scene.args, workspace);
    });
  };
  none_with_rows(4096);
  none_with_rows(1024);
  const latent_test::Ints list = scene.random_list(300);
  scene.by_index(list);
  scene.args.problem.top_k = 300;
  none_with_rows(1024);
}

TEST(Allocation, GroupedQuery) {
  for (LayoutKind kind : {LayoutKind::gqa_bf16, LayoutKind::gqa_fp8}) {
    cpu_test::GqaScene s({kind, 64, 4, 2, 64, 64}, {{3000, 1}, {77, 30}, {1500, 2}});
    expect_no_allocation(cpu_attend_gqa, s.args, 64);
  }
}

TEST(Allocation, Ragged) {
  latent_test::Scene s(CacheLayout(LayoutKind::mla_fp8_block), 16, 4,
                       {{900, 3}, {20, 1}, {400, 300}});
  const ref_test::Matrix<float> q(s.batch.rows, 4 * (32 + 64), 0.1f);
  const std::vector<float> w(4 * 32 * 512, 0.01f);
  s.args.q = q.view();
  s.args.problem.qk_nope_head = 32;
  s.args.problem.v_head = 32;
  s.args.expansion = {w, w};
  expect_no_allocation(cpu_attend_ragged, s.args, 32);
}

TEST(Allocation, Indexer) {
  std::mt19937 rng(test_seed(5));
  for (const bool paged : {false, true}) {
    indexer_test::Case c(rng, 20, 128, {{9000}, {70, 71, 72}, {30}}, 64, paged);
    ref_test::Matrix<float> logits(c.rows(), c.longest());
    constexpr std::int64_t k = 64;
    std::vector<std::int32_t> out(static_cast<std::size_t>(c.rows() * k));
    std::vector<std::int32_t> lengths(c.lens.size());
    const IndexTarget target;
    expect_no_allocation([&](const Execution& execution) {
      return index_logits(
          {c.query(), c.keys(), c.index_rows(), logits.mutable_view(), {}, execution});
    });
    expect_no_allocation([&](const Execution& execution) {
      return index_top_k(
          {c.query(), c.keys(), c.index_rows(), target, k, out, lengths, {}, execution});
    });
    expect_no_allocation([&](const Execution& execution) {
      return index_select(logits.view(), c.lens, target, k, out, lengths, execution);
    });
  }
}

}  // namespace
}  // namespace lathe
