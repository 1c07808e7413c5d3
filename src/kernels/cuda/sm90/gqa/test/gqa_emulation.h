// Runs calls of grouped-query attention as a GPU would, with kernels run thread by thread on the
// CPU (common/emulator.h). It includes device code, so only one file of a program may include it,
// after all others.
#pragma once

#include <bit>
#include <type_traits>
#include <vector>

#include "kernels/cuda/sm90/gqa/gqa_call.h"
#include "kernels/cuda/sm90/gqa/gqa_limits.h"
#include "kernels/cuda/sm90/gqa/gqa_shared.h"
#include "kernels/cuda/sm90/gqa/test/gqa_checks.h"
// Device code comes last: it redefines CUDA's keywords.
#include "kernels/cuda/sm90/gqa/combine/gqa_combine.cuh"
#include "kernels/cuda/sm90/gqa/combine/gqa_join.cuh"
#include "kernels/cuda/sm90/gqa/m128/gqa_m128.cuh"
#include "kernels/cuda/sm90/gqa/mma_fp8/gqa_mma_fp8.cuh"
#include "kernels/cuda/sm90/gqa/schedule/gqa_schedule.cuh"
#include "kernels/cuda/sm90/gqa/swap_ab/gqa_swap_ab.cuh"

namespace lathe::cuda {

template <class N>
CUtensorMap emulated_map(const GqaParams& p, const std::byte* base, std::int64_t token_bytes) {
  CUtensorMap map{};
  const PageMap m{reinterpret_cast<const unsigned char*>(base),
                  p.page_stride,
                  token_bytes,
                  gqa_box_rows(p),
                  N::kElementBytes,
                  N::kBoxBytes,
                  p.page_size.divisor,
                  p.pages,
                  token_bytes};
  std::memcpy(&map, &m, sizeof m);
  return map;
}

template <class N, class Kernel>
void emulate_kernel(const GqaParams& p, Kernel kernel) {
  emulate({static_cast<unsigned>(p.workers), 1, 1}, N::kThreads, kernel, p,
          emulated_map<N>(p, p.keys, p.token_bytes), emulated_map<N>(p, p.values, p.value_bytes));
}
template <int kHeadDim, bool kFp8, int kBlockM, int kValueDim>
void emulate_block_m(const GqaParams& p) {
  if constexpr (kFp8 && gqa_is_mma_fp8(kHeadDim, kValueDim, kBlockM)) {
    return emulate_kernel<GqaMmaFp8<kHeadDim, kBlockM, 1>>(
        p, gqa_mma_fp8_kernel<kHeadDim, kBlockM, 1>);
  }
  emulate_kernel<GqaSwapAb<kHeadDim, kBlockM, kFp8, kValueDim>>(
      p, gqa_swap_ab_kernel<kHeadDim, kBlockM, kFp8, kValueDim>);
}
template <int kHeadDim, int kValueDim, bool kOneRow>
void emulate_m128(const GqaParams& p) {
  if constexpr (gqa_rows_on_m(kHeadDim, 64, false)) {
    if (p.block_m == 64) {
      return emulate_kernel<GqaM128<kHeadDim, kValueDim, kOneRow, 64>>(
          p, gqa_m128_kernel<kHeadDim, kValueDim, kOneRow, 64>);
    }
  }
  emulate_kernel<GqaM128<kHeadDim, kValueDim, kOneRow>>(
      p, gqa_m128_kernel<kHeadDim, kValueDim, kOneRow>);
}
template <int kHeadDim, bool kFp8, int kValueDim = kHeadDim>
void emulate_instance(const GqaParams& p) {
  if constexpr (kHeadDim <= 256 && !kFp8) {
    if (gqa_rows_on_m(kHeadDim, p.block_m, kFp8)) {
      return emulate_m128<kHeadDim, kValueDim, false>(p);
    }
  }
  if (p.block_m == 8) return emulate_block_m<kHeadDim, kFp8, 8, kValueDim>(p);
  if (p.block_m == 16) return emulate_block_m<kHeadDim, kFp8, 16, kValueDim>(p);
  if (p.block_m == 32) return emulate_block_m<kHeadDim, kFp8, 32, kValueDim>(p);
  if constexpr (gqa_swaps_64(kHeadDim, kValueDim, kFp8)) {
    emulate_block_m<kHeadDim, kFp8, 64, kValueDim>(p);
  }
}
template <int kMRows>
void emulate_pairs(const GqaParams& p) {
  emulate_kernel<GqaMmaFp8<kGqaPairDim, kMRows, 2>>(p, gqa_mma_fp8_kernel<kGqaPairDim, kMRows, 2>);
}
template <bool kFp8>
void emulate_gqa(const GqaParams& p, int head_dim) {
  if (p.pairs) {
    return p.block_m == 16   ? emulate_pairs<8>(p)
           : p.block_m == 32 ? emulate_pairs<16>(p)
                             : emulate_pairs<32>(p);
  }
  if (head_dim == 64) return emulate_instance<64, kFp8>(p);
  if (head_dim == 128) return emulate_instance<128, kFp8>(p);
  if (head_dim == kGqaWideKey) return emulate_instance<kGqaWideKey, kFp8, kGqaWideKeyValue>(p);
  if (head_dim == 256) return emulate_instance<256, kFp8>(p);
  emulate_instance<512, kFp8>(p);
}

template <int kKeyDim, int kValueDim>
void emulate_rows(const GqaParams& p) {
  const auto swapped = [&](auto m_rows) {
    constexpr int kMRows = decltype(m_rows)::value;
    emulate_kernel<GqaSwapAb<kKeyDim, kMRows, false, kValueDim, true>>(
        p, gqa_swap_ab_kernel<kKeyDim, kMRows, false, kValueDim, true>);
  };
  if (gqa_rows_on_m(kKeyDim, p.block_m, false)) {
    return emulate_m128<kKeyDim, kValueDim, true>(p);
  }
  if (p.block_m == 8) return swapped(std::integral_constant<int, 8>());
  if (p.block_m == 16) return swapped(std::integral_constant<int, 16>());
  swapped(std::integral_constant<int, 32>());
}

/// Makes the work list and computes its items.
inline void emulate_call(const GqaParams& p, const GqaForm& form, bool fp8) {
  emulate({1, 1, 1}, kGqaScheduleThreads, gqa_schedule_kernel, p);
  if (form.latent) {
    form.value_dim == 256 ? emulate_rows<320, 256>(p) : emulate_rows<160, 128>(p);
  } else if (fp8) {
    emulate_gqa<true>(p, form.key_dim);
  } else {
    emulate_gqa<false>(p, form.key_dim);
  }
}

/// Device memory, filled with NaN.
class EmulatedMemory {
 public:
  explicit EmulatedMemory(std::int64_t bytes)
      : bytes_(static_cast<std::size_t>(bytes) + 256, std::byte{0xff}) {}
  std::byte* at() {
    const auto at = reinterpret_cast<std::uintptr_t>(bytes_.data());
    return bytes_.data() + (256 - at % 256);
  }

