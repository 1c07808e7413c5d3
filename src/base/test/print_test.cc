#include "base/print.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <string>

namespace lathe {
namespace {

// stderr is another file for the life of this.
class ErrTo {
 public:
  explicit ErrTo(int fd) : kept_(dup(STDERR_FILENO)) {
    if (fd >= 0) dup2(fd, STDERR_FILENO);
    if (fd < 0) close(STDERR_FILENO);
  }
  ~ErrTo() {
    dup2(kept_, STDERR_FILENO);
    close(kept_);
  }

 private:
  int kept_;
};

std::int64_t lost_by(const std::string& text, int fd) {
  const std::int64_t before = lost_prints();
  const ErrTo scene(fd);
  print_err(text);
  return lost_prints() - before;
}

TEST(PrintErr, E3LosesWhatNobodyTakes) {
  std::signal(SIGPIPE, SIG_IGN);
  EXPECT_EQ(lost_by("a\n", -1), 1);
  const int full = open("/dev/full", O_WRONLY);
  EXPECT_EQ(lost_by("a\n", full), 1);
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  EXPECT_EQ(lost_by("abc\n", ends[1]), 0);
  std::array<char, 4> got{};
  ASSERT_EQ(read(ends[0], got.data(), 4), 4);
  EXPECT_EQ(std::string(got.data(), 4), "abc\n");
  // A pipe of 64 KiB that nobody reads; later prints do not wait for it.
  EXPECT_EQ(lost_by(std::string(1 << 20, 'x'), ends[1]), 1);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(lost_by("b\n", ends[1]), 1);
  close(ends[0]);  // its reader leaves
  EXPECT_EQ(lost_by("c\n", ends[1]), 1);
  close(ends[1]);
  close(full);
}

TEST(PrintErr, FormatsLines) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  format_err_lines([](std::string_view line) { return "<" + std::string(line) + ">"; });
  EXPECT_EQ(lost_by("one\ntwo\n\nthree", ends[1]), 0);
  format_err_lines({});
  std::array<char, 100> got{};
  const auto n = read(ends[0], got.data(), got.size());
  EXPECT_EQ(std::string(got.data(), static_cast<std::size_t>(n)), "<one>\n<two>\n<three>\n");
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace lathe
