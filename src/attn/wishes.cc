#include "attn/wishes.h"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace lathe {
namespace {

// Names that other serving systems use.
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

Result<BackendWish> parse_backend(const std::string& text, Side side, const Registry& registry) {
  BackendWish wish;
  if (registry.find(text) != nullptr) {
    wish.kernel = text;
    return wish;
  }
  if (text == "auto" || text == "flashmla_auto") return wish;
  if (const auto kind = parse_enum<KernelKind>(text)) {
    wish.kind = *kind;
    return wish;
  }
  for (const auto& [alias, kind] : kAliases) {
    if (alias == text) {
      wish.kind = kind;
      return wish;
    }
  }
  std::string known = "auto, " + known_names<KernelKind>() + " (or flashmla_auto";
  for (const auto& [alias, kind] : kAliases) known += ", " + std::string(alias);
  return Error{ErrorCode::invalid_argument, std::string(flag_of(side)), known + ")",
               fmt::format("\"{}\"", text), ""};
}

Result<void> check_wishes(const Wishes& w) {
  struct Bound {
    std::string_view flag;
    std::int64_t value;
    std::int64_t min;
    std::int64_t max;
  };
  constexpr std::int64_t kMany = std::int64_t{1} << 40;
  for (const Bound& b : {
           Bound{"--chunked-prefill-size", w.chunked_prefill_size, 1, INT32_MAX},
           Bound{"--max-running-requests", w.max_running_requests, 1, INT32_MAX},
           Bound{"--context-length", w.context_length, 1, INT32_MAX},
           Bound{"--speculative-num-draft-tokens", w.draft_tokens, 0, 1024},
           Bound{"--num-layers", w.layers, 1, 100000},
           Bound{"--max-total-tokens", w.max_total_tokens, 0, kMany},
           Bound{"--indexer-logits-budget", w.logits_budget, 1, kMany},
           Bound{"--gather-budget", w.gather_budget, 1, kMany},
           Bound{"--activations-budget", w.activations_budget, 0, kMany},
       }) {
    if (b.value >= b.min && b.value <= b.max) continue;
    return Error{ErrorCode::invalid_argument, std::string(b.flag),
                 fmt::format("{} to {}", b.min, b.max), fmt::format("{}", b.value), ""};
  }
  if (w.page_size != 0) return check_page_size(w.page_size);
  return {};
}

}  // namespace lathe
