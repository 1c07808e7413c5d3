// Every fuzz target once over each of its seeds. A target ends the program where it finds a fault.
// LATHE_FUZZ_TARGETS is X(name) of each, LATHE_FUZZ_SEEDS the folder of their folders.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#define X(name) extern "C" int fuzz_##name(const std::uint8_t* data, std::size_t size);
LATHE_FUZZ_TARGETS
#undef X

namespace {

struct Target {
  const char* name;
  int (*run)(const std::uint8_t* data, std::size_t size);
};
#define X(name) {#name, fuzz_##name},
constexpr Target kTargets[] = {LATHE_FUZZ_TARGETS};
#undef X

class FuzzSeeds : public testing::TestWithParam<Target> {};
INSTANTIATE_TEST_SUITE_P(Targets, FuzzSeeds, testing::ValuesIn(kTargets),
                         [](const auto& p) { return std::string(p.param.name); });

TEST_P(FuzzSeeds, Pass) {
  std::vector<std::filesystem::path> files;
  const auto folder =
      std::filesystem::path(LATHE_FUZZ_SEEDS) / ("fuzz_" + std::string(GetParam().name));
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    files.push_back(entry.path());
  ASSERT_FALSE(files.empty()) << folder;
  std::ranges::sort(files);
  for (const auto& path : files) {
    SCOPED_TRACE(path);
    std::ifstream in(path, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
    EXPECT_EQ(GetParam().run(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()), 0);
  }
}

}  // namespace
