// Tests float_formats.h on a GPU: every conversion, for all 65536 bf16 patterns and for 2^26 f32
// patterns spread over all 2^32, and the decoding of every code. Each is compared with
//   host  the same header compiled for the host: all bits must be equal, NaN included;
//   CUDA  the toolkit's conversions on the device, in saturating mode: all bits must be equal, but
//         any NaN equals any NaN, because the NaN rules differ (float_formats.h).
// Prints one line per format. Exit code: 0 if all agree, 1 on a mismatch or a CUDA error, 77
// (skipped) without a GPU.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp4.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <vector>

#include "base/float_formats.h"

namespace lathe {
namespace {

constexpr std::uint32_t kBf16Patterns = 1u << 16;
constexpr std::uint32_t kF32Patterns = 1u << 26;
constexpr std::uint32_t kChunk = 1u << 22;  // 12 bytes per pattern and side: 48 MiB each
constexpr int kThreads = 256;
constexpr int kSkipped = 77;
constexpr int kMismatchesShown = 5;

void check(cudaError_t status, const char* what, int line) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, line, what, cudaGetErrorString(status));
  std::exit(1);
}
#define CHECK_CUDA(call) check((call), #call, __LINE__)

// One f32 input converted to every format.
struct Encoded {
  std::uint32_t pow2;
  std::uint16_t bf16;
  std::uint16_t f16;
  std::uint8_t e4m3;
  std::uint8_t e5m2;
  std::uint8_t e2m1;
  std::uint8_t ue8m0;
};
static_assert(sizeof(Encoded) == 12);

// Formats in the order of Decoded::value. The 8-bit and 4-bit ones decode the low byte of a code.
struct DecodeColumn {
  const char* name;
  std::uint32_t codes;
};
constexpr DecodeColumn kDecodeColumns[] = {{"from bf16", 65536}, {"from f16", 65536},
                                           {"from e4m3", 256},   {"from e5m2", 256},
                                           {"from e2m1", 256},   {"from ue8m0", 256}};
constexpr int kDecodeColumnCount = sizeof kDecodeColumns / sizeof kDecodeColumns[0];

// One code decoded as every format, as f32 bits.
struct Decoded {
  std::uint32_t value[kDecodeColumnCount];
};

enum class Space { kBf16, kF32 };

__host__ __device__ std::uint32_t to_bits(float x) { return __builtin_bit_cast(std::uint32_t, x); }
__host__ __device__ float from_bits(std::uint32_t u) { return __builtin_bit_cast(float, u); }
__host__ __device__ bool is_nan(float x) { return (to_bits(x) & 0x7fffffffu) > 0x7f800000u; }

// The i-th f32 pattern of a space. The f32 space has one pattern out of every 64 neighbours, at a
// pseudo-random place among them, so the low mantissa bits vary too.
__host__ __device__ std::uint32_t pattern(Space space, std::uint32_t i) {
  return space == Space::kBf16 ? i << 16 : (i << 6) | ((i * 2654435761u) >> 26);
}

__host__ __device__ Encoded encode(float x) {
  return Encoded{to_bits(pow2_ceil(x)), to_bf16(x).bits, to_f16(x).bits,       to_e4m3(x).bits,
                 to_e5m2(x).bits,       to_e2m1(x).bits, to_ue8m0_ceil(x).bits};
}

__host__ __device__ Decoded decode(std::uint32_t code) {
  const std::uint16_t wide = static_cast<std::uint16_t>(code);
  const std::uint8_t narrow = static_cast<std::uint8_t>(code);
  return Decoded{{to_bits(to_f32(bf16{wide})), to_bits(to_f32(f16{wide})),
                  to_bits(to_f32(e4m3{narrow})), to_bits(to_f32(e5m2{narrow})),
                  to_bits(to_f32(e2m1{narrow})), to_bits(to_f32(ue8m0{narrow}))}};
}

