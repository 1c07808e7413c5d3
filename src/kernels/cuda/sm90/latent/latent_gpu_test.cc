// Latent attention on a GPU against the oracle in double, with the bounds of DESIGN section 8.
#include <bit>
#include <list>

#include "kernels/cpu/latent_test_util.h"
#include "kernels/cuda/common/gpu_test_util.h"
#include "kernels/cuda/sm90/latent/latent.h"
#include "kernels/cuda/sm90/latent/latent_checks.h"
#include "kernels/cuda/sm90/step/step.h"

namespace lathe::cuda {
namespace {

using latent_test::Ints;
using latent_test::Requests;
using latent_test::Scene;
using ref_test::Matrix;
using ref_test::Outputs;

/// A call's arrays on the device, and what it needs beside them.
class DeviceCall : public GpuTest {
 protected:
  template <class T>
  std::span<T> put(const T* data, std::size_t count) {
    if (count == 0) return {};
    const auto* bytes = reinterpret_cast<const std::byte*>(data);
    kept_.emplace_back(*this, std::vector<std::byte>(bytes, bytes + count * sizeof(T)));
    return {reinterpret_cast<T*>(kept_.back().data()), count};
  }
  template <class T>
  std::span<const T> put(std::span<const T> host) {
    return put(host.data(), host.size());
  }
  template <class T>
  std::span<T> room(std::int64_t count) {
    kept_.emplace_back(*this, std::vector<std::byte>(static_cast<std::size_t>(count) * sizeof(T),
                                                     std::byte{0xff}));
    return {reinterpret_cast<T*>(kept_.back().data()), static_cast<std::size_t>(count)};
  }
  KeySource put(const KeySource& s) {
    KeySource d = s;
    if (s.pool) {
      d.pool.emplace(put(s.pool->data, static_cast<std::size_t>(s.pool->bytes())).data(),
                     s.pool->layout, s.pool->page_size, s.pool->pages, s.pool->page_stride);
    }
    d.page_table = put(s.page_table);
    d.indices = put(s.indices);
    d.index_lengths = put(s.index_lengths);
    return d;
  }

  /// Rounds q to bf16 (the oracle reads the same), runs, and gives what came out.
  Outputs attend(const AttendArgs& host, int processors = 0, int repeats = 1) {
    AttendArgs args = host;
    args.q.data =
        put(host.q.data, static_cast<std::size_t>(host.q.rows * host.q.row_stride * 2)).data();
    args.q_indptr = put(host.q_indptr);
    args.kv_lens = put(host.kv_lens);
    args.main = put(host.main);
    if (host.problem.two_sources()) args.extra = put(host.extra);
    args.sink = put(host.sink);
    const std::int64_t width = host.problem.heads * host.problem.v_dim();
    const auto out = room<std::uint16_t>(host.q.rows * width);
    const auto lse = room<float>(host.q.rows * host.problem.heads);
    args.out = {reinterpret_cast<std::byte*>(out.data()), DType::bf16, host.q.rows, width, width};
    args.lse = {reinterpret_cast<std::byte*>(lse.data()), DType::f32, host.q.rows,
                host.problem.heads, host.problem.heads};
    LatentShape shape{.rows = host.q.rows,
                      .requests = std::ssize(host.kv_lens),
                      .heads = host.problem.heads,
                      .dense = host.main.index_width == 0};
    if (processors > 0) shape.processors = processors;
    for (std::size_t r = 0; r < host.kv_lens.size(); ++r) {
      shape.request_rows =
          std::max<std::int64_t>(shape.request_rows, host.q_indptr[r + 1] - host.q_indptr[r]);
      if (shape.dense) shape.keys = std::max<std::int64_t>(shape.keys, host.kv_lens[r]);
    }
    if (!shape.dense) {
      shape.keys = (host.main.index_width + 63) / 64 * 64;
      if (host.problem.two_sources()) shape.keys += host.extra.index_width;
    }
    LatentSchedule schedule;
    schedule.cut = cut_latent(shape);
    schedule.list.items = room<WorkItem>(schedule.cut.items);
    schedule.list.row_items = room<std::int64_t>(schedule.cut.units + 1);
    schedule.list.worker_items = room<std::int64_t>(schedule.cut.work.workers + 1);
    schedule.unit_keys = room<std::int32_t>(schedule.cut.units);
    schedule.work_workspace = room<std::int64_t>(work_workspace(schedule.cut.units));
    const auto workspace = room<std::byte>(schedule.cut.workspace_bytes());
    must(plan_latent(args, schedule, stream()));
    std::vector<std::uint16_t> first;
    Outputs o{{host.q.rows, width, 0}, {host.q.rows, host.problem.heads, 0}};
    for (int i = 0; i < repeats; ++i) {
      must(attend_latent(args, {}, schedule, workspace, stream()));
      must(stream().wait());
      std::vector<std::uint16_t> bits(out.size());
      std::vector<float> sums(lse.size());
      must(copy_to_host(out.data(), std::span(bits), stream()));
      must(copy_to_host(lse.data(), std::span(sums), stream()));
      must(stream().wait());
      if (i == 0) first = bits;
      EXPECT_EQ(first, bits) << "repeat " << i;
      for (std::size_t j = 0; j < bits.size(); ++j) {
        o.out.data[j] = std::bit_cast<float>(std::uint32_t{bits[j]} << 16);
      }
      for (std::size_t j = 0; j < sums.size(); ++j) o.lse.data[j] = sums[j];
    }
    kept_.clear();
    return o;
  }

