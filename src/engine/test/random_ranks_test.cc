// Random models, numbers of ranks, drafts, expert splits, chunks and prompts on a CPU's ranks. What
// a plan refuses is said in one line with a way out that works; everything else answers.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <random>

#include "base/test_scale.h"
#include "engine/runtime.h"
#include "engine/test/real_model_test_util.h"

namespace lathe {
namespace {

using testing::HasSubstr;
using testing::Not;

// All folders with a checkpoint's rule.
std::vector<std::string> all_fixtures() {
  std::vector<std::string> out;
  const std::filesystem::path models = std::string(LATHE_TEST_DATA) + "/models";
  for (const auto& entry : std::filesystem::directory_iterator(models)) {
    if (std::filesystem::exists(entry.path() / "tensors.json")) {
      out.push_back(entry.path().filename().string());
    }
  }
  std::ranges::sort(out);
  return out;
}

constexpr std::int64_t kMostChunk = 64;  // of the plan

// One life of a server: how it is started, and what it is asked.
struct RanksCase {
  std::string model, draft, split, text;
  std::int32_t tp = 1;
  std::int64_t chunk = 0;
  bool check = false, prefix_cache = true;
  std::vector<Request> requests = {};  // without prompts, which need the vocabulary
  std::vector<std::int32_t> lengths = {};
};

template <class T>
T pick(std::mt19937& random, std::initializer_list<T> from) {
  const auto last = static_cast<std::int64_t>(from.size()) - 1;
  return from.begin()[std::uniform_int_distribution<std::int64_t>(0, last)(random)];
}
std::int32_t between(std::mt19937& random, std::int32_t first, std::int32_t last) {
  return std::uniform_int_distribution(first, last)(random);
}

bool has_experts(const std::string& model) {
  const auto config = load_model_config(std::string(LATHE_TEST_DATA) + "/models/" + model);
  return config && config->moe.experts > 0;
}

RanksCase random_case(const std::string& model, std::uint32_t seed) {
  std::mt19937 random(seed);
  RanksCase out;
  out.model = model;
  out.tp = pick(random, {1, 2, 2, 4, 4, 8});
  out.draft = pick<const char*>(random, {"none", "ngram", "ngram", "mtp"});
  out.split = pick<const char*>(random, {"auto", "width", "number", "2x2"});
  // Without experts or with one rank every other split is refused, which a few cases are for.
  if (seed % 8 != 5 && (out.tp == 1 || !has_experts(model))) out.split = "auto";
  out.chunk = between(random, 1, 45);
  out.check = random() % 2 == 0 && out.tp > 1;
  out.prefix_cache = random() % 2 == 0;
  out.text = fmt::format("{} --tp {} --draft {} --expert-split {}, chunks of {}{}", model, out.tp,
                         out.draft, out.split, out.chunk, out.check ? " --check-ranks" : "");
  for (int i = between(random, 1, 4); i > 0; --i) {
    Request r = greedy({}, between(random, 1, 9));
    if (random() % 3 == 0) {
      r.sampling.temperature = 0.8f;
      r.sampling.seed = random();
    }
    out.requests.push_back(std::move(r));
    out.lengths.push_back(between(random, 1, 75));
  }
  return out;
}

RuntimeOptions options_of(const RanksCase& c, const std::string& directory) {
  RuntimeOptions o;
  o.model = directory;
  o.device = "cpu";
  o.threads = c.tp;
  o.draft = c.draft;
  o.check_ranks = c.check;
  o.plan_request.tp = c.tp;
  o.plan_request.expert_split = c.split;
  o.plan_request.context_length = 128;
  o.plan_request.max_total_tokens = 1024;
  o.plan_request.max_running_requests = 4;
  o.plan_request.chunked_prefill_size = kMostChunk;
  o.engine.chunked_prefill_size = c.chunk;
  o.engine.prefix_cache = c.prefix_cache;
  return o;
}

// What a refusal says to try; empty: nothing.
std::string way_out(const Refusal& refusal) {
  EXPECT_THAT(refusal.headline, Not(HasSubstr("\n")));
  return refusal.suggestions.empty() ? refusal.reasons.at(0).hint : refusal.suggestions.front();
}

// A refusal is short, and who does what it says has a server. With two faults, such as experts and
// heads, there are two steps.
void expect_way_out(const StartError& first, RanksCase c, const std::string& directory) {
  StartError error = first;
  for (int i = 0; i < 3; ++i) {
    if (const auto* e = std::get_if<Error>(&error)) {
      EXPECT_THAT(e->message(), Not(HasSubstr("\n")));
      EXPECT_THAT(e->message(), Not(HasSubstr("bug in Lathe")));
      // A draft layer may be missing.
      EXPECT_TRUE(c.draft == "mtp" || e->message().find("--") != std::string::npos) << e->message();
      return;
    }
    const std::string text = way_out(std::get<Refusal>(error));
    if (text.starts_with("--tp ")) {
      c.tp = std::stoi(text.substr(5));
      c.check = c.check && c.tp > 1;
      if (text.ends_with(" --expert-split auto")) c.split = "auto";
    } else if (text.starts_with("--expert-split ")) {
      c.split = text.substr(15);
    } else {
      FAIL() << std::get<Refusal>(error).reasons.at(0).field << ", try \"" << text << '"';
    }
    const auto tried = Runtime::create(options_of(c, directory));
    if (tried) return;
    error = tried.error();
  }
  FAIL() << "three ways out, and none works";
}

std::vector<Request> with_prompts(const RanksCase& c, const Model& model) {
  std::vector<Request> out = c.requests;
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i].prompt = make_prompt(model, c.lengths[i], static_cast<std::int32_t>(i), 20);
  }
  return out;
}

