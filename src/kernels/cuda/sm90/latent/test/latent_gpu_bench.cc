// How long latent attention takes on a GPU.
//
// latent_gpu_bench [--peer FILE] [--filter TEXT] [--repeats N] [--min-block-m N] [--graph] [--json]
//                  [--seed N]
// latent_gpu_bench --layout mla_bf16 --b 128 --rows 1 --heads 128 --s 4096 --lengths normal ...
//
// Of all cases, or of one that flags give. With --lengths normal (a deviation of half of --s),
// uniform (1 to --s), one-long (that, and one of 16 times --s) or a file, requests are unequal;
// --bound is what a table's width says of lengths, --holes the share of lists' entries that are
// none, --deviation that of scores. All that is random follows from the seed that is printed.
//
// Medians of CUDA event times, attention and combine together; the schedule, which is prepared once
// for all layers of a step, has a column of its own. A call is issued after the first event, on an
// idle device, so that what the host does counts where it takes longer than the device. With
// --graph a captured graph of 20 calls is timed and divided by 20, as a step's layers replay them:
// the host does not count. With --peer (latent_peer.h) both sides are timed in turns on the same
// inputs, and their outputs are compared. With --min-block-m 64 or 32 blocks have at least that
// many M rows where a work tile has more than 32. Limits are the larger of bytes (each key that is
// read once, q and out) over 4.3 TB/s and operations over 790 (bf16) or 1400 (fp8) TFLOP/s.
#include <dlfcn.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string_view>

#include "base/float_formats.h"
#include "kernels/cuda/common/gpu_bench_util.h"
#include "kernels/cuda/sm90/codec/codec.h"
#include "kernels/cuda/sm90/latent/latent.h"
#include "kernels/cuda/sm90/latent/test/latent_peer.h"
#include "kernels/cuda/sm90/step/step.h"

namespace lathe::cuda {
namespace {

struct Case {
  const char* group;
  LayoutKind layout;
  std::int32_t requests, q_len, heads;
  std::int32_t context;  // tokens of a request
  std::int32_t top_k;    // 0: dense
  std::int32_t extra;    // entries of the second source
  bool rows = false;     // compared with a peer that reads bf16 rows, and not pages
  bool native = false;   // q e4m3, fp8 arithmetic
  bool gather = false;   // rows are decoded into a compact buffer first, which is timed, too
  bool staged = true;    // fp8 pages that many rows share may be (cut_latent())
  std::vector<std::int32_t> lengths = {};  // of requests; none: context each
  std::int32_t bound = 0;  // of lengths, as a table's width gives it; 0: the longest
  std::int32_t page = 64;
  double deviation = 1;  // of scores
  double holes = 0;      // share of lists' entries

  std::int32_t length(std::int32_t request) const {
    return lengths.empty() ? context : lengths[static_cast<std::size_t>(request)];
  }
};

struct Row {
  std::string what;
  double microseconds = 0, peer = 0, limit = 0;
  double schedule = 0;    // microseconds
  double difference = 0;  // 1 - cosine of both outputs
  std::string peer_name;
};

constexpr int kGraphCalls = 20;
constexpr std::int64_t kSeedRows = 1 << 16;

CacheLayout layout_of(LayoutKind kind) {
  return CacheLayout(kind, kind == LayoutKind::v4_fp8 ? LayoutDims{.nope = 448, .rope = 64}
                                                      : LayoutDims{.nope = 512, .rope = 64});
}

class Bench {
 public:
  Bench(const Stream& stream, int sms, int repeats, bool graph, std::int32_t min_block_m,
        std::optional<PeerLibrary> peer, unsigned seed)
      : stream_(stream),
        sms_(sms),
        repeats_(repeats),
        graph_(graph),
        min_block_m_(min_block_m),
        peer_(peer),
        rng_(seed) {
    std::normal_distribution<float> normal;
    std::vector<std::uint16_t> host(static_cast<std::size_t>(kSeedRows * 576));
    // A table of normal numbers, drawn from at random: 38 million calls of the distribution take
    // long.
    std::vector<std::uint16_t> table(1 << 16);
    for (auto& x : table) x = to_bf16(normal(rng_)).bits;
    for (auto& x : host) x = table[rng_() & 0xffff];
    seed_.emplace(upload(host));
  }
  void run(const Case& c);
  const std::vector<Row>& rows() const { return rows_; }

