// lathe_attend() and its C++ interface on GPU tensors, against the double-precision device on the
// same tensors in host memory.
// Compiled alone: it includes the installed headers, which have a namespace lathe of their own.
#include "kernels/cuda/common/test/gpu_test_util.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <tuple>

#include "base/test_scale.h"
#include "capi/test/attend_scene_test_util.h"

namespace {

using lathe::Tensor;
using lathe::test::Scene;
using lathe::test::SceneShape;

// A random scene: a few requests of several rows, and lengths that are not multiples of a page.
SceneShape drawn(const std::string& layout, bool by_list, unsigned seed) {
  std::mt19937 random(seed);
  const auto between = [&](unsigned low, unsigned high) {
    return std::uniform_int_distribution<unsigned>(low, high)(random);
  };
  SceneShape s{.layout = layout, .by_list = by_list, .seed = seed};
  s.heads = std::int64_t{16} << between(0, 3);
  s.rows.clear();
  s.keys.clear();
  for (unsigned r = between(1, 5); r > 0; --r) {
    s.rows.push_back(static_cast<std::int32_t>(between(1, 4)));
    s.keys.push_back(static_cast<std::int32_t>(between(5, 900)));
  }
  s.width = 4 * between(1, 160);
  return s;
}

class CAttendGpu : public ::testing::TestWithParam<std::tuple<const char*, bool>> {
 protected:
  Scene scene(unsigned salt) const {
    const auto [layout, by_list] = GetParam();
    return Scene(drawn(layout, by_list, lathe::test_seed(salt)));
  }
};

TEST_P(CAttendGpu, GivesWhatTheReferenceGives) {
  for (unsigned i = 0; i < 4; ++i) {
    Scene s = scene(i);
    s.ask_reference();
    lathe::attend(s.gpu).value();
    s.expect_reference();
    if (HasFatalFailure()) return;
  }
}

TEST_P(CAttendGpu, BoundsMayBeLoose) {
  Scene s = scene(10);
  s.ask_reference();
  s.gpu.max_request_rows = s.rows + 7;
  if (!std::get<1>(GetParam())) s.gpu.max_kv_len = s.gpu.page_table.shape(1) * Scene::kPage;
  s.give_room(lathe::attend_workspace(s.gpu).value());
  lathe::attend(s.gpu).value();
  s.expect_reference();
}

TEST_P(CAttendGpu, GivesEachConventionOfLse) {
  for (const std::uint32_t flags : {1u, 2u, 3u}) {
    Scene s = scene(50 + flags);
    s.host.flags = s.gpu.flags = flags;
    s.ask_reference();
    lathe::attend(s.gpu).value();
    s.expect_reference();
    if (HasFatalFailure()) return;
  }
}

// A graph that the caller captures with some queries and replays with others.
TEST_P(CAttendGpu, RunsInACapturedGraph) {
  Scene s = scene(20);
  lathe::attend(s.gpu).value();  // loads the kernels
  ASSERT_EQ(cudaStreamSynchronize(s.stream), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(s.stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  lathe::attend(s.gpu).value();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(s.stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  std::shuffle(s.q.begin(), s.q.end(), s.random);
  ASSERT_EQ(cudaMemcpy(s.q_there->data.get(), s.q.data(), s.q.size() * 2, cudaMemcpyHostToDevice),
            cudaSuccess);
  s.ask_reference();
  ASSERT_EQ(cudaGraphLaunch(exec, s.stream), cudaSuccess);
  s.expect_reference();
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
}

// Three layers of a step have the same bits as single calls.
TEST_P(CAttendGpu, LayersShareAStep) {
  Scene s = scene(40);
  lathe::Step step = lathe::Step::create(1).value();
  step.update(s.gpu).value();
  for (int layer = 0; layer < 3; ++layer) {
    std::shuffle(s.q.begin(), s.q.end(), s.random);
    ASSERT_EQ(cudaMemcpy(s.q_there->data.get(), s.q.data(), s.q.size() * 2, cudaMemcpyHostToDevice),
              cudaSuccess);
    s.ask_reference();
    step.attend(s.gpu).value();
    s.expect_reference();
    if (HasFatalFailure()) return;
  }
  const std::vector<std::uint16_t> shared = s.out->read();
  lathe::attend(s.gpu).value();
  ASSERT_EQ(cudaStreamSynchronize(s.stream), cudaSuccess);
  EXPECT_EQ(s.out->read(), shared);
}

TEST_P(CAttendGpu, ReadsRowsWithStrides) {
  Scene s = scene(30);
  s.ask_reference();
  // Each row of q follows 64 numbers that are not part of it; each row of out precedes 64.
  const std::int64_t q_row = s.heads * s.dim + 64, out_row = s.heads * 512 + 64;
  std::vector<std::uint16_t> wide(static_cast<std::size_t>(s.rows * q_row), 0x7fc0);
  for (std::int64_t r = 0; r < s.rows; ++r) {
    std::copy_n(s.q.begin() + r * s.heads * s.dim, s.heads * s.dim, wide.begin() + r * q_row + 64);
  }
  const lathe::test::Copy<std::uint16_t> q(wide);
  const std::vector<std::uint16_t> untouched(static_cast<std::size_t>(s.rows * out_row), 0x1234);
  const lathe::test::Copy<std::uint16_t> out(untouched);
  s.gpu.q = Tensor(q.data.get() + 64, lathe::kBfloat16, {s.rows, s.heads, s.dim}, {q_row, s.dim, 1})
                .on_gpu(0);
  s.gpu.out =
      Tensor(out.data.get(), lathe::kBfloat16, {s.rows, s.heads, 512}, {out_row, 512, 1}).on_gpu(0);
  lathe::attend(s.gpu).value();
  ASSERT_EQ(cudaStreamSynchronize(s.stream), cudaSuccess);
  const std::vector<std::uint16_t> all = out.read();
  std::vector<std::uint16_t> dense;
  for (std::int64_t r = 0; r < s.rows; ++r) {
    const auto row = all.begin() + r * out_row;
    dense.insert(dense.end(), row, row + s.heads * 512);
    for (std::int64_t i = s.heads * 512; i < out_row; ++i)
      ASSERT_EQ(row[i], 0x1234) << r << ' ' << i;
  }
  ASSERT_EQ(cudaMemcpy(s.out->data.get(), dense.data(), dense.size() * 2, cudaMemcpyHostToDevice),
            cudaSuccess);
  s.expect_reference();
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, CAttendGpu,
    ::testing::Combine(::testing::Values("mla_bf16", "mla_fp8", "mla_fp8_block",
                                         "mla_fp8_block(scale=raw_f32)", "mla_bf16(rope=0)",
                                         "mla_fp8_block(rope=0)"),
                       ::testing::Bool()),
    [](const auto& of) {
      std::string name(std::get<0>(of.param));
      std::erase_if(name, [](char c) { return c == '(' || c == ')' || c == '='; });
      return name + (std::get<1>(of.param) ? "Lists" : "PageTable");
    });

}  // namespace

int main(int argc, char** argv) { return lathe::cuda::gpu_test_main(argc, argv); }
