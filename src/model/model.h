// Model: a checkpoint's weights and the forward pass from tokens to logits. Device-neutral: every
// number is made by an operator (ops/) or an attention kernel.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attn/step.h"
#include "base/result.h"
#include "base/rows_view.h"
#include "kernels/backend.h"
#include "kernels/context.h"
#include "model/cache.h"
#include "model/config.h"

namespace lathe {

/// Neighbouring rows of a batch that share a phase, and the step planned for them in a layer group.
/// A batch that mixes prefill chunks with decode rows has a segment of each, so each runs its own
/// side's kernel; everything between attention calls runs over all rows at once.
struct Segment {
  const StepView* step = nullptr;
  std::int64_t first_row = 0;
};

struct ForwardArgs {
  // Lists lie in the backend's memory (Backend::prepare_list()), segments' steps likewise.
  std::span<const std::int32_t> tokens;  // [rows] in [0, vocab)
  // [groups, n] of every layer group the same n segments, which cover all rows in order; of
  // forward_draft(), of the draft layer's group alone.
  std::span<const Segment> segments;
  std::span<const std::int32_t> logit_rows;  // [n] rows whose logits are wanted, ascending
  MutableRowsView logits;                    // [n, vocab] f32, in the backend's memory
  KvCache* cache = nullptr;
  // The backend's activations, in its memory, or empty. [rows, state_width()] What the head reads
  // of every row, or all streams of its state where it has several; of forward_draft(), [n,
  // state_width()] of logit_rows.
  MutableRowsView hidden;
  // forward_draft(): [rows] likewise a list, the row of `before`, which has the type of `hidden`,
  // that is the hidden state from which each row's token came.
  std::span<const std::int32_t> before_rows;
  RowsView before;
  // Looks for NaN and Inf after every layer, which costs a pass over the rows.
  bool find_non_finite = false;

  std::span<const Segment> segments_of(std::size_t group, std::size_t groups) const {
    const std::size_t n = segments.size() / groups;
    return segments.subspan(group * n, n);
  }
};

/// A row in which NaN or Inf appeared first, and after which layer (-1: the embedding, `layers`:
/// the logits).
struct NonFinite {
  std::int64_t row = 0;
  std::int32_t layer = 0;
};

struct ForwardResult {
  std::vector<NonFinite> non_finite;  // one per row that has any; with find_non_finite only
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  /// Bytes of all weights.
  virtual std::int64_t weight_bytes() const = 0;
  /// Bytes of weights that the forward pass of one decode row reads: only the experts that it
  /// takes, and nothing of the embedding.
  virtual std::int64_t decode_bytes() const = 0;
  /// Scales that the checkpoint gives for per-tensor caches, [layers]; empty: none.
  virtual std::vector<TensorScales> kv_scales() const { return {}; }
  /// Writes the rows' keys to the cache and the logits of logit_rows. A row's bits depend on its
  /// request alone (the plan's kernels being batch-invariant), neither on the batch nor on chunks.
  /// Errors: an attention kernel's, which a proved plan and a planned step rule out.
  virtual Result<ForwardResult> forward(const OpsContext& ops, const ForwardArgs& args) const = 0;
  /// The draft layer alone: the row at position i takes the token at i + 1 and `before` of the
  /// position i, writes the layer's keys of position i, and its logits guess the token at i + 2.
  /// Errors: forward()'s; a model without a draft layer.
  virtual Result<void> forward_draft(const OpsContext& ops, const ForwardArgs& args) const;
};

struct LoadOptions {
  bool drafts = false;     // with the draft layer: add_draft_layer()
  bool dummy = false;      // random weights, seeded, from the configuration alone
  std::uint64_t seed = 0;  // of dummy weights
  // The backend that prepares the weights for its kernels; null: they stay on the host as they are.
  Backend* backend = nullptr;
  bool expansion = true;  // some route has kind `ragged`, which reads kv_b in f32
  ThreadPool* threads = nullptr;
  // Bytes done and in all; may be empty. Called from any thread, one call at a time, ascending.
  std::function<void(std::int64_t, std::int64_t)> on_progress;
};

/// Loads the checkpoint in `directory` (config.json, *.safetensors). Errors: the configuration's;
/// one that lists missing, unexpected and misshapen tensors together, the first 16 of each by name;
/// e4m3 weights with NaN codes; files that cannot be read.
Result<std::unique_ptr<Model>> load_model(const std::string& directory, const LoadOptions& options);

/// The same for a configuration and random weights.
Result<std::unique_ptr<Model>> make_dummy_model(const ModelConfig& config,
                                                const LoadOptions& options);

}  // namespace lathe