 private:
  template <class T>
  DeviceArray<T> upload(const std::vector<T>& host) {
    auto array = need(DeviceArray<T>::make(std::ssize(host)));
    need(copy_to_device(std::span<const T>(host), array.data(), stream_));
    need(stream_.wait());
    return array;
  }
  template <class Call>
  Graph repeated(Call&& call) {
    return need(Graph::capture(stream_, [&]() -> Result<void> {
      for (int i = 0; i < kGraphCalls; ++i) {
        if (auto ok = call(); !ok) return ok;
      }
      return {};
    }));
  }
  /// Seconds of a call: alone, or as one of a graph's.
  template <class Call>
  double time(Call&& call, const std::optional<Graph>& graph) {
    if (!graph) return time_once(stream_, call);
    return time_once(stream_, [&] { return graph->launch(stream_); }) / kGraphCalls;
  }
  /// Tokens of random numbers.
  void fill(const PoolView& pool) {
    std::vector<Slot> host(static_cast<std::size_t>(kSeedRows));
    const std::int32_t elems = pool.layout.row_elems();
    for (std::int64_t first = 0; first < pool.slots(); first += kSeedRows) {
      const std::int64_t count = std::min(kSeedRows, pool.slots() - first);
      for (std::int64_t i = 0; i < count; ++i) {
        host[static_cast<std::size_t>(i)] = Slot(static_cast<std::int32_t>(first + i));
      }
      const auto slots = upload(host);
      const RowsView rows{reinterpret_cast<const std::byte*>(seed_->data()), DType::bf16, count,
                          elems, 576};
      need(encode_rows(rows, slots.span().first(static_cast<std::size_t>(count)), pool, {},
                       stream_));
      need(stream_.wait());
    }
  }
  /// Slots of each row's request, none twice, and then holes. first_slots: of requests.
  std::vector<std::int32_t> lists(const Case& c, std::int32_t width,
                                  const std::vector<std::int32_t>& contexts,
                                  const std::vector<std::int64_t>& first_slots) {
    std::vector<std::int32_t> out;
    for (std::size_t r = 0; r < contexts.size(); ++r) {
      const auto context = static_cast<std::uint32_t>(contexts[r]);
      // An odd step and a power of two have no factor in common.
      const std::uint32_t period = std::bit_ceil(std::max(context, 1u));
      for (std::int32_t j = 0; j < c.q_len; ++j) {
        const auto step = static_cast<std::uint32_t>(rng_() % std::max(context, 1u)) | 1u;
        auto at = static_cast<std::uint32_t>(rng_());
        const std::size_t end = out.size() + static_cast<std::size_t>(width);
        for (std::uint32_t i = 0; i < period && out.size() < end; ++i, at += step) {
          if (at % period >= context) continue;
          const bool hole = c.holes > 0 && static_cast<double>(rng_()) < c.holes * 4294967296.0;
          out.push_back(hole ? -1 : static_cast<std::int32_t>(first_slots[r] + at % period));
        }
        out.resize(end, -1);
      }
    }
    return out;
  }

