// Shared by GPU tests of latent attention: a scene's call on the device.
#pragma once

#include <bit>

#include "kernels/cuda/common/test/gpu_test_util.h"
#include "kernels/cuda/sm90/latent/latent.h"
#include "kernels/cuda/sm90/latent/latent_attend.h"
#include "kernels/cuda/sm90/latent/test/latent_checks.h"
#include "kernels/cuda/sm90/step/step.h"

namespace lathe::cuda {

using latent_test::Ints;
using latent_test::Requests;
using latent_test::Scene;

/// A call's arrays on the device, and everything else it needs.
class DeviceCall : public GpuArraysTest {
 protected:
  using GpuArraysTest::put;
  /// Copies bytes to the device after `before` other bytes, which are NaN in every format.
  const std::byte* put_behind(const std::byte* data, std::int64_t bytes, std::int64_t before) {
    large_.push_back(
        std::move(DeviceArray<std::byte>::make(std::max<std::int64_t>(1, before + bytes))).value());
    std::byte* to = large_.back().data();
    EXPECT_EQ(cudaMemsetAsync(to, 0xff, static_cast<std::size_t>(before), stream()), cudaSuccess);
    must(copy_to_device(std::span(data, static_cast<std::size_t>(bytes)), to + before, stream()));
    must(stream().wait());
    return to;
  }
  KeySource put(const KeySource& s) {
    KeySource d = s;
    std::vector<PageId> table(s.page_table.begin(), s.page_table.end());
    Ints indices(s.indices.begin(), s.indices.end());
    std::int64_t slots = before_;
    if (s.pool) {
      slots *= s.pool->page_size;
      const ConstPoolView& pool = *s.pool;
      d.pool.emplace(put_behind(pool.data, pool.bytes(), before_ * pool.page_stride), pool.layout,
                     pool.page_size, before_ + pool.pages, pool.page_stride);
    } else {
      const auto bytes = [&](std::int64_t n) {
        return bytes_of(s.compact.dtype, n * s.compact.row_stride);
      };
      d.compact.data = put_behind(s.compact.data, bytes(s.compact.rows), bytes(before_));
      d.compact.rows += before_;
    }
    for (PageId& page : table) page.value = behind(page.value, before_);
    // With a page table, indices are positions.
    if (table.empty()) {
      for (std::int32_t& slot : indices) slot = behind(slot, slots);
    }
    d.page_table = put(std::span<const PageId>(table));
    d.indices = put(std::span<const std::int32_t>(indices));
    d.index_lengths = put(s.index_lengths);
    return d;
  }

