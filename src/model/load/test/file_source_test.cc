// Parts of matrices copied from files, against their bytes.
#include "model/load/file_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

namespace lathe {
namespace {

namespace fs = std::filesystem;

// A directory with model.safetensors: tensors "a" and "b" of random bytes; removed on destruction.
class TwoTensors {
 public:
  TwoTensors(std::size_t a, std::size_t b) : dir_(fs::path(testing::TempDir()) / "lathe_source") {
    fs::create_directories(dir_);
    std::string header =
        R"({"a":{"dtype":"U8","shape":[)" + std::to_string(a) + R"(],"data_offsets":[0,)" +
        std::to_string(a) + R"(]},"b":{"dtype":"U8","shape":[)" + std::to_string(b) +
        R"(],"data_offsets":[)" + std::to_string(a) + "," + std::to_string(a + b) + "]}}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    std::string data(a + b, '\0');
    std::mt19937 rng(20261129);
    for (char& c : data) c = static_cast<char>(rng());
    const std::uint64_t size = header.size();
    std::ofstream out(file(), std::ios::binary);
    out.write(reinterpret_cast<const char*>(&size), 8) << header << data;
  }
  ~TwoTensors() { fs::remove_all(dir_); }
  fs::path file() const { return dir_ / "model.safetensors"; }
  const fs::path& dir() const { return dir_; }

 private:
  fs::path dir_;
};

std::vector<std::byte> copied(const WeightSource& source, const std::byte* from, std::size_t n) {
  std::vector<std::byte> out(n);
  EXPECT_TRUE(source.copy(from, out).ok());
  return out;
}

// Rows wider and narrower than a call is worth, in files and in memory, in pieces that begin and
// end inside rows.
TEST(FileSource, CopiesColumns) {
  constexpr std::int64_t kRows = 300, kPitch = 12288;
  const TwoTensors tensors(1001, kRows * kPitch);
  const Checkpoint checkpoint = *Checkpoint::open(tensors.dir());
  const std::span<const std::byte> b = checkpoint.find("b")->bytes;
  const std::vector<std::byte> memory(b.begin(), b.end());
  FileSource source(checkpoint);
  for (const std::byte* from : {b.data(), memory.data()}) {
    for (const auto& [first, width] : {std::pair{0, 512}, {11776, 512}, {1024, 6144}, {4, 1}}) {
      const std::byte* at = source.columns(from, kRows, kPitch, first, width);
      ASSERT_NE(at, nullptr);
      std::vector<std::byte> wanted;
      for (std::int64_t r = 0; r < kRows; ++r) {
        const std::byte* row = from + r * kPitch + first;
        wanted.insert(wanted.end(), row, row + width);
      }
      EXPECT_EQ(copied(source, at, wanted.size()), wanted) << first << ", " << width;
      const std::size_t begin = wanted.size() / 3 + 1, n = wanted.size() / 2;
      const std::vector part(wanted.begin() + static_cast<std::ptrdiff_t>(begin),
                             wanted.begin() + static_cast<std::ptrdiff_t>(begin + n));
      EXPECT_EQ(copied(source, at + begin, n), part) << first << ", " << width;
    }
  }
}

TEST(FileSource, CopiesTensorsAndMemory) {
  const TwoTensors tensors(1001, 5000);
  const Checkpoint checkpoint = *Checkpoint::open(tensors.dir());
  const FileSource source(checkpoint);
  for (const char* name : {"a", "b"}) {
    const std::span<const std::byte> bytes = checkpoint.find(name)->bytes;
    const std::vector<std::byte> wanted(bytes.begin() + 7, bytes.end());
    EXPECT_EQ(copied(source, bytes.data() + 7, wanted.size()), wanted);
    EXPECT_EQ(copied(source, wanted.data(), wanted.size()), wanted);
  }
}

// Bytes of this process's mapping of `file` that are in memory.
std::int64_t mapped_bytes(const fs::path& file) {
  std::ifstream maps("/proc/self/smaps");
  std::int64_t out = 0;
  bool of_file = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find('-') < line.find(':')) of_file = line.ends_with(file.string());
    if (of_file && line.starts_with("Rss:")) out += 1024 * std::stoll(line.substr(4));
  }
  return out;
}

// Row 13 of the failure cases of ranks: a host may have less memory than its files, as no page of
// what is copied is mapped.
TEST(FileSource, MapsNoPageOfWhatItCopies) {
  constexpr std::int64_t kRows = 500, kPitch = 12288;
  const TwoTensors tensors(16000000, kRows * kPitch);
  const Checkpoint checkpoint = *Checkpoint::open(tensors.dir());
  const std::span<const std::byte> a = checkpoint.find("a")->bytes;
  const std::byte* b = checkpoint.find("b")->bytes.data();
  FileSource source(checkpoint);
  copied(source, a.data(), a.size());
  copied(source, source.columns(b, kRows, kPitch, 6144, 6144), kRows * 6144);  // half rows
  copied(source, source.columns(b, kRows, kPitch, 0, 512), kRows * 512);
  const fs::path file = fs::canonical(tensors.file());
  EXPECT_LE(mapped_bytes(file), 4 << 20);  // the header, and a large page around it
  EXPECT_EQ(a[0], copied(source, a.data(), 1)[0]);
  EXPECT_GT(mapped_bytes(file), 0);
}

// Reading the mapping would end the process.
TEST(FileSource, NamesAFileThatHasShrunk) {
  const TwoTensors tensors(1001, 100000);
  const Checkpoint checkpoint = *Checkpoint::open(tensors.dir());
  FileSource source(checkpoint);
  const std::byte* b = checkpoint.find("b")->bytes.data();
  const std::byte* columns = source.columns(b, 10, 10000, 5000, 5000);
  fs::resize_file(tensors.file(), 4096);
  std::vector<std::byte> to(50000);
  for (const std::byte* from : {b, columns}) {
    const auto result = source.copy(from, to);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::io);
    EXPECT_THAT(result.error().message(), testing::HasSubstr("model.safetensors"));
  }
}

// Another file has the checkpoint's name by now; its bytes are not the checkpoint's.
TEST(FileSource, CopiesTheMappedFileAfterARename) {
  const TwoTensors tensors(1001, 5000);
  const Checkpoint checkpoint = *Checkpoint::open(tensors.dir());
  const FileSource source(checkpoint);
  const std::span<const std::byte> b = checkpoint.find("b")->bytes;
  const std::vector<std::byte> wanted(b.begin(), b.end());
  fs::rename(tensors.file(), tensors.dir() / "elsewhere");
  std::ofstream(tensors.file()) << std::string(8000, 'x');
  EXPECT_EQ(copied(source, b.data(), b.size()), wanted);
  fs::remove(tensors.file());
  EXPECT_EQ(copied(source, b.data(), b.size()), wanted);
}

}  // namespace
}  // namespace lathe
