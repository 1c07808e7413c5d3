// Qwen 2 and 2.5: Llama with biases on q, k and v, always.
#include "model/config/config_gqa.h"
#include "model/config/registry.h"

namespace lathe {

void parse_qwen2(ConfigReader& json, ModelConfig& config) {
  parse_gqa(json, config, {.kv_heads = 32});
  config.attention_bias = true;
}

}  // namespace lathe
