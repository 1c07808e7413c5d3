// TextStream: turns an answer's tokens into final text.
#pragma once

#include <string>
#include <utility>

#include "engine/request/stop_strings.h"
#include "io/tokenizer/detokenizer.h"

namespace lathe {

class TextStream {
 public:
  TextStream(Detokenizer detokenizer, StopStrings stops)
      : detokenizer_(std::move(detokenizer)), stops_(std::move(stops)) {}

  /// Adds a token. Returns the text that is final: neither part of an incomplete character nor of a
  /// possible stop string.
  std::string push(std::int32_t token) { return stops_.push(detokenizer_.push(token)); }
  /// Adds a token with `text` in place of its own text.
  std::string push_mark(const std::string& text) {
    return stops_.push(detokenizer_.flush() + text);
  }
  /// Returns the rest, at the end of the answer.
  std::string finish() {
    std::string out = stops_.push(detokenizer_.flush());
    return out + stops_.flush();
  }
  /// Whether a stop string was found; the caller should end the request with FinishReason::stop.
  bool stopped() const { return stops_.matched(); }
  /// Its index; -1: none.
  int stop() const { return stops_.match(); }

 private:
  Detokenizer detokenizer_;
  StopStrings stops_;
};

}  // namespace lathe
