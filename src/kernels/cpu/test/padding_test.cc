// Rows that only pad a batch, from a Step to the kernels: they see no key, and get out 0 and the
// LSE of no keys in the caller's convention.
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "attn/index_transform.h"
#include "kernels/cpu/latent/latent_gather.h"
#include "kernels/cpu/register.h"
#include "kernels/ref/register.h"
#include "kernels/ref/test/test_util.h"
#include "plan/planner.h"
#include "step/step.h"

namespace lathe {
namespace {

using namespace ref_test;

// Requests of 37 keys, padding, 5 keys and padding, each with the given number of rows, on a
// NaN-poisoned pool.
class Padded {
 public:
  Padded(const AttentionProblem& problem, KernelKind kind, Phase phase, std::int32_t rows)
      : Padded(problem, kind, phase, {rows, rows, rows, rows}) {}
  Padded(const AttentionProblem& problem, KernelKind kind, Phase phase,
         const std::array<std::int32_t, 4>& rows)
      : plan_(make(problem, kind)),
        rng_(7),
        pool_(plan_.main().layout, plan_.main().page_size, 8),
        q_(random_matrix(rows[0] + rows[1] + rows[2] + rows[3],
                         problem.heads * q_width(problem, kind), rng_)),
        weights_(random_matrix(problem.heads * 16, problem.nope, rng_)) {
    for (float& x : weights_.data) x /= 20;  // keys as large as their latents
    const std::int32_t page = plan_.main().page_size;
    const std::vector<PageId> a = {PageId(6), PageId(1), PageId(4)};
    const std::vector<PageId> b = {PageId(2)};
    for (int i = 0; i < 37; ++i)
      pool_.fill(slot_of(a[static_cast<std::size_t>(i / page)], page, i % page), rng_);
    for (int i = 0; i < 5; ++i) pool_.fill(slot_of(b[0], page, i), rng_);
    StepOptions options;
    options.main_pages = 8;
    auto step = Step::make(plan_, options);
    EXPECT_TRUE(step.ok());
    const StepRequest requests[] = {{a, {}, 37 - rows[0], rows[0], false},
                                    {{}, {}, 0, rows[1], true},
                                    {b, {}, 5 - rows[2], rows[2], false},
                                    {{}, {}, 0, rows[3], true}};
    const Result<void> planned = step->plan({phase, requests});
    EXPECT_TRUE(planned.ok()) << (planned.ok() ? "" : planned.error().message());
    const StepView& v = step->view();
    AttendArgs args;
    args.problem = problem;
    args.q = q_.view();
    args.q_indptr = v.q_indptr;
    args.kv_lens = v.kv_lens;
    args.main.pool = pool_.view();
    std::vector<Slot> slots;
    std::vector<std::int32_t> indices;
    if (problem.sparse()) {
      // Every key is selected, positions 0 .. k - 1; a row uses those that it sees.
      std::vector<LocalPos> all;
      for (std::int64_t t = 0; t < v.rows; ++t) {
        for (std::int32_t i = 0; i < problem.top_k; ++i) all.emplace_back(i);
      }
      slots.resize(all.size());
      EXPECT_TRUE(local_to_slots({all, problem.top_k, v.row_lens}, v.row_request, v.page_table,
                                 {page, 8}, slots)
                      .ok());
      for (const Slot s : slots) indices.push_back(s.value);
      name_by_index(args.main, indices, problem.top_k);
    } else {
      args.main.page_table = {v.page_table.data,
                              static_cast<std::size_t>(v.page_table.requests * v.page_table.width)};
      args.main.table_width = v.page_table.width;
    }
    if (kind == KernelKind::ragged) args.expansion = {weights_.data, weights_.data};
    Registry registry;
    register_ref_kernels(registry);
    register_cpu_kernels(registry);
    const std::string tail =
        std::string(".") + std::string(name(problem.kind)) + "." + std::string(name(kind));
    const std::int32_t width = kind == KernelKind::ragged ? problem.v_head : problem.v_dim();
    const Outputs want = run(registry.find("ref" + tail)->attend, args, width);
    expect_near(run(registry.find("cpu" + tail)->attend, args, width), want, 2e-5);
    const bool gathers = problem.kind != ProblemKind::grouped_query && kind != KernelKind::ragged;
    if (gathers) expect_near(run(gather, args, width), want, 2e-5);
    for (const bool base_2 : {false, true}) {
      Outputs other = want;
      for (double& x : other.lse.data) {
        x = std::isinf(x) ? kInf : base_2 ? x / std::log(2.0) : x;
      }
      args.lse_convention = {.base_2 = base_2, .empty_plus_inf = true};
      expect_near(run(registry.find("ref" + tail)->attend, args, width), other);
      expect_near(run(registry.find("cpu" + tail)->attend, args, width), other, 3e-5);
      if (gathers) expect_near(run(gather, args, width), other, 3e-5);
    }
    for (std::int64_t t = 0; t < v.rows; ++t) {
      const bool padding = t >= rows[0] && (t < rows[0] + rows[1] || t >= v.rows - rows[3]);
      for (const double lse : want.lse.row(t)) EXPECT_EQ(lse == -kInf, padding);
      for (const double x : want.out.row(t)) EXPECT_EQ(x == 0, padding);
      EXPECT_EQ(v.out_slots[static_cast<std::size_t>(t)].value < 0, padding);
    }
  }

