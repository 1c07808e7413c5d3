// Times GEMMs on a GPU against cuBLASLt.
//
// matmul_gpu_bench [--cublaslt LIBRARY] [--peer FILE] [--filter TEXT] [--seed N] [--repeats N]
//                  [--most N] [--tokens M,...] [--sweep] [--splits]
//
// Times a captured graph of 20 or more GEMMs of one shape, each with another matrix, so that none
// is in L2. Both sides alternate; times are medians. Numbers of tokens are those of --tokens, or
// fixed ones and, from a printed seed, random ones, up to --most. The share is of 4.2 TB/s
// (weights, x and out) or of 795 TFLOP/s (e4m3 by e4m3: 1366), whichever limit is slower. Both
// sides' outputs are compared, and a few elements with sums in double. Times the kernel that a call
// gets; "tile" is wgmma's, which those for few tokens do not use. With --sweep, times wgmma with
// every tile, for the fixed numbers of tokens, and with --splits also with every split of K, which
// do not all have the same bits. The peer of packed weights is the GEMM of as many bf16 weights,
// and that of e4m3 by e4m3 a library given with --peer (bench_peer.h, matmul_fp8_peer.h).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <sstream>

#include "base/float_formats.h"
#include "kernels/cuda/common/bench_peer.h"
#include "kernels/cuda/sm90/matmul/matmul_call.h"
#include "kernels/cuda/sm90/matmul/pack/packed_weights.h"
#include "kernels/cuda/sm90/matmul/test/matmul_fp8_peer.h"
#include "kernels/cuda/sm90/matmul/test/matmul_peer.h"

