#include "tools/bench/bench_exchange.h"

#include "base/result.h"
#include "tools/flags/command.h"

#ifdef LATHE_HAS_CUDA
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/json.h"
#include "base/print.h"
#include "base/rows.h"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/common/memory.h"
#include "kernels/cuda/exchange/cuda_communicator.h"
#include "kernels/cuda/exchange/nccl.h"
#include "kernels/host_communicator.h"
#include "ops/exchange.h"
#include "tools/bench/median.h"
#endif

namespace lathe {

#ifdef LATHE_HAS_CUDA

namespace {

using Seconds = std::vector<double>;  // of one call, by number of rows

// A rank's part of the bench, on its own thread.
class ExchangeBenchRank {
 public:
  ExchangeBenchRank(const BenchExchangeOptions& options, cuda::CudaCommunicator& communicator)
      : options_(options), communicator_(communicator) {}

  Result<Seconds> run() {
    auto backend = cuda::make_cuda_backend(
        {.ordinal = communicator_.ordinal(), .communicator = &communicator_});
    if (auto ok = communicator_.agree(backend ? Result<void>() : backend.error()); !ok) {
      return ok.error();
    }
    backend_ = std::move(*backend);
    Arena tensors(cuda::kDeviceMemory), control;
    ops_.backend = backend_.get();
    ops_.communicator = &communicator_;
    ops_.tensors = &tensors;
    ops_.control = &control;
    const std::int64_t most = *std::max_element(options_.rows.begin(), options_.rows.end());
    const ExchangeLimits limits{.rows = most, .cols = options_.cols, .dtype = DType::bf16};
    if (auto ok = communicator_.agree(communicator_.reserve(limits)); !ok) return ok.error();
    // All memory before the first wait for a peer.
    const MutableRowsView x = alloc_rows(tensors, most, options_.cols);
    const MutableRowsView h = alloc_rows(tensors, most, options_.cols, DType::bf16);
    {
      const Arena::Scope scope(tensors);
      alloc_partial(ops_, most, options_.cols);
    }
    Seconds out;
    for (const std::int64_t rows : options_.rows) {
      const auto seconds = time(rows_at(x, 0, rows), rows_at(h, 0, rows));
      if (!seconds) return seconds.error();
      out.push_back(*seconds);
    }
    if (auto ok = communicator_.barrier(); !ok) return ok.error();  // before memory is freed
    return out;
  }

 private:
  Result<double> time(const MutableRowsView& x, const MutableRowsView& h) {
    const int calls = x.rows <= 256 ? 400 : x.rows <= 1024 ? 60 : 10;
    const auto work = [&]() -> Result<void> {
      for (int i = 0; i < calls; ++i) {
        const Arena::Scope scope(*ops_.tensors);
        const MutableRowsView partial = alloc_partial(ops_, x.rows, x.cols);
        sum_norm(ops_, {.partial = constant(partial), .x = x, .weight = {}, .eps = 1e-6f, .h = h});
      }
      return {};
    };
    std::vector<double> seconds;
    for (int i = 0; i < options_.repeats + 3; ++i) {  // the first runs, the second records
      if (auto ok = communicator_.barrier(); !ok) return ok.error();
      const auto start = std::chrono::steady_clock::now();
      if (auto ok = backend_->replay(ops_, static_cast<std::uint64_t>(x.rows), work); !ok) {
        return ok.error();
      }
      if (auto ok = backend_->wait(); !ok) return ok.error();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      if (i >= 3) seconds.push_back(took.count() / calls);
    }
    return median(seconds);
  }

  const BenchExchangeOptions& options_;
  cuda::CudaCommunicator& communicator_;
  std::unique_ptr<Backend> backend_;
  OpsContext ops_;
};

Result<Seconds> bench_ranks(const BenchExchangeOptions& options, cuda::ExchangeKind kind) {
  const std::vector<int> gpus(options.gpus.begin(), options.gpus.end());
  auto communicators = cuda::make_cuda_communicators(
      make_host_communicators(static_cast<std::int32_t>(gpus.size())), gpus, kind);
  if (!communicators) return communicators.error();
  std::vector<Result<Seconds>> results(gpus.size(), Seconds());
  {
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < gpus.size(); ++r) {
      threads.emplace_back([&, r] {
        cuda::CudaCommunicator& mine = *(*communicators)[r];
        ExchangeBenchRank rank(options, mine);
        results[r] = rank.run();
        if (!results[r]) mine.abort(results[r].error());
      });
    }
  }
  Seconds slowest;
  for (const Result<Seconds>& of : results) {
    if (!of) return of;
    slowest.resize(of->size());
    for (std::size_t i = 0; i < of->size(); ++i) slowest[i] = std::max(slowest[i], (*of)[i]);
  }
  return slowest;
}

}  // namespace

int bench_exchange_command(const BenchExchangeOptions& options) {
  const bool all = options.exchange == "auto";
  std::vector<std::pair<std::string, Seconds>> columns;
  if (all || options.exchange == "peer") {
    const auto seconds = bench_ranks(options, cuda::ExchangeKind::peer);
    if (!seconds) return refuse(seconds.error());
    columns.emplace_back("peer", *seconds);
  }
  if (options.exchange == "nccl" || (all && cuda::open_nccl())) {
    const auto seconds = bench_ranks(options, cuda::ExchangeKind::nccl);
    if (!seconds) return refuse(seconds.error());
    columns.emplace_back("nccl", *seconds);
  }
  nlohmann::ordered_json out = {{"gpus", options.gpus}, {"cols", options.cols}};
  out["cases"] = nlohmann::ordered_json::array();
  std::string table = fmt::format("us of a sum of {} columns over {} GPUs with the norm\n\n{:>6}",
                                  options.cols, options.gpus.size(), "rows");
  for (const auto& [name, seconds] : columns) table += fmt::format(" {:>8}", name);
  for (std::size_t i = 0; i < options.rows.size(); ++i) {
    nlohmann::ordered_json row = {{"rows", options.rows[i]}};
    table += fmt::format("\n{:6}", options.rows[i]);
    for (const auto& [name, seconds] : columns) {
      row[name + "_seconds"] = seconds[i];
      table += fmt::format(" {:8.2f}", seconds[i] * 1e6);
    }
    out["cases"].push_back(std::move(row));
  }
  print_out(options.json ? json_text(out, 2) + "\n" : table + "\n");
  return kExitOk;
}

#else

int bench_exchange_command(const BenchExchangeOptions&) {
  return refuse({ErrorCode::unsupported, "bench exchange", "a build that found a CUDA toolkit",
                 "one without CUDA", "put nvcc on PATH and configure again"});
}

#endif

}  // namespace lathe
