// Compiled alone: it includes kernels. The tests of all GEMMs share its instances.
#include "kernels/cuda/sm90/matmul/test/matmul_emulation.h"

// Device code is included last: it redefines CUDA's keywords.
#include "kernels/cuda/sm90/matmul/deep/deep_packed.cuh"
#include "kernels/cuda/sm90/matmul/matmul.cuh"
#include "kernels/cuda/sm90/matmul/matmul_bf16.cuh"
#include "kernels/cuda/sm90/matmul/matmul_codes.cuh"
#include "kernels/cuda/sm90/matmul/matmul_e4m3.cuh"
#include "kernels/cuda/sm90/matmul/matmul_packed.cuh"

namespace lathe::cuda::matmul_test {
namespace {

CUtensorMap map_of(const RowBoxes& b) {
  CUtensorMap map{};
  const PageMap m{static_cast<const unsigned char*>(b.base),
                  b.page_stride,
                  b.row_stride,
                  b.box_rows,
                  b.element_bytes,
                  b.box_bytes,
                  b.rows,
                  b.pages,
                  b.row_bytes,
                  b.turn_stride};
  std::memcpy(&map, &m, sizeof m);
  return map;
}

template <class Format, int kTokens, MatmulCluster kCluster, bool kGroups = false>
void emulate_tile(const MatmulLaunch& l) {
  using T = MatmulTile<Format, kTokens, kCluster, kGroups>;
  MatmulMaps maps{};
  maps.x = map_of(l.x);
  if (l.params.tail_tokens > 0) maps.x_tail = map_of(l.x_tail);
  for (int i = 0; i < l.params.weight_count; ++i) {
    maps.weights[i] = map_of(l.weights[i]);
    maps.out[i] = map_of(l.out[i]);
  }
  if (l.params.dense.items > 0) {
    maps.x_dense = map_of(l.x_dense);
    maps.weights[kDenseWeight] = map_of(l.weights[kDenseWeight]);
  }
  const int blocks = T::kPair ? T::kPairBlocks : l.params.split;
  emulate_clusters(blocks, {static_cast<unsigned>(l.instance.clusters * blocks), 1, 1}, T::kThreads,
                   matmul_kernel<T>, l.params, maps);
}
template <class Row, MatmulCluster kCluster>
void emulate_deep(const MatmulLaunch& l) {
  using Format = MatmulPackedDeep<Row>;
  if constexpr (kCluster == MatmulCluster::wide) {
    if (l.instance.tokens == 8) return emulate_tile<Format, 8, kCluster>(l);
  }
  if (l.instance.tokens == 16) return emulate_tile<Format, 16, kCluster>(l);
  if (l.instance.tokens == 32) return emulate_tile<Format, 32, kCluster>(l);
  emulate_tile<Format, 64, kCluster>(l);
}
template <int kRows, int kWarpgroups, MatmulCluster kCluster = MatmulCluster::pair>
void emulate_shared(const MatmulLaunch& l) {
  emulate_tile<MatmulE4m3Shared<kRows, kWarpgroups>, 64, kCluster>(l);
}
void emulate_tokens(const MatmulLaunch& l) {
  constexpr auto kTokens = MatmulCluster::tokens;
  if (l.params.tile_rows == 32) return emulate_shared<32, 1, kTokens>(l);
  if (l.params.tile_rows == 64) return emulate_shared<64, 1, kTokens>(l);
  emulate_shared<64, 2, kTokens>(l);
}
void emulate_shared(const MatmulLaunch& l) {
  if (l.params.tile_rows == 32) return emulate_shared<32, 1>(l);
  if (l.params.tile_rows == 64) return emulate_shared<64, 1>(l);
  if (l.params.tile_rows == 128) return emulate_shared<64, 2>(l);
  if (l.params.tile_rows == 192) return emulate_shared<64, 3>(l);
  emulate_shared<64, 4>(l);
}
template <class Format>
void emulate_quad(const MatmulLaunch& l) {
  if (l.instance.spread) return emulate_tile<Format, 128, MatmulCluster::quad_spread>(l);
  emulate_tile<Format, 128, MatmulCluster::quad>(l);
}
template <class Format>
void emulate_format(const MatmulLaunch& l) {
  if constexpr (requires { typename Format::Row; }) {
    using Row = typename Format::Row;
    if (l.instance.warpgroups == 4) return emulate_deep<Row, MatmulCluster::wide>(l);
    if (l.instance.warpgroups == 1) return emulate_deep<Row, MatmulCluster::narrow>(l);
  }
  if constexpr (std::is_same_v<Format, MatmulE4m3>) {
    if (l.instance.warpgroups == 1) return emulate_tile<Format, 64, MatmulCluster::narrow>(l);
  }
  constexpr auto kParts = MatmulCluster::parts, kPair = MatmulCluster::pair;
  constexpr auto kSpread = MatmulCluster::spread;
  if (l.instance.pair) {
    if constexpr (std::is_same_v<Format, MatmulBf16>) {
      if (l.instance.quad) return emulate_quad<Format>(l);
      if (l.instance.spread) {
        if (l.instance.tokens == 192) return emulate_tile<Format, 192, kSpread>(l);
        return emulate_tile<Format, 128, kSpread>(l);
      }
      if (l.instance.tall) return emulate_tile<Format, 256, MatmulCluster::tall>(l);
      if (l.instance.tokens == 256) return emulate_tile<Format, 256, kPair>(l);
    }
    if constexpr (std::is_same_v<Format, MatmulE4m3>) {
      if (has_tokens_on_m(l.params)) {
        if (l.instance.quad) return emulate_quad<MatmulE4m3Many>(l);
        if (l.instance.by_tokens) return emulate_tokens(l);
        if (l.instance.tokens == 64) return emulate_shared(l);
        if (l.instance.spread) {
          if (l.instance.tokens == 256) return emulate_tile<MatmulE4m3Many, 256, kSpread>(l);
          return emulate_tile<MatmulE4m3Many, 128, kSpread>(l);
        }
        if (l.instance.tokens == 256) return emulate_tile<MatmulE4m3Many, 256, kPair>(l);
        return emulate_tile<MatmulE4m3Many, 128, kPair>(l);
      }
    }
    return emulate_tile<Format, 128, kPair>(l);
  }
  if (l.instance.tokens == 8) return emulate_tile<Format, 8, kParts>(l);
  if (l.instance.tokens == 16) return emulate_tile<Format, 16, kParts>(l);
  if (l.instance.tokens == 32) return emulate_tile<Format, 32, kParts>(l);
  if (l.instance.tokens == 64) return emulate_tile<Format, 64, kParts>(l);
  emulate_tile<Format, 128, kParts>(l);
}
template <class Format>
void emulate_groups(const MatmulLaunch& l) {
  constexpr auto kParts = MatmulCluster::parts, kPair = MatmulCluster::pair;
  if (l.instance.tokens == 8) return emulate_tile<Format, 8, kParts, true>(l);
  if (l.instance.tokens == 32) return emulate_tile<Format, 32, kParts, true>(l);
  if (!l.instance.pair) return emulate_tile<Format, 128, kParts, true>(l);
  if constexpr (std::is_same_v<Format, MatmulE4m3>) {
    if (has_tokens_on_m(l.params)) {
      if (l.instance.tokens == 256) return emulate_tile<MatmulE4m3Many, 256, kPair, true>(l);
      return emulate_tile<MatmulE4m3Many, 128, kPair, true>(l);
    }
  }
  if constexpr (std::is_same_v<Format, MatmulBf16>) {
    if (l.instance.tokens == 256) return emulate_tile<Format, 256, kPair, true>(l);
  }
  emulate_tile<Format, 128, kPair, true>(l);
}
// Calls run<Format>() with the kernel's format.
template <class Run>
void with_format(const WeightView& w, const MatmulLaunch& l, const Run& run) {
  if (l.params.x_scales != nullptr) return run.template operator()<MatmulE4m3>();
  if (w.dtype == DType::bf16) return run.template operator()<MatmulBf16>();
  if (w.dtype == DType::e4m3) return run.template operator()<MatmulE4m3Weights>();
  if (is_mxfp4(w)) return run.template operator()<MatmulMxfp4Weights>();
  if (w.dtype == DType::e2m1) return run.template operator()<MatmulNvfp4Weights>();
  if (w.groups.dtype == DType::f16) return run.template operator()<MatmulU4HalfWeights>();
  if (w.groups.zeros != nullptr) return run.template operator()<MatmulU4ZeroWeights>();
  run.template operator()<MatmulU4Weights>();
}

}  // namespace

void emulate_matmul(std::span<const MatmulCall> calls, const MatmulTiling& tiling, int sms) {
  const MatmulLaunch l = make_launch(calls, tiling, sms);
  with_format(calls[0].w, l, [&]<class Format>() { emulate_format<Format>(l); });
}

void emulate_matmul(const GroupedMatmulCall& call, int tokens, int sms) {
  const MatmulLaunch l = make_launch(call, tokens, sms);
  with_format(call.w, l, [&]<class Format>() { emulate_groups<Format>(l); });
}

}  // namespace lathe::cuda::matmul_test