namespace lathe::cuda {
namespace {

struct Shape {
  const char* name;
  std::int64_t n, k;
  DType x = DType::bf16, w = DType::bf16;
  std::int32_t size = 0;  // of groups: packed weights
  DType scales = DType::bf16;
  bool zeros = false, scale_rows = false;
};
constexpr Shape kShapes[] = {
    {"qwen3-8b-qkv", 6144, 4096},
    {"qwen3-8b-o", 4096, 4096},
    {"qwen3-8b-gate-up", 24576, 4096},
    {"qwen3-8b-down", 4096, 12288},
    {"qwen3-8b-head", 151936, 4096},
    {"llama-8b-gate-up", 28672, 4096},
    {"llama-8b-down", 4096, 14336},
    {"qwen3-32b-qkv", 10240, 5120},
    {"qwen3-32b-o", 5120, 8192},
    {"qwen3-32b-gate-up", 51200, 5120},
    {"qwen3-32b-down", 5120, 25600},
    {"30b-a3b-qkv", 5120, 2048},
    {"30b-a3b-o", 2048, 4096},
    {"v3-16b-o", 2048, 2048},
    {"v3-16b-shared-down", 2048, 2816},
    {"v3-q-a-kv-a", 2112, 7168},
    {"v3-o-fp8", 7168, 16384, DType::e4m3, DType::e4m3},
    {"v3-q-b-fp8", 24576, 1536, DType::e4m3, DType::e4m3},
    {"v3-gate-up-fp8", 4096, 7168, DType::e4m3, DType::e4m3},
    {"v3-down-fp8", 7168, 2048, DType::e4m3, DType::e4m3},
    {"v3-q-a-kv-a-fp8", 2112, 7168, DType::e4m3, DType::e4m3},
    {"v3-kv-b-fp8", 32768, 512, DType::e4m3, DType::e4m3},
    {"v3-o-w8", 7168, 16384, DType::bf16, DType::e4m3},
    {"v3-gate-up-w8", 4096, 7168, DType::bf16, DType::e4m3},
    {.name = "v3-gate-up-w8-rows", .n = 4096, .k = 7168, .w = DType::e4m3, .scale_rows = true},
    {"llama-qkv-u4", 6144, 4096, DType::bf16, DType::u4, 128},
    {"llama-o-u4", 4096, 4096, DType::bf16, DType::u4, 128},
    {"llama-gate-up-u4", 28672, 4096, DType::bf16, DType::u4, 128},
    {"llama-down-u4", 4096, 14336, DType::bf16, DType::u4, 128},
    {"llama-gate-up-u4-32", 28672, 4096, DType::bf16, DType::u4, 32},
    {"llama-gate-up-awq", 28672, 4096, DType::bf16, DType::u4, 128, DType::f16, true},
    {"llama-gate-up-nvfp4", 28672, 4096, DType::bf16, DType::e2m1, 16, DType::e4m3},
    {"llama-down-nvfp4", 4096, 14336, DType::bf16, DType::e2m1, 16, DType::e4m3},
};

struct Options {
  std::string library, filter;
  const char* peer = nullptr;
  unsigned seed = std::random_device()();
  int repeats = 11;
  std::int64_t most = INT64_MAX;  // tokens
  bool sweep = false, splits = false;
  std::vector<std::int64_t> tokens;  // none: fixed ones
};

constexpr std::int64_t kColdBytes = 400 << 20;
constexpr int kMostMatrices = 20;
// Scale of all blocks of e4m3 codes, and factor of NVFP4.
constexpr float kScale = 0.01f;
// Every byte of packed scales, and of zeros.
constexpr int kScaleByte = 0x3c, kZeroByte = 7;
double packed_scale(const Shape& s) {
  if (s.scales == DType::e4m3) return double{to_f32(e4m3{kScaleByte})};
  const std::uint16_t both = kScaleByte << 8 | kScaleByte;
  return s.scales == DType::bf16 ? double{to_f32(bf16{both})} : double{to_f32(f16{both})};
}
constexpr std::int64_t kScales = 4 << 20;

class Bench {
 public:
  explicit Bench(const Options& options)
      : o_(options),
        random_(options.seed),
        device_(need(open_device())),
        fp8_peer_(options.peer, stream_) {
#if LATHE_HAS_CUBLASLT
    if (!o_.library.empty()) {
      lt_.emplace(o_.library);
      workspace_.emplace(need(DeviceArray<std::byte>::make(32 << 20)));
    }
#endif
    std::normal_distribution<float> normal;
    noise_.resize(1 << 22);
    for (bf16& v : noise_) v = to_bf16(normal(random_));
    for (const bf16 v : noise_) codes_.push_back(to_e4m3(to_f32(v)));
    scales_.emplace(need(DeviceArray<float>::make(kScales)));
    need(copy_to_device(std::span<const float>(std::vector<float>(kScales, kScale)),
                        scales_->data(), stream_));
    need(stream_.wait());
    std::printf("%s, seed %u, cuBLASLt %s\n", device_.model.c_str(), o_.seed,
                o_.library.empty() ? "none" : o_.library.c_str());
  }

  int run() {
    std::printf("%-18s %6s %6s %6s  %-18s %9s %7s %9s %7s  %s\n", "shape", "n", "k", "m", "tile",
                "us", "share", "peer", "ratio", "difference");
    for (const Shape& s : kShapes) {
      if (std::string_view(s.name).find(o_.filter) == std::string_view::npos) continue;
      std::vector<std::int64_t> tokens = {1, 8, 64, 256, 4096};
      if (s.size > 0) tokens = {1, 8, 16, 32, 64, 128, 256, 1024, 4096};
      if (o_.sweep && s.size > 0) {
        tokens = {1, 8, 32, 64, 128, 256};
      } else if (o_.sweep) {
        tokens = {64, 96, 128, 192, 256, 384, 512, 768, 1000, 2048, 4096};
      } else {
        const auto between = [&](int a, int b) {
          return std::uniform_int_distribution<int>(a, b)(random_);
        };
        tokens.insert(tokens.end(), {between(2, 128), between(129, 1024)});
      }
      if (!o_.tokens.empty()) tokens = o_.tokens;
      // After the largest sizes the clock is low for a while.
      std::ranges::sort(tokens);
      std::erase_if(tokens, [&](std::int64_t m) { return m > o_.most; });
      if (!tokens.empty()) run_shape(s, tokens);
    }
    return bad_ ? 1 : 0;
  }

