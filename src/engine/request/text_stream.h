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

  /// Takes a token; returns text that neither an incomplete character nor a possible stop string
  /// holds back.
  std::string push(std::int32_t token) { return stops_.push(detokenizer_.push(token)); }
  /// The same for a token whose own text is skipped and that `text` stands for.
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
