// A rank's weights against the whole model's.
#include "model/load/part.h"

#include <gtest/gtest.h>

#include "kernels/ref/linear.h"
#include "model/config/split_sizes.h"
#include "model/load/dummy_weights.h"
#include "model/test/test_util.h"

namespace lathe {
namespace {

struct Made {
  explicit Made(const ModelConfig& config) : weights(config) {}
  ModelWeights weights;
  std::vector<TensorSpec> table;
};

std::unique_ptr<Made> make_share(const ModelConfig& config, const Parallel& parallel,
                                 std::int32_t rank) {
  auto out = std::make_unique<Made>(config);
  out->table = tensor_table(config, out->weights, share_of(split_sizes(config), parallel, rank));
  EXPECT_TRUE(fill_dummy(config, {}, out->table, out->weights).ok());
  return out;
}

// A matrix of the tensor: its own, or number i of its stack.
WeightView matrix_of(const TensorSpec& spec, std::int64_t i) {
  return spec.matrix != nullptr ? *spec.matrix : spec.stack->at(i);
}

std::int64_t matrices_of(const TensorSpec& spec) {
  if (spec.matrix != nullptr) return 1;
  return spec.whole_stack || spec.joined ? spec.stack->count() : 1;
}

// Compares every element of a rank's tensor with the same one of the whole model. Returns how many.
std::int64_t compare_part(const TensorSpec& part, const TensorSpec& whole) {
  std::int64_t compared = 0;
  if (part.place < 0) return 0;
  for (std::int64_t i = 0; i < matrices_of(part); ++i) {
    const bool alone = !part.whole_stack && !part.joined;
    const WeightView got = matrix_of(part, alone ? part.place : i);
    std::int64_t at = alone ? whole.place : part.part.matrices.first + i;
    std::int64_t first = part.part.rows.first;
    if (part.joined) {
      at = first / got.rows + i;
      first = 0;
    }
    const WeightView want = matrix_of(whole, at);
    EXPECT_EQ(got.dtype, want.dtype) << part.name;
    for (std::int64_t r = 0; r < got.rows; ++r) {
      for (std::int64_t c = 0; c < got.cols; ++c, ++compared) {
        const float value = weight_at(want, first + r, part.part.cols.first + c);
        if (weight_at(got, r, c) == value) continue;
        ADD_FAILURE() << part.name << " " << r << ", " << c << ": " << weight_at(got, r, c)
                      << ", wanted " << value;
        return compared;
      }
    }
  }
  return compared;
}

// A4. Formats: f32, bf16, e4m3 and e2m1, as experts one by one and as whole stacks. Each element is
// on one rank, or on all of them where it is replicated.
TEST(RankParts, RandomWeightsHaveTheWholeModelsBits) {
  for (const char* name : {"qwen3_moe", "gpt_oss", "gpt_oss_bf16", "qwen3_vl_moe", "deepseek_v4",
                           "deepseek_v4_fp8", "deepseek_v4_wide", "mistral"}) {
    const ModelConfig config = *load_model_config(fixture_dir(name));
    const auto whole = make_share(config, {}, 0);
    for (const Parallel& parallel : {Parallel{2, 2, 1}, Parallel{4, 4, 1}, Parallel{4, 2, 2}}) {
      const SplitSizes sizes = split_sizes(config);
      if (sizes.experts % parallel.expert_number != 0 || sizes.o_groups % parallel.tp != 0)
        continue;
      std::vector<std::int64_t> elements(whole->table.size());
      for (std::int32_t r = 0; r < parallel.tp; ++r) {
        const auto part = make_share(config, parallel, r);
        ASSERT_EQ(part->table.size(), whole->table.size());
        for (std::size_t i = 0; i < part->table.size(); ++i) {
          const TensorSpec& spec = part->table[i];
          if (spec.matrix == nullptr && spec.stack == nullptr) continue;
          elements[i] += compare_part(spec, whole->table[i]);
        }
      }
      for (std::size_t i = 0; i < elements.size(); ++i) {
        const TensorSpec& spec = whole->table[i];
        const std::int64_t n = spec.elements();
        if (spec.matrix == nullptr && spec.stack == nullptr) continue;
        EXPECT_TRUE(elements[i] >= n && elements[i] % n == 0 &&
                    parallel.tp % (elements[i] / n) == 0)
            << name << " " << spec.name << ": " << elements[i] << " of " << n;
      }
    }
  }
}

// Row and column parts of a block-scaled matrix keep its values, whether blocks are cut or not.
TEST(RankParts, CutsBlocksOfScales) {
  constexpr std::int64_t kRows = 300, kCols = 400;
  std::vector<std::byte> codes(kRows * kCols);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>(i * 7 % 120);
  std::vector<float> scales(3 * 4);
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = 0.5f + static_cast<float>(i);
  const WeightView whole{codes.data(), DType::e4m3, kRows, kCols, scales.data()};
  const ModelConfig config = *load_model_config(fixture_dir("mistral"));
  ModelWeights weights(config);
  for (const auto& [rows, cols, dtype] : {std::tuple{Range{0, kRows}, Range{0, kCols}, DType::e4m3},
                                          {Range{128, 128}, Range{0, kCols}, DType::e4m3},
                                          {Range{256, 44}, Range{128, 272}, DType::e4m3},
                                          {Range{0, kRows}, Range{256, 128}, DType::e4m3},
                                          {Range{100, 50}, Range{0, kCols}, DType::f32},
                                          {Range{0, kRows}, Range{200, 200}, DType::f32}}) {
    const WeightView part = matrix_part(whole, {{0, 1}, rows, cols}, nullptr, weights);
    EXPECT_EQ(part.dtype, dtype);
    ASSERT_EQ(part.rows, rows.count);
    ASSERT_EQ(part.cols, cols.count);
    for (std::int64_t r = 0; r < part.rows; ++r) {
      for (std::int64_t c = 0; c < part.cols; ++c) {
        ASSERT_EQ(weight_at(part, r, c), weight_at(whole, rows.first + r, cols.first + c))
            << r << ", " << c;
      }
    }
  }
}

// Parts of int4 and NVFP4 matrices, and of fp8 with scales of rows. Columns that end inside a
// group, or are in act order, are widened.
TEST(RankParts, CutsGroupsOfScales) {
  constexpr std::int64_t kRows = 40, kCols = 512;
  std::vector<std::byte> codes(kRows * kCols);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>(i * 37 % 120);
  std::vector<bf16> scales(kRows * kCols / 32);
  std::vector<std::uint8_t> zeros(scales.size());
  for (std::size_t i = 0; i < scales.size(); ++i) {
    scales[i] = to_bf16(0.25f + static_cast<float>(i % 61));
    zeros[i] = static_cast<std::uint8_t>(i % 17);
  }
  std::vector<std::int32_t> columns(kCols);
  for (std::size_t i = 0; i < columns.size(); ++i)
    columns[i] = static_cast<std::int32_t>(i * 37 % kCols);
  std::vector<float> rows(kRows);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = 0.5f + static_cast<float>(i);
  const auto* scale_bytes = reinterpret_cast<const std::byte*>(scales.data());

  WeightView fp8{codes.data(), DType::e4m3, kRows, kCols, rows.data()};
  fp8.scale_rows = true;
  WeightView nv{codes.data(), DType::e2m1, kRows, kCols, rows.data()};
  nv.groups = {codes.data(), DType::e4m3, 16, nullptr};
  WeightView int4{codes.data(), DType::u4, kRows, kCols};
  int4.groups = {scale_bytes, DType::bf16, 128, zeros.data()};
  WeightView fine = int4;
  fine.groups.size = 32;
  WeightView ordered = int4;
  ordered.columns = columns.data();

  const ModelConfig config = *load_model_config(fixture_dir("mistral"));
  ModelWeights weights(config);
  const Range all{0, kRows}, some{8, 16}, wide{0, kCols}, half{256, 256}, odd{96, 96};
  for (const auto& [whole, r, c, dtype] : {std::tuple{fp8, some, odd, DType::e4m3},
                                           {fp8, some, wide, DType::e4m3},
                                           {nv, some, odd, DType::e2m1},
                                           {int4, all, half, DType::u4},
                                           {int4, some, wide, DType::u4},
                                           {int4, some, odd, DType::f32},
                                           {fine, some, odd, DType::u4},
                                           {ordered, some, wide, DType::u4},
                                           {ordered, some, half, DType::f32}}) {
    const WeightView part = matrix_part(whole, {{0, 1}, r, c}, nullptr, weights);
    ASSERT_EQ(part.dtype, dtype);
    std::int64_t compared = 0;
    for (std::int64_t i = 0; i < part.rows; ++i) {
      for (std::int64_t k = 0; k < kCols; ++k) {
        // Column of x that the element multiplies, and its place in the part.
        const std::int64_t x = whole.columns == nullptr ? k : whole.columns[k];
        const std::int64_t at = part.columns == nullptr ? x - c.first : k;
        if (!c.contains(x)) continue;
        ASSERT_EQ(weight_at(part, i, at), weight_at(whole, r.first + i, k)) << i << ", " << k;
        ++compared;
      }
    }
    EXPECT_EQ(compared, r.count * c.count);
  }
}

}  // namespace
}  // namespace lathe
