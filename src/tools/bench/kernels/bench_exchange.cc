#include "tools/bench/kernels/bench_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/json.h"
#include "base/print.h"
#include "base/rows.h"
#include "engine/runner/or_out_of_memory.h"
#include "kernels/devices/all.h"
#include "kernels/devices/query_gpu.h"
#include "ops/exchange.h"
#include "tools/bench/bench_memory.h"
#include "tools/bench/median.h"
#include "tools/flags/command.h"

namespace lathe {
namespace {

using Seconds = std::vector<double>;  // of one call, by number of rows

// A rank's part of the bench, on its own thread.
class ExchangeBenchRank {
 public:
  ExchangeBenchRank(const BenchExchangeOptions& options, Device device, int gpu,
                    Communicator& communicator)
      : options_(options), device_(device), gpu_(gpu), communicator_(communicator) {}

  Result<Seconds> run() {
    auto backend = make_backend(device_, gpu_, &communicator_);
    if (auto ok = communicator_.agree(backend ? Result<void>() : backend.error()); !ok) {
      return ok.error();
    }
    backend_ = std::move(*backend);
    Arena tensors(backend_->memory()), control;
    ThreadPool threads(
        std::max(1, describe_machine(Device::cpu).processors / communicator_.size()));
    ops_.execution.threads = &threads;
    ops_.backend = backend_.get();
    ops_.communicator = &communicator_;
    ops_.tensors = &tensors;
    ops_.control = &control;
    const std::int64_t most = *std::max_element(options_.rows.begin(), options_.rows.end());
    const ExchangeLimits limits{
        .rows = most, .cols = options_.cols, .dtype = backend_->activations()};
    if (auto ok = communicator_.agree(communicator_.reserve(limits)); !ok) return ok.error();
    // All memory before the first wait for a peer.
    const MutableRowsView x = alloc_rows(tensors, most, options_.cols);
    const MutableRowsView h = alloc_rows(tensors, most, options_.cols, backend_->activations());
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
    const int calls = calls_of(x.rows);
    const auto work = [&]() -> Result<void> {
      for (int i = 0; i < calls; ++i) {
        const Arena::Scope scope(*ops_.tensors);
        const MutableRowsView partial = alloc_partial(ops_, x.rows, x.cols);
        sum_norm(ops_, {.partial = constant(partial),
                        .x = x,
                        .weight = {},
                        .eps = 1e-6f,
                        .h = h,
                        .owned = true});
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

  // Enough to outweigh a graph's launch; on a CPU, to see its clock move.
  int calls_of(std::int64_t rows) const {
    if (is_gpu(device_)) return rows <= 256 ? 400 : rows <= 1024 ? 60 : 10;
    constexpr std::int64_t kElements = 1 << 21;
    return static_cast<int>(std::clamp<std::int64_t>(kElements / (rows * options_.cols), 1, 400));
  }

  const BenchExchangeOptions& options_;
  Device device_;
  int gpu_;
  Communicator& communicator_;
  std::unique_ptr<Backend> backend_;
  OpsContext ops_;
};

Result<Seconds> bench_ranks(const BenchExchangeOptions& options, Device device, bool nccl) {
  const std::vector<int> gpus(options.gpus.begin(), options.gpus.end());
  const auto ranks = static_cast<std::int32_t>(gpus.size());
  auto communicators = make_communicators(device, ranks, gpus, nccl);
  if (!communicators) return communicators.error();
  std::vector<Result<Seconds>> results(gpus.size(), Seconds());
  {
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < gpus.size(); ++r) {
      threads.emplace_back([&, r] {
        Communicator& mine = *(*communicators)[r];
        ExchangeBenchRank rank(options, device, gpus[r], mine);
        const auto ok = or_out_of_memory([&]() -> Result<void> {
          results[r] = rank.run();
          return results[r] ? Result<void>() : results[r].error();
        });
        if (ok) return;
        results[r] = ok.error();
        mine.abort(ok.error());
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

// The error if this machine does not have the GPUs.
std::optional<Error> missing_gpus(std::vector<std::int64_t> gpus) {
  const std::int32_t count = gpu_count();
  if (count == 0) {
    return Error{ErrorCode::unsupported, "--gpus", fmt::format("{} GPUs", gpus.size()),
                 "none: this machine has no GPU that the build can use",
                 fmt::format("--device cpu --tp {}", gpus.size())};
  }
  std::ranges::sort(gpus);
  if (gpus.back() >= count) {
    return Error{ErrorCode::out_of_range, "--gpus", fmt::format("numbers from 0 to {}", count - 1),
                 fmt::format("{}", gpus.back()), ""};
  }
  const auto twice = std::ranges::adjacent_find(gpus);
  if (twice == gpus.end()) return std::nullopt;
  return Error{ErrorCode::invalid_argument, "--gpus", "each GPU once",
               fmt::format("{} twice", *twice), ""};
}

// The error if a CPU's ranks need more memory than there is. A GPU's rows are small next to it.
Result<void> check_host_memory(const BenchExchangeOptions& options) {
  const std::int64_t rows = *std::ranges::max_element(options.rows);
  const std::size_t ranks = options.gpus.size();
  // Of ExchangeBenchRank: x, h and the partial sums, in f32.
  const double needed = 3.0 * sizeof(float) * static_cast<double>(rows) *
                        static_cast<double>(options.cols) * static_cast<double>(ranks);
  return check_bench_memory(Device::cpu, needed, "--rows",
                            fmt::format("3 arrays of {} rows of {} columns on each of {} ranks",
                                        rows, options.cols, ranks),
                            "fewer --rows, --cols or --tp");
}

}  // namespace

int bench_exchange_command(const BenchExchangeOptions& options) {
  const bool gpu = options.device != "cpu";
  const std::size_t ranks = options.gpus.size();
  if (ranks != 2 && ranks != 4 && ranks != 8) {
    return refuse({ErrorCode::invalid_argument, gpu ? "--gpus" : "--tp", "2, 4 or 8",
                   fmt::format("{}", ranks), ""});
  }
  if (gpu) {
    if (const auto error = missing_gpus(options.gpus)) return refuse(*error);
  }
  if (!gpu) {
    if (const auto ok = check_host_memory(options); !ok) return refuse(ok.error());
  }
  std::vector<std::string> kinds = {"host"};
  if (gpu) kinds = {options.exchange == "nccl" ? "nccl" : "peer"};
  if (gpu && options.exchange == "auto" && has_nccl()) kinds.emplace_back("nccl");
  std::vector<std::pair<std::string, Seconds>> columns;
  for (const std::string& kind : kinds) {
    const auto seconds = bench_ranks(options, gpu ? Device::sm90 : Device::cpu, kind == "nccl");
    if (!seconds) return refuse(seconds.error());
    columns.emplace_back(kind, *seconds);
  }
  nlohmann::ordered_json out = {{"ranks", ranks}, {"cols", options.cols}};
  if (gpu) out["gpus"] = options.gpus;
  out["cases"] = nlohmann::ordered_json::array();
  std::string table = fmt::format("us of a sum of {} columns over {} {} with the norm\n\n{:>6}",
                                  options.cols, ranks, gpu ? "GPUs" : "groups of threads", "rows");
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

}  // namespace lathe
