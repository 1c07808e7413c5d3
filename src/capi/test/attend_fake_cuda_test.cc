// lathe_attend() on an emulated GPU's tensors, against the double-precision device.
// Compiled alone: it includes the installed headers, which have a namespace lathe of their own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "capi/test/attend_scene_test_util.h"
#include "kernels/cuda/fake/fake_cuda.h"

namespace {

using lathe::Tensor;
using lathe::test::Scene;
using ::testing::HasSubstr;
namespace fake = lathe::cuda::fake;

constexpr std::int64_t kHeads = 16, kRows = 4, kPage = Scene::kPage;

std::string refusal(const Scene& s) {
  const auto launches = fake::counts().launches;
  const auto done = lathe::attend(s.gpu);
  EXPECT_EQ(fake::counts().launches, launches);
  return done.ok() ? "ran" : done.error().text;
}

class CAttendOnGpuBy : public ::testing::TestWithParam<bool> {};

TEST_P(CAttendOnGpuBy, GivesWhatTheReferenceGives) {
  Scene s({.by_list = GetParam()});
  s.ask_reference();
  const auto before = fake::counts();
  lathe::attend(s.gpu).value();
  const auto after = fake::counts();
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.waits, before.waits);
  EXPECT_EQ(after.copies_in, before.copies_in);
  s.expect_reference();
}

TEST_P(CAttendOnGpuBy, LayersShareAStep) {
  Scene s({.by_list = GetParam()});
  s.ask_reference();
  lathe::Step step = lathe::Step::create(1).value();
  EXPECT_EQ(step.attend(s.gpu).error().field, "step");
  step.update(s.gpu).value();
  const auto before = fake::counts();
  step.attend(s.gpu).value();
  const auto layer = fake::counts().launches - before.launches;
  s.expect_reference();
  EXPECT_EQ(fake::counts().allocations, before.allocations);

  lathe::attend(s.gpu).value();  // makes the same schedule in the same workspace
  EXPECT_GT(fake::counts().launches - before.launches, 2 * layer);
  // The next layer: other queries, and outputs that nothing has been written to.
  std::shuffle(s.q.begin(), s.q.end(), s.random);
  ASSERT_EQ(cudaMemcpy(s.q_there->data.get(), s.q.data(), s.q.size() * 2, cudaMemcpyHostToDevice),
            cudaSuccess);
  s.ask_reference();
  step.attend(s.gpu).value();
  s.expect_reference();

  const auto refused = [&](const lathe::AttendArgs& args) {
    const auto launches = fake::counts().launches;
    const auto done = step.attend(args);
    EXPECT_EQ(fake::counts().launches, launches);
    return done.ok() ? "nothing" : done.error().field;
  };
  lathe::AttendArgs other = s.gpu;
  ++other.max_request_rows;
  EXPECT_EQ(refused(other), "max_request_rows");
  other = s.gpu;
  const lathe::test::Copy<unsigned char> elsewhere(other.workspace.shape(0));
  other.workspace =
      Tensor(elsewhere.data.get(), lathe::kUint8, {other.workspace.shape(0)}).on_gpu(0);
  EXPECT_EQ(refused(other), "workspace");
  other = s.gpu;
  const lathe::test::Copy<std::int32_t> lens(std::vector<std::int32_t>(other.kv_lens.shape(0), 3));
  other.kv_lens = Tensor(lens.data.get(), lathe::kInt32, {other.kv_lens.shape(0)}).on_gpu(0);
  EXPECT_EQ(refused(other), "kv_lens");
  EXPECT_EQ(refused(s.host), "kind");  // a kind of the GPU only
}
INSTANTIATE_TEST_SUITE_P(Keys, CAttendOnGpuBy, ::testing::Bool(), [](const auto& of) {
  return std::string(of.param ? "Lists" : "PageTable");
});

// Keys without rope, 528 bytes of fp8 or bf16, with few and with many M rows.
TEST(CAttendOnGpu, ReadsKeysWithoutRope) {
  for (const char* layout :
       {"mla_fp8_block(rope=0)", "mla_fp8_block(rope=0,scale=raw_f32)", "mla_bf16(rope=0)"}) {
    for (const bool by_list : {false, true}) {
      for (const std::int64_t heads : {8, 64}) {
        SCOPED_TRACE(layout + std::string(by_list ? ", lists, " : ", page table, ") +
                     std::to_string(heads) + " heads");
        Scene s({.layout = layout, .by_list = by_list, .heads = heads});
        ASSERT_EQ(s.dim, 512);
        s.ask_reference();
        lathe::attend(s.gpu).value();
        s.expect_reference();
      }
    }
  }
}

