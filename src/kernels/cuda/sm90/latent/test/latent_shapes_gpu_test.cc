// Tests latent attention on a GPU in the shapes of FlashMLA's tests (latent_shape_checks.h).
#include <set>

#include "kernels/cuda/sm90/latent/test/latent_gpu_test_util.h"

#include "kernels/cuda/sm90/latent/test/latent_shape_checks.h"

namespace lathe::cuda {
namespace {

class LatentShapesGpu : public DeviceCall, public ::testing::WithParamInterface<LayoutKind> {
 protected:
  void check(const SceneShape& shape, const Bounds& bounds) {
    SCOPED_TRACE(to_string(shape));
    ShapeScene s(shape);
    for (const std::int32_t m_rows : {0, 64}) {
      if (m_rows == 64 && !small_block_m_) continue;
      SCOPED_TRACE("min block M " + std::to_string(m_rows));
      const Outputs got = attend(s.scene.args, 0, 2, 0, 0, m_rows);
      // Checks the first request, the last and one between; of each, the first heads and the last.
      const std::int32_t few = std::min(shape.heads, 3);
      for (const std::int32_t r : std::set{0, shape.requests / 2, shape.requests - 1}) {
        s.expect(got, static_cast<std::size_t>(r), 0, few, bounds);
        s.expect(got, static_cast<std::size_t>(r), shape.heads - few, few, bounds);
      }
    }
  }
};

class LatentShapesGpuPages : public LatentShapesGpu {};

TEST_P(LatentShapesGpuPages, DenseDecode) {
  SceneShape shape{.layout = GetParam(), .page = 64, .ragged = true};
  for (const int requests : {1, 2, 6}) {
    for (const int rows : {1, 2, 4}) {
      for (const int keys : {20, 140, 4096}) {
        for (const int heads : {1, 3, 9, 63, 64, 126, 128}) {
          shape.requests = requests;
          shape.rows = rows;
          shape.keys = keys;
          shape.heads = heads;
          check(shape, kDecodeBounds);
        }
      }
    }
  }
  for (const auto& [requests, rows, keys, heads] :
       {std::tuple{64, 1, 4096, 128}, {64, 4, 140, 3}, {64, 2, 4096, 9}, {128, 2, 140, 64}}) {
    shape.requests = requests;
    shape.rows = rows;
    shape.keys = keys;
    shape.heads = heads;
    check(shape, kDecodeBounds);
  }
}

TEST_P(LatentShapesGpu, SparseDecode) {
  struct Lists {
    int keys, top_k, page;
  };
  for (const Lists l : {Lists{512, 64, 2}, Lists{512, 64, 64}, Lists{512, 64, 69},
                        Lists{1024, 576, 2}, Lists{1024, 576, 61}, Lists{2046, 2048, 2},
                        Lists{2046, 2048, 64}, Lists{2046, 2048, 576}}) {
    SceneShape shape{
        .layout = GetParam(), .page = l.page, .keys = l.keys, .top_k = l.top_k, .ragged = true};
    for (const int rows : {1, 3}) {
      shape.rows = rows;
      shape.lengths_and_sink = rows == 3;
      if (GetParam() == LayoutKind::v4_fp8 && rows == 3) shape.extra = 192;
      shape.requests = 4;
      for (const int heads : {64, 128}) {
        shape.heads = heads;
        shape.nothing = false;
        check(shape, kDecodeBounds);
        shape.nothing = true;
        check(shape, kDecodeBounds);
      }
      shape.nothing = false;
      shape.heads = rows == 1 ? 128 : 64;
      shape.requests = 74;
      check(shape, kDecodeBounds);
      if (l.keys > 512 && (rows == 3 || l.page == 2 || l.page == 576)) continue;
      shape.requests = 321;
      check(shape, kDecodeBounds);
    }
  }
}

TEST_P(LatentShapesGpu, SparseExtend) {
  for (const int rows : {1, 62, 213}) {
    for (const auto& [keys, top_k] : {std::pair{592, 128},
                                      {1840, 256},
                                      {1592, 384},
                                      {1521, 512},
                                      {95, 128},
                                      {153, 256},
                                      {114, 384}}) {
      for (const int heads : {64, 128}) {
        check({.layout = GetParam(),
               .page = 64,
               .requests = 1,
               .rows = rows,
               .keys = keys,
               .heads = heads,
               .top_k = top_k,
               .lengths_and_sink = rows == 62},
              kExtendBounds);
      }
    }
  }
}

class LatentHugeExtend : public DeviceCall {};

// Every thousand rows are the same.
TEST_F(LatentHugeExtend, SeventyThousandRows) {
  constexpr int kTimes = 70;
  for (const auto& [kind, heads] : {std::pair{LayoutKind::mla_bf16, 64},
                                    {LayoutKind::mla_fp8_block, 64},
                                    {LayoutKind::mla_fp8, 8},
                                    {LayoutKind::v4_fp8, 8}}) {
    SCOPED_TRACE(std::string(name(kind)) + ", heads " + std::to_string(heads));
    const ShapeScene s({.layout = kind,
                        .page = 64,
                        .requests = 1,
                        .rows = 1000,
                        .keys = 256,
                        .heads = heads,
                        .top_k = 64,
                        .lengths_and_sink = true});
    AttendArgs args = s.scene.args;
    const auto* q = reinterpret_cast<const bf16*>(args.q.data);
    const std::int64_t rows = args.q.rows;
    Matrix<bf16> queries(rows * kTimes, args.q.cols);
    Ints list, lengths;
    for (int i = 0; i < kTimes; ++i) {
      std::copy_n(q, rows * args.q.cols, queries.data.begin() + i * rows * args.q.cols);
      list.insert(list.end(), args.main.indices.begin(), args.main.indices.end());
      lengths.insert(lengths.end(), args.main.index_lengths.begin(), args.main.index_lengths.end());
    }
    args.q = queries.view();
    args.main.indices = list;
    args.main.index_lengths = lengths;
    const Ints indptr{0, static_cast<std::int32_t>(args.q.rows)}, lens{indptr[1]};
    args.q_indptr = indptr;
    args.kv_lens = lens;

    Call call = prepare(args);
    must(plan_latent(call.args, call.schedule, stream()));
    must(attend_latent(call.args, {}, call.schedule, call.workspace, stream()));
    std::vector<std::uint16_t> out(call.out.size());
    must(copy_to_host(call.out.data(), std::span(out), stream()));
    must(stream().wait());
    const auto part = out.size() / kTimes;
    for (std::size_t i = 1; i < kTimes; ++i) {
      EXPECT_TRUE(std::equal(out.begin(), out.begin() + part, out.begin() + i * part)) << i;
    }
    call.out = call.out.first(part);
    call.lse = call.lse.first(call.lse.size() / kTimes);
    call.args.out.rows = call.args.lse.rows = rows;
    s.expect(read(call), 0, 0, heads, kExtendBounds);
    release();
  }
}

const auto kName = [](const auto& test) { return std::string(name(test.param)); };
INSTANTIATE_TEST_SUITE_P(Layouts, LatentShapesGpuPages,
                         ::testing::Values(LayoutKind::mla_bf16, LayoutKind::mla_fp8,
                                           LayoutKind::mla_fp8_block),
                         kName);
INSTANTIATE_TEST_SUITE_P(Layouts, LatentShapesGpu,
                         ::testing::Values(LayoutKind::mla_bf16, LayoutKind::mla_fp8,
                                           LayoutKind::mla_fp8_block, LayoutKind::v4_fp8),
                         kName);

}  // namespace
}  // namespace lathe::cuda

int main(int argc, char** argv) { return lathe::cuda::gpu_test_main(argc, argv); }
