#include "io/files/gzip.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <vector>

namespace lathe {
namespace {

// "two lines\nof text\n", by Python's gzip.compress(..., mtime=0).
const std::vector<std::uint8_t> kCompressed = {
    0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x03, 0x2b, 0x29, 0xcf,
    0x57, 0xc8, 0xc9, 0xcc, 0x4b, 0x2d, 0xe6, 0xca, 0x4f, 0x53, 0x28, 0x49, 0xad,
    0x28, 0xe1, 0x02, 0x00, 0x07, 0xf6, 0xa2, 0x8e, 0x12, 0x00, 0x00, 0x00};

class GzipFile : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::temp_directory_path() /
            ("lathe_gzip_" + std::to_string(getpid()) + "_" +
             ::testing::UnitTest::GetInstance()->current_test_info()->name());
  }
  void TearDown() override { std::filesystem::remove(path_); }
  void write(const std::vector<std::uint8_t>& bytes) {
    std::ofstream(path_, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
  }
  std::filesystem::path path_;
};

TEST_F(GzipFile, ReadsCompressedAndPlainText) {
  write(kCompressed);
  EXPECT_EQ(*read_gzip_file(path_), "two lines\nof text\n");
  write({'p', 'l', 'a', 'i', 'n'});
  EXPECT_EQ(*read_gzip_file(path_), "plain");
  write({});
  EXPECT_EQ(*read_gzip_file(path_), "");
}

TEST_F(GzipFile, RefusesWhatIsCutOffDamagedTooLargeOrMissing) {
  for (std::size_t length = 12; length < kCompressed.size(); ++length) {
    write({kCompressed.begin(), kCompressed.begin() + static_cast<std::ptrdiff_t>(length)});
    const auto cut = read_gzip_file(path_);
    ASSERT_FALSE(cut) << length;
    EXPECT_EQ(cut.error().code, ErrorCode::malformed);
  }
  std::vector<std::uint8_t> damaged = kCompressed;
  damaged[damaged.size() - 8] ^= 1;  // the checksum
  write(damaged);
  EXPECT_EQ(read_gzip_file(path_).error().code, ErrorCode::malformed);
  write(kCompressed);
  EXPECT_EQ(read_gzip_file(path_, 17).error().code, ErrorCode::exhausted);
  EXPECT_TRUE(read_gzip_file(path_, 18));
  std::filesystem::remove(path_);
  EXPECT_EQ(read_gzip_file(path_).error().code, ErrorCode::io);
}

}  // namespace
}  // namespace lathe
