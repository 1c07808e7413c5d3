#include "tools/bench/kernels/bench_matmul.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "base/float_formats.h"
#include "base/json.h"
#include "kernels/cpu/matmul/matmul_bf16.h"
#include "kernels/devices/all.h"
#include "ops/matmul.h"
#include "tools/bench/machine_peak.h"
#include "tools/flags/command.h"

namespace lathe {
namespace {

struct MatmulCase {
  std::string name;
  DType dtype;
  std::int64_t m, n, k;
  std::int64_t weights;  // different ones, that is products in a pass
  bool together;         // in one call, as experts are; else in separate calls
};

struct MatmulRow {
  MatmulCase what;
  MatmulPrecision precision = MatmulPrecision::f32;
  int threads = 1;
  double seconds = 0;  // a pass over all weights
  double gflops = 0, gbps = 0;
  double peak_gflops = 0, read_gbps = 0;
  double share = 0;  // of the nearer limit
};

constexpr std::int64_t kStreamed = std::int64_t{128} << 20;  // well over the last-level cache

constexpr DType kDtypes[] = {DType::bf16, DType::e4m3, DType::e2m1,
                             DType::u4,   DType::f16,  DType::f32};
constexpr std::int32_t kU4Group = 128;

std::vector<MatmulCase> matmul_cases() {
  std::vector<MatmulCase> list;
  for (const DType dtype : kDtypes) {
    for (const std::int64_t m : {1, 2, 4, 8, 16}) {
      if (dtype == DType::f16 && m > 1) continue;
      list.push_back({"decode", dtype, m, 4096, 4096,
                      kStreamed / bytes_of(dtype, std::int64_t{4096} * 4096), false});
    }
  }
  for (const DType dtype : kDtypes) {
    list.push_back({"prefill", dtype, 512, 2048, 2048, 1, false});
    list.push_back({"experts", dtype, 128, 2048, 2048, 4, true});
    list.push_back({"experts", dtype, 32, 2048, 2048, 8, true});
  }
  return list;
}

// Weights of ordinary numbers; every product reads its own.
struct MatmulData {
  std::vector<std::byte> weights;
  std::vector<float> scales, x, out;
  std::vector<ue8m0> mx_scales;  // of e2m1 weights, each with its own
  std::vector<bf16> u4_scales;   // of u4 weights, each with its own
  std::vector<Product> products;

