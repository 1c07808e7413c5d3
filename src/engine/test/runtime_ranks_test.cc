// Runtimes of several ranks on a CPU: what cannot start, or goes wrong. Tests are named by the case
// that they are of.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/memory.h"
#include "engine/runtime.h"
#include "engine/test/real_ranks_test_util.h"
#include "io/files/read_file.h"
#include "model/test/generated_checkpoint.h"

namespace lathe {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string ranked_fixture(const std::string& name) {
  return checkpoint_dir(std::string(LATHE_TEST_DATA) + "/models/" + name);
}

// A folder that is removed at the end.
class RanksFolder {
 public:
  explicit RanksFolder(const std::string& name)
      : path_(std::filesystem::path(testing::TempDir()) /
              ("lathe_ranks_" + name + "_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~RanksFolder() { std::filesystem::remove_all(path_); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name) << text;
  }

 private:
  std::filesystem::path path_;
};

RuntimeOptions on_ranks(std::int32_t tp, const std::string& model) {
  RuntimeOptions o;
  o.model = model;
  o.device = "cpu";
  o.threads = tp;
  o.plan_request.tp = tp;
  o.plan_request.max_running_requests = 4;
  o.plan_request.chunked_prefill_size = 128;
  return o;
}

// Why there is no runtime; with a refused plan its headline and first reason.
std::string start_refusal(const RuntimeOptions& options) {
  const auto runtime = Runtime::create(options);
  if (runtime) return "created";
  if (const auto* e = std::get_if<Error>(&runtime.error())) return e->message();
  const Refusal& refusal = std::get<Refusal>(runtime.error());
  return refusal.headline + ": " + refusal.reasons.at(0).field;
}

TEST(RuntimeRanks, Case1GpusOfACpuAreRefused) {
  RuntimeOptions o = on_ranks(2, ranked_fixture("qwen3"));
  o.gpus = "0,1";
  EXPECT_THAT(start_refusal(o), AllOf(HasSubstr("--gpus"), HasSubstr("--device cpu")));
}

TEST(RuntimeRanks, Case5NumbersOfRanksThatCannotBe) {
  for (const std::int32_t tp : {0, -1, 3, 16}) {
    RuntimeOptions o = on_ranks(tp, ranked_fixture("qwen3"));
    o.threads = 2;
    EXPECT_THAT(start_refusal(o), HasSubstr("--tp: wanted 1, 2, 4 or 8, got")) << tp;
  }
  RuntimeOptions o = on_ranks(2, ranked_fixture("qwen3_moe"));
  o.plan_request.expert_parallel = true;
  o.plan_request.ep_size = 2;
  EXPECT_THAT(start_refusal(o), HasSubstr("--enable-expert-parallel"));
}

TEST(RuntimeRanks, FlagsThatNothingWouldFollow) {
  RuntimeOptions o = on_ranks(1, ranked_fixture("qwen3"));
  o.check_ranks = true;
  EXPECT_EQ(start_refusal(o), "--check-ranks: wanted --tp 2, 4 or 8 with it, got --tp 1");
  o = on_ranks(4, ranked_fixture("qwen3"));
  o.threads = 3;
  EXPECT_EQ(start_refusal(o), "--threads: wanted one for each of 4 ranks, or more, got 3");
}

// The bytes that were wanted and those that are free are in the allocator's own message.
TEST(RuntimeRanks, Case10ARankWithoutMemoryIsNamed) {
  RankGroup group(make_host_communicators(2));
  const Result<void> ok = group.run([](std::int32_t r) -> Result<void> {
    if (r == 1) {
      throw OutOfMemory(
          {ErrorCode::exhausted, "device memory", "1024 bytes", "512 of 2048 bytes free", ""});
    }
    return {};
  });
  ASSERT_FALSE(ok);
  EXPECT_EQ(ok.error().code, ErrorCode::exhausted);
  EXPECT_THAT(ok.error().message(), AllOf(HasSubstr("rank 1: memory"), HasSubstr("1024 bytes"),
                                          HasSubstr("512 of 2048 bytes free")));
}

// The configuration has a layer more than the checkpoint.
TEST(RuntimeRanks, Case11WhatIsMissingIsSaidOnce) {
  const RanksFolder folder("missing");
  const std::string from = ranked_fixture("llama");
  for (const auto& entry : std::filesystem::directory_iterator(from)) {
    std::filesystem::copy(entry.path(), folder.file(entry.path().filename().string()));
  }
  auto config = nlohmann::json::parse(*read_file(folder.file("config.json")));
  config["num_hidden_layers"] = config["num_hidden_layers"].get<int>() + 1;
  folder.write("config.json", config.dump());
  const std::string one = start_refusal(on_ranks(1, folder.path()));
  EXPECT_THAT(one, HasSubstr("missing"));
  EXPECT_EQ(start_refusal(on_ranks(2, folder.path())), one);
}

TEST(RuntimeRanks, Case12ATruncatedFileIsRefused) {
  const RanksFolder folder("truncated");
  const std::string from = ranked_fixture("llama");
  for (const auto& entry : std::filesystem::directory_iterator(from)) {
    const std::string to = folder.file(entry.path().filename().string());
    std::filesystem::copy(entry.path(), to);
    if (entry.path().extension() == ".safetensors") {
      std::filesystem::resize_file(to, std::filesystem::file_size(to) / 2);
    }
  }
  EXPECT_THAT(start_refusal(on_ranks(2, folder.path())), HasSubstr("safetensors"));
}

// The cache's tokens must fit next to the weights of the fullest rank, which is not rank 0 where a
// width has an odd number of blocks.
TEST(RuntimeRanks, Case8WeightsAreThoseOfTheFullestRank) {
  for (const std::int32_t tp : {2, 4}) {
    RuntimeOptions o = on_ranks(tp, ranked_fixture("gpt_oss"));
    o.plan_request.expert_split = "width";
    const auto runtime = Runtime::create(o);
    ASSERT_TRUE(runtime);
    std::int64_t most = 0, first = 0;
    for (std::int32_t r = 0; r < tp; ++r) {
      LoadOptions load;
      load.parallel = (*runtime)->plan().ranks.parallel;
      load.rank = r;
      const auto model = load_model(o.model, load);
      ASSERT_TRUE(model);
      most = std::max(most, (*model)->weight_bytes());
      if (r == 0) first = (*model)->weight_bytes();
    }
    EXPECT_EQ((*runtime)->weight_bytes(), most) << tp;
    RecordProperty("rank_0_lacks_" + std::to_string(tp), std::to_string(most - first));
  }
}

// NaN in one rank's partial sum reaches all ranks: that request ends, the others do not notice.
TEST(RuntimeRanks, Case22NanOnOneRankEndsARequestAlone) {
  const auto serve = [](void (*change)(std::int32_t, Faults&)) {
    RealRanks setup(ranked_fixture("qwen3"), 2, {}, false, change);
    Engine engine = setup.engine({.prefix_cache = false});
    std::vector<Request> requests;
    for (std::int32_t i = 0; i < 3; ++i) {
      requests.push_back(greedy(make_prompt(setup.model(), 4 + 5 * i, i), 8));
    }
    auto answers = serve_real(engine, requests);
    setup.expect_equal_rows();
    return answers;
  };
  const auto want = serve(nullptr);
  // Row 6 of the first layer's attention in the first step is in the second request's prompt.
  const auto got = serve([](std::int32_t r, Faults& f) {
    f.nan_exchange = r == 1 ? 1 : -1;
    f.nan_row = 6;
  });
  ASSERT_EQ(got.size(), 3u);
  ASSERT_TRUE(got[1].finished);
  EXPECT_EQ(got[1].finished->reason, FinishReason::error);
  EXPECT_TRUE(got[1].tokens.empty());
  for (const std::size_t i : {0u, 2u}) EXPECT_TRUE(same(got[i], want[i])) << i;
}

// Each rank has counted its own KV heads.
TEST(RuntimeRanks, StoredValuesAreOneRanks) {
  std::vector<std::int64_t> want;
  for (const std::int32_t tp : {1, 2}) {
    RuntimeOptions o = on_ranks(tp, ranked_fixture("qwen3"));
    o.count_values = true;
    const auto runtime = Runtime::create(o);
    ASSERT_TRUE(runtime);
    (void)serve_real((*runtime)->engine(), {greedy(make_prompt((*runtime)->model(), 9), 4)});
    const auto counts = (*runtime)->stored_values();
    ASSERT_TRUE(counts);
    std::vector<std::int64_t> got;
    for (const ValueCounts& c : *counts) got.push_back(c.stored);
    if (tp == 1) want = got;
    EXPECT_EQ(got, want) << tp;
    EXPECT_GT(got.at(0), 0);
  }
}

// A fork has no threads: its steps fail instead of waiting, and it can end.
TEST(RuntimeRanks, Case26AForkGetsAnError) {
  for (const std::int32_t tp : {1, 2}) {
    auto runtime = Runtime::create(on_ranks(tp, ranked_fixture("qwen3")));
    ASSERT_TRUE(runtime);
    Engine& engine = (*runtime)->engine();
    Request r = greedy(make_prompt((*runtime)->model(), 5), 4);
    ASSERT_TRUE(engine.submit(r));
    ASSERT_TRUE(engine.step());
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);  // a child that waits for its parent's threads does not end by itself
      const auto step = engine.step();
      const bool said = !step && step.error().offered == "a fork of it";
      runtime->reset();
      _exit(said ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << tp << " ranks: " << status;
    EXPECT_TRUE(engine.step());
  }
}

TEST(RuntimeRanks, Case29ADraftModelThatCannotBeShared) {
  const RanksFolder target("target"), draft("draft");
  const auto config = [](int heads) {
    return nlohmann::json{{"architectures", {"Qwen3ForCausalLM"}},
                          {"vocab_size", 97},
                          {"hidden_size", 96},
                          {"intermediate_size", 64},
                          {"num_hidden_layers", 1},
                          {"num_attention_heads", heads},
                          {"num_key_value_heads", heads},
                          {"head_dim", 16},
                          {"hidden_act", "silu"},
                          {"max_position_embeddings", 512},
                          {"torch_dtype", "bfloat16"}}
        .dump();
  };
  target.write("config.json", config(4));
  draft.write("config.json", config(3));
  RuntimeOptions o = on_ranks(2, "");
  o.config_file = target.file("config.json");
  o.dummy = true;
  EXPECT_EQ(start_refusal(o), "created");
  o.draft = draft.path();
  EXPECT_THAT(start_refusal(o), AllOf(HasSubstr("the draft model " + draft.path()),
                                      HasSubstr("2 ranks cannot share the model")));
  draft.write("config.json", config(2));
  EXPECT_EQ(start_refusal(o), "created");
}

}  // namespace
}  // namespace lathe