 private:
  // Each block starts at another place in the noise, so that no two rows are equal.
  template <class T>
  DeviceArray<std::byte> fill_from(const std::vector<T>& noise, std::int64_t elements) {
    auto out = need(DeviceArray<std::byte>::make(elements * static_cast<std::int64_t>(sizeof(T))));
    const auto block = static_cast<std::int64_t>(noise.size());
    std::vector<T> part(noise.size());
    for (std::int64_t at = 0; at < elements; at += block) {
      const auto shift = static_cast<std::ptrdiff_t>(random_() % noise.size());
      std::rotate_copy(noise.begin(), noise.begin() + shift, noise.end(), part.begin());
      const auto count = static_cast<std::size_t>(std::min(block, elements - at));
      need(copy_to_device(std::span<const T>(part).first(count),
                          reinterpret_cast<T*>(out.data()) + at, stream_));
      need(stream_.wait());
    }
    return out;
  }
  DeviceArray<std::byte> filled(std::int64_t bytes, int value) {
    auto out = need(DeviceArray<std::byte>::make(bytes));
    need(call_result(cudaMemsetAsync(out.data(), value, static_cast<std::size_t>(bytes), stream_),
                     "cudaMemsetAsync"));
    return out;
  }
  DeviceArray<std::byte> fill(DType dtype, std::int64_t elements) {
    return dtype == DType::bf16 ? fill_from(noise_, elements)
                                : fill_from(codes_, bytes_of(dtype, elements));
  }

  using Product = std::function<Result<void>(const MatmulCall&)>;
  // Seconds per GEMM, for each side.
  std::vector<double> time(const std::vector<MatmulCall>& calls,
                           const std::vector<Product>& sides) {
    std::vector<Graph> graphs;
    for (const Product& side : sides) {
      need(side(calls[0]));  // first calls set things up
      need(stream_.wait());
      graphs.push_back(need(Graph::capture(stream_, [&]() -> Result<void> {
        for (const MatmulCall& c : calls) {
          if (auto ok = side(c); !ok) return ok;
        }
        return {};
      })));
    }
    std::vector<std::function<Result<void>()>> launches;
    for (const Graph& graph : graphs) launches.emplace_back([&] { return graph.launch(stream_); });
    std::vector<double> out = time_in_turns(stream_, o_.repeats, launches);
    for (double& t : out) t /= static_cast<double>(calls.size());
    return out;
  }

