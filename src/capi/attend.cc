// Attention over the C interface, one call at a time or over a step.
#include "attn/attend.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attn/call_args.h"
#include "attn/check_args.h"
#include "attn/lse_convention.h"
#include "attn/schedule.h"
#include "capi/status.h"
#include "capi/tensors.h"
#include "kernels/find_kernel.h"

using namespace lathe;
using namespace lathe::capi;

namespace {

constexpr std::int64_t kMostThreads = 1024;

Error wrong(std::string field, std::string wanted, std::string offered, std::string hint = "") {
  return {ErrorCode::invalid_argument, std::move(field), std::move(wanted), std::move(offered),
          std::move(hint)};
}

// The struct's members beside those of AttendArgs; a prefix is replaced where the rest follows.
constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kFields = {{
    {"main.table_width", "page_table"},
    {"main.index_width", "indices"},
    {"main.pool.", "pool."},
    {"main.key_scale", "pool.key_scale"},
    {"main.value_scale", "pool.value_scale"},
    {"main.", ""},
    {"extra.pool.", "extra."},
    {"extra.index_width", "extra_indices"},
    {"extra.ind", "extra_ind"},
}};

Error in_fields(Error error) {
  for (const auto& [member, field] : kFields) {
    if (error.field.starts_with(member)) {
      error.field = std::string(field) + error.field.substr(member.size());
    }
  }
  for (const std::string_view prefix : {"problem.", "--"}) {
    if (error.field.starts_with(prefix)) error.field.erase(0, prefix.size());
  }
  return error;
}

// An index list and its lengths, narrowed.
struct Lists {
  std::vector<std::int32_t> indices, lengths;

  Result<void> take(const lathe_tensor* list, const lathe_tensor* list_lengths,
                    const std::string& prefix, KeySource& source) {
    Tensor tensor;
    if (auto ok = tensor.take(list, prefix + "indices"); !ok) return ok;
    auto read = int32_list(tensor.ref(), 2, "[rows, width]");
    if (!read) return read.error();
    indices = *std::move(read);
    source.index_width = tensor.ref().shape[1];
    if (source.index_width == 0) {
      // A list of no entries names no keys; the kernels take width 0 for "no list".
      source.index_width = 1;
      indices.assign(static_cast<std::size_t>(tensor.ref().shape[0]), -1);
    }
    source.indices = indices;
    if (list_lengths == nullptr) return {};
    Tensor counts;
    if (auto ok = counts.take(list_lengths, prefix + "index_lengths"); !ok) return ok;
    auto read_lengths = int32_list(counts.ref(), 1, "[rows]");
    if (!read_lengths) return read_lengths.error();
    lengths = *std::move(read_lengths);
    if (lengths.empty() && !indices.empty()) {
      return counts.ref().wrong("an entry of each row", "none");
    }
    source.index_lengths = lengths;
    return {};
  }
};

Result<std::optional<std::vector<std::int32_t>>> take_list(const lathe_tensor* list,
                                                           const char* argument, const char* axes) {
  if (list == nullptr) return std::optional<std::vector<std::int32_t>>();
  Tensor tensor;
  if (auto ok = tensor.take(list, argument); !ok) return ok.error();
  auto read = int32_list(tensor.ref(), 1, axes);
  if (!read) return read.error();
  return std::optional(*std::move(read));
}

// The shape [rows, heads] or [rows, heads, width].
Result<void> need_shape(const ArrayRef& array, std::initializer_list<std::int64_t> wanted) {
  if (std::equal(array.shape.begin(), array.shape.end(), wanted.begin(), wanted.end())) return {};
  return array.wrong(fmt::format("the shape ({})", fmt::join(wanted, ", ")), array.describe());
}

// A call's arguments, checked, and what they point to.
class Call {
 public:
  Result<void> take(const lathe_attend_args* given);

  const AttendArgs& args() const { return args_; }
  AttendArgs& args() { return args_; }
  const Kernel& kernel() const { return *kernel_; }
  std::int32_t threads() const { return fields_.threads; }
  bool batch_invariant() const { return (fields_.flags & LATHE_SPLIT_BY_BATCH) == 0; }

  Result<void> run() {
    if (const auto done = kernel_->attend(args_); !done) return in_fields(done.error());
    convert_lse({.base_2 = (fields_.flags & LATHE_LSE_BASE_2) != 0,
                 .empty_plus_inf = (fields_.flags & LATHE_EMPTY_LSE_PLUS_INF) != 0},
                args_.lse);
    return {};
  }

 private:
  Result<void> take_keys();
  Result<void> take_problem();
  Result<void> take_batch();
  Result<void> take_outputs();

