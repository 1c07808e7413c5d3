#include "kernels/cuda/sm90/codec/codec_speed.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "base/float_formats.h"
#include "kernels/cuda/common/gpu_timing.h"
#include "kernels/cuda/sm90/codec/codec.h"
#include "kernels/cuda/sm90/codec/codec_launch.h"

namespace lathe::cuda {
namespace {

constexpr std::int32_t kPageSize = 64;

// Normal bf16 numbers, as a layer produces, or random bytes. A short pattern is repeated over the
// array.
void fill(const Stream& stream, std::byte* data, std::int64_t bytes, bool numbers) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  std::vector<bf16> pattern(1 << 22);
  for (bf16& x : pattern) {
    x = numbers ? to_bf16(normal(rng)) : bf16{static_cast<std::uint16_t>(rng() & 0x3f3f)};
  }
  const auto size = static_cast<std::int64_t>(pattern.size() * sizeof(bf16));
  for (std::int64_t at = 0; at < bytes; at += size) {
    const auto n = static_cast<std::size_t>(std::min(size, bytes - at));
    need(call_result(cudaMemcpyAsync(data + at, pattern.data(), n, cudaMemcpyHostToDevice, stream),
                     "copy to the device"));
  }
  need(stream.wait());
}

DeviceArray<Slot> upload(const Stream& stream, const std::vector<Slot>& slots) {
  auto array = need(DeviceArray<Slot>::make(std::ssize(slots)));
  need(copy_to_device(std::span<const Slot>(slots), array.data(), stream));
  need(stream.wait());
  return array;
}

// Slots with pages in random order, tokens in order within a page.
std::vector<Slot> paged(std::int64_t pages, unsigned seed) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(pages));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  std::vector<Slot> out;
  for (const std::int32_t page : order) {
    for (std::int32_t i = 0; i < kPageSize; ++i) out.emplace_back(page * kPageSize + i);
  }
  return out;
}

std::vector<Slot> scattered(std::int64_t slots) {
  std::vector<Slot> out;
  for (std::int32_t i = 0; i < slots; ++i) out.emplace_back(i);
  std::shuffle(out.begin(), out.end(), std::mt19937(2));
  return out;
}

class Bench {
 public:
  Bench(const Stream& stream, const CodecSpeedOptions& options)
      : stream_(stream), options_(options), copy_(stream, options.bytes) {}

  void codecs(const CacheLayout& layout);
  void requantize_between(const CacheLayout& from, const CacheLayout& to);
  void rope_writes(const CacheLayout& layout, std::int64_t heads, DType q_out);
  void latency(const CacheLayout& layout, std::int64_t tokens, std::int64_t heads);
  CodecSpeed take() { return std::move(speed_); }

 private:
  std::int64_t pages_for(std::int64_t bytes_per_token) const {
    return std::max<std::int64_t>(options_.bytes / bytes_per_token / kPageSize, 2);
  }
  bool wanted(const std::string& layout, const std::string& operation) const {
    return (layout + " " + operation).find(options_.only) != std::string::npos;
  }
  template <class Work>
  void measure(const CacheLayout& layout, std::string operation, std::int64_t tokens,
               std::int64_t bytes, Work&& work) {
    if (!wanted(layout.serialize(), operation)) return;
    const Timing t = copy_.measure(bytes, options_.repeats, work);
    speed_.rows.push_back({layout.serialize(), std::move(operation), tokens,
                           static_cast<double>(bytes) / t.seconds / 1e9,
                           static_cast<double>(bytes) / t.copy_seconds / 1e9});
  }
  DeviceArray<std::byte> bytes(std::int64_t n, bool numbers) const {
    auto array = need(DeviceArray<std::byte>::make(n));
    fill(stream_, array.data(), n, numbers);
    return array;
  }

  const Stream& stream_;
  CodecSpeedOptions options_;
  AgainstCopy copy_;
  CodecSpeed speed_;
};

