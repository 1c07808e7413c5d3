// Shared by tests of attention over expanded keys, on a GPU and on the fake runtime: random scenes,
// the call on the device, the oracle in double precision.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cpu/grouped_query/test/gqa_test_util.h"
#include "kernels/cuda/common/device_rows.h"
#include "kernels/cuda/common/test/gpu_test_util.h"
#include "kernels/cuda/sm90/latent/test/latent_checks.h"
#include "kernels/cuda/sm90/ragged/ragged_attend.h"
#include "kernels/cuda/sm90/ragged/ragged_call.h"
#include "kernels/linear.h"
#include "kernels/ref/attend_ragged.h"
#include "kernels/ref/test/nonfinite_test_util.h"
#include "layout/codec/codec.h"

namespace lathe::cuda {

using ref_test::edge_keys, ref_test::Wild, ref_test::WildKey;
using RaggedRequests = std::vector<std::pair<int, int>>;  // keys, rows

struct RaggedDims {
  LayoutKind layout = LayoutKind::mla_bf16;
  int page = 64, heads = 2, nope_head = 128, v_head = 128;
  DType weights = DType::bf16;
};

/// Normal random numbers: latents, queries, expanded keys and scores have deviation 1.
struct RaggedScene {
  RaggedDims dims;
  ref_test::Rng rng;
  ref_test::TestPool pool;
  ref_test::Batch batch;
  Matrix<bf16> q;
  std::vector<std::byte> kv_b;
  std::vector<float> scales;  // of an e4m3 kv_b
  Matrix<float> w_uk, w_uv;   // kv_b's values
  std::vector<float> sink;
  AttendArgs args;

  RaggedScene(const RaggedDims& d, const RaggedRequests& requests, std::uint32_t seed)
      : dims(d),
        rng(seed),
        pool(layout_of(d.layout), d.page, cpu_test::GqaScene::pages_for(requests, d.page)),
        batch(pool, requests, rng),
        q(rounded(ref_test::random_matrix(batch.rows, d.heads * (d.nope_head + 64), rng))),
        w_uk(std::int64_t{d.heads} * d.nope_head, 512),
        w_uv(std::int64_t{d.heads} * d.v_head, 512) {
    AttentionProblem& p = args.problem;
    p = ref_test::latent_problem(ProblemKind::dense_latent, d.heads, 512, 64);
    p.qk_nope_head = d.nope_head;
    p.v_head = d.v_head;
    p.scale = 1 / std::sqrt(static_cast<float>(d.nope_head + 64));
    store_latents();
    make_weights();
    args.q = q.view();
    batch.put_into(args);
    args.main.pool = pool.view();
    if (d.layout == LayoutKind::mla_fp8) args.main.key_scale = 0.75f;
    batch.name_by_page(args.main);
    args.expansion = {w_uk.data, w_uv.data, kv_b.data(), d.weights,
                      scales.empty() ? nullptr : scales.data()};
  }
  RaggedScene(const RaggedScene&) = delete;

  /// Encodes latents with ordinary scales. (Random pools of the base scene have scales of any power
  /// of two.)
  void store_latents() {
    std::vector<Slot> slots;
    for (std::size_t r = 0; r < batch.kv_lens.size(); ++r) {
      for (int t = 0; t < batch.kv_lens[r]; ++t) {
        slots.push_back(slot_of(batch.entry(r, t / dims.page), dims.page, t % dims.page));
      }
    }
    const Matrix<float> rows = ref_test::random_matrix(std::ssize(slots), 576, rng);
    const ConstPoolView v = pool.view();
    const PoolView to(const_cast<std::byte*>(v.data), v.layout, v.page_size, v.pages);
    const auto done = encode_rows(rows.view(), slots, to, {});
    EXPECT_TRUE(done.ok()) << (done ? "" : done.error().message());
  }
  void make_weights() {
    const std::int64_t width = dims.nope_head + dims.v_head, rows = dims.heads * width;
    std::normal_distribution<float> normal(0.f, 1 / std::sqrt(512.f));
    const std::int64_t blocks = (rows + kWeightBlock - 1) / kWeightBlock * (512 / kWeightBlock);
    if (dims.weights == DType::e4m3) {
      for (std::int64_t i = 0; i < blocks; ++i) {
        scales.push_back(static_cast<float>(1 + rng() % 100) * 1e-4f);
      }
    }
    kv_b.resize(static_cast<std::size_t>(bytes_of(dims.weights, rows * 512)));
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t head = r / width, in_head = r % width;
      float* to = in_head < dims.nope_head
                      ? &w_uk.at(head * dims.nope_head + in_head, 0)
                      : &w_uv.at(head * dims.v_head + in_head - dims.nope_head, 0);
      for (std::int64_t c = 0; c < 512; ++c) {
        const float x = normal(rng);
        const auto at = static_cast<std::size_t>(r * 512 + c);
        if (dims.weights == DType::e4m3) {
          const float scale = scales[static_cast<std::size_t>(
              r / kWeightBlock * (512 / kWeightBlock) + c / kWeightBlock)];
          const e4m3 code = to_e4m3(x / scale);
          kv_b[at] = std::byte{code.bits};
          to[c] = to_f32(code) * scale;
        } else if (dims.weights == DType::bf16) {
          const bf16 v = to_bf16(x);
          std::memcpy(&kv_b[2 * at], &v, 2);
          to[c] = to_f32(v);
        } else {
          std::memcpy(&kv_b[4 * at], &x, 4);
          to[c] = x;
        }
      }
    }
  }
  void add_random_sink() {
    args.problem.sink = true;
    for (int h = 0; h < dims.heads; ++h) {
      sink.push_back(static_cast<float>(rng() % 800) / 100.f - 4.f);
    }
    args.sink = sink;
  }
  Outputs oracle() const { return ref_test::run(ref_attend_ragged, args, dims.v_head); }
};