  void run_shape(const Shape& s, const std::vector<std::int64_t>& tokens) {
    const std::int64_t most = *std::max_element(tokens.begin(), tokens.end());
    const int matrices = static_cast<int>(
        std::clamp<std::int64_t>(kColdBytes / bytes_of(s.w, s.n * s.k) + 1, 2, kMostMatrices));
    std::vector<DeviceArray<std::byte>> w;
    for (int i = 0; i < matrices; ++i) w.push_back(fill(s.w, s.n * s.k));
    std::vector<DeviceArray<std::byte>> groups, zeros, wide;
    const std::int64_t group_count = s.size == 0 ? 0 : packed_groups(s.n, s.k, s.size).count();
    for (int i = 0; i < matrices && s.size > 0; ++i) {
      groups.push_back(filled(bytes_of(s.scales, group_count), kScaleByte));
      if (s.zeros) zeros.push_back(filled(group_count, kZeroByte));
    }
    const int wides = static_cast<int>(
        std::clamp<std::int64_t>(kColdBytes / (2 * s.n * s.k) + 1, 2, kMostMatrices));
    for (int i = 0; i < wides && s.size > 0; ++i) wide.push_back(fill(DType::bf16, s.n * s.k));
    const auto x = fill(s.x, most * s.k);
    auto out = need(DeviceArray<std::byte>::make(most * s.n * 2));
    auto peer_out = need(DeviceArray<std::byte>::make(most * s.n * 2));
    const auto kept = need(DeviceArray<std::byte>::make(matmul_kept_bytes(device_.sms)));
    const auto arrivals =
        upload(std::vector<std::uint32_t>(static_cast<std::size_t>(device_.sms)), stream_);
    for (const std::int64_t m : tokens) {
      const auto call = [&](const DeviceArray<std::byte>& to, int i) -> MatmulCall {
        return {
            .x = {x.data(), s.x, m, s.k, s.k},
            .w = {.data = w[static_cast<std::size_t>(i)].data(),
                  .dtype = s.w,
                  .rows = s.n,
                  .cols = s.k,
                  .scales = s.w == DType::e4m3 || s.w == DType::e2m1 ? scales_->data() : nullptr,
                  .scale_rows = s.scale_rows,
                  .groups = packed(s, groups, zeros, static_cast<std::size_t>(i))},
            .out = {to.data(), DType::bf16, m, s.n, s.n},
            .x_scales = s.x == DType::e4m3 ? scales_->data() : nullptr,
            .x_scale_stride = s.x == DType::e4m3 ? (most + 3) / 4 * 4 : 0,
            .kept = reinterpret_cast<float*>(kept.data()),
            .arrivals = arrivals.data()};
      };
      std::vector<MatmulCall> calls;
      const int count = m > 1000 ? matrices : std::max(matrices, kMostMatrices);
      for (int i = 0; i < count; ++i) calls.push_back(call(out, i % matrices));
      const MatmulShape shape = shape_of(std::span(calls).first(1), device_.sms);
      std::vector<MatmulTiling> tilings = {choose_tiling(shape)};
      if (o_.sweep) {
        tilings = s.size > 0 ? packed_tilings(m) : all_tilings(tilings[0], m, s.w == DType::bf16);
        const bool many = s.x == DType::e4m3 && !s.scale_rows && m > 64;
        if (many) tilings.push_back({tilings[0].split, 128, 256, true});
        for (int split = 1; o_.splits && s.size == 0 && split <= kMatmulMaxSplit; split *= 2) {
          MatmulTiling other = choose_tiling(shape);
          if (split == other.split) continue;
          other.split = split;
          const auto more = all_tilings(other, m, false);
          tilings.insert(tilings.end(), more.begin(), more.end());
        }
      }
      for (const MatmulTiling& tiling : tilings) {
        std::vector<Product> sides = {[&](const MatmulCall& c) {
          return o_.sweep ? matmul_with_tiling({&c, 1}, tiling, device_.sms, stream_)
                          : matmul_on_device({&c, 1}, stream_);
        }};
        std::vector<double> difference;
#if LATHE_HAS_CUBLASLT
        std::optional<CublasLtProduct> peer;
        if (lt_ && s.w == DType::bf16) {
          peer.emplace(*lt_, calls[0], *workspace_);
          sides.push_back([&](const MatmulCall& c) { return peer->run(c, stream_); });
          need(sides[0](call(out, 0)));
          need(sides[1](call(peer_out, 0)));
          difference.push_back(compare(out, peer_out, m * s.n));
        }
#endif
        std::deque<LatheFp8MatmulPeerCall> peer_calls;
        for (int i = 0; i < matrices && s.x == DType::e4m3 && !s.scale_rows; ++i) {
          fp8_peer_.add(&peer_calls.emplace_back(fp8_peer_call(call(peer_out, i))));
        }
        if (fp8_peer_.supports()) {
          sides.push_back([&](const MatmulCall& c) { return fp8_peer_.run(matrix_of(c, w)); });
          need(sides[0](call(out, 0)));
          fp8_peer_.finish();
          difference.push_back(compare(out, peer_out, m * s.n));
        }
        check(s, m, x, w[0], sides[0], call(out, 0), out);
        std::vector<double> t = time(calls, sides);
        if (s.size > 0 && !o_.sweep) {
          std::vector<MatmulCall> of_wide = calls;
          for (std::size_t i = 0; i < of_wide.size(); ++i) {
            of_wide[i].w = {wide[i % wide.size()].data(), DType::bf16, s.n, s.k};
          }
          t.push_back(time(of_wide, {[&](const MatmulCall& c) {
                             return matmul_on_device({&c, 1}, stream_);
                           }})[0]);
          difference.push_back(0);
        }
        print(s, m, tiling, t, difference);
        fp8_peer_.clear();
      }
    }
  }
  static LatheFp8MatmulPeerCall fp8_peer_call(const MatmulCall& c) {
    return {.kind = "fp8_matmul",
            .m = static_cast<std::int32_t>(c.x.rows),
            .n = static_cast<std::int32_t>(c.w.rows),
            .k = static_cast<std::int32_t>(c.x.cols),
            .x = c.x.data,
            .x_scales = c.x_scales,
            .x_scale_stride = c.x_scale_stride,
            .w = c.w.data,
            .w_scales = c.w.scales,
            .out = c.out.data};
  }
  static int matrix_of(const MatmulCall& c, const std::vector<DeviceArray<std::byte>>& w) {
    const auto at = std::ranges::find(w, c.w.data, [](const auto& a) { return a.data(); });
    return static_cast<int>(at - w.begin());
  }
  static GroupScales packed(const Shape& s, const std::vector<DeviceArray<std::byte>>& groups,
                            const std::vector<DeviceArray<std::byte>>& zeros, std::size_t i) {
    if (s.size == 0) return {};
    return {groups[i].data(), s.scales, s.size,
            s.zeros ? reinterpret_cast<const std::uint8_t*>(zeros[i].data()) : nullptr};
  }
  // A row of packed weights, as values without NVFP4's factor.
  std::vector<float> read_packed(const Shape& s, const std::byte* from) {
    std::vector<std::uint32_t> words(static_cast<std::size_t>(s.k / 8));
    need(copy_to_host(from, std::as_writable_bytes(std::span(words)), stream_));
    need(stream_.wait());
    std::vector<float> out(static_cast<std::size_t>(s.k));
    const bool u4 = s.w == DType::u4;
    for (std::int64_t i = 0; i < s.k; ++i) {
      const std::uint32_t code = packed_code(u4, words.data(), i);
      const int zero = s.zeros ? kZeroByte : int{kU4Zero};
      const float value = u4 ? static_cast<float>(static_cast<int>(code) - zero)
                             : to_f32(e2m1{static_cast<std::uint8_t>(code)});
      out[static_cast<std::size_t>(i)] =
          to_f32(to_bf16(value * static_cast<float>(packed_scale(s))));
    }
    return out;
  }
  // Every split, so not all give the same bits.
  static std::vector<MatmulTiling> packed_tilings(std::int64_t m) {
    std::vector<MatmulTiling> tilings;
    const int tokens = m <= 8 ? 8 : m <= 16 ? 16 : m <= 32 ? 32 : 64;
    for (const int split : {1, 2, 4, 8}) {
      for (const int rows : {112, 128}) tilings.push_back({split, rows, tokens, false});
      if (m <= 64) continue;
      tilings.push_back({split, 128, 128, false});
      tilings.push_back({split, 128, 128, true});
    }
    if (m > 64) return tilings;
    tilings.push_back({1, 256, tokens, false, 4});
    for (const int split : {1, 2, 4}) {
      if (tokens > 8) tilings.push_back({split, 64, tokens, false, 1});
    }
    return tilings;
  }
  // Cuts that give the same bits: with the chosen split.
  static std::vector<MatmulTiling> all_tilings(const MatmulTiling& chosen, std::int64_t m,
                                               bool wide) {
    std::vector<MatmulTiling> tilings;
    for (const int tokens : {8, 16, 32, 64, 128}) {
      if (tokens < 64 && tokens < m) continue;
      for (const int rows : {48, 64, 80, 96, 112, 128}) {
        tilings.push_back({chosen.split, rows, tokens, false});
      }
      if (tokens >= m) break;
    }
    if (m <= 64) return tilings;
    for (const int rows : {96, 112, 128}) {
      tilings.push_back({chosen.split, rows, 128, true});
      if (wide) tilings.push_back({chosen.split, rows, 256, true});
    }
    if (wide) tilings.push_back({chosen.split, 128, 192, true});
    if (wide && m > 128) tilings.push_back({chosen.split, 128, 128, true, 2, false, false, true});
    if (wide && chosen.split == 1) {
      tilings.push_back({.tile_rows = 192, .tile_tokens = 256, .pair = true, .tall = true});
    }
    return tilings;
  }

