#include "ops/matmul.h"

#include "base/check.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/matmul_bf16.h"
#include "kernels/ref/linear.h"

namespace lathe {
namespace {

void check(const Product& p) {
  const DType w = p.w.dtype;
  LATHE_CHECK(w == DType::f32 || w == DType::bf16 || w == DType::f16 || w == DType::e4m3 ||
                  w == DType::e2m1,
              "weights are f32, bf16, f16, e4m3 or e2m1");
  LATHE_CHECK((w == DType::e2m1) == (p.w.mx_scales != nullptr), "e2m1 weights have MXFP4's scales");
  LATHE_CHECK(w != DType::e2m1 || p.w.cols % kMxBlock == 0, "MXFP4 weights are whole blocks");
  LATHE_CHECK(p.w.scales == nullptr || w == DType::e4m3, "only e4m3 weights have scales");
  LATHE_CHECK(p.x.dtype == DType::f32 && p.out.dtype == DType::f32, "activations are f32");
  LATHE_CHECK(p.x.cols == p.w.cols, "x has the weight's columns");
  LATHE_CHECK(p.out.cols == p.w.rows, "out has the weight's rows as columns");
  LATHE_CHECK(p.out.rows == p.x.rows, "out has the rows of x");
}

}  // namespace

void matmul(const OpsContext& ops, std::span<const Product> products) {
  for (const Product& p : products) check(p);
  if (ops.device == Device::ref) return ref_matmul(products);
  LATHE_CHECK(ops.device == Device::cpu, "matmul runs on ref and cpu");
  LATHE_CHECK(ops.precision == MatmulPrecision::f32 || cpu_has_bf16_dot(),
              "bf16 products on a CPU that has them");
  cpu_matmul(ops.execution, *ops.arena, ops.precision, products);
}

}  // namespace lathe
