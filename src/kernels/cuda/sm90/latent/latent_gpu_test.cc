// Latent attention on a GPU against the oracle in double, with the bounds of DESIGN section 8.
#include "kernels/cuda/sm90/latent/latent_gpu_test_util.h"

namespace lathe::cuda {
namespace {

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

}  // namespace
}  // namespace lathe::cuda

int main(int argc, char** argv) { return lathe::cuda::gpu_test_main(argc, argv); }
