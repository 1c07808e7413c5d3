#include "model/layers/forward_args.h"

#include <vector>

#include "base/check.h"
#include "kernels/communicator.h"

namespace lathe {

void check_args(const OpsContext& ops, const DecoderView& m, const ForwardArgs& args,
                std::span<const std::size_t> groups) {
  const std::int32_t ranks = ops.communicator == nullptr ? 1 : ops.communicator->size();
  LATHE_CHECK(m.weights.share.ranks == ranks, "weights of a rank of the group");
  LATHE_CHECK(args.cache != nullptr && args.cache->groups() == m.config.groups.size(),
              "the cache was planned for another model");
  LATHE_CHECK(args.segments.size() % groups.size() == 0, "every layer group has the same segments");
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::size_t g = groups[i];
    LATHE_CHECK(args.cache->plan(g).problem == m.config.groups[g].problem,
                "the cache was planned for another model");
    const LayerGroup& planned = args.cache->plan().groups[g].group;
    LATHE_CHECK(planned.layers == m.config.groups[g].layers &&
                    planned.readers == m.config.groups[g].readers,
                "the cache has the model's layers");
    const auto& delta = args.cache->plan().groups[g].group.delta;
    LATHE_CHECK(
        g > 0 || (delta ? delta->layers : std::vector<std::int32_t>()) == m.config.delta.layers,
        "the cache has states of the model's layers");
    std::int64_t covered = 0;
    for (const Segment& s : args.segments_of(i, groups.size())) {
      LATHE_CHECK(s.first_row == covered, "segments cover all rows, in order");
      covered += s.step->rows;
    }
    LATHE_CHECK(covered == std::ssize(args.tokens), "segments cover all rows, in order");
  }
  const std::int64_t rows = std::ssize(args.logit_rows);
  LATHE_CHECK(args.logits.rows == (ranks == 1 ? rows : ops.communicator->owned_rows(rows)),
              "logits of this rank's logit_rows");
}

std::span<Selection> make_selections(const OpsContext& ops, const AttentionProblem& problem,
                                     std::span<const Segment> segments, std::int32_t* room) {
  const std::span selections(ops.control->take_array<Selection>(std::ssize(segments)),
                             segments.size());
  for (std::size_t s = 0; s < selections.size(); ++s) {
    const StepView& step = *segments[s].step;
    selections[s] = {};
    selections[s].width = slots_width(problem, step);
    if (selections[s].width == 0) continue;
    if (room != nullptr) {
      selections[s].slots = room + segments[s].first_row * problem.top_k;
      continue;
    }
    selections[s].slots = ops.tensors->take_array<std::int32_t>(step.rows * selections[s].width);
  }
  return selections;
}

MutableRowsView slot_rows(std::int32_t* slots, std::int64_t rows, std::int64_t width) {
  return {reinterpret_cast<std::byte*>(slots), DType::f32, rows, width, width};
}

}  // namespace lathe
