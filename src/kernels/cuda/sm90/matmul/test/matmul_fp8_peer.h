// A GEMM of e4m3 by e4m3 as matmul_gpu_bench gives it to a peer (bench_peer.h).
#pragma once

#include <cstdint>

extern "C" {

/// out = x w^T. A product's scale is that of 128 elements of a row of x times that of 128 x 128
/// elements of w.
struct LatheFp8MatmulPeerCall {
  const char* kind;  // "fp8_matmul"
  std::int32_t m, n, k;
  const void* x;                // e4m3 [m, k]
  const float* x_scales;        // [ceil(k / 128), x_scale_stride], by row of x
  std::int64_t x_scale_stride;  // a multiple of 4, >= m
  const void* w;                // e4m3 [n, k]
  const float* w_scales;        // [ceil(n / 128), ceil(k / 128)]
  void* out;                    // bf16 [m, n]
};

}  // extern "C"
