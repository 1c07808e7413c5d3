// A step that checks drafts is padded to the size of a recording, and its requests have different
// numbers of drafts. Padding rows write nothing and change no bit of other rows.
#include <array>

#include "engine/runner/runner.h"
#include "engine/test/gpu_engine_test_util.h"
#include "kernels/cuda/fake/fake_cuda.h"

namespace lathe {
namespace {

struct Ran {
  Logits logits;                              // of every row after the prompts
  std::vector<std::vector<std::byte>> pages;  // main pages and index pages of every layer
  std::int64_t graph_launches = 0;
};

// Prompts of 5, 9 and 12 tokens; then a known token of each with up to 4 drafts, differently
// distributed each time; then one more row of each. No request has the first page.
Ran run(const std::string& model, bool padded) {
  GpuSetup setup(
      model, {.context = 64, .plain_products = true, .draft_tokens = 4, .batch_invariant = true},
      {});
  KvCache& cache = setup.cache();
  auto runner = Runner::create(setup.model(), cache, padded);
  EXPECT_TRUE(runner.ok());
  std::vector<std::vector<std::vector<PageId>>> pages(3);
  std::vector<std::vector<std::int32_t>> tokens;
  for (std::int32_t r = 0; r < 3; ++r) {
    pages[static_cast<std::size_t>(r)] = {{PageId(1 + r)}};
    tokens.push_back(some_tokens(30 + r, setup.config().vocab));
  }
  // Arbitrary bytes in all pages.
  for (std::int32_t l = 0; l < setup.config().layers; ++l) {
    for (const PoolView& pool : {cache.main(l), cache.index(l)}) {
      const std::vector<std::byte> bytes(static_cast<std::size_t>(pool.bytes()), std::byte{0x5a});
      EXPECT_TRUE(setup.ops().backend->upload(setup.ops(), bytes, pool.data).ok());
    }
  }
  Ran out;
  std::array<std::int32_t, 3> known = {};
  const auto step = [&](Phase phase, std::array<std::int32_t, 3> rows) {
    std::vector<BatchItem> items(3);
    for (std::size_t r = 0; r < 3; ++r) {
      items[r].phase = phase;
      items[r].pages = pages[r];
      items[r].cached = known[r];
      items[r].tokens = std::span(tokens[r]).subspan(static_cast<std::size_t>(known[r]),
                                                     static_cast<std::size_t>(rows[r]));
      items[r].logits = phase == Phase::extend ? 0 : rows[r];
      known[r] += rows[r];
    }
    ASSERT_TRUE(runner->launch(items, setup.ops(), false).ok());
    ASSERT_TRUE(runner->collect().ok());
    for (std::size_t r = 0; r < 3; ++r) {
      for (std::int64_t k = 0; k < items[r].logits; ++k) {
        const auto row = runner->logits(r, k, setup.ops());
        ASSERT_TRUE(row.ok());
        out.logits.emplace_back(row->begin(), row->end());
      }
    }
  };
  step(Phase::extend, {5, 9, 12});
  const std::int64_t before = cuda::fake::counts().graph_launches;
  step(Phase::verify, {1, 3, 5});  // 12 rows if padded
  step(Phase::verify, {5, 3, 1});
  step(Phase::verify, {2, 5, 2});
  step(Phase::decode, {1, 1, 1});  // 4
  out.graph_launches = cuda::fake::counts().graph_launches - before;
  for (std::int32_t l = 0; l < setup.config().layers; ++l) {
    for (const PoolView& pool : {cache.main(l), cache.index(l)}) {
      auto& bytes = out.pages.emplace_back(static_cast<std::size_t>(pool.bytes()));
      EXPECT_TRUE(setup.ops().backend->download(setup.ops(), pool.data, bytes).ok());
    }
  }
  return out;
}

TEST(GpuPaddedSteps, PaddingWritesNothing) {
  const std::string model = std::string(LATHE_TEST_DATA) + "/../../models/tiny-v32";
  const Ran plain = run(model, false), padded = run(model, true);
  EXPECT_EQ(plain.graph_launches, 0);
  EXPECT_EQ(padded.graph_launches, 2) << "of one recording";
  ASSERT_EQ(plain.logits.size(), 30u);
  for (std::size_t i = 0; i < 30; ++i) EXPECT_EQ(padded.logits[i], plain.logits[i]) << "row " << i;
  ASSERT_EQ(padded.pages.size(), plain.pages.size());
  for (std::size_t i = 0; i < plain.pages.size(); ++i) {
    EXPECT_TRUE(padded.pages[i] == plain.pages[i]) << "pool " << i;
  }
}

}  // namespace
}  // namespace lathe
