// What a user types to `lathe chat`: lines with editing and recall on a terminal, plain lines
// otherwise.
#pragma once

#include <csignal>
#include <optional>
#include <string>

namespace lathe {

/// Set by Ctrl-C while an InterruptScope is open.
extern volatile std::sig_atomic_t interrupted;

class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

 private:
  struct sigaction before_ = {};
};

/// One message at a time. A line that ends in a backslash continues in the next one; between two
/// lines of """ everything is one message. Ctrl-C discards what was typed; Ctrl-C twice in a row,
/// or Ctrl-D, ends the input.
class ChatInput {
 public:
  ChatInput();
  ~ChatInput();
  ChatInput(const ChatInput&) = delete;
  ChatInput& operator=(const ChatInput&) = delete;

  /// The next message; nothing at the end of input.
  std::optional<std::string> next();

 private:
  enum class Line { text, interrupt, end };
  Line read_line(const char* prompt, std::string& line);
  Line edit_line(const char* prompt, std::string& line);

  bool terminal_;
  // Gets a byte at every Ctrl-C, so that the thread that waits for a line wakes, whichever thread
  // the signal reaches.
  int wake_[2] = {-1, -1};
};

}  // namespace lathe
