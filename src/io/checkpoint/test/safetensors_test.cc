#include "io/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <string>

namespace lathe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A file with this header and `data` bytes.
std::string file_of(const std::string& header, std::size_t data) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(header.size() >> (8 * i) & 255);
  return out + header + std::string(data, 'x');
}

Result<SafetensorsHeader> parse(const std::string& file) {
  return parse_safetensors_header(std::as_bytes(std::span(file)));
}

std::string refusal(const std::string& header, std::size_t data) {
  const auto r = parse(file_of(header, data));
  return r.ok() ? "accepted" : r.error().message();
}

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"t":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

TEST(Safetensors, ReadsTensorsInFileOrder) {
  const std::string header = R"({"__metadata__":{"k":"v"},)"
                             R"("a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},)"
                             R"("b":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]}}   )";
  const auto r = parse(file_of(header, 12));
  ASSERT_TRUE(r.ok()) << r.error().message();
  ASSERT_EQ(r->tensors.size(), 2u);
  EXPECT_EQ(r->tensors[0].name, "b");
  EXPECT_EQ(r->tensors[0].dtype, SafetensorsDType::BF16);
  EXPECT_THAT(r->tensors[0].shape, ElementsAre(2, 1));
  EXPECT_EQ(r->tensors[1].begin, static_cast<std::int64_t>(8 + header.size() + 4));
  EXPECT_EQ(r->tensors[1].end, static_cast<std::int64_t>(8 + header.size() + 12));
  EXPECT_EQ(r->metadata.at("k"), "v");
}

// CPU time: 16 times the tensors take some 16 times as long, or 256 times where each one searches
// those before it.
TEST(Safetensors, E1ManyTensorsAreReadInLinearTime) {
  const auto seconds = [](int tensors) {
    std::string header = R"({"__metadata__":{"k":"v"})";
    for (int i = 0; i < tensors; ++i) {
      header += ",\"layers." + std::to_string(i) +
                R"(.weight":{"dtype":"F32","shape":[1,1],"data_offsets":[)" +
                std::to_string(4 * i) + "," + std::to_string(4 * i + 4) + "]}";
    }
    const std::string file = file_of(header + "}", 4 * static_cast<std::size_t>(tensors));
    double least = 1e9;
    for (int run = 0; run < 3; ++run) {
      const std::clock_t start = std::clock();
      const auto r = parse(file);
      least = std::min(least, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
      EXPECT_TRUE(r.ok() && r->tensors.size() == static_cast<std::size_t>(tensors));
    }
    return least;
  };
  EXPECT_LT(seconds(48'000), 80 * seconds(3'000));
}

TEST(Safetensors, EveryDTypeHasItsSize) {
  const std::pair<const char*, int> sizes[] = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"F8_E8M0", 1},
      {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},     {"U32", 4},
      {"F32", 4},  {"F64", 8}, {"I64", 8}, {"U64", 8},
  };
  EXPECT_EQ(std::size(sizes) + 1, enum_count<SafetensorsDType>);
  for (const auto& [dtype, size] : sizes) {
    const auto bytes = static_cast<std::size_t>(3 * size);
    const auto end = std::to_string(bytes);
    EXPECT_TRUE(parse(file_of(one(dtype, "[3]", "[0," + end + "]"), bytes)).ok()) << dtype;
  }
  EXPECT_TRUE(parse(file_of(one("F4", "[2,3]", "[0,3]"), 3)).ok());
  EXPECT_THAT(refusal(one("F4", "[3]", "[0,1]"), 3), HasSubstr("whole bytes"));
}

TEST(Safetensors, ScalarsAndEmptyTensors) {
  EXPECT_TRUE(parse(file_of(one("F32", "[]", "[0,4]"), 4)).ok());
  EXPECT_TRUE(parse(file_of(one("F32", "[0,9223372036854775807,4]", "[0,0]"), 0)).ok());
  EXPECT_TRUE(parse(file_of("{}", 0)).ok());
}

TEST(Safetensors, BytesAfterTheLastTensorAreRefused) {
  const std::string whole = file_of(one("F32", "[2]", "[0,8]"), 8);
  const std::string size = std::to_string(whole.size());
  for (const std::size_t more : {1, 4096}) {
    const auto r = parse(whole + std::string(more, '\0'));
    ASSERT_FALSE(r.ok()) << more;
    EXPECT_EQ(r.error().code, ErrorCode::malformed);
    EXPECT_THAT(r.error().message(),
                HasSubstr("file size: wanted " + size + " bytes, where the last tensor ends, got " +
                          std::to_string(whole.size() + more)));
  }
  EXPECT_FALSE(parse(file_of("{}", 1)).ok());
}

