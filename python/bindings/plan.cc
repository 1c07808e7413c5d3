// The planner: wishes by keyword to a plan or a refusal, both as JSON and as text.
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <variant>

#include "attn/explain.h"
#include "attn/plan_json.h"
#include "attn/planner.h"
#include "attn/problem_name.h"
#include "bindings.h"
#include "errors.h"
#include "kernels/all.h"
#include "kernels/find_machine.h"

namespace nb = nanobind;

namespace lathe::python {
namespace {

// A keyword of lathe.plan() and the member that it sets: the flags of `lathe plan`, with
// underscores.
struct Keyword {
  const char* name;
  std::variant<std::string Wishes::*, std::int32_t Wishes::*, std::int64_t Wishes::*,
               bool Wishes::*, std::int32_t ProblemOptions::*, bool ProblemOptions::*>
      member;
};

const Keyword kKeywords[] = {
    {"prefill_attention_backend", &Wishes::prefill},
    {"decode_attention_backend", &Wishes::decode},
    {"kv_layout", &Wishes::layout},
    {"kv_cache_dtype", &Wishes::kv_dtype},
    {"page_size", &Wishes::page_size},
    {"chunked_prefill_size", &Wishes::chunked_prefill_size},
    {"max_running_requests", &Wishes::max_running_requests},
    {"context_length", &Wishes::context_length},
    {"speculative_num_draft_tokens", &Wishes::draft_tokens},
    {"max_total_tokens", &Wishes::max_total_tokens},
    {"num_layers", &Wishes::layers},
    {"indexer_logits_budget", &Wishes::logits_budget},
    {"gather_budget", &Wishes::gather_budget},
    {"heads", &ProblemOptions::heads},
    {"kv_heads", &ProblemOptions::kv_heads},
    {"head_dim", &ProblemOptions::head_dim},
    {"top_k", &ProblemOptions::top_k},
    {"window", &ProblemOptions::window},
    {"compress_ratio", &ProblemOptions::compress_ratio},
    {"sink", &ProblemOptions::sink},
    {"disable_cuda_graph", &Wishes::cuda_graph},
};

// Puts one value, whose Python type the caller has checked against keyword_types(), in its place.
struct Setter {
  const char* keyword;
  nb::handle value;
  Wishes& wishes;
  ProblemOptions& options;

  void operator()(std::string Wishes::*member) const {
    wishes.*member = nb::cast<std::string>(value);
  }
  void operator()(std::int32_t Wishes::*member) const { wishes.*member = integer<std::int32_t>(); }
  void operator()(std::int64_t Wishes::*member) const { wishes.*member = integer<std::int64_t>(); }
  void operator()(bool Wishes::*member) const { wishes.*member = !nb::cast<bool>(value); }
  void operator()(std::int32_t ProblemOptions::*member) const {
    options.*member = integer<std::int32_t>();
  }
  void operator()(bool ProblemOptions::*member) const { options.*member = nb::cast<bool>(value); }

  template <class Int>
  Int integer() const {
    Int out = 0;
    if (nb::try_cast(value, out, false)) return out;
    using Limits = std::numeric_limits<Int>;
    raise({ErrorCode::out_of_range, keyword,
           fmt::format("an integer from {} to {}", Limits::min(), Limits::max()),
           nb::cast<std::string>(nb::str(value)), ""});
  }
};

const char* type_name(const Keyword& k) {
  return std::visit(
      []<class Member>(Member) {
        if constexpr (std::is_same_v<Member, std::string Wishes::*>) return "str";
        if constexpr (std::is_same_v<Member, bool Wishes::*> ||
                      std::is_same_v<Member, bool ProblemOptions::*>) {
          return "bool";
        }
        return "int";
      },
      k.member);
}

// keyword -> "str", "int" or "bool"
nb::dict keyword_types() {
  nb::dict out;
  for (const Keyword& k : kKeywords) out[k.name] = type_name(k);
  return out;
}

// (legal, JSON, explanation)
nb::tuple plan(const std::string& attention, const std::string& device, const nb::dict& wishes) {
  Wishes w;
  ProblemOptions options;
  for (const Keyword& k : kKeywords) {
    if (wishes.contains(k.name)) {
      std::visit(Setter{k.name, wishes[k.name], w, options}, k.member);
    }
  }
  // 0 stands for "choose" inside; a caller who writes it means a page of no tokens.
  if (wishes.contains("page_size")) value_or_raise(check_page_size(w.page_size));
  const AttentionProblem problem = value_or_raise(problem_from_name(attention, options));
  const Machine machine = value_or_raise(find_machine(device));

  std::string json;
  std::string text;
  bool legal = false;
  {
    const nb::gil_scoped_release unlocked;
    const PlanResult result = make_plan(problem, machine, w, all_kernels());
    legal = result.ok();
    json = (legal ? to_json(*result) : to_json(result.error())).dump(2);
    text = legal ? explain(*result) : explain(result.error());
  }
  return nb::make_tuple(legal, json, text);
}

}  // namespace

void bind_plan(nb::module_& m) {
  m.def("plan", &plan);
  m.def("keyword_types", &keyword_types);
}

}  // namespace lathe::python