void Bench::codecs(const CacheLayout& layout) {
  const std::int64_t width = layout.row_elems();
  const std::int64_t stored = layout.bytes_per_token();
  const std::int64_t pages = pages_for(2 * width + stored);
  const std::int64_t tokens = pages * kPageSize;
  const auto rows = bytes(tokens * width * 2, true);
  const auto pool_bytes = bytes(pages * layout.page_stride(kPageSize), false);
  const PoolView pool(pool_bytes.data(), layout, kPageSize, pages);
  const RowsView in{rows.data(), DType::bf16, tokens, width, width};
  const MutableRowsView out{rows.data(), DType::bf16, tokens, width, width};
  const auto by_page = upload(stream_, paged(pages, 3));
  const auto any = upload(stream_, scattered(tokens));
  const auto scratch = need(DeviceArray<std::byte>::make(order_scratch_bytes(tokens)));
  const std::int64_t total = tokens * (2 * width + stored);
  measure(layout, "encode", tokens, total,
          [&] { return encode_rows(in, by_page.span(), pool, {}, stream_); });
  measure(layout, "encode scattered", tokens, total,
          [&] { return encode_rows(in, any.span(), pool, {}, stream_); });
  if (can_order(encode_params(in, any.span(), pool, {}), in.dtype)) {
    measure(layout, "encode scattered, ordered", tokens, total,
            [&] { return encode_scattered(in, any.span(), pool, {}, scratch.span(), stream_); });
  }
  measure(layout, "decode", tokens, total,
          [&] { return decode_rows(pool, Slot(0), out, {}, stream_); });
  measure(layout, "gather_decode", tokens, total,
          [&] { return gather_decode(pool, by_page.span(), out, {}, stream_); });
  measure(layout, "gather_decode scattered", tokens, total,
          [&] { return gather_decode(pool, any.span(), out, {}, stream_); });
  // Moves the first half of the slots to the second; they do not overlap, so no staging is needed.
  const auto half = static_cast<std::size_t>(tokens / 2);
  measure(layout, "move", tokens / 2, 2 * stored * (tokens / 2), [&] {
    return move_tokens(pool, by_page.span().first(half), by_page.span().subspan(half, half),
                       nullptr, stream_);
  });
}

void Bench::requantize_between(const CacheLayout& from, const CacheLayout& to) {
  const std::int64_t stored = from.bytes_per_token() + to.bytes_per_token();
  const std::int64_t pages = pages_for(stored);
  const std::int64_t tokens = pages * kPageSize;
  const auto src = bytes(pages * from.page_stride(kPageSize), false);
  const auto dst = bytes(pages * to.page_stride(kPageSize), false);
  const auto src_slots = upload(stream_, paged(pages, 4));
  {
    // Losses depend on the numbers, and so does the time to measure them.
    const std::int64_t width = from.row_elems();
    const auto rows = bytes(tokens * width * 2, true);
    need(encode_rows({rows.data(), DType::bf16, tokens, width, width}, src_slots.span(),
                     {src.data(), from, kPageSize, pages}, {}, stream_));
    need(stream_.wait());
  }
  const auto dst_slots = upload(stream_, paged(pages, 5));
  const auto words = need(DeviceArray<RequantWords>::make(1));
  for (RequantWords* report : {static_cast<RequantWords*>(nullptr), words.data()}) {
    const Requantize op{.src = {src.data(), from, kPageSize, pages},
                        .src_slots = src_slots.span(),
                        .dst = {dst.data(), to, kPageSize, pages},
                        .dst_slots = dst_slots.span(),
                        .report = report};
    measure(to,
            fmt::format("requantize from {}{}", from.name(),
                        report == nullptr ? "" : ", measuring the loss"),
            tokens, tokens * stored, [&] { return requantize(op, stream_); });
  }
}

void Bench::rope_writes(const CacheLayout& layout, std::int64_t heads, DType q_out) {
  const std::int64_t width = layout.row_elems();
  const std::int64_t per_token =
      2 * width + layout.bytes_per_token() + heads * (2 * width + bytes_of(q_out, width));
  const std::int64_t pages = pages_for(per_token);
  const std::int64_t tokens = pages * kPageSize;
  constexpr std::int64_t kPositions = 4096;
  const auto host_table = need(RopeTable::make({.dim = 64}, kPositions));
  const auto table = need(DeviceArray<float>::make(std::ssize(host_table.data())));
  need(copy_to_device(host_table.data(), table.data(), stream_));
  std::vector<LocalPos> host_positions;
  for (std::int32_t t = 0; t < tokens; ++t) host_positions.emplace_back(t % kPositions);
  const auto positions = need(DeviceArray<LocalPos>::make(tokens));
  need(copy_to_device(std::span<const LocalPos>(host_positions), positions.data(), stream_));
  need(stream_.wait());
  const auto k = bytes(tokens * width * 2, true);
  const auto q = bytes(tokens * heads * width * 2, true);
  const auto q_result = need(DeviceArray<std::byte>::make(bytes_of(q_out, tokens * heads * width)));
  const auto pool_bytes = bytes(pages * layout.page_stride(kPageSize), false);
  const auto slots = upload(stream_, paged(pages, 6));
  RopeWrite op;
  op.k = {k.data(), DType::bf16, tokens, width, width};
  op.positions = positions.span();
  op.slots = slots.span();
  op.table = {table.data(), kPositions, 64, RopePairing::interleaved};
  if (heads > 0) {
    op.q = {q.data(), DType::bf16, tokens, heads * width, heads * width};
    op.q_out = {q_result.data(), q_out, tokens, heads * width, heads * width};
  }
  const PoolView pool(pool_bytes.data(), layout, kPageSize, pages);
  measure(layout,
          heads == 0 ? "rope_write" : fmt::format("rope_write q {} heads {}", heads, name(q_out)),
          tokens, tokens * per_token, [&] { return rope_quantize_write(op, pool, stream_); });
}