// fp8 GEMMs with tensor scales in GPU memory: few and many M rows, with and without splits.
TEST(CAttendOnGpu, ReadsTensorScales) {
  for (const bool by_list : {false, true}) {
    for (const std::int64_t heads : {8, 64}) {
      SCOPED_TRACE(std::string(by_list ? "lists, " : "page table, ") + std::to_string(heads));
      Scene s({.layout = "mla_fp8",
               .by_list = by_list,
               .heads = heads,
               .rows = {3, 1},
               .keys = {900, 70},
               .width = 300});
      lathe::test::Fp8Queries q(s);
      s.host.q_scale = s.gpu.q_scale = 0.5f;
      s.pool.key_scale = s.there.key_scale = 0.25f;
      s.ask_reference();
      lathe::attend(s.gpu).value();
      const auto want = s.out->read();
      const auto want_lse = s.lse->read();

      // Powers of two as factors change no bits.
      const std::vector<float> factors{4, 0.125f};
      const lathe::test::Copy<float> there(factors);
      s.host.q_scale = s.gpu.q_scale = 0.125f;
      s.pool.key_scale = s.there.key_scale = 2;
      s.gpu.q_scale_tensor = Tensor(there.data.get(), lathe::kFloat32, {1}).on_gpu(0);
      s.gpu.key_scale_tensor = Tensor(there.data.get() + 1, lathe::kFloat32, {1}).on_gpu(0);
      lathe::attend(s.gpu).value();
      EXPECT_EQ(s.out->read(), want);
      EXPECT_EQ(s.lse->read(), want_lse);

      const std::vector<float> reference = s.want;
      s.host.q_scale_tensor = Tensor(factors.data(), lathe::kFloat32, {1});
      s.host.key_scale_tensor = Tensor(factors.data() + 1, lathe::kFloat32, {1});
      s.ask_reference();
      EXPECT_EQ(s.want, reference);

      s.gpu.q_scale_tensor = Tensor(there.data.get(), lathe::kFloat32, {2}).on_gpu(0);
      EXPECT_THAT(refusal(s), HasSubstr("q_scale_tensor: wanted shape [1]"));
    }
  }
  Scene s({.layout = "mla_fp8"});
  const lathe::test::Copy<float> one(std::vector<float>{1});
  s.gpu.key_scale_tensor = Tensor(one.data.get(), lathe::kFloat32, {1}).on_gpu(0);
  EXPECT_THAT(refusal(s), HasSubstr("key_scale: wanted a number where q is bf16"));
}

// Natural logs with -inf, base 2, +inf, and both, in a single call and in a layer of a step.
TEST(CAttendOnGpu, GivesEachConventionOfLse) {
  for (const std::uint32_t flags : {0u, 1u, 2u, 3u}) {
    Scene s({.by_list = true});
    s.host.flags = s.gpu.flags = flags;
    s.ask_reference();
    const auto empty = std::ranges::count_if(s.want_lse, [](float x) { return std::isinf(x); });
    EXPECT_GE(empty, kHeads) << "a row has no keys";
    const float sign = (flags & LATHE_EMPTY_LSE_PLUS_INF) != 0 ? 1 : -1;
    for (const float x : s.want_lse) EXPECT_TRUE(!std::isinf(x) || x * sign > 0);
    const auto before = fake::counts().launches;
    lathe::attend(s.gpu).value();
    s.expect_reference();
    const auto launches = fake::counts().launches - before;
    s.gpu.flags = 0;
    lathe::attend(s.gpu).value();
    EXPECT_EQ(fake::counts().launches - before, 2 * launches);

    s.gpu.flags = flags;
    lathe::Step step = lathe::Step::create(1).value();
    step.update(s.gpu).value();
    step.attend(s.gpu).value();
    s.expect_reference();
  }
}

TEST(CAttendWorkspace, LooksAtShapesAlone) {
  Scene s({});
  const std::int64_t bytes = lathe::attend_workspace(s.gpu).value();
  EXPECT_GT(bytes, 0);
  lathe::AttendArgs most;
  lathe::Pool nowhere{s.layout, s.there.pages, kPage};
  nowhere.pages = Tensor(nullptr, lathe::kUint8, {s.there.pages.shape(0)}).on_gpu(0);
  most.attention = "mla";
  most.pool = &nowhere;
  most.q = Tensor(nullptr, lathe::kBfloat16, {kRows, kHeads, 576}).on_gpu(0);
  most.page_table = Tensor(nullptr, lathe::kInt32, {2, 3}).on_gpu(0);
  most.kv_lens = Tensor(nullptr, lathe::kInt32, {2}).on_gpu(0);
  most.max_request_rows = 3;
  EXPECT_EQ(lathe::attend_workspace(most).value(), bytes);
  // Twice as many requests, and twice as many pages in each.
  most.q = Tensor(nullptr, lathe::kBfloat16, {2 * kRows, kHeads, 576}).on_gpu(0);
  most.page_table = Tensor(nullptr, lathe::kInt32, {4, 6}).on_gpu(0);
  most.kv_lens = Tensor(nullptr, lathe::kInt32, {4}).on_gpu(0);
  EXPECT_GE(lathe::attend_workspace(most).value(), bytes);
  EXPECT_EQ(lathe::attend_workspace(s.host).value(), 0);
}

TEST(CAttendOnGpuRefusals, NameWhatIsWrong) {
  Scene s({});
  const std::int64_t bytes = lathe::attend_workspace(s.gpu).value();
  const lathe::AttendArgs good = s.gpu;
  s.give_room(bytes - 256);
  EXPECT_THAT(refusal(s), HasSubstr("workspace: wanted " + std::to_string(bytes) + " bytes"));
  s.gpu.workspace = {};
  EXPECT_THAT(refusal(s), HasSubstr("workspace: wanted a pointer"));
  s.gpu = good;
  s.give_room(bytes);
  const lathe::AttendArgs fits = s.gpu;
  s.gpu.page_table = s.host.page_table;
  EXPECT_THAT(refusal(s), HasSubstr("page_table: wanted a tensor on cuda:0 (device_type 2), as q, "
                                    "got one in host memory"));
  s.gpu = fits;
  s.gpu.kv_lens = {};
  EXPECT_THAT(refusal(s), HasSubstr("kv_lens: wanted a pointer"));
  s.gpu = fits;
  s.gpu.device = "cpu";
  EXPECT_THAT(refusal(s), HasSubstr("device: wanted sm90 for tensors of a GPU"));
  s.gpu = fits;
  s.gpu.max_request_rows = 1;
  EXPECT_THAT(refusal(s), HasSubstr("max_request_rows: wanted at least 2"));
  s.gpu = fits;
  s.gpu.max_kv_len = -1;
  EXPECT_THAT(refusal(s), HasSubstr("max_kv_len: wanted 0 or more"));
}

}  // namespace
