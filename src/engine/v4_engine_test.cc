// DeepSeek V4 in the engine: windows, compressed entries and the states of compressors, whatever
// the chunks, the company, the prefix cache and preemption at any place in a group of tokens.
#include <gmock/gmock.h>

#include "engine/ngram_drafter.h"
#include "engine/real_model_test_util.h"

namespace lathe {
namespace {

// A block is a page of 128 tokens: 32 entries of 4 tokens, one of 128.
RealSetup::Options options(std::int64_t tokens = 0) {
  RealSetup::Options out;
  out.page_size = 128;
  out.context = 512;
  out.tokens = tokens;
  return out;
}

EngineOptions chunks_of(std::int64_t rows, bool prefix_cache = false) {
  EngineOptions out;
  out.chunked_prefill_size = rows;
  out.prefix_cache = prefix_cache;
  return out;
}

class V4Engine : public testing::Test {
 protected:
  std::unique_ptr<Model> model_ = load_real("deepseek_v4");

  RealAnswer alone(const Request& request, std::int64_t chunk = 0) {
    RealSetup setup(*model_, options());
    Engine engine = setup.engine(chunks_of(chunk));
    return serve(engine, {request})[0];
  }
};

TEST_F(V4Engine, HasAPageKindForEveryLifetime) {
  RealSetup setup(*model_, options());
  const ModelPlan& plan = setup.model_plan();
  ASSERT_EQ(plan.groups.size(), 3u);
  EXPECT_EQ(plan.entry_groups(), 2u);
  EXPECT_EQ(plan.block_tokens, 128);
  EXPECT_TRUE(plan.has_state());
  EXPECT_EQ(setup.cache().entries(0), nullptr);
  EXPECT_EQ(setup.cache().state(0), nullptr);
  for (const std::size_t g : {1u, 2u}) {
    ASSERT_NE(setup.cache().entries(g), nullptr);
    EXPECT_EQ(setup.cache().entries(g)->pages(), setup.cache().pools(g).pages());
    EXPECT_NE(setup.cache().state(g), nullptr);
  }
}

TEST_F(V4Engine, ChunkSizesChangeNothing) {
  for (const std::int32_t length : {3, 130, 258}) {
    const Request request = greedy(make_prompt(*model_, length), 12);
    const RealAnswer whole = alone(request);
    EXPECT_EQ(whole.tokens.size(), 12u);
    for (const std::int64_t size : {1, 2, 3, 63, 127, 128, 129}) {
      if (size < 63 && length > 200) continue;
      ASSERT_TRUE(same(alone(request, size), whole)) << length << " in chunks of " << size;
    }
  }
}

TEST_F(V4Engine, PrefixCacheChangesNothing) {
  std::vector<Request> requests;
  std::vector<RealAnswer> want;
  // After 256 shared tokens, at whose end a state is kept; and after 130, where one is kept only if
  // a step ended near.
  for (const auto& [length, salt, shared] :
       {std::tuple{300, 0, 0}, {300, 0, 0}, {270, 1, 256}, {140, 2, 130}, {257, 3, 256}}) {
    requests.push_back(greedy(make_prompt(*model_, length, salt, shared), 8));
    want.push_back(alone(requests.back()));
  }
  constexpr std::int64_t kFound[] = {0, 256, 256, -1, 256};
  for (const auto& [chunk, steps_between] : {std::pair{0, 100}, {50, 100}, {50, 3}, {0, 0}}) {
    RealSetup setup(*model_, options(4096));
    Engine engine = setup.engine(chunks_of(chunk, true));
    const std::vector<RealAnswer> got = serve(engine, requests, steps_between);
    for (std::size_t i = 0; i < want.size(); ++i) {
      ASSERT_TRUE(same(got[i], want[i])) << "request " << i << " in chunks of " << chunk << ", "
                                         << steps_between << " steps apart";
      if (steps_between == 100) {
        const std::int64_t found = got[i].finished->cached_tokens;
        if (kFound[i] < 0) {
          EXPECT_TRUE(found == 0 || found == 128) << found;
        } else {
          EXPECT_EQ(found, kFound[i]) << i;
        }
      }
    }
  }
}

// Pages for fewer tokens than the requests have together, so that the youngest give theirs up, with
// every residue of a group of 4.
TEST_F(V4Engine, PreemptionChangesNothing) {
  std::vector<Request> requests;
  std::vector<RealAnswer> want;
  for (std::int32_t i = 0; i < 4; ++i) {
    requests.push_back(greedy(make_prompt(*model_, 100 + i, i), 60));
    want.push_back(alone(requests.back()));
  }
  for (const bool prefix_cache : {false, true}) {
    for (const std::int64_t chunk : {0, 33}) {
      RealSetup setup(*model_, options(768));
      Engine engine = setup.engine(chunks_of(chunk, prefix_cache));
      const std::vector<RealAnswer> got = serve(engine, requests);
      std::int64_t preempted = 0;
      for (std::size_t i = 0; i < want.size(); ++i) {
        ASSERT_TRUE(same(got[i], want[i])) << "request " << i << " in chunks of " << chunk;
        preempted += got[i].finished->preemptions;
      }
      EXPECT_GT(preempted, 0);
    }
  }
}

TEST_F(V4Engine, RefusesDrafts) {
  RealSetup setup(*model_, options());
  EngineOptions o = chunks_of(0);
  NgramDrafter drafter;
  o.drafter = &drafter;
  const auto made = Engine::create(*model_, setup.cache(), o, setup.ops());
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().message(), testing::HasSubstr("--draft none"));
}

}  // namespace
}  // namespace lathe
