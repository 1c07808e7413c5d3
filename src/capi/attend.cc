// The C interface's attention: single calls, and calls that share a step.
#include <fmt/format.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "attn/check_args.h"
#include "capi/attend_call.h"
#include "capi/merge.h"
#include "capi/status.h"
#include "step/schedule.h"

using namespace lathe;
using namespace lathe::capi;

namespace lathe::capi {

// What a schedule was made for. Kernels rely on calls that match it. Lengths on a GPU cannot be
// read here, so their addresses are compared.
struct ScheduledCall {
  std::string kernel;
  AttentionProblem problem;
  std::int64_t rows = 0;
  std::vector<std::int32_t> q_indptr, kv_lens, index_lengths, extra_index_lengths;
  std::array<std::int64_t, 4> widths{};  // of page tables and index lists
  bool batch_invariant = true;
  std::int32_t gpu = -1;
  const void* workspace = nullptr;
  std::array<const std::int32_t*, 4> on_gpu{};  // of the four above
  std::array<std::int64_t, 2> bounds{};         // max_request_rows, max_kv_len

  explicit ScheduledCall(const Call& call)
      : kernel(call.kernel().capability.name),
        problem(call.args().problem),
        rows(call.args().q.rows),
        widths{call.args().main.table_width, call.args().main.index_width,
               call.args().extra.table_width, call.args().extra.index_width},
        batch_invariant(call.batch_invariant()) {
    const AttendArgs& a = call.args();
    const std::array lengths{a.q_indptr, a.kv_lens, a.main.index_lengths, a.extra.index_lengths};
    const std::array copies{&q_indptr, &kv_lens, &index_lengths, &extra_index_lengths};
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      if (call.place().on_gpu()) {
        on_gpu[i] = lengths[i].data();
      } else {
        copies[i]->assign(lengths[i].begin(), lengths[i].end());
      }
    }
    if (!call.place().on_gpu()) return;
    gpu = call.place().gpu;
    workspace = call.workspace();
    bounds = {a.max_request_rows, a.max_kv_len};
  }

  /// Errors: the first argument that differs.
  Result<void> check(const ScheduledCall& call) const {
    const char* field = kernel != call.kernel                             ? "kind"
                        : problem != call.problem                         ? "attention"
                        : rows != call.rows || gpu != call.gpu            ? "q"
                        : workspace != call.workspace                     ? "workspace"
                        : differs(&ScheduledCall::q_indptr, 0, call)      ? "q_indptr"
                        : differs(&ScheduledCall::kv_lens, 1, call)       ? "kv_lens"
                        : differs(&ScheduledCall::index_lengths, 2, call) ? "index_lengths"
                        : differs(&ScheduledCall::extra_index_lengths, 3, call)
                            ? "extra_index_lengths"
                        : widths != call.widths                   ? "page_table"
                        : bounds[0] != call.bounds[0]             ? "max_request_rows"
                        : bounds[1] != call.bounds[1]             ? "max_kv_len"
                        : batch_invariant != call.batch_invariant ? "flags"
                                                                  : nullptr;
    if (field == nullptr) return {};
    return wrong(field, "what lathe_step_update() was given", "something else",
                 "update the step first");
  }

 private:
  bool differs(std::vector<std::int32_t> ScheduledCall::*copy, std::size_t at,
               const ScheduledCall& call) const {
    return this->*copy != call.*copy || on_gpu[at] != call.on_gpu[at];
  }
};

}  // namespace lathe::capi

struct lathe_step {
  explicit lathe_step(int count) : threads(count) {}
  ThreadPool threads;
  Scratch scratch;
  Schedule schedule{kHostMemory};
  std::optional<ScheduledCall> cut;  // nullopt before the first update
};

namespace {

Execution execution_of(lathe_step& step, const Call& call) {
  Execution e;
  e.threads = &step.threads;
  e.scratch = &step.scratch;
  e.batch_invariant = call.batch_invariant();
  return e;
}

}  // namespace

