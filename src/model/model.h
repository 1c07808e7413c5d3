// Model: a checkpoint's weights and the forward pass from tokens to logits. Device-neutral:
// operators (ops/) and attention kernels do all arithmetic.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attn/ranks.h"
#include "base/result.h"
#include "base/rows_view.h"
#include "kernels/backend.h"
#include "kernels/context.h"
#include "model/cache.h"
#include "model/config/config.h"
#include "step/step.h"

namespace lathe {

/// Consecutive rows of a batch that share a phase, and their planned step in a layer group. A batch
/// of prefill chunks and decode rows has a segment for each phase, with its own attention kernel;
/// everything else runs over all rows at once.
struct Segment {
  const StepView* step = nullptr;
  std::int64_t first_row = 0;
};

struct ForwardArgs {
  // Lists and the segments' steps are in the backend's memory (Backend::prepare_list()).
  std::span<const std::int32_t> tokens;  // [rows] in [0, vocab)
  // [groups, n] The same n segments for every layer group, which cover all rows in order; for
  // forward_draft(), the draft layer's group alone.
  std::span<const Segment> segments;
  std::span<const std::int32_t> logit_rows;  // [n] rows to compute logits of, ascending
  MutableRowsView logits;                    // [n, vocab] f32, in the backend's memory
  KvCache* cache = nullptr;
  // [rows, state_width()] or empty, in the backend's activation type and memory: receives the
  // head's input of every row, or all streams of its state; in forward_draft(), [n, state_width()]
  // of logit_rows.
  MutableRowsView hidden;
  // forward_draft(): [rows] indices into `before`, which has the type of `hidden`: the hidden state
  // that each row's token was sampled from.
  std::span<const std::int32_t> before_rows;
  RowsView before;
  // forward_draft() of a model that reuses the first use's selection of keys in later uses:
  // [at least n, shared_choice_width()] slots. Without choice_rows it receives the keys selected
  // for logit_rows. With choice_rows, [rows] indices into it, each row reads the keys there; -1:
  // the first keys of the row's request.
  std::span<std::int32_t> choices;
  std::span<const std::int32_t> choice_rows;
  // Checks for NaN and Inf after every layer, which costs a pass over the rows.
  bool find_non_finite = false;

  std::span<const Segment> segments_of(std::size_t group, std::size_t groups) const {
    const std::size_t n = segments.size() / groups;
    return segments.subspan(group * n, n);
  }
};

/// A row with NaN or Inf, and the layer after which it first appeared (-1: the embedding, `layers`:
/// the logits).
struct NonFinite {
  std::int64_t row = 0;
  std::int32_t layer = 0;
};

struct ForwardResult {
  std::vector<NonFinite> non_finite;  // one per affected row; with find_non_finite only
};

/// The weights' share of a decode step's work, if routers spread rows evenly.
struct StepWeights {
  // Weights that the step reads: the experts that the rows are expected to choose, but not the
  // embedding, norms and biases.
  double bytes = 0;
  // Multiply-adds of one row without its logits; and those with e4m3 weights.
  double products = 0, e4m3_products = 0;
  double logit_products = 0;
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  /// Bytes of all weights.
  virtual std::int64_t weight_bytes() const = 0;
  virtual StepWeights step_weights(std::int64_t rows) const = 0;
  /// The checkpoint's scales for per-tensor caches, [layers]; empty: none.
  virtual std::vector<TensorScales> kv_scales() const { return {}; }
  /// Writes the rows' keys to the cache and the logits of logit_rows. With batch-invariant kernels
  /// a row's bits depend on its request alone, not on the batch or on chunks. Errors: an attention
  /// kernel's, which a proved plan and a planned step rule out.
  virtual Result<ForwardResult> forward(const OpsContext& ops, const ForwardArgs& args) const = 0;
  /// Runs the draft layer alone. The row at position i reads the token at i + 1 and the state
  /// `before` of position i, writes the layer's keys of position i, and its logits predict the
  /// token at i + 2. Errors: forward()'s; a model without a draft layer.
  virtual Result<void> forward_draft(const OpsContext& ops, const ForwardArgs& args) const;
};

struct LoadOptions {
  bool drafts = false;             // with the draft layer: add_draft_layer()
  ConfigOverrides overrides = {};  // of the directory's config.json
  bool dummy = false;              // random weights, seeded, from the configuration alone
  std::uint64_t seed = 0;          // for dummy weights
  // Prepares the weights for its kernels; null: they stay on the host unchanged.
  Backend* backend = nullptr;
  bool expansion = true;  // some route is of kind `ragged`, which reads kv_b in f32
  // Loads one rank's share of the model. Model::config() then has the rank's attention problems
  // (rank_config()).
  Parallel parallel;
  std::int32_t rank = 0;
  ThreadPool* threads = nullptr;
  // Called with bytes done and total, ascending, from any thread, one call at a time; may be empty.
  std::function<void(std::int64_t, std::int64_t)> on_progress;
};

/// Loads the checkpoint in `directory` (config.json, *.safetensors). Errors: the configuration's;
/// one list of missing, unexpected and misshapen tensors, up to 16 of each; e4m3 weights with NaN
/// codes; files that cannot be read.
Result<std::unique_ptr<Model>> load_model(const std::string& directory, const LoadOptions& options);

/// Makes a model of random weights from a configuration.
Result<std::unique_ptr<Model>> make_dummy_model(const ModelConfig& config,
                                                const LoadOptions& options);

}  // namespace lathe
