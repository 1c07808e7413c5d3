// Times the operators of models with several streams and compressed entries on a GPU, at the sizes
// of DeepSeek V4 Flash.
//
// compressed_gpu_bench [--repeats N]
//
// For the rows of a decode step and of a prefill: microseconds per launch in a series, the bytes
// that it must move, and the resulting share of 4.2 TB/s.
#include <array>
#include <functional>
#include <numeric>
#include <string>

#include "kernels/cuda/common/gpu_timing.h"
#include "kernels/cuda/sm90/compress/compress.h"
#include "kernels/cuda/sm90/hyper/hyper.h"
#include "kernels/cuda/sm90/indexer/indexer.h"
#include "kernels/cuda/sm90/matmul/plain/narrow_gemm.h"

namespace lathe::cuda {
namespace {

constexpr std::int64_t kHidden = 4096, kRope = 64;
constexpr std::int64_t kMost = 2048;  // rows
constexpr double kBandwidth = 4.2e12;

class Bench {
 public:
  explicit Bench(int repeats) : repeats_(repeats), device_(need(open_device())) {
    std::printf("%s\n%-22s %6s %10s %10s %8s\n", device_.model.c_str(), "kernel", "rows", "us",
                "MB", "share");
    // Large enough for every argument; the values do not affect the time.
    for (float*& at : floats_) {
      arrays_.push_back(need(DeviceArray<float>::make(kMost * 4 * kHidden + 4096)));
      at = arrays_.back().data();
      need(call_result(
          cudaMemsetAsync(at, 0, static_cast<std::size_t>(arrays_.back().size()) * 4, stream_),
          "cudaMemsetAsync"));
    }
  }
  void run() {
    for (const std::int64_t rows : {1, 8, 64, 2048}) {
      hyper(rows);
      compress(rows, rows, "compress decode");
      if (rows >= 64) compress(rows, 1, "compress prefill");
      for (const std::int64_t drafts : {1, 3, 7}) {
        if (rows > 64) continue;
        compress(rows * (1 + drafts), rows, "compress verify", 1 + drafts);
      }
      turn(rows);
    }
  }

 private:
  // bytes: read and written.
  void show(const std::string& name, std::int64_t rows, std::int64_t bytes,
            const std::function<cudaError_t()>& launch) {
    constexpr int kRow = 20;
    std::vector<double> seconds;
    for (int i = 0; i <= repeats_; ++i) {
      const double all = time_once(stream_, [&]() -> Result<void> {
        for (int k = 0; k < kRow; ++k) {
          if (const cudaError_t status = launch(); status != cudaSuccess) {
            return call_result(status, name.c_str());
          }
        }
        return {};
      });
      if (i > 0) seconds.push_back(all / kRow);
    }
    const double s = median(seconds);
    std::printf("%-22s %6lld %10.2f %10.2f %7.1f%%\n", name.c_str(), static_cast<long long>(rows),
                s * 1e6, static_cast<double>(bytes) / 1e6,
                100 * static_cast<double>(bytes) / s / kBandwidth);
  }

  void hyper(std::int64_t rows) {
    const std::int64_t row = 4 * kHidden;
    const NarrowGemm product{.x = floats_[0],
                             .w = floats_[1],
                             .out = floats_[2],
                             .parts = floats_[3],
                             .x_stride = row,
                             .out_stride = 32,
                             .rows = rows,
                             .cols = row,
                             .outputs = 24};
    show("narrow_gemm", rows, 4 * (rows * row + 24 * row),
         [&] { return launch_narrow_slices(product, stream_); });
    show("narrow_sum", rows, 4 * narrow_parts(product),
         [&] { return launch_narrow_sum(product, stream_); });
    HyperMixParams mix{.x = floats_[0],
                       .product = floats_[2],
                       .base = floats_[3],
                       .scale = floats_[3],
                       .out = floats_[4],
                       .mix = floats_[5],
                       .x_stride = row,
                       .product_stride = 32,
                       .out_stride = kHidden,
                       .mix_stride = 32,
                       .rows = rows,
                       .n = kHidden,
                       .columns = 24,
                       .iterations = 20,
                       .eps = 1e-6f,
                       .norm_eps = 1e-6f};
    show("hyper_mix", rows, 4 * rows * (row + kHidden),
         [&] { return launch_hyper_mix(mix, stream_); });
    mix.sum = product;
    show("hyper_mix of slices", rows, 4 * (rows * (row + kHidden) + narrow_parts(product)),
         [&] { return launch_hyper_mix(mix, stream_); });
    const HyperAddParams add{.y = floats_[4],
                             .mix = floats_[5],
                             .x = floats_[0],
                             .y_stride = kHidden,
                             .mix_stride = 32,
                             .x_stride = row,
                             .rows = rows,
                             .n = kHidden};
    show("hyper_add", rows, 4 * rows * (2 * row + kHidden),
         [&] { return launch_hyper_add(add, stream_); });
    if (rows > kHyperSliceRows) return;
    show("hyper_add_slices", rows, 4 * (rows * (2 * row + kHidden) + 24 * row),
         [&] { return launch_hyper_add_slices(add, product, stream_); });
  }

