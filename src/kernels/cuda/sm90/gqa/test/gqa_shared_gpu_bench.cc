// Times grouped-query decode of requests with shared prefixes on a GPU: each reads all of its keys,
// or shared keys are read once.
//
// gqa_shared_gpu_bench [--repeats N] [--json]
//
// Captures graphs of ten calls of both kinds and times them in turns; prints medians of a call, and
// the host's time to find the groups. Heads are Llama-3.1-8B's.
#include <chrono>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "kernels/cuda/common/gpu_timing.h"
#include "kernels/cuda/sm90/gqa/gqa_attend.h"
#include "step/prefix_groups.h"
#include "step/schedule.h"

namespace lathe::cuda {
namespace {

constexpr int kCalls = 10;
constexpr unsigned kSeed = 20261129;
constexpr std::int32_t kHeads = 32, kKvHeads = 8, kDim = 128;

struct Case {
  LayoutKind layout;
  std::int32_t requests, rows;
  std::int32_t shared;       // keys
  std::int32_t least, most;  // keys of a request besides: random between them
  std::int32_t page;
};

constexpr LayoutKind kBf16 = LayoutKind::gqa_bf16, kFp8 = LayoutKind::gqa_fp8;
constexpr Case kCases[] = {
    {kBf16, 512, 1, 704, 40, 400, 64}, {kBf16, 512, 1, 8192, 40, 400, 64},
    {kBf16, 64, 1, 704, 40, 400, 64},  {kBf16, 64, 1, 8192, 40, 400, 64},
    {kBf16, 16, 1, 704, 40, 400, 64},  {kBf16, 4, 1, 8192, 40, 400, 64},
    {kBf16, 512, 1, 704, 40, 400, 16}, {kBf16, 64, 4, 704, 40, 400, 64},
    {kFp8, 512, 1, 704, 40, 400, 64},  {kFp8, 512, 1, 8192, 40, 400, 64},
    {kFp8, 64, 1, 704, 40, 400, 64},   {kFp8, 64, 1, 8192, 40, 400, 64},
    {kFp8, 16, 1, 704, 40, 400, 64},   {kFp8, 4, 1, 8192, 40, 400, 64},
    {kFp8, 512, 1, 704, 40, 400, 16},  {kFp8, 64, 4, 704, 40, 400, 64},
    {kFp8, 128, 1, 704, 40, 400, 64},  {kFp8, 128, 1, 2048, 40, 400, 64},
};

struct Times {
  double plain = 0, shared = 0, host = 0;  // microseconds
  std::int64_t groups = 0;
};

Times run_case(const Case& c, const Stream& stream, int repeats) {
  std::mt19937 rng(kSeed);
  AttendArgs args;
  args.problem = gqa_problem(kHeads, kKvHeads, kDim);
  std::vector<std::int32_t> indptr{0}, lens, row_requests;
  for (std::int32_t r = 0; r < c.requests; ++r) {
    lens.push_back(c.shared + c.least +
                   static_cast<std::int32_t>(rng() % static_cast<unsigned>(c.most - c.least + 1)));
    indptr.push_back(indptr.back() + c.rows);
    row_requests.insert(row_requests.end(), static_cast<std::size_t>(c.rows), r);
  }
  args.max_kv_len = *std::ranges::max_element(lens);
  const std::int64_t width = (args.max_kv_len + c.page - 1) / c.page;
  std::vector<PageId> table(static_cast<std::size_t>(c.requests * width));
  std::int32_t next = 0;
  for (std::int64_t r = 0; r < c.requests; ++r) {
    for (std::int64_t i = 0; i < width; ++i) {
      const bool common = r > 0 && (i + 1) * c.page <= c.shared;
      table[static_cast<std::size_t>(r * width + i)] =
          common ? table[static_cast<std::size_t>(i)] : PageId(next++);
    }
  }
  const CacheLayout layout(c.layout, {.kv_heads = kKvHeads, .head_dim = kDim, .v_head_dim = kDim});
  const std::int64_t bytes = next * layout.page_stride(c.page);
  const auto pool = need(DeviceArray<std::byte>::make(bytes));
  need(call_result(cudaMemsetAsync(pool.data(), 0x3c, static_cast<std::size_t>(bytes), stream),
                   "cudaMemsetAsync"));
  const std::int64_t rows = indptr.back(), elements = std::int64_t{kHeads} * kDim;
  const std::vector<std::byte> ones(static_cast<std::size_t>(rows * elements * 2), std::byte{0x3c});
  const auto q = upload(ones, stream);
  const auto out = need(DeviceArray<std::byte>::make(rows * elements * 2));
  const auto d_indptr = upload(indptr, stream), d_lens = upload(lens, stream);
  const auto d_table = upload(table, stream);
  args.q = {q.data(), DType::bf16, rows, elements, elements};
  args.out = {out.data(), DType::bf16, rows, elements, elements};
  args.q_indptr = d_indptr.span();
  args.kv_lens = d_lens.span();
  args.main.page_table = d_table.span();
  args.main.table_width = width;
  args.max_request_rows = c.rows;
  args.main.pool.emplace(pool.data(), layout, c.page, next);
  args.execution.stream = stream;

  Times times;
  // Groups cost nothing here: the planner's costs come from these times.
  PrefixGrouper grouper({.on = true, .key_ps = 1, .row_heads = kHeads / kKvHeads}, c.page,
                        c.requests);
  std::vector<PrefixRequest> requests;
  for (std::int32_t r = 0; r < c.requests; ++r) {
    const std::int32_t before = lens[static_cast<std::size_t>(r)] - c.rows;
    requests.push_back({std::span(table).subspan(static_cast<std::size_t>(r * width),
                                                 static_cast<std::size_t>(before / c.page)),
                        r * c.rows, c.rows});
  }
  std::vector<std::int32_t> lists(
      static_cast<std::size_t>(PrefixLists<std::int32_t>::size(c.requests, rows)));
  SharedPrefixes found;
  std::vector<double> host;
  for (int i = 0; i < 21; ++i) {
    const auto start = std::chrono::steady_clock::now();
    found = grouper.find(requests, row_requests, lists);
    host.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  times.host = median(host) * 1e6;
  times.groups = grouper.savings().groups;
  const auto d_lists = upload(lists, stream);

  Scratch scratch(kDeviceMemory);
  args.execution.scratch = &scratch;
  Schedule schedules[2] = {Schedule(kDeviceMemory), Schedule(kDeviceMemory)};
  std::vector<Graph> graphs;
  for (int shared = 0; shared < 2; ++shared) {
    AttendArgs call = args;
    if (shared == 1) call.prefixes = {found.size, d_lists.span()};
    need(prepare_gqa_on_device(call, schedules[shared]));
    call.schedule = &schedules[shared];
    need(attend_gqa_on_device(call));
    graphs.push_back(need(Graph::capture(stream, [&]() -> Result<void> {
      for (int i = 0; i < kCalls; ++i) {
        if (auto ok = attend_gqa_on_device(call); !ok) return ok;
      }
      return {};
    })));
  }
  std::vector<double> measured[2];
  for (int i = 0; i <= repeats; ++i) {
    for (std::size_t shared = 0; shared < 2; ++shared) {
      const double seconds = time_once(stream, [&] { return graphs[shared].launch(stream); });
      if (i > 0) measured[shared].push_back(seconds / kCalls * 1e6);
    }
  }
  times.plain = median(measured[0]);
  times.shared = median(measured[1]);
  return times;
}

int run(int repeats, bool json) {
  const Device device = need(open_device());
  const Stream stream = need(Stream::make());
  std::printf("%s seed %u\n", device.model.c_str(), kSeed);
  nlohmann::json all = nlohmann::json::array();
  for (const Case& c : kCases) {
    const std::string what =
        fmt::format("{} b{} rows {} behind {}, own {}-{}, page {}", name(c.layout), c.requests,
                    c.rows, c.shared, c.least, c.most, c.page);
    const Times t = run_case(c, stream, repeats);
    std::printf("%-56s each %9.1f us  shared %8.1f us  %5.2f x  %ld groups, host %5.1f us\n",
                what.c_str(), t.plain, t.shared, t.plain / t.shared, static_cast<long>(t.groups),
                t.host);
    std::fflush(stdout);
    all.push_back({{"case", what},
                   {"each_us", t.plain},
                   {"shared_us", t.shared},
                   {"groups", t.groups},
                   {"host_us", t.host}});
  }
  if (json) std::printf("%s\n", all.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace lathe::cuda

int main(int argc, char** argv) {
  return lathe::cuda::run_with_options(argc, argv, lathe::cuda::run);
}