  lathe_attend_args fields_{};
  Tensor q_, out_, lse_;
  PoolRef pool_, extra_;
  std::vector<PageId> pages_;
  Lists lists_, extra_lists_;
  CallBatch batch_;
  std::vector<float> sink_;
  std::optional<Kernel> kernel_;
  AttendArgs args_;
};

Result<void> Call::take(const lathe_attend_args* given) {
  const auto read = read_struct(given, "args");
  if (!read) return read.error();
  fields_ = *read;
  constexpr std::uint32_t kFlags =
      LATHE_LSE_BASE_2 | LATHE_EMPTY_LSE_PLUS_INF | LATHE_SPLIT_BY_BATCH;
  if ((fields_.flags & ~kFlags) != 0) {
    return wrong("flags", fmt::format("bits of {:#x}", kFlags),
                 fmt::format("{:#x}", fields_.flags));
  }
  if (fields_.threads < 0 || fields_.threads > kMostThreads) {
    return Error{ErrorCode::out_of_range, "threads", fmt::format("0 to {}", kMostThreads),
                 fmt::format("{}", fields_.threads), ""};
  }
  for (const auto step :
       {&Call::take_keys, &Call::take_problem, &Call::take_batch, &Call::take_outputs}) {
    if (const auto ok = (this->*step)(); !ok) return in_fields(ok.error());
  }
  return {};
}

Result<void> Call::take_keys() {
  if (auto ok = pool_.take(fields_.pool, "pool"); !ok) return ok;
  args_.main.pool = *pool_.view;
  args_.main.key_scale = pool_.scales.key;
  args_.main.value_scale = pool_.scales.value;
  if ((fields_.page_table == nullptr) == (fields_.indices == nullptr)) {
    return wrong("page_table", "a page_table or indices",
                 fields_.indices == nullptr ? "neither" : "both");
  }
  if (fields_.page_table != nullptr) {
    Tensor table;
    if (auto ok = table.take(fields_.page_table, "page_table"); !ok) return ok;
    const auto pages = int32_list(table.ref(), 2, "[requests, pages]");
    if (!pages) return pages.error();
    for (const std::int32_t page : *pages) pages_.emplace_back(page);
    args_.main.page_table = pages_;
    args_.main.table_width = table.ref().shape[1];
  } else if (auto ok = lists_.take(fields_.indices, fields_.index_lengths, "", args_.main); !ok) {
    return ok;
  }
  if (fields_.extra == nullptr) return {};
  if (auto ok = extra_.take(fields_.extra, "extra"); !ok) return ok;
  args_.extra.pool = *extra_.view;
  args_.extra.key_scale = extra_.scales.key;
  args_.extra.value_scale = extra_.scales.value;
  return extra_lists_.take(fields_.extra_indices, fields_.extra_index_lengths, "extra_",
                           args_.extra);
}

Result<void> Call::take_problem() {
  if (auto ok = q_.take(fields_.q, "q"); !ok) return ok;
  if (auto ok = q_.ref().need_rank(3, "[rows, heads, dim]"); !ok) return ok;
  const auto view = rows_view(q_.ref(), /*codes=*/true);
  if (!view) return view.error();
  args_.q = *view;
  if (fields_.q_scale != 0) args_.q_scale = fields_.q_scale;
  const std::int64_t heads = q_.ref().shape[1];
  if (heads < 1 || heads > (1 << 20)) {
    return q_.ref().wrong("at least 1 head, shape [rows, heads, dim]", q_.ref().describe());
  }
  const std::string_view attention = fields_.attention == nullptr ? "dsa" : fields_.attention;
  auto problem = problem_of_call(attention, args_.main.pool->layout,
                                 static_cast<std::int32_t>(heads), fields_.extra != nullptr);
  if (!problem) return problem.error();
  args_.problem = *problem;
  if (fields_.scale != 0) args_.problem.scale = fields_.scale;
  if (fields_.window != 0) args_.problem.window = fields_.window;
  args_.problem.sink = fields_.sink != nullptr;
  if (fields_.sink != nullptr) {
    Tensor sink;
    if (auto ok = sink.take(fields_.sink, "sink"); !ok) return ok;
    auto read = float_list(sink.ref(), 1, "[heads]");
    if (!read) return read.error();
    sink_ = *std::move(read);
    args_.sink = sink_;
  }

  const std::string_view kind = fields_.kind == nullptr ? "inplace" : fields_.kind;
  const std::string_view device = fields_.device == nullptr ? "cpu" : fields_.device;
  if (kind != "inplace" && kind != "native") {
    return wrong("kind", "inplace or native", fmt::format("\"{}\"", kind));
  }
  if (device != "cpu" && device != "ref") {
    return Error{ErrorCode::unsupported, "device", "cpu or ref", fmt::format("\"{}\"", device),
                 "the Python module attends on a GPU"};
  }
  auto kernel = find_kernel(device, kind, args_.problem.kind, args_.main.pool, args_.extra.pool);
  if (!kernel) return kernel.error();
  kernel_ = *std::move(kernel);
  return {};
}

Result<void> Call::take_batch() {
  auto indptr = take_list(fields_.q_indptr, "q_indptr", "[requests + 1]");
  if (!indptr) return indptr.error();
  auto lens = take_list(fields_.kv_lens, "kv_lens", "[requests]");
  if (!lens) return lens.error();
  auto batch =
      CallBatch::of(args_.q.rows, fields_.indices != nullptr, *std::move(indptr), *std::move(lens));
  if (!batch) return batch.error();
  batch_ = *std::move(batch);
  args_.q_indptr = batch_.q_indptr;
  args_.kv_lens = batch_.kv_lens;
  return {};
}

Result<void> Call::take_outputs() {
  const std::int64_t rows = args_.q.rows;
  const std::int64_t heads = args_.problem.heads;
  if (auto ok = out_.take(fields_.out, "out"); !ok) return ok;
  if (auto ok = need_shape(out_.ref(), {rows, heads, args_.problem.v_dim()}); !ok) return ok;
  const auto out = mutable_rows_view(out_.ref());
  if (!out) return out.error();
  args_.out = *out;
  if (fields_.lse == nullptr) return {};
  if (auto ok = lse_.take(fields_.lse, "lse"); !ok) return ok;
  if (auto ok = need_shape(lse_.ref(), {rows, heads}); !ok) return ok;
  const auto lse = mutable_rows_view(lse_.ref());
  if (!lse) return lse.error();
  args_.lse = *lse;
  return {};
}

// What a schedule was made of. Kernels trust that their calls have the same.
struct Cut {
  std::string kernel;
  AttentionProblem problem;
  std::int64_t rows = 0;
  std::vector<std::int32_t> q_indptr, kv_lens, index_lengths, extra_index_lengths;
  std::array<std::int64_t, 4> widths{};  // of tables and lists
  bool batch_invariant = true;

