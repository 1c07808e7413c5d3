#include "kernels/cuda/sm90/matmul/matmul_tiling.h"

#include <algorithm>

#include "base/integers.h"
#include "kernels/cuda/sm90/matmul/matmul_params.h"
#include "kernels/limits.h"

namespace lathe::cuda {
namespace {

// Per SM at full load and per clock: weight bytes from memory, bytes from L2, and multiply-adds.
constexpr double kMemoryBytes = 18, kL2Bytes = 30, kProducts = 1700;
// The same of pairs. most_bytes: of any SM. Wider products take less energy each, and the clock is
// higher by that.
struct PairRates {
  double bytes, most_bytes;
  double products[3];  // of 128, 192 and 256 columns
  double sums;         // clocks in which sums are handed over, of those below
};
constexpr PairRates kCodePairs = {33, 36, {1700, 1700, 1700}, 1},
                    kPairs = {42, 45, {1850, 1930, 2000}, 0.85};
// Clocks per token that a tile spends outside its stages: storing it, which pairs overlap with the
// next tile through TMA, writing its sums to memory and reading them, and exchanging partials,
// which has a high start-up cost.
constexpr double kStore = 50, kPairStore = 6, kTallStore = 15, kKeep = 16, kExchange = 40,
                 kFirstExchange = 1500;
// Tall tiles multiply 128 columns at a time, and so read weights twice from shared memory.
constexpr double kTallProducts = 0.95;
// Clocks until the sums of another block can be read.
constexpr double kArrive = 2500;

struct Tiles {
  int split, rows, tokens;
  bool pair;
  bool spread = false;
  bool quad = false;
  bool tall = false;
};

const PairRates& rates_of(const MatmulShape& s) {
  return s.x_bits == 16 && s.weight_bits == 16 ? kPairs : kCodePairs;
}

// Work tiles of pairs, or of two of them.
std::int64_t pairs_of(const MatmulShape& s, int tokens, int rows = 128) {
  return ceil_div(ceil_div(s.rows, rows), 2) * ceil_div(s.m, tokens);
}
std::int64_t quads_of(const MatmulShape& s) { return pairs_of(s, 256); }

// Whether the parts of K of the last round's tiles run all at a time.
bool splits_last(const MatmulShape& s, const Tiles& t) {
  if (!t.pair || t.spread || t.tokens != 256 || t.split == 1 || !s.spreads || !s.many) return false;
  const std::int64_t clusters = clusters_at_once(s.sms, 2), items = pairs_of(s, t.tokens);
  return items > clusters && items % clusters > 0 && items % clusters * t.split <= clusters;
}

// Clocks of a chunk of a tile with `tokens` tokens, but for the time in which its weights come from
// memory. busy: share of SMs that work.
double chunk_cost(const MatmulShape& s, const Tiles& t, std::int64_t tokens, double busy) {
  const double k = static_cast<double>(matmul_chunk(s.weight_bits));
  const double weight_bytes = t.rows * k * s.weight_bits / 8 / (t.quad ? 2 : 1);
  const double token_bytes = static_cast<double>(tokens) * k * s.x_bits / 8 / (t.pair ? 2 : 1);
  const double products = (t.tall ? t.rows : 128) * k * static_cast<double>(tokens) * s.x_bits / 16;
  if (!t.pair) return std::max((weight_bytes + token_bytes) / kL2Bytes, products / kProducts);
  // Fewer blocks load faster, up to what an SM takes. Quads leave some SMs idle.
  const PairRates& rates = rates_of(s);
  const double bytes = std::min(rates.bytes / busy, rates.most_bytes);
  const std::int64_t width = t.quad ? 4 : std::max<std::int64_t>(ceil_div(tokens, 64), 2);
  const double rate = rates.products[width - 2] * (t.tall ? kTallProducts : 1);
  return std::max((weight_bytes + token_bytes) / bytes, products / rate);
}

// Clocks for all work tiles.
double cost(const MatmulShape& s, const Tiles& t) {
  const std::int64_t chunks = ceil_div(s.k, matmul_chunk(s.weight_bits));
  const std::int64_t token_tiles = ceil_div(s.m, t.tokens);
  std::int64_t items = ceil_div(s.rows, t.rows) * token_tiles;
  std::int64_t clusters = clusters_at_once(s.sms, t.split);
  std::int64_t item_chunks = ceil_div(chunks, t.split);
  if (t.pair) {
    items = (t.quad ? quads_of(s) : pairs_of(s, t.tokens, t.rows)) * (t.spread ? t.split : 1);
    clusters = clusters_at_once(s.sms, t.quad ? 4 : 2);
    if (!t.spread) item_chunks = chunks;
  }
  const std::int64_t rounds = ceil_div(items, clusters);
  const double busy = static_cast<double>(std::min(items, clusters) * (t.quad ? 4 : 2)) / s.sms;
  const double keep = kKeep * (t.pair ? rates_of(s).sums : 1) * t.tokens;
  double extra = (t.tall ? kTallStore : t.pair ? kPairStore : kStore) * t.tokens;
  if (t.split > 1 && !t.pair) extra += kFirstExchange + kExchange * t.tokens;
  if (t.spread) extra += kArrive * rates_of(s).sums + keep * t.split;
  if (t.tokens > 128 && !t.spread) extra += keep * (t.split - 1);
  // Boxes of 64 tokens are dealt to tiles of bf16.
  const bool deals = t.pair && !t.spread && t.tokens > 128 && s.x_bits == 16;
  const std::int64_t tokens = deals ? 64 * ceil_div(ceil_div(s.m, 64), token_tiles) : t.tokens;
  double chunk = chunk_cost(s, t, tokens, busy);
  // Weights that are read once come from memory, in several rounds of pairs at its rate.
  const double weights = static_cast<double>(matmul_chunk(s.weight_bits)) * s.weight_bits / 8;
  if (token_tiles == 1 && (!t.pair || rounds == 1)) {
    chunk = std::max(chunk, t.rows * weights / (t.quad ? 2 : 1) / kMemoryBytes);
  }
  const double item = static_cast<double>(item_chunks) * chunk + extra;
  if (splits_last(s, t)) {
    const double last = static_cast<double>(ceil_div(chunks, t.split)) * chunk +
                        kPairStore * t.tokens + kArrive + kKeep * t.tokens * t.split;
    return static_cast<double>(items / clusters) * item + last;
  }
  const double all = static_cast<double>(rounds) * item;
  const double memory =
      static_cast<double>(s.rows * chunks) * weights / (kMemoryBytes * s.sms) + extra;
  return t.pair ? std::max(all, memory) : all;
}

// Each warpgroup's half of a gated tile must consist of whole interleaved groups of 16 rows.
int row_step(const MatmulShape& s) { return s.gated ? 32 : 16; }

// Whether tiles with all of K occupy most SMs.
bool fills_sms(const MatmulShape& s) {
  for (int rows = 128; rows >= 48; rows -= row_step(s)) {
    const std::int64_t items = ceil_div(s.rows, rows);
    if (10 * items >= 8 * ceil_div(items, s.sms) * s.sms) return true;
  }
  return false;
}

// The cheapest tiles of at most 64 tokens that read weights once.
Tiles best_for_few(const MatmulShape& shape) {
  MatmulShape s = shape;
  s.m = 32;
  Tiles best{1, 128, 32, false};
  double least = cost(s, best);
  for (int split = 1; split <= kMostSplit; split *= 2) {
    // A part shorter than the stages in flight is not worth its exchange.
    if (split > 1 && s.k / split < 8 * matmul_chunk(s.weight_bits)) continue;
    // Many tokens are fastest in pairs with tiles of 256 tokens, which add parts of K in memory, or
    // with codes, which cannot. The split may not depend on the number of tokens, so K is not split
    // for few tokens either.
    if (split > 1 && (s.x_bits == 8 || s.gated) && fills_sms(s)) continue;
    for (int rows = 128; rows >= 48; rows -= row_step(s)) {
      const Tiles t{split, rows, 32, false};
      if (const double c = cost(s, t); c < least) {
        least = c;
        best = t;
      }
    }
  }
  return best;
}

// Whether tiles of 256 rows need less than three quarters as many rounds as tiles of 128, which are
// converted in little less time.
bool is_wide_enough(const MatmulShape& s) {
  const auto waves = [&](std::int64_t rows) { return ceil_div(ceil_div(s.rows, rows), s.sms); };
  return 4 * waves(256) < 3 * waves(128);
}

// Whether tiles of 64 rows run all at a time, at most two of them on an SM, and their parts of K
// end with whole stages.
bool is_narrow_enough(const MatmulShape& s, int split) {
  const std::int64_t blocks = ceil_div(s.rows, 64) * split;
  const std::int64_t chunks = ceil_div(s.k, matmul_chunk(s.weight_bits));
  return split > 1 && split <= 4 && chunks % (2 * split) == 0 &&
         blocks <= (s.m <= 32 ? 2 : 1) * s.sms;
}

// Tiles of 4 to 64 tokens with deep stages, if they are faster; else of no rows.
MatmulTiling deep_tiling(const MatmulShape& s, int split) {
  const int tokens = s.m <= 8 ? 8 : s.m <= 16 ? 16 : s.m <= 32 ? 32 : 64;
  if (split == 1 && s.m >= s.least_wide && is_wide_enough(s)) return {1, 256, tokens, false, 4};
  if (s.m > 8 && is_narrow_enough(s, split)) return {split, 64, tokens, false, 1};
  return {split, 0, tokens, false};
}

// Of tiles of 64 tokens on M: clocks of a chunk whose products take less, and of a tile outside of
// its chunks.
constexpr double kLeastChunk = 220, kOutside = 600;

// Pairs of tiles of 64 tokens on M, which share their loads of tokens. K has one part.
MatmulTiling shared_tiling(const MatmulShape& s) {
  const auto chunks = static_cast<double>(ceil_div(s.k, matmul_chunk(8)));
  MatmulTiling best;
  double least = -1;
  for (const int rows : {32, 64, 128, 192, 256}) {
    const std::int64_t pairs = ceil_div(ceil_div(s.rows, rows), 2);
    const double bytes = 128. * rows;
    const double chunk =
        std::max({bytes / kMemoryBytes, (bytes + 128. * 64 / 2) / kL2Bytes, kLeastChunk});
    const double c = static_cast<double>(ceil_div(pairs, clusters_at_once(s.sms, 2))) *
                     (chunks * chunk + kOutside);
    if (least >= 0 && c >= least) continue;
    least = c;
    best = {1, rows, 64, true};
  }
  return best;
}

// The cheapest pairs of tiles of 64 tokens that share their loads of weights, and its clocks. All
// parts of K are summed in turn.
double best_by_tokens(const MatmulShape& s, int split, MatmulTiling& best) {
  const auto chunks = static_cast<double>(ceil_div(s.k, matmul_chunk(8)));
  double least = -1;
  for (const int rows : {32, 64, 128}) {
    const std::int64_t items = ceil_div(s.rows, rows) * ceil_div(s.m, 128);
    const double bytes = 128. * rows / 2 + 128. * 64;
    const double chunk = std::max(bytes / kL2Bytes, kLeastChunk);
    const double c = static_cast<double>(ceil_div(items, clusters_at_once(s.sms, 2))) *
                     (chunks * chunk + kOutside);
    if (least >= 0 && c >= least) continue;
    least = c;
    best = {.split = split, .tile_rows = rows, .tile_tokens = 64, .pair = true, .by_tokens = true};
  }
  return least;
}

}  // namespace

// A block occupies an SM, and a cluster must be within one GPC. Most GPCs have 16 or 18 SMs, one
// has fewer: not multiples of 4 and 8. One cluster too many costs a second wave.
std::int64_t clusters_at_once(int sms, int blocks) {
  const int lost = blocks <= 2 ? 0 : blocks == 4 ? 3 : 2;
  return std::max(1, sms / blocks - lost);
}

MatmulTiling choose_tiling(const MatmulShape& s) {
  const Tiles few = best_for_few(s);
  // With K in parts, blocks that sum one part each are faster.
  if (s.many && few.split == 1 && s.m > 32 && s.m <= 64) return shared_tiling(s);
  if (s.packed && s.m <= 64) {
    if (const MatmulTiling deep = deep_tiling(s, few.split); deep.tile_rows > 0) return deep;
  }
  Tiles best = few;
  double least = -1;
  const auto consider = [&](const Tiles& t) {
    if (const double c = cost(s, t); least < 0 || c < least) {
      least = c;
      best = t;
    }
  };
  for (const int tokens : {8, 16, 32, 64, 128}) {
    if (tokens < 64 && tokens < s.m) continue;  // small tiles read weights too often
    // A chunk of packed weights is converted in the same time whatever the height of its tile.
    for (int rows = 128; rows >= (s.packed ? 128 : 48); rows -= row_step(s)) {
      consider({few.split, rows, tokens, false});
    }
  }
  if (s.m > 64) {
    if (few.split == 1 || !s.factors || s.many) consider({few.split, 128, 128, true});
    // Where they run at once. Tiles of 256 tokens load as few bytes for a product, on all SMs.
    const std::int64_t room = clusters_at_once(s.sms, 4);
    if ((s.weight_bits == 16 || s.many) && s.m > 128 && quads_of(s) <= room) {
      consider({few.split, 128, 128, true, false, true});
      if (s.spreads && few.split > 1 && quads_of(s) * few.split <= room) {
        consider({few.split, 128, 128, true, true, true});
      }
    }
    for (const int tokens : {128, 192, 256}) {
      const bool at_once = pairs_of(s, tokens) * few.split <= clusters_at_once(s.sms, 2);
      // bf16 has no registers for tiles of 256, and codes are multiplied by 128 tokens.
      const bool has = tokens != (s.weight_bits == 16 ? 256 : 192);
      if (s.spreads && few.split > 1 && has && at_once) {
        consider({few.split, 128, tokens, true, true});
      }
    }
    const bool wide = s.weight_bits == 16 || s.many;
    if (wide && (few.split == 1 || s.keeps)) {
      if (s.weight_bits == 16) consider({few.split, 128, 192, true});
      consider({few.split, 128, 256, true});
    }
    if (s.weight_bits == 16 && few.split == 1 && s.boxes) {
      consider({.split = 1, .rows = 192, .tokens = 256, .pair = true, .tall = true});
    }
  }
  if (s.many && s.m > 64) {
    MatmulTiling by_tokens;
    if (best_by_tokens(s, few.split, by_tokens) < least) return by_tokens;
  }
  // A warpgroup multiplies 64 rows, with codes for 64 rows or fewer in the time of their loads. Two
  // would share them, and issue twice the instructions.
  const bool codes = s.weight_bits == 8 && s.x_bits == 8;
  if (codes && best.tokens == 64 && best.rows <= 64 && best.split <= kNarrowSplit) {
    return {best.split, best.rows, 64, false, 1};
  }
  return {.split = best.split,
          .tile_rows = best.rows,
          .tile_tokens = best.tokens,
          .pair = best.pair,
          .spread = best.spread,
          .splits_last = splits_last(s, best),
          .quad = best.quad,
          .tall = best.tall};
}

int choose_group_rows(const MatmulShape& s, std::int64_t tiles, int tokens, std::int64_t dense,
                      std::int64_t dense_tiles) {
  MatmulShape one = s;
  one.m = tokens;
  int best = 128;
  double least = -1;
  for (int rows = 128; rows >= 48; rows -= row_step(s)) {
    const std::int64_t items = ceil_div(s.rows, rows) * tiles + ceil_div(dense, rows) * dense_tiles;
    const std::int64_t waves = ceil_div(items, s.sms);
    one.rows = rows;  // the cost of a tile
    const double c = static_cast<double>(waves) * cost(one, {1, rows, tokens, false});
    if (least >= 0 && c >= least) continue;
    least = c;
    best = rows;
  }
  return best;
}

}  // namespace lathe::cuda
