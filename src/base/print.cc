#include "base/print.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <mutex>

namespace lathe {
namespace {

constexpr int kPatienceMs = 100;

std::atomic<std::int64_t> lost{0};
std::mutex err_mutex;                                      // of all below
bool err_stuck = false;                                    // the last print waited in vain
std::function<std::string(std::string_view)> line_format;  // empty: lines as they are

bool can_write(int fd) {
  pollfd file{fd, POLLOUT, 0};
  const int ready = poll(&file, 1, err_stuck ? 0 : kPatienceMs);
  err_stuck = ready == 0;
  return ready != 0;
}

// A write of PIPE_BUF bytes to a pipe that poll() calls writable does not block. To a socket it may
// write fewer.
bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    if (!can_write(fd)) return false;
    const std::size_t part = std::min<std::size_t>(text.size(), PIPE_BUF);
    ssize_t n = send(fd, text.data(), part, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == ENOTSOCK) n = write(fd, text.data(), part);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

std::string in_lines(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (end > 0) out += line_format(text.substr(0, end)) + "\n";
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

}  // namespace

void keep_standard_files() {
  std::signal(SIGPIPE, SIG_IGN);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // open() returns the lowest free number, which is fd.
    if (fcntl(fd, F_GETFD) == -1) open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

void print_out(std::string_view text) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() && errno == EPIPE) {
    throw ReaderGone();
  }
}

void flush_out() {
  errno = 0;
  if (std::fflush(stdout) != 0 && errno == EPIPE) throw ReaderGone();
}

void print_err(std::string_view text) {
  const std::lock_guard lock(err_mutex);
  const std::string lines = line_format ? in_lines(text) : std::string();
  if (!write_all(STDERR_FILENO, line_format ? lines : text)) ++lost;
}

std::int64_t lost_prints() { return lost.load(); }

void format_err_lines(std::function<std::string(std::string_view)> format) {
  const std::lock_guard lock(err_mutex);
  line_format = std::move(format);
}

}  // namespace lathe
