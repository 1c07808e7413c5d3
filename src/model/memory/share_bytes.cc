#include "model/memory/share_bytes.h"

#include <numeric>
#include <string_view>

#include "model/config/split_sizes.h"
#include "model/weights/tensor_table.h"

namespace lathe {
namespace {

WeightPart part_of(const ModelConfig& config, const TensorSpec& spec) {
  const auto has = [&](std::string_view text) { return spec.name.find(text) != std::string::npos; };
  if (has("embed_tokens_per_layer")) return WeightPart::embedding;
  if (has("embed")) return config.tied_embeddings ? WeightPart::head : WeightPart::embedding;
  if (spec.name.starts_with("lm_head") || spec.name == "head.weight") return WeightPart::head;
  if (has(config.moe.names.shared)) return WeightPart::shared;
  if (spec.stack != nullptr && !spec.joined) return WeightPart::experts;
  const bool ffn = has("mlp.gate_proj") || has("mlp.up_proj") || has("mlp.down_proj");
  return ffn ? WeightPart::dense : WeightPart::other;
}

// Columns out of order are spread over all groups, so a checkpoint's part of them is widened
// (matrix_part()). Dummy weights have no order.
std::int64_t rank_part_bytes(const ModelConfig& config, const TensorSpec& spec) {
  const bool cut = spec.shape.size() == 2 && spec.part.cols.count < spec.shape[1];
  const bool widened = config.int4_order && cut && dummy_dtype(config, spec) == DType::u4;
  return widened ? bytes_of(DType::f32, spec.part.elements()) : dummy_bytes(config, spec);
}

RankBytes rank_bytes(const ModelConfig& config, const Share& share) {
  ModelWeights nowhere(config);
  RankBytes out;
  for (const TensorSpec& spec : tensor_table(config, nowhere, share)) {
    const std::int64_t bytes = rank_part_bytes(config, spec);
    out.at(part_of(config, spec)) += bytes;
    if (spec.part.elements() == spec.elements()) out.replicated += bytes;
  }
  return out;
}

}  // namespace

std::int64_t RankBytes::sum() const {
  return std::accumulate(of.begin(), of.end(), std::int64_t{0});
}

const RankBytes& ShareBytes::of(const Share& share) {
  for (const auto& [known, bytes] : known_) {
    if (known == share) return bytes;
  }
  return known_.emplace_back(share, rank_bytes(config_, share)).second;
}

const RankBytes& ShareBytes::whole() { return of(whole_share(split_sizes(config_))); }

}  // namespace lathe