 private:
  std::vector<std::byte> bytes_;
};

inline void emulate_alone(const AttendArgs& args, int sms, bool fp8) {
  const GqaForm form = gqa_form(args.problem);
  const GqaShape shape = gqa_shape(args, sms);
  EmulatedMemory memory(shape.bytes());
  const GqaParams p = gqa_params(args, shape, memory.at(), memory.at() + shape.schedule_bytes);
  emulate_call(p, form, fp8);
  if (p.pieces == 1) return;
  const auto chunks = static_cast<unsigned>(p.block_m * form.value_dim / 4);
  const auto items = static_cast<unsigned>(p.pieces > 0 ? p.requests * p.kv_heads : p.workers);
  emulate({items, (chunks + kGqaCombineThreads - 1) / kGqaCombineThreads, 1}, kGqaCombineThreads,
          p.pieces > 0 ? gqa_combine_kernel<GqaPieces> : gqa_combine_kernel<GqaCutItem>, p,
          form.value_dim);
}

/// The same with prefixes.
inline void emulate_shared(const AttendArgs& args, int sms, bool fp8) {
  const GqaForm form = gqa_form(args.problem);
  const GqaSharedShape shape = gqa_shared_shape(args, sms);
  EmulatedMemory memory(shape.bytes());
  const GqaJoin p = gqa_shared_params(args, shape, memory.at(), memory.at() + shape.schedule_bytes);
  emulate_call(p.groups, form, fp8);
  emulate_call(p.requests, form, fp8);
  const auto chunks = static_cast<unsigned>(args.problem.heads * form.value_dim / 4);
  emulate({static_cast<unsigned>(p.rows), (chunks + kGqaJoinThreads - 1) / kGqaJoinThreads, 1},
          kGqaJoinThreads, gqa_join_kernel, p);
}

ref_test::Outputs attend(AttendArgs args, int sms, DType out_dtype, std::int64_t padding) {
  const GqaForm form = gqa_form(args.problem);
  const std::int64_t width = args.problem.heads * std::int64_t{form.value_dim};
  const std::int64_t stride = width + padding;
  const auto elements = static_cast<std::size_t>(args.q.rows * stride);
  std::vector<std::uint16_t> narrow(elements, 0xffff);
  std::vector<float> wide(elements, NAN);
  std::vector<float> lse(static_cast<std::size_t>(args.q.rows * args.problem.heads), NAN);
  args.out = {out_dtype == DType::bf16 ? reinterpret_cast<std::byte*>(narrow.data())
                                       : reinterpret_cast<std::byte*>(wide.data()),
              out_dtype, args.q.rows, width, stride};
  args.lse = {reinterpret_cast<std::byte*>(lse.data()), DType::f32, args.q.rows, args.problem.heads,
              args.problem.heads};
  set_bounds(args);
  const auto ok = check_gqa_call(args);
  EXPECT_TRUE(ok.ok()) << (ok ? "" : ok.error().message());
  const bool fp8 = args.main.pool->layout.kind() == LayoutKind::gqa_fp8;
  args.prefixes.empty() ? emulate_alone(args, sms, fp8) : emulate_shared(args, sms, fp8);
  ref_test::Outputs got{{args.q.rows, width, 0}, {args.q.rows, args.problem.heads, 0}};
  for (std::int64_t i = 0; i < args.q.rows * stride; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const float v =
        out_dtype == DType::bf16 ? std::bit_cast<float>(std::uint32_t{narrow[at]} << 16) : wide[at];
    if (i % stride < width) {
      got.out.data[static_cast<std::size_t>(i / stride * width + i % stride)] = v;
    } else {
      EXPECT_TRUE(std::isnan(v)) << "element " << i % stride << " of row " << i / stride;
    }
  }
  for (std::size_t i = 0; i < lse.size(); ++i) got.lse.data[i] = lse[i];
  return got;
}

}  // namespace lathe::cuda
