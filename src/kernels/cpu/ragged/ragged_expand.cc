#include "kernels/cpu/ragged/ragged_expand.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/common/dot_targets.h"
#include "kernels/cpu/common/unroll.h"
#include "kernels/cpu/matmul/matmul_bf16.h"
#include "kernels/cpu/tile/tile_types.h"

namespace lathe {
namespace {

// Columns of a pass: a block of scales, and the first-level cache holds their latents.
constexpr std::int64_t kPassCols = 128;
static_assert(kPassCols == kWeightBlock);

std::int64_t head_rows(const AttentionProblem& p) { return p.qk_nope_head + p.v_head; }

// The head's first row of kv_b.
const std::byte* codes_of_head(const AttendArgs& args, std::int32_t head) {
  const AttentionProblem& p = args.problem;
  return args.expansion.kv_b +
         bytes_of(args.expansion.kv_b_dtype, head * head_rows(p) * std::int64_t{p.nope});
}

}  // namespace

std::int64_t ragged_pair_latents(const AttentionProblem& p) {
  return std::int64_t{p.nope} / 2 * std::int64_t{kTile};
}
std::int64_t ragged_pair_weights(const AttentionProblem& p) {
  return head_rows(p) * std::int64_t{p.nope};
}

#ifndef LATHE_BF16_DOT

bool ragged_expands_by_pairs(const AttendArgs&) { return false; }
void ragged_widen_weights(const AttendArgs&, std::int32_t, const RaggedPairs&) {}
void ragged_pair_columns(const AttentionProblem&, const float*, const RaggedPairs&) {}
void ragged_expand(const AttendArgs&, std::int32_t, std::int64_t, std::int64_t, const RaggedPairs&,
                   float*) {
  LATHE_CHECK(false, "not on this CPU");
}

#else

bool ragged_expands_by_pairs(const AttendArgs& args) {
  const Expansion& e = args.expansion;
  const bool weights = e.kv_b_dtype == DType::bf16 || e.kv_b_dtype == DType::e4m3;
  return cpu_has_bf16_dot() && e.kv_b != nullptr && weights && args.problem.nope % 32 == 0 &&
         args.main.pool->layout.kind() == LayoutKind::mla_bf16;
}

}  // namespace lathe

LATHE_TARGET_BEGIN(LATHE_BF16_DOT)
namespace lathe {
namespace {

#define LATHE_INLINE inline __attribute__((always_inline))

constexpr int kPassRows = 6;  // times four vectors of keys
constexpr int kKeyVectors = static_cast<int>(kTile) / 16;

// An e4m3 code shifted into an f16 is its value x 2^-8, subnormals included.
void widen_codes(const std::uint8_t* codes, std::int64_t n, std::uint16_t* to) {
  for (std::int64_t i = 0; i < n; i += 32) {
    const __m512i wide =
        _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i)));
    const __m512i halves =
        _mm512_and_si512(_mm512_slli_epi16(wide, 7), _mm512_set1_epi16(static_cast<short>(0xbf80)));
    const __m512 by = _mm512_set1_ps(256);
    const __m512 low = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(halves)), by);
    const __m512 high = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1)), by);
    _mm512_storeu_si512(to + i, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
  }
}

void pair_columns(const float* columns, std::int64_t pairs, std::uint32_t* to) {
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  for (std::int64_t k = 0; k < pairs; ++k) {
    for (int v = 0; v < kKeyVectors; ++v) {
      const float* from = columns + 2 * k * static_cast<std::int64_t>(kTile) + 16 * v;
      const __m512i a = _mm512_srli_epi32(_mm512_loadu_si512(from), 16);
      const __m512i b = _mm512_and_si512(_mm512_loadu_si512(from + kTile), high);
      _mm512_storeu_si512(to + k * static_cast<std::int64_t>(kTile) + 16 * v,
                          _mm512_or_si512(a, b));
    }
  }
}

struct PassTile {
  const std::uint16_t* weights;  // [kRows, stride]
  std::int64_t stride;
  const std::uint32_t* latents;  // [pairs, kTile]
  std::int64_t pairs;
  float scale;
  bool first;  // the first pass: overwrite
  float* to;   // [kRows, kTile]
};

