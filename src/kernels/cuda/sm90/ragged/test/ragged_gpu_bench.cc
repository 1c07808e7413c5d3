// Times attention over expanded keys on a GPU, next to absorbed attention.
//
// ragged_gpu_bench [--filter TEXT] [--repeats N] [--json] [--peer FILE] [--case REQUESTS,...]
//
// --case is for one case instead of the table's: requests, least and most rows of a request, least
// and most keys of its prefix, heads of (192, 128). --peer (bench_peer.h, ragged_peer.h) times
// another library's attention, in turns with ours over the same expanded keys, and prints 1 -
// cosine of both outputs.
//
// Random latents, weights and queries. A call gathers latents, expands them and attends; the work
// list, which a step's layers share, is made before. Attention alone, as a graph, reads keys that
// were expanded before, for the same heads at a time. Prints medians of calls timed one by one. TF
// counts the operations of Q K and P V for visible keys. Floor: those at 640 TFLOP/s plus the
// expansion at 800, the rates of cuDNN and cuBLASLt. The absorbed call is the same step without its
// two GEMMs per head.
#include <cmath>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <string_view>

#include "base/float_formats.h"
#include "kernels/cuda/common/bench_peer.h"
#include "kernels/cuda/sm90/gqa/gqa_kernels.h"
#include "kernels/cuda/sm90/latent/latent_attend.h"
#include "kernels/cuda/sm90/ragged/ragged_attend.h"
#include "kernels/cuda/sm90/ragged/ragged_call.h"
#include "kernels/cuda/sm90/ragged/ragged_kernels.h"
#include "kernels/cuda/sm90/ragged/test/ragged_peer.h"
#include "step/schedule.h"

namespace lathe::cuda {
namespace {

constexpr unsigned kSeed = 20261125;

struct Case {
  std::int32_t requests, rows, prefix_least, prefix_most;  // of a request
  std::int32_t heads, nope_head, v_head;
  DType weights = DType::e4m3;
  LayoutKind layout = LayoutKind::mla_bf16;
  std::int32_t rows_least = 0;  // 0: all requests have `rows`
};
constexpr DType kBf16 = DType::bf16;
constexpr Case kCases[] = {
    {1, 8192, 0, 0, 128, 128, 128},
    {1, 8192, 0, 0, 128, 128, 128, kBf16},
    {1, 8192, 0, 0, 128, 128, 128, DType::e4m3, LayoutKind::mla_fp8_block},
    {1, 2048, 0, 0, 128, 128, 128},
    {1, 8192, 0, 0, 16, 128, 128},
    {4, 2048, 8192, 8192, 128, 128, 128},
    {16, 512, 0, 8192, 128, 128, 128},
    {1, 8192, 65536, 65536, 16, 128, 128},
    {1, 8192, 0, 0, 64, 192, 256},
    {1, 64, 8192, 8192, 128, 128, 128},
    {1, 128, 8192, 8192, 128, 128, 128},
    {1, 192, 8192, 8192, 128, 128, 128},
    {1, 256, 8192, 8192, 128, 128, 128},
    {1, 384, 8192, 8192, 128, 128, 128},
    {1, 192, 8192, 8192, 16, 128, 128},
    {1, 384, 8192, 8192, 16, 128, 128},
};

/// Normal random numbers times `factor`: one random run, repeated.
std::vector<std::byte> random_values(std::int64_t count, DType dtype, float factor,
                                     std::mt19937& rng) {
  std::normal_distribution<float> normal;
  const std::int64_t size = bits_of(dtype) / 8;
  std::vector<std::byte> drawn(static_cast<std::size_t>(size << 16));
  std::vector<std::byte> out(static_cast<std::size_t>(size * count));
  for (std::size_t i = 0; i < drawn.size(); i += static_cast<std::size_t>(size)) {
    const float x = factor * normal(rng);
    const bf16 narrow = to_bf16(x);
    if (dtype == DType::e4m3) {
      drawn[i] = std::byte{to_e4m3(x).bits};
    } else {
      std::memcpy(&drawn[i], &narrow, 2);
    }
  }
  for (std::size_t i = 0; i < out.size(); i += 64) {
    std::memcpy(&out[i], &drawn[rng() % (drawn.size() / 64) * 64],
                std::min<std::size_t>(64, out.size() - i));
  }
  return out;
}

/// A step's arrays on the device, for both kernels.
struct Bench {
  static constexpr std::int32_t kPage = 64;
  const Case& c;
  const Stream& stream;
  std::mt19937 rng{kSeed};
  std::vector<std::int32_t> host_indptr, host_lens;
  std::vector<PageId> host_table;
  AttendArgs args;
  double pairs = 0;
  std::int64_t keys = 0;
  DeviceArray<std::byte> pool, q, out, absorbed_q, absorbed_out, kv_b;
  DeviceArray<float> scales;
  DeviceArray<std::int32_t> indptr, lens;
  DeviceArray<PageId> table;
  Scratch scratch{kDeviceMemory};

