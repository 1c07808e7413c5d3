// Weights copied to the device, or generated there, against the host's.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>

#include "kernels/cuda/common/memory.h"
#include "kernels/cuda/runtime/random_weights.h"
#include "kernels/cuda/runtime/upload.h"
#include "kernels/cuda/sm90/matmul/pack/packed_weights.h"

namespace lathe::cuda {
namespace {

// e2m1 codes in the order in which the device stores them.
void pack(std::vector<std::byte>& codes) {
  for (std::size_t at = 0; at < codes.size(); at += 16) {
    std::uint32_t words[4], packed[4];
    std::memcpy(words, &codes[at], 16);
    for (int c = 0; c < 4; ++c) packed[c] = packed_word(false, words, c);
    std::memcpy(&codes[at], packed, 16);
  }
}

class Upload : public ::testing::Test {
 protected:
  std::vector<std::byte> read(const std::byte* there, std::int64_t bytes) {
    std::vector<std::byte> out(static_cast<std::size_t>(bytes));
    EXPECT_TRUE(copy_to_host(there, std::span(out), stream_).ok());
    EXPECT_TRUE(stream_.wait().ok());
    return out;
  }

  Stream stream_ = std::move(Stream::make()).value();
  std::unique_ptr<UploadRing> ring_ = std::move(UploadRing::make()).value();
  std::vector<OwnedBytes> owned_;
  WeightMemory memory_{owned_};
};

// More pieces than buffers, and pieces larger than a buffer; all have been read when the call
// returns.
TEST_F(Upload, BringsPiecesOfAnySize) {
  std::mt19937 rng(20261127);
  std::vector<std::size_t> sizes = {1, 7, (8 << 20) - 1, 8 << 20, (70 << 20) + 5};
  for (int i = 0; i < 60; ++i) sizes.push_back(std::uniform_int_distribution(1, 100000)(rng));
  const std::size_t sum = std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
  std::vector<std::byte> host(sum);
  for (std::size_t i = 0; i < sum; i += 97) host[i] = static_cast<std::byte>(rng() & 0xff);
  const std::vector<std::byte> wanted = host;
  OwnedBytes there = std::move(allocate_device_bytes(static_cast<std::int64_t>(sum))).value();
  std::vector<HostPiece> pieces;
  for (std::size_t at = 0; const std::size_t size : sizes) {
    pieces.push_back({std::span(host).subspan(at, size), there.get() + at});
    at += size;
  }
  ASSERT_TRUE(ring_->copy(pieces, stream_).ok());
  std::fill(host.begin(), host.end(), std::byte{0});
  EXPECT_EQ(read(there.get(), static_cast<std::int64_t>(sum)), wanted);
}

// Weights that are not at their addresses: byte i of the source is i * 7.
class Sevens : public WeightSource {
 public:
  explicit Sevens(std::size_t readable) : readable_(readable) {}
  Result<void> copy(const std::byte* from, std::span<std::byte> to) const override {
    const auto first = reinterpret_cast<std::uintptr_t>(from);
    if (first + to.size() > readable_) return Error{ErrorCode::io, "sevens", "more", "less", ""};
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = static_cast<std::byte>((first + i) * 7);
    return {};
  }

