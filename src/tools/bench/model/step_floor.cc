#include "tools/bench/model/step_floor.h"

#include <algorithm>

#include "plan/floor.h"

namespace lathe {
namespace {

// Seconds of arithmetic for `rows` rows; `logit_rows` of them have logits.
double arithmetic_seconds(const Runtime& runtime, const StepWeights& w, double rows,
                          double logit_rows, const AttentionFlops& attention) {
  const Machine& machine = runtime.machine();
  const double codes = runtime.precision() == MatmulPrecision::fp8 ? w.e4m3_products : 0;
  const double wide = (w.products - codes) * rows + w.logit_products * logit_rows;
  return (2 * wide + attention.attention) / machine.bf16_flops +
         (2 * codes * rows + attention.index) / machine.fp8_flops;
}

AttentionFlops attention_of(const Runtime& runtime, Phase phase, std::int64_t requests,
                            std::int64_t rows, std::int64_t cached) {
  AttentionFlops sum;
  const double n = static_cast<double>(requests);
  for (const GroupPlan& g : runtime.plan().groups) {
    const AttentionFlops f = attention_flops(g.plan, phase, rows, cached);
    sum.attention += n * f.attention;
    sum.index += n * f.index;
  }
  return sum;
}

}  // namespace

StepFloor decode_floor(const Runtime& runtime, std::int64_t batch, std::int64_t context,
                       double bytes_per_second) {
  const StepWeights w = runtime.model().step_weights(batch);
  const double rows = static_cast<double>(batch);
  StepFloor out{.bytes = w.bytes};
  for (const GroupPlan& g : runtime.plan().groups) {
    out.bytes += rows * decode_cache_bytes(g.plan, context);
    // The states of the delta rule are read and written.
    if (g.group.delta) out.bytes += 2 * rows * static_cast<double>(g.group.all_state_bytes());
  }
  out.seconds = out.bytes / bytes_per_second;
  if (is_gpu(runtime.machine().device)) {
    const AttentionFlops attention = attention_of(runtime, Phase::decode, batch, 1, context - 1);
    out.seconds = std::max(out.seconds, arithmetic_seconds(runtime, w, rows, rows, attention));
  }
  return out;
}

StepFloor prefill_floor(const Runtime& runtime, std::int64_t batch, std::int64_t tokens,
                        std::int64_t depth) {
  if (!is_gpu(runtime.machine().device)) return {};
  const StepWeights w = runtime.model().step_weights(batch * tokens);
  const AttentionFlops attention = attention_of(runtime, Phase::extend, batch, tokens, depth);
  return {w.bytes, arithmetic_seconds(runtime, w, static_cast<double>(batch * tokens),
                                      static_cast<double>(batch), attention)};
}

}  // namespace lathe