 private:
  std::list<DeviceCopy<std::byte>> kept_;
};

class LatentGpu : public DeviceCall {
 protected:
  void check(Scene& s, int processors = 0, int repeats = 1) {
    const Matrix<bf16> q = rounded(s.q);
    s.args.q = q.view();
    const Outputs want = s.oracle();
    const Outputs got = attend(s.args, processors, repeats);
    expect_oracle(got, want);
  }
};

TEST_F(LatentGpu, DenseByPageTable) {
  for (const LayoutKind kind :
       {LayoutKind::mla_bf16, LayoutKind::mla_fp8, LayoutKind::mla_fp8_block}) {
    for (const int heads : {64, 128, 48}) {
      SCOPED_TRACE(std::string(name(kind)) + ", heads " + std::to_string(heads));
      Scene s(layout_of(kind), 64, heads, {{1, 1}, {300, 1}, {64, 2}, {129, 1}, {0, 1}});
      check(s);
    }
  }
}

TEST_F(LatentGpu, DenseCutAmongBlocks) {
  for (const LayoutKind kind : {LayoutKind::mla_bf16, LayoutKind::mla_fp8_block}) {
    SCOPED_TRACE(name(kind));
    Scene s(layout_of(kind), 16, 64, {{1500, 1}, {700, 3}, {5, 1}});
    check(s, 0, 20);
  }
}

TEST_F(LatentGpu, SparseLists) {
  for (const LayoutKind kind :
       {LayoutKind::mla_fp8_block, LayoutKind::mla_bf16, LayoutKind::mla_fp8}) {
    for (const int heads : {64, 128}) {
      for (const int width : {64, 200, 1024}) {
        SCOPED_TRACE(std::string(name(kind)) + ", heads " + std::to_string(heads) + ", width " +
                     std::to_string(width));
        Scene s(layout_of(kind), 61, heads, {{512, 1}, {900, 2}, {3, 1}});
        const Ints list = s.random_list(width);
        s.by_index(list);
        check(s, width == 200 ? 2 : 0, 3);
      }
    }
  }
}

// Few lines: tiles of 8, 16 and 32.

TEST_F(LatentGpu, FewHeadsDenseByPageTable) {
  for (const LayoutKind kind :
       {LayoutKind::mla_bf16, LayoutKind::mla_fp8, LayoutKind::mla_fp8_block}) {
    for (const int heads : {1, 3, 8, 9, 16, 24, 32}) {
      SCOPED_TRACE(std::string(name(kind)) + ", heads " + std::to_string(heads));
      Scene one(layout_of(kind), 64, heads, {{1, 1}, {300, 1}, {64, 1}, {129, 1}, {0, 1}});
      check(one);
      Scene several(layout_of(kind), 64, heads, {{3, 3}, {130, 2}, {0, 0}, {260, 1}});
      check(several, 0, 2);
    }
  }
}

TEST_F(LatentGpu, FewHeadsDenseCutAmongBlocks) {
  for (const LayoutKind kind : {LayoutKind::mla_bf16, LayoutKind::mla_fp8_block}) {
    for (const int heads : {5, 8, 10, 16, 32}) {
      SCOPED_TRACE(std::string(name(kind)) + ", heads " + std::to_string(heads));
      Scene s(layout_of(kind), 16, heads, {{1500, 1}, {700, heads <= 10 ? 3 : 1}, {5, 1}});
      check(s, 0, 20);
      // Several items a block.
      check(s, 3, 3);
    }
  }
}

TEST_F(LatentGpu, FewHeadsPageSizes) {
  for (const int page : {1, 4, 8, 32, 100, 128, 256}) {
    SCOPED_TRACE(page);
    Scene s(layout_of(LayoutKind::mla_bf16), page, 16, {{300, 2}, {64, 1}, {129, 1}, {0, 1}});
    check(s, 0, 2);
    check(s, 1);
  }
}

TEST_F(LatentGpu, FewHeadsSparseLists) {
  for (const LayoutKind kind :
       {LayoutKind::mla_fp8_block, LayoutKind::mla_bf16, LayoutKind::mla_fp8}) {
    for (const int heads : {1, 8, 16, 24, 32}) {
      for (const int width : {64, 200, 1024}) {
        SCOPED_TRACE(std::string(name(kind)) + ", heads " + std::to_string(heads) + ", width " +
                     std::to_string(width));
        Scene s(layout_of(kind), 61, heads, {{512, 1}, {900, 2}, {3, 1}});
        const Ints list = s.random_list(width);
        s.by_index(list);
        Ints lengths{width, width / 3, 0, width - 1};
        s.args.main.index_lengths = lengths;
        const std::vector<float> sink(static_cast<std::size_t>(heads), 0.5f);
        s.args.problem.sink = true;
        s.args.sink = sink;
        check(s, width == 200 ? 2 : 0, width == 1024 ? 20 : 2);
      }
    }
  }
}

TEST_F(LatentGpu, FewHeadsOfTwoSources) {
  for (const int heads : {3, 8, 16, 32, 64}) {
    SCOPED_TRACE("heads " + std::to_string(heads));
    Scene s(layout_of(LayoutKind::v4_fp8), 64, heads, {{300, 2}, {40, 1}, {700, 1}});
    const Ints window = s.batch.causal_list(64, 100, 100);
    const Ints list = s.random_list(330);
    s.by_index(window, ProblemKind::window_compressed);
    s.args.problem.window = 100;
    s.args.problem.compress_ratio = 4;
    s.args.extra = s.args.main;
    ref_test::name_by_index(s.args.extra, list, 330);
    check(s, heads == 8 ? 3 : 0, 3);
  }
}

// Scores that rise by more than the slack from tile to tile, late and on a few lines alone.
TEST_F(LatentGpu, FewHeadsWithRisingScores) {
  for (const int heads : {8, 16, 32}) {
    SCOPED_TRACE("heads " + std::to_string(heads));
    Scene s(layout_of(LayoutKind::mla_bf16), 64, heads, {{900, 1}, {400, 1}});
    s.args.problem.scale = 0.8f;
    check(s, 0, 2);
    check(s, 1, 2);
  }
}

}  // namespace
}  // namespace lathe::cuda

int main(int argc, char** argv) { return lathe::cuda::gpu_test_main(argc, argv); }