 private:
  std::size_t readable_;
};

// The ring itself never reads the addresses, which are not of memory.
TEST_F(Upload, CopiesFromASource) {
  constexpr std::size_t kBytes = (std::size_t{70} << 20) + 5;
  const Sevens source(kBytes);
  const auto ring = std::move(UploadRing::make(&source)).value();
  OwnedBytes there = std::move(allocate_device_bytes(kBytes)).value();
  const auto* at = reinterpret_cast<const std::byte*>(1);
  ASSERT_TRUE(ring->copy(std::vector<HostPiece>{{{at, kBytes - 1}, there.get()}}, stream_).ok());
  ASSERT_TRUE(ring->flush(stream_).ok());
  const std::vector<std::byte> got = read(there.get(), kBytes - 1);
  for (std::size_t i = 0; i + 1 < kBytes; i += 1001) {
    ASSERT_EQ(got[i], static_cast<std::byte>((i + 1) * 7)) << i;
  }
}

TEST_F(Upload, ReportsASourcesError) {
  const Sevens source(100);
  const auto ring = std::move(UploadRing::make(&source)).value();
  OwnedBytes there = std::move(allocate_device_bytes(200)).value();
  const auto* at = reinterpret_cast<const std::byte*>(1);
  ASSERT_TRUE(ring->copy(std::vector<HostPiece>{{{at, 150}, there.get()}}, stream_).ok());
  const auto failed = ring->flush(stream_);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().field, "sevens");
}

TEST_F(Upload, TakesArraysFromOneAllocation) {
  std::vector<OwnedBytes> owned;
  WeightMemory memory(owned, 1024);
  std::byte* const first = *memory.take(1);
  EXPECT_EQ(*memory.take(300), first + 256);
  EXPECT_EQ(owned.size(), 1u);
  // More than is left, and more than was expected.
  EXPECT_TRUE(memory.take(257).ok());
  EXPECT_EQ(*memory.take(256), first + 768);
  EXPECT_TRUE(memory.take(256).ok());
  EXPECT_EQ(owned.size(), 3u);
  EXPECT_EQ(*memory.take(0), nullptr);
}

// The first output of splitmix64 from a state of 0.
TEST(RandomWeights, HashesAsPublished) { EXPECT_EQ(mixed_bits(0), 0xe220a8397b1dcdafu); }

TEST_F(Upload, MakesTheHostsRandomWeights) {
  const std::vector<std::uint64_t> seeds = {5, mixed_bits(77), ~std::uint64_t{0}};
  for (const auto& [dtype, rows, cols] : {std::tuple{DType::f32, 3, 7},
                                          {DType::bf16, 5, 37},
                                          {DType::bf16, 64, 100},
                                          {DType::e4m3, 3, 130},
                                          {DType::e4m3, 129, 257},
                                          {DType::e2m1, 3, 64}}) {
    const RandomWeights random{dtype, rows, cols, seeds};
    const auto made = random_weights(random, *ring_, stream_, memory_);
    ASSERT_TRUE(made.ok());
    ASSERT_EQ(made->count(), 3);
    const std::int64_t n = std::int64_t{rows} * cols;
    for (std::int64_t w = 0; w < made->count(); ++w) {
      const WeightView view = made->at(w);
      std::vector<std::byte> wanted(static_cast<std::size_t>(bytes_of(dtype, n)));
      for (std::int64_t i = 0; i < n; ++i) {
        const std::uint64_t hash = mixed_bits(seeds[static_cast<std::size_t>(w)] + i / 4 * 4);
        const std::uint64_t bits = hash >> (16 * (i % 4));
        const float reach = std::sqrt(3.0f / static_cast<float>(cols));
        const float value = static_cast<float>(static_cast<std::int16_t>(bits & 0xffff)) / 32768;
        const float coded = static_cast<float>(static_cast<std::int16_t>(bits & 0xfff0)) / 32768;
        if (dtype == DType::f32) {
          const float x = value * reach;
          std::memcpy(&wanted[4 * i], &x, 4);
        } else if (dtype == DType::bf16) {
          const bf16 x = to_bf16(value * reach);
          std::memcpy(&wanted[2 * i], &x, 2);
        } else if (dtype == DType::e4m3) {
          wanted[i] = static_cast<std::byte>(to_e4m3(coded * 384).bits);
        } else {
          wanted[i / 2] |= static_cast<std::byte>(to_e2m1(coded * 6).bits << (i % 2 * 4));
        }
      }
      if (dtype == DType::e2m1) pack(wanted);
      EXPECT_EQ(read(view.data, std::ssize(wanted)), wanted) << name(dtype) << ", weight " << w;
      if (dtype == DType::e4m3) {
        const auto scales = read(reinterpret_cast<const std::byte*>(view.scales), 4);
        float scale;
        std::memcpy(&scale, scales.data(), 4);
        EXPECT_EQ(scale, std::sqrt(3.0f / static_cast<float>(cols)) / 384);
      }
    }
  }
}

// MXFP4 is packed as other weights of 4 bits: every element keeps its value. Scales of 2^42 are
// refused.
TEST_F(Upload, PacksMxfp4) {
  constexpr std::int64_t kRows = 5, kCols = 160;
  std::mt19937 rng(20261128);
  std::vector<std::byte> codes(2 * kRows * kCols / 2);
  for (std::byte& b : codes) b = static_cast<std::byte>(rng() & 0xff);
  std::vector<ue8m0> scales(2 * kRows * kCols / kMxBlock);
  for (ue8m0& s : scales) s.bits = static_cast<std::uint8_t>(rng() % 169);
  WeightStack host = WeightStack::of(2, DType::e2m1, kRows, kCols);
  for (std::int64_t i = 0; i < 2; ++i) {
    WeightView w{codes.data() + i * kRows * kCols / 2, DType::e2m1, kRows, kCols};
    w.mx_scales = scales.data() + i * kRows * kCols / kMxBlock;
    host.set(i, w);
  }
  const auto there = upload_weights(host, *ring_, stream_, memory_);
  ASSERT_TRUE(there.ok());
  const PackedGroups shape = packed_groups(kRows, kCols, kMxBlock);
  for (std::int64_t i = 0; i < 2; ++i) {
    const WeightView w = there->at(i);
    ASSERT_TRUE(is_mxfp4(w));
    EXPECT_EQ(w.mx_scales, nullptr);
    const auto bytes = read(w.data, kRows * kCols / 2);
    std::vector<std::uint32_t> words(bytes.size() / 4);
    std::memcpy(words.data(), bytes.data(), bytes.size());
    const auto packed_scales = read(w.groups.data, shape.count());
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t c = 0; c < kCols; ++c) {
        const std::int64_t at = (i * kRows + r) * kCols + c;
        const auto pair = std::to_integer<std::uint32_t>(codes[static_cast<std::size_t>(at / 2)]);
        ASSERT_EQ(packed_code(false, words.data() + r * kCols / 8, c),
                  at % 2 == 0 ? pair & 15 : pair >> 4);
        const auto scale = packed_scales[static_cast<std::size_t>(shape.at(r, c / kMxBlock))];
        ASSERT_EQ(std::to_integer<int>(scale),
                  scales[static_cast<std::size_t>(at / kMxBlock)].bits);
      }
    }
  }
  scales.back().bits = kMxfp4MostScale + 1;
  const auto refused = upload_weights(host, *ring_, stream_, memory_);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().offered, "2^42");
}