void Bench::latency(const CacheLayout& layout, std::int64_t tokens, std::int64_t heads) {
  const std::string what =
      fmt::format("rope_write {} {} tokens {} heads", layout.name(), tokens, heads);
  if (!wanted("latency", what)) return;
  const std::int64_t width = layout.row_elems();
  const std::int64_t pages = tokens / kPageSize + 1;
  const auto host_table = need(RopeTable::make({.dim = 64}, 4096));
  const auto table = need(DeviceArray<float>::make(std::ssize(host_table.data())));
  need(copy_to_device(host_table.data(), table.data(), stream_));
  const std::vector<LocalPos> host_positions(static_cast<std::size_t>(tokens), LocalPos(77));
  const auto positions = need(DeviceArray<LocalPos>::make(tokens));
  need(copy_to_device(std::span<const LocalPos>(host_positions), positions.data(), stream_));
  need(stream_.wait());
  const auto k = bytes(tokens * width * 2, true);
  const auto q = bytes(tokens * heads * width * 2, true);
  const auto q_result = need(DeviceArray<std::byte>::make(tokens * heads * width * 2));
  const auto pool_bytes = bytes(pages * layout.page_stride(kPageSize), false);
  const auto slots = upload(stream_, paged(pages, 6));
  RopeWrite op;
  op.k = {k.data(), DType::bf16, tokens, width, width};
  op.q = {q.data(), DType::bf16, tokens, heads * width, heads * width};
  op.q_out = {q_result.data(), DType::bf16, tokens, heads * width, heads * width};
  op.positions = positions.span();
  op.slots = slots.span().first(static_cast<std::size_t>(tokens));
  op.table = {table.data(), 4096, 64, RopePairing::interleaved};
  const PoolView pool(pool_bytes.data(), layout, kPageSize, pages);
  constexpr int kCalls = 20;
  const auto graph = need(Graph::capture(stream_, [&]() -> Result<void> {
    for (int i = 0; i < kCalls; ++i) {
      if (auto ok = rope_quantize_write(op, pool, stream_); !ok) return ok;
    }
    return {};
  }));
  std::vector<double> seconds;
  for (int i = 0; i < options_.repeats + 2; ++i) {
    seconds.push_back(time_once(stream_, [&] { return graph.launch(stream_); }) / kCalls);
  }
  speed_.latencies.push_back({what, median(seconds)});
}

}  // namespace

CodecSpeed measure_codec_speed(const CodecSpeedOptions& options) {
  const auto stream = need(Stream::make());
  Bench bench(stream, options);
  for (const LayoutKind kind : enum_values<LayoutKind>()) bench.codecs(CacheLayout(kind));
  const CacheLayout fp8(LayoutKind::mla_fp8), block(LayoutKind::mla_fp8_block);
  bench.codecs({block.kind(), block.dims(), ScalePolicy::raw_f32});
  bench.requantize_between(fp8, block);
  bench.requantize_between(block, fp8);
  for (const LayoutKind kind : enum_values<LayoutKind>()) {
    if (!is_gqa(kind)) bench.rope_writes(CacheLayout(kind), 0, DType::bf16);
  }
  for (DType q_out : {DType::bf16, DType::e4m3}) {
    bench.rope_writes(block, 16, q_out);
    bench.rope_writes(block, 128, q_out);
  }
  for (std::int64_t tokens : {1, 128, 1024}) {
    for (std::int64_t heads : {16, 128}) bench.latency(block, tokens, heads);
  }
  return bench.take();
}

}  // namespace lathe::cuda
