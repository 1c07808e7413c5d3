#include "plan/rules.h"

#include <fmt/format.h>

#include <algorithm>

#include "attn/draft_rows.h"
#include "attn/expansion.h"

namespace lathe {
namespace {

std::string formats_of(const CacheLayout& layout) {
  std::string out;
  for (int i = 0; i < layout.part_count(); ++i) {
    const Part& p = layout.part(i);
    if (p.role == PartRole::scale || p.role == PartRole::pad) continue;
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", name(p.dtype), name(p.role));
  }
  return fmt::format("{} ({})", layout.name(), out);
}

bool adapter_serves(const Adapter& a, const Candidate& c, const Capability& k) {
  const bool target =
      a.to_compact_rows ? k.compact_rows && a.to == k.compact_layout : k.layouts.contains(a.to);
  return target && a.from.contains(c.layout.kind()) && a.phases.contains(c.phase) &&
         a.problems.contains(c.problem.kind);
}

const Adapter* find_adapter(const Candidate& c, const Capability& k) {
  const Adapter* best = nullptr;
  for (const Adapter& a : c.registry.adapters()) {
    if (adapter_serves(a, c, k) && (best == nullptr || (best->whole_pool && !a.whole_pool))) {
      best = &a;
    }
  }
  return best;
}

class Judge {
 public:
  Judge(const Candidate& c, const Capability& k) : c_(c), k_(k) {
    in_place_ = k.layouts.contains(c.layout.kind()) &&
                !(k.homogeneous_only && !c.layout.homogeneous()) &&
                (k.two_sources || !c.problem.two_sources());
    if (!in_place_) adapter_ = find_adapter(c, k);
  }

  Verdict run() {
    where();
    bytes();
    parameters();
    Verdict v;
    v.reasons = std::move(reasons_);
    if (v.reasons.empty()) v.route = route();
    return v;
  }

 private:
  void refuse(Rule rule, std::string_view field, std::string wanted, std::string offered,
              std::string hint = "") {
    reasons_.push_back({rule, subject_of(k_), std::string(field), std::move(wanted),
                        std::move(offered), std::move(hint)});
  }

  void where() {
    if (!k_.devices.contains(c_.machine.device)) {
      refuse(Rule::device, "device", k_.devices.names(), std::string(name(c_.machine.device)));
    }
    if (!k_.problems.contains(c_.problem.kind)) {
      refuse(Rule::problem, "attention", k_.problems.names(), std::string(name(c_.problem.kind)));
    }
    if (!k_.phases.contains(c_.phase)) {
      refuse(Rule::phase, "phase", k_.phases.names(), std::string(name(c_.phase)));
    }
    if (c_.request.cuda_graph && is_gpu(c_.machine.device) && side_of(c_.phase) == Side::decode &&
        !k_.graph_safe) {
      refuse(Rule::graph, "graph", "no CUDA graph", "decode steps captured in a CUDA graph",
             "--disable-cuda-graph");
    }
    if (c_.request.batch_invariant && !k_.batch_invariant) {
      refuse(Rule::bits, "bits", "those of the whole step", "--batch-invariant");
    }
  }

