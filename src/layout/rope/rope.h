// Rotary position embedding (RoPE): tables of cosines and sines, and applying them.
//
// A pair (a, b) at position p with frequency f becomes (a cos - b sin, a sin + b cos) with the
// angle p * f. The inverse rotates back by the same angle. Every product and sum is rounded to f32.
// A NaN result is 0x7fc00000, so its bits do not depend on the order of operands.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/enum.h"
#include "base/result.h"
#include "base/rows_view.h"
#include "layout/codec/codec.h"
#include "layout/pages/index_units.h"

namespace lathe {

/// Which elements are pair i. interleaved: 2i and 2i + 1. split_half: i and i + dim / 2, called
/// NeoX style elsewhere.
#define LATHE_ROPE_PAIRINGS(X) X(interleaved) X(split_half)
LATHE_ENUM(RopePairing, LATHE_ROPE_PAIRINGS)

#define LATHE_ROPE_DIRECTIONS(X) X(forward) X(inverse)
LATHE_ENUM(RopeDirection, LATHE_ROPE_DIRECTIONS)

/// YaRN (arXiv 2309.00071) in DeepSeek's form. A frequency with more than beta_fast turns within
/// the original context stays; one with fewer than beta_slow turns is divided by factor; between
/// them the two are blended. cos and sin are multiplied by attention_factor, or else by m(mscale) /
/// m(mscale_all_dim), with m(x) = 0.1 x ln(factor) + 1.
struct YarnConfig {
  double factor = 1;
  double original_context = 4096;  // tokens
  double beta_fast = 32;           // turns
  double beta_slow = 1;
  double mscale = 1;
  double mscale_all_dim = 1;
  bool truncate = true;  // round the ends of the blended range to whole pairs
  std::optional<double> attention_factor = std::nullopt;

  bool operator==(const YarnConfig&) const = default;
};

/// Llama 3.1's scaling (rope_type "llama3"). The wavelength of a pair is 2 pi / f. If it is longer
/// than original_context / low_freq_factor, f is divided by factor; if it is shorter than
/// original_context / high_freq_factor, f stays. Between them f becomes (1 - s) f / factor + s f,
/// with s = (original_context / wavelength - low_freq_factor) / (high_freq_factor -
/// low_freq_factor). Source: https://github.com/meta-llama/llama-models (models/llama3/model.py).
struct Llama3RopeConfig {
  double factor = 8;
  double original_context = 8192;  // tokens
  double low_freq_factor = 1;
  double high_freq_factor = 4;

  bool operator==(const Llama3RopeConfig&) const = default;
};

/// LongRoPE (arXiv 2402.13753): a pair's frequency is divided by its own factor, of one list in
/// tables of up to original_context positions and of the other in longer ones. cos and sin are
/// multiplied by attention_factor.
struct LongRopeConfig {
  std::vector<double> short_factors;  // [dim / 2]
  std::vector<double> long_factors;   // [dim / 2]
  double original_context = 4096;     // tokens
  double attention_factor = 1;

  bool operator==(const LongRopeConfig&) const = default;
};

/// Dynamic NTK scaling. Tables of more than original_context positions have theta multiplied by
/// (factor^2 - factor + 1)^(dim / (dim - 2)), which is transformers' value at original_context *
/// factor positions and vLLM's for all; shorter ones are not scaled.
struct DynamicRopeConfig {
  double factor = 1;
  double original_context = 4096;  // tokens

  bool operator==(const DynamicRopeConfig&) const = default;
};

/// Queries grow with their position p (Llama 4, Ministral 3): cos and sin are multiplied by
/// 1 + beta ln(1 + floor((p + shift) / context)).
struct RopeGrowth {
  double beta = 0;
  double context = 4096;  // tokens
  double shift = 0;       // tokens: 1 in Llama 4

  bool operator==(const RopeGrowth&) const = default;
};

struct RopeConfig {
  std::int32_t dim = 64;  // rotary width, even
  double theta = 10000;
  RopePairing pairing = RopePairing::interleaved;
  // Pairs from this one on have frequency 0 (Gemma 4's "proportional" RoPE); 0: nothing rotates.
  std::optional<std::int32_t> pairs = std::nullopt;
  // At most one of the five scalings.
  std::optional<YarnConfig> yarn = std::nullopt;
  std::optional<Llama3RopeConfig> llama3 = std::nullopt;
  double linear_factor = 1;  // divides every frequency (rope_type "linear")
  std::optional<LongRopeConfig> longrope = std::nullopt;
  std::optional<DynamicRopeConfig> dynamic = std::nullopt;
  std::optional<RopeGrowth> growth = std::nullopt;  // of a table for queries alone
  // Rounds frequencies and angles to f32, as the code that trained the model does. At position 2^20
  // this changes the angle of fast pairs by up to 0.05 rad.
  bool f32_angles = false;