  const Stream& stream_;
  int sms_;
  int repeats_;
  bool graph_;
  std::int32_t min_block_m_;
  std::optional<PeerLibrary> peer_;
  std::mt19937 rng_;
  std::optional<DeviceArray<std::uint16_t>> seed_;
  std::vector<DeviceArray<std::int32_t>> joined_;
  std::vector<Row> rows_;
};

void Bench::run(const Case& c) {
  const CacheLayout layout = layout_of(c.layout);
  const bool v4 = c.layout == LayoutKind::v4_fp8;
  const std::int32_t width = layout.row_elems();
  const std::int64_t q_rows = std::int64_t{c.requests} * c.q_len;
  const std::int32_t page = c.page;
  std::vector<std::int32_t> lens;
  for (std::int32_t r = 0; r < c.requests; ++r) {
    lens.push_back(v4 && c.extra > 0 && c.lengths.empty() ? 4096 : c.length(r));
  }
  const std::int32_t longest = *std::max_element(lens.begin(), lens.end());
  const std::int32_t bound = std::max(c.bound, longest);
  const std::int32_t table_width = (bound + page - 1) / page;
  AttendArgs args;
  args.problem.kind = v4            ? ProblemKind::window_compressed
                      : c.top_k > 0 ? ProblemKind::sparse_latent
                                    : ProblemKind::dense_latent;
  args.problem.heads = c.heads;
  args.problem.nope = layout.dims().nope;
  args.problem.rope = layout.dims().rope;
  args.problem.scale = static_cast<float>(c.deviation / std::sqrt(static_cast<double>(width)));
  args.problem.top_k = c.top_k;
  args.problem.compress_ratio = c.extra > 0 ? 4 : 0;

  std::int64_t pages = 0, tokens = 0;
  std::vector<std::int64_t> first_slots;
  for (const std::int32_t n : lens) {
    first_slots.push_back(pages * page);
    pages += (n + page - 1) / page;
    tokens += n;
  }
  PoolView pool(nullptr, layout, page, pages);
  const auto bytes = need(DeviceArray<std::byte>::make(pool.bytes()));
  pool.data = bytes.data();
  fill(pool);
  args.main.pool = pool;
  const std::vector<std::int32_t> extra_lens(lens.size(), c.context);
  const std::int64_t extra_pages = (c.context + page - 1) / page;
  std::vector<std::int64_t> extra_slots;
  for (std::int64_t r = 0; r < c.requests; ++r) extra_slots.push_back(r * extra_pages * page);
  PoolView extra_pool(nullptr, layout, page, c.requests * extra_pages);
  const auto extra_bytes = need(DeviceArray<std::byte>::make(c.extra > 0 ? extra_pool.bytes() : 1));
  std::vector<std::uint16_t> host_q(static_cast<std::size_t>(q_rows * c.heads * width));
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> table(1 << 16);
  for (auto& x : table) x = to_bf16(normal(rng_)).bits;
  for (auto& x : host_q) x = table[rng_() & 0xffff];
  // e4m3 keys meet queries that e4m3 holds, in both formats: the peer takes those.
  std::vector<e4m3> q_codes(c.layout == LayoutKind::mla_fp8 ? host_q.size() : 1);
  if (c.layout == LayoutKind::mla_fp8) {
    for (std::size_t i = 0; i < host_q.size(); ++i) {
      q_codes[i] = to_e4m3(to_f32(bf16{host_q[i]}));
      host_q[i] = to_bf16(to_f32(q_codes[i])).bits;
    }
  }
  const auto q = upload(host_q);
  const auto q_e4m3 = upload(q_codes);
  args.q = {reinterpret_cast<const std::byte*>(q.data()), DType::bf16, q_rows, c.heads * width,
            c.heads * width};
  if (c.native) {
    args.q.data = reinterpret_cast<const std::byte*>(q_e4m3.data());
    args.q.dtype = DType::e4m3;
  }
  const std::int64_t out_width = std::int64_t{c.heads} * 512;
  const auto out = need(DeviceArray<std::uint16_t>::make(q_rows * out_width));
  const auto lse = need(DeviceArray<float>::make(q_rows * c.heads));
  args.out = {reinterpret_cast<std::byte*>(out.data()), DType::bf16, q_rows, out_width, out_width};
  args.lse = {reinterpret_cast<std::byte*>(lse.data()), DType::f32, q_rows, c.heads, c.heads};

  std::vector<std::int32_t> indptr;
  for (std::int32_t r = 0; r <= c.requests; ++r) indptr.push_back(r * c.q_len);
  const auto indptr_on = upload(indptr), lens_on = upload(lens);
  args.q_indptr = indptr_on.span();
  args.kv_lens = lens_on.span();
  std::vector<PageId> pages_of(static_cast<std::size_t>(pages));
  for (std::size_t i = 0; i < pages_of.size(); ++i)
    pages_of[i] = PageId(static_cast<std::int32_t>(i));
  std::shuffle(pages_of.begin(), pages_of.end(), rng_);
  std::vector<PageId> page_table;
  for (std::size_t r = 0; r < lens.size(); ++r) {
    const auto own = pages_of.begin() + first_slots[r] / page;
    page_table.insert(page_table.end(), own, own + (lens[r] + page - 1) / page);
    page_table.resize((r + 1) * static_cast<std::size_t>(table_width), PageId(-1));
  }
  const auto table_on = upload(page_table);
  std::vector<std::int32_t> list{-1}, extra_list{-1};
  if (c.top_k > 0) list = lists(c, c.top_k, lens, first_slots);
  if (c.extra > 0) {
    extra_list = lists(c, c.extra, extra_lens, extra_slots);
    extra_pool.data = extra_bytes.data();
    fill(extra_pool);
    args.extra.pool = extra_pool;
  }
  const auto list_on = upload(list), extra_list_on = upload(extra_list);
  std::vector<std::int32_t> list_lengths;
  for (const std::int32_t n : lens) {
    list_lengths.resize(list_lengths.size() + static_cast<std::size_t>(c.q_len),
                        std::min(n, c.top_k));
  }
  const auto list_lengths_on = upload(list_lengths);
  LatentShape shape{.rows = q_rows,
                    .requests = c.requests,
                    .request_rows = c.q_len,
                    .heads = c.heads,
                    .dense = c.top_k == 0,
                    .fp8 = c.native,
                    .fp8_pages = !c.gather && has_fp8_pages(args.main),
                    .min_block_m = min_block_m_,
                    .sms = sms_};
  if (c.top_k > 0) {
    args.main.indices = list_on.span();
    args.main.index_width = c.top_k;
    if (!c.lengths.empty()) args.main.index_lengths = list_lengths_on.span();
    shape.keys = (c.top_k + 63) / 64 * 64 + c.extra;
    if (c.staged && !c.gather && c.layout != LayoutKind::mla_bf16) {
      shape.main = listed_pool(args.main);
      shape.tokens = tokens;
    }
    if (c.extra > 0) {
      args.extra.indices = extra_list_on.span();
      args.extra.index_width = c.extra;
      if (shape.main.pages > 0) {
        shape.extra = listed_pool(args.extra);
        shape.tokens += std::int64_t{c.requests} * c.context;
      }
    }
  } else {
    args.main.page_table = table_on.span();
    args.main.table_width = table_width;
    shape.keys = bound;
  }
  LatentSchedule schedule;
  schedule.cut = cut_latent(shape);
  std::vector<DeviceArray<std::byte>> arrays;
  take_arrays(schedule, [&]<class T>(std::span<T>& array, std::int64_t entries) {
    const auto bytes_of_it = entries * static_cast<std::int64_t>(sizeof(T));
    arrays.push_back(need(DeviceArray<std::byte>::make(bytes_of_it)));
    array = {reinterpret_cast<T*>(arrays.back().data()), static_cast<std::size_t>(entries)};
  });
  const auto workspace = need(DeviceArray<std::byte>::make(schedule.cut.workspace_bytes()));
  std::vector<double> planning;
  const auto plan = [&] { return plan_latent(args, schedule, stream_); };
  std::optional<Graph> plan_graph;
  if (graph_) plan_graph = repeated(plan);
  for (int i = 0; i < 10; ++i) planning.push_back(time(plan, plan_graph));
  // Kind `gather`: what the batch's lists can hold, here all slots in order, so that lists are as
  // they were.
  const auto compact = need(DeviceArray<std::uint16_t>::make(c.gather ? pool.slots() * width : 1));
  std::vector<Slot> all(static_cast<std::size_t>(c.gather ? pool.slots() : 1));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = Slot(static_cast<std::int32_t>(i));
  const auto all_on = upload(all);
  const MutableRowsView bf16_rows{reinterpret_cast<std::byte*>(compact.data()), DType::bf16,
                                  pool.slots(), width, width};
  if (c.gather) {
    args.main.pool.reset();
    args.main.compact = {bf16_rows.data, DType::bf16, pool.slots(), width, width};
  }
  const auto own = [&]() -> Result<void> {
    if (c.gather) {
      if (auto ok = gather_decode(pool, all_on.span(), bf16_rows, {}, stream_); !ok) return ok;
    }
    return attend_latent(args, {}, schedule, workspace.span(), stream_);
  };

  double keys = static_cast<double>(tokens) / c.requests;  // of a row
  if (c.top_k > 0) {
    keys = c.extra;
    for (const std::int32_t n : list_lengths)
      keys += static_cast<double>(n) / static_cast<double>(q_rows);
    keys -= c.holes * (keys - c.extra);
  }
  Row row;
  row.what =
      fmt::format("{} {} b{} q{} h{} {}", c.group, name(c.layout), c.requests, c.q_len, c.heads,
                  c.top_k == 0  ? fmt::format("s{}", c.context)
                  : c.extra > 0 ? fmt::format("k{}+{}", c.top_k, c.extra)
                                : fmt::format("k{} s{}", c.top_k, c.context));
  if (!c.lengths.empty()) row.what += fmt::format(" mean {:.0f}", keys);
  if (c.bound > longest) row.what += fmt::format(" bound {}", bound);
  if (c.deviation != 1) row.what += fmt::format(" deviation {}", c.deviation);
  if (c.holes > 0) row.what += fmt::format(" holes {}", c.holes);
  if (c.page != 64) row.what += fmt::format(" page {}", c.page);
  const double read_keys = c.top_k > 0 && !c.rows ? keys * static_cast<double>(q_rows)
                           : c.top_k > 0          ? double{1} * c.context
                                                  : keys * c.requests;
  const double moved =
      read_keys * static_cast<double>(layout.bytes_per_token()) +
      static_cast<double>(q_rows) * c.heads * (width * (c.native ? 1 : 2) + 1024.0);
  const double flops = 2.0 * keys * static_cast<double>(q_rows) * c.heads * (width + 512);
  row.limit = 1e6 * std::max(moved / 4.3e12, flops / (c.native ? 1400e12 : 790e12));

  void* state = nullptr;
  const char* failed = nullptr;
  DeviceArray<std::uint16_t> peer_out = need(DeviceArray<std::uint16_t>::make(q_rows * out_width));
  std::optional<DeviceArray<std::uint16_t>> peer_rows;
  LathePeerCall call{};
  if (peer_) {
    call.kind = c.top_k == 0 ? "dense_decode" : c.rows ? "sparse_prefill" : "sparse_decode";
    const std::string layout_name(name(c.layout));
    call.layout = c.rows ? "rows_bf16" : layout_name.c_str();
    call.requests = c.requests;
    call.q_len = c.q_len;
    call.heads = c.heads;
    call.d_qk = width;
    call.d_v = 512;
    call.scale = args.problem.scale;
    call.kv_scale = call.q_scale = 1;
    call.q = c.layout == LayoutKind::mla_fp8 ? static_cast<const void*>(q_e4m3.data()) : q.data();
    call.cache = pool.data;
    call.page_stride_bytes = pool.page_stride;
    call.page_size = page;
    call.pages = static_cast<std::int32_t>(pages);
    call.page_table = reinterpret_cast<const std::int32_t*>(table_on.data());
    call.table_width = table_width;
    call.lengths = lens_on.data();
    call.max_length = bound;
    call.indices = list_on.data();
    call.topk = c.top_k;
    if (!c.lengths.empty() && c.top_k > 0) call.topk_lengths = list_lengths_on.data();
    if (c.extra > 0) {
      call.extra_cache = extra_pool.data;
      call.extra_page_stride_bytes = extra_pool.page_stride;
      call.extra_page_size = page;
      call.extra_pages = static_cast<std::int32_t>(extra_pool.pages);
      call.extra_indices = extra_list_on.data();
      call.extra_topk = c.extra;
    }
    if (c.rows) {
      // Both sources as one list of rows, decoded beforehand.
      const std::int64_t rows = pool.slots() + (c.extra > 0 ? extra_pool.slots() : 0);
      peer_rows.emplace(need(DeviceArray<std::uint16_t>::make(rows * width)));
      const auto decode = [&](const PoolView& from, std::int64_t at) {
        const MutableRowsView to{reinterpret_cast<std::byte*>(peer_rows->data() + at * width),
                                 DType::bf16, from.slots(), width, width};
        need(decode_rows(from, Slot(0), to, {}, stream_));
      };
      decode(pool, 0);
      if (c.extra > 0) decode(extra_pool, pool.slots());
      need(stream_.wait());
      call.cache = peer_rows->data();
      call.kv_rows = rows;
      call.extra_cache = nullptr;
      call.extra_indices = nullptr;
      call.extra_topk = 0;
      if (c.extra > 0) {
        std::vector<std::int32_t> joined;
        for (std::int64_t r = 0; r < q_rows; ++r) {
          const auto a = list.begin() + r * c.top_k;
          joined.insert(joined.end(), a, a + c.top_k);
          for (std::int32_t i = 0; i < c.extra; ++i) {
            joined.push_back(extra_list[static_cast<std::size_t>(r * c.extra + i)] +
                             static_cast<std::int32_t>(pool.slots()));
          }
        }
        need(copy_to_device(
            std::span<const std::int32_t>(joined),
            joined_.emplace_back(need(DeviceArray<std::int32_t>::make(std::ssize(joined)))).data(),
            stream_));
        need(stream_.wait());
        call.indices = joined_.back().data();
        call.topk = c.top_k + c.extra;
      }
      call.requests = 1;
      call.q_len = static_cast<std::int32_t>(q_rows);
    }
    call.out = peer_out.data();
    failed = peer_->open(&call, stream_.get(), &state);
    row.peer_name = failed != nullptr ? failed : peer_->name(&call);
  }
  const auto other = [&]() -> Result<void> {
    if (const char* text = peer_->run(state, stream_.get())) failed = text;
    return {};
  };
  std::optional<Graph> own_graph, other_graph;
  if (graph_) {
    own_graph = repeated(own);
    if (state != nullptr) other_graph = repeated(other);
  }
  std::vector<double> ours, theirs;
  for (int i = 0; i < repeats_ + 3; ++i) {
    const double a = time(own, own_graph);
    double b = 0;
    if (state != nullptr && failed == nullptr) b = time(other, other_graph);
    if (i < 3) continue;
    ours.push_back(a);
    theirs.push_back(b);
  }
  row.microseconds = median(ours) * 1e6;
  row.schedule = median(planning) * 1e6;
  if (state != nullptr) {
    row.peer = median(theirs) * 1e6;
    peer_->finish(state, stream_.get());
    need(stream_.wait());
    std::vector<std::uint16_t> x(
        static_cast<std::size_t>(std::min<std::int64_t>(out.size(), 1 << 22))),
        y(x.size());
    need(copy_to_host(out.data(), std::span(x), stream_));
    need(copy_to_host(peer_out.data(), std::span(y), stream_));
    need(stream_.wait());
    double dot = 0, a = 0, b = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double u = std::bit_cast<float>(std::uint32_t{x[i]} << 16);
      const double v = std::bit_cast<float>(std::uint32_t{y[i]} << 16);
      dot += u * v;
      a += u * u;
      b += v * v;
    }
    row.difference = 1 - 2 * dot / (a + b);
    peer_->close(state);
  }
  std::printf("%-64s %9.2f %9.2f  %5.2f  %5.2f  %6.2f %.1e %s\n", row.what.c_str(),
              row.microseconds, row.peer, row.peer / row.microseconds, row.limit / row.microseconds,
              row.schedule, row.difference, failed != nullptr ? failed : "");
  std::fflush(stdout);
  rows_.push_back(row);
}

std::vector<Case> cases() {
  std::vector<Case> out;
  constexpr auto block = LayoutKind::mla_fp8_block;
  for (const std::int32_t q : {1, 2}) {
    for (const std::int32_t h : {128, 64, 32, 16, 8}) {
      out.push_back({"sparse decode", block, 128, q, h, 32768, 2048, 0});
    }
  }
  for (const std::int32_t b : {1, 8}) {
    for (const std::int32_t h : {128, 64, 16, 8}) {
      out.push_back({"sparse decode", block, b, 1, h, 32768, 2048, 0});
    }
  }
  for (const std::int32_t h : {128, 64, 16}) {
    out.push_back({"sparse decode", LayoutKind::mla_bf16, 128, 1, h, 32768, 2048, 0});
  }
  out.push_back({"sparse decode", LayoutKind::v4_fp8, 128, 1, 64, 8192, 128, 512});
  out.push_back({"sparse decode", LayoutKind::v4_fp8, 128, 1, 128, 8192, 128, 512});
  out.push_back({"sparse decode", LayoutKind::v4_fp8, 128, 1, 128, 8192, 128, 1024});
  for (const std::int32_t b : {8, 1}) {
    out.push_back({"sparse decode", LayoutKind::v4_fp8, b, 1, 64, 8192, 128, 512});
    out.push_back({"sparse decode", LayoutKind::v4_fp8, b, 1, 128, 8192, 128, 1024});
  }
  for (const std::int32_t s : {8192, 32768}) {
    for (const LayoutKind layout : {block, LayoutKind::mla_bf16}) {
      for (const std::int32_t h : {128, 64}) {
        out.push_back({"sparse extend", layout, 1, 4096, h, s, 2048, 0, true});
      }
    }
    for (const std::int32_t h : {128, 64}) {
      out.push_back({"sparse extend", LayoutKind::v4_fp8, 1, 4096, h, s, 640, 0, true});
    }
    // Pages read where they lie, as fewer rows do.
    for (const std::int32_t h : {128, 64}) {
      out.push_back({"unstaged extend", block, 1, 4096, h, s, 2048, 0, true, false, false, false});
    }
    for (const std::int32_t h : {128, 64}) {
      out.push_back({"unstaged extend", LayoutKind::v4_fp8, 1, 4096, h, s, 640, 0, true, false,
                     false, false});
    }
    for (const std::int32_t h : {128, 64}) {
      out.push_back({"gather extend", block, 1, 4096, h, s, 2048, 0, true, false, true});
    }
    for (const std::int32_t h : {128, 64}) {
      out.push_back(
          {"gather extend", LayoutKind::v4_fp8, 1, 4096, h, s, 640, 0, true, false, true});
    }
  }
  for (const std::int32_t h : {128, 64, 32, 16, 8}) {
    const auto native = [&](std::int32_t b, std::int32_t q, std::int32_t s) {
      out.push_back(
          {"native decode", LayoutKind::mla_fp8, b, q, h, s, 0, 0, false, /*native=*/true});
    };
    native(128, 1, 4096);
    if (h < 16 || h == 32) continue;
    native(128, 2, 4096);
    native(128, 1, 8192);
    native(16, 1, 32768);
    native(8, 1, 8192);
    native(1, 1, 8192);
  }
  for (const LayoutKind layout :
       {LayoutKind::mla_bf16, LayoutKind::mla_fp8, LayoutKind::mla_fp8_block}) {
    for (const std::int32_t h : {128, 64, 32, 16}) {
      for (const std::int32_t q : {1, 2})
        out.push_back({"dense decode", layout, 128, q, h, 4096, 0, 0});
      out.push_back({"dense decode", layout, 128, 1, h, 8192, 0, 0});
      out.push_back({"dense decode", layout, 16, 1, h, 32768, 0, 0});
      out.push_back({"dense decode", layout, 1, 1, h, 8192, 0, 0});
      out.push_back({"dense decode", layout, 8, 1, h, 8192, 0, 0});
    }
  }
  return out;
}

/// A case from flags, besides those of cases().
struct CaseFlags {
  Case of{"dense decode", LayoutKind::mla_bf16, 128, 1, 128, 8192, 0, 0};
  std::string lengths = "equal";
  bool given = false;