template <int kRows>
__attribute__((noinline)) void expand_pass(const PassTile& t) {
  __m512 acc[kRows][kKeyVectors];
  LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
    LATHE_UNROLL for (int v = 0; v < kKeyVectors; ++v) acc[r][v] = _mm512_setzero_ps();
  }
  const std::uint32_t* latents = t.latents;
  for (std::int64_t k = 0; k < t.pairs; ++k, latents += kTile) {
    __m512i in[kKeyVectors];
    LATHE_UNROLL for (int v = 0; v < kKeyVectors; ++v) {
      in[v] = _mm512_loadu_si512(latents + 16 * v);
      asm("" : "+v"(in[v]));
    }
    LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
      std::int32_t pair;
      __builtin_memcpy(&pair, t.weights + r * t.stride + 2 * k, sizeof(pair));
      const __m512i w = _mm512_set1_epi32(pair);
      LATHE_UNROLL for (int v = 0; v < kKeyVectors; ++v) {
        acc[r][v] = _mm512_dpbf16_ps(acc[r][v], reinterpret_cast<__m512bh>(w),
                                     reinterpret_cast<__m512bh>(in[v]));
      }
    }
  }
  const __m512 scale = _mm512_set1_ps(t.scale);
  LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
    LATHE_UNROLL for (int v = 0; v < kKeyVectors; ++v) {
      float* to = t.to + r * static_cast<int>(kTile) + 16 * v;
      const __m512 before = t.first ? _mm512_setzero_ps() : _mm512_loadu_ps(to);
      _mm512_storeu_ps(to, _mm512_fmadd_ps(acc[r][v], scale, before));
    }
  }
}

using ExpandPass = void (*)(const PassTile&);
constexpr ExpandPass kExpandPass[kPassRows] = {expand_pass<1>, expand_pass<2>, expand_pass<3>,
                                               expand_pass<4>, expand_pass<5>, expand_pass<6>};

}  // namespace
}  // namespace lathe
LATHE_TARGET_END

namespace lathe {

void ragged_widen_weights(const AttendArgs& args, std::int32_t head, const RaggedPairs& memory) {
  if (args.expansion.kv_b_dtype != DType::e4m3) return;
  widen_codes(reinterpret_cast<const std::uint8_t*>(codes_of_head(args, head)),
              ragged_pair_weights(args.problem), memory.weights);
}

void ragged_pair_columns(const AttentionProblem& p, const float* columns,
                         const RaggedPairs& memory) {
  pair_columns(columns, p.nope / 2, memory.latents);
}

void ragged_expand(const AttendArgs& args, std::int32_t head, std::int64_t first, std::int64_t rows,
                   const RaggedPairs& memory, float* to) {
  const AttentionProblem& p = args.problem;
  const Expansion& e = args.expansion;
  const std::int64_t nope = p.nope, head_row = head * head_rows(p);
  const auto* weights = e.kv_b_dtype == DType::e4m3
                            ? memory.weights
                            : reinterpret_cast<const std::uint16_t*>(codes_of_head(args, head));
  for (std::int64_t k = 0; k < nope; k += kPassCols) {
    const std::int64_t depth = std::min(kPassCols, nope - k);
    for (std::int64_t r = 0; r < rows;) {
      // Rows of a pass share their scale.
      const std::int64_t row = head_row + first + r;
      const std::int64_t count =
          std::min({std::int64_t{kPassRows}, rows - r, kWeightBlock - row % kWeightBlock});
      const float scale =
          e.kv_b_dtype == DType::e4m3 && e.kv_b_scales != nullptr
              ? e.kv_b_scales[row / kWeightBlock * weight_blocks(nope) + k / kWeightBlock]
              : 1.0f;
      kExpandPass[count - 1]({weights + (first + r) * nope + k, nope,
                              memory.latents + k / 2 * std::int64_t{kTile}, depth / 2, scale,
                              k == 0, to + r * std::int64_t{kTile}});
      r += count;
    }
  }
}

#endif  // LATHE_BF16_DOT

}  // namespace lathe