  explicit MatmulData(const MatmulCase& c)
      : weights(static_cast<std::size_t>(c.weights * bytes_of(c.dtype, c.n * c.k))),
        scales(static_cast<std::size_t>(((c.n + 127) / 128) * ((c.k + 127) / 128)), 0.01f),
        x(static_cast<std::size_t>(c.m * c.k)),
        out(static_cast<std::size_t>(c.weights * c.m * c.n)),
        mx_scales(c.dtype == DType::e2m1 ? weights.size() * 2 / kMxBlock : 0, ue8m0{122}),
        u4_scales(c.dtype == DType::u4 ? weights.size() * 2 / kU4Group : 0, to_bf16(0.25f)) {
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    std::vector<std::byte> pattern(std::size_t{4} * 65521);  // of a prime number of elements
    const auto element = static_cast<std::size_t>(std::max(8, bits_of(c.dtype)) / 8);
    for (std::size_t i = 0; i < 65521; ++i) {
      const float value = normal(rng);
      const bf16 b = to_bf16(value);
      const f16 h = to_f16(value);
      const e4m3 e = to_e4m3(64 * value);
      std::byte* to = pattern.data() + i * element;
      if (c.dtype == DType::f32) std::memcpy(to, &value, 4);
      if (c.dtype == DType::bf16) std::memcpy(to, &b, 2);
      if (c.dtype == DType::f16) std::memcpy(to, &h, 2);
      if (c.dtype == DType::e4m3) std::memcpy(to, &e, 1);
      if (c.dtype == DType::e2m1) {
        *to = static_cast<std::byte>(to_e2m1(2 * value).bits | to_e2m1(2 * normal(rng)).bits << 4);
      }
      if (c.dtype == DType::u4) *to = static_cast<std::byte>(rng() & 0xff);
    }
    pattern.resize(std::size_t{65521} * element);
    for (std::size_t i = 0; i < weights.size(); i += pattern.size()) {
      std::memcpy(weights.data() + i, pattern.data(), std::min(pattern.size(), weights.size() - i));
    }
    for (float& v : x) v = normal(rng);
    for (std::int64_t i = 0; i < c.weights; ++i) {
      Product p;
      p.x = {reinterpret_cast<const std::byte*>(x.data()), DType::f32, c.m, c.k, c.k};
      p.w = {weights.data() + i * bytes_of(c.dtype, c.n * c.k),
             c.dtype,
             c.n,
             c.k,
             c.dtype == DType::e4m3 ? scales.data() : nullptr,
             mx_scales.empty() ? nullptr : mx_scales.data() + i * c.n * c.k / kMxBlock};
      if (c.dtype == DType::u4) {
        const bf16* at = u4_scales.data() + i * (c.n * c.k / kU4Group);
        p.w.groups = {reinterpret_cast<const std::byte*>(at), DType::bf16, kU4Group};
      }
      p.out = {reinterpret_cast<std::byte*>(out.data() + i * c.m * c.n), DType::f32, c.m, c.n, c.n};
      products.push_back(p);
    }
  }
};

double pass_seconds(const OpsContext& ops, const MatmulCase& c, const MatmulData& data) {
  const auto start = std::chrono::steady_clock::now();
  if (c.together) {
    matmul(ops, data.products);
  } else {
    for (const Product& p : data.products) matmul(ops, p);
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The nearer limit is measured before every repeat, and the best repeat counts on both sides,
// because other work on the machine slows either.
MatmulRow measure(Backend& backend, const MatmulCase& c, MatmulPrecision precision, int threads,
                  int repeats) {
  const MatmulData data(c);
  ThreadPool pool(threads);
  Arena arena;
  OpsContext ops;
  ops.backend = &backend;
  ops.execution.threads = &pool;
  ops.tensors = ops.control = &arena;
  ops.precision = precision;
  const double flop = 2 * static_cast<double>(c.weights * c.m * c.n * c.k);
  const double bytes =
      static_cast<double>(data.weights.size() + data.mx_scales.size() + 2 * data.u4_scales.size());
  const auto peak =
      precision == MatmulPrecision::bf16 ? measure_bf16_peak_gflops : measure_peak_gflops;
  const bool streams = c.name == "decode";

  MatmulRow r;
  r.what = c;
  r.precision = precision;
  r.threads = threads;
  r.seconds = pass_seconds(ops, c, data);
  for (int i = 0; i < repeats; ++i) {
    if (i == 0 || !streams) r.peak_gflops = std::max(r.peak_gflops, peak(pool, 1));
    if (i == 0 || streams) {
      r.read_gbps = std::max(r.read_gbps, measure_read_gbps(pool, std::int64_t{128} << 20, 3));
    }
    r.seconds = std::min(r.seconds, pass_seconds(ops, c, data));
  }
  r.gflops = flop / r.seconds / 1e9;
  r.gbps = bytes / r.seconds / 1e9;
  r.share = std::max(r.gflops / r.peak_gflops, r.gbps / r.read_gbps);
  return r;
}

nlohmann::ordered_json row_json(const MatmulRow& r) {
  return {{"name", r.what.name},
          {"dtype", name(r.what.dtype)},
          {"arithmetic", name(r.precision)},
          {"m", r.what.m},
          {"n", r.what.n},
          {"k", r.what.k},
          {"weights", r.what.weights},
          {"threads", r.threads},
          {"seconds", r.seconds},
          {"gflop_per_s", r.gflops},
          {"gb_per_s", r.gbps},
          {"peak_gflop_per_s", r.peak_gflops},
          {"read_gb_per_s", r.read_gbps},
          {"share", r.share}};
}

constexpr const char* kMatmulHeader =
    "best of the repeats; peak and read are this machine's limits, the best of as many repeats\n"
    "between them, the peak that of the arithmetic: f32 FMAs, or dot products of bf16 pairs;\n"
    "GB/s counts the weights; share is of the nearer limit\n\n";

}  // namespace

int bench_matmul_command(const BenchMatmulOptions& options) {
  std::vector<int> threads = {1, 2};
  if (options.threads > 0) threads = {options.threads};
  const std::unique_ptr<Backend> backend = std::move(*make_backend(Device::cpu));
  nlohmann::ordered_json out = {{"device", "cpu"}, {"repeats", options.repeats}};
  out["rows"] = nlohmann::ordered_json::array();
  std::string table =
      kMatmulHeader + fmt::format(
                          "{:8} {:5} {:5} {:>4} {:>5} {:>5} {:>7} {:>7} {:>11} {:>8} {:>6} {:>8} "
                          "{:>6} {:>6}\n",
                          "name", "dtype", "arith", "m", "n", "k", "weights", "threads", "us",
                          "GFLOP/s", "GB/s", "peak", "read", "share");
  for (const MatmulCase& c : matmul_cases()) {
    if (!options.only.empty() && c.name != options.only) continue;
    for (const MatmulPrecision precision : {MatmulPrecision::f32, MatmulPrecision::bf16}) {
      if (precision == MatmulPrecision::bf16 &&
          !(backend->multiplies_in(precision) && is_bf16_dot_weight(c.dtype))) {
        continue;
      }
      for (const int t : threads) {
        if (isatty(STDERR_FILENO) == 1) {
          print_err(fmt::format("measuring {} {} {} m {} threads {}\n", c.name, name(c.dtype),
                                name(precision), c.m, t));
        }
        const MatmulRow r = measure(*backend, c, precision, t, options.repeats);
        out["rows"].push_back(row_json(r));
        table += fmt::format(
            "{:8} {:5} {:5} {:4} {:5} {:5} {:7} {:7} {:11.1f} {:8.1f} {:6.2f} {:8.1f} {:6.1f} "
            "{:6.2f}\n",
            c.name, name(c.dtype), name(precision), c.m, c.n, c.k, c.weights, t, r.seconds * 1e6,
            r.gflops, r.gbps, r.peak_gflops, r.read_gbps, r.share);
      }
    }
  }
  print_out(options.json ? json_text(out, 2) + "\n" : table);
  return kExitOk;
}

}  // namespace lathe
