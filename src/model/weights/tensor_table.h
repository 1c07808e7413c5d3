// The table of a checkpoint's tensors: name, shape and destination. Loading, shape checks and dummy
// weights use this one list.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attn/ranks.h"
#include "kernels/operators.h"
#include "model/config/config.h"
#include "model/weights/weights.h"

namespace lathe {

/// What a rank reads of a tensor: ranges of the whole one. A tensor of one axis has rows, and one
/// column; a whole stack has matrices, and rows and columns of each, as WeightStack counts them.
/// Empty: this rank has nothing of it.
struct TensorPart {
  Range matrices{0, 1};
  Range rows{0, 1};
  Range cols{0, 1};

  std::int64_t elements() const { return matrices.count * rows.count * cols.count; }
  bool empty() const { return elements() == 0; }
  bool operator==(const TensorPart&) const = default;
};

struct TensorSpec {
  std::string name;                 // "model.layers.0.mlp.gate_proj.weight"
  std::vector<std::int64_t> shape;  // [rows, cols], or [elements] of a vector; of the whole tensor
  // The destination's sizes are the part's. Blocks of scales are never cut: e4m3 parts begin at
  // multiples of kWeightBlock, e2m1 columns at multiples of kMxBlock.
  TensorPart part;
  // Exactly one of the four is set. Matrices are f32, bf16 or f16 as stored, vectors are widened to
  // f32, ids are i32 or i64.
  WeightView* matrix = nullptr;
  WeightStack* stack = nullptr;
  Vector* vector = nullptr;
  std::span<const std::int32_t>* ids = nullptr;
  std::int32_t id_end = 0;  // ids are below it
  std::int64_t place = 0;   // index in the stack; -1 if the part is empty
  const WeightStack* like =
      nullptr;  // stacks: has the dtype that this one must have; may be itself
  // The whole stack is one tensor [count, cols, rows], which is transposed on loading; or, with
  // mxfp4, <name>_blocks u8 [count, rows, cols / 32, 16] and <name>_scales u8 [count, rows, cols /
  // 32]. `shape` is the former.
  bool whole_stack = false;
  // With whole_stack: the first half of the tensor's columns are the stack's even rows, the others
  // its odd ones.
  bool halves = false;
  // The stack's matrices are concatenated by rows: [count * rows, cols].
  bool joined = false;
  // The head: may be in any of weight_formats(), but is a float in dummy weights.
  bool packable = false;
  // The tensor that has the matrices of all experts in checkpoints that have no `name`: [matrices,
  // rows, cols]. This one begins at row `first` of its matrix number `matrix`.
  struct OfStack {
    std::string name;  // "model.layers.0.mlp.experts.gate_up_proj"
    std::int64_t matrices = 0, rows = 0;
    std::int64_t matrix = 0, first = 0;
  };
  std::optional<OfStack> of_stack;
  bool ones = false;  // dummy weights: 1 times `factor`, not 0
  float offset = 0;   // vectors: added to every element
  float factor = 1;   // vectors: multiplies every sum
  // A linear layer's weight, which may be in any of weight_formats(), whatever the config says; of
  // DeepSeek V4, in e4m3 with scales in scale_name().
  bool linear = false;
  // Attention splits it by heads and transposes parts, so in most formats it is widened.
  bool split = false;
  // May be e2m1 with scales per kMxBlock in scale_name(), whatever the config says.
  bool may_be_mx = false;
  bool f32 = false;  // dummy weights: f32, as in checkpoints
  // Its products choose experts or keys, so NaN in it would change answers and not reach them.
  bool compared = false;

  std::int64_t elements() const {
    std::int64_t n = 1;
    for (const std::int64_t d : shape) n *= d;
    return n;
  }
  /// joined: w's scales are whole blocks for each matrix.
  void set(const WeightView& w) const {
    if (matrix != nullptr) *matrix = w;
    if (stack == nullptr) return;
    if (place == 0) stack->dtype = w.dtype;
    if (!joined) return stack->set(place, w);
    for (std::int64_t i = 0; i < stack->count(); ++i) {
      stack->set(i, rows_of(w, i * stack->rows, stack->rows));
    }
  }
};

/// Name of the scales of DeepSeek V4's <stem>.weight: <stem>.scale.
std::string scale_name(const TensorSpec& spec);

/// In layer order, for a rank with `share` of the model: every rank's table has the same tensors in
/// the same order, with parts of its own. Sizes the stacks of `into`, which outlives the table.
/// Biases that are added to a sum over ranks are one rank's: the output projection's rank 0's,
/// those of experts' down projections the rank's with the first block of the width.
std::vector<TensorSpec> tensor_table(const ModelConfig& config, ModelWeights& into,
                                     const Share& share);
/// The whole model.
std::vector<TensorSpec> tensor_table(const ModelConfig& config, ModelWeights& into);

/// Whether weights in e2m1 have NVFP4's scales, not MXFP4's.
bool has_nvfp4(const ModelConfig& config);
/// Whether the part of a dummy matrix in int4 cuts groups, so that it is in f32, as matrix_part()
/// widens a checkpoint's.
bool dummy_is_widened(const ModelConfig& config, const TensorSpec& spec);
/// Dtype of the part of a dummy matrix: as stored according to config.json, f32 if it is widened,
/// bf16 if the matrix's columns are not whole groups or the format is not known.
DType dummy_dtype(const ModelConfig& config, const TensorSpec& spec);
/// Bytes of the part, scales of blocks included.
std::int64_t dummy_bytes(const ModelConfig& config, const TensorSpec& spec);

/// Whether a checkpoint may have this tensor although nothing reads it: draft layers past the last
/// one, the head of tied embeddings, inverse frequencies in older files.
bool ignored_tensor(const ModelConfig& config, std::string_view name);

/// Maps names of DeepSeek V4 tensors to the published ones in the table: removes a leading "model."
/// and translates transformers' module names. Other names are unchanged.
std::string published_v4_name(std::string_view name);

/// The name in the table of a tensor of a checkpoint (ModelConfig::renames).
std::string renamed(std::span<const Renamed> renames, std::string_view name);

/// N of "model.layers.N.*".
std::optional<std::int32_t> layer_of(std::string_view name);

}  // namespace lathe
