#include "plan/plan_request.h"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <utility>

#include "attn/ranks.h"

namespace lathe {
namespace {

// Names in other serving systems.
constexpr std::array<std::pair<std::string_view, KernelKind>, 7> kAliases = {{
    {"flashmla_sparse", KernelKind::gather},
    {"flashmla_kv", KernelKind::inplace},
    {"trtllm", KernelKind::native},
    {"trtllm_mla", KernelKind::native},
    {"trtllm_mha", KernelKind::native},
    {"mha", KernelKind::ragged},
    {"fa3", KernelKind::ragged},
}};

}  // namespace

std::string other_names(KernelKind kind) {
  std::string out;
  for (const auto& [alias, of] : kAliases) {
    if (of == kind) out += (out.empty() ? "" : ", ") + std::string(alias);
  }
  return out;
}

Result<BackendChoice> parse_backend(const std::string& text, Side side, const Registry& registry) {
  BackendChoice choice;
  if (registry.find(text) != nullptr) {
    choice.kernel = text;
    return choice;
  }
  if (text == "auto" || text == "flashmla_auto") return choice;
  if (const auto kind = parse_enum<KernelKind>(text)) {
    choice.kind = *kind;
    return choice;
  }
  for (const auto& [alias, kind] : kAliases) {
    if (alias == text) {
      choice.kind = kind;
      return choice;
    }
  }
  std::string known = "auto, " + known_names<KernelKind>() + " (or flashmla_auto";
  for (const auto& [alias, kind] : kAliases) known += ", " + std::string(alias);
  return Error{ErrorCode::invalid_argument, std::string(flag_of(side)), known + ")",
               fmt::format("\"{}\"", text), ""};
}

Result<void> check_ranks(const PlanRequest& request) {
  const auto wrong = [](std::string_view flag, std::string_view wanted, std::string offered) {
    return Error{ErrorCode::invalid_argument, std::string(flag), std::string(wanted),
                 std::move(offered), ""};
  };
  const std::int32_t n = request.tp;
  if (n < 1 || n > kMostRanks || (n & (n - 1)) != 0) {
    return wrong("--tp", "1, 2, 4 or 8", fmt::format("{}", n));
  }
  if (request.ep_size < 0 || request.ep_size > n ||
      (request.ep_size & (request.ep_size - 1)) != 0) {
    return wrong("--ep-size", fmt::format("0 (any), or a power of two from 1 to --tp {}", n),
                 fmt::format("{}", request.ep_size));
  }
  const bool splits = request.expert_split != "auto";
  for (const auto& [flag, given] : {std::pair{"--exchange", request.exchange != "auto"},
                                    {"--exchange-dtype", request.exchange_dtype != "auto"},
                                    {"--expert-split", splits},
                                    {"--enable-expert-parallel", request.expert_parallel}}) {
    if (n == 1 && given) return wrong(flag, "--tp 2, 4 or 8 with it", "--tp 1");
  }
  if (request.ep_size > 0 && (splits || request.expert_parallel)) {
    return wrong("--ep-size", "no other flag that splits experts with it",
                 splits ? "--expert-split" : "--enable-expert-parallel");
  }
  if (request.expert_parallel && splits) {
    return wrong("--enable-expert-parallel", "no other flag that splits experts with it",
                 "--expert-split");
  }
  if (request.exchange != "auto" && request.exchange != "peer" && request.exchange != "nccl") {
    return wrong("--exchange", "auto, peer or nccl", fmt::format("\"{}\"", request.exchange));
  }
  if (request.exchange_dtype != "auto" && request.exchange_dtype != "f32") {
    return wrong("--exchange-dtype", "auto or f32", fmt::format("\"{}\"", request.exchange_dtype));
  }
  return {};
}

Result<void> check_plan_request(const PlanRequest& request) {
  struct Bound {
    std::string_view flag;
    std::int64_t value;
    std::int64_t min;
    std::int64_t max;
    std::optional<std::int64_t> usual = {};  // what an error offers
  };
  const PlanRequest usual;
  constexpr std::int64_t kMany = std::int64_t{1} << 40;
  for (const Bound& b : {
           Bound{"--chunked-prefill-size", request.chunked_prefill_size, 1, INT32_MAX,
                 usual.chunked_prefill_size},
           Bound{"--max-running-requests", request.max_running_requests, 1, INT32_MAX,
                 usual.max_running_requests},
           Bound{"--context-length", request.context_length, 1, INT32_MAX},
           Bound{"--draft-tokens", request.draft_tokens, 0, 1024},
           Bound{"--num-layers", request.layers, 1, 100000},
           Bound{"--max-total-tokens", request.max_total_tokens, 0, kMany, usual.max_total_tokens},
           Bound{"--indexer-logits-budget", request.logits_budget, 1, kMany, usual.logits_budget},
           Bound{"--gather-budget", request.gather_budget, 1, kMany, usual.gather_budget},
           Bound{"--activations-budget", request.activations_budget, 0, kMany},
       }) {
    if (b.value >= b.min && b.value <= b.max) continue;
    return Error{ErrorCode::invalid_argument, std::string(b.flag),
                 fmt::format("{} to {}", b.min, b.max), fmt::format("{}", b.value),
                 b.usual ? fmt::format("{} {}", b.flag, *b.usual) : ""};
  }
  if (const auto ok = check_ranks(request); !ok) return ok;
  if (request.page_size == 0 || check_page_size(request.page_size)) return {};
  return Error{ErrorCode::invalid_argument, "--page-size", fmt::format("1 to {}", kMaxPageSize),
               fmt::format("{}", request.page_size), "--page-size 64"};
}

}  // namespace lathe
