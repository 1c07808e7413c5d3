// Runs GEMMs as a GPU would, with kernels run thread by thread on the CPU (common/emulator.h).
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <list>
#include <random>
#include <span>
#include <vector>

#include "kernels/cuda/sm90/matmul/matmul_call.h"
#include "kernels/cuda/sm90/matmul/test/matmul_problem.h"

namespace lathe::cuda::matmul_test {

/// Host memory in place of the device's.
struct Host {
  std::list<std::vector<uint4>> kept;
  template <class T>
  T* put(const std::vector<T>& v) {
    kept.emplace_back(v.size() * sizeof(T) / sizeof(uint4) + 1);
    std::memcpy(kept.back().data(), v.data(), v.size() * sizeof(T));
    return reinterpret_cast<T*>(kept.back().data());
  }
  template <class T>
  void get(const T* from, std::vector<T>& to) const {
    std::memcpy(to.data(), from, to.size() * sizeof(T));
  }
};

/// matmul_on_device() with the given tiles, on a GPU of `sms` SMs.
void emulate_matmul(std::span<const MatmulCall> calls, const MatmulTiling& tiling, int sms);
/// grouped_matmul_on_device() with tiles of `tokens` tokens.
void emulate_matmul(const GroupedMatmulCall& call, int tokens, int sms);

class MatmulEmulated : public ::testing::Test {
 public:
  /// Compares one GEMM with sums in double.
  void check(const Problem& p, const MatmulTiling& tiling, int sms) {
    SCOPED_TRACE(::testing::Message()
                 << "seed " << seed << ", m " << p.m << ", n " << p.n << ", k " << p.k << ", split "
                 << tiling.split << ", tile " << tiling.tile_rows << " x " << tiling.tile_tokens
                 << (tiling.pair ? ", pairs" : "") << (tiling.spread ? " of parts" : "") << ", "
                 << sms << " SMs");
    Host host;
    const Placed placed(p, host);
    MatmulCall call = placed.call(p.m);
    call.kept = host.put(std::vector<float>(static_cast<std::size_t>(kMatmulKeptFloats * sms)));
    const std::vector<std::uint32_t> none(static_cast<std::size_t>(sms));
    call.arrivals = host.put(none);
    ASSERT_TRUE(matmul_takes(call));
    emulate_matmul({&call, 1}, tiling, sms);
    placed.expect_right(p.m);
    EXPECT_EQ(std::memcmp(call.arrivals, none.data(), none.size() * sizeof(std::uint32_t)), 0);
  }
  int between(int a, int b) { return std::uniform_int_distribution<int>(a, b)(random); }

  unsigned seed = std::random_device()();
  std::mt19937 random{seed};
};

}  // namespace lathe::cuda::matmul_test
