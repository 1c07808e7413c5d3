// Mistral 7B and its successors: Llama with an explicit head width and, in the first versions, a
// window in every layer.
#include "model/config/config_gqa.h"
#include "model/config/registry.h"

namespace lathe {

void parse_mistral(ConfigReader& json, ModelConfig& config) {
  parse_gqa_dims(json, config, {.kv_heads = 8});
  if (json.null("sliding_window")) return;
  set_windows(json, config, std::vector<std::uint8_t>(static_cast<std::size_t>(config.layers), 1));
}

}  // namespace lathe
