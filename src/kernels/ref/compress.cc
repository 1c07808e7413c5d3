#include "kernels/ref/compress.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "layout/codec/codec.h"
#include "layout/hadamard.h"

namespace lathe {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// The running fold (m, s, a) of one group's entry.
struct Fold {
  std::vector<double> m, s, a;

  explicit Fold(std::size_t dim) : m(dim, -kInf), s(dim), a(dim) {}

  void add(std::size_t i, double kv, double z) {
    const double most = std::max(m[i], z);
    const double before = std::exp(m[i] - most), now = std::exp(z - most);
    s[i] = s[i] * before + now;
    a[i] = a[i] * before + kv * now;
    m[i] = most;
  }
  // [3, dim]
  void load(const float* from) {
    for (std::vector<double>* part : {&m, &s, &a}) {
      for (double& v : *part) v = *from++;
    }
  }
  void store(float* to) const {
    for (const std::vector<double>* part : {&m, &s, &a}) {
      for (const double v : *part) *to++ = static_cast<float>(v);
    }
  }
};

// Folds one request's tokens, one after another.
class Request {
 public:
  Request(const Compress& op, const PoolView& pool, std::size_t r)
      : op_(op), pool_(pool), r_(r), now_(dim()), next_(dim()) {
    const PageId before = op.step->state_before[r];
    if (before.is_hole()) return;
    const std::int64_t last = op.step->kv_lens[r] - rows() - 1;
    now_.load(state(before, last));
    if (op.halves == 2) next_.load(state(before, last) + 3 * op.dim);
  }

  Result<void> run() {
    const StepView& step = *op_.step;
    for (std::int64_t t = step.q_indptr[r_]; t < step.q_indptr[r_ + 1]; ++t) {
      const std::int64_t p = step.positions[static_cast<std::size_t>(t)].value;
      if (p < 0) continue;
      add(t, p);
      if ((p + 1) % op_.ratio == 0) {
        if (auto ok = emit(t, p); !ok) return ok;
        std::swap(now_, next_);
        next_ = Fold(dim());
      }
      const PageId slot = step.state_table.at(static_cast<std::int64_t>(r_), p / step.state_tokens);
      if (slot.is_hole() || !leaves_state(step, op_.state, p, step.kv_lens[r_])) continue;
      now_.store(state(slot, p));
      if (op_.halves == 2) next_.store(state(slot, p) + 3 * op_.dim);
    }
    return {};
  }

 private:
  std::size_t dim() const { return static_cast<std::size_t>(op_.dim); }
  std::int64_t rows() const { return op_.step->q_indptr[r_ + 1] - op_.step->q_indptr[r_]; }
  float* state(PageId slot, std::int64_t position) const {
    return reinterpret_cast<float*>(op_.state.at(slot, position));
  }

  void add(std::int64_t t, std::int64_t p) {
    const auto* kv = reinterpret_cast<const float*>(op_.kv.row(t));
    const auto* gate = reinterpret_cast<const float*>(op_.gate.row(t));
    const std::int64_t width = std::int64_t{op_.halves} * op_.dim;
    const float* bias = op_.position_bias.data() + p % op_.ratio * width;
    for (std::int64_t i = 0; i < width; ++i) {
      const bool own = i >= width - op_.dim;
      const auto channel = static_cast<std::size_t>(i % op_.dim);
      (own ? now_ : next_).add(channel, kv[i], double{gate[i]} + bias[i]);
    }
  }

  Result<void> emit(std::int64_t t, std::int64_t p) {
    std::vector<double> entry(dim());
    double squares = 0;
    for (std::size_t i = 0; i < dim(); ++i) {
      entry[i] = now_.a[i] / now_.s[i];
      squares += entry[i] * entry[i];
    }
    const double factor = 1 / std::sqrt(squares / op_.dim + op_.norm_eps);
    std::vector<float> row(dim());
    for (std::size_t i = 0; i < dim(); ++i) {
      const double scale = op_.norm.empty() ? 1 : factor * op_.norm[i];
      row[i] = static_cast<float>(entry[i] * scale);
    }
    const auto first = LocalPos(static_cast<std::int32_t>(p + 1 - op_.ratio));
    rotate_row(*op_.table, first, RopeDirection::forward, row.data() + op_.dim - op_.table->dim());
    if (op_.hadamard) hadamard(row.data(), op_.dim);
    const RowsView view{reinterpret_cast<const std::byte*>(row.data()), DType::f32, 1, op_.dim,
                        op_.dim};
    return encode_rows(view, op_.step->compressed_out_slots.subspan(static_cast<std::size_t>(t), 1),
                       pool_);
  }

  const Compress& op_;
  const PoolView& pool_;
  std::size_t r_;
  Fold now_, next_;  // the next token's group, and the group after it
};

}  // namespace

Result<void> ref_compress(const Compress& op, const PoolView& pool) {
  for (std::int64_t r = 0; r < op.step->requests; ++r) {
    if (auto ok = Request(op, pool, static_cast<std::size_t>(r)).run(); !ok) return ok;
  }
  return {};
}

}  // namespace lathe
