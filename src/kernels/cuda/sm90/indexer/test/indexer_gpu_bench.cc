// Times the indexer on this GPU: index logits of DeepSeek V3.2 (64 heads of 128), and the exact
// top-k of rows of scores.
//
// indexer_gpu_bench [--filter TEXT] [--repeats N] [--json] [--peer FILE] [--case ROWS,KEYS,...]
//
// --filter: of "logits" or "top-k x" or "top-k |x|", a step's name, rows and keys, as printed.
// --case is for one case instead of the table's: rows, keys, requests. --peer (bench_peer.h,
// indexer_peer.h) times another library on the same inputs, in turns, also in graphs; it prints 1 -
// cosine of both logits, or the share of a row's slots that both have selected: the least and the
// mean of rows.
//
// Microseconds of a call: medians of graphs of 10 calls. "copy" is the time of a copy that moves as
// many bytes, read and written together, as a call must read and write once.
#include <cmath>
#include <cstring>
#include <random>

#include "kernels/cuda/common/bench_peer.h"
#include "kernels/cuda/common/cuda_error.h"
#include "kernels/cuda/sm90/indexer/indexer.h"
#include "kernels/cuda/sm90/indexer/test/indexer_peer.h"

namespace lathe::cuda {
namespace {

constexpr int kCalls = 10;
constexpr std::int32_t kHeads = 64, kDim = 128, kPage = 64;

struct Row {
  const char* what;
  std::int64_t rows, keys, requests;
};

using Call = std::function<Result<void>()>;

// Microseconds of a call of ours, and of the peer's if it supports the row.
std::vector<double> time_calls(const Stream& stream, int repeats, const Call& ours,
                               PeerSide& peer) {
  need(ours());
  need(stream.wait());
  std::vector<Call> works = {ours}, launches;
  if (peer.supports()) works.emplace_back([&] { return peer.run(); });
  std::deque<Graph> graphs;
  for (const Call& work : works) {
    const Graph& graph = graphs.emplace_back(need(Graph::capture(stream, [&]() -> Result<void> {
      for (int i = 0; i < kCalls; ++i) {
        if (auto ok = work(); !ok) return ok;
      }
      return {};
    })));
    launches.emplace_back([&] { return graph.launch(stream); });
  }
  std::vector<double> times = time_in_turns(stream, repeats, launches);
  for (double& t : times) t *= 1e6 / kCalls;
  times.resize(2);
  return times;
}

// Page tables in which all requests have the same `keys`, pages in random order.
std::vector<std::int32_t> random_table(std::mt19937& rng, const Row& r) {
  const std::int64_t width = (r.keys + kPage - 1) / kPage;
  std::vector<std::int32_t> table(static_cast<std::size_t>(width * r.requests));
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::int32_t>(i);
  std::shuffle(table.begin(), table.end(), rng);
  return table;
}
// Row i belongs to the next request of a step, or is one of a prompt's last rows.
void rows_of(const Row& r, std::vector<std::int32_t>& request, std::vector<std::int32_t>& lens) {
  for (std::int64_t i = 0; i < r.rows; ++i) {
    request.push_back(static_cast<std::int32_t>(i * r.requests / r.rows));
    lens.push_back(static_cast<std::int32_t>(r.requests == 1 ? r.keys - r.rows + 1 + i : r.keys));
  }
}

// `rows` x `cols` floats that repeat after some rows: random values cost the host time.
DeviceArray<float> random_scores(std::mt19937& rng, std::int64_t rows, std::int64_t cols,
                                 bool positive, const Stream& stream) {
  std::normal_distribution<float> normal;
  const std::int64_t some =
      std::min<std::int64_t>(rows, std::max<std::int64_t>(1, (4 << 20) / cols));
  std::vector<float> host(static_cast<std::size_t>(some * cols));
  for (float& x : host) x = positive ? std::abs(normal(rng)) : normal(rng);
  auto out = need(DeviceArray<float>::make(rows * cols));
  for (std::int64_t row = 0; row < rows; row += some) {
    const auto count = static_cast<std::size_t>(std::min(some, rows - row) * cols);
    need(
        copy_to_device(std::span<const float>(host).first(count), out.data() + row * cols, stream));
  }
  need(stream.wait());
  return out;
}

std::string name_of(const char* what, const Row& r) {
  return fmt::format("{:10} {:8} {:5} rows {:7} keys", what, r.what, r.rows, r.keys);
}

void print(bool json, const char* what, const Row& r, double us, double copy_us,
           const std::string& peer_columns) {
  if (json) {
    fmt::print(
        "{{\"kernel\": \"{}\", \"step\": \"{}\", \"rows\": {}, \"keys\": {}, \"us\": {:.2f}}}\n",
        what, r.what, r.rows, r.keys, us);
  } else {
    fmt::print("{}  {:9.2f} us  copy {:8.2f}{}\n", name_of(what, r), us, copy_us, peer_columns);
  }
  std::fflush(stdout);
}

// Index pages of normal codes, and scales between 0.5 and 1.5, that repeat after some pages.
DeviceArray<std::byte> random_pages(std::mt19937& rng, std::int64_t pages, std::int32_t tokens,
                                    const Stream& stream) {
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> scale(0.5f, 1.5f);
  const std::int64_t codes = tokens * kDim, bytes = codes + tokens * 4;
  const std::int64_t some = std::clamp<std::int64_t>((4 << 20) / bytes, 1, pages);
  std::vector<std::byte> host(static_cast<std::size_t>(some * bytes));
  for (std::int64_t page = 0; page < some; ++page) {
    std::byte* at = host.data() + page * bytes;
    for (std::int64_t i = 0; i < codes; ++i) at[i] = std::byte{to_e4m3(normal(rng)).bits};
    for (std::int32_t i = 0; i < tokens; ++i) {
      const float s = scale(rng);
      std::memcpy(at + codes + 4 * i, &s, 4);
    }
  }
  auto out = need(DeviceArray<std::byte>::make(pages * bytes));
  for (std::int64_t page = 0; page < pages; page += some) {
    const auto count = static_cast<std::size_t>(std::min(some, pages - page) * bytes);
    need(copy_to_device(std::span<const std::byte>(host).first(count), out.data() + page * bytes,
                        stream));
  }
  need(stream.wait());
  return out;
}
DeviceArray<float> zeros(std::int64_t count, const Stream& stream) {
  auto out = need(DeviceArray<float>::make(count));
  need(call_result(cudaMemsetAsync(out.data(), 0, static_cast<std::size_t>(count) * 4, stream),
                   "cudaMemsetAsync"));
  return out;
}

void time_logits(const Row& r, int repeats, bool json, const Stream& stream, PeerSide& peer) {
  std::mt19937 rng(7);
  const auto table = upload(random_table(rng, r), stream);
  std::vector<std::int32_t> requests, lengths;
  rows_of(r, requests, lengths);
  const auto request = upload(requests, stream), lens = upload(lengths, stream);
  const std::int64_t page_bytes = kPage * (kDim + 4), row_bytes = kHeads * (kDim + 4);
  const std::int64_t pages = std::ssize(random_table(rng, r));
  const auto keys = random_pages(rng, pages, kPage, stream);
  const auto q = random_pages(rng, r.rows, kHeads, stream);
  const auto weights = random_scores(rng, r.rows, kHeads, false, stream);
  const auto logits = zeros(r.rows * r.keys, stream);
  const IndexLogits p{.q = {q.data(), r.rows, row_bytes, kHeads, kDim},
                      .weights = weights.data(),
                      .weights_stride = kHeads,
                      .keys = {keys.data(), pages, page_bytes, kPage, kDim},
                      .page_table = table.data(),
                      .width = (r.keys + kPage - 1) / kPage,
                      .request = request.data(),
                      .lens = lens.data(),
                      .logits = logits.data(),
                      .rows = r.rows,
                      .cols = r.keys,
                      .heads = kHeads};
  const auto peer_logits = zeros(peer.given() ? r.rows * r.keys : 1, stream);
  const LatheIndexLogitsPeerCall call{.kind = "index_logits",
                                      .rows = static_cast<std::int32_t>(r.rows),
                                      .requests = static_cast<std::int32_t>(r.requests),
                                      .heads = kHeads,
                                      .dim = kDim,
                                      .q = q.data(),
                                      .weights = weights.data(),
                                      .pages = keys.data(),
                                      .page_count = static_cast<std::int32_t>(pages),
                                      .page_size = kPage,
                                      .table_width = static_cast<std::int32_t>(p.width),
                                      .page_table = table.data(),
                                      .request = request.data(),
                                      .lengths = lens.data(),
                                      .most_length = static_cast<std::int32_t>(r.keys),
                                      .out = peer_logits.data(),
                                      .cols = r.keys};
  peer.add(&call);
  const std::vector<double> us = time_calls(
      stream, repeats, [&] { return call_result(launch_index_logits(p, stream), "logits"); }, peer);
  std::string difference;
  if (peer.supports()) {
    peer.finish();
    difference = fmt::format(
        "{:.1e}", one_minus_cosine(logits.data(), peer_logits.data(), r.rows * r.keys, stream));
  }
  AgainstCopy copy(stream, 1 << 28);
  const std::int64_t bytes = pages * page_bytes + r.rows * r.keys * 4;
  print(json, "logits", r, us[0],
        1e6 * copy.measure(bytes, 5, [] { return Result<void>(); }).copy_seconds,
        peer.columns(us[0], us[1], difference));
  peer.clear();
}

// Least and mean share of a row's slots in `ours` that `theirs` has too.
std::string shares(const DeviceArray<std::int32_t>& ours, const DeviceArray<std::int32_t>& theirs,
                   std::int64_t k, const Stream& stream) {
  std::vector<std::int32_t> a(static_cast<std::size_t>(ours.size())), b(a.size()), both;
  need(copy_to_host(ours.data(), std::span(a), stream));
  need(copy_to_host(theirs.data(), std::span(b), stream));
  need(stream.wait());
  double least = 1, sum = 0;
  for (std::size_t at = 0, n = static_cast<std::size_t>(k); at < a.size(); at += n) {
    const std::span x(a.data() + at, n), y(b.data() + at, n);
    std::ranges::sort(x);
    std::ranges::sort(y);
    both.clear();
    std::ranges::set_intersection(x, y, std::back_inserter(both));
    const double share = static_cast<double>(both.size()) / static_cast<double>(n);
    least = std::min(least, share);
    sum += share;
  }
  return fmt::format("{:.4f} {:.4f}", least, sum / static_cast<double>(ours.size() / k));
}

void time_select(const Row& r, bool positive, int repeats, bool json, const Stream& stream,
                 PeerSide& peer) {
  constexpr std::int64_t kTop = 2048;
  std::mt19937 rng(11);
  const auto table = upload(random_table(rng, r), stream);
  std::vector<std::int32_t> requests, lengths;
  rows_of(r, requests, lengths);
  const auto request = upload(requests, stream), lens = upload(lengths, stream);
  const auto logits = random_scores(rng, r.rows, r.keys, positive, stream);
  auto slots = need(DeviceArray<std::int32_t>::make(r.rows * kTop));
  const std::int64_t width = (r.keys + kPage - 1) / kPage;
  const SelectSlots p{.logits = logits.data(),
                      .rows = r.rows,
                      .cols = r.keys,
                      .lens = lens.data(),
                      .page_table = table.data(),
                      .width = width,
                      .request = request.data(),
                      .page_tokens = kPage,
                      .pages = width * r.requests,
                      .slots = slots.data(),
                      .k = kTop};
  const auto peer_slots = need(DeviceArray<std::int32_t>::make(peer.given() ? slots.size() : 1));
  const LatheTopKPeerCall call{.kind = "top_k",
                               .rows = static_cast<std::int32_t>(r.rows),
                               .requests = static_cast<std::int32_t>(r.requests),
                               .k = kTop,
                               .logits = logits.data(),
                               .cols = r.keys,
                               .lengths = lens.data(),
                               .pages = static_cast<std::int32_t>(p.pages),
                               .page_size = kPage,
                               .table_width = static_cast<std::int32_t>(width),
                               .page_table = table.data(),
                               .request = request.data(),
                               .out = peer_slots.data()};
  peer.add(&call);
  const std::vector<double> us = time_calls(
      stream, repeats, [&] { return call_result(launch_select_slots(p, stream), "select"); }, peer);
  std::string share;
  if (peer.supports()) {
    peer.finish();
    share = shares(slots, peer_slots, kTop, stream);
  }
  AgainstCopy copy(stream, 1 << 28);
  print(json, positive ? "top-k |x|" : "top-k x", r, us[0],
        1e6 * copy.measure(r.rows * r.keys * 4, 5, [] { return Result<void>(); }).copy_seconds,
        peer.columns(us[0], us[1], share));
  peer.clear();
}

int run(const BenchOptions& o) {
  const Stream stream = need(Stream::make());
  PeerSide peer(o.peer, stream);
  std::vector<Row> of_logits = {Row{"decode", 128, 8192, 128}, Row{"decode", 128, 32768, 128},
                                Row{"prompt", 4096, 8192, 1}, Row{"prompt", 4096, 32768, 1}};
  std::vector<Row> of_select = {Row{"decode", 1, 4096, 1},    Row{"decode", 1, 8192, 1},
                                Row{"decode", 1, 131072, 1},  Row{"decode", 64, 8192, 64},
                                Row{"decode", 64, 65536, 64}, Row{"decode", 128, 32768, 128},
                                Row{"prompt", 4096, 8192, 1}, Row{"prompt", 4096, 32768, 1}};
  if (o.only != nullptr) {
    const auto n = case_numbers(o.only, "rows,keys,requests");
    of_logits = of_select = {Row{"case", n[0], n[1], n[2]}};
  }
  const auto wanted = [&](const char* what, const Row& r) {
    return name_of(what, r).find(o.filter) != std::string::npos;
  };
  for (const Row& r : of_logits) {
    if (wanted("logits", r)) time_logits(r, o.repeats, o.json, stream, peer);
  }
  for (const Row& r : of_select) {
    for (const bool positive : {false, true}) {
      if (!wanted(positive ? "top-k |x|" : "top-k x", r)) continue;
      time_select(r, positive, o.repeats, o.json, stream, peer);
    }
  }
  return 0;
}

}  // namespace
}  // namespace lathe::cuda

int main(int argc, char** argv) {
  return lathe::cuda::run_with_options(argc, argv, lathe::cuda::run);
}
