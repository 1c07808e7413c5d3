// GLM-5: DeepSeek V3.2's attention, but the indexer's RoPE pairs neighbours, and some layers reuse
// the selection of an earlier one (arXiv 2603.12201).
#include <fmt/format.h>

#include <algorithm>

#include "io/text/quote.h"
#include "model/config/config_mla.h"
#include "model/config/registry.h"

namespace lathe {
namespace {

// Per layer 1 (its own indexer) or 0 (shared), from indexer_types, index_topk_pattern ("FSSF") or
// index_topk_freq and index_skip_topk_offset.
std::vector<std::uint8_t> own_indexers(ConfigReader& json, std::int32_t layers) {
  std::vector<std::uint8_t> out;
  const std::vector<std::string> types = json.texts("indexer_types");
  std::string_view key = "indexer_types";
  for (const std::string& t : types) {
    if (t != "full" && t != "shared") {
      json.refuse(fmt::format("{}[{}]", key, out.size()), "full or shared", quote(t));
    }
    out.push_back(t == "full" ? 1 : 0);
  }
  if (types.empty() && json.has("index_topk_pattern")) {
    key = "index_topk_pattern";
    for (const char c : json.text(key, "")) {
      if (c != 'F' && c != 'S') json.refuse(key, "a text of F and S", quote({&c, 1}));
      out.push_back(c == 'F' ? 1 : 0);
    }
  } else if (types.empty()) {
    key = "index_skip_topk_offset";
    const std::int32_t every = std::max(1, json.integer("index_topk_freq", 1, 0));
    const std::int32_t offset = json.integer(key, 2, 0);
    for (std::int32_t l = 0; l < layers; ++l) {
      out.push_back(std::max(l - offset + 1, 0) % every == 0 ? 1 : 0);
    }
  }
  if (std::ssize(out) != layers) {
    json.refuse(key, fmt::format("{} entries", layers), fmt::format("{}", out.size()),
                ErrorCode::malformed);
  } else if (out.front() == 0) {
    json.refuse(key, "an indexer in the first layer", "one that shares", ErrorCode::malformed);
  }
  return out;
}

}  // namespace

void parse_glm_moe_dsa(ConfigReader& json, ModelConfig& config) {
  parse_mla(json, config, {.q_lora = 2048, .groups = 1, .top_groups = 1});
  parse_indexer(json, config, RopePairing::interleaved);
  config.mla.own_indexer = own_indexers(json, config.layers);
}

}  // namespace lathe
