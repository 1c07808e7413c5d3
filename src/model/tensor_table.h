// The tensors of a checkpoint, declared: name, shape and where each goes. Loading, shape checks and
// dummy weights follow from this one list.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/operators.h"
#include "model/config.h"
#include "model/weights.h"

namespace lathe {

struct TensorSpec {
  std::string name;                 // "model.layers.0.mlp.gate_proj.weight"
  std::vector<std::int64_t> shape;  // [rows, cols], or of a vector's elements
  // Exactly one of the four: f32, bf16 or f16 as stored, (vectors) widened to f32, or (ids) of i32
  // or i64.
  WeightView* matrix = nullptr;
  WeightStack* stack = nullptr;
  Vector* vector = nullptr;
  std::span<const std::int32_t>* ids = nullptr;
  std::int32_t id_end = 0;            // ids: all are below
  std::int64_t place = 0;             // in the stack
  const WeightStack* like = nullptr;  // stacks: one that has the same dtype, perhaps itself
  WeightUse use = WeightUse::product;
  // The whole stack in one tensor: [count, cols, rows], which is transposed on loading; or, where
  // the config says mxfp4, <name>_blocks u8 [count, rows, cols / 32, 16] and <name>_scales u8
  // [count, rows, cols / 32]. `shape` is the first.
  bool whole_stack = false;
  // The stack's matrices one below the other: [count * rows, cols].
  bool joined = false;
  float offset = 0;  // vectors: added to every element
  // May be e4m3 where the config says block_fp8, with scales beside it: scale_name().
  bool may_be_fp8 = false;
  // May be e2m1, likewise with scales of blocks of kMxBlock, without regard to the config.
  bool may_be_mx = false;
  bool f32 = false;  // dummy weights: f32, as the checkpoint has it

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

/// The tensor with a matrix's scales: <name>_scale_inv; <stem>.scale of DeepSeek V4's
/// <stem>.weight.
std::string scale_name(const ModelConfig& config, const TensorSpec& spec);

/// In layer order. `into` outlives the table.
std::vector<TensorSpec> tensor_table(const ModelConfig& config, ModelWeights& into);

/// For dummy weights: matrices as config.json says that they are stored, bf16 where it does not.
DType dummy_dtype(const ModelConfig& config, const TensorSpec& spec);
std::int64_t dummy_bytes(const ModelConfig& config, const TensorSpec& spec);

/// Tensors that a checkpoint may hold although nothing reads them: those of draft layers past the
/// last one, the head of tied embeddings, inverse frequencies that older files carry.
bool ignored_tensor(const ModelConfig& config, std::string_view name);

/// The published name of a DeepSeek V4 tensor, which the table has, from any that it has in
/// checkpoints: with "model." before it, and as transformers names modules. Other names stay as
/// they are.
std::string published_v4_name(std::string_view name);

/// N of "model.layers.N.*".
std::optional<std::int32_t> layer_of(std::string_view name);

}  // namespace lathe
