// A small configuration of GLM 5.3 Flash for random weights, with the widths that a GPU's kernels
// need: latents of 512 without RoPE, index keys of eight tokens of which a row selects two,
// delta-rule layers, streams.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace lathe {

class DummyGlm53 {
 public:
  DummyGlm53()
      : folder_(std::filesystem::temp_directory_path() /
                ("lathe_dummy_glm53_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ / "config.json") << R"({
      "architectures": ["Glm5NextForCausalLM"], "model_type": "glm5_next_text", "vocab_size": 97,
      "hidden_size": 128, "intermediate_size": 128, "moe_intermediate_size": 64,
      "num_hidden_layers": 2, "layer_types": ["linear_attention", "indexed_attention"],
      "mlp_layer_types": ["dense", "sparse"], "num_attention_heads": 4, "num_key_value_heads": 4,
      "n_routed_experts": 4, "num_experts_per_tok": 2, "q_lora_rank": 64, "kv_lora_rank": 512,
      "qk_nope_head_dim": 64, "qk_rope_head_dim": 0, "v_head_dim": 64,
      "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "index_topk": 16,
      "index_head_dim": 128, "index_n_heads": 4, "index_kpool": 8, "swiglu_limit": 10.0,
      "linear_num_heads": 2, "linear_head_dim": 32, "linear_conv_kernel_dim": 4})";
  }
  ~DummyGlm53() { std::filesystem::remove_all(folder_); }
  DummyGlm53(const DummyGlm53&) = delete;
  DummyGlm53& operator=(const DummyGlm53&) = delete;

  std::string dir() const { return folder_.string(); }

 private:
  std::filesystem::path folder_;
};

}  // namespace lathe
