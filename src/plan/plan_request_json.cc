#include "plan/plan_request_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <type_traits>
#include <variant>

#include "base/json.h"

namespace lathe {
namespace {

using SortedJson = nlohmann::json;

struct Key {
  std::string_view name;
  std::variant<std::string PlanRequest::*, std::int32_t PlanRequest::*, std::int64_t PlanRequest::*,
               bool PlanRequest::*, std::int32_t ProblemOptions::*, bool ProblemOptions::*>
      member;
};

const Key kKeys[] = {
    {"prefill_attention_backend", &PlanRequest::prefill},
    {"decode_attention_backend", &PlanRequest::decode},
    {"kv_layout", &PlanRequest::layout},
    {"kv_cache_dtype", &PlanRequest::kv_dtype},
    {"page_size", &PlanRequest::page_size},
    {"chunked_prefill_size", &PlanRequest::chunked_prefill_size},
    {"max_running_requests", &PlanRequest::max_running_requests},
    {"context_length", &PlanRequest::context_length},
    {"draft_tokens", &PlanRequest::draft_tokens},
    {"speculative_num_draft_tokens", &PlanRequest::draft_tokens},
    {"max_total_tokens", &PlanRequest::max_total_tokens},
    {"num_layers", &PlanRequest::layers},
    {"indexer_logits_budget", &PlanRequest::logits_budget},
    {"gather_budget", &PlanRequest::gather_budget},
    {"heads", &ProblemOptions::heads},
    {"kv_heads", &ProblemOptions::kv_heads},
    {"head_dim", &ProblemOptions::head_dim},
    {"top_k", &ProblemOptions::top_k},
    {"window", &ProblemOptions::window},
    {"compress_ratio", &ProblemOptions::compress_ratio},
    {"sink", &ProblemOptions::sink},
    {"disable_cuda_graph", &PlanRequest::cuda_graph},
    {"batch_invariant", &PlanRequest::batch_invariant},
    {"disable_cascade_attn", &PlanRequest::separate_prefixes},
    {"tp", &PlanRequest::tp},
    {"tp_size", &PlanRequest::tp},
    {"tensor_parallel_size", &PlanRequest::tp},
    {"expert_split", &PlanRequest::expert_split},
    {"enable_expert_parallel", &PlanRequest::expert_parallel},
    {"ep_size", &PlanRequest::ep_size},
    {"expert_parallel_size", &PlanRequest::ep_size},
    {"exchange", &PlanRequest::exchange},
    {"exchange_dtype", &PlanRequest::exchange_dtype},
};

// Keys of other engines' commands with the flag for them. Only 1 is legal.
struct OneKey {
  std::string_view name, flag;
};
const OneKey kOnes[] = {{"dp", "--dp"}, {"dp_size", "--dp"}, {"data_parallel_size", "--dp"},
                        {"pp", "--pp"}, {"pp_size", "--pp"}, {"pipeline_parallel_size", "--pp"}};

Result<void> check_one(std::string_view flag, std::int64_t value) {
  if (value == 1) return {};
  return Error{ErrorCode::unsupported, std::string(flag), "1: --tp alone shares a model",
               fmt::format("{}", value),
               "--tp; more requests need a server for each group of GPUs, with --gpus"};
}

template <class Owner, class Value>
Value value_type(Value Owner::*);

template <class Member>
using ValueOf = decltype(value_type(Member{}));

Error wrong(std::string_view key, std::string wanted, const SortedJson& value) {
  return {ErrorCode::invalid_argument, std::string(key), std::move(wanted), json_excerpt(value),
          ""};
}

template <class Value>
Result<Value> read(std::string_view key, const SortedJson& value) {
  if constexpr (std::is_same_v<Value, std::string>) {
    if (!value.is_string()) return wrong(key, "a string", value);
    return value.get<std::string>();
  } else if constexpr (std::is_same_v<Value, bool>) {
    if (!value.is_boolean()) return wrong(key, "true or false", value);
    return value.get<bool>();
  } else {
    using Limits = std::numeric_limits<Value>;
    const auto range = fmt::format("an integer from {} to {}", Limits::min(), Limits::max());
    if (!value.is_number_integer()) return wrong(key, range, value);
    const bool beyond = value.is_number_unsigned() &&
                        value.get<std::uint64_t>() > static_cast<std::uint64_t>(Limits::max());
    const auto wide = value.get<std::int64_t>();
    if (beyond || wide < Limits::min() || wide > Limits::max()) {
      return Error{ErrorCode::out_of_range, std::string(key), range, json_excerpt(value), ""};
    }
    return static_cast<Value>(wide);
  }
}

}  // namespace

std::vector<PlanRequestKey> plan_request_keys() {
  std::vector<PlanRequestKey> out;
  for (const Key& key : kKeys) {
    const auto type = std::visit(
        []<class Member>(Member) {
          using Value = ValueOf<Member>;
          if constexpr (std::is_same_v<Value, std::string>) return "str";
          return std::is_same_v<Value, bool> ? "bool" : "int";
        },
        key.member);
    out.push_back({key.name, type});
  }
  for (const OneKey& one : kOnes) out.push_back({one.name, "int"});
  return out;
}

Result<void> set_in_request(std::string_view name, const SortedJson& value, PlanRequest& request,
                            ProblemOptions& options) {
  std::string known;
  for (const OneKey& one : kOnes) {
    if (one.name != name) continue;
    const auto of = read<std::int64_t>(name, value);
    return of ? check_one(one.flag, *of) : of.error();
  }
  for (const Key& key : kKeys) {
    known += (known.empty() ? "" : ", ") + std::string(key.name);
    if (key.name != name) continue;
    return std::visit(
        [&]<class Member>(Member member) -> Result<void> {
          auto read_value = read<ValueOf<Member>>(name, value);
          if (!read_value) return read_value.error();
          if constexpr (std::is_same_v<Member, bool PlanRequest::*>) {
            request.*member = name == "disable_cuda_graph" ? !*read_value : *read_value;
          } else if constexpr (std::is_invocable_v<Member, PlanRequest&>) {
            request.*member = *std::move(read_value);
          } else {
            options.*member = *std::move(read_value);
          }
          return {};
        },
        key.member);
  }
  return Error{ErrorCode::invalid_argument, std::string(name), "one of " + known, "an unknown key",
               ""};
}

Result<void> check_one_rank(const PlanRequest& request) {
  if (request.tp == 1) return {};
  return Error{ErrorCode::invalid_argument, "--tp",
               "1 for an attention problem alone, which has the heads of one rank",
               fmt::format("{}", request.tp), ""};
}

std::optional<PlanRequest> with_flags(PlanRequest request, std::string_view flags) {
  std::istringstream words{std::string(flags)};
  for (std::string flag; words >> flag;) {
    if (!flag.starts_with("--")) return std::nullopt;
    std::string key = flag.substr(2);
    std::ranges::replace(key, '-', '_');
    const auto keys = plan_request_keys();
    const auto known = std::ranges::find(keys, key, &PlanRequestKey::key);
    if (known == keys.end()) return std::nullopt;
    SortedJson value = true;
    std::string text;
    if (known->type != "bool" && !(words >> text)) return std::nullopt;
    if (known->type == "str") value = text;
    if (known->type == "int") value = read_json<SortedJson>(text);
    ProblemOptions options;
    if (!set_in_request(key, value, request, options)) return std::nullopt;
    if (options != ProblemOptions()) return std::nullopt;
  }
  return request;
}

}  // namespace lathe