/// Keys and values are rounded to bf16 on the way. That moves a score of deviation 1 by up to about
/// 5e-3, which an LSE of a single key shows.
inline void expect_ragged_oracle(const Outputs& got, const Outputs& want) {
  Outputs out_only = got, wanted = want;
  out_only.lse.data.clear();
  wanted.lse.data.clear();
  expect_within(out_only, wanted, 10 * 1e-3, 2.01 / 128, 5e-6);
  int shown = 0;
  for (std::size_t i = 0; i < want.lse.data.size() && shown < 5; ++i) {
    const double x = got.lse.data[i], y = want.lse.data[i];
    if (x == y || std::abs(x - y) <= 6e-3) continue;
    ADD_FAILURE() << "lse " << i << ": " << x << " against " << y;
    ++shown;
  }
}

class RaggedTest : public GpuArraysTest {
 protected:
  /// The call with all arrays on the device, outputs poisoned.
  AttendArgs on_device(const AttendArgs& host, DType out) {
    AttendArgs args = host;
    const AttentionProblem& p = host.problem;
    const auto bytes = [&](DType dtype, std::int64_t count) {
      return static_cast<std::size_t>(bytes_of(dtype, count));
    };
    args.q.data = put(host.q.data, bytes(host.q.dtype, host.q.rows * host.q.row_stride)).data();
    args.q_indptr = put(host.q_indptr);
    args.kv_lens = put(host.kv_lens);
    const ConstPoolView& pool = *host.main.pool;
    args.main.pool.emplace(put(pool.data, static_cast<std::size_t>(pool.bytes())).data(),
                           pool.layout, pool.page_size, pool.pages);
    args.main.page_table = put(host.main.page_table);
    args.sink = put(host.sink);
    const Expansion& e = host.expansion;
    const std::int64_t rows = std::int64_t{p.heads} * (p.qk_nope_head + p.v_head);
    args.expansion = {};
    args.expansion.kv_b = put(e.kv_b, bytes(e.kv_b_dtype, rows * p.nope)).data();
    args.expansion.kv_b_dtype = e.kv_b_dtype;
    if (e.kv_b_scales != nullptr) {
      const auto count = static_cast<std::size_t>((rows + 127) / 128 * (p.nope / 128));
      args.expansion.kv_b_scales = put(e.kv_b_scales, count).data();
    }
    const std::int64_t width = std::int64_t{p.heads} * p.v_head;
    args.out = {room<std::byte>(bytes_of(out, host.q.rows * width)).data(), out, host.q.rows, width,
                width};
    args.lse = {room<std::byte>(4 * host.q.rows * p.heads).data(), DType::f32, host.q.rows, p.heads,
                p.heads};
    args.max_request_rows = args.max_kv_len = 1;
    for (std::size_t r = 0; r < host.kv_lens.size(); ++r) {
      args.max_request_rows =
          std::max<std::int64_t>(args.max_request_rows, host.q_indptr[r + 1] - host.q_indptr[r]);
      args.max_kv_len = std::max<std::int64_t>(args.max_kv_len, host.kv_lens[r]);
      args.total_keys += host.kv_lens[r];
    }
    args.execution.scratch = &scratch_;
    args.execution.stream = stream().get();
    return args;
  }
  std::vector<std::byte> bytes_of_rows(const MutableRowsView& v) {
    std::vector<std::byte> host(static_cast<std::size_t>(bytes_of(v.dtype, v.rows * v.cols)));
    must(copy_to_host(v.data, std::span(host), stream()));
    must(stream().wait());
    return host;
  }
  Matrix<double> read(const MutableRowsView& v) {
    const auto bytes = bytes_of_rows(v);
    Matrix<double> out(v.rows, v.cols);
    for (std::size_t i = 0; i < out.data.size(); ++i) {
      out.data[i] = load_element(bytes.data(), v.dtype, static_cast<std::int64_t>(i));
    }
    return out;
  }
  /// Compares with the oracle; then again with a shared schedule, which must give the same bits.
  void check(const RaggedScene& s, DType out = DType::bf16, int repeats = 1) {
    AttendArgs args = on_device(s.args, out);
    must(attend_ragged_on_device(args));
    expect_ragged_oracle({read(args.out), read(args.lse)}, s.oracle());
    const auto first = bytes_of_rows(args.out);
    Schedule schedule(kDeviceMemory);
    must(prepare_ragged_on_device(args, schedule));
    args.schedule = &schedule;
    for (int i = 0; i < repeats; ++i) {
      must(attend_ragged_on_device(args));
      EXPECT_TRUE(bytes_of_rows(args.out) == first) << "repeat " << i;
    }
    kept_.clear();
  }
  /// The same with this room for passes, on a device of `sms` SMs.
  void check_in(const RaggedScene& s, const RaggedRoom& room, int sms) {
    AttendArgs args = on_device(s.args, DType::bf16);
    must(check_ragged_call(args));
    const auto shape = ragged_shape(args, sms, room);
    ASSERT_TRUE(shape.ok()) << shape.error().message();
    EXPECT_LT(shape->requests * shape->heads, std::ssize(args.kv_lens) * args.problem.heads);
    must(attend_ragged_as_cut(args, *shape));
    expect_ragged_oracle({read(args.out), read(args.lse)}, s.oracle());
    kept_.clear();
  }

