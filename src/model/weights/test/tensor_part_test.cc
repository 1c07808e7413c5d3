// What each rank reads of the tensors of published models.
#include "model/weights/tensor_part.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <memory>
#include <set>
#include <tuple>

#include "model/config/split_sizes.h"
#include "model/test/published_configs.h"
#include "model/weights/tensor_table.h"

namespace lathe {
namespace {

constexpr const char* kPublished[] = {"deepseek-v3.2", "deepseek-v4-flash", "deepseek-v4-pro",
                                      "glm-5-fp8",     "kimi-k2",           "qwen3-235b-fp8",
                                      "gpt-oss-120b",  "llama-3.1-70b",     "qwen3-32b"};

struct RankTables {
  std::vector<std::unique_ptr<ModelWeights>> weights;
  std::vector<std::vector<TensorSpec>> tables;  // [ranks] of equal length
};

RankTables tables_of(const ModelConfig& config, const Parallel& parallel) {
  RankTables out;
  for (std::int32_t r = 0; r < parallel.tp; ++r) {
    out.weights.push_back(std::make_unique<ModelWeights>(config));
    out.tables.push_back(
        tensor_table(config, *out.weights.back(), share_of(split_sizes(config), parallel, r)));
  }
  return out;
}

using Key = std::tuple<std::int64_t, std::int64_t>;

// Whether the distinct ranges cover 0 .. size - 1, each element once.
bool partition(const std::set<Key>& ranges, std::int64_t size) {
  std::int64_t end = 0;
  for (const auto& [first, count] : ranges) {
    if (first != end) return false;
    end += count;
  }
  return end == size;
}

std::vector<std::int64_t> axes_of(const TensorSpec& spec) {
  if (spec.whole_stack) return {spec.shape[0], spec.shape[2], spec.shape[1]};
  if (spec.shape.size() == 1) return {1, spec.shape[0], 1};
  const bool biases = spec.vector != nullptr && spec.name.ends_with("_bias");
  if (biases) return {spec.shape[0], spec.shape[1], 1};
  return {1, spec.shape[0], spec.shape[1]};
}

// The ranks' parts of a tensor tile it; every tile is on as many ranks as the others. A bias of a
// sum is on one rank of each tile alone.
void expect_tiles(const std::vector<const TensorSpec*>& ranks, const std::string& what) {
  const std::vector<std::int64_t> axes = axes_of(*ranks.front());
  std::array<std::set<Key>, 3> ranges;
  std::map<std::tuple<Key, Key, Key>, int> tiles;
  for (const TensorSpec* spec : ranks) {
    const TensorPart& p = spec->part;
    if (p.empty()) continue;
    const std::array<Key, 3> keys = {Key{p.matrices.first, p.matrices.count},
                                     Key{p.rows.first, p.rows.count},
                                     Key{p.cols.first, p.cols.count}};
    for (std::size_t a = 0; a < 3; ++a) ranges[a].insert(keys[a]);
    ++tiles[{keys[0], keys[1], keys[2]}];
  }
  std::size_t expected = 1;
  for (std::size_t a = 0; a < 3; ++a) {
    EXPECT_TRUE(partition(ranges[a], axes[a])) << what << ", axis " << a;
    expected *= ranges[a].size();
  }
  EXPECT_EQ(tiles.size(), expected) << what;
  for (const auto& [tile, count] : tiles) EXPECT_EQ(count, tiles.begin()->second) << what;
}

// A part begins where scales' blocks do, and ends there or at the end of the matrix.
void expect_whole_blocks(const ModelConfig& config, const TensorSpec& spec) {
  if (spec.vector != nullptr || spec.part.empty()) return;
  const DType dtype = dummy_dtype(config, spec);
  const std::vector<std::int64_t> axes = axes_of(spec);
  const auto whole = [&](const Range& r, std::int64_t size, std::int64_t block) {
    EXPECT_EQ(r.first % block, 0) << spec.name;
    EXPECT_TRUE(r.count % block == 0 || r.end() == size) << spec.name;
  };
  if (dtype == DType::e4m3) whole(spec.part.rows, axes[1], kWeightBlock);
  if (dtype == DType::e4m3) whole(spec.part.cols, axes[2], kWeightBlock);
  if (dtype == DType::e2m1) whole(spec.part.cols, axes[2], kMxBlock);
}

std::vector<Parallel> splits_of(const ModelConfig& config, std::int32_t ranks) {
  const SplitSizes sizes = split_sizes(config);
  if (sizes.experts == 0) return {{.tp = ranks, .expert_width = ranks}};
  std::vector<Parallel> out;
  for (std::int32_t wide = 1; wide <= ranks; wide *= 2) {
    if (sizes.expert_width / sizes.expert_block < wide) continue;
    out.push_back({.tp = ranks, .expert_width = wide, .expert_number = ranks / wide});
  }
  return out;
}

// Later layers, and most experts, are like others.
bool repeats(const std::string& name) {
  const std::size_t layer = name.find("layers."), expert = name.find(".experts.");
  if (layer != std::string::npos && std::stoi(name.substr(layer + 7)) > 5) return true;
  if (expert == std::string::npos || !std::isdigit(name[expert + 9])) return false;
  return std::stoi(name.substr(expert + 9)) % 16 != 5;
}

TEST(TensorPart, A3PartsOfAllRanksTileEveryTensorOfPublishedModels) {
  for (const char* name : kPublished) {
    const ModelConfig config = published(name);
    for (const std::int32_t ranks : {1, 2, 4, 8}) {
      for (const Parallel& parallel : splits_of(config, ranks)) {
        const RankTables all = tables_of(config, parallel);
        for (std::size_t i = 0; i < all.tables[0].size(); ++i) {
          if (repeats(all.tables[0][i].name)) continue;
          std::vector<const TensorSpec*> specs;
          for (const auto& table : all.tables) {
            ASSERT_EQ(table[i].name, all.tables[0][i].name);
            ASSERT_EQ(table[i].shape, all.tables[0][i].shape);
            expect_whole_blocks(config, table[i]);
            specs.push_back(&table[i]);
          }
          expect_tiles(
              specs, fmt::format("{} of {}, {} ranks, experts {} x {}", specs[0]->name, name, ranks,
                                 parallel.expert_width, parallel.expert_number));
          if (HasFailure()) return;
        }
      }
    }
  }
}

// Cuts a matrix of known elements and its blocks' scales as every rank reads them, and puts the
// parts together again.
TEST(TensorPart, A3CutMatricesAndScalesReassemble) {
  const ModelConfig config = published("qwen3-235b-fp8");
  const RankTables all = tables_of(config, {.tp = 8, .expert_width = 4, .expert_number = 2});
  int cut = 0;
  for (std::size_t i = 0; i < all.tables[0].size(); ++i) {
    const TensorSpec& whole = all.tables[0][i];
    if (!whole.name.starts_with("model.layers.3.") || whole.vector != nullptr) continue;
    if (whole.name.find("experts.") != std::string::npos &&
        whole.name.find("experts.77.") == std::string::npos) {
      continue;
    }
    const std::int64_t rows = whole.shape[0], cols = whole.shape[1];
    const std::int64_t blocks = weight_blocks(cols);
    std::vector<float> scales(static_cast<std::size_t>(weight_blocks(rows) * blocks), -1.0f);
    std::vector<std::int32_t> values(static_cast<std::size_t>(rows * cols), -1);
    for (const auto& table : all.tables) {
      const TensorPart& p = table[i].part;
      for (std::int64_t r = p.rows.first; r < p.rows.end(); ++r) {
        for (std::int64_t c = p.cols.first; c < p.cols.end(); ++c) {
          values[static_cast<std::size_t>(r * cols + c)] = static_cast<std::int32_t>(r * cols + c);
          // As a kernel finds the scale: from the part's own first block.
          const std::int64_t block_row =
              p.rows.first / kWeightBlock + (r - p.rows.first) / kWeightBlock;
          const std::int64_t block_col =
              p.cols.first / kWeightBlock + (c - p.cols.first) / kWeightBlock;
          EXPECT_EQ(block_row, r / kWeightBlock);
          EXPECT_EQ(block_col, c / kWeightBlock);
          scales[static_cast<std::size_t>(block_row * blocks + block_col)] =
              static_cast<float>(block_row * blocks + block_col);
        }
      }
      if (HasFailure()) return;
    }
    for (std::size_t k = 0; k < values.size(); ++k) {
      ASSERT_EQ(values[k], static_cast<std::int32_t>(k)) << whole.name;
    }
    for (std::size_t k = 0; k < scales.size(); ++k) {
      ASSERT_EQ(scales[k], static_cast<float>(k)) << whole.name;
    }
    ++cut;
  }
  EXPECT_EQ(cut, 4 + 1 + 3);  // q, k, v, o, the router, and an expert's three
}

// gpt-oss: gate and up projections of a column are neighbouring rows and stay together. A down
// projection's bias is added by one rank of those that share an expert, that of the attention's
// output by one of all.
TEST(TensorPart, A3PairsOfGateAndUpStayTogether) {
  const ModelConfig config = published("gpt-oss-120b");
  const RankTables all = tables_of(config, {.tp = 8, .expert_width = 4, .expert_number = 2});
  std::int64_t biased = 0, out_biases = 0;
  for (std::size_t r = 0; r < all.tables.size(); ++r) {
    const MoeWeights& moe = all.weights[r]->layers[5].moe;
    EXPECT_EQ(moe.experts.gate.rows, 2 * moe.experts.down.cols);
    EXPECT_EQ(moe.experts.gate.count(), 64);
    for (const TensorSpec& spec : all.tables[r]) {
      if (spec.name == "model.layers.5.self_attn.o_proj.bias" && !spec.part.empty()) ++out_biases;
      if (!spec.name.starts_with("model.layers.5.mlp.experts.")) continue;
      if (spec.name.ends_with("gate_up_proj")) {
        EXPECT_EQ(spec.part.rows.first % (2 * kMxBlock), 0);
        EXPECT_EQ(spec.part.rows.count, moe.experts.gate.rows);
      }
      if (spec.name.ends_with("down_proj_bias") && !spec.part.empty()) {
        biased += spec.part.matrices.count;
      }
    }
  }
  EXPECT_EQ(biased, 128);
  EXPECT_EQ(out_biases, 1);
}

// Weights of the fullest rank in GB of 10^9 bytes, without a draft layer. The expected values are
// computed from the published sizes by hand; gpt-oss's widths are 90 blocks, of which one rank of
// four has 23.
TEST(TensorPart, AShareOfAPublishedModelHasTheExpectedBytes) {
  struct Case {
    const char* name;
    Parallel parallel;
    double gigabytes;
  };
  for (const Case& c :
       {Case{"deepseek-v3.2", {.tp = 8, .expert_width = 8}, 86.1},
        Case{"deepseek-v4-flash", {.tp = 2, .expert_width = 2}, 78.6},
        Case{"deepseek-v4-flash", {.tp = 4, .expert_width = 4}, 40.0},
        Case{"deepseek-v4-flash", {.tp = 8, .expert_width = 8}, 20.6},
        Case{"glm-5-fp8", {.tp = 8, .expert_width = 8}, 95.3},
        Case{"kimi-k2", {.tp = 8, .expert_width = 8}, 129.7},
        Case{"qwen3-235b-fp8", {.tp = 2, .expert_width = 2}, 118.2},
        Case{"qwen3-235b-fp8", {.tp = 4, .expert_width = 4}, 59.2},
        Case{"qwen3-235b-fp8", {.tp = 8, .expert_width = 4, .expert_number = 2}, 29.7},
        Case{"llama-3.1-70b", {.tp = 2, .expert_width = 2}, 70.6},
        Case{"llama-3.1-70b", {.tp = 8, .expert_width = 8}, 17.6},
        Case{"gpt-oss-120b", {.tp = 2, .expert_width = 2}, 32.6},
        Case{"gpt-oss-120b", {.tp = 4, .expert_width = 4}, 16.7}}) {
    const ModelConfig config = published(c.name);
    const RankTables all = tables_of(config, c.parallel);
    std::int64_t most = 0;
    for (const auto& table : all.tables) {
      std::int64_t sum = 0;
      for (const TensorSpec& spec : table) sum += dummy_bytes(config, spec);
      most = std::max(most, sum);
    }
    EXPECT_NEAR(static_cast<double>(most) / 1e9, c.gigabytes, 0.01 * c.gigabytes)
        << c.name << ", " << c.parallel.tp << " ranks";
  }
}

}  // namespace
}  // namespace lathe