// The toolkit's conversions from f32; in the bf16 space from bf16, if the toolkit has that one.
__device__ Encoded cuda_encode(Space space, std::uint32_t bits) {
  const float x = from_bits(bits);
  const __nv_bfloat16_raw raw = __float2bfloat16_rn(x);
  const __half_raw half = __float2half_rn(x);
  Encoded out;
  // The toolkit has no such function; frexp gives the exponent independently.
  int exponent = 0;
  const float fraction = frexpf(x, &exponent);
  out.pow2 = to_bits(isinf(x) || isnan(x) ? x : ldexpf(1.0f, exponent - (fraction == 0.5f)));
  out.bf16 = raw.x;
  out.f16 = half.x;
  // The toolkit converts the magnitude of a negative value to ue8m0; the header gives 2^-127.
  const float scale = x < 0.0f ? 0.0f : x;
  out.ue8m0 = __nv_cvt_float_to_e8m0(scale, __NV_SATFINITE, cudaRoundPosInf);
  if (space == Space::kBf16) {
    __nv_bfloat16_raw source;
    source.x = static_cast<unsigned short>(bits >> 16);
    out.e4m3 = __nv_cvt_bfloat16raw_to_fp8(source, __NV_SATFINITE, __NV_E4M3);
    out.e5m2 = __nv_cvt_bfloat16raw_to_fp8(source, __NV_SATFINITE, __NV_E5M2);
    out.e2m1 = __nv_cvt_bfloat16raw_to_fp4(source, __NV_E2M1, cudaRoundNearest);
  } else {
    out.e4m3 = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
    out.e5m2 = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2);
    out.e2m1 = __nv_cvt_float_to_fp4(x, __NV_E2M1, cudaRoundNearest);
  }
  return out;
}

__device__ Decoded cuda_decode(std::uint32_t code) {
  const __nv_fp8_storage_t narrow = static_cast<__nv_fp8_storage_t>(code);
  __nv_bfloat16_raw wide_bf16;
  wide_bf16.x = static_cast<unsigned short>(code);
  __half_raw wide_half;
  wide_half.x = static_cast<unsigned short>(code);
  // f16 can represent every fp8 and fp4 value, so the detour is exact.
  const __half_raw from_e4m3 = __nv_cvt_fp8_to_halfraw(narrow, __NV_E4M3);
  const __half_raw from_e5m2 = __nv_cvt_fp8_to_halfraw(narrow, __NV_E5M2);
  const __half_raw from_e2m1 = __nv_cvt_fp4_to_halfraw(narrow & 15u, __NV_E2M1);
  const __nv_bfloat16_raw from_ue8m0 = __nv_cvt_e8m0_to_bf16raw(narrow);
  return Decoded{
      {to_bits(__bfloat162float(__nv_bfloat16(wide_bf16))),
       to_bits(__half2float(__half(wide_half))), to_bits(__half2float(__half(from_e4m3))),
       to_bits(__half2float(__half(from_e5m2))), to_bits(__half2float(__half(from_e2m1))),
       to_bits(__bfloat162float(__nv_bfloat16(from_ue8m0)))}};
}

__global__ void encode_kernel(Space space, std::uint32_t first, std::uint32_t count,
                              Encoded* header /* [count] */, Encoded* cuda /* [count] */) {
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const std::uint32_t bits = pattern(space, first + i);
  header[i] = encode(from_bits(bits));
  cuda[i] = cuda_encode(space, bits);
}

__global__ void decode_kernel(std::uint32_t count, Decoded* header /* [count] */,
                              Decoded* cuda /* [count] */) {
  const std::uint32_t code = blockIdx.x * blockDim.x + threadIdx.x;
  if (code >= count) return;
  header[code] = decode(code);
  cuda[code] = cuda_decode(code);
}

// Comparisons in one direction of one format, and their outcome.
class Tally {
 public:
  explicit Tally(const char* name) : name_(name) {}

  // `nan`: `device` and `cuda` are both NaN, so their bits may differ.
  void compare(std::uint32_t input, std::uint32_t device, std::uint32_t host, std::uint32_t cuda,
               bool nan) {
    ++compared_;
    if (device != host) {
      ++host_mismatches_;
      show(input, device, "host", host);
    }
    if (device == cuda) return;
    if (nan) {
      ++nan_differences_;
      return;
    }
    ++cuda_mismatches_;
    show(input, device, "CUDA", cuda);
  }

  bool report() const {
    std::printf(
        "%-13s %9llu compared, %llu differ from host, %llu differ from CUDA "
        "(and %llu NaN by their bits)\n",
        name_, compared_, host_mismatches_, cuda_mismatches_, nan_differences_);
    return compared_ > 0 && host_mismatches_ == 0 && cuda_mismatches_ == 0;
  }

 private:
  void show(std::uint32_t input, std::uint32_t device, const char* other, std::uint32_t wanted) {
    if (shown_++ >= kMismatchesShown) return;
    std::fprintf(stderr, "%s: input 0x%08x gives 0x%x on the device, 0x%x by %s\n", name_, input,
                 device, wanted, other);
  }

  const char* name_;
  unsigned long long compared_ = 0;
  unsigned long long host_mismatches_ = 0;
  unsigned long long cuda_mismatches_ = 0;
  unsigned long long nan_differences_ = 0;
  int shown_ = 0;
};

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t count) { CHECK_CUDA(cudaMalloc(&data_, count * sizeof(T))); }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return data_; }
  void copy_to(std::vector<T>& host) const {
    CHECK_CUDA(cudaMemcpy(host.data(), data_, host.size() * sizeof(T), cudaMemcpyDeviceToHost));
  }

 private:
  T* data_ = nullptr;
};

