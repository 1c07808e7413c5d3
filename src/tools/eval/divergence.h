// How far a model's distributions are from a reference model's on one text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace lathe {

class Divergence {
 public:
  Divergence(std::size_t rows, std::size_t vocab) : vocab_(vocab), kept_(rows * vocab) {}

  /// Error: a model with another number of scored tokens, or another vocabulary.
  Result<void> fits(std::size_t rows, std::int32_t vocab) const;
  /// The reference's logits [vocab] at a scored token.
  void keep(std::size_t row, std::span<const float> logits);
  /// The model's logits at the same token, once per row.
  void compare(std::size_t row, std::span<const float> logits);

  std::string text() const;
  nlohmann::ordered_json json() const;

 private:
  struct Figures {
    double mean_kl, mean_difference;
  };
  Figures figures() const;

  std::size_t vocab_;
  std::vector<float> kept_;                      // [rows, vocab]
  std::int64_t rows_ = 0;                        // compared
  std::int64_t same_ = 0;                        // rows of one most likely token
  double kl_ = 0, most_kl_ = 0;                  // KL(reference || model) in nats: sum, maximum
  double difference_ = 0, most_difference_ = 0;  // of logits: sum, maximum
};

}  // namespace lathe