  bool operator==(const RopeConfig&) const = default;
};

/// The pairs between which YaRN blends: pairs <= low keep their frequency, pairs >= high are
/// divided by the factor. low = floor(pair with beta_fast turns), high = ceil(pair with beta_slow
/// turns), both within [0, dim - 1]. Without truncate they are not rounded.
struct YarnRange {
  double low = 0;
  double high = 0;
};
YarnRange yarn_range(std::int32_t dim, double theta, const YarnConfig& yarn);

/// The factor of cos and sin, without growth; 1 without YaRN and LongRoPE.
double rope_magnitude(const RopeConfig& config);

/// Whether frequencies are those beyond the original context (LongRoPE, dynamic) in a table of
/// `positions`. Rows that are rotated by tables that differ in this must not meet.
bool rope_is_long(const RopeConfig& config, std::int64_t positions);

/// Frequencies of the pairs, [dim / 2], in radians per position: theta^(-2i / dim) with the
/// config's scaling for a table of `positions`. With f32_angles every operation is rounded to f32.
std::vector<double> rope_frequencies(const RopeConfig& config, std::int64_t positions = 0);

/// f32 [positions, dim]: for each position dim / 2 cosines, then dim / 2 sines. Computed in double
/// and rounded once. With f32_angles the angle is f32(position) * f32(frequency). Rows are computed
/// when they are first used, a block of positions at a time: most contexts stay far below the
/// longest one, and 3 million positions of 128 floats need 1.6 GB and 16 s. Threads may share a
/// table; copies have the same rows.
class RopeTable {
 public:
  /// Errors: an odd or non-positive dim, theta <= 1, a negative count, a scaling's values out of
  /// range, more than one scaling.
  static Result<RopeTable> make(const RopeConfig& config, std::int64_t positions);

  const RopeConfig& config() const { return config_; }
  /// A number that no other table has. A device that keeps a copy of the table recognises it by
  /// this.
  std::uint64_t id() const { return id_; }
  std::int32_t dim() const { return config_.dim; }
  std::int64_t positions() const { return positions_; }
  bool holds(LocalPos p) const { return p.value >= 0 && p.value < positions_; }
  /// All rows, computed.
  std::span<const float> data() const;
  /// The table's first row. Those of `positions` are computed; -1 has none. Precondition: the
  /// others are held.
  const float* rows(std::span<const LocalPos> positions) const;
  /// Precondition: holds(p).
  const float* cos(LocalPos p) const {
    return rows(std::span(&p, 1)) + std::int64_t{p.value} * dim();
  }
  const float* sin(LocalPos p) const { return cos(p) + dim() / 2; }

 private:
  RopeTable(const RopeConfig& config, std::int64_t positions);
  RopeConfig config_;
  std::uint64_t id_ = 0;
  std::int64_t positions_ = 0;
  struct Rows;
  std::shared_ptr<Rows> rows_;
};

/// Rotates x ([table.dim()], f32) in place for position p. Precondition: table.holds(p).
void rotate_row(const RopeTable& table, LocalPos p, RopeDirection direction, float* x);

/// Rotates in place, in each head of each row t, the table.dim() elements from `first` on, for
/// positions[t]. rows: [T, heads * width] f32, or bf16 (rounded to nearest even after the
/// rotation); positions: [T], -1 leaves the row unchanged. V4 applies the inverse to its attention
/// output. Errors: a dtype other than bf16 and f32; counts that differ; a rotary part outside the
/// head; a width, first or dim that is not a multiple of 16; a position beyond the table.
Result<void> apply_rope(const RopeTable& table, std::span<const LocalPos> positions,
                        const MutableRowsView& rows, std::int64_t heads, std::int64_t first,
                        RopeDirection direction, CodecPath path = CodecPath::fast);

/// Errors: a position that is neither -1 nor in the table. The field is "<field>[i]".
Result<void> check_positions(const char* field, std::span<const LocalPos> positions,
                             const RopeTable& table);

}  // namespace lathe