  /// A call with everything it needs on the device, outputs poisoned.
  struct Call {
    AttendArgs args;
    std::span<const std::int32_t> row_request;  // if lists hold positions
    LatentShape shape;
    LatentSchedule schedule;
    std::span<std::byte> workspace;
    std::span<std::uint16_t> out;
    std::span<float> lse;
  };
  /// room_pages: room for staged pages of each source; last: rows at the end that are split; 0 for
  /// either: as cut_latent() chooses. m_rows: LatentShape::min_block_m; 0: as the registry's
  /// kernel.
  Call prepare(const AttendArgs& host, int sms = 0, std::int64_t room_pages = 0,
               std::int64_t last = 0, std::int32_t m_rows = 0) {
    Call c;
    AttendArgs& args = c.args = host;
    args.q.data = put(host.q.data, bytes_of_q(host)).data();
    args.q_indptr = put(host.q_indptr);
    args.kv_lens = put(host.kv_lens);
    args.main = put(host.main);
    if (host.problem.two_sources()) args.extra = put(host.extra);
    args.sink = put(host.sink);
    if (host.main.index_width > 0 && host.main.table_width > 0) {
      Ints requests;
      for (std::size_t r = 0; r < host.kv_lens.size(); ++r) {
        requests.resize(static_cast<std::size_t>(host.q_indptr[r + 1]), static_cast<int>(r));
      }
      c.row_request = put(std::span<const std::int32_t>(requests));
    }
    const std::int64_t width = host.problem.heads * host.problem.v_dim();
    c.out = room<std::uint16_t>(host.q.rows * width);
    c.lse = room<float>(host.q.rows * host.problem.heads);
    args.out = {reinterpret_cast<std::byte*>(c.out.data()), DType::bf16, host.q.rows, width, width};
    args.lse = {reinterpret_cast<std::byte*>(c.lse.data()), DType::f32, host.q.rows,
                host.problem.heads, host.problem.heads};
    LatentShape& shape = c.shape;
    shape = shape_of_call(host, m_rows > 0 ? m_rows : room_pages > 0 || last > 0 ? 64 : 16);
    if (sms > 0) shape.sms = sms;
    // As the registry's kernel calls cut_latent().
    if (!shape.dense && sms == 0 && last == 0 && room_pages == 0) set_pools(c.args, shape);
    LatentSchedule& schedule = c.schedule;
    schedule.cut = cut_latent(shape);
    small_block_m_ = schedule.cut.block_m < 64 && schedule.cut.m_blocks > 1;
    if (last > 0) cut_last(schedule.cut, last);
    if (room_pages > 0) {
      set_pools(c.args, shape);
      EXPECT_LT(schedule.cut.all.work_tile_items, 2);
      stage_latent(shape, schedule.cut);
      for (LatentStage* stage : {&schedule.cut.main, &schedule.cut.extra}) {
        stage->room = std::min(stage->room, room_pages);
      }
    }
    take_arrays(schedule, [&]<class T>(std::span<T>& array, std::int64_t entries) {
      array = room<T>(entries);
    });
    c.workspace = room<std::byte>(schedule.cut.workspace_bytes());
    return c;
  }
  /// Overwrites a call's contents by another call's of the same sizes.
  void overwrite(const Call& call, const AttendArgs& host) {
    const auto over = [&](const auto& device, const auto& from) {
      using T = std::remove_const_t<typename std::remove_cvref_t<decltype(from)>::value_type>;
      ASSERT_EQ(device.size(), from.size());
      must(copy_to_device(std::span<const T>(from), const_cast<T*>(device.data()), stream()));
    };
    over(std::span(call.args.q.data, bytes_of_q(host)), std::span(host.q.data, bytes_of_q(host)));
    over(call.args.q_indptr, host.q_indptr);
    over(call.args.kv_lens, host.kv_lens);
    const auto bytes = static_cast<std::size_t>(host.main.pool->bytes());
    over(std::span(call.args.main.pool->data, bytes), std::span(host.main.pool->data, bytes));
    over(call.args.main.page_table, host.main.page_table);
    over(call.args.main.indices, host.main.indices);
    must(stream().wait());
  }
  Outputs read(const Call& c, std::vector<std::uint16_t>* kept_bits = nullptr) {
    std::vector<std::uint16_t> bits(c.out.size());
    std::vector<float> lse(c.lse.size());
    must(copy_to_host(c.out.data(), std::span(bits), stream()));
    must(copy_to_host(c.lse.data(), std::span(lse), stream()));
    must(stream().wait());
    Outputs o{{c.args.out.rows, c.args.out.cols, 0}, {c.args.lse.rows, c.args.lse.cols, 0}};
    for (std::size_t j = 0; j < bits.size(); ++j) {
      o.out.data[j] = std::bit_cast<float>(std::uint32_t{bits[j]} << 16);
    }
    for (std::size_t j = 0; j < lse.size(); ++j) o.lse.data[j] = lse[j];
    if (kept_bits != nullptr) *kept_bits = std::move(bits);
    return o;
  }

  /// Returns the outputs. Repeats must give the same bits.
  Outputs attend(const AttendArgs& host, int sms = 0, int repeats = 1, std::int64_t room_pages = 0,
                 std::int64_t last = 0, std::int32_t m_rows = 0) {
    const Call c = prepare(host, sms, room_pages, last, m_rows);
    must(plan_latent(c.args, c.schedule, stream()));
    std::vector<std::uint16_t> first, bits;
    Outputs o{{0, 0}, {0, 0}};
    for (int i = 0; i < repeats; ++i) {
      must(attend_latent(c.args, c.row_request, c.schedule, c.workspace, stream()));
      o = read(c, &bits);
      if (i == 0) first = bits;
      EXPECT_TRUE(first == bits) << "repeat " << i;
    }
    // Plans don't support positions.
    if (sms == 0 && last == 0 && room_pages == 0 && m_rows == 0 && !c.shape.fp8 &&
        c.row_request.empty()) {
      by_registry(c.args, c.shape, first, c.out);
    }
    release();
    return o;
  }
  /// Frees everything that prepare() and room() have allocated.
  void release() {
    kept_.clear();
    large_.clear();
  }