  // Rows of requests in which the last token completes an entry; the last `states` rows leave a
  // state.
  void compress(std::int64_t rows, std::int64_t requests, const std::string& name,
                std::int64_t states = 1) {
    for (const auto& [ratio, halves] : {std::pair<std::int32_t, std::int32_t>{4, 2}, {128, 1}}) {
      const std::int64_t each = rows / requests, first = 128 * 8 - each % 128;
      std::vector<std::int32_t> positions, request, slots, indptr = {0}, lens, before, table;
      for (std::int64_t r = 0; r < requests; ++r) {
        for (std::int64_t p = first; p < first + each; ++p) {
          positions.push_back(static_cast<std::int32_t>(p));
          request.push_back(static_cast<std::int32_t>(r));
          slots.push_back((p + 1) % ratio == 0 ? 0 : -1);
        }
        indptr.push_back(static_cast<std::int32_t>((r + 1) * each));
        lens.push_back(static_cast<std::int32_t>(first + each));
        before.push_back(static_cast<std::int32_t>(r));
        table.push_back(static_cast<std::int32_t>(r));
      }
      const auto there = [&](const std::vector<std::int32_t>& list) {
        lists_.push_back(upload(list, stream_));
        return lists_.back().data();
      };
      constexpr std::int32_t kDim = 512;
      const std::int64_t width = halves * kDim;
      const CompressParams p{.kv = floats_[0],
                             .gate = floats_[1],
                             .kv_stride = width,
                             .gate_stride = width,
                             .position_bias = floats_[2],
                             .norm = floats_[3],
                             .norm_eps = 1e-6f,
                             .table = floats_[3],
                             .rope = kRope,
                             .ratio = ratio,
                             .halves = halves,
                             .dim = kDim,
                             .positions = there(positions),
                             .row_request = there(request),
                             .q_indptr = there(indptr),
                             .kv_lens = there(lens),
                             .out_slots = there(slots),
                             .state_before = there(before),
                             .state_table = there(table),
                             .state_width = 1,
                             .state_tokens = 1 << 20,
                             .state = floats_[4],
                             .state_stride = 3 * width,
                             .state_banks = states,
                             .last_states = states,
                             .rows = rows,
                             .pool = pool_of(CacheLayout(LayoutKind::v4_fp8), 16)};
      const std::int64_t bytes =
          4 * (2 * rows * width + requests * (1 + states) * 3 * width + rows / ratio * kDim);
      show(name + " " + std::to_string(ratio), rows, bytes,
           [&] { return launch_compress(p, stream_); });
    }
  }

  void turn(std::int64_t rows) {
    const HadamardRows p{.x = floats_[0],
                         .out = floats_[1],
                         .x_stride = 64 * 128,
                         .rows = rows,
                         .heads = 64,
                         .dim = 128};
    show("hadamard", rows, 2 * 4 * rows * 64 * 128,
         [&] { return launch_hadamard_rows(p, stream_); });
  }

  EntryPool pool_of(const CacheLayout& layout, std::int64_t pages) const {
    auto* bytes = reinterpret_cast<std::byte*>(floats_[5]);
    return need(entry_pool(PoolView(bytes, layout, 64, pages)));
  }

  int repeats_;
  lathe::cuda::Device device_;
  Stream stream_ = need(Stream::make());
  std::array<float*, 6> floats_{};
  std::vector<DeviceArray<float>> arrays_;
  std::vector<DeviceArray<std::int32_t>> lists_;
};

int run(int repeats, bool) {
  Bench(repeats).run();
  return 0;
}

}  // namespace
}  // namespace lathe::cuda

int main(int argc, char** argv) {
  return lathe::cuda::run_with_options(argc, argv, lathe::cuda::run);
}
