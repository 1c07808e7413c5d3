#include "tools/bench/kernels/bench_delta.h"

#include <chrono>
#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <string>

#include "base/rows_view.h"
#include "kernels/cpu/delta/delta_rule.h"
#include "tools/bench/machine_peak.h"
#include "tools/bench/median.h"

namespace lathe {
namespace {

DeltaRuleProblem gdn_problem() { return {.heads = 32, .key_heads = 16, .dk = 128, .dv = 128}; }
DeltaRuleProblem kda_problem() {
  return {.heads = 32,
          .key_heads = 32,
          .dk = 128,
          .dv = 128,
          .decay = DeltaDecay::per_channel,
          .output = DeltaOutput::sigmoid};
}

std::vector<float> normal_floats(std::mt19937& rng, std::int64_t n, float scale, float mean = 0) {
  std::normal_distribution<float> normal(mean, scale);
  std::vector<float> out(static_cast<std::size_t>(n));
  for (float& x : out) x = normal(rng);
  return out;
}

// A decode step of `batch` requests. Each request has two slots, which it reads and writes in turn.
class DeltaScene {
 public:
  DeltaScene(const DeltaRuleProblem& problem, std::int64_t batch)
      : problem_(problem),
        batch_(batch),
        x_(normal_floats(rng_, batch * problem.channels(), 1)),
        decay_(normal_floats(rng_, batch * problem.gate_cols(), 1)),
        beta_(normal_floats(rng_, batch * problem.heads, 1)),
        gate_(normal_floats(rng_, batch * problem.value_cols(), 1)),
        out_(gate_.size()),
        conv_(normal_floats(rng_, problem.channels() * problem.conv, 0.5f)),
        a_log_(normal_floats(rng_, problem.heads, 1)),
        dt_bias_(normal_floats(rng_, problem.gate_cols(), 1, -3)),
        norm_(normal_floats(rng_, problem.dv, 0.2f, 1)),
        floats_(delta_state_bytes(problem) / 4) {
    const std::vector<float> pattern = normal_floats(rng_, 65521, 0.1f);
    const std::int64_t n = 2 * batch * floats_;
    states_ = arena_.take_array<float>(n);
    for (std::int64_t i = 0; i < n; ++i) {
      states_[i] = pattern[static_cast<std::size_t>(i) % pattern.size()];
    }
    for (std::int32_t r = 0; r < batch; ++r) {
      positions_.emplace_back(100);
      requests_.push_back(r);
      indptr_.push_back(r);
      lens_.push_back(101);
    }
    indptr_.push_back(static_cast<std::int32_t>(batch));
  }

  double step_seconds(ThreadPool& pool) {
    before_.clear(), after_.clear();
    for (std::int32_t r = 0; r < batch_; ++r) {
      before_.emplace_back(2 * r + turn_);
      after_.emplace_back(2 * r + 1 - turn_);
    }
    turn_ = 1 - turn_;
    StepView v;
    v.phase = Phase::decode;
    v.rows = v.requests = batch_;
    v.max_rows = 1;
    v.positions = positions_;
    v.row_request = requests_;
    v.q_indptr = indptr_;
    v.kv_lens = lens_;
    v.state_before = before_;
    v.state_table = {after_.data(), batch_, 1};
    v.state_tokens = 1 << 20;
    const auto rows = [&](std::vector<float>& data) {
      const auto cols = static_cast<std::int64_t>(data.size()) / batch_;
      return MutableRowsView{reinterpret_cast<std::byte*>(data.data()), DType::f32, batch_, cols,
                             cols};
    };
    const auto constant = [](const MutableRowsView& m) {
      return RowsView{m.data, m.dtype, m.rows, m.cols, m.row_stride};
    };
    const DeltaRule op{.step = &v,
                       .problem = problem_,
                       .x = constant(rows(x_)),
                       .decay = constant(rows(decay_)),
                       .beta = constant(rows(beta_)),
                       .gate = constant(rows(gate_)),
                       .conv = conv_,
                       .a_log = a_log_,
                       .dt_bias = dt_bias_,
                       .norm = norm_,
                       .norm_eps = 1e-6f,
                       .out = rows(out_),
                       .state = {reinterpret_cast<std::byte*>(states_), 4 * floats_, 1}};
    const auto start = std::chrono::steady_clock::now();
    cpu_delta_rule({.threads = &pool}, arena_, op);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  /// As many bytes as a step reads.
  std::span<const float> states_of_a_step() const {
    return {states_, static_cast<std::size_t>(batch_ * floats_)};
  }
  /// As many bytes as a step writes.
  float* other_states() { return states_ + batch_ * floats_; }

 private:
  std::mt19937 rng_{1};
  DeltaRuleProblem problem_;
  std::int64_t batch_;
  std::vector<float> x_, decay_, beta_, gate_, out_, conv_, a_log_, dt_bias_, norm_;
  std::int64_t floats_;
  Arena arena_;
  float* states_ = nullptr;  // [2 batch, floats_]
  std::vector<LocalPos> positions_;
  std::vector<std::int32_t> requests_, indptr_, lens_;
  std::vector<PageId> before_, after_;
  std::int32_t turn_ = 0;
};

}  // namespace

std::vector<LatentBenchRow> bench_delta(int repeats) {
  std::vector<LatentBenchRow> out;
  for (const bool per_channel : {false, true}) {
    const DeltaRuleProblem problem = per_channel ? kda_problem() : gdn_problem();
    for (const std::int64_t batch : {16, 64}) {
      DeltaScene scene(problem, batch);
      for (const int threads : {1, 0}) {
        ThreadPool pool(threads);
        std::vector<double> steps, reads, copies;
        for (int i = 0; i <= repeats; ++i) {
          const double step = scene.step_seconds(pool);
          const double read = read_seconds(pool, scene.states_of_a_step());
          const double copy = copy_seconds(pool, scene.states_of_a_step(), scene.other_states());
          if (i == 0) continue;  // touches all memory
          copies.push_back(copy);
          steps.push_back(step);
          reads.push_back(read);
        }
        const auto bytes = static_cast<double>(scene.states_of_a_step().size_bytes());
        LatentBenchRow row;
        row.layout = per_channel ? "kda f32" : "gdn f32";
        row.batch = batch;
        row.heads = problem.heads;
        row.threads = pool.threads();
        row.read_gbps = bytes / median(reads) / 1e9;
        const auto add = [&](const char* name, const std::vector<double>& seconds) {
          row.name = name;
          row.seconds = median(seconds);
          row.gbps = bytes / row.seconds / 1e9;
          row.share = row.gbps / row.read_gbps;
          out.push_back(row);
        };
        add("delta decode", steps);
        add("delta copy", copies);
      }
    }
  }
  return out;
}

}  // namespace lathe
