#include "kernels/cpu/moe/route.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/common/for_rows.h"

namespace lathe {
namespace {

constexpr float kTaken = -std::numeric_limits<float>::infinity();

// Index of the highest of n values, ties to the lower index. If all are -inf or NaN, the first
// index that is not in `taken`.
std::int32_t highest(const float* values, std::int32_t n, const std::uint8_t* taken) {
  std::int32_t best = -1;
  float most = kTaken;
  for (std::int32_t i = 0; i < n; ++i) {
    if (taken[i] != 0) continue;
    if (best < 0 || values[i] > most) {
      best = i;
      most = std::isnan(values[i]) ? kTaken : values[i];
    }
  }
  return best;
}

void score(const Router& router, const float* logits, float* scores) {
  if (router.scoring == RouterScoring::sigmoid) {
    for (std::int32_t i = 0; i < router.experts; ++i) scores[i] = 1 / (1 + std::exp(-logits[i]));
    return;
  }
  if (router.scoring == RouterScoring::sqrt_softplus) {
    // Above 20, ln(1 + e^x) is x to the last bit; e^x could overflow.
    for (std::int32_t i = 0; i < router.experts; ++i) {
      const float x = logits[i];
      scores[i] = std::sqrt(x > 20 ? x : std::log1p(std::exp(x)));
    }
    return;
  }
  float most = kTaken;
  for (std::int32_t i = 0; i < router.experts; ++i) {
    if (logits[i] > most) most = logits[i];
  }
  float sum = 0;
  for (std::int32_t i = 0; i < router.experts; ++i) sum += scores[i] = std::exp(logits[i] - most);
  for (std::int32_t i = 0; i < router.experts; ++i) scores[i] /= sum;
}

// Scratch for one row.
struct RouteMemory {
  float* scores;        // [experts] without bias
  float* choice;        // [experts] biased scores, which decide
  float* group_scores;  // [groups]
  std::uint8_t* taken;  // [experts] already chosen; also used for groups

  static std::int64_t floats(const Router& r) {
    return (2 * std::int64_t{r.experts} + r.groups + (r.experts + 3) / 4 + 15) / 16 * 16;
  }
  RouteMemory(const Router& r, float* at)
      : scores(at),
        choice(at + r.experts),
        group_scores(choice + r.experts),
        taken(reinterpret_cast<std::uint8_t*>(group_scores + r.groups)) {}
};

void clear(std::uint8_t* taken, std::int32_t n) {
  for (std::int32_t i = 0; i < n; ++i) taken[i] = 0;
}

// Sets `choice` to -inf for the experts of dropped groups.
void keep_groups(const Router& router, const RouteMemory& m) {
  const std::int32_t size = router.experts / router.groups;
  clear(m.taken, router.experts);
  for (std::int32_t g = 0; g < router.groups; ++g) {
    const float* group = m.choice + g * size;
    const std::int32_t first = highest(group, size, m.taken);
    m.taken[first] = 1;
    m.group_scores[g] = group[first];
    if (size > 1 && router.group_best > 1)
      m.group_scores[g] += group[highest(group, size, m.taken)];
    m.taken[first] = 0;
  }
  for (std::int32_t i = 0; i < router.top_groups; ++i) {
    m.taken[highest(m.group_scores, router.groups, m.taken)] = 1;
  }
  for (std::int32_t i = 0; i < router.experts; ++i) {
    if (m.taken[i / size] == 0) m.choice[i] = kTaken;
  }
}

// Writes the ids of the experts with the best scores of a row.
void choose(const Router& router, const RouteMemory& m, std::int32_t* ids) {
  for (std::int32_t i = 0; i < router.experts; ++i) {
    const auto at = static_cast<std::size_t>(i);
    m.choice[i] = m.scores[i] + (router.bias.empty() ? 0 : router.bias[at]);
  }
  if (router.groups > 1) keep_groups(router, m);
  clear(m.taken, router.experts);
  for (std::int32_t j = 0; j < router.top_k; ++j) {
    ids[j] = highest(m.choice, router.experts, m.taken);
    m.taken[ids[j]] = 1;
  }
}

// `token` is used only if the router has token_experts.
void route_row(const Router& router, const float* logits, std::int32_t token, const RouteMemory& m,
               std::int32_t* ids, float* weights) {
  score(router, logits, m.scores);
  if (router.token_experts.empty()) {
    choose(router, m, ids);
  } else {
    std::copy_n(router.token_experts.data() + std::int64_t{token} * router.top_k, router.top_k,
                ids);
  }
  float sum = 0;
  for (std::int32_t j = 0; j < router.top_k; ++j) {
    weights[j] = m.scores[ids[j]];
    sum += weights[j];
  }
  for (std::int32_t j = 0; j < router.top_k; ++j) {
    if (router.normalize) weights[j] /= sum + 1e-20f;
    weights[j] *= router.scale;
    if (!router.expert_scale.empty()) {
      weights[j] *= router.expert_scale[static_cast<std::size_t>(ids[j])];
    }
  }
}

}  // namespace

void cpu_route(const Execution& execution, Arena& arena, const Router& router,
               const RowsView& logits, std::span<std::int32_t> ids, std::span<float> weights,
               std::span<const std::int32_t> tokens) {
  const Arena::Scope scope(arena);
  const std::int64_t floats = RouteMemory::floats(router);
  auto* memory = arena.take_array<float>(floats * logits.rows);
  const std::int64_t work = std::int64_t{router.experts} * (16 + router.top_k);
  for_rows(execution, logits.rows, work, [&](std::int64_t t) {
    const std::int64_t at = t * router.top_k;
    const std::int32_t token =
        router.token_experts.empty() ? 0 : tokens[static_cast<std::size_t>(t)];
    route_row(router, reinterpret_cast<const float*>(logits.row(t)), token,
              RouteMemory(router, memory + t * floats), ids.data() + at, weights.data() + at);
  });
}

}  // namespace lathe
