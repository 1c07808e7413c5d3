// Times exchanges between the GPUs of this machine, in captured graphs, against NCCL.
//
// exchange_gpu_bench [--ranks N] [--repeats N] [--cols N] [--rows N]
//
// A graph has 100 calls at up to 256 rows, fewer above; its time is divided by them. All ranks
// launch their graph after a barrier, and the slowest rank's events count. Medians. "nccl + norm"
// is ncclAllReduce in bf16 and one fused kernel that adds the sum to x and norms it; without
// libnccl.so.2 those columns are empty.
#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstring>
#include <functional>
#include <thread>

#include "kernels/cuda/exchange/nccl.h"
#include "kernels/cuda/sm90/exchange/test/exchange_checks.h"
#include "kernels/cuda/sm90/exchange/test/exchange_gpu_bench.h"

namespace lathe::cuda {
namespace {

struct Options {
  int ranks = 2, repeats = 15;
  std::vector<std::int64_t> cols = {7168, 8192};
  std::vector<std::int64_t> rows = {1, 16, 64, 256, 1024, 8192};
};

// A thread for each rank, on its device.
void on_all(int ranks, const std::function<void(int)>& work) {
  std::vector<std::jthread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      ExchangeGroup::on(r);
      work(r);
    });
  }
}

// Values that cost the host little.
SumInputs bench_inputs(int ranks, std::int64_t rows, std::int64_t cols) {
  const auto count = static_cast<std::size_t>(rows * cols);
  SumInputs in{.rows = rows, .cols = cols, .partials = {}, .x = {}, .weight = {}};
  for (int r = 0; r < ranks; ++r) {
    auto& partial = in.partials.emplace_back(count);
    for (std::size_t i = 0; i < count; ++i) {
      partial[i].bits = static_cast<std::uint16_t>(0x3c00 + (i * 2654435761u >> 20 & 0x1ff));
    }
  }
  in.x.resize(count);
  for (std::size_t i = 0; i < count; ++i)
    in.x[i] = static_cast<float>(i * 40503u >> 7 & 0xff) - 127;
  in.weight.assign(static_cast<std::size_t>(cols), 0.75f);
  return in;
}

class Bench {
 public:
  Bench(const Options& options, std::int64_t most_rows, std::int64_t most_cols)
      : options_(options),
        group_(options.ranks, plane_words_of(SumPath::push, options.ranks, most_rows, most_cols)),
        nccl_(open_nccl()) {
    ExchangeGroup::on(0);
    launch_.sms = need(count_sms());
    if (!nccl_) {
      std::printf("%s\n", nccl_.error().message().c_str());
      return;
    }
    comms_.resize(static_cast<std::size_t>(options.ranks));
    NcclId id;
    need(nccl_result(**nccl_, (*nccl_)->get_unique_id(&id), "ncclGetUniqueId"));
    on_all(options.ranks, [&](int r) {
      need(nccl_result(
          **nccl_,
          (*nccl_)->comm_init_rank(&comms_[static_cast<std::size_t>(r)], options_.ranks, id, r),
          "ncclCommInitRank"));
    });
    std::printf("NCCL %d\n", (*nccl_)->version);
  }
  ~Bench() {
    for (NcclComm* comm : comms_) (*nccl_)->comm_destroy(comm);
  }

  // Seconds of one call of work(rank, arrays), a Result<void> that launches on the rank's stream.
  template <class Work>
  double time(std::int64_t rows, std::int64_t cols, Work work) {
    if (inputs_.rows != rows || inputs_.cols != cols) {
      arrays_.clear();
      inputs_ = bench_inputs(options_.ranks, rows, cols);
      arrays_ = arrays_of(group_, inputs_);
    }
    return time_calls(rows, [&](int r) {
      return work(r, arrays_[static_cast<std::size_t>(r)].params(inputs_, true, true));
    });
  }

