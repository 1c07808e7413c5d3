#include "tools/terminal/chat_input.h"

#include <editline/readline.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "tools/flags/command.h"

namespace lathe {

volatile std::sig_atomic_t interrupted = 0;

namespace {

volatile int wake_fd = -1;

void on_interrupt(int) {
  interrupted = 1;
  const int error = errno;
  if (wake_fd >= 0) static_cast<void>(!write(wake_fd, "", 1));
  errno = error;
}

// Results of the editor's callback, which has no argument.
struct Edited {
  bool done = false;
  bool end = false;  // Ctrl-D
  std::string text;
} edited;

void take_line(char* line) {
  edited.done = true;
  edited.end = line == nullptr;
  edited.text = line == nullptr ? "" : line;
  std::free(line);
  rl_callback_handler_remove();
}

// The line editor reads characters by the locale. With the C locale of many containers it would
// drop everything beyond ASCII.
void use_utf8() {
  std::setlocale(LC_CTYPE, "");
  if (MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");
}

bool is_fence(const std::string& line) {
  const std::size_t last = line.find_last_not_of(" \t\r");
  return last != std::string::npos && line.substr(0, last + 1) == "\"\"\"";
}

}  // namespace

InterruptScope::InterruptScope() {
  interrupted = 0;
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  sigaction(SIGINT, &action, &before_);
}

InterruptScope::~InterruptScope() { sigaction(SIGINT, &before_, nullptr); }

ChatInput::ChatInput() : terminal_(isatty(STDIN_FILENO) == 1) {
  use_utf8();
  if (!terminal_) return;
  rl_catch_signals = 0;
  using_history();
  if (pipe2(wake_, O_NONBLOCK | O_CLOEXEC) == 0) wake_fd = wake_[1];
}

ChatInput::~ChatInput() {
  if (!terminal_) return;
  clear_history();
  wake_fd = -1;
  for (const int fd : wake_) {
    if (fd >= 0) close(fd);
  }
}

ChatInput::Line ChatInput::edit_line(const char* prompt, std::string& line) {
  char old[16];
  while (read(wake_[0], old, sizeof(old)) > 0) {
  }
  const InterruptScope scope;
  edited = {};
  rl_callback_handler_install(prompt, take_line);
  while (!edited.done) {
    struct pollfd in[] = {{STDIN_FILENO, POLLIN, 0}, {wake_[0], POLLIN, 0}};
    const int ready = poll(in, 2, -1);
    if (interrupted != 0 || (ready > 0 && in[1].revents != 0)) {
      rl_callback_handler_remove();
      print_out("^C\n");
      flush_out();
      return Line::interrupt;
    }
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0 || (in[0].revents & POLLIN) == 0) {
      rl_callback_handler_remove();
      return Line::end;
    }
    rl_callback_read_char();
  }
  if (edited.end) return Line::end;
  if (!edited.text.empty()) add_history(edited.text.c_str());
  line = std::move(edited.text);
  return Line::text;
}

ChatInput::Line ChatInput::read_line(const char* prompt, std::string& line) {
  if (terminal_) return edit_line(prompt, line);
  return std::getline(std::cin, line) ? Line::text : Line::end;
}

std::optional<std::string> ChatInput::next() {
  std::string message;
  bool fenced = false;
  bool begun = false;
  bool left_once = false;
  for (;;) {
    std::string line;
    const Line got = read_line(begun ? ". " : "> ", line);
    if (got == Line::end) {
      if (begun && !terminal_) return message;
      return std::nullopt;
    }
    if (got == Line::interrupt) {
      if (left_once) return std::nullopt;
      left_once = true;
      begun = fenced = false;
      message.clear();
      print_out("(Ctrl-C again, or /exit, leaves)\n");
      continue;
    }
    left_once = false;
    if (is_fence(line)) {
      if (fenced) return message;
      if (!begun) {
        begun = fenced = true;
        continue;
      }
    }
    const bool goes_on = !fenced && line.ends_with('\\');
    if (goes_on) line.pop_back();
    if (fenced || goes_on) {
      message += line + "\n";
      begun = true;
      continue;
    }
    return message + line;
  }
}

}  // namespace lathe
