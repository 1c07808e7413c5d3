// Times grouped-query attention on a GPU.
//
// gqa_gpu_bench [--filter TEXT] [--repeats N] [--json] [--peer FILE] [--case FP8,REQUESTS,...]
//
// --case is for one case instead of the table's: whether keys are e4m3, requests, rows, least and
// most keys of a request, heads, KV heads, dim, page size. --peer (bench_peer.h, gqa_peer.h) times
// another library on the same inputs, in turns, also in graphs, and prints 1 - cosine of both
// outputs.
//
// Captures a graph of 20 calls (attention and combine), times it and divides by 20, as a step's
// layers replay them. Each call reads another copy of the cache where L2 would hold one. The work
// list, which a step's layers share, is timed separately. Prints medians. Floor: keys and values
// that rows see, once per request, over 4.2 TB/s; or operations over 640 TFLOP/s where that is
// longer. Latents narrower than 512 have the floor of latent_gpu_bench: keys, q and out over 4.3
// TB/s, or operations over 790 TFLOP/s.
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string_view>

#include "base/float_formats.h"
#include "kernels/cuda/common/bench_peer.h"
#include "kernels/cuda/sm90/gqa/gqa_call.h"
#include "kernels/cuda/sm90/gqa/gqa_kernels.h"
#include "kernels/cuda/sm90/gqa/gqa_limits.h"
#include "kernels/cuda/sm90/gqa/test/gqa_peer.h"

namespace lathe::cuda {
namespace {

constexpr int kGraphCalls = 20;
constexpr unsigned kSeed = 20261124;

struct Case {
  const char* what;
  LayoutKind layout;
  std::int32_t requests, rows;
  std::int32_t least, most;  // keys of a request: random between them
  std::int32_t heads, kv_heads, head_dim, page;
  std::int32_t window = 0;  // negative: chunks of so many keys
  std::int32_t rope = 0;    // latents (layout mla_bf16): head_dim dims and these, one KV head
  std::int32_t listed = 0;  // latents: keys that a row selects; 0: all

