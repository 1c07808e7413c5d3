#include "model/config/quantization.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "io/text/quote.h"
#include "model/config/config.h"

namespace lathe {
namespace {

std::string hint() { return "use a checkpoint in one of: " + weight_formats_text(); }

void refuse(ConfigReader& json, std::string_view key, std::string wanted, std::string offered) {
  json.refuse(key, std::move(wanted), std::move(offered), ErrorCode::unsupported, hint());
}

// ModelOpt's keys next to fp8 describe a second quantisation. NVIDIA's DeepSeek V4 has experts in
// NVFP4; other keys say what the loader would not look for.
void check_second_method(ConfigReader& q) {
  if (q.text("moe_quant_algo", "") == "NVFP4") return;
  for (const std::string_view key : {"quant_algo", "moe_quant_algo", "config_groups"}) {
    if (q.has(key)) {
      refuse(q, key, "nothing with quant_method fp8, or moe_quant_algo NVFP4",
             "a second quantisation");
    }
  }
}

void parse_fp8(ConfigReader& q, ModelConfig& config) {
  check_second_method(q);
  const std::string format = q.text("fmt", "e4m3");
  if (format != "e4m3" && format != "float8_e4m3fn") {
    refuse(q, "fmt", "e4m3 or float8_e4m3fn", quote(format));
  }
  const std::vector<std::int32_t> block = q.integers("weight_block_size");
  if (!block.empty() && block != std::vector<std::int32_t>{128, 128}) {
    refuse(q, "weight_block_size", "[128, 128], or null",
           fmt::format("[{}]", fmt::join(block, ", ")));
  }
  config.quantization = block.empty() ? Quantization::fp8_rows : Quantization::fp8_blocks;
  if (q.has("moe_quant_algo")) config.quantization = Quantization::nvfp4;
  config.block_fp8 = !block.empty();
  config.fp8_pow2 = q.text("scale_fmt", "") == "ue8m0";
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return text;
}

// Whether columns are grouped in the order of another tensor: "actorder" as compressed-tensors
// reads it up to version 0.12, where true is "group". With "weight" columns stay where they are.
bool orders_columns(ConfigReader& w) {
  if (!w.is_text("actorder")) return w.flag("actorder", false);
  const std::string order = lower(w.text("actorder", ""));
  if (order == "group" || order == "dynamic") return true;
  if (order != "weight" && order != "static") {
    refuse(w, "actorder", "group, dynamic, weight, static or null", quote(order));
  }
  return false;
}

// What one group of compressed-tensors' or ModelOpt's config_groups says of its weights.
Quantization parse_weights(ConfigReader& w, ModelConfig& config) {
  const std::string type = w.text("type", "int");
  const std::int32_t bits = w.integer("num_bits", 8, 1, 64);
  const std::string strategy =
      w.text("strategy", type == "float" && bits == 8 ? "channel" : "group");
  const std::int32_t group = w.integer("group_size", 0, -1);
  if (type == "float" && bits == 8) {
    if (strategy != "block") return Quantization::fp8_rows;
    const std::vector<std::int32_t> block = w.integers("block_structure");
    if (block != std::vector<std::int32_t>{128, 128}) {
      refuse(w, "block_structure", "[128, 128]", fmt::format("[{}]", fmt::join(block, ", ")));
    }
    return Quantization::fp8_blocks;
  }
  if (type == "float" && bits == 4) return group == 32 ? Quantization::mxfp4 : Quantization::nvfp4;
  if (type != "int" || bits != 4) {
    refuse(w, "num_bits", "4-bit integers, or floats of 4 or 8 bits",
           fmt::format("{} bits of type {}", bits, quote(type)));
  } else if (group != 32 && group != 64 && group != 128) {
    refuse(w, "group_size", "32, 64 or 128",
           fmt::format("{} with strategy {}", group, quote(strategy)));
  }
  // Of several groups, zero points and orders are expected where all have them.
  const bool first = config.int4_group == 0, ordered = orders_columns(w);
  config.int4_zeros = !w.flag("symmetric", true) && (first || config.int4_zeros);
  config.int4_all_ordered = ordered && (first || config.int4_all_ordered);
  config.int4_order |= ordered;
  config.int4_group = group;
  return Quantization::int4;
}

void parse_groups(ConfigReader& q, ModelConfig& config) {
  auto groups = q.object("config_groups");
  if (!groups) return;
  for (const std::string& name : groups->keys()) {
    auto group = groups->object(name);
    auto weights = group ? group->object("weights") : std::nullopt;
    if (!weights) continue;
    // compressed-tensors packs integers so; floats of 4 bits have formats of their own.
    if (group->text("format", q.text("format", "")) == "pack-quantized" &&
        weights->text("type", "int") == "float") {
      refuse(*weights, "type", "int with format pack-quantized", quote("float"));
    }
    const Quantization found = parse_weights(*weights, config);
    config.quantization = std::max(config.quantization, found);
    config.block_fp8 |= found == Quantization::fp8_blocks;
    group->adopt(*weights);
    groups->adopt(*group);
  }
  q.adopt(*groups);
}

void parse_compressed_tensors(ConfigReader& q, ModelConfig& config) {
  if (auto sparsity = q.object("sparsity_config")) {
    const std::string format = sparsity->text("format", "dense");
    if (format != "dense") refuse(*sparsity, "format", "dense", quote(format));
    q.adopt(*sparsity);
  }
  if (auto transform = q.object("transform_config"); transform && !transform->keys().empty()) {
    refuse(q, "transform_config", "none: rotations of activations are not supported", "some");
  }
  parse_groups(q, config);
}

void parse_modelopt(ConfigReader& q, ModelConfig& config) {
  // Older files have hf_quant_config.json's object here.
  if (auto nested = q.object("quantization")) {
    parse_modelopt(*nested, config);
    return q.adopt(*nested);
  }
  const std::string algorithm = q.text("quant_algo", "");
  if (algorithm == "FP8") {
    config.quantization = Quantization::fp8_rows;
  } else if (algorithm == "NVFP4" || algorithm == "MIXED_PRECISION") {
    config.quantization = Quantization::nvfp4;
  } else if (!algorithm.empty()) {
    refuse(q, "quant_algo", "FP8, NVFP4 or MIXED_PRECISION", quote(algorithm));
  }
}

std::int32_t int4_bits(ConfigReader& q) {
  const std::string_view key = q.first_of({"bits", "w_bit"});
  const std::int32_t bits = q.integer(key);
  if (!q.error() && bits != 4) refuse(q, key, "4", fmt::format("{}", bits));
  return bits;
}

void int4_group(ConfigReader& q, ModelConfig& config) {
  const std::string_view key = q.first_of({"group_size", "q_group_size"});
  const std::int32_t group = q.integer(key, 128, -1);
  if (group != 32 && group != 64 && group != 128) {
    refuse(q, key, "32, 64 or 128", fmt::format("{}", group));
  }
  config.quantization = Quantization::int4;
  config.int4_group = group;
}

void parse_awq(ConfigReader& q, ModelConfig& config) {
  int4_bits(q);
  int4_group(q, config);
  const std::string version = lower(q.text("version", "gemm"));
  if (version != "gemm") refuse(q, "version", "gemm", quote(version));
  config.int4_zeros = true;
}

void parse_gptq(ConfigReader& q, ModelConfig& config) {
  int4_bits(q);
  int4_group(q, config);
  const std::string format = q.text("checkpoint_format", "gptq");
  if (format != "gptq" && format != "gptq_v2") {
    refuse(q, "checkpoint_format", "gptq or gptq_v2", quote(format));
  }
  if (q.flag("is_marlin_format", false)) refuse(q, "is_marlin_format", "false", "true");
  config.gptq_v2 = format == "gptq_v2";
  config.int4_zeros = !q.flag("sym", true);
  config.int4_order = q.flag("desc_act", false);
}

void parse_quark(ConfigReader& q, ModelConfig& config) {
  auto all = q.object("global_quant_config");
  auto weight = all ? all->object("weight") : std::nullopt;
  if (!weight) return;
  const std::string type = weight->text("dtype", "");
  if (type == "fp8_e4m3") {
    config.quantization = Quantization::fp8_rows;
  } else if (type == "fp4") {
    config.quantization = Quantization::mxfp4;
  } else {
    refuse(*weight, "dtype", "fp4 or fp8_e4m3", quote(type));
  }
  all->adopt(*weight);
  q.adopt(*all);
}

struct Method {
  std::string_view name;
  void (*parse)(ConfigReader& q, ModelConfig& config);
};
constexpr std::array kMethods = {
    Method{"fp8", parse_fp8},
    Method{"fbgemm_fp8",
           [](ConfigReader&, ModelConfig& c) { c.quantization = Quantization::fp8_rows; }},
    Method{"compressed-tensors", parse_compressed_tensors},
    Method{"modelopt", parse_modelopt},
    Method{"modelopt_fp4", parse_modelopt},
    Method{"awq", parse_awq},
    Method{"gptq", parse_gptq},
    Method{"quark", parse_quark},
};

}  // namespace

std::string weight_formats_text() {
  return "bf16, f16 or f32; fp8 per tensor, per channel or in blocks of 128 x 128; int4 in groups "
         "of 32, 64 or 128 (compressed-tensors, AWQ, GPTQ); NVFP4; MXFP4";
}

void parse_quantization(ConfigReader& json, ConfigReader* hf_quant, bool mxfp4_experts,
                        ModelConfig& config) {
  auto q = json.object(json.first_of({"quantization_config", "compression_config"}));
  if (!q) {
    if (hf_quant == nullptr) return;
    parse_modelopt(*hf_quant, config);
    return json.adopt(*hf_quant);
  }
  // ModelOpt's first files have quant_algo alone.
  const std::string method = q->text("quant_method", q->has("quant_algo") ? "modelopt" : "");
  if (mxfp4_experts) {
    if (method != "mxfp4") q->refuse("quant_method", "mxfp4", quote(method));
    config.mxfp4 = true;
    return json.adopt(*q);
  }
  const auto known =
      std::ranges::find_if(kMethods, [&](const Method& m) { return m.name == method; });
  if (known != kMethods.end()) {
    known->parse(*q, config);
  } else {
    std::string names;
    for (const Method& m : kMethods) {
      names += fmt::format("{}{}", names.empty() ? "" : ", ", m.name);
    }
    refuse(*q, "quant_method", names, method.empty() ? "nothing" : quote(method));
  }
  json.adopt(*q);
}

}  // namespace lathe
