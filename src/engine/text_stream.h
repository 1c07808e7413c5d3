// TextStream: turns one answer's tokens into text. Takes tokens, returns text that is final.
#pragma once

#include <string>
#include <utility>

#include "engine/stop_strings.h"
#include "io/detokenizer.h"

namespace lathe {

class TextStream {
 public:
  TextStream(Detokenizer detokenizer, StopStrings stops)
      : detokenizer_(std::move(detokenizer)), stops_(std::move(stops)) {}

  /// Text that neither an unfinished character nor the beginning of a stop string holds back.
  std::string push(std::int32_t token) { return stops_.push(detokenizer_.push(token)); }
  /// Text that stands for a token whose own text is skipped.
  std::string push_mark(const std::string& text) {
    return stops_.push(detokenizer_.flush() + text);
  }
  /// The answer has ended; the rest.
  std::string finish() {
    std::string out = stops_.push(detokenizer_.flush());
    return out + stops_.flush();
  }
  /// A stop string has been found: the request should be ended with FinishReason::stop.
  bool stopped() const { return stops_.matched(); }
  /// Which one, by its index; -1: none.
  int stop() const { return stops_.match(); }

 private:
  Detokenizer detokenizer_;
  StopStrings stops_;
};

}  // namespace lathe