  /// Whether the last prepared call had more than 32 M rows, in blocks smaller than 64.
  bool small_block_m_ = false;

  /// Pages, or compact rows, of NaN before the host's on the device.
  std::int64_t before_ = 0;

 private:
  /// An index moved past `before` others; a hole stays a hole.
  static std::int32_t behind(std::int32_t index, std::int64_t before) {
    return index < 0 || index > INT32_MAX - before ? index
                                                   : index + static_cast<std::int32_t>(before);
  }
  static void set_pools(const AttendArgs& args, LatentShape& shape) {
    shape.main = listed_pool(args.main);
    if (args.problem.two_sources()) shape.extra = listed_pool(args.extra);
  }
  static std::size_t bytes_of_q(const AttendArgs& host) {
    return static_cast<std::size_t>(bytes_of(host.q.dtype, host.q.rows * host.q.row_stride));
  }
  // The registry's kernel schedules the call in the same way, so its bits are the same.
  void by_registry(AttendArgs args, const LatentShape& shape,
                   const std::vector<std::uint16_t>& wanted, std::span<std::uint16_t> out) {
    Scratch scratch(kDeviceMemory);
    args.max_request_rows = shape.request_rows;
    args.max_kv_len = shape.dense ? shape.keys : 0;
    args.execution.scratch = &scratch;
    args.execution.stream = stream().get();
    ASSERT_EQ(cudaMemsetAsync(out.data(), 0xff, out.size_bytes(), stream()), cudaSuccess);
    must(attend_latent_on_device(args));
    std::vector<std::uint16_t> bits(out.size());
    must(copy_to_host(out.data(), std::span(bits), stream()));
    must(stream().wait());
    EXPECT_TRUE(bits == wanted) << "by the registry";
  }

  std::vector<DeviceArray<std::byte>> large_;
};

/// Calls in bf16 arithmetic, compared with the oracle.
class LatentGpu : public DeviceCall {
 protected:
  void check(Scene& s, int sms = 0, int repeats = 1, std::int64_t room_pages = 0,
             std::int64_t last = 0) {
    const Matrix<bf16> q = rounded(s.q);
    s.args.q = q.view();
    const Outputs want = s.oracle();
    const Outputs got = attend(s.args, sms, repeats, room_pages, last);
    expect_oracle(got, want);
    if (small_block_m_) {
      SCOPED_TRACE("64 M rows a block");
      expect_oracle(attend(s.args, sms, repeats, room_pages, last, 64), want);
    }
  }
  /// Captures the call of a, and replays it on the contents of both alternately.
  void replay(Scene& a, Scene& b, int sms = 0, std::int64_t room_pages = 0, std::int64_t last = 0) {
    const Matrix<bf16> qa = rounded(a.q), qb = rounded(b.q);
    a.args.q = qa.view();
    b.args.q = qb.view();
    const Outputs want_a = a.oracle(), want_b = b.oracle();
    for (const std::int32_t m_rows : {0, 64}) {
      if (m_rows == 64 && !small_block_m_) continue;
      SCOPED_TRACE("min block M " + std::to_string(m_rows));
      const Call call = prepare(a.args, sms, room_pages, last, m_rows);
      const auto graph = Graph::capture(stream(), [&]() -> Result<void> {
        if (auto ok = plan_latent(call.args, call.schedule, stream()); !ok) return ok;
        return attend_latent(call.args, {}, call.schedule, call.workspace, stream());
      });
      ASSERT_TRUE(graph) << graph.error().message();
      for (int i = 0; i < 4; ++i) {
        overwrite(call, i % 2 == 0 ? a.args : b.args);
        must(graph->launch(stream()));
        must(stream().wait());
        expect_oracle(read(call), i % 2 == 0 ? want_a : want_b);
      }
      release();
    }
  }
};

}  // namespace lathe::cuda
