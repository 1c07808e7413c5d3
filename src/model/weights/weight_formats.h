// The formats of quantised matrices: one row each. A matrix's own tensors say which format it has,
// so a checkpoint may mix them.
#pragma once

#include <span>
#include <string_view>

namespace lathe {

enum class WeightPacking {
  fp8,      // codes [out, in] F8_E4M3; scales by block, row or tensor
  u4_rows,  // codes [out, in / 8] I32: nibble i of a word is column 8 j + i
  u4_gptq,  // codes [in / 8, out] I32: nibble i of a word is row 8 j + i
  u4_awq,   // codes [in, out / 8] I32: column 8 j + i is nibble kAwqOrder[i] of word j
  e2m1_nv,  // codes [out, in / 2] U8, the low nibble first; scales [out, in / 16] F8_E4M3
  e2m1_mx,  // codes [out, in / 2] U8, the low nibble first; scales [out, in / 32] U8 exponents
};
inline constexpr int kAwqOrder[8] = {0, 4, 1, 5, 2, 6, 3, 7};

/// A row of the table. Tensors are named by a suffix to the module's name
/// ("model.layers.0.mlp.up_proj"); an empty suffix: the format has none. Formulas, with row r and
/// column c of the matrix [out, in], and groups of g columns:
///
///   fp8      code[r, c] * scale of its block, row or tensor
///   u4       (code[r, c] - zero[r, c / g]) * scale[r, c / g], zero = 8 without zeros; with an
///            order, order[c] is the group of column c. g is in / (columns of the scales).
///   e2m1_nv  code[r, c] * scale[r, c / 16] * factor, or / factor
///   e2m1_mx  code[r, c] * 2^(scale[r, c / 32] - 127)
///
/// Sources: compressed-tensors, compressors/pack_quantized and nvfp4; vLLM, awq_triton.py and
/// gptq.py; TensorRT Model Optimizer, export/quant_utils.py; Quark's export.
struct WeightFormat {
  std::string_view name;
  WeightPacking packing;
  std::string_view codes;
  std::string_view scales;
  std::string_view zeros = {};
  std::string_view order = {};
  std::string_view factor = {};
  bool divides = false;  // by the factor
};

/// Rows are tried in order: the first with tensors of its names, dtypes and shapes counts.
std::span<const WeightFormat> weight_formats();

/// Suffixes of tensors that formats have next to their codes and that GEMMs with weights alone do
/// not read: scales of activations, and the shape before packing.
std::span<const std::string_view> unread_suffixes();

}  // namespace lathe