  Bench(const Case& of, const Stream& on)
      : c(of),
        stream(on),
        pool(random_pool()),
        q(random(rows() * c.heads * (c.nope_head + 64), DType::bf16, 1)),
        out(need(DeviceArray<std::byte>::make(rows() * c.heads * c.v_head * 2))),
        absorbed_q(random(rows() * c.heads * 576, DType::bf16, 1)),
        absorbed_out(need(DeviceArray<std::byte>::make(rows() * c.heads * 512 * 2))),
        kv_b(random(head_rows() * 512, c.weights, c.weights == kBf16 ? 0.044f : 16)),
        scales(upload(std::vector<float>(static_cast<std::size_t>((head_rows() + 127) / 128 * 4),
                                         0.044f / 16),
                      stream)),
        indptr(upload(host_indptr, stream)),
        lens(upload(host_lens, stream)),
        table(upload(host_table, stream)) {
    args.problem = deepseek_v3_problem(c.heads);
    args.problem.qk_nope_head = c.nope_head;
    args.problem.v_head = c.v_head;
    const std::int64_t q_width = c.heads * (c.nope_head + 64), out_width = c.heads * c.v_head;
    args.q = {q.data(), DType::bf16, rows(), q_width, q_width};
    args.out = {out.data(), DType::bf16, rows(), out_width, out_width};
    args.q_indptr = indptr.span();
    args.kv_lens = lens.span();
    args.main.page_table = table.span();
    args.main.table_width = std::ssize(host_table) / c.requests;
    args.main.pool.emplace(pool.data(), CacheLayout(c.layout), kPage, std::ssize(host_table));
    args.expansion.kv_b = kv_b.data();
    args.expansion.kv_b_dtype = c.weights;
    args.expansion.kv_b_scales = c.weights == kBf16 ? nullptr : scales.data();
    args.max_request_rows = c.rows;
    args.max_kv_len = *std::max_element(host_lens.begin(), host_lens.end());
    args.total_keys = keys;
    args.execution.scratch = &scratch;
    args.execution.stream = stream.get();
  }
  std::int64_t rows() const { return host_indptr.back(); }
  std::int64_t head_rows() const { return std::int64_t{c.heads} * (c.nope_head + c.v_head); }
  DeviceArray<std::byte> random(std::int64_t count, DType dtype, float factor) {
    return upload(random_values(count, dtype, factor, rng), stream);
  }
  DeviceArray<std::byte> random_pool() {
    host_indptr = {0};
    std::int64_t longest = 0;
    for (int r = 0; r < c.requests; ++r) {
      const auto range = static_cast<unsigned>(c.prefix_most - c.prefix_least + 1);
      const std::int32_t prefix = c.prefix_least + static_cast<std::int32_t>(rng() % range);
      std::int32_t count = c.rows;
      if (c.rows_least > 0) {
        const auto row_range = static_cast<unsigned>(c.rows - c.rows_least + 1);
        count = c.rows_least + static_cast<std::int32_t>(rng() % row_range);
      }
      host_lens.push_back(prefix + count);
      host_indptr.push_back(host_indptr.back() + count);
      longest = std::max<std::int64_t>(longest, prefix + count);
      keys += prefix + count;
      pairs += (prefix + (count + 1) / 2.) * count;
    }
    const std::int64_t pages = c.requests * ((longest + kPage - 1) / kPage);
    for (std::int64_t i = 0; i < pages; ++i) host_table.emplace_back(static_cast<std::int32_t>(i));
    std::ranges::shuffle(host_table, rng);
    const CacheLayout layout(c.layout);
    auto bytes = random_values(pages * layout.page_stride(kPage) / 2, DType::bf16, 1, rng);
    if (c.layout == LayoutKind::mla_fp8_block) {
      // Each token's codes are followed by four scales of 1.
      for (std::size_t t = 0; t + 656 <= bytes.size(); t += 656) {
        for (std::size_t i = 0; i < 512; ++i) bytes[t + i] &= std::byte{0xbf};
        for (std::size_t i = 0; i < 4; ++i) {
          const float one = 1;
          std::memcpy(&bytes[t + 512 + 4 * i], &one, 4);
        }
      }
    }
    return upload(bytes, stream);
  }

