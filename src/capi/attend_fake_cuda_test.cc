// lathe_attend() on tensors of a GPU, emulated, against the double-precision device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lathe/attend.h>
#include <lathe/codec.h>
#include <lathe/layout.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/fake/fake_cuda.h"

namespace {

using lathe::Tensor;
using ::testing::HasSubstr;
namespace fake = lathe::cuda::fake;

constexpr std::int64_t kHeads = 16, kPages = 6, kPage = 64, kRows = 4, kWidth = 40;

// An array on the GPU.
template <class T>
struct Copy {
  explicit Copy(std::int64_t n) : count(static_cast<std::size_t>(n)) {
    void* made = nullptr;
    EXPECT_EQ(cudaMalloc(&made, count * sizeof(T)), cudaSuccess);
    data.reset(static_cast<T*>(made));
  }
  explicit Copy(const std::vector<T>& host) : Copy(std::ssize(host)) {
    EXPECT_EQ(cudaMemcpy(data.get(), host.data(), count * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  std::vector<T> read() const {
    std::vector<T> host(count);
    EXPECT_EQ(cudaMemcpy(host.data(), data.get(), count * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return host;
  }
  struct Free {
    void operator()(T* p) const { cudaFree(p); }
  };
  std::unique_ptr<T, Free> data;
  std::size_t count;
};

// Of bfloat16, whose bits are a float's first.
float widened(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

// Two requests of 3 rows and 1 row, with 130 and 70 keys; and a list of each row.
struct Scene {
  lathe::Layout layout = lathe::Layout::parse("mla_fp8_block").value();
  std::vector<unsigned char> bytes;
  std::vector<std::uint16_t> q;
  std::vector<std::int32_t> table{4, 0, 2, 5, 1, -1}, lens{130, 70}, first{0, 3, 4};
  std::vector<std::int32_t> lists, lengths{40, 3, 0, 40}, all_rows{0, 4}, all_keys{4};
  cudaStream_t stream = nullptr;
  lathe::Pool pool{layout, {}, kPage}, there{layout, {}, kPage};
  std::unique_ptr<Copy<unsigned char>> pool_there, room;
  std::unique_ptr<Copy<std::uint16_t>> q_there;
  std::vector<Copy<std::int32_t>> lists_there;
  Copy<std::uint16_t> out{kRows * kHeads * 512};
  Copy<float> lse{kRows * kHeads};
  lathe::AttendArgs host, gpu;

  explicit Scene(bool by_list) {
    std::mt19937 random(11);
    std::normal_distribution<float> normal;
    std::vector<float> rows(kPages * kPage * 576);
    for (float& x : rows) x = normal(random);
    std::vector<std::int32_t> slots(kPages * kPage);
    for (std::size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<std::int32_t>(i);
    bytes.assign(static_cast<std::size_t>(kPages * layout.page_stride(kPage).value()), 0xff);
    const auto size = static_cast<std::int64_t>(bytes.size());
    pool.pages = Tensor(bytes.data(), lathe::kUint8, {size});
    lathe::encode(pool, Tensor(rows.data(), lathe::kFloat32, {kPages * kPage, 576}),
                  Tensor(slots.data(), lathe::kInt32, {kPages * kPage}))
        .value();
    for (std::int64_t i = 0; i < kRows * kHeads * 576; ++i) {
      q.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal(random)) >> 16));
    }
    for (std::int64_t i = 0; i < kRows * kWidth; ++i) {
      lists.push_back(static_cast<std::int32_t>(random() % (kPages * kPage + 20)) - 10);
    }
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    pool_there = std::make_unique<Copy<unsigned char>>(bytes);
    q_there = std::make_unique<Copy<std::uint16_t>>(q);
    there.pages = Tensor(pool_there->data.get(), lathe::kUint8, {size}).on_gpu(0);
    const auto list = [&](const std::vector<std::int32_t>& of,
                          std::initializer_list<std::int64_t> shape, Tensor& on_host,
                          Tensor& on_gpu) {
      on_host = Tensor(of.data(), lathe::kInt32, shape);
      lists_there.emplace_back(of);
      on_gpu = Tensor(lists_there.back().data.get(), lathe::kInt32, shape).on_gpu(0);
    };
    host.attention = gpu.attention = by_list ? "dsa" : "mla";
    host.device = "ref";
    host.pool = &pool;
    gpu.pool = &there;
    host.q = Tensor(q.data(), lathe::kBfloat16, {kRows, kHeads, 576});
    gpu.q = Tensor(q_there->data.get(), lathe::kBfloat16, {kRows, kHeads, 576}).on_gpu(0);
    if (by_list) {
      list(lists, {kRows, kWidth}, host.indices, gpu.indices);
      list(lengths, {kRows}, host.index_lengths, gpu.index_lengths);
      list(all_rows, {2}, host.q_indptr, gpu.q_indptr);
      list(all_keys, {1}, host.kv_lens, gpu.kv_lens);
      gpu.max_request_rows = kRows;
    } else {
      list(table, {2, 3}, host.page_table, gpu.page_table);
      list(first, {3}, host.q_indptr, gpu.q_indptr);
      list(lens, {2}, host.kv_lens, gpu.kv_lens);
      gpu.max_request_rows = 3;
    }
    gpu.out = Tensor(out.data.get(), lathe::kBfloat16, {kRows, kHeads, 512}).on_gpu(0);
    gpu.lse = Tensor(lse.data.get(), lathe::kFloat32, {kRows, kHeads}).on_gpu(0);
    gpu.stream = stream;
    give_room(lathe::attend_workspace(gpu).value());
  }
  void give_room(std::int64_t size) {
    room = std::make_unique<Copy<unsigned char>>(size);
    gpu.workspace = Tensor(room->data.get(), lathe::kUint8, {size}).on_gpu(0);
  }
  ~Scene() { cudaStreamDestroy(stream); }
  Scene(const Scene&) = delete;
  std::string refusal() const {
    const auto launches = fake::counts().launches;
    const auto done = lathe::attend(gpu);
    EXPECT_EQ(fake::counts().launches, launches);
    return done.ok() ? "ran" : done.error().text;
  }
};

class CAttendOnGpu : public ::testing::TestWithParam<bool> {};

TEST_P(CAttendOnGpu, GivesWhatTheReferenceGives) {
  Scene s(GetParam());
  std::vector<float> want(kRows * kHeads * 512), want_lse(kRows * kHeads);
  s.host.out = Tensor(want.data(), lathe::kFloat32, {kRows, kHeads, 512});
  s.host.lse = Tensor(want_lse.data(), lathe::kFloat32, {kRows, kHeads});
  lathe::attend(s.host).value();
  const auto before = fake::counts();
  lathe::attend(s.gpu).value();
  const auto after = fake::counts();
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.waits, before.waits);
  EXPECT_EQ(after.copies_in, before.copies_in);
  ASSERT_EQ(cudaStreamSynchronize(s.stream), cudaSuccess);
  const std::vector<std::uint16_t> out = s.out.read();
  const std::vector<float> lse = s.lse.read();
  for (std::size_t i = 0; i < out.size(); ++i) {
    ASSERT_NEAR(widened(out[i]), want[i], 1e-3 + 2.01 / 128 * std::abs(want[i])) << i;
  }
  for (std::size_t i = 0; i < lse.size(); ++i) {
    if (std::isinf(want_lse[i])) {
      EXPECT_EQ(lse[i], want_lse[i]);
    } else {
      EXPECT_NEAR(lse[i], want_lse[i], 2e-3);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Keys, CAttendOnGpu, ::testing::Bool(), [](const auto& of) {
  return std::string(of.param ? "Lists" : "PageTable");
});

TEST(CAttendWorkspace, LooksAtShapesAlone) {
  Scene s(false);
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
  // Twice the requests, of twice the pages.
  most.q = Tensor(nullptr, lathe::kBfloat16, {2 * kRows, kHeads, 576}).on_gpu(0);
  most.page_table = Tensor(nullptr, lathe::kInt32, {4, 6}).on_gpu(0);
  most.kv_lens = Tensor(nullptr, lathe::kInt32, {4}).on_gpu(0);
  EXPECT_GE(lathe::attend_workspace(most).value(), bytes);
  EXPECT_EQ(lathe::attend_workspace(s.host).value(), 0);
}

TEST(CAttendOnGpuRefusals, NameWhatIsWrong) {
  Scene s(false);
  const std::int64_t bytes = lathe::attend_workspace(s.gpu).value();
  const lathe::AttendArgs good = s.gpu;
  s.give_room(bytes - 256);
  EXPECT_THAT(s.refusal(), HasSubstr("workspace: wanted " + std::to_string(bytes) + " bytes"));
  s.gpu.workspace = {};
  EXPECT_THAT(s.refusal(), HasSubstr("workspace: wanted a pointer"));
  s.gpu = good;
  s.give_room(bytes);
  const lathe::AttendArgs fits = s.gpu;
  s.gpu.page_table = s.host.page_table;
  EXPECT_THAT(s.refusal(), HasSubstr("page_table: wanted a tensor on cuda:0 (device_type 2), as q, "
                                     "got one in host memory"));
  s.gpu = fits;
  s.gpu.kv_lens = {};
  EXPECT_THAT(s.refusal(), HasSubstr("kv_lens: wanted a pointer"));
  s.gpu = fits;
  s.gpu.flags = LATHE_LSE_BASE_2;
  EXPECT_THAT(s.refusal(), HasSubstr("flags: wanted 0 on a GPU"));
  s.gpu = fits;
  s.gpu.device = "cpu";
  EXPECT_THAT(s.refusal(), HasSubstr("device: wanted sm90 for tensors of a GPU"));
  s.gpu = fits;
  s.gpu.max_request_rows = 1;
  EXPECT_THAT(s.refusal(), HasSubstr("max_request_rows: wanted at least 2"));
  s.gpu = fits;
  s.gpu.max_kv_len = -1;
  EXPECT_THAT(s.refusal(), HasSubstr("max_kv_len: wanted 0 or more"));
  s.gpu = fits;
  const auto step = lathe::Step::create(1).value().update(s.gpu);
  EXPECT_THAT(step.error().text, HasSubstr("q: wanted a tensor in host memory"));
}

}  // namespace
