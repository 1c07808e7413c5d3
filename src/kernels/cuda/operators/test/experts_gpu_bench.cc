// Times expert layers on a GPU.
//
// experts_gpu_bench [--filter TEXT] [--seed N] [--repeats N] [--fp8]
//
// --fp8: e4m3 weights by e4m3 tokens, else by bf16 ones.
//
// Medians of a captured graph of layers, each with different weights so that none are in L2, from
// random rows and a random router. Also prints the share of 4.2 TB/s for reading the chosen
// experts' weights or of 795 TFLOP/s, whichever limit is slower.
#include "kernels/cuda/operators/expert_layer.h"

#include <cmath>
#include <random>

#include "base/rows.h"
#include "kernels/cuda/common/gpu_timing.h"
#include "kernels/cuda/sm90/matmul/pack/packed_weights.h"
#include "kernels/cuda/sm90/moe/moe.h"

namespace lathe::cuda {
namespace {

struct Shape {
  const char* name;
  DType dtype;
  std::int64_t n, ffn;
  std::int32_t experts, top_k;
  bool turns;
  int layers;
  std::int32_t size = 0;  // of groups: packed weights
};
constexpr Shape kShapes[] = {
    {"qwen3-30b-a3b", DType::bf16, 2048, 768, 128, 8, false, 2},
    {"v3-16b", DType::bf16, 2048, 1408, 64, 6, false, 2},
    {"v3", DType::e4m3, 7168, 2048, 256, 8, false, 1},
    {"v3-tp8", DType::e4m3, 7168, 256, 256, 8, false, 2},
    {"gpt-oss-20b", DType::e2m1, 2880, 2880, 32, 4, true, 3, kMxBlock},
    {"gpt-oss-120b", DType::e2m1, 2880, 2880, 128, 4, true, 2, kMxBlock},
    {"v4-flash", DType::e2m1, 4096, 2048, 256, 6, false, 1, kMxBlock},
    {"v3-bf16", DType::bf16, 7168, 2048, 256, 8, false, 1},
    {"v3-u4", DType::u4, 7168, 2048, 256, 8, false, 1, 128},
    {"v3-u4-32", DType::u4, 7168, 2048, 256, 8, false, 1, 32},
    {"v3-nvfp4", DType::e2m1, 7168, 2048, 256, 8, false, 1, 16},
};

struct Options {
  std::string filter;
  unsigned seed = std::random_device()();
  int repeats = 9;
  MatmulPrecision precision = MatmulPrecision::bf16;
};

class Bench {
 public:
  explicit Bench(const Options& options)
      : o_(options), random_(options.seed), device_(need(open_device())) {
    std::printf("%s, seed %u\n", device_.model.c_str(), o_.seed);
    noise_.resize(1 << 20);
    std::normal_distribution<float> normal(0, 0.05f);
    for (bf16& v : noise_) v = to_bf16(normal(random_));
    // All bits are codes, except e4m3's NaN.
    codes_.resize(1 << 21);
    for (std::byte& v : codes_) v = std::byte(random_() % 0x7f | random_() % 2 << 7);
  }
  void run() {
    std::printf("%-14s %6s %8s %10s %8s\n", "shape", "rows", "experts", "us", "share");
    for (const Shape& s : kShapes) {
      if (std::string_view(s.name).find(o_.filter) != std::string_view::npos) run_shape(s);
    }
  }

 private:
  std::byte* fill(std::int64_t bytes, const std::byte* from, std::int64_t block) {
    kept_.push_back(need(DeviceArray<std::byte>::make(bytes)));
    std::byte* const to = kept_.back().data();
    for (std::int64_t at = 0; at < bytes; at += block) {
      need(copy_to_device(std::span(from, static_cast<std::size_t>(std::min(block, bytes - at))),
                          to + at, stream_));
    }
    return to;
  }
  std::byte* noise(DType dtype, std::int64_t elements) {
    if (dtype != DType::bf16) {
      return fill(bytes_of(dtype, elements), codes_.data(), std::ssize(codes_));
    }
    return fill(2 * elements, reinterpret_cast<const std::byte*>(noise_.data()),
                2 * std::ssize(noise_));
  }
  template <class T>
  T* constant_of(std::int64_t count, T value) {
    const std::vector<T> host(static_cast<std::size_t>(count), value);
    const std::span bytes = std::as_bytes(std::span(host));
    return reinterpret_cast<T*>(fill(std::ssize(bytes), bytes.data(), std::ssize(bytes)));
  }
  WeightStack stack(const Shape& s, std::int64_t rows, std::int64_t cols) {
    WeightStack w = WeightStack::of(s.experts, s.dtype, rows, cols);
    const std::byte* data = noise(s.dtype, s.experts * rows * cols);
    const std::int64_t blocks = (rows + 127) / 128 * ((cols + 127) / 128);
    const float* scales = nullptr;
    if (s.dtype == DType::e4m3) scales = constant_of(s.experts * blocks, 1e-3f);
    if (s.size > 0) return packed_stack(s, w, data);
    for (std::int32_t e = 0; e < s.experts; ++e) {
      w.set(e, {data + e * bytes_of(s.dtype, rows * cols), s.dtype, rows, cols,
                scales == nullptr ? nullptr : scales + e * blocks});
    }
    return w;
  }

