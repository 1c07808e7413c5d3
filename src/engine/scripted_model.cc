#include "engine/scripted_model.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace lathe {

ScriptedModel::ScriptedModel(Script script) : script_(std::move(script)) {
  config_.architecture = "Scripted";
  config_.vocab = script_.vocab;
  config_.hidden = config_.ffn = 16;
  config_.layers = 1;
  config_.max_context = script_.context;
  config_.eos = script_.eos;
  LayerGroupConfig& all = config_.groups.emplace_back();
  all.name = "all";
  all.problem = gqa_problem(1, 1, 16);
  all.layers = {0};
}

Result<ForwardResult> ScriptedModel::forward(const OpsContext&, const ForwardArgs& args) const {
  if (script_.on_forward) {
    if (auto ok = script_.on_forward(std::ssize(args.tokens)); !ok) return ok.error();
  }
  std::size_t next = 0;
  for (const Segment& s : args.segments_of(0, 1)) {
    for (std::int64_t r = 0; r < s.step->rows && next < args.logit_rows.size(); ++r) {
      const std::int64_t row = s.first_row + r;
      if (args.logit_rows[next] != row) continue;
      auto* logits = reinterpret_cast<float*>(args.logits.row(static_cast<std::int64_t>(next++)));
      std::fill_n(logits, script_.vocab, 0.0f);
      const std::int32_t token = script_.next(args.tokens[static_cast<std::size_t>(row)],
                                              s.step->positions[static_cast<std::size_t>(r)].value);
      if (token == script_.vocab) {
        logits[0] = std::numeric_limits<float>::quiet_NaN();
      } else {
        logits[token] = 100;  // wins at every temperature that a request may have
      }
    }
  }
  LATHE_CHECK(next == args.logit_rows.size(), "a logit row outside the batch");
  return ForwardResult();
}

}  // namespace lathe