  /// Takes a flag and its value; false: it is another's.
  bool take(std::string_view flag, const char* value) {
    const auto number = [&](std::int32_t& to) { to = std::atoi(value); };
    if (flag == "--b") {
      number(of.requests);
    } else if (flag == "--rows") {
      number(of.q_len);
    } else if (flag == "--heads") {
      number(of.heads);
    } else if (flag == "--s") {
      number(of.context);
    } else if (flag == "--k") {
      number(of.top_k);
    } else if (flag == "--extra") {
      number(of.extra);
    } else if (flag == "--bound") {
      number(of.bound);
    } else if (flag == "--page") {
      number(of.page);
    } else if (flag == "--deviation") {
      of.deviation = std::atof(value);
    } else if (flag == "--holes") {
      of.holes = std::atof(value);
    } else if (flag == "--lengths") {
      lengths = value;
    } else if (flag == "--layout" || flag == "--native") {
      const auto kind = parse_enum<LayoutKind>(value);
      if (!kind) return false;
      of.layout = *kind;
      of.native = flag == "--native";
    } else {
      return false;
    }
    return given = true;
  }
  /// What lengths say: a word, or a file of numbers.
  Case draw(std::mt19937& rng) const {
    Case c = of;
    c.group = c.top_k > 0 ? c.q_len >= 64 ? "sparse extend" : "sparse decode"
              : c.native  ? "native decode"
                          : "dense decode";
    c.rows = c.top_k > 0 && c.q_len >= 64;
    if (lengths == "equal") return c;
    std::normal_distribution<double> normal(c.context, 0.5 * c.context);
    std::uniform_int_distribution<std::int32_t> uniform(1, c.context);
    for (std::int32_t r = 0; r < c.requests; ++r) {
      if (lengths == "normal") {
        c.lengths.push_back(
            static_cast<std::int32_t>(std::clamp(normal(rng), 1.0, 2.0 * c.context)));
      } else if (lengths == "uniform" || lengths == "one-long") {
        c.lengths.push_back(uniform(rng));
      }
    }
    if (lengths == "one-long") c.lengths[rng() % c.lengths.size()] = 16 * c.context;
    if (!c.lengths.empty()) return c;
    std::ifstream file(lengths);
    for (std::int32_t n; file >> n;) c.lengths.push_back(n);
    if (c.lengths.empty()) {
      std::fprintf(stderr,
                   "--lengths: wanted equal, normal, uniform, one-long or a file of numbers, got "
                   "%s\n",
                   lengths.c_str());
      std::exit(2);
    }
    c.requests = static_cast<std::int32_t>(c.lengths.size());
    return c;
  }
};

PeerLibrary load_peer(const char* file) {
  void* handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    std::fprintf(stderr, "--peer %s: wanted a shared library (latent_peer.h), got: %s\n", file,
                 dlerror());
    std::exit(2);
  }
  PeerLibrary peer;
  const auto find = [&](const char* symbol, auto& to) {
    to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(dlsym(handle, symbol));
    if (to != nullptr) return;
    std::fprintf(stderr, "--peer %s: wanted a function %s, got none\n", file, symbol);
    std::exit(2);
  };
  find("lathe_peer_open", peer.open);
  find("lathe_peer_run", peer.run);
  find("lathe_peer_finish", peer.finish);
  find("lathe_peer_close", peer.close);
  find("lathe_peer_name", peer.name);
  return peer;
}

}  // namespace
}  // namespace lathe::cuda