  // The same of work(rank).
  template <class Work>
  double time_calls(std::int64_t rows, Work work) {
    const int calls = rows <= 256 ? 100 : rows <= 1024 ? 20 : 5;
    std::barrier<> together(options_.ranks);
    std::vector<std::vector<double>> seconds(static_cast<std::size_t>(options_.ranks));
    on_all(options_.ranks, [&](int r) {
      const auto at = static_cast<std::size_t>(r);
      ExchangeRank& mine = group_.rank(r);
      const auto call = [&] { return work(r); };
      need(call());  // NCCL connects in its first call, which cannot be captured
      need(mine.stream.wait());
      together.arrive_and_wait();
      const Graph graph = need(Graph::capture(mine.stream, [&]() -> Result<void> {
        for (int i = 0; i < calls; ++i) {
          if (auto ok = call(); !ok) return ok;
        }
        return {};
      }));
      Event begin, end;
      for (int i = 0; i < options_.repeats + 3; ++i) {
        together.arrive_and_wait();
        begin.record(mine.stream);
        need(graph.launch(mine.stream));
        end.record(mine.stream);
        const double one = Event::seconds(begin, end) / calls;
        if (i >= 3) seconds[at].push_back(one);
      }
    });
    std::vector<double> slowest = seconds[0];
    for (const auto& of : seconds) {
      for (std::size_t i = 0; i < of.size(); ++i) slowest[i] = std::max(slowest[i], of[i]);
    }
    return median(slowest) * 1e6;
  }

  double ours(std::int64_t rows, std::int64_t cols, SumPath path, bool norm, bool one_row = false) {
    if (plane_words_of(path, options_.ranks, rows, cols) > group_.rank(0).peers.plane_words) {
      return std::nan("");
    }
    return time(rows, cols, [&, path, norm, one_row](int r, SumParams p) {
      if (!norm) p.h = {};
      ExchangeLaunch launch = launch_;
      launch.one_row = one_row;
      return call_result(launch_sum(group_.rank(r).peers, path, p, launch, group_.rank(r).stream),
                         "launch_sum");
    });
  }
  double nccl(std::int64_t rows, std::int64_t cols, bool norm) {
    if (!nccl_) return std::nan("");
    return time(rows, cols, [&](int r, const SumParams& p) -> Result<void> {
      const Stream& stream = group_.rank(r).stream;
      const int status =
          (*nccl_)->all_reduce(p.partial.data, const_cast<std::byte*>(p.partial.data),
                               static_cast<std::size_t>(rows * cols), Nccl::kBfloat16, Nccl::kSum,
                               comms_[static_cast<std::size_t>(r)], stream);
      if (auto ok = nccl_result(**nccl_, status, "ncclAllReduce"); !ok) return ok;
      if (!norm) return {};
      return call_result(launch_add_norm(p, stream), "add_norm");
    });
  }
  double trade(std::int64_t rows) {
    constexpr std::int64_t kVocab = 129280;
    const std::int64_t each = kVocab / options_.ranks;
    std::vector<RankArray<float>> columns, whole;
    for (int r = 0; r < options_.ranks; ++r) {
      columns.emplace_back(group_.rank(r),
                           std::vector<float>(static_cast<std::size_t>(rows * each), 1.5f));
      whole.emplace_back(group_.rank(r),
                         std::vector<float>(static_cast<std::size_t>((rows + 1) / 2 * kVocab)));
    }
    return time_calls(rows, [&](int r) {
      const auto at = static_cast<std::size_t>(r);
      TradeParams p{.columns = columns[at].device.data(),
                    .whole = whole[at].device.data(),
                    .stride = each,
                    .whole_stride = kVocab,
                    .rows = rows};
      for (int i = 0; i <= options_.ranks; ++i) p.first[i] = i * each;
      return call_result(launch_trade_columns(group_.rank(r).peers, p, group_.rank(r).stream),
                         "launch_trade_columns");
    });
  }
  double share(std::int64_t rows) {
    std::vector<RankArray<std::uint64_t>> records;
    for (int r = 0; r < options_.ranks; ++r) {
      records.emplace_back(group_.rank(r),
                           std::vector<std::uint64_t>(static_cast<std::size_t>(2 * rows), 1));
    }
    return time_calls(rows, [&](int r) {
      return call_result(
          launch_share_records(
              group_.rank(r).peers,
              {.records = records[static_cast<std::size_t>(r)].device.data(), .count = rows},
              group_.rank(r).stream),
          "launch_share_records");
    });
  }
  double norm_alone(std::int64_t rows, std::int64_t cols) {
    return time(rows, cols, [&](int r, const SumParams& p) {
      return call_result(launch_add_norm(p, group_.rank(r).stream), "add_norm");
    });
  }

