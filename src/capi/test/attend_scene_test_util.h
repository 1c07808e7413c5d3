// Scene: the same lathe_attend() call on GPU tensors and on host tensors, for tests with the
// emulator and on a GPU.
#pragma once

#include <gtest/gtest.h>
#include <lathe/attend.h>
#include <lathe/codec.h>
#include <lathe/layout.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

namespace lathe::test {

/// An array on the GPU.
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

struct SceneShape {
  std::string layout = "mla_fp8_block";
  bool by_list =
      false;  // an index list per row, with holes, some short, one empty; else page tables
  std::int64_t heads = 16;
  std::vector<std::int32_t> rows{3, 1}, keys{130, 70};  // per request
  std::int64_t width = 40;                              // of index lists
  unsigned seed = 11;
};

/// Pages of 64 slots, in random order in the pool.
struct Scene {
  static constexpr std::int64_t kPage = 64;

  std::mt19937 random;
  Layout layout;
  double lse_error;  // bound for lse, in addition to those in expect_reference()
  std::int64_t dim;  // of a query and of a key
  std::int64_t heads, rows = 0, width;
  std::vector<unsigned char> bytes;
  std::vector<std::uint16_t> q;
  std::vector<std::int32_t> table, lens, first{0};
  std::vector<std::int32_t> lists, lengths, all_rows, all_keys;
  cudaStream_t stream = nullptr;
  Pool pool, there;
  std::unique_ptr<Copy<unsigned char>> pool_there, room;
  std::unique_ptr<Copy<std::uint16_t>> q_there, out;
  std::vector<Copy<std::int32_t>> lists_there;
  std::unique_ptr<Copy<float>> lse;
  std::vector<float> want, want_lse;  // filled by ask_reference()
  AttendArgs host, gpu;

  explicit Scene(const SceneShape& shape)
      : random(shape.seed),
        layout(Layout::parse(shape.layout).value()),
        // The GPU rounds code times raw_f32 scale to bf16, which changes a logit by about 1e-3; the
        // row's largest logit decides the error of lse.
        lse_error(shape.layout.find("raw_f32") == std::string::npos ? 1e-6 : 6e-3),
        dim(layout.row_elems()),
        heads(shape.heads),
        width(shape.width),
        lens(shape.keys),
        pool{layout, {}, kPage},
        there{layout, {}, kPage} {
    for (std::int32_t n : shape.rows) first.push_back(first.back() + n);
    rows = first.back();
    draw_pages();
    draw_queries();
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    pool_there = std::make_unique<Copy<unsigned char>>(bytes);
    q_there = std::make_unique<Copy<std::uint16_t>>(q);
    out = std::make_unique<Copy<std::uint16_t>>(rows * heads * 512);
    lse = std::make_unique<Copy<float>>(rows * heads);
    const auto size = std::ssize(bytes);
    there.pages = Tensor(pool_there->data.get(), kUint8, {size}).on_gpu(0);
    host.attention = gpu.attention = shape.by_list ? "dsa" : "mla";
    host.device = "ref";
    host.pool = &pool;
    gpu.pool = &there;
    host.q = Tensor(q.data(), kBfloat16, {rows, heads, dim});
    gpu.q = Tensor(q_there->data.get(), kBfloat16, {rows, heads, dim}).on_gpu(0);
    const auto requests = std::ssize(lens);
    if (shape.by_list) {
      give(lists, {rows, width}, host.indices, gpu.indices);
      give(lengths, {rows}, host.index_lengths, gpu.index_lengths);
      give(all_rows, {2}, host.q_indptr, gpu.q_indptr);
      give(all_keys, {1}, host.kv_lens, gpu.kv_lens);
      gpu.max_request_rows = rows;
    } else {
      give(table, {requests, std::ssize(table) / requests}, host.page_table, gpu.page_table);
      give(first, {requests + 1}, host.q_indptr, gpu.q_indptr);
      give(lens, {requests}, host.kv_lens, gpu.kv_lens);
      gpu.max_request_rows = *std::ranges::max_element(shape.rows);
    }
    gpu.out = Tensor(out->data.get(), kBfloat16, {rows, heads, 512}).on_gpu(0);
    gpu.lse = Tensor(lse->data.get(), kFloat32, {rows, heads}).on_gpu(0);
    gpu.stream = stream;
    give_room(attend_workspace(gpu).value());
  }
  ~Scene() { cudaStreamDestroy(stream); }
  Scene(const Scene&) = delete;

  void give_room(std::int64_t size) {
    room = std::make_unique<Copy<unsigned char>>(size);
    gpu.workspace = Tensor(room->data.get(), kUint8, {size}).on_gpu(0);
  }