int main(int argc, char** argv) {
  using namespace lathe::cuda;
  std::string_view filter;
  int repeats = 30;
  std::int32_t min_block_m = 16;
  unsigned seed = 1;
  bool graph = false, json = false;
  std::optional<PeerLibrary> peer;
  CaseFlags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg == "--json") {
      json = true;
    } else if (arg == "--graph") {
      graph = true;
    } else if (arg == "--repeats" && i + 1 < argc) {
      repeats = std::max(std::atoi(argv[++i]), 1);
    } else if (arg == "--min-block-m" && i + 1 < argc) {
      min_block_m = std::atoi(argv[++i]);
    } else if (arg == "--filter" && i + 1 < argc) {
      filter = argv[++i];
    } else if (arg == "--peer" && i + 1 < argc) {
      peer = load_peer(argv[++i]);
    } else if (arg == "--seed" && i + 1 < argc) {
      seed = static_cast<unsigned>(std::atoll(argv[++i]));
    } else if (i + 1 < argc && flags.take(arg, argv[i + 1])) {
      ++i;
    } else {
      std::fprintf(
          stderr,
          "wanted [--peer FILE] [--filter TEXT] [--repeats N] [--min-block-m 16|32|64] [--graph] "
          "[--json] [--seed N], or of one case [--layout|--native LAYOUT] [--b N] [--rows N] "
          "[--heads N] [--s N] [--lengths equal|normal|uniform|one-long|FILE] [--bound N] "
          "[--page N] [--k N] [--extra N] [--holes SHARE] [--deviation X], got %s\n",
          argv[i]);
      return 2;
    }
  }
  const auto device = open_device();
  if (!device) {
    std::fprintf(stderr, "%s\n", device.error().message().c_str());
    return 77;
  }
  const auto stream = need(Stream::make());
  Bench bench(stream, device->sms, repeats, graph, min_block_m, peer, seed);
  std::printf("%s, %d SMs, seed %u\n%-64s %9s %9s  %5s  %5s  %6s %s\n", device->model.c_str(),
              device->sms, seed, "", "us", "peer us", "ratio", "limit", "plan", "difference");
  std::mt19937 rng(seed);
  if (flags.given) bench.run(flags.draw(rng));
  for (const Case& c : flags.given ? std::vector<Case>{} : cases()) {
    const std::string text = fmt::format("{} {} b{} q{} h{}", c.group, lathe::name(c.layout),
                                         c.requests, c.q_len, c.heads);
    if (text.find(filter) == std::string::npos) continue;
    bench.run(c);
  }
  if (json) {
    nlohmann::json out = nlohmann::json::array();
    for (const Row& r : bench.rows()) {
      out.push_back({{"operation", r.what},
                     {"microseconds", r.microseconds},
                     {"schedule_microseconds", r.schedule},
                     {"peer", r.peer_name},
                     {"peer_microseconds", r.peer},
                     {"limit_microseconds", r.limit},
                     {"difference", r.difference}});
    }
    std::fprintf(stderr, "%s\n", out.dump(1).c_str());
  }
}
