// Limits of operators that a model's memory plan (model/memory/) counts with: how much they hold in
// memory at once, and the sizes that the GPU's operators do without a CPU fallback.
#pragma once

#include <cstdint>

namespace lathe {

/// Expert inputs (one per row and chosen expert) that go through a layer's experts in one pass on
/// the CPU. It bounds the memory of a long prompt; the price is that an expert's weights are read
/// twice where a pass ends inside its rows.
inline constexpr std::int64_t kCpuExpertInputs = 1024;

namespace cuda {

/// Rows that go through a layer's experts in one pass where the experts have no grouped GEMM.
inline constexpr std::int64_t kPlainExpertRows = 1024;

/// Most bytes of a pass through the experts with grouped GEMMs; a pass has at least one row. A row
/// needs two bf16 rows for each chosen expert, one as wide as the layer and one as wide as the
/// expert, and codes of the latter where activations are quantized. More rows go in several passes,
/// and each pass reads all weights: 8192 rows of DeepSeek V3 need 1.3 GB, one pass.
inline constexpr std::int64_t kExpertPassBytes = std::int64_t{1536} << 20;

/// Bytes of codes and scales that a norm leaves for the GEMMs after it: 132 rows of 8192 columns.
inline constexpr std::int64_t kNormCodeRows = 132, kNormCodeColumns = 8192;
inline constexpr std::int64_t kNormCodeBytes =
    kNormCodeRows * kNormCodeColumns + kNormCodeRows * (kNormCodeColumns / 128) * 4;

/// Most tokens of a dense GEMM in the launch of a grouped one: of shared experts next to routed
/// ones.
inline constexpr std::int64_t kDenseTokens = 64;

/// Most parts in which a GEMM sums K.
inline constexpr int kMostSplit = 8;

/// Bytes of packed weights that are widened to bf16 at once, where no kernel reads them as they
/// are. A tile has at least 128 rows, and a group of experts at least one expert.
inline constexpr std::int64_t kWidenedBytes = std::int64_t{64} << 20;

/// Rows sampled at once if rows need their probabilities in memory, as f64: 1.2 MB a row at a
/// vocabulary of 150,000.
inline constexpr std::int64_t kSampledRows = 64;

/// Columns of the weight that a block of the narrow GEMM multiplies. Each slice of them leaves one
/// f32 partial sum per output.
inline constexpr int kNarrowSlice = 128;

/// Residual streams of hyper-connections: the kernels are written for this number alone.
inline constexpr int kHyperStreams = 4;
/// Floats that they read at a time: a stream's length and all strides are multiples of it.
inline constexpr int kHyperWord = 4;

/// Widest heads of keys and of values in delta-rule layers, and the taps of their convolution.
inline constexpr std::int32_t kDeltaMostHead = 128;
inline constexpr std::int32_t kDeltaConvTaps = 4;

/// Widest index key that the Hadamard kernel turns.
inline constexpr std::int32_t kHadamardMostDim = 256;

}  // namespace cuda
}  // namespace lathe
