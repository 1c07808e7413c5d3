// Times the kernels that build a step's metadata on a GPU.
//
// step_gpu_bench [--repeats N] [--json]
//
// Microseconds per call: the median CUDA event time of a captured graph with several calls, divided
// by their number. "step" is everything that a decode or verify step needs: q_indptr, positions,
// slots, lengths, page tables, windows and work list.
#include <nlohmann/json.hpp>
#include <random>

#include "kernels/cuda/common/gpu_timing.h"
#include "kernels/cuda/sm90/step/step.h"

namespace lathe::cuda {
namespace {

constexpr PoolShape kPool{64, 400'000};
constexpr int kCalls = 20;

/// Models that differ in their steps.
struct Problem {
  const char* name;
  std::int32_t top_k;
  std::int32_t window;  // 0: none
  std::int32_t ratio;   // 0: one source
};
constexpr Problem kV3{"V3", 0, 0, 0};
constexpr Problem kV32{"V3.2", 2048, 0, 0};
constexpr Problem kV4{"V4", 512, 128, 4};

struct Row {
  std::string what;
  double microseconds;
};

class Bench {
 public:
  Bench(const Stream& stream, int repeats) : stream_(stream), repeats_(repeats) {}

  void step(const Problem& problem, std::int64_t requests, std::int32_t rows_each,
            std::int32_t context);
  void work_list(std::int64_t rows, std::int32_t fixed);
  void transforms(std::int64_t rows, std::int64_t width);
  void combination(std::int64_t rows);
  const std::vector<Row>& rows() const { return rows_; }

 private:
  template <class T>
  DeviceArray<T> upload(const std::vector<T>& host) {
    auto array = need(DeviceArray<T>::make(std::ssize(host)));
    need(copy_to_device(std::span<const T>(host), array.data(), stream_));
    need(stream_.wait());
    return array;
  }
  template <class T>
  DeviceArray<T> room(std::int64_t count) {
    return need(DeviceArray<T>::make(count));
  }
  template <class Work>
  void measure(std::string what, Work&& work) {
    const auto graph = need(Graph::capture(stream_, [&]() -> Result<void> {
      for (int i = 0; i < kCalls; ++i) {
        if (auto ok = work(); !ok) return ok;
      }
      return {};
    }));
    std::vector<double> seconds;
    for (int i = 0; i < repeats_ + 2; ++i) {
      seconds.push_back(time_once(stream_, [&] { return graph.launch(stream_); }) / kCalls);
    }
    rows_.push_back({std::move(what), median(seconds) * 1e6});
  }

  const Stream& stream_;
  int repeats_;
  std::vector<Row> rows_;
  std::mt19937 rng_{1};
};

void Bench::step(const Problem& problem, std::int64_t requests, std::int32_t rows_each,
                 std::int32_t context) {
  const std::int64_t pages_each = context / kPool.page_size;
  const std::int64_t entry_pages_each =
      problem.ratio == 0 ? 0 : context / problem.ratio / kPool.page_size;
  const auto lists = [&](std::int64_t each) {
    std::vector<std::int64_t> host;
    for (std::int64_t r = 0; r <= requests; ++r) host.push_back(r * each);
    return upload(host);
  };
  const auto random_pages = [&](std::int64_t n) {
    std::vector<PageId> host;
    for (std::int64_t i = 0; i < n; ++i) {
      host.emplace_back(static_cast<std::int32_t>(rng_() % kPool.pages));
    }
    return upload(host);
  };
  const auto count = static_cast<std::size_t>(requests);
  const std::int64_t rows = requests * rows_each;
  const std::int64_t windows = problem.window > 0 ? rows : 0;
  const std::int64_t entries = problem.ratio > 0 ? rows : 0;
  const auto indptr = lists(pages_each), entry_list_indptr = lists(entry_pages_each);
  const auto pages = random_pages(requests * pages_each),
             entry_pages = random_pages(requests * entry_pages_each);
  const auto cached = upload(std::vector<std::int32_t>(count, context - rows_each));
  const auto brought = upload(std::vector<std::int32_t>(count, rows_each));
  const WorkOptions options{132, 64, 0};
  const auto q_indptr = room<std::int32_t>(requests + 1), kv_lens = room<std::int32_t>(requests),
             row_request = room<std::int32_t>(rows), row_lens = room<std::int32_t>(rows),
             attend_lens = room<std::int32_t>(rows), index_lens = room<std::int32_t>(rows),
             window_lens = room<std::int32_t>(windows),
             compressed_lens = room<std::int32_t>(entries);
  const auto table = room<PageId>(requests * pages_each),
             entry_table = room<PageId>(requests * entry_pages_each);
  const auto positions = room<LocalPos>(rows);
  const auto out_slots = room<Slot>(rows), entry_out_slots = room<Slot>(entries),
             window_slots = room<Slot>(windows * problem.window);
  const auto identity = room<std::uint8_t>(rows);
  const auto counts = room<StepCounts>(1);
  const auto items = room<WorkItem>(max_work_items(rows, context, options));
  const auto row_items = room<std::int64_t>(rows + 1), worker_items = room<std::int64_t>(133),
             scan = room<std::int64_t>(2 * scan_workspace(requests)),
             workspace = room<std::int64_t>(work_workspace(rows));
  StepRowsInput in;
  in.lists = {indptr.span(), pages.span()};
  in.pool = kPool;
  in.cached = cached.span();
  in.rows = brought.span();
  in.top_k = problem.top_k;
  in.window = problem.window;
  StepRowsOutput out;
  out.q_indptr = q_indptr.span();
  out.kv_lens = kv_lens.span();
  out.page_table = {table.data(), requests, pages_each};
  out.positions = positions.span();
  out.row_request = row_request.span();
  out.row_lens = row_lens.span();
  out.out_slots = out_slots.span();
  out.attend_lens = attend_lens.span();
  out.identity = identity.span();
  out.index_lens = index_lens.span();
  out.counts = counts.data();
  out.window_lens = window_lens.span();
  if (windows > 0) out.window_slots = {window_slots.data(), rows, problem.window};
  if (problem.ratio > 0) {
    in.ratio = problem.ratio;
    in.compressed_lists = {entry_list_indptr.span(), entry_pages.span()};
    in.compressed_pool = kPool;
    out.compressed_lens = compressed_lens.span();
    out.compressed_out_slots = entry_out_slots.span();
    out.compressed_table = {entry_table.data(), requests, entry_pages_each};
  }
  const auto work = [&] {
    return plan_work({attend_lens.span(), {}}, options,
                     {items.span(), row_items.span(), worker_items.span()}, workspace.span(),
                     stream_);
  };
  const auto shape = fmt::format("{}, {} requests x {} rows, context {}", problem.name, requests,
                                 rows_each, context);
  measure("step " + shape, [&]() -> Result<void> {
    if (auto ok = step_rows(in, out, scan.span(), stream_); !ok) return ok;
    return work();
  });
  measure("  of it rows and tables", [&] { return step_rows(in, out, scan.span(), stream_); });
  measure("  of it the work list", work);
}

void Bench::work_list(std::int64_t rows, std::int32_t fixed) {
  constexpr std::int32_t kLongest = 4096;
  std::vector<std::int32_t> host(static_cast<std::size_t>(rows));
  for (auto& c : host) c = static_cast<std::int32_t>(rng_() % kLongest);
  const WorkOptions options{132, 64, fixed};
  const auto counts = upload(host);
  const auto items = room<WorkItem>(max_work_items(rows, kLongest, options));
  const auto row_items = room<std::int64_t>(rows + 1), worker_items = room<std::int64_t>(133),
             workspace = room<std::int64_t>(work_workspace(rows));
  measure(fmt::format("work list of {} rows{}", rows, fixed > 0 ? ", fixed splits" : ""), [&] {
    return plan_work({counts.span(), {}}, options,
                     {items.span(), row_items.span(), worker_items.span()}, workspace.span(),
                     stream_);
  });
}

void Bench::transforms(std::int64_t rows, std::int64_t width) {
  constexpr std::int64_t kTableWidth = 1024;  // of 64 requests
  std::vector<LocalPos> host;
  for (std::int64_t i = 0; i < rows * width; ++i) {
    host.emplace_back(static_cast<std::int32_t>(rng_() % (kTableWidth * 64)));
  }
  std::vector<std::int32_t> host_request;
  for (std::int64_t t = 0; t < rows; ++t) host_request.push_back(static_cast<std::int32_t>(t % 64));
  std::vector<PageId> host_table;
  for (std::int64_t i = 0; i < 64 * kTableWidth; ++i) {
    host_table.emplace_back(static_cast<std::int32_t>(rng_() % kPool.pages));
  }
  const auto positions = upload(host);
  const auto request = upload(host_request);
  const auto table = upload(host_table);
  const auto slots = room<Slot>(rows * width);
  const auto ragged = room<RaggedRow>(rows * width);
  measure(fmt::format("{} lists of {} positions to slots", rows, width), [&] {
    return local_to_slots({positions.span(), width, {}}, request.span(),
                          {table.data(), 64, kTableWidth}, kPool, slots.span(), stream_);
  });
  measure(fmt::format("{} lists of {} positions to compact rows", rows, width), [&] {
    return local_to_ragged({positions.span(), width, {}}, request.span(), 1 << 30, ragged.span(),
                           stream_);
  });
}

void Bench::combination(std::int64_t rows) {
  constexpr std::int64_t kEntries = 512, kWindow = 128;
  const auto n = static_cast<std::size_t>(rows);
  std::vector<LocalPos> host;
  for (std::int64_t i = 0; i < rows * kEntries; ++i) {
    host.emplace_back(static_cast<std::int32_t>(rng_() % 8192));
  }
  const auto positions = upload(std::vector<LocalPos>(n, LocalPos(32767)));
  const auto entries = upload(host);
  const auto base = upload(std::vector<std::int32_t>(n, 0));
  const std::int64_t width = combined_width(kEntries, kWindow, 64);
  const auto out = room<RaggedRow>(rows * width);
  const auto lengths = room<std::int32_t>(rows);
  CombineLists lists;
  lists.positions = positions.span();
  lists.window = kWindow;
  lists.ratio = 4;
  lists.entries = entries.span();
  lists.entry_width = kEntries;
  lists.entry_base = lists.window_base = lists.window_start = base.span();
  lists.compact_rows = 1 << 20;
  lists.multiple = 64;
  measure(fmt::format("{} combined lists of {} + {}", rows, kEntries, kWindow),
          [&] { return combine_index_lists(lists, out.span(), lengths.span(), stream_); });
}

int run(int repeats, bool json) {
  const auto device = open_device();
  if (!device) {
    std::fprintf(stderr, "%s\n", device.error().message().c_str());
    return 77;
  }
  std::fprintf(stderr, "%s, %d SMs\n", device->model.c_str(), device->sms);
  const auto stream = need(Stream::make());
  Bench bench(stream, repeats);
  for (const Problem& problem : {kV3, kV32, kV4}) {
    bench.step(problem, 1, 1, 4096);
    bench.step(problem, 128, 1, 4096);
    bench.step(problem, 1024, 1, 4096);
    bench.step(problem, 1024, 4, 4096);
    bench.step(problem, 128, 1, 131072);
    bench.step(problem, 4, 8192, 32768);
  }
  for (std::int64_t rows : {128, 1024, 4096, 11674, 100'000, 1'000'000}) bench.work_list(rows, 0);
  bench.work_list(1024, 256);
  bench.work_list(1'000'000, 256);
  bench.transforms(128, 2048);
  bench.transforms(4096, 2048);
  bench.combination(128);
  bench.combination(4096);
  if (json) {
    nlohmann::json out = nlohmann::json::array();
    for (const Row& r : bench.rows()) {
      out.push_back({{"operation", r.what}, {"microseconds", r.microseconds}});
    }
    fmt::print("{}\n", out.dump(1));
    return 0;
  }
  for (const Row& r : bench.rows()) fmt::print("{:<60} {:>9.2f} us\n", r.what, r.microseconds);
  return 0;
}

}  // namespace
}  // namespace lathe::cuda

int main(int argc, char** argv) {
  return lathe::cuda::run_with_options(argc, argv, lathe::cuda::run);
}