  AttendArgs absorbed() const {
    AttendArgs a = args;
    a.expansion = {};
    a.q = {absorbed_q.data(), DType::bf16, rows(), c.heads * 576, c.heads * 576};
    a.out = {absorbed_out.data(), DType::bf16, rows(), c.heads * 512, c.heads * 512};
    return a;
  }
};

/// Attention alone: keys of all heads are expanded once, and each pass has its part of them.
class Expanded {
 public:
  Expanded(const Bench& b, int sms) : c_(b.c), stream_(b.stream) {
    AttendArgs args = b.args;
    args.execution.scratch = &scratch_;
    args.schedule = nullptr;
    const RaggedRoom room{.workspace = std::int64_t{1} << 40, .pass_tiles = std::int64_t{1} << 40};
    const RaggedShape all = need(ragged_shape(args, sms, room));
    std::byte* memory = scratch_.take(all.bytes());
    need(attend_ragged_as_cut(args, all));
    all_ = ragged_params(args, all, 0, memory, memory + all.list_bytes);
    const RaggedShape cut = need(ragged_shape(args, sms));
    if (!cut.shares_list(args)) {
      passes_ = {all_};
      return;
    }
    for (std::int32_t head = 0; head < c_.heads; head += cut.heads) {
      memory_.push_back(need(DeviceArray<std::byte>::make(cut.pass_bytes)));
      // The cast is safe: kernels only read a list that the step's layers share.
      std::byte* list = const_cast<std::byte*>(b.args.schedule->device());
      const RaggedParams p = ragged_params(args, cut, head, list, memory_.back().data());
      const auto copy = [&](auto* to, const auto* from, std::int64_t of, std::int64_t width) {
        const auto bytes = [](std::int64_t n) { return static_cast<std::size_t>(n) * sizeof(*to); };
        need(call_result(
            cudaMemcpy2DAsync(to, bytes(width), from, bytes(of), bytes(width),
                              static_cast<std::size_t>(b.keys), cudaMemcpyDeviceToDevice, stream_),
            "cudaMemcpy2DAsync"));
      };
      copy(p.slots, all_.slots, 1, 1);
      copy(p.latents, all_.latents, p.latent_width, p.latent_width);
      copy(p.expanded, all_.expanded + std::int64_t{head} * p.head_width,
           std::int64_t{c_.heads} * p.head_width, std::int64_t{cut.heads} * p.head_width);
      passes_.push_back(p);
    }
  }
  Result<void> attend() const {
    for (const RaggedParams& p : passes_) {
      const cudaError_t status = c_.nope_head == 128 ? launch_ragged_m128<192, 128>(p, stream_)
                                                     : launch_ragged_m128<256, 256>(p, stream_);
      if (auto ok = call_result(status, "ragged_m128"); !ok) return ok;
      const cudaError_t combined = launch_gqa_combine(p.gqa, c_.v_head, stream_);
      if (auto ok = call_result(combined, "gqa_combine"); !ok) return ok;
    }
    return {};
  }
  LatheRaggedPeerCall peer_call(const Bench& b, void* out) const {
    LatheRaggedPeerCall call{.kind = "ragged",
                             .requests = c_.requests,
                             .heads = c_.heads,
                             .nope = c_.nope_head,
                             .rope = 64,
                             .value_dim = c_.v_head,
                             .scale = b.args.problem.scale,
                             .q = all_.gqa.q,
                             .q_begins = all_.gqa.q_indptr,
                             .k_begins = all_.bases,
                             .rows = all_.gqa.q_rows,
                             .keys = static_cast<std::int32_t>(b.keys),
                             .least_rows = INT32_MAX,
                             .most_rows = 0,
                             .least_keys = std::ranges::min(b.host_lens),
                             .most_keys = std::ranges::max(b.host_lens),
                             .expanded = all_.expanded,
                             .key_rope = all_.latents + (all_.latent_width - 64),
                             .key_rope_stride = all_.latent_width,
                             .out = out};
    for (std::size_t r = 0; r < b.host_lens.size(); ++r) {
      const std::int32_t rows = b.host_indptr[r + 1] - b.host_indptr[r];
      call.least_rows = std::min(call.least_rows, rows);
      call.most_rows = std::max(call.most_rows, rows);
    }
    return call;
  }

