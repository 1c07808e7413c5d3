#include "tools/bench/kernels/bench_codec.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "base/check.h"
#include "base/float_formats.h"
#include "base/json.h"
#include "layout/codec/codec.h"
#include "layout/codec/codec_fast.h"
#include "layout/rope/rope_write.h"
#include "tools/bench/bench_memory.h"
#include "tools/bench/kernels/bench_cuda.h"
#include "tools/bench/median.h"
#include "tools/flags/command.h"

namespace lathe {
namespace {

constexpr std::int32_t kCodecPageSize = 64;
using Bytes = std::vector<std::byte>;

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Bytes make_bytes(std::int64_t n) { return Bytes(static_cast<std::size_t>(n)); }

// bf16 numbers like a layer's: normally distributed, of magnitude 1.
Bytes make_rows(std::int64_t elems) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  std::vector<bf16> pattern(65521);  // prime: no row repeats at once
  for (bf16& x : pattern) x = to_bf16(normal(rng));
  Bytes out = make_bytes(2 * elems);
  const std::size_t step = 2 * pattern.size();
  for (std::size_t i = 0; i < out.size(); i += step) {
    std::memcpy(out.data() + i, pattern.data(), std::min(step, out.size() - i));
  }
  return out;
}

std::vector<Slot> in_order(std::int64_t n) {
  std::vector<Slot> out;
  for (std::int32_t i = 0; i < n; ++i) out.emplace_back(i);
  return out;
}

std::vector<Slot> shuffled(std::int64_t n) {
  std::vector<Slot> out = in_order(n);
  std::shuffle(out.begin(), out.end(), std::mt19937(2));
  return out;
}

class CodecBench {
 public:
  explicit CodecBench(const CodecBenchOptions& options)
      : options_(options),
        copy_from_(make_bytes(options.bytes / 2)),
        copy_to_(make_bytes(options.bytes / 2)) {}

  void codecs(const CacheLayout& layout);
  void requantize_between(const CacheLayout& from, const CacheLayout& to);
  void rope_write(const CacheLayout& layout, std::int64_t heads);

  std::vector<CodecBenchRow> take() {
    if (isatty(2) != 0) print_err(fmt::format("\r{:20}\r", ""));
    return std::move(rows_);
  }

 private:
  std::int64_t pages_for(std::int64_t bytes_per_token) const {
    return std::max<std::int64_t>(options_.bytes / bytes_per_token / kCodecPageSize, 1);
  }
  // Times `work`, which reads and writes `bytes`, in turns with a memcpy of the same size.
  void measure(const std::string& layout, const char* operation, std::int64_t tokens,
               std::int64_t bytes, const std::function<Result<void>()>& work);

