// Prints to stdout and stderr. A log on a full disk, or one that nobody reads, must not end or stop
// what writes it.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <string_view>

namespace lathe {

/// Thrown when the reader of stdout has left.
struct ReaderGone : std::exception {
  const char* what() const noexcept override { return "the reader of stdout has left"; }
};

/// Opens stdin, stdout and stderr if they are closed, so that no socket gets their numbers; reading
/// and writing them still fails. Ignores SIGPIPE, so that writes fail instead. The first
/// call of a program.
void keep_standard_files();

/// Prints to stdout. Waits for a slow reader. Throws ReaderGone; a full disk shows in
/// ferror(stdout).
void print_out(std::string_view text);
void flush_out();

/// Prints to stderr. Never fails: text is lost, and counted, if stderr is closed, its disk is full,
/// its reader has left, or a pipe stays full for 100 ms. While it stays full nothing waits for it.
void print_err(std::string_view text);
/// Calls of print_err() that lost text.
std::int64_t lost_prints();

/// From here on print_err() prints `format(line)` for each line. Called before threads print.
void format_err_lines(std::function<std::string(std::string_view line)> format);

}  // namespace lathe
