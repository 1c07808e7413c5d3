// The calls that GEMMs on tensor cores reject.
#include "kernels/cuda/sm90/matmul/test/matmul_emulation.h"

namespace lathe::cuda {
namespace {

using matmul_test::Host;
using matmul_test::Placed;
using matmul_test::Problem;

TEST(MatmulTakes, WhatItCanRead) {
  std::mt19937 random(1);
  Problem p(random, 3, 64, 64);
  Host host;
  const Placed placed(p, host);
  const MatmulCall good = placed.call(3);
  EXPECT_TRUE(matmul_takes(good));
  const auto refuses = [&](auto change) {
    MatmulCall call = good;
    change(call);
    if (matmul_takes(call)) return false;
    const auto done = matmul_on_device({&call, 1}, nullptr);
    EXPECT_TRUE(!done.ok() && done.error().code == ErrorCode::unsupported);
    return true;
  };
  EXPECT_TRUE(refuses([](MatmulCall& c) { c.x.dtype = DType::f32; }));
  EXPECT_TRUE(refuses([](MatmulCall& c) { c.w.dtype = DType::f16; }));
  EXPECT_TRUE(refuses([](MatmulCall& c) { c.w.dtype = DType::e2m1; }));  // no scales
  // MXFP4 must be packed.
  static const ue8m0 scales[128] = {};
  EXPECT_TRUE(refuses([&](MatmulCall& c) {
    c.w.dtype = DType::e2m1;
    c.w.mx_scales = scales;
  }));
  // Packed weights: sizes of groups, types and places of their scales, an order of columns.
  alignas(16) static const std::byte groups[4096] = {};
  const auto refuses_u4 = [&](auto change) {
    return refuses([&](MatmulCall& c) {
      c.w.dtype = DType::u4;
      c.w.groups = {groups, DType::bf16, 32, nullptr};
      change(c.w);
    });
  };
  EXPECT_FALSE(refuses_u4([](WeightView&) {}));
  EXPECT_TRUE(refuses_u4([](WeightView& w) { w.groups.size = 16; }));
  EXPECT_TRUE(refuses_u4([](WeightView& w) { w.groups.size = 128; }));  // 64 columns
  EXPECT_TRUE(refuses_u4([](WeightView& w) { w.groups.dtype = DType::e4m3; }));
  EXPECT_TRUE(refuses_u4([](WeightView& w) { w.groups.data += 8; }));
  EXPECT_TRUE(refuses_u4(
      [](WeightView& w) { w.groups.zeros = reinterpret_cast<const std::uint8_t*>(groups) + 4; }));
  EXPECT_TRUE(
      refuses_u4([](WeightView& w) { w.columns = reinterpret_cast<const std::int32_t*>(groups); }));
  EXPECT_TRUE(refuses_u4([](WeightView& w) { w.dtype = DType::e2m1; }));
  EXPECT_FALSE(refuses_u4([](WeightView& w) {
    w.dtype = DType::e2m1;
    w.groups.dtype = DType::ue8m0;
  }));
  EXPECT_TRUE(refuses([](MatmulCall& c) { c.x.row_stride = 68; }));
  EXPECT_TRUE(refuses([](MatmulCall& c) { c.x.cols = c.w.cols = 60; }));
  EXPECT_TRUE(refuses([](MatmulCall& c) { c.w.data += 8; }));
  EXPECT_TRUE(refuses([](MatmulCall& c) {
    c.out.dtype = DType::bf16;
    c.add = true;
  }));
  const Activation silu{ActivationKind::silu};
  EXPECT_TRUE(refuses([&](MatmulCall& c) { c.activation = &silu; }));  // f32 out, and no `up`
  EXPECT_TRUE(refuses([](MatmulCall& c) {
    c.out.dtype = DType::bf16;
    c.out.row_stride = 71;
  }));
  EXPECT_FALSE(refuses([](MatmulCall& c) { c.out.row_stride = 71; }));
  // No tokens: nothing to do. Too many calls, and a different x, are errors.
  MatmulCall none = good;
  none.x.rows = none.out.rows = 0;
  EXPECT_TRUE(matmul_on_device({&none, 1}, nullptr).ok());
  const std::vector<MatmulCall> many(kMatmulCalls + 1, good);
  EXPECT_FALSE(matmul_on_device(many, nullptr).ok());
  MatmulCall other = good;
  other.x.rows = other.out.rows = 2;
  const MatmulCall two[] = {good, other};
  EXPECT_FALSE(matmul_on_device(two, nullptr).ok());
  none = good;
  none.w.rows = none.out.cols = 0;
  EXPECT_EQ(make_launch({&none, 1}, {}, 132).instance.clusters, 0);
}

}  // namespace
}  // namespace lathe::cuda