  CodecBenchOptions options_;
  Bytes copy_from_;
  Bytes copy_to_;
  std::vector<CodecBenchRow> rows_;
};

void CodecBench::measure(const std::string& layout, const char* operation, std::int64_t tokens,
                         std::int64_t bytes, const std::function<Result<void>()>& work) {
  const auto checked = [&] {
    const auto r = work();
    LATHE_CHECK(r.ok(), r.error().message());
  };
  const std::size_t copied = std::min(static_cast<std::size_t>(bytes / 2), copy_from_.size());
  const auto copy = [&] { std::memcpy(copy_to_.data(), copy_from_.data(), copied); };
  checked();
  copy();
  std::vector<double> own, reference;
  for (int i = 0; i < options_.repeats; ++i) {
    own.push_back(static_cast<double>(bytes) / seconds_of(checked) / 1e9);
    reference.push_back(2 * static_cast<double>(copied) / seconds_of(copy) / 1e9);
  }
  const double gb = median(own);
  const double memcpy_gb = median(reference);
  rows_.push_back({layout, operation, gb, memcpy_gb, gb / memcpy_gb, tokens});
  if (isatty(2) != 0) print_err(fmt::format("\r{} measured", rows_.size()));
}

void CodecBench::codecs(const CacheLayout& layout) {
  const std::int64_t width = layout.row_elems();
  const std::int64_t per_token = 2 * width + layout.bytes_per_token();
  const std::int64_t pages = pages_for(per_token);
  const std::int64_t tokens = pages * kCodecPageSize;
  Bytes rows = make_rows(tokens * width);
  Bytes bytes = make_bytes(pages * layout.page_stride(kCodecPageSize));
  const PoolView pool(bytes.data(), layout, kCodecPageSize, pages);
  const RowsView in{rows.data(), DType::bf16, tokens, width, width};
  const MutableRowsView out{rows.data(), DType::bf16, tokens, width, width};
  const std::vector<Slot> order = in_order(tokens);
  const std::vector<Slot> random = shuffled(tokens);
  const auto time = [&](const char* operation, const std::function<Result<void>()>& work) {
    measure(layout.serialize(), operation, tokens, tokens * per_token, work);
  };
  time("encode", [&] { return encode_rows(in, order, pool); });
  time("decode", [&] { return decode_rows(pool, Slot(0), out); });
  time("gather_decode", [&] { return gather_decode(pool, random, out); });
}

void CodecBench::requantize_between(const CacheLayout& from, const CacheLayout& to) {
  const std::int64_t per_token = from.bytes_per_token() + to.bytes_per_token();
  const std::int64_t pages = pages_for(per_token);
  const std::int64_t tokens = pages * kCodecPageSize;
  Bytes a = make_bytes(pages * from.page_stride(kCodecPageSize));
  Bytes b = make_bytes(pages * to.page_stride(kCodecPageSize));
  const PoolView src(a.data(), from, kCodecPageSize, pages);
  const PoolView dst(b.data(), to, kCodecPageSize, pages);
  const std::vector<Slot> slots = in_order(tokens);
  {
    const std::int64_t width = from.row_elems();
    const Bytes rows = make_rows(tokens * width);
    const RowsView in{rows.data(), DType::bf16, tokens, width, width};
    LATHE_CHECK(encode_rows(in, slots, src).ok(), "encode");
  }
  measure(fmt::format("{} -> {}", from.name(), to.name()), "requantize", tokens, tokens * per_token,
          [&]() -> Result<void> {
            const auto r = requantize(src, slots, dst, slots);
            if (!r) return r.error();
            return {};
          });
}

void CodecBench::rope_write(const CacheLayout& layout, std::int64_t heads) {
  const std::int64_t width = layout.row_elems();
  const std::int64_t q_width = heads * width;
  const std::int64_t per_token = 2 * width + layout.bytes_per_token() + 4 * q_width;
  const std::int64_t pages = pages_for(per_token);
  const std::int64_t tokens = pages * kCodecPageSize;
  const Bytes k = make_rows(tokens * width);
  const Bytes q = make_rows(tokens * q_width);
  Bytes q_out = make_bytes(2 * tokens * q_width);
  Bytes bytes = make_bytes(pages * layout.page_stride(kCodecPageSize));
  constexpr std::int32_t kPositions = 4096;
  const auto table = RopeTable::make({.dim = 64}, kPositions);
  std::vector<LocalPos> positions;
  for (std::int32_t t = 0; t < tokens; ++t) positions.emplace_back(t % kPositions);
  const std::vector<Slot> slots = in_order(tokens);

  RopeWrite op;
  op.k = {k.data(), DType::bf16, tokens, width, width};
  if (heads > 0) {
    op.q = {q.data(), DType::bf16, tokens, q_width, q_width};
    op.q_out = {q_out.data(), DType::bf16, tokens, q_width, q_width};
  }
  op.positions = positions;
  op.slots = slots;
  op.table = &*table;
  if (layout.kind() == LayoutKind::index_fp8) op.place = RopePlace::first;
  const PoolView pool(bytes.data(), layout, kCodecPageSize, pages);
  measure(layout.serialize(), heads > 0 ? "rope_write_q" : "rope_write", tokens, tokens * per_token,
          [&] { return rope_quantize_write(op, pool); });
}

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const std::size_t colon = line.find(':');
    if (line.starts_with("model name") && colon != std::string::npos) {
      return line.substr(std::min(colon + 2, line.size()));
    }
  }
  return "unknown";
}