lathe_status lathe_attend(const lathe_attend_args* args) {
  return guard([&]() -> Result<void> {
    Call call;
    if (auto ok = call.take(args); !ok) return ok;
    std::optional<ThreadPool> threads;
    if (call.threads() > 1) threads.emplace(call.threads());
    Scratch scratch;
    call.args().execution = {threads ? &*threads : nullptr, &scratch, call.batch_invariant()};
    return call.run();
  });
}

lathe_status lathe_attend_workspace(const lathe_attend_args* args, int64_t* bytes) {
  return guard([&]() -> Result<void> {
    if (auto ok = need(bytes, "bytes"); !ok) return ok;
    Call call;
    if (auto ok = call.take(args, /*shapes_only=*/true); !ok) return ok;
    const auto wanted = call.workspace_bytes();
    if (!wanted) return in_fields(wanted.error());
    *bytes = *wanted;
    return {};
  });
}

lathe_status lathe_step_create(int32_t threads, lathe_step** step) {
  return guard([&]() -> Result<void> {
    if (auto ok = need(step, "step"); !ok) return ok;
    if (threads < 0 || threads > kMostThreads) {
      return Error{ErrorCode::out_of_range, "threads", fmt::format("0 to {}", kMostThreads),
                   fmt::format("{}", threads), ""};
    }
    *step = new lathe_step(threads);
    return {};
  });
}

void lathe_step_free(lathe_step* step) { delete step; }

lathe_status lathe_step_update(lathe_step* step, const lathe_attend_args* args) {
  return guard([&]() -> Result<void> {
    if (auto ok = need(step, "step"); !ok) return ok;
    Call call;
    if (auto ok = call.take(args); !ok) return ok;
    step->cut.reset();
    if (call.place().on_gpu()) {
      if (auto ok = call.run(CallPart::schedule); !ok) return ok;
      step->cut.emplace(call);
      return {};
    }
    AttendArgs& a = call.args();
    const auto checked =
        a.problem.kind == ProblemKind::grouped_query ? check_gqa_args(a) : check_latent_args(a);
    if (!checked) return in_fields(checked.error());
    a.execution = execution_of(*step, call);
    if (call.kernel().prepare != nullptr) {
      if (auto ok = call.kernel().prepare(a, step->schedule); !ok) return in_fields(ok.error());
    }
    step->cut.emplace(call);
    return {};
  });
}

lathe_status lathe_attend_step(lathe_step* step, const lathe_attend_args* args) {
  return guard([&]() -> Result<void> {
    if (auto ok = need(step, "step"); !ok) return ok;
    if (!step->cut) {
      return wrong("step", "a step that lathe_step_update() has cut", "one that it has not",
                   "call it with these arguments first");
    }
    Call call;
    if (auto ok = call.take(args); !ok) return ok;
    if (auto ok = step->cut->check(ScheduledCall(call)); !ok) return ok;
    if (call.place().on_gpu()) return call.run(CallPart::attention);
    call.args().execution = execution_of(*step, call);
    if (call.kernel().prepare != nullptr) call.args().schedule = &step->schedule;
    return call.run();
  });
}

lathe_status lathe_merge(const lathe_tensor* out_a, const lathe_tensor* lse_a,
                         const lathe_tensor* out_b, const lathe_tensor* lse_b,
                         const lathe_tensor* out, const lathe_tensor* lse) {
  return guard([&]() -> Result<void> {
    Tensor a, a_lse, b, b_lse, to, to_lse;
    if (auto ok = a.take(out_a, "out_a"); !ok) return ok;
    if (auto ok = a_lse.take(lse_a, "lse_a"); !ok) return ok;
    if (auto ok = b.take(out_b, "out_b"); !ok) return ok;
    if (auto ok = b_lse.take(lse_b, "lse_b"); !ok) return ok;
    if (auto ok = to.take(out, "out"); !ok) return ok;
    if (auto ok = to_lse.take(lse, "lse"); !ok) return ok;
    return merge_partials({a.ref(), a_lse.ref()}, {b.ref(), b_lse.ref()}, {to.ref(), to_lse.ref()});
  });
}