 private:
  static std::int32_t q_width(const AttentionProblem& p, KernelKind kind) {
    return kind == KernelKind::ragged ? p.qk_nope_head + p.rope : p.qk_dim();
  }
  static Result<void> gather(const AttendArgs& args) {
    std::vector<std::uint16_t> workspace(static_cast<std::size_t>(64 * args.problem.qk_dim()));
    return cpu_gather_attend(args, workspace);
  }
  static Plan make(const AttentionProblem& problem, KernelKind kind) {
    Registry registry;
    register_cpu_kernels(registry);
    PlanRequest request;
    request.prefill = request.decode = kind == KernelKind::ragged ? "auto" : name(kind);
    if (kind == KernelKind::ragged) request.prefill = "ragged";
    request.page_size = 16;
    request.context_length = 64;
    const PlanResult plan = make_plan(problem, describe_machine(Device::cpu), request, registry);
    EXPECT_TRUE(plan.ok());
    return *plan;
  }

  Plan plan_;
  Rng rng_;
  TestPool pool_;
  Matrix<float> q_, weights_;
};

AttentionProblem latent(ProblemKind kind) {
  AttentionProblem p = deepseek_v3_problem(3);
  if (kind == ProblemKind::sparse_latent) p = deepseek_v32_problem(3);
  if (p.sparse()) p.top_k = 48;
  p.qk_nope_head = p.v_head = 16;
  return p;
}

TEST(Padding, DenseLatent) {
  const AttentionProblem p = latent(ProblemKind::dense_latent);
  Padded(p, KernelKind::inplace, Phase::decode, 1);
  Padded(p, KernelKind::inplace, Phase::extend, 3);
  Padded(p, KernelKind::inplace, Phase::verify, {5, 2, 1, 3});
}
TEST(Padding, SparseLatent) {
  const AttentionProblem p = latent(ProblemKind::sparse_latent);
  Padded(p, KernelKind::inplace, Phase::decode, 1);
  Padded(p, KernelKind::inplace, Phase::extend, 3);
  Padded(p, KernelKind::inplace, Phase::verify, {5, 2, 1, 3});
}
TEST(Padding, Ragged) {
  Padded(latent(ProblemKind::dense_latent), KernelKind::ragged, Phase::extend, 3);
}
TEST(Padding, GroupedQuery) {
  for (const std::int32_t window : {0, 4}) {
    AttentionProblem p = gqa_problem(4, 2, 64);
    p.window = window;
    Padded(p, KernelKind::inplace, Phase::decode, 1);
    Padded(p, KernelKind::inplace, Phase::extend, 3);
    Padded(p, KernelKind::inplace, Phase::verify, {5, 2, 1, 3});
  }
}

}  // namespace
}  // namespace lathe
