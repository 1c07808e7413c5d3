// TextStream: turns an answer's tokens into final text.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "engine/request/stop_strings.h"
#include "io/tokenizer/detokenizer.h"

namespace lathe {

class TextStream {
 public:
  /// Stop strings count from token `min_tokens` of the answer on.
  TextStream(Detokenizer detokenizer, StopStrings stops, std::int64_t min_tokens = 0)
      : detokenizer_(std::move(detokenizer)), stops_(std::move(stops)), min_tokens_(min_tokens) {}

  /// Adds a token. Returns the text that is final: neither part of an incomplete character nor of a
  /// possible stop string.
  std::string push(std::int32_t token) {
    ++tokens_;
    return stops_.push(detokenizer_.push(token), may_stop());
  }
  /// Adds a token with `text` in place of its own text.
  std::string push_mark(const std::string& text) {
    ++tokens_;
    return stops_.push(detokenizer_.flush() + text, may_stop());
  }
  /// Returns the rest, at the end of the answer.
  std::string finish() {
    std::string out = stops_.push(detokenizer_.flush(), may_stop());
    return out + stops_.flush();
  }
  /// Whether a stop string was found; the caller should end the request with FinishReason::stop.
  bool stopped() const { return stops_.matched(); }
  /// Its index; -1: none.
  int stop() const { return stops_.match(); }

 private:
  bool may_stop() const { return tokens_ >= min_tokens_; }

  Detokenizer detokenizer_;
  StopStrings stops_;
  std::int64_t min_tokens_;
  std::int64_t tokens_ = 0;
};

}  // namespace lathe
