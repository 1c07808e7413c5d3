// A small configuration of Llama 4 for random weights, with the widths that a GPU's kernels need: a
// dense layer with RoPE and chunks of 64 tokens, and one without RoPE whose queries grow and which
// has experts.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace lathe {

class DummyLlama4 {
 public:
  static constexpr int kChunk = 64;

  DummyLlama4()
      : folder_(std::filesystem::temp_directory_path() /
                ("lathe_dummy_llama4_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ / "config.json") << R"({
      "architectures": ["Llama4ForCausalLM"], "model_type": "llama4_text", "vocab_size": 97,
      "hidden_size": 256, "intermediate_size": 128, "intermediate_size_mlp": 256,
      "num_hidden_layers": 2, "no_rope_layers": [1, 0], "num_attention_heads": 10,
      "num_key_value_heads": 2, "head_dim": 64, "attention_chunk_size": 64,
      "num_local_experts": 4, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2,
      "floor_scale": 50, "attn_scale": 0.3, "rope_theta": 500000.0,
      "max_position_embeddings": 512, "torch_dtype": "bfloat16"})";
  }
  ~DummyLlama4() { std::filesystem::remove_all(folder_); }
  DummyLlama4(const DummyLlama4&) = delete;
  DummyLlama4& operator=(const DummyLlama4&) = delete;

  std::string dir() const { return folder_.string(); }

 private:
  std::filesystem::path folder_;
};

}  // namespace lathe
