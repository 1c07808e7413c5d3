// Prompts that share their beginning: from the third request on it comes from the prefix cache, in
// models with windows and states too, and the answers keep the bits of a cold engine.
// Pools have the plan's sizes for one running request. Prints docs/pages.md's table.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "engine/test/real_model_test_util.h"
#include "plan/explain.h"

namespace lathe {
namespace {

struct SharedCase {
  const char* name;
  const char* directory;                  // from tests/data
  std::int32_t shared = 1500, own = 300;  // tokens
  std::int64_t context = 2048;
  const char* layout = "auto";
};

void PrintTo(const SharedCase& c, std::ostream* out) { *out << c.name; }

constexpr std::int32_t kFewShared = 380;  // where their number does not matter; two blocks and more

class PrefixCacheC1 : public testing::TestWithParam<SharedCase> {
 protected:
  std::unique_ptr<Model> model_ = load_real("../" + std::string(GetParam().directory));

  // Pools for steps of `rows` rows, and `requests` requests at once.
  RealSetup::Options options(std::int64_t rows, std::int64_t requests = 1) const {
    RealSetup::Options o;
    o.rows = rows;
    o.layout = GetParam().layout;
    o.page_size = 0;  // the plan's choice
    o.context = GetParam().context;
    o.requests = requests;
    o.planned_pools = true;
    o.tokens = 4 * o.context;
    return o;
  }
  Request request(std::int32_t salt, std::int32_t shared) const {
    return greedy(make_prompt(*model_, shared + GetParam().own, salt, shared), 4);
  }
};

TEST_P(PrefixCacheC1, SharedPromptsAreReusedFromTheThirdRequestOn) {
  const SharedCase& c = GetParam();
  std::vector<Request> requests;
  for (std::int32_t i = 0; i < 4; ++i) requests.push_back(request(i, c.shared));
  const std::vector<RealAnswer> want = serve_alone(*model_, options(0), requests);
  const auto check = [&](const RealAnswer& got, std::size_t i, std::int64_t block) {
    EXPECT_TRUE(same(got, want[i])) << "request " << i;
    if (i < 2) return;
    EXPECT_GE(got.finished->cached_tokens, c.shared / block * block) << "request " << i;
    if (c.shared == 1500) {
      EXPECT_GE(got.finished->cached_tokens, 1400);
    }
  };
  for (const std::int64_t chunk : {96, 0}) {
    SCOPED_TRACE("chunks of " + std::to_string(chunk));
    RealSetup setup(*model_, options(chunk));
    Engine engine = setup.engine({});
    std::string row;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const RealAnswer got = serve_real(engine, {requests[i]})[0];
      check(got, i, setup.model_plan().block_tokens);
      row += fmt::format(" {} |", got.finished->cached_tokens);
    }
    const ModelPlan& plan = setup.model_plan();
    fmt::print("| {} | {} |{} {} |\n", c.name, chunk == 0 ? "whole" : std::to_string(chunk), row,
               human_bytes(plan.boundary_bytes / plan.kept_boundaries()));
  }
  // Two in turn, then two at once.
  RealSetup setup(*model_, options(96, 2));
  Engine engine = setup.engine({});
  for (std::size_t i = 0; i < 2; ++i) check(serve_real(engine, {requests[i]})[0], i, 1);
  const auto together = serve_real(engine, {requests.begin() + 2, requests.end()});
  for (std::size_t i = 2; i < requests.size(); ++i) {
    check(together[i - 2], i, setup.model_plan().block_tokens);
  }
}

// Requests with unequal salts find none of each other's keys, windows or states; equal ones do.
TEST_P(PrefixCacheC1, UnequalSaltsShareNothing) {
  RealSetup setup(*model_, options(96, 8));
  Engine engine = setup.engine({});
  const auto serve = [&](std::uint64_t salt, std::int32_t own) {
    Request r = request(own, kFewShared);
    r.cache_salt = salt;
    return serve_real(engine, {r})[0];
  };
  const RealAnswer cold = serve(0, 0);
  serve(0, 1);  // caches the parting of the prompts
  for (const std::uint64_t salt : {1, 2}) {
    for (const bool again : {false, true}) {
      const RealAnswer got = serve(salt, 0);
      EXPECT_TRUE(same(got, cold));
      EXPECT_EQ(got.finished->cached_tokens > kFewShared / 2, again);
      EXPECT_EQ(got.finished->cached_tokens == 0, !again);
    }
  }
  EXPECT_GT(serve(0, 2).finished->cached_tokens, kFewShared / 2);
}

// Chats grow while requests with another shared beginning come and go.
TEST_P(PrefixCacheC1, GrowingChatsKeepTheirHits) {
  RealSetup setup(*model_, options(96, 8));
  Engine engine = setup.engine({});
  const std::int64_t block = setup.model_plan().block_tokens;
  Request turn = greedy(make_prompt(*model_, 270, 9), 20);
  for (std::int32_t i = 0; i < 4; ++i) {
    const RealAnswer got = serve_real(engine, {turn})[0];
    EXPECT_EQ(got.text(), serve_alone(*model_, options(0), {turn})[0].text()) << "turn " << i;
    // The ten new tokens and the answer's last one have no keys.
    const std::int64_t cached = i == 0 ? 0 : (std::ssize(turn.prompt) - 11) / block * block;
    EXPECT_EQ(got.finished->cached_tokens, cached) << "turn " << i;
    for (const std::int32_t t : got.text()) turn.prompt.push_back(t);
    for (std::int32_t t = 0; t < 10; ++t)
      turn.prompt.push_back((7 * t + i) % model_->config().vocab);
    Request other = request(i, kFewShared);
    other.prompt.resize(kFewShared / 2);
    other.prompt.back() = i;
    serve_real(engine, {other});
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, PrefixCacheC1,
    testing::Values(
        SharedCase{"tiny-gqa", "../../models/tiny-gqa"},
        SharedCase{"tiny-v32", "../../models/tiny-v32"},
        SharedCase{"tiny-v4", "../../models/tiny-v4"}, SharedCase{"gpt-oss", "models/gpt_oss"},
        SharedCase{"Gemma 3", "models/gemma3"}, SharedCase{"Mistral", "models/mistral"},
        SharedCase{"Qwen 2", "models/qwen2", 380, 80, 512},
        SharedCase{"Qwen 2 with a window", "models/qwen2_window", 380, 80, 512},
        SharedCase{"Qwen 3.5", "models/qwen3_5_moe", 380, 80, 512},
        SharedCase{"Qwen 2 with a window, in e4m3", "models/qwen2_window", 380, 80, 512, "gqa_fp8"},
        SharedCase{"tiny-v32 in e4m3", "../../models/tiny-v32", 380, 80, 512, "mla_fp8"},
        SharedCase{"tiny-v32 in e2m1", "../../models/tiny-v32", 380, 80, 512, "mla_fp4"}),
    [](const auto& test) {
      std::string name = test.param.name;
      std::erase_if(name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
      return name;
    });

}  // namespace
}  // namespace lathe