  std::vector<float> read(const DeviceArray<std::byte>& from, std::int64_t count) {
    return read(from.data(), DType::bf16, count);
  }
  std::vector<float> read(const std::byte* from, DType dtype, std::int64_t count) {
    std::vector<std::byte> host(static_cast<std::size_t>(bytes_of(dtype, count)));
    need(copy_to_host(from, std::span(host), stream_));
    need(stream_.wait());
    std::vector<float> out(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < out.size(); ++i) {
      bf16 v;
      if (dtype == DType::bf16) std::memcpy(&v, host.data() + 2 * i, 2);
      out[i] = dtype == DType::bf16 ? to_f32(v) : to_f32(e4m3{static_cast<std::uint8_t>(host[i])});
    }
    return out;
  }
  // Relative norm of the difference of the first elements.
  double compare(const DeviceArray<std::byte>& a, const DeviceArray<std::byte>& b,
                 std::int64_t count) {
    count = std::min<std::int64_t>(count, 1 << 22);
    const auto x = read(a, count), y = read(b, count);
    double error = 0, size = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double d = double{x[i]} - double{y[i]};
      error += d * d;
      size += double{y[i]} * double{y[i]};
    }
    return std::sqrt(error / size);
  }
  // Compares a few elements with sums in double, including some in the last row of out.
  void check(const Shape& s, std::int64_t m, const DeviceArray<std::byte>& x,
             const DeviceArray<std::byte>& w, const Product& product, const MatmulCall& call,
             const DeviceArray<std::byte>& out) {
    need(call_result(
        cudaMemsetAsync(out.data(), 0xff, static_cast<std::size_t>(m * s.n * 2), stream_),
        "cudaMemsetAsync"));
    need(product(call));
    const double scale = (s.w == DType::e4m3 || s.w == DType::e2m1 ? double{kScale} : 1.) *
                         (s.x == DType::e4m3 ? double{kScale} : 1.);
    for (int i = 0; i < 6; ++i) {
      const std::int64_t t = i == 0 ? m - 1 : static_cast<std::int64_t>(random_() % m);
      const std::int64_t r = i == 0 ? s.n - 1 : static_cast<std::int64_t>(random_() % s.n);
      const auto a = read(x.data() + bytes_of(s.x, t * s.k), s.x, s.k);
      const std::byte* const row = w.data() + bytes_of(s.w, r * s.k);
      const auto b = s.size > 0 ? read_packed(s, row) : read(row, s.w, s.k);
      const float got = read(out.data() + 2 * (t * s.n + r), DType::bf16, 1)[0];
      double want = 0, size = 0;
      for (std::size_t j = 0; j < a.size(); ++j) {
        const double v = double{a[j]} * double{b[j]} * scale;
        want += v;
        size += std::abs(v);
      }
      if (std::abs(double{got} - want) <=
          std::abs(want) * 0x1p-8 + size * (s.x == DType::e4m3 ? 0x1p-11 : 0x1p-16))
        continue;
      std::printf("%s, m %ld: token %ld, row %ld: %g for %g\n", s.name, m, t, r, double{got}, want);
      bad_ = true;
    }
  }