  // Small scales, by bytes: 2^-7 in bf16 and ue8m0, or 1 in e4m3 with a factor of 2^-7.
  WeightStack packed_stack(const Shape& s, WeightStack w, const std::byte* data) {
    const bool u4 = s.dtype == DType::u4, mx = !u4 && s.size == kMxBlock;
    const DType scale = u4 ? DType::bf16 : mx ? DType::ue8m0 : DType::e4m3;
    const std::int64_t count = packed_groups(w.rows, w.cols, s.size).count();
    const std::byte* scales =
        u4   ? reinterpret_cast<std::byte*>(constant_of(s.experts * count, to_bf16(0x1p-7f)))
        : mx ? reinterpret_cast<std::byte*>(constant_of(s.experts * count, ue8m0{120}))
             : reinterpret_cast<std::byte*>(constant_of(s.experts * count, to_e4m3(1.f)));
    const float* factors = u4 || mx ? nullptr : constant_of(s.experts, 0x1p-7f);
    for (std::int32_t e = 0; e < s.experts; ++e) {
      w.set(e, {.data = data + e * bytes_of(s.dtype, w.rows * w.cols),
                .dtype = s.dtype,
                .rows = w.rows,
                .cols = w.cols,
                .scales = factors == nullptr ? nullptr : factors + e,
                .groups = {scales + bytes_of(scale, e * count), scale, s.size, nullptr}});
    }
    return w;
  }

  void run_shape(const Shape& s) {
    kept_.clear();
    constexpr std::int64_t kMostRows = 8192;
    std::vector<ExpertStacks> layers(static_cast<std::size_t>(s.layers));
    for (ExpertStacks& e : layers) {
      e.gate = stack(s, s.turns ? 2 * s.ffn : s.ffn, s.n);
      if (!s.turns) e.up = stack(s, s.ffn, s.n);
      e.down = stack(s, s.n, s.ffn);
    }
    const WeightView router{noise(DType::bf16, s.experts * s.n), DType::bf16, s.experts, s.n};
    std::byte* const out = fill(4 * kMostRows * s.n, codes_.data(), std::ssize(codes_));
    for (const std::int64_t rows : {1, 8, 64, 256, 1024, 8192}) {
      // Rows that differ.
      std::normal_distribution<float> normal;
      std::vector<bf16> x(static_cast<std::size_t>(rows * s.n));
      for (std::size_t i = 0; i < x.size(); ++i) {
        x[i] = noise_[(i + i / 7919) % noise_.size()];
        if (i % 64 == 0) x[i] = to_bf16(normal(random_));
      }
      const std::span bytes = std::as_bytes(std::span(x));
      const std::byte* const from = fill(std::ssize(bytes), bytes.data(), std::ssize(bytes));
      need(stream_.wait());
      const auto work = [&]() -> Result<void> {
        for (const ExpertStacks& e : layers) {
          const ExpertLayer op{
              .x = {from, DType::bf16, rows, s.n, s.n},
              .router = router,
              .router_bias = {},
              .choice = {.experts = s.experts, .top_k = s.top_k, .bias = {}},
              .activation = {s.turns ? ActivationKind::clamped_swiglu : ActivationKind::silu},
              .experts = &e,
              .out = {out, DType::f32, rows, s.n, s.n}};
          if (auto ok = expert_layer(op, o_.precision, false, tensors_, stream_); !ok) return ok;
        }
        return {};
      };
      need(work());
      need(stream_.wait());
      Graph graph = need(Graph::capture(stream_, work));
      std::vector<double> seconds;
      for (int i = -2; i < o_.repeats; ++i) {
        const double t = time_once(stream_, [&] { return graph.launch(stream_); });
        if (i >= 0) seconds.push_back(t / s.layers);
      }
      const double t = median(seconds);
      const auto f = [](auto v) { return static_cast<double>(v); };
      // The expected number for nearly uniform choices.
      const double chosen = f(s.experts) * (1 - std::pow(1 - f(s.top_k) / f(s.experts), f(rows)));
      const double weights = 3 * f(s.n) * f(s.ffn);
      const double bits =
          bits_of(s.dtype) + (s.size == 0 ? 0 : (s.dtype == DType::u4 ? 16. : 8.) / s.size);
      const double limit = std::max(chosen * weights * bits / 8 / 4.2e12,
                                    2 * weights * f(rows) * f(s.top_k) / 795e12);
      std::printf("%-14s %6ld %8.1f %10.1f %7.1f%%\n", s.name, rows, chosen, t * 1e6,
                  100 * limit / t);
      std::fflush(stdout);
    }
  }

  Options o_;
  std::mt19937 random_;
  Device device_;
  Stream stream_ = need(Stream::make());
  Arena tensors_{kDeviceMemory};
  std::vector<bf16> noise_;
  std::vector<std::byte> codes_;
  std::vector<DeviceArray<std::byte>> kept_;
};

}  // namespace
}  // namespace lathe::cuda

int main(int argc, char** argv) {
  lathe::cuda::Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--filter" && i + 1 < argc) {
      o.filter = argv[++i];
    } else if (flag == "--seed" && i + 1 < argc) {
      o.seed = static_cast<unsigned>(std::atol(argv[++i]));
    } else if (flag == "--repeats" && i + 1 < argc) {
      o.repeats = std::max(std::atoi(argv[++i]), 1);
    } else if (flag == "--fp8") {
      o.precision = lathe::MatmulPrecision::fp8_pow2;
    } else {
      std::fprintf(stderr, "usage: %s [--filter TEXT] [--seed N] [--repeats N] [--fp8]\n", argv[0]);
      return 2;
    }
  }
  lathe::cuda::Bench(o).run();
}
