#include "tools/bench/kernels/bench_cuda.h"

#ifdef LATHE_HAS_CUDA
#include <fmt/format.h>
#include <unistd.h>

#include "base/float_formats.h"
#include "base/print.h"
#include "kernels/cuda/common/gpu_timing.h"
#include "kernels/cuda/sm90/codec/codec_speed.h"
#include "kernels/cuda/sm90/latent/latent_attend.h"
#include "kernels/cuda/sm90/latent/latent_limits.h"
#include "tools/bench/kernels/bench_latent_scene.h"
#include "tools/bench/median.h"
#endif

namespace lathe {

#ifdef LATHE_HAS_CUDA

namespace {

using cuda::DeviceArray;
using cuda::need;

template <class T>
DeviceArray<T> upload(const cuda::Stream& stream, std::span<const T> host) {
  auto array = need(DeviceArray<T>::make(std::max<std::int64_t>(std::ssize(host), 1)));
  need(cuda::copy_to_device(host, array.data(), stream));
  need(stream.wait());
  return array;
}

double copy_gbps(const cuda::Stream& stream, int repeats) {
  constexpr std::int64_t kBytes = std::int64_t{2} << 30;
  cuda::AgainstCopy copy(stream, kBytes);
  const auto nothing = [] { return Result<void>(); };
  return kBytes / copy.measure(kBytes, repeats, nothing).copy_seconds / 1e9;
}

std::vector<LatentBenchCase> cases_of(LayoutKind layout, bool quick) {
  constexpr auto kDense = ProblemKind::dense_latent;
  constexpr auto kSparse = ProblemKind::sparse_latent;
  constexpr auto kV4 = ProblemKind::window_compressed;
  if (layout == LayoutKind::v4_fp8) {
    std::vector<LatentBenchCase> cases = {{"v4_decode", kV4, 128, 1, 64, 8192, 640}};
    if (!quick) cases.push_back({"v4_decode", kV4, 8, 1, 64, 8192, 640});
    return cases;
  }
  std::vector<LatentBenchCase> cases = {{"sparse_decode", kSparse, 128, 1, 128, 32768, 2048}};
  if (quick) return cases;
  for (const std::int64_t heads : {128, 16}) {
    cases.push_back({"dense_decode", kDense, 128, 1, heads, 4096, 0});
    cases.push_back({"dense_decode", kDense, 8, 1, heads, 32768, 0});
  }
  cases.push_back({"dense_decode", kDense, 1, 1, 128, 8192, 0});
  cases.push_back({"sparse_decode", kSparse, 8, 1, 128, 32768, 2048});
  cases.push_back({"sparse_decode", kSparse, 128, 1, 16, 32768, 2048});
  cases.push_back({"dense_extend", kDense, 1, 1024, 128, 8192, 0});
  cases.push_back({"sparse_extend", kSparse, 1, 1024, 128, 32768, 2048});
  return cases;
}

// Median seconds of a call after its schedule has been made.
double time_case(const cuda::Stream& stream, const LatentBenchSetup& setup,
                 const std::byte* pool_bytes, int repeats) {
  AttendArgs args = setup.args;
  const auto q_bits = [&] {
    std::vector<bf16> bits(setup.q.size());
    for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = to_bf16(setup.q[i]);
    return upload(stream, std::span<const bf16>(bits));
  }();
  const auto out = need(DeviceArray<bf16>::make(std::ssize(setup.out)));
  const auto lse = need(DeviceArray<float>::make(args.q.rows * args.problem.heads));
  const auto indptr = upload(stream, args.q_indptr);
  const auto lens = upload(stream, args.kv_lens);
  const auto table = upload(stream, args.main.page_table);
  const auto list = upload(stream, args.main.indices);
  args.q.data = reinterpret_cast<const std::byte*>(q_bits.data());
  args.out.data = reinterpret_cast<std::byte*>(out.data());
  args.q.dtype = args.out.dtype = DType::bf16;
  args.lse = {reinterpret_cast<std::byte*>(lse.data()), DType::f32, args.q.rows, args.problem.heads,
              args.problem.heads};
  args.q_indptr = {indptr.data(), args.q_indptr.size()};
  args.kv_lens = {lens.data(), args.kv_lens.size()};
  args.main.page_table = {table.data(), args.main.page_table.size()};
  args.main.indices = {list.data(), args.main.indices.size()};
  args.main.pool->data = pool_bytes;
  Scratch scratch(cuda::kDeviceMemory);
  args.execution.scratch = &scratch;
  args.execution.stream = stream.get();
  const cuda::LatentCall call = need(cuda::schedule_latent(args));
  std::vector<double> seconds;
  for (int i = 0; i < repeats + 3; ++i) {
    const double once = cuda::time_once(stream, [&] {
      return cuda::attend_latent(args, {}, call.schedule, call.workspace, stream);
    });
    if (i >= 3) seconds.push_back(once);
  }
  return median(seconds);
}

}  // namespace

Result<GpuInfo> open_gpu() {
  const auto device = cuda::open_device();
  if (!device) return device.error();
  return GpuInfo{device->model, device->sms};
}

std::vector<LatentBenchRow> bench_latent_on_gpu(const GpuInfo& gpu, int repeats, bool quick) {
  const auto stream = need(cuda::Stream::make());
  const double peak = 790e3 * gpu.processors / 132;
  const double read = copy_gbps(stream, repeats);
  std::vector<LatentBenchRow> rows;
  for (const LayoutKind kind : enum_values<LayoutKind>()) {
    if (!cuda::kLatentLayouts.contains(kind)) continue;
    const LatentBenchCache cache(CacheLayout(kind), quick ? 1 << 18 : 1 << 20);
    const auto pool = upload(stream, std::span<const std::byte>(cache.bytes));
    for (const LatentBenchCase& c : cases_of(kind, quick)) {
      const LatentBenchSetup setup(c, cache);
      rows.push_back(latent_bench_row(c, setup.args.problem, cache.layout,
                                      time_case(stream, setup, pool.data(), repeats), peak, read));
      rows.back().threads = gpu.processors;
      if (isatty(2) != 0) print_err(fmt::format("\r{} measured", rows.size()));
    }
  }
  if (isatty(2) != 0) print_err(fmt::format("\r{:20}\r", ""));
  return rows;
}

std::vector<CodecBenchRow> bench_codec_on_gpu(std::int64_t bytes, int repeats) {
  std::vector<CodecBenchRow> rows;
  for (const auto& r : cuda::measure_codec_speed({bytes, repeats, ""}).rows) {
    rows.push_back({r.layout, r.operation, r.gb_per_s, r.copy_gb_per_s,
                    r.gb_per_s / r.copy_gb_per_s, r.tokens});
  }
  return rows;
}

#else

Result<GpuInfo> open_gpu() {
  return Error{ErrorCode::unsupported, "--device", "cpu, or a build that found a CUDA toolkit",
               "cuda", "put nvcc on PATH and configure again"};
}
std::vector<LatentBenchRow> bench_latent_on_gpu(const GpuInfo&, int, bool) { return {}; }
std::vector<CodecBenchRow> bench_codec_on_gpu(std::int64_t, int) { return {}; }

#endif

}  // namespace lathe