  void print(const Shape& s, std::int64_t m, const MatmulTiling& tiling,
             const std::vector<double>& t, const std::vector<double>& difference) const {
    const auto f = [](std::int64_t v) { return static_cast<double>(v); };
    const std::int64_t groups = s.size == 0 ? 0 : s.n * s.k / s.size;
    const double bytes = f(bytes_of(s.w, s.n * s.k) + bytes_of(s.scales, groups) +
                           (s.zeros ? groups : 0) + bytes_of(s.x, m * s.k) + 2 * m * s.n);
    const double rate = s.x == DType::e4m3 ? 1366e12 : 795e12;
    const double limit = std::max(bytes / 4.2e12, 2 * f(m) * f(s.n) * f(s.k) / rate);
    const std::string tile = fmt::format("{}x{} split {}{}", tiling.tile_rows, tiling.tile_tokens,
                                         tiling.split, tiling.pair ? " pair" : "");
    std::printf("%-18s %6ld %6ld %6ld  %-18s %9.2f %6.1f%%", s.name, s.n, s.k, m, tile.c_str(),
                t[0] * 1e6, 100 * limit / t[0]);
    if (t.size() > 1) {
      std::printf(" %9.2f %7.3f  %.1e", t[1] * 1e6, t[1] / t[0], difference[0]);
    } else if (!fp8_peer_.columns(0, 0, "").empty()) {
      std::printf(" %s", fp8_peer_.columns(0, 0, "").c_str());
    }
    std::printf("\n");
    std::fflush(stdout);
  }

