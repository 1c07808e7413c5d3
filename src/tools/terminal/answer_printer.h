// Prints an answer as it arrives: reasoning dim, then the answer.
#pragma once

#include <string>

#include "server/markup/text_parts.h"
#include "tools/terminal/word_wrap.h"

namespace lathe {

/// auto_  dim on a terminal, left out elsewhere
/// show   always; dim on a terminal
/// hide   never
enum class ShowReasoning { auto_, show, hide };

class AnswerPrinter {
 public:
  /// `columns`: of the terminal that prints; 0: none does.
  AnswerPrinter(ShowReasoning show, int columns)
      : shows_(show == ShowReasoning::show || (show == ShowReasoning::auto_ && columns > 0)),
        terminal_(columns > 0),
        columns_(columns),
        wrap_(columns) {}

  /// What is to be printed of new parts.
  std::string push(const TextParts& parts);
  /// The rest.
  std::string finish();

 private:
  std::string leave_reasoning();

  bool shows_, terminal_;
  int columns_;
  WordWrap wrap_;
  bool reasons_ = false;  // the reasoning is open
  bool began_ = false;    // the answer after shown reasoning has text
  bool shown_ = false;    // reasoning was printed
};

}  // namespace lathe
