// Times latent attention on a GPU.
//
// latent_gpu_bench [--peer FILE] [--filter TEXT] [--repeats N] [--min-block-m N] [--graph] [--json]
//                  [--seed N] [--calls N] [--rest SECONDS] [--with-schedule]
// latent_gpu_bench --layout mla_bf16 --b 128 --rows 1 --heads 128 --s 4096 --lengths normal ...
//
// Runs all cases, or one given by flags. Requests have unequal lengths with --lengths normal
// (deviation half of --s), uniform (1 to --s), one-long (uniform, and one of 16 times --s) or a
// file. --bound is the length that a table's width implies, --holes the share of empty list
// entries, --deviation that of scores. With --list-lengths off, lists of short requests end with
// holes instead. All randomness follows from the printed seed.
//
// Prints medians of CUDA event times of attention plus combine. The schedule, which is prepared
// once for all layers of a step, has its own column. A call is issued after the first event on an
// idle device, so that the host's time counts where it exceeds the device's. With --graph a
// captured graph of 20 calls is timed and divided by 20, as a step's layers replay them: the host
// does not count. --calls N: N calls are timed together, as launches or as a graph, and divided by
// N. --rest: sleep before each measurement. --with-schedule: each call makes its schedule too. With
// --peer (latent_peer.h) both sides are timed alternately on the same inputs, and their outputs are
// compared. With --min-block-m 64 or 32, blocks have at least that many M rows where a work tile
// has more than 32. Limits are the larger of bytes (each key once, q and out) over 4.3 TB/s and
// operations over 790 (bf16) or 1400 (fp8) TFLOP/s.
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "kernels/cuda/sm90/latent/test/latent_bench_peer.h"

namespace lathe::cuda {
namespace {

struct Row {
  std::string what;
  double microseconds = 0, peer = 0, limit = 0;
  double schedule = 0;    // microseconds
  double difference = 0;  // 1 - cosine of both outputs
  std::string peer_name;
};

/// How calls are timed.
struct Timed {
  int repeats = 30;
  bool graph = false;
  int calls = 0;    // timed together; 0: 20 with a graph, else 1
  double rest = 0;  // seconds
  bool with_schedule = false;
};

class Bench {
 public:
  Bench(const Stream& stream, int sms, const Timed& timed, std::int32_t min_block_m,
        std::optional<PeerLibrary> peer, unsigned seed)
      : stream_(stream),
        sms_(sms),
        timed_(timed),
        calls_(timed.calls > 0 ? timed.calls
               : timed.graph   ? 20
                               : 1),
        min_block_m_(min_block_m),
        peer_(peer),
        rng_(seed),
        normal_(rng_),
        seed_(normal_, stream) {}
  void run(const BenchCase& c);
  const std::vector<Row>& rows() const { return rows_; }

 private:
  template <class Call>
  Result<void> run_calls(Call&& call) const {
    for (int i = 0; i < calls_; ++i) {
      if (auto ok = call(); !ok) return ok;
    }
    return {};
  }
  template <class Call>
  std::optional<Graph> graph_of(Call&& call) {
    if (!timed_.graph) return {};
    return need(Graph::capture(stream_, [&] { return run_calls(call); }));
  }
  /// Microseconds of a call.
  template <class Call>
  double time(Call&& call, const std::optional<Graph>& graph) {
    if (timed_.rest > 0) std::this_thread::sleep_for(std::chrono::duration<double>(timed_.rest));
    const double all =
        time_once(stream_, [&] { return graph ? graph->launch(stream_) : run_calls(call); });
    return 1e6 * all / calls_;
  }

  const Stream& stream_;
  int sms_;
  Timed timed_;
  int calls_;
  std::int32_t min_block_m_;
  std::optional<PeerLibrary> peer_;
  std::mt19937 rng_;
  NormalTable normal_;
  BenchSeed seed_;
  std::vector<Row> rows_;
};

/// Kind `gather`: decodes every slot that the batch's lists can hold, in order, so that lists need
/// no change. The call then reads these rows.
class GatheredRows {
 public:
  GatheredRows(BenchData& d, const Stream& stream)
      : pool_(d.main->view),
        rows_(need(DeviceArray<std::uint16_t>::make(pool_.slots() * d.width))),
        view_{reinterpret_cast<std::byte*>(rows_.data()), DType::bf16, pool_.slots(), d.width,
              d.width} {
    std::vector<Slot> all(static_cast<std::size_t>(pool_.slots()));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = Slot(static_cast<std::int32_t>(i));
    slots_.emplace(upload(all, stream));
    d.args.main.pool.reset();
    d.args.main.compact = {view_.data, DType::bf16, view_.rows, d.width, d.width};
  }
  Result<void> gather(const Stream& stream) {
    return gather_decode(pool_, slots_->span(), view_, {}, stream);
  }

