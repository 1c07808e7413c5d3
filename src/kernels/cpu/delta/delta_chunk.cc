// The state is processed in tiles of columns: the recurrence mixes the rows of S, never its
// columns. A tile stays in L1 over a chunk of many rows. One pass over it updates S with a row,
// sums the row's output, and sums k^T S for the row after it. Every sum runs over the rows of S in
// order, so that its bits depend neither on the tile nor on the chunk.
//
// A single row's S is in no cache, and memory is slow where a pass reads and the next one writes.
// So heads of single rows overlap: the loop that writes S of a head also reads S of the next.
#include "kernels/cpu/delta/delta_chunk.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

#include "layout/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/delta/delta_chunk.cc"
#include "hwy/foreach_target.h"
// The SIMD headers follow foreach_target.h, which includes this file once per target.
#include "hwy/cache_control.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/cpu/common/unroll.h"

HWY_BEFORE_NAMESPACE();
namespace lathe {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// dk and dv are multiples of 16, so all rows are whole vectors.
using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;

HWY_INLINE std::int64_t lanes() { return static_cast<std::int64_t>(hn::Lanes(D())); }
HWY_INLINE V sigmoid(V x) {
  const D d;
  const V one = hn::Set(d, 1.0f);
  // hn::Exp() is wrong above 104.
  const V e = hn::Exp(d, hn::Neg(hn::Abs(x)));
  return hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one), hn::Add(one, e));
}
HWY_INLINE V softplus(V x) {
  const D d;
  return hn::Add(hn::Max(x, hn::Zero(d)), hn::Log1p(d, hn::Exp(d, hn::Neg(hn::Abs(x)))));
}
HWY_INLINE float sum_of_squares(const float* x, std::int64_t n) {
  const D d;
  V sum = hn::Zero(d);
  for (std::int64_t i = 0; i < n; i += lanes()) {
    const V v = hn::LoadU(d, x + i);
    sum = hn::MulAdd(v, v, sum);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}
HWY_INLINE void scale(float* x, std::int64_t n, float factor) {
  const D d;
  const V f = hn::Set(d, factor);
  for (std::int64_t i = 0; i < n; i += lanes())
    hn::StoreU(hn::Mul(hn::LoadU(d, x + i), f), d, x + i);
}

// Prefetches what the thread reads after this chunk, a few lines at a time, so that memory is busy
// while the chunk computes.
class Ahead {
 public:
  Ahead(const float* at, std::int64_t floats) : at_(at), end_(at == nullptr ? at : at + floats) {}

  HWY_INLINE void fetch(int lines) {
    for (int i = 0; i < lines && at_ < end_; ++i, at_ += 16) hwy::Prefetch(at_);
  }

 private:
  const float* at_;
  const float* end_;
};

// A chunk's rows, as the recurrence reads them.
struct Prepared {
  float* q;      // [rows, dk]
  float* k;      // [rows, dk]
  float* fade;   // [rows, dk]: e^g
  float* faded;  // [rows, dk]: k e^g
  float* v;      // [rows, dv]
  float* o;      // [rows, dv]
  float* beta;   // [rows]
};

class Chunk {
 public:
  explicit Chunk(const DeltaChunk& c)
      : c_(c), p_(*c.problem), a_(std::exp(c.a_log)), ahead_(c.ahead, std::int64_t{p_.dk} * p_.dv) {
    float* at = c.memory;
    const auto take = [&](std::int64_t n) {
      float* const out = at;
      at += n;
      return out;
    };
    rows_.q = take(c.rows * p_.dk);
    rows_.k = take(c.rows * p_.dk);
    rows_.fade = take(c.rows * p_.dk);
    rows_.faded = take(c.rows * p_.dk);
    rows_.v = take(c.rows * p_.dv);
    rows_.o = take(c.rows * p_.dv);
    rows_.beta = take(c.rows);
  }

  void run() {
    prepare();
    std::int64_t j = tiles<4>(0);
    tiles<1>(j);
    for (std::int64_t t = 0; t < c_.rows; ++t) write(t);
    hwy::FlushStream();
  }

  // What the recurrence reads besides S. `other`: a prepared head of the same rows, or null; it may
  // have the same q and k.
  void prepare(const Chunk* other = nullptr) {
    if (other != nullptr && other->c_.q == c_.q) {
      std::copy_n(other->rows_.q, c_.rows * p_.dk, rows_.q);
      std::copy_n(other->rows_.k, c_.rows * p_.dk, rows_.k);
    } else {
      convolve(c_.q, p_.dk, rows_.q);
      convolve(c_.k, p_.dk, rows_.k);
      const float q_scale = 1 / std::sqrt(static_cast<float>(p_.dk));
      for (std::int64_t t = 0; t < c_.rows; ++t) {
        normalise(rows_.q + t * p_.dk, q_scale);
        normalise(rows_.k + t * p_.dk, 1);
      }
    }
    convolve(c_.v, p_.dv, rows_.v);
    for (std::int64_t t = 0; t < c_.rows; ++t) gates(t);
  }

  // Writes the last inputs of the convolution after a single row, of v and if `keys` of q and k.
  void leave_inputs(bool keys) const {
    for (int tap = 0; tap + 1 < p_.conv; ++tap) {
      const float* const from = c_.x[tap + 1];
      float* const to = c_.inputs + tap * p_.channels();
      if (keys) copy_past_caches(from + c_.q, p_.dk, to + c_.q);
      if (keys) copy_past_caches(from + c_.k, p_.dk, to + c_.k);
      copy_past_caches(from + c_.v, p_.dv, to + c_.v);
    }
  }

  // Prefetches the inputs of the convolution that are in the state.
  void prefetch_inputs() const {
    for (int tap = 0; tap + 1 < p_.conv; ++tap) {
      for (const auto& [first, n] : {std::pair{c_.q, p_.dk}, {c_.k, p_.dk}, {c_.v, p_.dv}}) {
        for (std::int64_t i = 0; i < n; i += 16) hwy::Prefetch(c_.x[tap] + first + i);
      }
    }
  }

  // The rest of a prepared row, where rows of S are kVecs vectors, and its k^T diag(e^g) S is
  // `known`. It becomes that of `next`, another head's prepared row, if there is one.
  template <int kVecs>
  void finish_row(Chunk* next, float* known) {
    const D d;
    V delta[kVecs];
    const V beta = hn::Set(d, rows_.beta[0]);
    LATHE_UNROLL
    for (int n = 0; n < kVecs; ++n) {
      delta[n] = hn::Mul(
          beta, hn::Sub(hn::LoadU(d, rows_.v + n * lanes()), hn::LoadU(d, known + n * lanes())));
    }
    const bool stream = streams(c_.before, c_.after[0]);
    if (next == nullptr) {
      stream ? pass<kVecs, true, false>(delta, next, known)
             : pass<kVecs, false, false>(delta, next, known);
    } else {
      stream ? pass<kVecs, true, true>(delta, next, known)
             : pass<kVecs, false, true>(delta, next, known);
    }
    write(0);
  }
  // `known` of a row that no other one came before.
  template <int kVecs>
  void begin_row(float* known) {
    const D d;
    V sums[kVecs];
    LATHE_UNROLL
    for (int n = 0; n < kVecs; ++n) sums[n] = hn::Zero(d);
    know<kVecs>(0, sums);
    LATHE_UNROLL
    for (int n = 0; n < kVecs; ++n) hn::StoreU(sums[n], d, known + n * lanes());
  }

 private:
  // The weights of the channels of a vector, from `channel` on.
  HWY_INLINE void load_taps(std::int64_t channel, V (&taps)[8]) const {
    const D d;
    const float* from = c_.conv + channel * p_.conv;
    if (p_.conv == 4) return hn::LoadInterleaved4(d, from, taps[0], taps[1], taps[2], taps[3]);
    HWY_ALIGN float column[16];
    for (int tap = 0; tap < p_.conv; ++tap) {
      for (std::int64_t i = 0; i < lanes(); ++i) column[i] = from[i * p_.conv + tap];
      taps[tap] = hn::Load(d, column);
    }
  }

  // silu of the convolution of n channels from `first` on, into out [rows, n].
  void convolve(std::int64_t first, std::int64_t n, float* out) {
    const D d;
    const std::int64_t rows = c_.rows;
    const int taps = p_.conv;
    for (std::int64_t i = 0; i < n; i += lanes()) {
      V w[8];
      load_taps(first + i, w);
      ahead_.fetch(8);
      for (std::int64_t t = 0; t < rows; ++t) {
        V sum = hn::Mul(w[0], hn::LoadU(d, c_.x[t] + first + i));
        for (int tap = 1; tap < taps; ++tap) {
          sum = hn::MulAdd(w[tap], hn::LoadU(d, c_.x[t + tap] + first + i), sum);
        }
        hn::StoreU(hn::Mul(sum, sigmoid(sum)), d, out + t * n + i);
      }
    }
  }

  static void copy_past_caches(const float* from, std::int64_t n, float* to) {
    const D d;
    if (reinterpret_cast<std::uintptr_t>(to) % 64 != 0) {
      std::copy_n(from, n, to);
      return;
    }
    for (std::int64_t i = 0; i < n; i += lanes()) hn::Stream(hn::LoadU(d, from + i), d, to + i);
  }

  void normalise(float* x, float factor) const {
    scale(x, p_.dk, factor / std::sqrt(sum_of_squares(x, p_.dk) + 1e-6f));
  }

  // e^g of the projection f, for the channels of a vector. `bias` is dt_bias.
  HWY_INLINE V fade(V f, V bias) const {
    const D d;
    const V a = hn::Set(d, a_), x = hn::Add(f, bias);
    if (p_.gate == DeltaGate::softplus) return hn::Exp(d, hn::Neg(hn::Mul(a, softplus(x))));
    return hn::Exp(d, hn::Mul(hn::Set(d, p_.gate_bound), sigmoid(hn::Mul(a, x))));
  }

  void gates(std::int64_t t) const {
    const D d;
    rows_.beta[t] = hn::GetLane(sigmoid(hn::Set(d, *c_.beta.row(t))));
    const float* f = c_.decay.row(t);
    const bool per_head = p_.decay == DeltaDecay::per_head;
    V e = per_head ? fade(hn::Set(d, f[0]), hn::Set(d, c_.dt_bias[0])) : hn::Zero(d);
    for (std::int64_t i = 0; i < p_.dk; i += lanes()) {
      if (!per_head) e = fade(hn::LoadU(d, f + i), hn::LoadU(d, c_.dt_bias + i));
      hn::StoreU(e, d, rows_.fade + t * p_.dk + i);
      hn::StoreU(hn::Mul(e, hn::LoadU(d, rows_.k + t * p_.dk + i)), d, rows_.faded + t * p_.dk + i);
    }
  }

  // Runs tiles of kVecs vectors of columns, from column j on; returns the next column.
  template <int kVecs>
  std::int64_t tiles(std::int64_t j) {
    for (; j + kVecs * lanes() <= p_.dv; j += kVecs * lanes()) tile<kVecs>(j);
    return j;
  }

  // Adds k^T diag(e^g) S of the first row to `known`, for kVecs vectors of columns from j on.
  template <int kVecs>
  HWY_INLINE void know(std::int64_t j, V (&known)[kVecs]) {
    const D d;
    const float* from = c_.before + j;
    for (std::int64_t i = 0; i < p_.dk; ++i, from += p_.dv) {
      ahead_.fetch(kVecs / 2);
      const V k = hn::Set(d, rows_.faded[i]);
      LATHE_UNROLL
      for (int n = 0; n < kVecs; ++n) {
        known[n] = hn::MulAdd(k, hn::LoadU(d, from + n * lanes()), known[n]);
      }
    }
  }

  // As row<kVecs, false, kStream>() over whole rows of S, and with kNext `known` of `next`.
  template <int kVecs, bool kStream, bool kNext>
  HWY_INLINE void pass(const V (&delta)[kVecs], Chunk* next, float* known) {
    const D d;
    const std::int64_t dk = p_.dk, dv = p_.dv;
    const float *in = c_.before, *other = kNext ? next->c_.before : nullptr;
    const float* faded = kNext ? next->rows_.faded : nullptr;
    float* to = c_.after[0];
    V o[kVecs], sums[kVecs];
    LATHE_UNROLL
    for (int n = 0; n < kVecs; ++n) o[n] = sums[n] = hn::Zero(d);
    for (std::int64_t i = 0; i < dk; ++i, in += dv, to += dv) {
      if (kNext) next->ahead_.fetch(kVecs);
      const V e = hn::Set(d, rows_.fade[i]), key = hn::Set(d, rows_.k[i]);
      const V query = hn::Set(d, rows_.q[i]);
      LATHE_UNROLL
      for (int n = 0; n < kVecs; ++n) {
        const V s = hn::MulAdd(key, delta[n], hn::Mul(e, hn::LoadU(d, in + n * lanes())));
        if (kStream) {
          hn::Stream(s, d, to + n * lanes());
        } else {
          hn::StoreU(s, d, to + n * lanes());
        }
        o[n] = hn::MulAdd(query, s, o[n]);
      }
      if (!kNext) continue;
      const V k = hn::Set(d, faded[i]);
      LATHE_UNROLL
      for (int n = 0; n < kVecs; ++n) {
        sums[n] = hn::MulAdd(k, hn::LoadU(d, other + n * lanes()), sums[n]);
      }
      other += dv;
    }
    LATHE_UNROLL
    for (int n = 0; n < kVecs; ++n) {
      hn::StoreU(o[n], d, rows_.o + n * lanes());
      if (kNext) hn::StoreU(sums[n], d, known + n * lanes());
    }
  }

  // Runs all rows over kVecs vectors of columns of S, from column j on.
  template <int kVecs>
  void tile(std::int64_t j) {
    const D d;
    const std::int64_t dv = p_.dv, rows = c_.rows;
    const float* in = c_.before + j;
    V known[kVecs];  // k^T diag(e^g) S of the next row
    LATHE_UNROLL
    for (int n = 0; n < kVecs; ++n) known[n] = hn::Zero(d);
    know<kVecs>(j, known);
    for (std::int64_t t = 0; t < rows; ++t) {
      const V beta = hn::Set(d, rows_.beta[t]);
      LATHE_UNROLL
      for (int n = 0; n < kVecs; ++n) {
        const V v = hn::LoadU(d, rows_.v + t * dv + j + n * lanes());
        known[n] = hn::Mul(beta, hn::Sub(v, known[n]));
      }
      float* const out = c_.after[t] + j;
      if (t + 1 < rows) {
        row<kVecs, true, false>(t, j, in, out, known);
      } else if (kVecs > 1 && streams(in, out)) {
        row<kVecs, false, true>(t, j, in, out, known);
      } else {
        row<kVecs, false, false>(t, j, in, out, known);
      }
      in = out;
    }
  }

  // Whether to write S past the caches, which saves reading the lines that it replaces: only if
  // they are not in a cache yet, and nothing reads them soon.
  bool streams(const float* in, const float* out) const {
    return c_.ends && in != out && reinterpret_cast<std::uintptr_t>(out) % 64 == 0;
  }

  // S' = diag(e^g) S + k delta^T and o = q^T S'. With kNext, delta becomes k^T diag(e^g) S' of the
  // next row. With kStream, S' is written past the caches.
  template <int kVecs, bool kNext, bool kStream>
  HWY_INLINE void row(std::int64_t t, std::int64_t j, const float* in, float* out,
                      V (&delta)[kVecs]) {
    const D d;
    const std::int64_t dk = p_.dk, dv = p_.dv;
    const float* q = rows_.q + t * dk;
    const float* k = rows_.k + t * dk;
    const float* fade = rows_.fade + t * dk;
    const float* next = rows_.faded + (t + 1) * dk;
    V o[kVecs], known[kVecs];
    LATHE_UNROLL
    for (int n = 0; n < kVecs; ++n) o[n] = known[n] = hn::Zero(d);
    float* to = out;
    for (std::int64_t i = 0; i < dk; ++i, in += dv, to += dv) {
      if (!kNext) ahead_.fetch(kVecs - kVecs / 2);
      const V e = hn::Set(d, fade[i]), key = hn::Set(d, k[i]), query = hn::Set(d, q[i]);
      LATHE_UNROLL
      for (int n = 0; n < kVecs; ++n) {
        const V s = hn::MulAdd(key, delta[n], hn::Mul(e, hn::LoadU(d, in + n * lanes())));
        if (kStream) {
          hn::Stream(s, d, to + n * lanes());
        } else {
          hn::StoreU(s, d, to + n * lanes());
        }
        o[n] = hn::MulAdd(query, s, o[n]);
        if (kNext) known[n] = hn::MulAdd(hn::Set(d, next[i]), s, known[n]);
      }
    }
    float* const sums = rows_.o + t * dv + j;
    LATHE_UNROLL
    for (int n = 0; n < kVecs; ++n) {
      hn::StoreU(o[n], d, sums + n * lanes());
      delta[n] = known[n];
    }
  }

  // The gated norm.
  void write(std::int64_t t) const {
    const D d;
    const float* o = rows_.o + t * p_.dv;
    const float mean = sum_of_squares(o, p_.dv) / static_cast<float>(p_.dv);
    const V factor = hn::Set(d, 1 / std::sqrt(mean + c_.norm_eps));
    for (std::int64_t i = 0; i < p_.dv; i += lanes()) {
      const V g = hn::LoadU(d, c_.gate.row(t) + i);
      const V act = p_.output == DeltaOutput::silu ? hn::Mul(g, sigmoid(g)) : sigmoid(g);
      const V normed = hn::Mul(hn::Mul(hn::LoadU(d, o + i), factor), hn::LoadU(d, c_.norm + i));
      hn::StoreU(hn::Mul(normed, act), d, c_.out.row(t) + i);
    }
  }

  const DeltaChunk& c_;
  const DeltaRuleProblem& p_;
  const float a_;
  Ahead ahead_;
  Prepared rows_;
};

void run_chunk(const DeltaChunk& chunk) { Chunk(chunk).run(); }

// Whether a head is the first of its key head.
bool owns_keys(const DeltaChunk* chunks, std::int64_t i) {
  return i == 0 || chunks[i].q != chunks[i - 1].q;
}

void run_heads(const DeltaChunk* chunks, std::int64_t count) {
  constexpr int kVecs = 8;  // as many rows of S, sums and outputs as 32 registers hold
  if (kVecs * lanes() != chunks->problem->dv || lanes() != 16) {
    for (std::int64_t i = 0; i < count; ++i) {
      run_chunk(chunks[i]);
      if (chunks[i].inputs != nullptr) Chunk(chunks[i]).leave_inputs(owns_keys(chunks, i));
    }
    return;
  }
  HWY_ALIGN float known[kVecs * 16];
  std::optional<Chunk> heads[2];
  const auto prepare = [&](std::int64_t i) {
    Chunk& head = heads[i % 2].emplace(chunks[i]);
    head.prepare(i > 0 ? &*heads[(i + 1) % 2] : nullptr);
    if (chunks[i].inputs != nullptr) head.leave_inputs(owns_keys(chunks, i));
    if (i + 1 < count) Chunk(chunks[i + 1]).prefetch_inputs();
    return &head;
  };
  prepare(0)->begin_row<kVecs>(known);
  for (std::int64_t i = 0; i < count; ++i) {
    Chunk* const next = i + 1 < count ? prepare(i + 1) : nullptr;
    heads[i % 2]->finish_row<kVecs>(next, known);
  }
  hwy::FlushStream();
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lathe
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lathe {

HWY_EXPORT(run_chunk);
HWY_EXPORT(run_heads);

void cpu_delta_chunk(const DeltaChunk& chunk) { HWY_DYNAMIC_DISPATCH(run_chunk)(chunk); }
void cpu_delta_heads(std::span<const DeltaChunk> heads) {
  if (!heads.empty()) {
    HWY_DYNAMIC_DISPATCH(run_heads)(heads.data(), static_cast<std::int64_t>(heads.size()));
  }
}

}  // namespace lathe
#endif  // HWY_ONCE