nlohmann::json to_json(const CodecBenchOptions& options, const std::string& gpu,
                       const std::vector<CodecBenchRow>& rows) {
  nlohmann::json out = {
      {"bytes", options.bytes}, {"repeats", options.repeats}, {"rows", nlohmann::json::array()}};
  if (!gpu.empty()) {
    out["gpu"] = gpu;
  } else {
    out.update({{"cpu", cpu_name()},
                {"simd_target", codec_simd_target()},
                {"threads", 1},
                {"q_heads", options.q_heads}});
  }
  for (const CodecBenchRow& r : rows) {
    out["rows"].push_back({{"layout", r.layout},
                           {"operation", r.operation},
                           {"gb_per_s", r.gb_per_s},
                           {"memcpy_gb_per_s", r.memcpy_gb_per_s},
                           {"ratio", r.ratio},
                           {"tokens", r.tokens}});
  }
  return out;
}

void print_table(const CodecBenchOptions& options, const std::string& gpu,
                 const std::vector<CodecBenchRow>& rows) {
  print_out(fmt::format(
      "{}, {} MiB a repeat, medians of {}\n",
      gpu.empty() ? fmt::format("{}, SIMD {}, one thread", cpu_name(), codec_simd_target()) : gpu,
      options.bytes >> 20, options.repeats));
  print_out(
      fmt::format("GB/s count bytes read and written; memcpy alternates with each repeat\n\n"));
  std::size_t wide = 6;
  std::size_t what = 13;
  for (const CodecBenchRow& r : rows) {
    wide = std::max(wide, r.layout.size());
    what = std::max(what, r.operation.size());
  }
  print_out(fmt::format("{:{}}  {:{}}  {:>7}  {:>7}  {:>6}\n", "layout", wide, "operation", what,
                        "GB/s", "memcpy", "ratio"));
  for (const CodecBenchRow& r : rows) {
    print_out(fmt::format("{:{}}  {:{}}  {:7.2f}  {:7.2f}  {:6.2f}\n", r.layout, wide, r.operation,
                          what, r.gb_per_s, r.memcpy_gb_per_s, r.ratio));
  }
}

}  // namespace

std::vector<CodecBenchRow> run_codec_bench(const CodecBenchOptions& options) {
  CodecBench bench(options);
  for (LayoutKind kind : enum_values<LayoutKind>()) {
    const CacheLayout layout(kind);
    bench.codecs(layout);
    if (is_gqa(kind)) continue;
    bench.rope_write(layout, 0);
    bench.rope_write(layout, options.q_heads);
  }
  bench.codecs(CacheLayout(LayoutKind::mla_fp8_block, default_dims(LayoutKind::mla_fp8_block),
                           ScalePolicy::raw_f32));
  const CacheLayout plain(LayoutKind::mla_fp8);
  const CacheLayout block(LayoutKind::mla_fp8_block);
  bench.requantize_between(plain, block);
  bench.requantize_between(block, plain);
  return bench.take();
}

int bench_codec_command(const CodecBenchOptions& options, bool json) {
  const auto refuse = [](const char* what, const char* wanted, std::int64_t got) {
    print_err(fmt::format("bench codec: {}: wanted {}, got {}\n", what, wanted, got));
    return 2;
  };
  constexpr std::int64_t kLeast = std::int64_t{1} << 20;
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  if (options.bytes < kLeast || options.bytes > kMost) {
    return refuse("bytes", "2^20 to 2^40", options.bytes);
  }
  if (options.repeats < 1) return refuse("repeats", "1 or more", options.repeats);
  if (options.q_heads < 1 || options.q_heads > 1024) {
    return refuse("q_heads", "1 to 1024", options.q_heads);
  }
  std::string gpu;
  std::vector<CodecBenchRow> rows;
  if (options.device == "cuda") {
    const Result<GpuInfo> found = open_gpu();
    if (!found) return lathe::refuse(found.error());
    gpu = found->model;
  }
  // A case's arrays, and those of the copy next to it.
  if (const auto ok = check_bench_memory(gpu.empty() ? Device::cpu : Device::sm90,
                                         2.0 * static_cast<double>(options.bytes), "--mebibytes",
                                         fmt::format("twice {}", options.bytes >> 20), "fewer");
      !ok) {
    return lathe::refuse(ok.error());
  }
  if (!gpu.empty()) {
    rows = bench_codec_on_gpu(options.bytes, options.repeats);
  } else {
    rows = run_codec_bench(options);
  }
  if (json) {
    print_out(fmt::format("{}\n", json_text(to_json(options, gpu, rows), 2)));
  } else {
    print_table(options, gpu, rows);
  }
  return 0;
}

}  // namespace lathe
