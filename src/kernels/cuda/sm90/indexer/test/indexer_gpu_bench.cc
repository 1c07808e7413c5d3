// Times the indexer on this GPU: index logits of DeepSeek V3.2 (64 heads of 128), and the exact
// top-k of rows of scores.
//
// indexer_gpu_bench [--repeats N] [--json]
//
// Microseconds of a call: medians of graphs of 10 calls. "copy" is the time of a copy that moves as
// many bytes, read and written together, as a call must read and write once.
#include <cmath>
#include <random>

#include "kernels/cuda/common/cuda_error.h"
#include "kernels/cuda/common/gpu_timing.h"
#include "kernels/cuda/sm90/indexer/indexer.h"

namespace lathe::cuda {
namespace {

constexpr int kCalls = 10;
constexpr std::int32_t kHeads = 64, kDim = 128, kPage = 64;

struct Row {
  const char* what;
  std::int64_t rows, keys, requests;
};

template <class Work>
double time_calls(const Stream& stream, int repeats, Work&& work) {
  need(work());
  need(stream.wait());
  const Graph graph = need(Graph::capture(stream, [&]() -> Result<void> {
    for (int i = 0; i < kCalls; ++i) {
      if (auto ok = work(); !ok) return ok;
    }
    return {};
  }));
  std::vector<double> seconds;
  for (int i = 0; i < repeats + 2; ++i) {
    const double one = time_once(stream, [&] { return graph.launch(stream); }) / kCalls;
    if (i >= 2) seconds.push_back(one);
  }
  return median(seconds) * 1e6;
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

void print(bool json, const char* what, const Row& r, double us, double copy_us) {
  if (json) {
    fmt::print(
        "{{\"kernel\": \"{}\", \"step\": \"{}\", \"rows\": {}, \"keys\": {}, \"us\": {:.2f}}}\n",
        what, r.what, r.rows, r.keys, us);
  } else {
    fmt::print("{:10} {:8} {:5} rows {:7} keys  {:9.2f} us  copy {:8.2f}\n", what, r.what, r.rows,
               r.keys, us, copy_us);
  }
}

void time_logits(const Row& r, int repeats, bool json, const Stream& stream) {
  std::mt19937 rng(7);
  const auto table = upload(random_table(rng, r), stream);
  std::vector<std::int32_t> requests, lengths;
  rows_of(r, requests, lengths);
  const auto request = upload(requests, stream), lens = upload(lengths, stream);
  const std::int64_t page_bytes = kPage * (kDim + 4), row_bytes = kHeads * (kDim + 4);
  const std::int64_t pages = std::ssize(random_table(rng, r));
  auto keys = need(DeviceArray<std::byte>::make(pages * page_bytes));
  auto q = need(DeviceArray<std::byte>::make(r.rows * row_bytes));
  // Codes of 1 and scales of 0x38383838, about 4.4e-5.
  for (auto* array : {&keys, &q}) {
    need(call_result(
        cudaMemsetAsync(array->data(), 0x38, static_cast<std::size_t>(array->size()), stream),
        "cudaMemsetAsync"));
  }
  const auto weights = random_scores(rng, r.rows, kHeads, false, stream);
  auto logits = need(DeviceArray<float>::make(r.rows * r.keys));
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
  const double us = time_calls(
      stream, repeats, [&] { return call_result(launch_index_logits(p, stream), "logits"); });
  AgainstCopy copy(stream, 1 << 28);
  const std::int64_t bytes = pages * page_bytes + r.rows * r.keys * 4;
  print(json, "logits", r, us,
        1e6 * copy.measure(bytes, 5, [] { return Result<void>(); }).copy_seconds);
}

void time_select(const Row& r, bool positive, int repeats, bool json, const Stream& stream) {
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
  const double us = time_calls(
      stream, repeats, [&] { return call_result(launch_select_slots(p, stream), "select"); });
  AgainstCopy copy(stream, 1 << 28);
  print(json, positive ? "top-k |x|" : "top-k x", r, us,
        1e6 * copy.measure(r.rows * r.keys * 4, 5, [] { return Result<void>(); }).copy_seconds);
}

int run(int repeats, bool json) {
  const Stream stream = need(Stream::make());
  for (const Row& r : {Row{"decode", 128, 8192, 128}, Row{"decode", 128, 32768, 128},
                       Row{"prompt", 4096, 8192, 1}, Row{"prompt", 4096, 32768, 1}}) {
    time_logits(r, repeats, json, stream);
  }
  for (const Row& r :
       {Row{"decode", 1, 4096, 1}, Row{"decode", 1, 8192, 1}, Row{"decode", 1, 131072, 1},
        Row{"decode", 64, 8192, 64}, Row{"decode", 64, 65536, 64}, Row{"decode", 128, 32768, 128},
        Row{"prompt", 4096, 8192, 1}, Row{"prompt", 4096, 32768, 1}}) {
    time_select(r, false, repeats, json, stream);
    time_select(r, true, repeats, json, stream);
  }
  return 0;
}

}  // namespace
}  // namespace lathe::cuda

int main(int argc, char** argv) {
  return lathe::cuda::run_with_options(argc, argv, lathe::cuda::run);
}
