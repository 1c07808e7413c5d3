// Hopper's barriers, copies and small conversions as functions, for pipelined kernels. With an
// ordinary compiler emulator_hopper.h implements them.
#pragma once

#include "kernels/cuda/common/dialect.cuh"

#ifdef __CUDACC__

#define LATHE_DYNAMIC_SHARED(name) extern __shared__ __align__(1024) unsigned char name[]

namespace lathe::cuda {

__device__ inline std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

// A barrier in shared memory completes a phase when `count` threads have arrived and all announced
// bytes are there. Phases alternate parity 0 and 1, beginning with 0.
__device__ inline void barrier_init(std::uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count));
}
__device__ inline void barrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Arrives as `count` threads.
__device__ inline void barrier_arrive(std::uint32_t barrier, int count) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(count)
               : "memory");
}
/// Arrives as `count` threads if `arrives`, without a branch.
__device__ inline void barrier_arrive_if(bool arrives, std::uint32_t barrier, int count) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n@p mbarrier.arrive.shared::cta.b64 _, [%1], "
      "%2;\n}" ::"r"(static_cast<std::uint32_t>(arrives)),
      "r"(barrier), "r"(count)
      : "memory");
}
/// Arrives, and announces the bytes of bulk copies that the phase must wait for.
__device__ inline void barrier_expect(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
/// Waits until the phase of this parity is complete.
__device__ inline void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nwait:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra ready;\nbra wait;\nready:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
/// Arrives when this thread's copy_async() copies are done. Counts as one of the threads that the
/// barrier waits for.
__device__ inline void barrier_arrive_after_copies(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void barriers_visible() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Orders this thread's earlier ordinary accesses to shared memory before later ones by wgmma and
/// bulk copies.
__device__ inline void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// For clusters: every block's shared memory has the same layout.

/// Waits for all threads of the cluster. After it, all may use barriers that were initialized
/// before (barriers_visible()), and no block has exited.
__device__ inline void sync_cluster() {
  asm volatile(
      "barrier.cluster.arrive.release;\n"
      "barrier.cluster.wait.acquire;" ::
          : "memory");
}
/// Arrives at this barrier of block `block` of the cluster, to say that this thread's reads are
/// done. Its writes are not made visible there; that would need a fence of some 600 cycles.
__device__ inline void barrier_arrive_of(std::uint32_t barrier, std::uint32_t block) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
      "r"(block)
      : "memory");
}

// Named barriers, of a multiple of 32 threads.
__device__ inline void group_sync(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
/// Arrives without waiting.
__device__ inline void group_arrive(int number, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/// Waits at a named barrier; returns whether any thread passed true.
__device__ inline bool group_any(int number, int threads, bool mine) {
  int any;
  asm volatile(
      "{\n.reg .pred mine, any;\nsetp.ne.b32 mine, %3, 0;\n"
      "barrier.cta.red.or.pred any, %1, %2, mine;\nselp.b32 %0, 1, 0, any;\n}"
      : "=r"(any)
      : "r"(number), "r"(threads), "r"(static_cast<int>(mine))
      : "memory");
  return any != 0;
}

/// Copies 16 bytes from global to shared memory; writes zeros where `valid` is false.
__device__ inline void copy_async(std::uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}
/// Copies 16 bytes of a row, with L2 prefetching 256 bytes.
__device__ inline void copy_async_256(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(to), "l"(from)
               : "memory");
}

/// True for one lane of a full warp. The compiler knows only of this form that it selects a single
/// lane; for any other it issues TMA copies in a loop over lanes.
__device__ inline bool elected() {
  std::uint32_t mine;
  asm volatile("{ .reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p; }"
               : "=r"(mine));
  return mine != 0;
}
/// An L2 policy for copies: evict first if the bytes are read `once`, else the normal one.
__device__ inline std::uint64_t cache_policy(bool once) {
  std::uint64_t first, normal;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(normal));
  return once ? first : normal;
}
/// Bulk copy of `bytes` (a multiple of 16) into shared memory. Counts its bytes at the barrier.
__device__ inline void copy_row(std::uint32_t to, const void* from, std::uint32_t bytes,
                                std::uint32_t barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}
/// Bulk copy of `bytes` (a multiple of 16) from shared to global memory. wait_copies_out() waits
/// for a thread's copies.
__device__ inline void copy_out(unsigned long long to, std::uint32_t from, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}
/// Copies a box from shared memory to a three-dimensional tensor map, except what is beyond the
/// map's bounds.
__device__ inline void copy_box_out(const void* map, std::int32_t x, std::int32_t y, std::int32_t z,
                                    std::uint32_t from, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group.L2::cache_hint "
      "[%0, {%1, %2, %3}], [%4], %5;" ::"l"(map),
      "r"(x), "r"(y), "r"(z), "r"(from), "l"(policy)
      : "memory");
}
/// Waits until this thread's copies have read shared memory, which may then be overwritten.
__device__ inline void wait_copies_out() {
  asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
}
/// Copies 4 bytes, as part of the thread's next copy group.
__device__ inline void copy_async_4(std::uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
/// Commits the thread's copies since the last call as a group.
__device__ inline void end_copy_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most kLater groups of this thread are incomplete. The data is visible to this
/// thread alone.
template <int kLater>
__device__ inline void wait_copy_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLater) : "memory");
}
/// Copies 8 bytes, as part of the thread's next copy group.
__device__ inline void copy_async_8(std::uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}
/// Copies a box of a three-dimensional tensor map to shared memory. Counts its bytes at the
/// barrier.
__device__ inline void copy_box(std::uint32_t to, const void* map, std::int32_t x, std::int32_t y,
                                std::int32_t z, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier)
      : "memory");
}