  void ask_reference() {
    want.resize(static_cast<std::size_t>(rows * heads * 512));
    want_lse.resize(static_cast<std::size_t>(rows * heads));
    host.out = Tensor(want.data(), kFloat32, {rows, heads, 512});
    host.lse = Tensor(want_lse.data(), kFloat32, {rows, heads});
    attend(host).value();
  }

  /// Waits for the stream. FlashMLA's bounds for sparse decode, scaled from its values of about 0.1
  /// to these of about 1.
  void expect_reference() const {
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    const std::vector<std::uint16_t> got = out->read();
    const std::vector<float> got_lse = lse->read();
    double dot = 0, a = 0, b = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double x = std::bit_cast<float>(std::uint32_t{got[i]} << 16), y = want[i];
      ASSERT_NEAR(x, y, 10 * 1e-3 + 2.01 / 128 * std::abs(y)) << i;
      dot += x * y;
      a += x * x;
      b += y * y;
    }
    if (a + b > 0) {
      EXPECT_LE(1 - 2 * dot / (a + b), 5e-6);
    }
    for (std::size_t i = 0; i < got_lse.size(); ++i) {
      if (std::isinf(want_lse[i])) {
        ASSERT_EQ(got_lse[i], want_lse[i]) << i;
      } else {
        ASSERT_NEAR(got_lse[i], want_lse[i], lse_error + 8.01 / 65536 * std::abs(want_lse[i])) << i;
      }
    }
  }

 private:
  void give(const std::vector<std::int32_t>& of, std::initializer_list<std::int64_t> shape,
            Tensor& on_host, Tensor& on_gpu) {
    on_host = Tensor(of.data(), kInt32, shape);
    lists_there.emplace_back(of);
    on_gpu = Tensor(lists_there.back().data.get(), kInt32, shape).on_gpu(0);
  }

  void draw_pages() {
    std::normal_distribution<float> normal;
    std::int64_t pages = 1, most = 0;  // one page stays unused
    for (std::int32_t keys : lens) {
      const std::int64_t own = (keys + kPage - 1) / kPage;
      pages += own;
      most = std::max(most, own);
    }
    std::vector<std::int32_t> free(static_cast<std::size_t>(pages));
    std::iota(free.begin(), free.end(), 0);
    std::ranges::shuffle(free, random);
    for (std::int32_t keys : lens) {
      for (std::int64_t p = 0; p < most; ++p) {
        table.push_back(p * kPage < keys ? free.back() : -1);
        if (table.back() >= 0) free.pop_back();
      }
    }
    const std::int64_t slots = pages * kPage;
    std::vector<float> values(static_cast<std::size_t>(slots * dim));
    for (float& x : values) x = normal(random);
    std::vector<std::int32_t> all(static_cast<std::size_t>(slots));
    std::iota(all.begin(), all.end(), 0);
    bytes.assign(static_cast<std::size_t>(pages * layout.page_stride(kPage).value()), 0xff);
    pool.pages = Tensor(bytes.data(), kUint8, {std::ssize(bytes)});
    encode(pool, Tensor(values.data(), kFloat32, {slots, dim}), Tensor(all.data(), kInt32, {slots}))
        .value();
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t i = 0; i < width; ++i) {
        const auto slot = static_cast<std::int32_t>(random() % static_cast<unsigned>(slots + 20));
        lists.push_back(std::max(slot - 20, -1));
      }
      const auto some = static_cast<std::int32_t>(random() % static_cast<unsigned>(width + 1));
      lengths.push_back(static_cast<std::int32_t>(r % 4 == 1 ? some : r % 4 == 2 ? 0 : width));
    }
    all_rows = {0, static_cast<std::int32_t>(rows)};
    all_keys = {static_cast<std::int32_t>(rows)};
  }

  void draw_queries() {
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < rows * heads * dim; ++i) {
      q.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal(random)) >> 16));
    }
  }
};

/// Replaces a scene's queries by e4m3 codes, for kind "native".
struct Fp8Queries {
  std::vector<std::uint8_t> codes;
  std::unique_ptr<Copy<std::uint8_t>> there;

  explicit Fp8Queries(Scene& s) {
    for (std::size_t i = 0; i < s.q.size(); ++i) {
      // Values up to 4 of either sign: codes up to 0x48.
      codes.push_back(static_cast<std::uint8_t>(s.random() % 0x49u | (s.random() & 1u) << 7));
    }
    there = std::make_unique<Copy<std::uint8_t>>(codes);
    s.host.kind = s.gpu.kind = "native";
    s.host.q = Tensor(codes.data(), kE4m3, {s.rows, s.heads, s.dim});
    s.gpu.q = Tensor(there->data.get(), kE4m3, {s.rows, s.heads, s.dim}).on_gpu(0);
    s.give_room(attend_workspace(s.gpu).value());
  }
};

}  // namespace lathe::test