// Rows and columns of larger matrices, with the bits that they have there.
TEST_F(Upload, MakesPartsOfRandomWeights) {
  constexpr std::int64_t kRows = 24, kCols = 96;
  const std::vector<std::uint64_t> seeds = {5, 9};
  for (const DType dtype : {DType::f32, DType::bf16, DType::e4m3, DType::e2m1}) {
    const auto all = random_weights({dtype, kRows, kCols, seeds}, *ring_, stream_, memory_);
    ASSERT_TRUE(all.ok());
    for (const auto& [first_row, rows, first_col, cols] :
         {std::tuple{8, 8, 0, 96}, {0, 24, 32, 32}, {4, 20, 64, 32}}) {
      const std::vector<std::int64_t> first(2, first_row * kCols + first_col);
      const RandomWeights random{dtype, rows, cols, seeds, first, kCols};
      const auto part = random_weights(random, *ring_, stream_, memory_);
      ASSERT_TRUE(part.ok());
      for (std::int64_t w = 0; w < 2; ++w) {
        const auto bytes = [dtype = dtype](std::int64_t n) { return bytes_of(dtype, n); };
        const auto whole = read(all->at(w).data, bytes(kRows * kCols));
        const auto got = read(part->at(w).data, bytes(std::int64_t{rows} * cols));
        for (std::int64_t r = 0; r < rows; ++r) {
          const auto from = whole.begin() + bytes((first_row + r) * kCols + first_col);
          const std::vector<std::byte> wanted(from, from + bytes(cols));
          const auto at = got.begin() + bytes(r * cols);
          EXPECT_EQ(std::vector<std::byte>(at, at + bytes(cols)), wanted)
              << name(dtype) << ", weight " << w << ", row " << r;
        }
      }
    }
  }
}

}  // namespace
}  // namespace lathe::cuda