  void bytes() {
    if (k_.homogeneous_only && !c_.layout.homogeneous()) {
      refuse(Rule::homogeneous, "layout", "homogeneous", formats_of(c_.layout));
      return;
    }
    if (!in_place_ && adapter_ == nullptr) {
      const std::string layout(c_.layout.name());
      if (c_.problem.two_sources() && !k_.two_sources && k_.layouts.contains(c_.layout.kind())) {
        refuse(Rule::two_sources, "sources", "one source of keys",
               "a window and compressed entries");
      } else if (k_.compact_rows) {
        refuse(Rule::adapter, "layout",
               fmt::format("{} rows, or an adapter that makes them", name(k_.compact_layout)),
               fmt::format("{}, no adapter in {}", layout, name(c_.phase)));
      } else {
        refuse(Rule::layout, "layout", k_.layouts.names(), layout);
      }
      return;
    }
    if (in_place_ && !k_.scale_policies.contains(c_.layout.scale_policy())) {
      refuse(Rule::scale_policy, "scale", k_.scale_policies.names(),
             fmt::format("{} of {}", name(c_.layout.scale_policy()), c_.layout.name()),
             "--kv-layout " + std::string(c_.layout.name()));
    }
    if (!in_place_) return;
    if (!k_.page_sizes.contains(c_.page_size)) {
      refuse(Rule::page_size, "page size", k_.page_sizes.text(), fmt::format("{}", c_.page_size));
    } else if (c_.problem.two_sources()) {
      const std::int32_t entries = compressed_page_size(c_.problem, c_.page_size);
      if (!k_.page_sizes.contains(entries)) {
        refuse(Rule::page_size, "page size of compressed entries", k_.page_sizes.text(),
               fmt::format("{}", entries));
      }
    }
    const AttentionProblem& p = c_.problem;
    if (p.chunked && k_.whole_page_chunks && p.window % c_.page_size != 0) {
      refuse(Rule::window, "tokens of a chunk",
             fmt::format("a multiple of the page size, {}", c_.page_size),
             fmt::format("{}", p.window));
    }
  }

  void parameters() {
    const AttentionProblem& p = c_.problem;
    const auto accept = [&](Rule rule, std::string_view field, const Accepts& a, std::int64_t v) {
      if (!a.contains(v)) refuse(rule, field, a.text(), fmt::format("{}", v));
    };
    accept(Rule::heads, "heads", k_.heads, p.heads);
    if (p.kind == ProblemKind::grouped_query) {
      accept(Rule::dims, "head dim", k_.head_dim, p.head_dim);
      accept(Rule::dims, "value head dim", k_.value_head_dim, p.v_head_dim);
      if (k_.equal_head_dims && p.v_head_dim != p.head_dim) {
        refuse(Rule::dims, "value head dim", fmt::format("the head dim {}", p.head_dim),
               fmt::format("{}", p.v_head_dim));
      }
    } else {
      accept(Rule::dims, "latent width", k_.nope, p.nope);
      accept(Rule::dims, "rope width", k_.rope, p.rope);
      if (k_.kind == KernelKind::ragged) {
        accept(Rule::dims, "nope width of a head's keys", k_.qk_nope_head, p.qk_nope_head);
        accept(Rule::dims, "width of a head's values", k_.v_head, p.v_head);
      }
    }
    if (p.sparse() && !k_.context_within_top_k)
      accept(Rule::top_k, "top-k", k_.top_k, p.listed_keys());
    if (p.window > 0 && !k_.window) {
      refuse(Rule::window, "window", "none", fmt::format("{} tokens", p.window));
    }
    if (p.sink && !k_.sink) refuse(Rule::sink, "sink", "none", "a sink per head");
  }