  explicit Cut(const Call& call)
      : kernel(call.kernel().capability.name),
        problem(call.args().problem),
        rows(call.args().q.rows),
        q_indptr(call.args().q_indptr.begin(), call.args().q_indptr.end()),
        kv_lens(call.args().kv_lens.begin(), call.args().kv_lens.end()),
        index_lengths(call.args().main.index_lengths.begin(), call.args().main.index_lengths.end()),
        extra_index_lengths(call.args().extra.index_lengths.begin(),
                            call.args().extra.index_lengths.end()),
        widths{call.args().main.table_width, call.args().main.index_width,
               call.args().extra.table_width, call.args().extra.index_width},
        batch_invariant(call.batch_invariant()) {}

  /// Errors: the first argument that differs.
  Result<void> check(const Cut& call) const {
    const char* field = kernel != call.kernel                             ? "kind"
                        : problem != call.problem                         ? "attention"
                        : rows != call.rows                               ? "q"
                        : q_indptr != call.q_indptr                       ? "q_indptr"
                        : kv_lens != call.kv_lens                         ? "kv_lens"
                        : index_lengths != call.index_lengths             ? "index_lengths"
                        : extra_index_lengths != call.extra_index_lengths ? "extra_index_lengths"
                        : widths != call.widths                           ? "page_table"
                        : batch_invariant != call.batch_invariant         ? "flags"
                                                                          : nullptr;
    if (field == nullptr) return {};
    return wrong(field, "what lathe_step_update() was given", "something else",
                 "update the step first");
  }
};

}  // namespace

struct lathe_step {
  explicit lathe_step(int count) : threads(count) {}
  ThreadPool threads;
  Scratch scratch;
  Schedule schedule{kHostMemory};
  std::optional<Cut> cut;  // none: not updated
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
    AttendArgs& a = call.args();
    const auto checked =
        a.problem.kind == ProblemKind::grouped_query ? check_gqa_args(a) : check_latent_args(a);
    if (!checked) return in_fields(checked.error());
    a.execution = execution_of(*step, call);
    step->cut.reset();
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
    call.args().execution = execution_of(*step, call);
    if (auto ok = step->cut->check(Cut(call)); !ok) return ok;
    if (call.kernel().prepare != nullptr) call.args().schedule = &step->schedule;
    return call.run();
  });
}