  /// Gives keys that some rows do not see values that are not finite, one after another.
  void check_nonfinite_keys(RaggedScene& s, Wild wild) {
    const auto attend = [&] {
      const AttendArgs args = on_device(s.args, DType::bf16);
      must(attend_ragged_on_device(args));
      Outputs got{read(args.out), read(args.lse)};
      kept_.clear();
      return got;
    };
    const Outputs clean = attend();
    expect_ragged_oracle(clean, s.oracle());
    const ConstPoolView pool = s.pool.view();
    auto* bytes = const_cast<std::byte*>(pool.data);
    const std::vector<std::byte> kept(bytes, bytes + pool.bytes());
    for (std::size_t r = 0; r < s.args.kv_lens.size(); ++r) {
      if (s.args.q_indptr[r + 1] - s.args.q_indptr[r] < 2) continue;
      for (const WildKey& key : edge_keys(s.args, r)) {
        SCOPED_TRACE(fmt::format("request {} position {}", r, key.position));
        make_wild(s, key, wild);
        expect_wild_seen_alone(s.args, {&key, 1}, attend(), clean, true, true);
        std::memcpy(bytes, kept.data(), kept.size());
      }
    }
  }

  Scratch scratch_{kDeviceMemory};
};

/// Up to `count` random requests: rows that end at pages and tiles, prefixes, padding.
inline RaggedRequests random_ragged_requests(ref_test::Rng& rng, int count, int max_rows,
                                             int max_prefix) {
  RaggedRequests requests;
  const int edges[] = {1, 63, 64, 127, 128, 129};
  for (int i = 1 + static_cast<int>(rng() % static_cast<unsigned>(count)); i > 0; --i) {
    int rows = 1 + static_cast<int>(rng() % static_cast<unsigned>(max_rows));
    if (rng() % 3 == 0) rows = std::min(edges[rng() % std::size(edges)], max_rows);
    int prefix = static_cast<int>(rng() % static_cast<unsigned>(max_prefix + 1));
    if (rng() % 3 == 0) prefix = std::min(edges[rng() % std::size(edges)] - 1, max_prefix);
    if (rng() % 8 == 0) {
      requests.emplace_back(0, 1);  // padding
    } else {
      requests.emplace_back(prefix + rows, rows);
    }
  }
  return requests;
}

inline RaggedDims random_ragged_dims(ref_test::Rng& rng, int max_heads) {
  constexpr LayoutKind kLayouts[] = {LayoutKind::mla_bf16, LayoutKind::mla_fp8,
                                     LayoutKind::mla_fp8_block};
  constexpr int kPages[] = {1, 16, 64, 128};
  RaggedDims d{kLayouts[rng() % 3], kPages[rng() % 4],
               1 + static_cast<int>(rng() % static_cast<unsigned>(max_heads)),
               rng() % 2 == 0 ? 128 : 192, rng() % 2 == 0 ? 128 : 256};
  if (rng() % 2 == 0) d.weights = DType::e4m3;
  return d;
}

inline std::string text_of(const RaggedDims& d, std::uint32_t seed) {
  return fmt::format("seed {} {} page {} heads {} nope {} v {} kv_b {}", seed, name(d.layout),
                     d.page, d.heads, d.nope_head, d.v_head, name(d.weights));
}

}  // namespace lathe::cuda