  // Most bytes of partial results in a step with --batch-invariant.
  std::int64_t fixed_partials() const {
    const FixedCuts& cuts = k_.fixed_cuts;
    const AttentionProblem& p = c_.problem;
    const PlanRequest& request = c_.request;
    if (!request.batch_invariant || cuts.keys == 0) return 0;
    const auto up = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
    const bool extends = c_.phase == Phase::extend;
    const std::int64_t rows_each =
        extends ? request.chunked_prefill_size : 1 + std::int64_t{request.draft_tokens};
    const std::int64_t rows =
        extends ? request.chunked_prefill_size : request.max_running_requests * rows_each;
    const std::int64_t requests =
        std::max(request.max_running_requests,
                 recorded_verify_rows(request.max_running_requests, request.draft_tokens));
    std::int64_t keys = request.context_length;
    if (cuts.rows > 0) {
      const bool lists = p.sparse();  // each row is a work tile
      const std::int64_t kv_heads = p.kind == ProblemKind::grouped_query ? p.kv_heads : 1;
      const std::int64_t m_rows = (lists ? 1 : std::min(rows_each, cuts.rows)) * p.heads / kv_heads;
      std::int64_t block = 8;
      while (block < std::min(m_rows, cuts.block_rows)) block *= 2;
      if (lists) keys = p.top_k;
      if (p.window > 0) keys = std::min(keys, p.window + rows_each + 128);
      const std::int64_t parts = std::min(cuts.pieces, up(keys, cuts.keys));
      constexpr std::int64_t kWorkList = std::int64_t{1} << 20;
      const std::int64_t tiles = lists ? rows : requests;
      return parts > 1 ? tiles * parts * kv_heads * block * (p.v_dim() + 1) * 4 + kWorkList : 0;
    }
    const std::int64_t row_blocks = up(p.heads, cuts.block_rows);
    std::int64_t blocks = std::min(cuts.blocks, up(p.heads * rows_each, cuts.block_rows));
    blocks = std::min(blocks * requests, rows * row_blocks + requests);
    if (p.sparse()) {
      keys = p.top_k + p.window;
      blocks = rows * row_blocks;
    }
    const std::int64_t pieces = std::min(cuts.pieces, up(keys, cuts.keys));
    const std::int64_t block_bytes = cuts.block_rows * (std::int64_t{p.v_dim()} + 1) * 4;
    return pieces > 1 ? blocks * pieces * block_bytes : 0;
  }

  Route route() const {
    Route r;
    r.kernel = k_.name;
    r.kind = k_.kind;
    r.max_rows = k_.schedule.max_rows(c_.machine);
    if (k_.context_within_top_k && c_.problem.sparse()) r.max_context = c_.problem.top_k;
    r.arithmetic = k_.arithmetic_on(c_.layout);
    r.q_dtype = k_.q_dtype(c_.layout);
    r.table_tokens = k_.table_tokens;
    r.split_kv = k_.split_kv;
    r.split_bytes = std::max(k_.split_bytes, fixed_partials());
    r.worker_rows = k_.worker_rows;
    r.expanded_bytes = k_.expanded_bytes;
    if (k_.expanded_bytes > 0) {
      const AttentionProblem& p = c_.problem;
      const std::int64_t keys = k_.expanded_bytes / expanded_key_bytes(p, least_expanded_heads(p));
      if (c_.request.context_length > keys) {
        r.max_context = r.max_context == 0 ? keys : std::min(r.max_context, keys);
      }
    }
    if (adapter_ != nullptr) {
      const auto target = layout_for(c_.problem, adapter_->to);
      r.adapter = {adapter_->name, c_.layout.bytes_per_token(),
                   target ? target->bytes_per_token() : 0, adapter_->whole_pool, adapter_->exact};
      if (adapter_->to_compact_rows) r.unit = KeyUnit::ragged_row;
    }
    return r;
  }

  const Candidate& c_;
  const Capability& k_;
  const Adapter* adapter_ = nullptr;
  bool in_place_ = false;
  std::vector<Reason> reasons_;
};

}  // namespace

std::int64_t rows_of(Phase phase, const PlanRequest& request) {
  switch (phase) {
    case Phase::extend:
      return request.chunked_prefill_size;
    case Phase::decode:
      return request.max_running_requests;
    case Phase::verify:
    case Phase::draft_extend:
      break;
  }
  return request.max_running_requests * (1 + std::int64_t{request.draft_tokens});
}

std::string subject_of(const Capability& kernel) {
  return fmt::format("{} {}", name(kernel.kind), kernel.name);
}

Verdict judge(const Candidate& candidate, const Kernel& kernel) {
  Verdict verdict = Judge(candidate, kernel.capability).run();
  if (verdict.route) verdict.route->bound.kernel = &kernel;
  return verdict;
}

}  // namespace lathe