  Options o_;
  std::mt19937 random_;
  Device device_;
  Stream stream_ = need(Stream::make());
  PeerSide fp8_peer_;
  std::vector<bf16> noise_;
  std::vector<e4m3> codes_;
  std::optional<DeviceArray<float>> scales_;
  bool bad_ = false;
#if LATHE_HAS_CUBLASLT
  std::optional<CublasLt> lt_;
  std::optional<DeviceArray<std::byte>> workspace_;
#endif
};

}  // namespace
}  // namespace lathe::cuda

int main(int argc, char** argv) {
  lathe::cuda::Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    const bool more = i + 1 < argc;
    if (flag == "--sweep") {
      o.sweep = true;
    } else if (flag == "--splits") {
      o.splits = true;
    } else if (flag == "--tokens" && more) {
      std::string list = argv[++i];
      std::replace(list.begin(), list.end(), ',', ' ');
      std::istringstream of(list);
      for (std::int64_t m = 0; of >> m;) o.tokens.push_back(std::max<std::int64_t>(m, 1));
    } else if (flag == "--peer" && more) {
      o.peer = argv[++i];
    } else if (flag == "--cublaslt" && more) {
      o.library = argv[++i];
    } else if (flag == "--filter" && more) {
      o.filter = argv[++i];
    } else if (flag == "--seed" && more) {
      o.seed = static_cast<unsigned>(std::atol(argv[++i]));
    } else if (flag == "--most" && more) {
      o.most = std::max(std::atoll(argv[++i]), 1LL);
    } else if (flag == "--repeats" && more) {
      o.repeats = std::max(std::atoi(argv[++i]), 1);
    } else {
      std::fprintf(stderr,
                   "usage: %s [--cublaslt LIBRARY] [--peer FILE] [--filter TEXT] [--seed N] "
                   "[--repeats N] [--most N] [--tokens M,...] [--sweep] [--splits]\n",
                   argv[0]);
      return 2;
    }
  }
  return lathe::cuda::Bench(o).run();
}