 private:
  const Case& c_;
  const Stream& stream_;
  Scratch scratch_{kDeviceMemory};
  std::vector<DeviceArray<std::byte>> memory_;
  RaggedParams all_;
  std::vector<RaggedParams> passes_;
};

struct Row {
  std::string what;
  double microseconds = 0, floor = 0, flops = 0, absorbed = 0, attention = 0, peer = 0;
  std::string peer_columns;
};

std::string name_of(const Case& c) {
  const std::string rows =
      c.rows_least > 0 ? fmt::format("{}-{}", c.rows_least, c.rows) : fmt::format("{}", c.rows);
  return fmt::format("{} x {} rows onto {}-{}, {} heads ({}, {}), kv_b {}, {}", c.requests, rows,
                     c.prefix_least, c.prefix_most, c.heads, c.nope_head + 64, c.v_head,
                     name(c.weights), name(c.layout));
}

Row run_case(const Case& c, const Stream& stream, int sms, int repeats, PeerSide& peer) {
  Bench b(c, stream);
  Row row;
  row.what = name_of(c);
  const double attention = 2 * b.pairs * c.heads * (c.nope_head + 64 + c.v_head);
  const double expansion = 2. * static_cast<double>(b.keys * b.head_rows()) * 512;
  row.floor = attention / 640e6 + expansion / 800e6;
  Schedule schedule(kDeviceMemory), of_absorbed(kDeviceMemory);
  need(prepare_ragged_on_device(b.args, schedule));
  b.args.schedule = &schedule;
  const Expanded expanded(b, sms);
  const auto peer_out = need(DeviceArray<std::byte>::make(peer.given() ? b.out.size() : 1));
  const LatheRaggedPeerCall call = expanded.peer_call(b, peer_out.data());
  peer.add(&call);
  const auto graph_of = [&](const std::function<Result<void>()>& work) {
    return need(Graph::capture(stream, work));
  };
  const Graph own_graph = graph_of([&] { return expanded.attend(); });
  std::vector<std::function<Result<void>()>> sides = {
      [&] { return attend_ragged_on_device(b.args); }, [&] { return own_graph.launch(stream); }};
  std::optional<Graph> peer_graph;
  if (peer.supports()) {
    peer_graph.emplace(graph_of([&] { return peer.run(); }));
    sides.emplace_back([&] { return peer_graph->launch(stream); });
  }
  const std::vector<double> seconds = time_in_turns(stream, repeats, sides);
  row.microseconds = seconds[0] * 1e6;
  row.attention = seconds[1] * 1e6;
  row.flops = attention / row.microseconds * 1e-6;
  std::string difference;
  if (peer.supports()) {
    row.peer = seconds[2] * 1e6;
    peer.finish();
    const auto values = [](const auto& a) {
      return reinterpret_cast<const std::uint16_t*>(a.data());
    };
    difference = fmt::format(
        "{:.1e}", one_minus_cosine(values(b.out), values(peer_out), b.out.size() / 2, stream));
  }
  row.peer_columns = peer.columns(row.attention, row.peer, difference);
  peer.clear();
  AttendArgs absorbed = b.absorbed();
  need(prepare_latent_on_device(absorbed, of_absorbed));
  absorbed.schedule = &of_absorbed;
  row.absorbed =
      time_in_turns(stream, repeats, {[&] { return attend_latent_on_device(absorbed); }})[0] * 1e6;
  return row;
}

Case case_of(const char* text) {
  const auto n = case_numbers(text, "requests,rows_least,rows,prefix_least,prefix_most,heads");
  Case c{n[0], n[2], n[3], n[4], n[5], 128, 128};
  c.rows_least = n[1];
  return c;
}

int run(const BenchOptions& o) {
  const Device device = need(open_device());
  const Stream stream = need(Stream::make());
  PeerSide peer(o.peer, stream);
  std::printf("%s seed %u\n", device.model.c_str(), kSeed);
  nlohmann::json all = nlohmann::json::array();
  const Case only = o.only != nullptr ? case_of(o.only) : Case{};
  for (const Case& c : o.only != nullptr ? std::span(&only, 1) : std::span(kCases)) {
    if (name_of(c).find(o.filter) == std::string::npos) continue;
    const Row row = run_case(c, stream, device.sms, o.repeats, peer);
    std::printf(
        "%-82s %9.1f us  floor %8.1f  share %3.0f %%  %6.1f TF  absorbed %9.1f us  "
        "attention %9.1f us%s\n",
        row.what.c_str(), row.microseconds, row.floor, 100 * row.floor / row.microseconds,
        row.flops, row.absorbed, row.attention, row.peer_columns.c_str());
    std::fflush(stdout);
    all.push_back({{"case", row.what},
                   {"us", row.microseconds},
                   {"floor_us", row.floor},
                   {"tflops", row.flops},
                   {"absorbed_us", row.absorbed},
                   {"attention_us", row.attention}});
    if (row.peer > 0) all.back()["peer_us"] = row.peer;
  }
  if (o.json) std::printf("%s\n", all.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace lathe::cuda

int main(int argc, char** argv) {
  return lathe::cuda::run_with_options(argc, argv, lathe::cuda::run);
}
