// DeepSeek V4's pages and states: unowned memory is NaN, each kind of page runs out separately, and
// requests resume in the prefix cache where a window and the states are left.
#include <gmock/gmock.h>

#include <set>

#include "engine/test/real_model_test_util.h"

namespace lathe {
namespace {

constexpr std::int64_t kPage = 128;  // tokens per page of every kind, and per block

class V4Pages : public testing::Test {
 protected:
  // Window pages of the groups window, c4 and c128, then pages of entries of c4 and c128.
  using Pages = std::array<std::int64_t, 5>;
  static constexpr std::array kNames = {"window", "window of c4", "window of c128", "entries of c4",
                                        "entries of c128"};
  static constexpr std::size_t kFirstEntries = 3;

  static RealSetup::Options options() {
    RealSetup::Options out;
    out.page_size = kPage;
    out.context = 512;
    return out;
  }
  static Pages all(std::int64_t pages) {
    Pages out;
    out.fill(pages);
    return out;
  }
  KvCache cache(const Pages& pages) {
    std::vector<PoolSize> sizes;
    for (const std::int64_t n : pages) sizes.push_back({.budget_bytes = 0, .pages = n});
    KvCache out = *KvCache::create(setup_.model_plan(), sizes);
    out.poison_free();
    return out;
  }
  Engine engine(KvCache& cache, bool prefix_cache, std::int64_t chunk = 0) {
    EngineOptions o;
    o.chunked_prefill_size = chunk;
    o.prefix_cache = prefix_cache;
    return *Engine::create(*model_, cache, o, setup_.ops());
  }
  RealAnswer alone(const Request& request) {
    KvCache pages = cache(all(4));
    Engine e = engine(pages, false);
    return serve_real(e, {request})[0];
  }

  std::unique_ptr<Model> model_ = load_real("deepseek_v4");
  RealSetup setup_{*model_, options()};
};

// Before every step, every page and slot without an owner is filled with NaN.
TEST_F(V4Pages, WhatNobodyHoldsIsNotRead) {
  std::vector<Request> requests;
  for (std::int32_t i = 0; i < 5; ++i) {
    requests.push_back(greedy(make_prompt(*model_, 90 + 37 * i, i, 60), 30));
  }
  for (const auto& [chunk, prefix_cache] : {std::pair{0, false}, {0, true}, {41, true}}) {
    KvCache pages = cache(all(7));
    Engine e = engine(pages, prefix_cache, chunk);
    std::map<RequestId, RealAnswer> got;
    std::vector<RequestId> ids;
    for (const Request& r : requests) ids.push_back(*e.submit(r));
    while (!e.idle()) {
      pages.poison_free();
      auto report = e.step();
      ASSERT_TRUE(report) << report.error().message();
      for (TokenEvent& t : report->tokens) got[t.request].tokens.push_back(std::move(t.sampled));
    }
    for (std::size_t i = 0; i < requests.size(); ++i) {
      EXPECT_TRUE(same(got[ids[i]], alone(requests[i]))) << "request " << i << ", chunks " << chunk;
    }
  }
}

// One kind has few pages, the others many. Few window pages suffice for a long request; few entry
// pages bound a request, which is rejected with the kind's name. Requests that wait or are
// preempted give the same answers.
TEST_F(V4Pages, KindsRunOutApart) {
  std::vector<Request> requests;
  std::vector<RealAnswer> want;
  for (std::int32_t i = 0; i < 4; ++i) {
    requests.push_back(greedy(make_prompt(*model_, 100 + i, i), 60));
    want.push_back(alone(requests.back()));
  }
  const Request longest = greedy(make_prompt(*model_, 500), 12);
  const RealAnswer longest_want = alone(longest);
  for (std::size_t kind = 0; kind < kNames.size(); ++kind) {
    SCOPED_TRACE(kNames[kind]);
    Pages few = all(32);
    few[kind] = 4;
    KvCache pages = cache(few);
    Engine e = engine(pages, false, 128);
    const std::vector<RealAnswer> got = serve_real(e, requests);
    for (std::size_t i = 0; i < want.size(); ++i) {
      EXPECT_TRUE(same(got[i], want[i])) << "request " << i;
    }
    if (kind >= kFirstEntries) {
      EXPECT_GT(e.stats().preemptions, 0);
    }
    EXPECT_TRUE(same(serve_real(e, {longest})[0], longest_want));
    EXPECT_EQ(e.stats().held_pages, 0);

    few[kind] = kind < kFirstEntries ? 1 : 3;
    KvCache fewer = cache(few);
    Engine small = engine(fewer, false, 128);
    const auto refused = small.submit(longest);
    ASSERT_FALSE(refused);
    const std::string message = refused.error().message();
    EXPECT_THAT(message, testing::HasSubstr("--max-total-tokens"));
    EXPECT_THAT(message, testing::HasSubstr(std::to_string(few[kind]) + " pages of 128"));
  }
}

// A shorter prompt leaves a boundary at 128, another one at 256. When window pages run short the
// least recently used is evicted, and a request resumes at the other boundary or at none, with the
// same answer.
TEST_F(V4Pages, AnEvictedWindowResumesEarlier) {
  const Request shorter = greedy(make_prompt(*model_, 140), 2);
  const Request longer = greedy(make_prompt(*model_, 300), 6);
  const RealAnswer want = alone(longer);
  std::set<std::int64_t> found;
  for (std::int64_t windows = 4; windows <= 12; ++windows) {
    KvCache pages = cache({windows, windows, windows, 32, 32});
    Engine e = engine(pages, true, 128);
    serve_real(e, {shorter});
    EXPECT_TRUE(same(serve_real(e, {longer})[0], want));
    serve_real(e, {shorter});
    std::vector<Request> others;
    for (std::int32_t i = 1; i < 4; ++i) others.push_back(greedy(make_prompt(*model_, 140, i), 2));
    serve_real(e, others);
    const RealAnswer again = serve_real(e, {longer})[0];
    EXPECT_TRUE(same(again, want)) << windows << " pages of windows";
    found.insert(again.finished->cached_tokens);
  }
  EXPECT_THAT(found, testing::IsSupersetOf({std::int64_t{128}, std::int64_t{256}}));
}

}  // namespace
}  // namespace lathe
