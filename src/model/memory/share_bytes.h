// Bytes of the weights that a rank's share of a model has, from the configuration alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include "attn/ranks.h"
#include "model/config/config.h"

namespace lathe {

enum class WeightPart { embedding, head, dense, shared, experts, other };

/// Bytes of a share by part, without the copies made on loading.
struct RankBytes {
  std::array<std::int64_t, 6> of{};
  std::int64_t replicated = 0;

  std::int64_t& at(WeightPart part) { return of[static_cast<std::size_t>(part)]; }
  std::int64_t at(WeightPart part) const { return of[static_cast<std::size_t>(part)]; }
  std::int64_t sum() const;
};

/// Counts each share once: the table of a model with many experts has some 100,000 tensors, and a
/// plan is tried with many sizes. `config` outlives it.
class ShareBytes {
 public:
  explicit ShareBytes(const ModelConfig& config) : config_(config) {}

  const RankBytes& of(const Share& share);
  const RankBytes& whole();

 private:
  const ModelConfig& config_;
  std::deque<std::pair<Share, RankBytes>> known_;
};

}  // namespace lathe
