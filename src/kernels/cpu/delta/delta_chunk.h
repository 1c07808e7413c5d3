// The delta rule over consecutive rows of one request and one value head (kernels/delta_rule.h).
#pragma once

#include <cstdint>
#include <span>

#include "attn/delta_rule.h"

namespace lathe {

/// Rows of f32; `at` is the first element of the first row that is used.
template <class T>
struct DeltaRows {
  T* at = nullptr;
  std::int64_t stride = 0;  // elements

  T* row(std::int64_t t) const { return at + t * stride; }
};

struct DeltaChunk {
  const DeltaRuleProblem* problem = nullptr;
  std::int64_t rows = 0;  // up to kDeltaCpuRows
  // [taps - 1 + rows] rows of x: the inputs before the chunk, then the chunk's own.
  const float* const* x = nullptr;
  std::int64_t q = 0, k = 0, v = 0;   // first columns of the head in x
  const float* conv = nullptr;        // [channels, taps]
  DeltaRows<const float> decay;       // the head's 1 or dk columns
  DeltaRows<const float> beta, gate;  // the head's column; its dv columns
  float a_log = 0;
  const float* dt_bias = nullptr;  // of the head's columns of decay
  const float* norm = nullptr;     // [dv]
  float norm_eps = 0;
  const float* before = nullptr;  // [dk, dv] the state before the first row
  float* const* after = nullptr;  // [rows] where each row leaves the state; entries may be equal
                                  // to each other and to `before`
  bool ends = false;              // no later chunk of this step reads the last state
  const float* ahead = nullptr;   // the state that the thread reads next, to prefetch; null: none
  float* inputs = nullptr;        // of a single row: where the state after it has the last inputs
                                  // of the convolution, [taps - 1, channels]; null: not written
  DeltaRows<float> out;           // the head's dv columns
  float* memory = nullptr;        // delta_chunk_floats()
};

inline constexpr std::int64_t kDeltaCpuRows = 64;

/// Floats of DeltaChunk::memory for `rows` rows.
constexpr std::int64_t delta_chunk_floats(const DeltaRuleProblem& p, std::int64_t rows) {
  return rows * (4 * std::int64_t{p.dk} + 2 * std::int64_t{p.dv} + 1);
}

void cpu_delta_chunk(const DeltaChunk& chunk);

/// The same for several heads of a request, a row each, that the thread computes one after another.
/// `ahead` is the head's own state. Neighbouring heads have different memory.
void cpu_delta_heads(std::span<const DeltaChunk> heads);

}  // namespace lathe
