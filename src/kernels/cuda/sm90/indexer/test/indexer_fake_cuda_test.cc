// Runs the indexer's kernels without a GPU, emulated, and compares logits with sums in double
// precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/float_formats.h"
#include "base/test_scale.h"
#include "kernels/cuda/sm90/indexer/indexer.h"

namespace lathe::cuda {
namespace {

// Pages of codes, each followed by its scales.
std::vector<std::byte> random_pages(std::mt19937& rng, std::int64_t pages, std::int32_t tokens,
                                    std::int32_t dim) {
  std::normal_distribution<float> normal;
  std::vector<std::byte> out;
  const auto put = [&](const void* from, std::size_t bytes) {
    const auto* b = static_cast<const std::byte*>(from);
    out.insert(out.end(), b, b + bytes);
  };
  for (std::int64_t page = 0; page < pages; ++page) {
    for (std::int32_t i = 0; i < tokens * dim; ++i) {
      const e4m3 code = to_e4m3(normal(rng) * 30);
      put(&code, 1);
    }
    for (std::int32_t i = 0; i < tokens; ++i) {
      const float scale = 0.01f * (1 + std::abs(normal(rng)));
      put(&scale, 4);
    }
  }
  return out;
}

double code(const IndexPages& p, std::int64_t page, std::int64_t token, std::int32_t d) {
  e4m3 c;
  std::memcpy(&c, p.data + page * p.page_stride + token * p.dim + d, 1);
  return to_f32(c);
}
double scale(const IndexPages& p, std::int64_t page, std::int64_t token) {
  float s = 0;
  std::memcpy(&s, p.data + page * p.page_stride + std::int64_t{p.page_tokens} * p.dim + token * 4,
              4);
  return s;
}

// Requests of different lengths and rows, a hole among the pages, and rows without a request.
// nan_key: the prompt's last key, which only its last row sees, is NaN. apart: of the rows that are
// checked, which takes longer than the kernels do.
void check(std::int32_t heads, std::int32_t dim, std::int32_t page_tokens, std::int64_t prompt,
           unsigned seed, bool nan_key = false, std::int32_t longest = 300,
           std::int64_t apart = 1) {
  SCOPED_TRACE("heads " + std::to_string(heads) + ", dim " + std::to_string(dim) + ", page " +
               std::to_string(page_tokens) + ", seed " + std::to_string(seed));
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  const std::vector<std::int32_t> context = {longest, 7, 129, 128};
  const std::int64_t cols = longest + 10;
  const std::int64_t width = (cols + page_tokens - 1) / page_tokens;
  std::vector<std::int32_t> table, request, lens;
  std::int32_t pages = 0;
  for (const std::int32_t n : context) {
    for (std::int64_t i = 0; i < width; ++i) {
      table.push_back(i * page_tokens < n ? pages++ : -1);
    }
  }
  table[1] = -1;
  for (std::int64_t i = 0; i < prompt; ++i) {
    request.push_back(0);
    lens.push_back(static_cast<std::int32_t>(std::max<std::int64_t>(longest - prompt + 1 + i, 0)));
  }
  for (std::int32_t r = 1; r < 4; ++r) {
    request.push_back(r);
    lens.push_back(context[static_cast<std::size_t>(r)]);
  }
  request.push_back(-1);
  lens.push_back(50);
  const auto rows = std::ssize(request);
  auto key_bytes = random_pages(rng, pages, page_tokens, dim);
  const auto q_bytes = random_pages(rng, rows, heads, dim);
  std::vector<float> weights(static_cast<std::size_t>(rows * (heads + 3)));
  for (float& w : weights) w = normal(rng);
  std::vector<float> logits(static_cast<std::size_t>(rows * cols), -77);
  const auto bytes_of_page = [&](std::int32_t tokens) {
    return static_cast<std::int64_t>(tokens) * (dim + 4);
  };
  if (nan_key) {
    const std::int64_t page = table[static_cast<std::size_t>((longest - 1) / page_tokens)];
    std::memset(
        key_bytes.data() + page * bytes_of_page(page_tokens) + (longest - 1) % page_tokens * dim,
        0x7f, static_cast<std::size_t>(dim));
  }
  const IndexLogits p{
      .q = {q_bytes.data(), rows, bytes_of_page(heads), heads, dim},
      .weights = weights.data(),
      .weights_stride = heads + 3,
      .constant = 0.25f,
      .keys = {key_bytes.data(), pages, bytes_of_page(page_tokens), page_tokens, dim},
      .page_table = table.data(),
      .width = width,
      .request = request.data(),
      .lens = lens.data(),
      .logits = logits.data(),
      .rows = rows,
      .cols = cols,
      .heads = heads};
  ASSERT_EQ(launch_index_logits(p, nullptr), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  int shown = 0;
  for (std::int64_t row = 0; row < rows && shown < 5; row += apart) {
    for (std::int64_t j = 0; j < cols && shown < 5; ++j) {
      const float got = logits[static_cast<std::size_t>(row * cols + j)];
      const std::int64_t r = request[static_cast<std::size_t>(row)];
      if (r < 0 || j >= lens[static_cast<std::size_t>(row)]) {
        if (got == -77) continue;
        ADD_FAILURE() << "row " << row << ", key " << j << " was written";
        ++shown;
        continue;
      }
      const std::int64_t page = table[static_cast<std::size_t>(r * width + j / page_tokens)];
      if (page < 0) {
        if (std::isnan(got)) continue;
        ADD_FAILURE() << "row " << row << ", key " << j << " has no page, and " << got;
        ++shown;
        continue;
      }
      double want = 0, magnitude = 0;
      for (std::int32_t h = 0; h < heads; ++h) {
        double dot = 0;
        for (std::int32_t d = 0; d < dim; ++d) {
          dot += code(p.q, row, h, d) * code(p.keys, page, j % page_tokens, d);
        }
        const double w =
            weights[static_cast<std::size_t>(row * (heads + 3) + h)] * 0.25 * scale(p.q, row, h);
        want += std::max(dot, 0.0) * w;
        magnitude += std::abs(dot * w);
      }
      const double s = scale(p.keys, page, j % page_tokens);
      if (std::abs(got - want * s) <= 1e-4 * magnitude * s) continue;
      if (std::isnan(want) && std::isnan(got)) continue;
      ADD_FAILURE() << "row " << row << ", key " << j << ": " << got << " against " << want * s;
      ++shown;
    }
  }
}

TEST(IndexLogits, AreSumsOverHeads) {
  for (const std::int32_t page : {1, 8, 16, 64}) {
    check(64, 128, page, 20, test_seed(1));
    check(32, 128, page, 3, test_seed(2));
    check(16, 128, page, 3, test_seed(3));
    check(4, 32, page, 3, test_seed(4));
    check(24, 128, page, 2, test_seed(5));
  }
}

TEST(IndexLogits, A1MaskedKeyReachesNoRow) {
  check(64, 128, 16, 20, test_seed(7), true);
  check(4, 32, 64, 3, test_seed(8), true);
}

// NaN logits are not selected, nor are logits beyond a row's length, whatever they are.
TEST(SelectSlots, A1MaskedKeyIsNotSelected) {
  constexpr std::int64_t kCols = 300;
  const std::vector<std::int32_t> lens = {200, 90, 33}, table = {0, 1, 2, 3, 4},
                                  request = {0, 0, 0};
  std::mt19937 rng(test_seed(9));
  std::normal_distribution<float> normal;
  std::vector<float> logits(3 * kCols);
  for (float& x : logits) x = normal(rng);
  for (std::size_t row = 0; row < 3; ++row) {
    for (std::int64_t j = 0; j < kCols; ++j) {
      float& x = logits[row * kCols + static_cast<std::size_t>(j)];
      if (j >= lens[row]) x = j % 2 == 0 ? NAN : INFINITY;
      if (j % 5 == 0 && j < 30) x = NAN;
    }
  }
  std::vector<std::int32_t> slots(3 * 32, -7);
  const SelectSlots p{.logits = logits.data(),
                      .rows = 3,
                      .cols = kCols,
                      .lens = lens.data(),
                      .page_table = table.data(),
                      .width = 5,
                      .request = request.data(),
                      .page_tokens = 64,
                      .pages = 5,
                      .slots = slots.data(),
                      .k = 32};
  ASSERT_EQ(launch_select_slots(p, nullptr), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  for (std::size_t row = 0; row < 3; ++row) {
    int selected = 0;
    for (std::size_t i = 0; i < 32; ++i) {
      const std::int32_t slot = slots[row * 32 + i];
      if (slot < 0) continue;
      ++selected;
      EXPECT_LT(slot, lens[row]);
      EXPECT_FALSE(std::isnan(logits[row * kCols + static_cast<std::size_t>(slot)]));
    }
    EXPECT_EQ(selected, row == 2 ? 27 : 32);
  }
}

float random_score(std::mt19937& rng, int kind) {
  std::normal_distribution<float> normal;
  switch (kind) {
    case 0:
      return normal(rng);
    case 1:
      return static_cast<float>(static_cast<int>(rng() % 7)) - 3;  // many equal scores
    case 2:
      return rng() % 3 == 0 ? -0.f : 0.f;
    case 3:
      return std::exp2(normal(rng) * 40) * (rng() % 2 == 0 ? 1.f : -1.f);
    case 4:
      return 1 + static_cast<float>(rng() % 100) * 0x1p-23f;  // neighbours
    default:
      return rng() % 9 == 0 ? NAN : rng() % 50 == 0 ? INFINITY : std::abs(normal(rng));
  }
}

// Rows of all lengths, in registers, and from one block a row to eight, with and without a sample,
// against sorted scores.
TEST(SelectSlots, AreTheSortedScores) {
  struct Shape {
    std::int64_t rows, cols, k;
    std::int32_t page = 64;
  };
  std::mt19937 rng(test_seed(10));
  for (const Shape& shape :
       {Shape{140, 900, 64},      Shape{3, 9000, 2048},     Shape{2, 70000, 2048},
        Shape{1, 40000, 512},     Shape{1, 290000, 2048},   Shape{5, 20000, 1},
        Shape{12, 8192, 2048},    Shape{300, 4096, 700},    Shape{8, 32768, 2048},
        Shape{3, 16380, 4096},    Shape{4, 16382, 2048},    Shape{134, 17000, 512},
        Shape{1, 4000, 2048},     Shape{20, 4096, 2048, 6}, Shape{9, 4097, 512, 12},
        Shape{20, 8192, 2048, 8}, Shape{7, 8191, 8000, 2},  Shape{30, 130, 64, 1},
        Shape{5, 9, 12},          Shape{132, 1000, 1, 4}}) {
    const auto [rows, cols, k, page_tokens] = shape;
    const std::int64_t width = (cols + page_tokens - 1) / page_tokens;
    std::vector<std::int32_t> table(static_cast<std::size_t>(2 * width)), lens, request;
    for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::int32_t>(i);
    std::shuffle(table.begin(), table.end(), rng);
    table[0] = -1;
    std::vector<float> logits(static_cast<std::size_t>(rows * cols));
    for (std::int64_t row = 0; row < rows; ++row) {
      lens.push_back(static_cast<std::int32_t>(
          row == 0 ? cols : rng() % static_cast<unsigned long>(cols + 1)));
      request.push_back(static_cast<std::int32_t>(rng() % 2));
      const int kind = static_cast<int>(rng() % 6);
      for (std::int64_t j = 0; j < cols; ++j) {
        logits[static_cast<std::size_t>(row * cols + j)] = random_score(rng, kind);
      }
    }
    std::vector<std::int32_t> slots(static_cast<std::size_t>(rows * k + 1), -7);
    const SelectSlots p{.logits = logits.data(),
                        .rows = rows,
                        .cols = cols,
                        .lens = lens.data(),
                        .page_table = table.data(),
                        .width = width,
                        .request = request.data(),
                        .page_tokens = page_tokens,
                        .pages = 2 * width,
                        .slots = slots.data(),
                        .k = k};
    ASSERT_EQ(launch_select_slots(p, nullptr), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    EXPECT_EQ(slots.back(), -7) << "written past the last row";
    for (std::int64_t row = 0; row < rows; ++row) {
      const float* scores = logits.data() + row * cols;
      const std::int64_t len = lens[static_cast<std::size_t>(row)];
      std::vector<std::int32_t> wanted;
      for (std::int32_t j = 0; j < len; ++j) {
        if (len <= k || !std::isnan(scores[j])) wanted.push_back(j);
      }
      if (std::ssize(wanted) > k) {
        std::stable_sort(wanted.begin(), wanted.end(),
                         [&](std::int32_t a, std::int32_t b) { return scores[a] > scores[b]; });
        wanted.resize(static_cast<std::size_t>(k));
        std::sort(wanted.begin(), wanted.end());
      }
      const std::int64_t r = request[static_cast<std::size_t>(row)];
      for (std::int32_t& j : wanted) {
        const std::int32_t page = table[static_cast<std::size_t>(r * width + j / page_tokens)];
        j = page < 0 ? -1 : page * page_tokens + j % page_tokens;
      }
      wanted.resize(static_cast<std::size_t>(k), -1);
      const auto got = slots.begin() + row * k;
      ASSERT_TRUE(std::equal(wanted.begin(), wanted.end(), got))
          << "row " << row << " of " << rows << ", " << len << " keys, k " << k << ": first at "
          << std::mismatch(wanted.begin(), wanted.end(), got).first - wanted.begin();
    }
  }
}

// Blocks of several rows that cross from one request to the next.
TEST(IndexLogits, OfPrompts) { check(16, 128, 16, 299, test_seed(6)); }

// Blocks of four rows that go through three tiles, and blocks whose rows have fewer.
TEST(IndexLogits, OfLongPrompts) { check(64, 128, 16, 1060, test_seed(12), false, 560, 37); }

// Blocks that go through several tiles of a row.
TEST(IndexLogits, OfLongContexts) { check(16, 128, 64, 230, test_seed(11), true, 1000); }

}  // namespace
}  // namespace lathe::cuda