// Answers of a server that has one request at a time, no drafts and no cached prefixes.
std::vector<RealAnswer> alone(RanksCase c, const std::string& directory) {
  c.draft = "none";
  c.check = c.prefix_cache = false;
  c.chunk = kMostChunk;
  auto runtime = Runtime::create(options_of(c, directory));
  EXPECT_TRUE(runtime.ok());
  std::vector<RealAnswer> out;
  if (!runtime) return out;
  for (const Request& r : with_prompts(c, (*runtime)->model())) {
    out.push_back(serve_real((*runtime)->engine(), {r})[0]);
  }
  return out;
}

struct Counts {
  int served = 0, refused = 0;
  std::int64_t accepted = 0;
};

void check_case(const RanksCase& c, Counts& counts) {
  const std::string directory = checkpoint_dir(std::string(LATHE_TEST_DATA) + "/models/" + c.model);
  auto runtime = Runtime::create(options_of(c, directory));
  if (!runtime) {
    ++counts.refused;
    return expect_way_out(runtime.error(), c, directory);
  }
  ++counts.served;
  Engine& engine = (*runtime)->engine();
  const auto requests = with_prompts(c, (*runtime)->model());
  const std::vector<RealAnswer> got = serve_real(engine, requests, 2);
  counts.accepted += engine.stats().drafts.all_accepted();
  const std::vector<RealAnswer> want = alone(c, directory);
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(got[i].finished) << "request " << i;
    EXPECT_EQ(std::ssize(got[i].tokens), requests[i].sampling.max_tokens) << "request " << i;
    EXPECT_TRUE(same(got[i], want[i])) << "request " << i << ", prompt of " << c.lengths[i];
    for (const SampledToken& t : got[i].tokens) EXPECT_TRUE(std::isfinite(t.logprob.value_or(0)));
  }
}

TEST(RandomRanks, AnswerAsARequestAloneOrAreRefusedWithAWayOut) {
  const std::vector<std::string> models = all_fixtures();
  ASSERT_GT(models.size(), 50u);
  const std::uint32_t first = test_seed(7000);
  Counts counts;
  for (int i = 0; i < 20 * test_scale(); ++i) {
    const std::uint32_t seed = first + static_cast<std::uint32_t>(i);
    const RanksCase c =
        random_case(models[(first + 23 * static_cast<std::size_t>(i)) % models.size()], seed);
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, c.text));
    check_case(c, counts);
  }
  std::printf("%d served, %d refused, %ld drafts accepted\n", counts.served, counts.refused,
              static_cast<long>(counts.accepted));
  EXPECT_GT(counts.served, 5);
}

// What a plan counts for the index logits of so short a context is less than the threads' smallest
// tiles, which every step needs.
TEST(RandomRanks, ShortContextsHaveTilesOfIndexKeys) {
  Counts counts;
  for (const auto& [model, tp] : {std::pair{"glm5_next", 1}, {"deepseek_v4_wide", 2}}) {
    RanksCase c{.model = model, .draft = "none", .split = "auto", .text = model, .tp = tp};
    c.chunk = 19;
    c.requests = {greedy({}, 5)};
    c.lengths = {70};
    SCOPED_TRACE(model);
    check_case(c, counts);
  }
  EXPECT_EQ(counts.served, 2);
}

}  // namespace
}  // namespace lathe
