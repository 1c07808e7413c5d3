#include "io/files/mapped_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "io/checkpoint/checkpoint.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

// A file of `pages` pages, removed on destruction.
class FileOfPages {
 public:
  FileOfPages(const std::string& name, std::size_t pages)
      : path_(fs::path(testing::TempDir()) / name) {
    std::ofstream(path_, std::ios::binary) << std::string(pages * 4096, 'x');
  }
  ~FileOfPages() { fs::remove(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::byte read_at(std::span<const std::byte> bytes, std::size_t at) {
  return *static_cast<const volatile std::byte*>(bytes.data() + at);
}

// Without a handler the process dies of SIGBUS without a word. A moved mapping keeps its name.
TEST(MappedFile, E9ATruncatedFileIsNamed) {
  const FileOfPages file("lathe_e9_truncated", 8);
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        auto opened = MappedFile::open(file.path());
        MappedFile moved = std::move(*opened);
        fs::resize_file(file.path(), 4096);
        static_cast<void>(read_at(moved.bytes(), 0));  // is still there
        static_cast<void>(read_at(moved.bytes(), 7 * 4096));
      },
      testing::ExitedWithCode(1), "lathe: .*lathe_e9_truncated: wanted the bytes that it had");
}

// Other faults are not its business: they end as they did before.
TEST(MappedFile, E9AForeignBusErrorStaysOne) {
  const FileOfPages file("lathe_e9_foreign", 2);
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        // Registers a mapping, and unregisters it again.
        static_cast<void>(MappedFile::open(file.path()));
        ::raise(SIGBUS);
        ::raise(SIGBUS);
      },
      testing::KilledBySignal(SIGBUS), "");
}

TEST(MappedFile, E9PrefaultOfATruncatedFileIsAnError) {
  const FileOfPages file("lathe_e9_prefault", 8);
  const auto opened = MappedFile::open(file.path());
  ASSERT_TRUE(opened.ok());
  EXPECT_TRUE(opened->prefault(0, opened->bytes().size()).ok());
  fs::resize_file(file.path(), 4096);
  const auto read = opened->prefault(0, opened->bytes().size());
  ASSERT_FALSE(read.ok());
  EXPECT_THAT(read.error().message(), testing::HasSubstr("lathe_e9_prefault"));
}

}  // namespace
}  // namespace lathe