 private:
  PoolView pool_;
  DeviceArray<std::uint16_t> rows_;
  MutableRowsView view_;
  std::optional<DeviceArray<Slot>> slots_;
};

void Bench::run(const BenchCase& c) {
  BenchData d(c, normal_, seed_, rng_, stream_);
  LatentSchedule schedule;
  schedule.cut = cut_latent(d.shape(min_block_m_, sms_));
  std::optional<GatheredRows> gathered;
  if (c.gather) gathered.emplace(d, stream_);
  std::vector<DeviceArray<std::byte>> arrays;
  take_arrays(schedule, [&]<class T>(std::span<T>& array, std::int64_t entries) {
    const auto bytes = entries * static_cast<std::int64_t>(sizeof(T));
    arrays.push_back(need(DeviceArray<std::byte>::make(bytes)));
    array = {reinterpret_cast<T*>(arrays.back().data()), static_cast<std::size_t>(entries)};
  });
  const auto workspace = need(DeviceArray<std::byte>::make(schedule.cut.workspace_bytes()));
  const auto plan = [&] { return plan_latent(d.args, schedule, stream_); };
  const auto own = [&]() -> Result<void> {
    if (timed_.with_schedule) {
      if (auto ok = plan(); !ok) return ok;
    }
    if (gathered) {
      if (auto ok = gathered->gather(stream_); !ok) return ok;
    }
    return attend_latent(d.args, {}, schedule, workspace.span(), stream_);
  };
  std::optional<PeerCall> peer;
  if (peer_) peer.emplace(*peer_, d, stream_);
  const bool both = peer && peer->failed() == nullptr;
  const auto other = [&] { return peer->run(); };

  const auto plan_graph = graph_of(plan), own_graph = graph_of(own);
  const auto other_graph = both ? graph_of(other) : std::nullopt;
  std::vector<double> planning, ours, theirs;
  for (int i = 0; i < 10; ++i) planning.push_back(time(plan, plan_graph));
  for (int i = 0; i < timed_.repeats + 3; ++i) {
    const double a = time(own, own_graph);
    const double b = both && peer->failed() == nullptr ? time(other, other_graph) : 0;
    if (i < 3) continue;
    ours.push_back(a);
    theirs.push_back(b);
  }
  Row row;
  row.what = d.what();
  row.microseconds = median(ours);
  row.limit = 1e6 * d.limit();
  row.schedule = median(planning);
  if (both) {
    row.peer = median(theirs);
    row.difference = peer->difference(*d.out);
    row.peer_name = peer->peer_name();
  }
  const char* failed = peer ? peer->failed() : nullptr;
  if (failed != nullptr) row.peer_name = failed;
  std::printf("%-64s %9.2f %9.2f  %5.2f  %5.2f  %6.2f %.1e %s\n", row.what.c_str(),
              row.microseconds, row.peer, row.peer / row.microseconds, row.limit / row.microseconds,
              row.schedule, row.difference, failed != nullptr ? failed : "");
  std::fflush(stdout);
  rows_.push_back(row);
}

}  // namespace
}  // namespace lathe::cuda

int main(int argc, char** argv) {
  using namespace lathe::cuda;
  std::string_view filter;
  Timed timed;
  std::int32_t min_block_m = 16;
  unsigned seed = 1;
  bool json = false;
  std::optional<PeerLibrary> peer;
  CaseFlags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg == "--json") {
      json = true;
    } else if (arg == "--graph") {
      timed.graph = true;
    } else if (arg == "--with-schedule") {
      timed.with_schedule = true;
    } else if (arg == "--calls" && i + 1 < argc) {
      timed.calls = std::max(std::atoi(argv[++i]), 1);
    } else if (arg == "--rest" && i + 1 < argc) {
      timed.rest = std::atof(argv[++i]);
    } else if (arg == "--repeats" && i + 1 < argc) {
      timed.repeats = std::max(std::atoi(argv[++i]), 1);
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
          "[--json] [--seed N] [--calls N] [--rest SECONDS] [--with-schedule], or of one case "
          "[--layout|--native LAYOUT] [--b N] [--rows N] "
          "[--heads N] [--s N] [--lengths equal|normal|uniform|one-long|FILE] [--bound N] "
          "[--page N] [--k N] [--extra N] [--holes SHARE] [--list-lengths on|off] [--deviation X] "
          "[--batch-invariant on|off], got %s\n",
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
  Bench bench(stream, device->sms, timed, min_block_m, peer, seed);
  std::printf("%s, %d SMs, seed %u\n%-64s %9s %9s  %5s  %5s  %6s %s\n", device->model.c_str(),
              device->sms, seed, "", "us", "peer us", "ratio", "limit", "plan", "difference");
  std::mt19937 rng(seed);
  if (flags.given) bench.run(flags.draw(rng));
  for (const BenchCase& c : flags.given ? std::vector<BenchCase>{} : bench_cases()) {
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
