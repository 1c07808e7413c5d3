// Loads a checkpoint's weights by the tensor table.
#include "model/config/split_sizes.h"
#include "model/layers/decoder.h"
#include "model/layers/draft_layer.h"
#include "model/load/check_tensors.h"
#include "model/load/dummy_weights.h"
#include "model/load/open_checkpoint.h"
#include "model/load/prepare_weights.h"
#include "model/load/tensor_loader.h"
#include "model/model.h"
#include "model/weights/tensor_table.h"
#include "model/weights/weights.h"

namespace lathe {
namespace {

// Sizes the weights for a rank. Returns the table of its tensors.
std::vector<TensorSpec> begin(const ModelConfig& config, const LoadOptions& options,
                              ModelWeights& weights) {
  weights.share = share_of(split_sizes(config), options.parallel, options.rank);
  std::vector<TensorSpec> table = tensor_table(config, weights, weights.share);
  for (LayerWeights& layer : weights.layers) {
    layer.moe.first_expert = weights.share.experts.first;
  }
  return table;
}

Result<std::unique_ptr<Model>> finish(const ModelConfig& whole, const LoadOptions& options,
                                      const std::vector<TensorSpec>& table,
                                      const FileSource* source,
                                      std::unique_ptr<ModelWeights> weights) {
  const ModelConfig config = rank_config(whole, options.parallel.tp);
  split_kv_b(config, options.expansion, options.threads, *weights);
  join_convolutions(*weights);
  if (options.backend != nullptr) {
    if (auto ok = prepare_weights(options, source, table, *weights); !ok) return ok.error();
  }
  if (config.tied_embeddings) weights->head = weights->embedding;
  if (options.backend != nullptr && options.backend->memory().kind == MemoryKind::device) {
    // Kernels read the backend's copies.
    weights->owned.clear();
    weights->checkpoint.reset();
  }
  return make_decoder(config, std::move(weights));
}

}  // namespace

Result<void> check_tensors(const std::string& directory, const ModelConfig& config,
                           const Checkpoint& checkpoint) {
  ModelWeights nowhere(config);
  const std::vector<TensorSpec> table = tensor_table(config, nowhere);
  return TensorLoader(config, checkpoint, nowhere, nullptr, DType::f32, nullptr,
                      TensorLoader::Reads::headers)
      .run(directory, table);
}

Result<void> check_scales(const std::string& directory, const ModelConfig& config,
                          const Checkpoint& checkpoint, ThreadPool* threads) {
  ModelWeights nowhere(config);
  const std::vector<TensorSpec> table = tensor_table(config, nowhere);
  return TensorLoader(config, checkpoint, nowhere, threads, DType::f32, nullptr,
                      TensorLoader::Reads::scales)
      .run(directory, table);
}

Result<std::unique_ptr<Model>> make_dummy_model(const ModelConfig& config,
                                                const LoadOptions& options) {
  auto weights = std::make_unique<ModelWeights>(config);
  const std::vector<TensorSpec> table = begin(config, options, *weights);
  if (auto ok = fill_dummy(config, options, table, *weights); !ok) return ok.error();
  return finish(config, options, table, nullptr, std::move(weights));
}

Result<std::unique_ptr<Model>> load_model(const std::string& directory,
                                          const LoadOptions& options) {
  auto config = load_model_config(directory, options.overrides);
  if (config && options.drafts) config = add_draft_layer(std::move(*config));
  if (!config) return config.error();
  if (options.dummy) return make_dummy_model(*config, options);
  auto checkpoint = open_checkpoint(directory, *config);
  if (!checkpoint) return checkpoint.error();
  auto weights = std::make_unique<ModelWeights>(*config);
  weights->checkpoint = std::move(*checkpoint);
  const Checkpoint& files = *weights->checkpoint;
  const std::vector<TensorSpec> table = begin(*config, options, *weights);
  const DType wide = options.backend == nullptr ? DType::f32 : options.backend->activations();
  std::optional<FileSource> source;
  if (options.backend != nullptr && options.backend->memory().kind == MemoryKind::device) {
    source.emplace(files);
  }
  FileSource* const copies = source ? &*source : nullptr;
  TensorLoader loader(*config, files, *weights, options.threads, wide, copies);
  // A file that is too short or cannot be read is an error here; later it would end the process.
  if (options.threads != nullptr) {
    const Result<void> read = source ? files.prefault(*options.threads, loader.of_source(table))
                                     : files.prefault(*options.threads, options.on_progress);
    if (!read) return read.error();
  }
  if (auto ok = loader.run(directory, table); !ok) return ok.error();
  return finish(*config, options, table, copies, std::move(weights));
}

}  // namespace lathe