TEST(Safetensors, TruncatedFilesSayHowMuchIsMissing) {
  const std::string whole = file_of(one("F32", "[2]", "[0,8]"), 8);
  for (std::size_t n = 0; n < whole.size(); ++n) {
    const auto r = parse(whole.substr(0, n));
    ASSERT_FALSE(r.ok()) << n;
    EXPECT_EQ(r.error().code, ErrorCode::malformed);
    EXPECT_THAT(r.error().message(), HasSubstr("truncated")) << n;
  }
  EXPECT_EQ(
      parse(whole.substr(0, whole.size() - 3)).error().message(),
      "tensor \"t\": wanted 8 bytes of data, got 5; the file is truncated; download it again");
  EXPECT_TRUE(parse(whole).ok());
}

TEST(Safetensors, RefusesABadHeader) {
  std::string big(16, '\xff');
  EXPECT_THAT(parse(big).error().message(), HasSubstr("at most 100000000 bytes"));
  EXPECT_THAT(refusal("[]", 0), HasSubstr("a JSON object"));
  EXPECT_THAT(refusal("{\"a\":", 0), HasSubstr("valid JSON"));
  EXPECT_THAT(refusal("{} x", 0), HasSubstr("valid JSON"));
  EXPECT_THAT(refusal("{\"a\": 1e999}", 0), HasSubstr("header: a: wanted a number that a double"));
  EXPECT_THAT(refusal(R"({"__metadata__":{"k":1}})", 0), HasSubstr("__metadata__.\"k\""));
  EXPECT_THAT(refusal(R"({"__metadata__":[]})", 0), HasSubstr("object of strings"));
  EXPECT_THAT(refusal(R"({"t":3})", 0), HasSubstr("wanted an object, got 3"));
  const std::string entry = R"("t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  EXPECT_THAT(refusal("{" + entry + "," + entry + "}", 1), HasSubstr("\"t\" twice"));
}

TEST(Safetensors, RefusesABadTensor) {
  EXPECT_THAT(refusal(one("F31", "[1]", "[0,4]"), 4), HasSubstr("one of BOOL"));
  EXPECT_THAT(refusal(one("F32", "[-1]", "[0,4]"), 4), HasSubstr("sizes from 0"));
  EXPECT_THAT(refusal(one("F32", "[1.0]", "[0,4]"), 4), HasSubstr("sizes from 0"));
  EXPECT_THAT(refusal(one("F32", "3", "[0,4]"), 4), HasSubstr("array of sizes"));
  EXPECT_THAT(refusal(one("F32", "[1]", "[4,0]"), 4), HasSubstr("begin <= end"));
  EXPECT_THAT(refusal(one("F32", "[1]", "[0,4,8]"), 8), HasSubstr("[begin, end]"));
  EXPECT_THAT(refusal(one("F32", "[1]", "[0,8]"), 8), HasSubstr("4 bytes, as F32 [1] has"));
  EXPECT_THAT(refusal(one("F32", "[1]", "[4,8]"), 4), HasSubstr("truncated"));
  // 2^32 x 2^32 and 2^61 x 8 bits would wrap to 0 in 64 bits.
  EXPECT_THAT(refusal(one("U8", "[4294967296,4294967296]", "[0,0]"), 0), HasSubstr("below 2^63"));
  EXPECT_THAT(refusal(one("F64", "[288230376151711744]", "[0,0]"), 0), HasSubstr("below 2^63"));
  EXPECT_THAT(refusal(R"({"t":{"shape":[1],"data_offsets":[0,4]}})", 4), HasSubstr("got nothing"));
}

TEST(Safetensors, RefusesOverlapsToleratesGaps) {
  const auto two = [](int begin) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[2],)"
           R"("data_offsets":[)" +
           std::to_string(begin) + "," + std::to_string(begin + 2) + "]}}";
  };
  EXPECT_THAT(refusal(two(3), 8), HasSubstr("shared by both"));
  EXPECT_THAT(refusal(two(0), 8), HasSubstr("shared by both"));
  EXPECT_EQ(refusal(two(4), 6), "accepted");
  EXPECT_EQ(refusal(two(6), 8), "accepted");
}

}  // namespace
}  // namespace lathe