  bool latent() const { return layout == LayoutKind::mla_bf16; }
  std::int32_t key_dim() const { return head_dim + rope; }
  std::int32_t value_dim() const { return head_dim == kGqaWideKey ? kGqaWideKeyValue : head_dim; }
};

constexpr LayoutKind kBf16 = LayoutKind::gqa_bf16, kFp8 = LayoutKind::gqa_fp8;
constexpr LayoutKind kLatent = LayoutKind::mla_bf16;
constexpr Case kCases[] = {
    {"decode", kBf16, 32, 1, 4096, 4096, 32, 8, 128, 16},
    {"decode", kBf16, 32, 1, 4096, 4096, 32, 8, 128, 64},
    {"decode", kBf16, 32, 1, 1, 8191, 32, 8, 128, 64},
    {"decode", kBf16, 128, 1, 1, 8191, 32, 8, 128, 16},
    {"decode", kBf16, 256, 1, 1024, 1024, 32, 8, 128, 64},
    {"decode", kBf16, 1, 1, 1024, 1024, 32, 4, 128, 64},
    {"decode", kBf16, 1, 1, 4096, 4096, 32, 8, 128, 64},
    {"decode", kBf16, 1, 1, 131072, 131072, 32, 8, 128, 64},
    {"decode", kFp8, 32, 1, 4096, 4096, 32, 8, 128, 64},
    {"decode", kFp8, 128, 1, 1, 8191, 32, 8, 128, 16},
    {"decode", kFp8, 64, 1, 4096, 4096, 64, 8, 64, 64},
    {"decode", kFp8, 32, 1, 4096, 4096, 16, 8, 256, 64},
    {"decode", kFp8, 32, 1, 4096, 4096, 64, 4, 128, 64},
    {"decode", kFp8, 1, 1, 131072, 131072, 32, 8, 128, 64},
    {"verify", kFp8, 32, 4, 4096, 4096, 32, 8, 128, 64},
    {"decode", kBf16, 64, 1, 4096, 4096, 64, 8, 64, 64},
    {"decode, window", kBf16, 64, 1, 4096, 4096, 64, 8, 64, 64, 128},
    {"decode", kBf16, 32, 1, 4096, 4096, 64, 4, 128, 64},
    {"decode", kBf16, 32, 1, 4096, 4096, 16, 8, 256, 64},
    {"verify", kBf16, 32, 4, 4096, 4096, 32, 8, 128, 64},
    {"verify", kBf16, 32, 4, 4096, 4096, 64, 4, 128, 64},
    {"verify", kBf16, 32, 8, 4096, 4096, 64, 8, 64, 64},
    {"verify", kBf16, 32, 4, 4096, 4096, 64, 4, 192, 64},
    {"verify", kBf16, 32, 3, 4096, 4096, 64, 4, 192, 64},
    {"verify", kBf16, 32, 4, 4096, 4096, 64, 4, 192, 64, 128},
    {"verify", kBf16, 64, 8, 4096, 4096, 16, 2, 256, 64},
    {"verify", kBf16, 64, 5, 4096, 4096, 16, 2, 256, 64},
    {"verify", kBf16, 1, 4, 8192, 8192, 64, 4, 128, 64},
    {"verify", kBf16, 1, 4, 8192, 8192, 64, 4, 192, 64},
    {"extend", kBf16, 1, 8192, 8192, 8192, 32, 8, 128, 64},
    {"extend", kBf16, 4, 2048, 10240, 10240, 32, 8, 128, 64},
    {"extend, short", kBf16, 8, 1024, 1024, 1024, 32, 8, 128, 64},
    {"extend, short", kBf16, 32, 256, 256, 256, 32, 8, 128, 64},
    {"extend, short", kBf16, 16, 256, 1280, 1280, 32, 8, 128, 64},
    {"extend", kBf16, 4, 2048, 2048, 10240, 64, 8, 64, 16},
    {"extend", kBf16, 1, 8192, 8192, 8192, 16, 8, 256, 64},
    {"decode, chunks", kBf16, 32, 1, 12288, 12288, 40, 8, 128, 64, -8192},
    {"decode", kBf16, 32, 1, 4096, 4096, 40, 8, 128, 64},
    {"verify, chunks", kBf16, 32, 4, 12288, 12288, 40, 8, 128, 64, -8192},
    {"verify, chunks", kBf16, 32, 4, 8194, 8194, 40, 8, 128, 64, -8192},
    {"verify", kBf16, 32, 4, 4096, 4096, 40, 8, 128, 64},
    {"extend, chunks", kBf16, 1, 8192, 12288, 12288, 40, 8, 128, 64, -8192},
    {"extend, chunks", kBf16, 1, 8192, 16384, 16384, 40, 8, 128, 64, -8192},
    {"extend", kBf16, 1, 8192, 8192, 8192, 40, 8, 128, 64},
    {"latent decode", kLatent, 128, 1, 4096, 4096, 32, 1, 256, 64, 0, 64},
    {"latent decode", kLatent, 8, 1, 32768, 32768, 32, 1, 256, 64, 0, 64},
    {"latent decode", kLatent, 128, 1, 4096, 4096, 40, 1, 256, 64, 0, 32},
    {"latent decode", kLatent, 8, 1, 32768, 32768, 40, 1, 256, 64, 0, 32},
    {"latent decode", kLatent, 128, 1, 4096, 4096, 64, 1, 128, 64, 0, 32},
    {"latent decode", kLatent, 8, 1, 32768, 32768, 64, 1, 128, 64, 0, 32},
    {"latent decode", kLatent, 1, 1, 8192, 8192, 64, 1, 128, 64, 0, 32},
    {"latent decode", kLatent, 128, 1, 1, 8191, 64, 1, 128, 16, 0, 32},
    {"latent verify", kLatent, 128, 2, 4096, 4096, 32, 1, 128, 64, 0, 32},
    {"latent decode", kLatent, 128, 1, 32768, 32768, 64, 1, 128, 64, 0, 32, 2048},
    {"latent decode", kLatent, 128, 1, 32768, 32768, 32, 1, 128, 64, 0, 32, 2048},
    {"latent decode", kLatent, 8, 1, 32768, 32768, 32, 1, 128, 64, 0, 32, 2048},
    {"latent extend", kLatent, 1, 1024, 32768, 32768, 32, 1, 128, 64, 0, 32, 2048},
    {"latent extend", kLatent, 1, 1024, 8192, 8192, 32, 1, 256, 64, 0, 64},
    {"latent extend", kLatent, 1, 1024, 8192, 8192, 40, 1, 256, 64, 0, 32},
    {"latent decode", kLatent, 128, 1, 4096, 4096, 32, 1, 128, 64, 0, 32},
    {"latent decode", kLatent, 8, 1, 32768, 32768, 32, 1, 128, 64, 0, 32},
    {"latent extend", kLatent, 1, 1024, 8192, 8192, 64, 1, 128, 64, 0, 32},
};

/// Random elements of `dtype`.
std::vector<std::byte> random_bytes(std::int64_t bytes, DType dtype, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  std::vector<std::byte> codes(1 << 16), out(static_cast<std::size_t>(bytes));
  for (std::size_t i = 0; i < codes.size(); i += dtype == DType::e4m3 ? 1 : 2) {
    const float x = normal(rng);
    if (dtype == DType::e4m3) {
      codes[i] = std::byte{to_e4m3(x).bits};
    } else {
      const bf16 value = to_bf16(x);
      std::memcpy(&codes[i], &value, 2);
    }
  }
  for (std::size_t i = 0; i < out.size(); i += 64) {
    std::memcpy(&out[i], &codes[rng() % (codes.size() / 64) * 64], 64);
  }
  return out;
}

/// For each row distinct slots of its request, in random order.
std::vector<std::int32_t> lists_of(const Case& c, const std::vector<PageId>& table,
                                   std::int64_t width, std::mt19937& rng) {
  std::vector<std::int32_t> out, slots;
  for (std::int64_t r = 0; r < c.requests; ++r) {
    slots.clear();
    for (std::int64_t i = 0; i < width * c.page; ++i) {
      const PageId page = table[static_cast<std::size_t>(r * width + i / c.page)];
      slots.push_back(page.value * c.page + static_cast<std::int32_t>(i % c.page));
    }
    for (std::int32_t row = 0; row < c.rows; ++row) {
      for (std::int32_t i = 0; i < c.listed; ++i) {
        const auto at = static_cast<std::size_t>(i);
        std::swap(slots[at], slots[at + rng() % (slots.size() - at)]);
      }
      out.insert(out.end(), slots.begin(), slots.begin() + c.listed);
    }
  }
  return out;
}

struct Row {
  std::string what;
  double microseconds = 0, schedule = 0, floor = 0, flops = 0, peer = 0;
  std::string peer_columns;
};

/// p: a call's, with its copy of the cache.
LatheGqaPeerCall peer_call(const Case& c, const AttendArgs& args, const GqaParams& p,
                           const std::vector<std::int32_t>& lens, void* out) {
  return {.kind = "gqa",
          .format = c.layout == kFp8 ? "e4m3" : "bf16",
          .requests = c.requests,
          .rows = c.rows,
          .heads = c.heads,
          .kv_heads = c.kv_heads,
          .key_dim = c.key_dim(),
          .value_dim = c.value_dim(),
          .window = c.window,
          .scale = args.problem.scale,
          .q = p.q,
          .keys = p.keys,
          .values = p.values,
          .page_stride = p.page_stride,
          .key_stride = p.token_bytes,
          .value_stride = p.value_bytes,
          .pages = p.pages,
          .page_size = c.page,
          .table_width = p.table_width,
          .page_table = p.table,
          .lengths = p.kv_lens,
          .least_length = std::ranges::min(lens),
          .most_length = std::ranges::max(lens),
          .out = out};
}

AttentionProblem problem_of(const Case& c) {
  if (!c.latent()) {
    AttentionProblem p = gqa_problem(c.heads, c.kv_heads, c.head_dim);
    p.v_head_dim = c.value_dim();
    p.window = std::abs(c.window);
    p.chunked = c.window < 0;
    return p;
  }
  AttentionProblem p;
  p.kind = c.listed > 0 ? ProblemKind::sparse_latent : ProblemKind::dense_latent;
  p.top_k = c.listed;
  p.heads = c.heads;
  p.nope = c.head_dim;
  p.rope = c.rope;
  p.scale = 1 / std::sqrt(static_cast<float>(p.qk_dim()));
  return p;
}

CacheLayout layout_of(const Case& c) {
  if (c.latent()) return CacheLayout(c.layout, {.nope = c.head_dim, .rope = c.rope});
  return CacheLayout(c.layout,
                     {.kv_heads = c.kv_heads, .head_dim = c.head_dim, .v_head_dim = c.value_dim()});
}

std::string name_of(const Case& c) {
  std::string what =
      fmt::format("{} {} b{} rows {} keys {}-{} {}/{} d{}{} page {}", c.what, layout_of(c).name(),
                  c.requests, c.rows, c.least, c.most, c.heads, c.kv_heads, c.head_dim,
                  c.latent() ? fmt::format(" + {}", c.rope) : "", c.page);
  if (c.window != 0) what += fmt::format(" window {}", std::abs(c.window));
  if (c.listed > 0) what += fmt::format(" k {}", c.listed);
  return what;
}

Row run_case(const Case& c, const Stream& stream, int sms, int repeats, PeerSide& peer) {
  std::mt19937 rng(kSeed);
  AttendArgs args;
  args.problem = problem_of(c);
  std::vector<std::int32_t> indptr{0}, lens;
  double seen = 0, pairs = 0;
  for (int r = 0; r < c.requests; ++r) {
    const auto range = static_cast<unsigned>(c.most - c.least + 1);
    const std::int32_t keys = std::max(c.rows, c.least + static_cast<std::int32_t>(rng() % range));
    lens.push_back(keys);
    indptr.push_back(indptr.back() + c.rows);
    args.max_kv_len = std::max<std::int64_t>(args.max_kv_len, keys);
    const AttentionProblem& p = args.problem;
    seen += static_cast<double>(keys - p.first_key(keys - c.rows));
    for (int row = 0; row < c.rows; ++row) {
      const int position = keys - c.rows + row;
      pairs += c.listed > 0 ? c.listed : static_cast<double>(position + 1 - p.first_key(position));
    }
  }
  const std::int64_t width = (args.max_kv_len + c.page - 1) / c.page;
  std::vector<PageId> table(static_cast<std::size_t>(c.requests * width));
  std::vector<std::int32_t> order(table.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::shuffle(order, rng);
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = PageId(order[i]);

  const CacheLayout layout = layout_of(c);
  const std::int64_t pages = std::ssize(table), bytes = pages * layout.page_stride(c.page);
  const std::int64_t copies =
      std::clamp<std::int64_t>((std::int64_t{1} << 30) / bytes, 1, kGraphCalls);
  const auto seed = upload(random_bytes(64 << 20, layout.value_dtype(), rng), stream);
  auto pool = need(DeviceArray<std::byte>::make(copies * bytes));
  for (std::int64_t at = 0; at < pool.size(); at += seed.size()) {
    need(call_result(
        cudaMemcpyAsync(pool.data() + at, seed.data(),
                        static_cast<std::size_t>(std::min(seed.size(), pool.size() - at)),
                        cudaMemcpyDeviceToDevice, stream),
        "copy on the device"));
  }
  const std::int64_t rows = indptr.back(), elements = c.heads * c.value_dim();
  const std::int64_t q_elements = c.heads * c.key_dim();
  const auto q = upload(random_bytes(rows * q_elements * 2, DType::bf16, rng), stream);
  const auto out = need(DeviceArray<std::byte>::make(rows * elements * 2));
  const auto d_indptr = upload(indptr, stream);
  const auto d_lens = upload(lens, stream);
  const auto d_table = upload(table, stream);
  args.q = {q.data(), DType::bf16, rows, q_elements, q_elements};
  args.out = {out.data(), DType::bf16, rows, elements, elements};
  args.q_indptr = d_indptr.span();
  args.kv_lens = d_lens.span();
  args.main.page_table = d_table.span();
  args.main.table_width = width;
  args.max_request_rows = c.rows;
  args.main.pool.emplace(pool.data(), layout, c.page, pages);
  std::optional<DeviceArray<std::int32_t>> list;
  if (c.listed > 0) {
    list.emplace(upload(lists_of(c, table, width, rng), stream));
    args.main.page_table = {};
    args.main.table_width = 0;
    args.main.indices = list->span();
    args.main.index_width = c.listed;
  }
  need(check_gqa_call(args));
  const GqaShape shape = gqa_shape(args, sms);
  const auto memory = need(DeviceArray<std::byte>::make(shape.bytes()));
  const auto schedule = [&] {
    return call_result(
        launch_gqa_schedule(
            gqa_params(args, shape, memory.data(), memory.data() + shape.schedule_bytes), stream),
        "gqa_schedule");
  };
  need(schedule());
  const auto params_of = [&](int call) {
    args.main.pool.emplace(pool.data() + call % copies * bytes, layout, c.page, pages);
    return gqa_params(args, shape, memory.data(), memory.data() + shape.schedule_bytes);
  };
  const Graph graph = need(Graph::capture(stream, [&]() -> Result<void> {
    for (int i = 0; i < kGraphCalls; ++i) {
      const GqaParams p = params_of(i);
      const cudaError_t status = c.latent() ? launch_gqa_rows(p, c.head_dim, stream)
                                            : launch_gqa(p, c.head_dim, c.layout == kFp8, stream);
      if (auto ok = call_result(status, "gqa"); !ok) return ok;
      if (auto ok = call_result(launch_gqa_combine(p, c.value_dim(), stream), "gqa_combine"); !ok) {
        return ok;
      }
    }
    return {};
  }));
  const auto peer_out = need(DeviceArray<std::byte>::make(peer.given() ? out.size() : 1));
  std::deque<LatheGqaPeerCall> calls;
  for (int i = 0; i < copies && peer.given() && !c.latent(); ++i) {
    peer.add(&calls.emplace_back(peer_call(c, args, params_of(i), lens, peer_out.data())));
  }
  std::vector<std::function<Result<void>()>> sides = {[&] { return graph.launch(stream); },
                                                      schedule};
  std::optional<Graph> peer_graph;
  if (peer.supports()) {
    peer_graph.emplace(need(Graph::capture(stream, [&]() -> Result<void> {
      for (int i = 0; i < kGraphCalls; ++i) need(peer.run(i));
      return {};
    })));
    sides.emplace_back([&] { return peer_graph->launch(stream); });
  }
  const std::vector<double> seconds = time_in_turns(stream, repeats, sides);
  Row row;
  row.what = name_of(c);
  row.microseconds = seconds[0] / kGraphCalls * 1e6;
  row.schedule = seconds[1] * 1e6;
  std::string difference;
  if (peer.supports()) {
    row.peer = seconds[2] / kGraphCalls * 1e6;
    peer.finish(kGraphCalls - 1);  // the copy that the graph's last call has read
    const auto values = [](const auto& a) {
      return reinterpret_cast<const std::uint16_t*>(a.data());
    };
    difference = fmt::format(
        "{:.1e}", one_minus_cosine(values(out), values(peer_out), rows * elements, stream));
  }
  row.peer_columns = peer.columns(row.microseconds, row.peer, difference);
  peer.clear();
  const double operations = 2.0 * pairs * c.heads * (c.key_dim() + c.value_dim());
  row.flops = operations / row.microseconds * 1e-6;
  // Rows of a prefill select most keys of their request between them.
  const double keys = c.listed > 0 && c.rows == 1 ? pairs : seen;
  const double read = keys * layout.bytes_per_token();
  const auto passed = static_cast<double>(2 * rows * (q_elements + elements));
  row.floor = c.latent() ? std::max((read + passed) / 4.3e6, operations / 790e6)
                         : std::max(read / 4.2e6, operations / 640e6);
  return row;
}

Case case_of(const char* text) {
  const auto n = case_numbers(text, "fp8,requests,rows,least,most,heads,kv_heads,dim,page");
  return {"case", n[0] != 0 ? kFp8 : kBf16, n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8]};
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
    std::printf("%-66s %9.1f us  floor %8.1f  share %4.0f %%  %6.1f TF  list %5.1f us%s\n",
                row.what.c_str(), row.microseconds, row.floor, 100 * row.floor / row.microseconds,
                row.flops, row.schedule, row.peer_columns.c_str());
    std::fflush(stdout);
    all.push_back({{"case", row.what},
                   {"us", row.microseconds},
                   {"floor_us", row.floor},
                   {"schedule_us", row.schedule},
                   {"tflops", row.flops}});
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
