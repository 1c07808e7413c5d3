#include "model/load/open_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/config/text_tower.h"
#include "model/load/formats_of_tensors.h"
#include "model/weights/tensor_table.h"

namespace lathe {
namespace {

constexpr const char* kDraftFile = "mtp.safetensors";

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

Result<Checkpoint> open_checkpoint(const std::string& directory, ModelConfig& config) {
  auto out = Checkpoint::open(directory, config.drafts ? kDraftFile : "");
  if (out && config.text_tower) {
    if (auto ok = out->rename(text_tensor_name); !ok) return ok.error();
  }
  if (out && !config.renames.empty()) {
    const auto name_of = [&](std::string_view name) { return renamed(config.renames, name); };
    if (auto ok = out->rename(name_of); !ok) return ok.error();
  }
  if (out) add_formats(*out, config);
  if (out && config.tied_embeddings) config.tied_embeddings = !has_own_head(*out, config);
  if (!out || !config.drafts) return out;
  const std::string joins = joins_name(config);
  if (out->find(joins) != nullptr || out->find("model." + joins) != nullptr) return out;
  const std::string stem = joins.substr(0, joins.rfind('.', joins.rfind('.') - 1));
  return Error{ErrorCode::unsupported, "--draft",
               fmt::format("a draft layer: {}.* among the checkpoint's tensors, or {} beside them",
                           stem, kDraftFile),
               "neither in " + directory, "--draft ngram needs no weights"};
}

}  // namespace lathe