/// The same with an L2 policy.
__device__ inline void copy_box(std::uint32_t to, const void* map, std::int32_t x, std::int32_t y,
                                std::int32_t z, std::uint32_t barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "l"(policy)
      : "memory");
}

/// Copies a box of a map with a turn_stride (row_map.h), from row 8 * eight of both arrays.
__device__ inline void copy_turns_box(std::uint32_t to, const void* map, std::int32_t x,
                                      std::int32_t eight, std::int32_t page, std::uint32_t barrier,
                                      std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %3, %4, %5}], [%6], %7;" ::"r"(to),
      "l"(map), "r"(x), "r"(0), "r"(eight), "r"(page), "r"(barrier), "l"(policy)
      : "memory");
}

// Volatile, because ptxas keeps the order of such accesses.
__device__ inline void store_shared(std::uint32_t to, std::uint32_t a, std::uint32_t b,
                                    std::uint32_t c, std::uint32_t d) {
  asm volatile("st.volatile.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}
__device__ inline float load_float(std::uint32_t at) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
  return v;
}
__device__ inline void store_float(std::uint32_t at, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(v) : "memory");
}
__device__ inline void store_float2(std::uint32_t at, float a, float b) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(a), "f"(b) : "memory");
}
__device__ inline std::uint32_t load_shared_u32(std::uint32_t from) {
  std::uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
  return v;
}
__device__ inline std::uint64_t load_shared_u64(std::uint32_t from) {
  std::uint64_t v;
  asm volatile("ld.shared.u64 %0, [%1];" : "=l"(v) : "r"(from) : "memory");
  return v;
}
__device__ inline uint4 load_shared_u128(std::uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}
__device__ inline std::uint32_t load_shared_u8(std::uint32_t from) {
  std::uint32_t v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
  return v;
}
__device__ inline std::uint32_t load_shared_u16(std::uint32_t from) {
  std::uint32_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
  return v;
}
__device__ inline void store_shared_u16(std::uint32_t to, std::uint32_t v) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(static_cast<std::uint16_t>(v)) : "memory");
}
__device__ inline void store_shared_u8(std::uint32_t to, std::uint32_t v) {
  asm volatile("st.shared.u8 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}
__device__ inline void store_shared_u32(std::uint32_t to, std::uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}
__device__ inline void store_shared_u64(std::uint32_t to, std::uint64_t v) {
  asm volatile("st.shared.u64 [%0], %1;" ::"r"(to), "l"(v) : "memory");
}
__device__ inline float2 load_float2(std::uint32_t from) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(from) : "memory");
  return v;
}
__device__ inline float4 load_floats(std::uint32_t from) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(from)
               : "memory");
  return v;
}
/// Stores four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l
/// / 8.
__device__ inline void store_matrices(std::uint32_t to, std::uint32_t a, std::uint32_t b,
                                      std::uint32_t c, std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}

/// Loads four 8 x 8 matrices of 16-bit elements. Lane l gives the address of row l % 8 of matrix l
/// / 8, and gets columns 2 (l % 4) and + 1 of row l / 4 of each matrix.
__device__ inline void load_matrices(std::uint32_t from, std::uint32_t (&v)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(from)
               : "memory");
}

/// Loads four 8 x 8 matrices of 16-bit elements, transposed. Lane l gives the address of row l % 8
/// of matrix l / 8, and gets rows 2 (l % 4) and + 1 of column l / 4 of each matrix.
__device__ inline void load_matrices_trans(std::uint32_t from, std::uint32_t (&v)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(from)
               : "memory");
}

/// Stores the transposes of two or four 8 x 8 matrices; lane l gives the address of column l % 8 of
/// matrix l / 8.
__device__ inline void store_matrices_trans(std::uint32_t to, std::uint32_t a) {
  asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(to), "r"(a)
               : "memory");
}
__device__ inline void store_matrices_trans(std::uint32_t to, std::uint32_t a, std::uint32_t b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(a),
               "r"(b)
               : "memory");
}
__device__ inline void store_matrices_trans(std::uint32_t to, std::uint32_t a, std::uint32_t b,
                                            std::uint32_t c, std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

template <int kRegisters>
__device__ inline void raise_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void lower_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}

__device__ inline float log2_fast(float x) { return __log2f(x); }
/// Four e4m3 to f16, exactly; NaN stays NaN.
__device__ inline void widen_e4m3_f16(std::uint32_t bytes, std::uint32_t& low,
                                      std::uint32_t& high) {
  asm("{ .reg .b16 l, h;\nmov.b32 {l, h}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, l;\ncvt.rn.f16x2.e4m3x2 %1, h; }"
      : "=r"(low), "=r"(high)
      : "r"(bytes));
}
__device__ inline std::uint32_t mul_f16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t out;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}
/// Two f32 to f16; too large values become 65504.
__device__ inline std::uint32_t pack_f16(float low, float high) {
  std::uint32_t out;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
__device__ inline float2 unpack_f16(std::uint32_t v) {
  float2 out;
  asm("{ .reg .f16 l, h;\nmov.b32 {l, h}, %2;\ncvt.f32.f16 %0, l;\ncvt.f32.f16 %1, h; }"
      : "=f"(out.x), "=f"(out.y)
      : "r"(v));
  return out;
}
__device__ inline std::uint32_t warp_or(std::uint32_t v) {
  return __reduce_or_sync(0xffffffffu, v);
}
__device__ inline int count_bits(std::uint32_t v) { return __popc(v); }
}  // namespace lathe::cuda

#else
#include "kernels/cuda/common/emulator_hopper.h"
#endif
