#include "model/layers/draft_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "model/config/text_tower.h"
#include "model/model.h"
#include "model/weights/tensor_table.h"

namespace lathe {
namespace {

constexpr const char* kDraftFile = "mtp.safetensors";
constexpr const char* kWayOut = "--draft ngram needs no weights";

Error refuse(std::string wanted, std::string offered) {
  return {ErrorCode::unsupported, "--draft", std::move(wanted), std::move(offered), kWayOut};
}

std::string count_text(std::int32_t layers) {
  return layers == 0   ? "no draft layer"
         : layers == 1 ? "1 draft layer"
                       : fmt::format("{} draft layers", layers);
}

// DeepSeek V4's draft layer has only a window, while other groups have compressed entries.
LayerGroupConfig& draft_group_of(ModelConfig& config) {
  return *std::ranges::find_if(
      config.groups, [](const LayerGroupConfig& group) { return !group.problem.two_sources(); });
}

// The projection that joins the hidden state with the next token; its presence identifies the
// layer.
std::string joins_name(const ModelConfig& config) {
  if (config.draft_tensors == DraftTensors::mtp) return "mtp.fc.weight";
  return config.is_compressed() ? "mtp.0.e_proj.weight"
                                : fmt::format("model.layers.{}.eh_proj.weight", config.layers);
}

// Finds a tensor outside the layers, under any of its names.
const CheckpointTensor* find_outer(const Checkpoint& checkpoint, const ModelConfig& config,
                                   std::string_view name, std::string_view v4_name) {
  if (!config.is_compressed()) return checkpoint.find(name);
  for (const CheckpointTensor& t : checkpoint.tensors()) {
    if (published_v4_name(t.name) == v4_name) return &t;
  }
  return nullptr;
}

// Whether the checkpoint has a head and it is not the embedding. A head of another shape differs,
// too: the loader then reports its shape.
bool has_own_head(const Checkpoint& checkpoint, const ModelConfig& config) {
  const CheckpointTensor* head = find_outer(checkpoint, config, "lm_head.weight", "head.weight");
  if (head == nullptr) return false;
  const CheckpointTensor* embedding =
      find_outer(checkpoint, config, "model.embed_tokens.weight", "embed.weight");
  return embedding == nullptr || head->dtype != embedding->dtype ||
         head->shape != embedding->shape || !std::ranges::equal(head->bytes, embedding->bytes);
}

}  // namespace

Result<ModelConfig> add_draft_layer(ModelConfig config) {
  const bool grouped = !config.is_mla() && !config.is_compressed();
  const bool streams = config.hyper.streams > 0 && !config.is_compressed();
  if (streams || (grouped && config.draft_layers == 0)) {
    return refuse(
        "a model whose draft layer runs: DeepSeek V3, V3.2 or V4, GLM, Qwen 3 Next or 3.5",
        fmt::format("{}, whose configuration has {}", config.architecture,
                    count_text(config.draft_layers)));
  }
  if (config.draft_blocks) {
    return refuse("a draft layer that predicts a token", "DSpark's blocks (dspark_block_size)");
  }
  if (config.draft_layers != 1) {
    return refuse("one draft layer (num_nextn_predict_layers 1)",
                  fmt::format("{} in the configuration of {}", count_text(config.draft_layers),
                              config.architecture));
  }
  config.drafts = true;
  if (config.draft_group) config.groups.push_back(*std::exchange(config.draft_group, {}));
  draft_group_of(config).layers.push_back(config.layers);
  if (!config.mla.own_indexer.empty()) config.mla.own_indexer.push_back(1);
  config.moe.layer_has_experts.push_back(config.moe.experts > 0 ? 1 : 0);
  return config;
}

Result<void> Model::forward_draft(const OpsContext&, const ForwardArgs&) const {
  return refuse("a model with a draft layer", "one without");
}

Result<Checkpoint> open_checkpoint(const std::string& directory, ModelConfig& config) {
  auto out = Checkpoint::open(directory, config.drafts ? kDraftFile : "");
  if (out && config.text_tower) {
    if (auto ok = out->rename(text_tensor_name); !ok) return ok.error();
  }
  if (out && !config.renames.empty()) {
    const auto name_of = [&](std::string_view name) { return renamed(config.renames, name); };
    if (auto ok = out->rename(name_of); !ok) return ok.error();
  }
  if (out && config.tied_embeddings) config.tied_embeddings = !has_own_head(*out, config);
  if (!out || !config.drafts) return out;
  const std::string joins = joins_name(config);
  if (out->find(joins) != nullptr || out->find("model." + joins) != nullptr) return out;
  const std::string stem = joins.substr(0, joins.rfind('.', joins.rfind('.') - 1));
  return refuse(fmt::format("a draft layer: {}.* among the checkpoint's tensors, or {} beside them",
                            stem, kDraftFile),
                "neither in " + directory);
}

}  // namespace lathe
