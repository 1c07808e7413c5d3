// Rotary position embedding: tables of cosines and sines, and their application.
//
// A pair (a, b) at position p with frequency f becomes (a cos - b sin, a sin + b cos) of the angle
// p * f; the inverse rotates back (conjugate). Products and sums are f32, each rounded once; a
// result that is NaN is 0x7fc00000, so that bits do not depend on the operands' order.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/enum.h"
#include "base/result.h"
#include "base/rows_view.h"
#include "layout/codec/codec.h"
#include "layout/pages/index_units.h"

namespace lathe {

/// Which elements of the rotary part form pair i: (2i, 2i + 1), or (i, i + dim / 2), which other
/// projects call NeoX style.
#define LATHE_ROPE_PAIRINGS(X) X(interleaved) X(split_half)
LATHE_ENUM(RopePairing, LATHE_ROPE_PAIRINGS)

#define LATHE_ROPE_DIRECTIONS(X) X(forward) X(inverse)
LATHE_ENUM(RopeDirection, LATHE_ROPE_DIRECTIONS)

/// YaRN (arXiv 2309.00071) in DeepSeek's form. Frequencies that turn more than beta_fast times
/// within the original context stay, those below beta_slow turns are divided by factor, between
/// them the two are blended; cos and sin are multiplied by m(mscale) / m(mscale_all_dim), where
/// m(x) = 0.1 x ln(factor) + 1.
struct YarnConfig {
  double factor = 1;
  double original_context = 4096;  // tokens
  double beta_fast = 32;           // turns
  double beta_slow = 1;
  double mscale = 1;
  double mscale_all_dim = 1;
  bool truncate = true;  // round the range of pairs that are blended to whole pairs

  bool operator==(const YarnConfig&) const = default;
};

/// Llama 3.1's scaling (rope_type "llama3"). A pair whose wavelength 2 pi / f is longer than
/// original_context / low_freq_factor is divided by factor, one shorter than original_context /
/// high_freq_factor stays; between them f becomes (1 - s) f / factor + s f, where s =
/// (original_context / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor).
/// Source: https://github.com/meta-llama/llama-models (models/llama3/model.py).
struct Llama3RopeConfig {
  double factor = 8;
  double original_context = 8192;  // tokens
  double low_freq_factor = 1;
  double high_freq_factor = 4;

  bool operator==(const Llama3RopeConfig&) const = default;
};

struct RopeConfig {
  std::int32_t dim = 64;  // rotary width, even
  double theta = 10000;
  RopePairing pairing = RopePairing::interleaved;
  // At most one of the three scalings.
  std::optional<YarnConfig> yarn = std::nullopt;
  std::optional<Llama3RopeConfig> llama3 = std::nullopt;
  double linear_factor = 1;  // divides every frequency (rope_type "linear")
  // Frequencies and angles are rounded to f32, as in the code that trained the model: at position
  // 2^20 the fast pairs turn by up to 0.05 rad more or less for it.
  bool f32_angles = false;

  bool operator==(const RopeConfig&) const = default;
};

/// Pairs from which (low) and up to which (high) YaRN blends: pairs <= low keep their frequency,
/// pairs >= high are divided by the factor. low = floor(pair that turns beta_fast times), high =
/// ceil(pair that turns beta_slow times), within [0, dim - 1]; neither rounded without truncate.
struct YarnRange {
  double low = 0;
  double high = 0;
};
YarnRange yarn_range(std::int32_t dim, double theta, const YarnConfig& yarn);

/// What multiplies cos and sin: 1 without YaRN.
double rope_magnitude(const RopeConfig& config);

/// Radians per position of each pair, [dim / 2]: theta^(-2i / dim), scaled as the config says; with
/// f32_angles every operation is rounded to f32.
std::vector<double> rope_frequencies(const RopeConfig& config);

/// f32 [positions, dim]: for every position dim / 2 cosines, then dim / 2 sines. Computed in
/// double, rounded once; with f32_angles the angle is f32(position) * f32(frequency).
class RopeTable {
 public:
  /// Errors: an odd or non-positive dim, theta <= 1, a negative count, values of a
  /// scaling out of range, more than one scaling.
  static Result<RopeTable> make(const RopeConfig& config, std::int64_t positions);

  const RopeConfig& config() const { return config_; }
  /// Identifies the table's contents, for a copy kept on a device: no other table has it.
  std::uint64_t id() const { return id_; }
  std::int32_t dim() const { return config_.dim; }
  std::int64_t positions() const { return positions_; }
  bool holds(LocalPos p) const { return p.value >= 0 && p.value < positions_; }
  std::span<const float> data() const { return data_; }
  /// Precondition: holds(p).
  const float* cos(LocalPos p) const { return data_.data() + std::int64_t{p.value} * dim(); }
  const float* sin(LocalPos p) const { return cos(p) + dim() / 2; }

 private:
  RopeTable(const RopeConfig& config, std::int64_t positions);
  RopeConfig config_;
  std::uint64_t id_ = 0;
  std::int64_t positions_ = 0;
  std::vector<float> data_;
};

/// Rotates x ([table.dim()], f32) in place as at position p. Precondition: the table holds p.
void rotate_row(const RopeTable& table, LocalPos p, RopeDirection direction, float* x);

/// Rotates in place, for each row t and each of its heads, the table.dim() elements from `first`
/// on, as at positions[t]. rows: [T, heads * width] bf16 (rounded to nearest even after the
/// rotation) or f32; positions: [T], -1 leaves the row as it is. V4 calls it inverse on its
/// attention output. Errors: a dtype other than bf16 and f32, counts that differ, a rotary part
/// outside the head, a width, first or dim that is not a multiple of 16, a position beyond the
/// table.
Result<void> apply_rope(const RopeTable& table, std::span<const LocalPos> positions,
                        const MutableRowsView& rows, std::int64_t heads, std::int64_t first,
                        RopeDirection direction, CodecPath path = CodecPath::fast);

/// Errors: a position that is neither -1 nor in the table, named "<field>[i]".
Result<void> check_positions(const char* field, std::span<const LocalPos> positions,
                             const RopeTable& table);

}  // namespace lathe