bool test_encode() {
  Tally bf16_tally("to_bf16"), f16_tally("to_f16"), e4m3_tally("to_e4m3"), e5m2_tally("to_e5m2"),
      e2m1_tally("to_e2m1"), ue8m0_tally("to_ue8m0_ceil"), pow2_tally("pow2_ceil");
  DeviceArray<Encoded> device_header(kChunk), device_cuda(kChunk);
  for (const Space space : {Space::kBf16, Space::kF32}) {
    const std::uint32_t total = space == Space::kBf16 ? kBf16Patterns : kF32Patterns;
    for (std::uint32_t first = 0; first < total; first += kChunk) {
      const std::uint32_t count = total - first < kChunk ? total - first : kChunk;
      encode_kernel<<<(count + kThreads - 1) / kThreads, kThreads>>>(
          space, first, count, device_header.data(), device_cuda.data());
      CHECK_CUDA(cudaGetLastError());
      std::vector<Encoded> header(count), cuda(count);
      device_header.copy_to(header);
      device_cuda.copy_to(cuda);
      for (std::uint32_t i = 0; i < count; ++i) {
        const std::uint32_t bits = pattern(space, first + i);
        const float x = from_bits(bits);
        const Encoded& d = header[i];
        const Encoded& c = cuda[i];
        const Encoded h = encode(x);
        bf16_tally.compare(bits, d.bf16, h.bf16, c.bf16,
                           is_nan(to_f32(bf16{d.bf16})) && is_nan(to_f32(bf16{c.bf16})));
        f16_tally.compare(bits, d.f16, h.f16, c.f16,
                          is_nan(to_f32(f16{d.f16})) && is_nan(to_f32(f16{c.f16})));
        e4m3_tally.compare(bits, d.e4m3, h.e4m3, c.e4m3,
                           is_nan(to_f32(e4m3{d.e4m3})) && is_nan(to_f32(e4m3{c.e4m3})));
        e5m2_tally.compare(bits, d.e5m2, h.e5m2, c.e5m2,
                           is_nan(to_f32(e5m2{d.e5m2})) && is_nan(to_f32(e5m2{c.e5m2})));
        // These formats have at most one NaN code, so bits must be equal.
        e2m1_tally.compare(bits, d.e2m1, h.e2m1, c.e2m1, false);
        ue8m0_tally.compare(bits, d.ue8m0, h.ue8m0, c.ue8m0, false);
        // pow2_ceil() accepts positive normal values; a NaN stays as it is.
        if ((bits >= 0x00800000u && bits < 0x80000000u) || is_nan(x)) {
          pow2_tally.compare(bits, d.pow2, h.pow2, c.pow2,
                             is_nan(from_bits(d.pow2)) && is_nan(from_bits(c.pow2)));
        }
      }
    }
  }
  bool ok = true;
  for (const Tally* tally : {&bf16_tally, &f16_tally, &e4m3_tally, &e5m2_tally, &e2m1_tally,
                             &ue8m0_tally, &pow2_tally}) {
    ok = tally->report() && ok;
  }
  return ok;
}

bool test_decode() {
  DeviceArray<Decoded> device_header(kBf16Patterns), device_cuda(kBf16Patterns);
  decode_kernel<<<kBf16Patterns / kThreads, kThreads>>>(kBf16Patterns, device_header.data(),
                                                        device_cuda.data());
  CHECK_CUDA(cudaGetLastError());
  std::vector<Decoded> header(kBf16Patterns), cuda(kBf16Patterns);
  device_header.copy_to(header);
  device_cuda.copy_to(cuda);

  bool ok = true;
  for (int column = 0; column < kDecodeColumnCount; ++column) {
    Tally tally(kDecodeColumns[column].name);
    for (std::uint32_t code = 0; code < kDecodeColumns[column].codes; ++code) {
      const std::uint32_t d = header[code].value[column];
      const std::uint32_t h = decode(code).value[column];
      const std::uint32_t c = cuda[code].value[column];
      tally.compare(code, d, h, c, is_nan(from_bits(d)) && is_nan(from_bits(c)));
    }
    ok = tally.report() && ok;
  }
  return ok;
}

int run() {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver ||
      (status == cudaSuccess && devices == 0)) {
    std::printf("no CUDA device\n");
    return kSkipped;
  }
  check(status, "cudaGetDeviceCount", __LINE__);
  const bool encode_ok = test_encode();
  const bool decode_ok = test_decode();
  return encode_ok && decode_ok ? 0 : 1;
}

}  // namespace
}  // namespace lathe

int main() { return lathe::run(); }