 private:
  Options options_;
  ExchangeGroup group_;
  ExchangeLaunch launch_;
  Result<const Nccl*> nccl_;
  std::vector<NcclComm*> comms_;
  SumInputs inputs_;  // of the last size
  std::vector<SumArrays> arrays_;
};

int run(const Options& options) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // a row when it is measured
  Bench bench(options, 1024, *std::max_element(options.cols.begin(), options.cols.end()));
  std::printf("us a call; %d ranks; one row: at most one row on an SM at once\n", options.ranks);
  std::printf("%6s %6s %8s %8s %8s %8s %8s %8s %8s %8s %8s %6s\n", "cols", "rows", "push", "+norm",
              "one row", "owned", "pull", "p owned", "nccl", "nccl+n", "norm", "ratio");
  for (const std::int64_t cols : options.cols) {
    for (const std::int64_t rows : options.rows) {
      const double push = bench.ours(rows, cols, SumPath::push, false);
      const double push_norm = bench.ours(rows, cols, SumPath::push, true);
      const double one_row = bench.ours(rows, cols, SumPath::push, true, true);
      const double owned = bench.ours(rows, cols, SumPath::push_owned, true);
      const double pull = bench.ours(rows, cols, SumPath::pull, true);
      const double pull_owned = bench.ours(rows, cols, SumPath::pull_owned, true);
      const double nccl = bench.nccl(rows, cols, false), nccl_norm = bench.nccl(rows, cols, true);
      const double norm = bench.norm_alone(rows, cols);
      std::printf("%6d %6d %8.2f %8.2f %8.2f %8.2f %8.2f %8.2f %8.2f %8.2f %8.2f %6.2f\n",
                  static_cast<int>(cols), static_cast<int>(rows), push, push_norm, one_row, owned,
                  pull, pull_owned, nccl, nccl_norm, norm,
                  std::fmin(push_norm, std::fmin(owned, pull_owned)) / nccl_norm);
    }
  }
  std::printf("logits of 129280 columns dealt, and records of 16 bytes shared\n%6s %8s %8s\n",
              "rows", "columns", "records");
  for (const std::int64_t rows : {1, 16, 64, 256}) {
    std::printf("%6d %8.2f %8.2f\n", static_cast<int>(rows), bench.trade(rows), bench.share(rows));
  }
  return 0;
}

}  // namespace
}  // namespace lathe::cuda

int main(int argc, char** argv) {
  lathe::cuda::Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const int value = std::max(std::atoi(argv[i + 1]), 1);
    if (std::strcmp(argv[i], "--ranks") == 0) options.ranks = value;
    if (std::strcmp(argv[i], "--repeats") == 0) options.repeats = value;
    if (std::strcmp(argv[i], "--cols") == 0) options.cols = {value};
    if (std::strcmp(argv[i], "--rows") == 0) options.rows = {value};
  }
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < options.ranks) {
    std::printf("wanted %d GPUs, got %d\n", options.ranks, devices);
    return devices == 0 ? 77 : 0;
  }
  return lathe::cuda::run(options);
}
