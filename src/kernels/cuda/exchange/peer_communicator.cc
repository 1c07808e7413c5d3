// Exchanges over peer memory: the memory by which ranks meet, and calls of the kernels of
// sm90/exchange.
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>

#include "base/check.h"
#include "base/rows.h"
#include "kernels/backend.h"
#include "kernels/cuda/common/device.h"
#include "kernels/cuda/common/memory.h"
#include "kernels/cuda/common/stream.h"
#include "kernels/cuda/exchange/check_peers.h"
#include "kernels/cuda/exchange/host_part.h"
#include "kernels/cuda/sm90/exchange/exchange.h"

namespace lathe::cuda {
namespace {

// Seconds that an exchange waits. At first a peer may be loading code.
constexpr double kFirstLimit = 600, kLimit = 20, kSelfTestLimit = 10;
constexpr int kFirstChecks = 20;  // check()s after which the first limit ends

GaveUp why_gave_up(ExchangeControl& control) {
  return std::atomic_ref<GaveUp>(control.gave_up).load(std::memory_order_relaxed);
}

// The control words of all ranks, so that any thread can end their waits.
class ControlWords {
 public:
  void add(std::int32_t rank, ExchangeControl* control) {
    const std::lock_guard lock(guard_);
    of_[static_cast<std::size_t>(rank)] = control;
    if (aborted_ && control != nullptr) set_abort(*control);
  }
  /// The ranks that have not given up a wait, "1, 3": where others have, those did not come.
  std::string without_wait() {
    const std::lock_guard lock(guard_);
    std::string out;
    for (std::size_t r = 0; r < of_.size(); ++r) {
      if (of_[r] == nullptr || why_gave_up(*of_[r]) != GaveUp::no) continue;
      out += fmt::format("{}{}", out.empty() ? "" : ", ", r);
    }
    return out;
  }
  void abort() {
    const std::lock_guard lock(guard_);
    aborted_ = true;
    for (ExchangeControl* control : of_) {
      if (control != nullptr) set_abort(*control);
    }
  }

 private:
  static void set_abort(ExchangeControl& control) {
    std::atomic_ref<std::uint32_t>(control.abort).store(1, std::memory_order_relaxed);
  }
  std::mutex guard_;
  bool aborted_ = false;
  std::array<ExchangeControl*, kMostRanks> of_ = {};
};

class PeerCommunicator : public HostPart {
 public:
  PeerCommunicator(std::unique_ptr<Communicator> host, int gpu, std::vector<int> gpus,
                   std::shared_ptr<ControlWords> words)
      : HostPart(std::move(host), gpu), gpus_(std::move(gpus)), words_(std::move(words)) {}
  ~PeerCommunicator() override { words_->add(rank(), nullptr); }

  void abort(const Error& reason) override {
    HostPart::abort(reason);
    words_->abort();
  }

  Result<void> reserve(const ExchangeLimits& limits) override {
    if (auto ok = agree(allocate(limits), 0); !ok) return ok;
    if (auto ok = connect(); !ok) return ok;
    write_limit(kSelfTestLimit);
    const Result<void> tested =
        test_sums(memory_->peers, launch_, limits, gpus_, memory_->stream,
                  [&](const Result<void>& result) { return agree(result, 0); });
    write_limit(kFirstLimit);
    return tested;
  }

  void set_limit(double seconds) override {
    checks_ = kFirstChecks;
    write_limit(seconds);
  }

  Result<void> check() override {
    if (memory_ == nullptr) return status();
    tell_if_late();
    const Result<void> ok = status();
    if (ok && checks_ < kFirstChecks && ++checks_ == kFirstChecks) write_limit(kLimit);
    return ok;
  }

  // Copies from the device on a stream of its own, where no exchange waits. Tells the group of a
  // wait that this rank's GPU has given up, as its thread may be waiting for another rank's.
  Result<std::uint64_t> finished() override {
    if (memory_ == nullptr) return std::uint64_t{0};
    auto on = OnDevice::make(ordinal());
    if (!on) return on.error();
    std::uint64_t calls = 0;
    const cudaError_t status = cudaMemcpyAsync(&calls, &memory_->peers.state->call, sizeof calls,
                                               cudaMemcpyDeviceToHost, memory_->stream);
    if (auto ok = call_result(status, "copy to the host"); !ok) return ok.error();
    if (auto ok = memory_->stream.wait(); !ok) return ok.error();
    tell_if_late();
    return calls;
  }

  void sum(const OpsContext& ops, const SumRows& op) override {
    run(ops, "sum",
        {.partial = device_rows(op.partial),
         .x = device_rows(op.out),
         .rows = op.out.rows,
         .cols = op.out.cols,
         .add = op.add});
  }
  void sum_norm(const OpsContext& ops, const SumNorm& op) override {
    SumParams p{.partial = device_rows(op.partial),
                .x = device_rows(op.x),
                .weight = op.weight.empty() ? nullptr : op.weight.data(),
                .rows = op.x.rows,
                .cols = op.x.cols,
                .eps = op.eps};
    p.h = device_rows(op.h);
    if (sum_takes(p)) return run(ops, "sum_norm", p, op.owned);
    p.h = {};
    run(ops, "sum", p);
    ops.backend->rms_norm(ops,
                          {.x = constant(op.x), .weight = op.weight, .eps = op.eps, .out = op.h});
  }
  void trade_columns(const OpsContext&, const TradeColumns& op) override {
    TradeParams p{.columns = floats(op.columns),
                  .whole = floats(op.rows),
                  .stride = op.columns.row_stride,
                  .whole_stride = op.rows.row_stride,
                  .rows = op.columns.rows};
    std::copy(op.first.begin(), op.first.end(), p.first);
    const cudaStream_t on = stream().next();
    keep(launch_trade_columns(memory_->peers, p, on), "trade_columns", op.columns.rows,
         op.columns.cols);
  }
  void share_records(const OpsContext&, const ShareRecords& op) override {
    const cudaStream_t on = stream().next();
    keep(launch_share_records(memory_->peers, {.records = op.records, .count = op.count}, on),
         "share_records", op.count, ShareRecords::kBytes);
  }

 private:
  // On the rank's GPU, except `control`, which is in mapped host memory.
  struct ExchangeMemory {
    Stream stream;  // of reserve() and finished()
    DeviceArray<std::byte> planes;
    DeviceArray<ExchangeFlag> flags;
    DeviceArray<ExchangeState> state;
    OwnedBytes control;
    ExchangePeers peers;
  };

  ExchangeControl& control() const {
    return *reinterpret_cast<ExchangeControl*>(memory_->control.get());
  }

  // Aborts the group if this rank's GPU has given up a wait. From any thread.
  void tell_if_late() {
    if (why_gave_up(control()) != GaveUp::too_late) return;
    // Ranks that wait for the same one give up within moments of each other.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    abort({ErrorCode::device, fmt::format("exchange {}", control().call), "all ranks in time",
           fmt::format("{} waited {:.0f} s for rank {}", name(),
                       static_cast<double>(control().limit_nanoseconds) * 1e-9,
                       words_->without_wait()),
           "that rank stopped, or is much slower"});
  }

  void write_limit(double seconds) {
    std::atomic_ref<std::uint64_t>(control().limit_nanoseconds)
        .store(static_cast<std::uint64_t>(seconds * 1e9), std::memory_order_relaxed);
  }

  Result<void> allocate(const ExchangeLimits& limits) {
    LATHE_CHECK(memory_ == nullptr, "one call of reserve()");
    if (limits.cols % 8 != 0 || limits.cols > kExchangeCols) {
      return Error{ErrorCode::unsupported, "hidden size",
                   fmt::format("a multiple of 8 up to {}", kExchangeCols),
                   fmt::format("{}", limits.cols), "use --exchange nccl"};
    }
    for (const int peer : gpus_) {
      if (peer == ordinal()) continue;
      if (auto ok = enable_peer_access(peer); !ok) return ok;
    }
    auto sms = count_sms();
    if (!sms) return sms.error();
    launch_.sms = *sms;
    const std::int64_t rows = std::min(limits.rows, pushed_rows(size(), false));
    const std::int64_t owned = std::min(limits.rows, pushed_owned_rows(size(), limits.cols));
    const std::int64_t words =
        std::max(plane_words_of(SumPath::push, size(), rows, limits.cols),
                 plane_words_of(SumPath::push_owned, size(), owned, limits.cols));
    auto stream = Stream::make();
    auto planes = DeviceArray<std::byte>::make(kPlanes * words * 16);
    auto flags = DeviceArray<ExchangeFlag>::make(kFlagBlocks * kMostRanks);
    auto state = DeviceArray<ExchangeState>::make(1);
    auto control = allocate_pinned_bytes(sizeof(ExchangeControl));
    if (!stream) return stream.error();
    if (!planes) return planes.error();
    if (!flags) return flags.error();
    if (!state) return state.error();
    if (!control) return control.error();
    memory_ = std::make_unique<ExchangeMemory>(ExchangeMemory{std::move(*stream),
                                                              std::move(*planes),
                                                              std::move(*flags),
                                                              std::move(*state),
                                                              std::move(*control),
                                                              {}});
    new (memory_->control.get()) ExchangeControl();
    memory_->peers = {.rank = rank(), .size = size(), .plane_words = words};
    memory_->peers.state = memory_->state.data();
    memory_->peers.control = &this->control();
    words_->add(rank(), &this->control());
    return {};
  }

  // Learns the peers' addresses and fills this rank's memory.
  Result<void> connect() {
    ExchangePeers& peers = memory_->peers;
    const auto planes = publish(memory_->planes.data());
    if (!planes) return planes.error();
    const auto flags = publish(memory_->flags.data());
    if (!flags) return flags.error();
    for (std::size_t r = 0; r < planes->size(); ++r) {
      peers.planes[r] = (*planes)[r];
      peers.flags[r] = static_cast<ExchangeFlag*>((*flags)[r]);
    }
    const auto zero = [&](void* at, std::size_t bytes) {
      return call_result(cudaMemsetAsync(at, 0, bytes, memory_->stream), "cudaMemsetAsync");
    };
    Result<void> mine = zero(peers.flags[rank()], kFlagBlocks * kMostRanks * sizeof(ExchangeFlag));
    if (mine) mine = zero(peers.state, sizeof(ExchangeState));
    if (mine) mine = call_result(launch_clear_planes(peers, memory_->stream), "clear_planes");
    if (mine) mine = memory_->stream.wait();
    return agree(mine, 0);  // all planes are filled
  }

  // Pushes a few rows; ranks read many rows from their peers.
  SumPath path_of(const SumParams& p, bool owned) const {
    const auto fits = [&](SumPath path) {
      return plane_words_of(path, size(), p.rows, p.cols) <= memory_->peers.plane_words;
    };
    if (p.exact) return SumPath::pull;
    if (p.rows <= pushed_rows(size(), owned) && fits(SumPath::push)) return SumPath::push;
    if (!owned) return SumPath::pull;
    const bool pushes = p.rows <= pushed_owned_rows(size(), p.cols) && fits(SumPath::push_owned);
    return pushes ? SumPath::push_owned : SumPath::pull_owned;
  }
  void run(const OpsContext& ops, const char* name, const SumParams& sum, bool owned = false) {
    if (!sum_takes(sum)) {
      stream().keep(Error{ErrorCode::unsupported, name,
                          "f32 sums of f32 or bf16 rows in whole words of 16 bytes",
                          fmt::format("{} rows of {}", sum.rows, sum.cols), ""});
      return;
    }
    const SumPath path = path_of(sum, owned);
    const bool reads = path == SumPath::pull || path == SumPath::pull_owned;
    const Arena::Scope scope(*ops.tensors);
    SumParams p = sum;
    if (reads && !sum.exact && sum.partial.dtype == DType::f32) {
      p.partial = device_rows(constant(narrowed(ops, sum)));
    }
    const cudaStream_t on = stream().next();
    keep(launch_sum(memory_->peers, path, p, launch_, on), name, p.rows, p.cols);
  }
  // f32 partials in bf16, as half the bytes are then read from this rank.
  MutableRowsView narrowed(const OpsContext& ops, const SumParams& p) {
    const RowsView wide{p.partial.data, DType::f32, p.rows, p.cols, p.partial.stride};
    const MutableRowsView out = alloc_rows(*ops.tensors, p.rows, p.cols, DType::bf16);
    ops.backend->cast_rows(ops, {.x = wide, .out = out});
    return out;
  }
  void keep(cudaError_t status, const char* kernel, std::int64_t rows, std::int64_t cols) {
    if (status == cudaSuccess) return;
    stream().keep(launch_result(status, {kernel, fmt::format("{} rows of {}", rows, cols),
                                         std::source_location::current()}));
  }

  std::vector<int> gpus_;
  std::shared_ptr<ControlWords> words_;
  std::unique_ptr<ExchangeMemory> memory_;
  ExchangeLaunch launch_;
  int checks_ = 0;
};

}  // namespace

std::vector<std::unique_ptr<CudaCommunicator>> make_peer_communicators(
    std::vector<std::unique_ptr<Communicator>> hosts, std::span<const int> gpus) {
  const auto words = std::make_shared<ControlWords>();
  std::vector<std::unique_ptr<CudaCommunicator>> out;
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    out.push_back(std::make_unique<PeerCommunicator>(
        std::move(hosts[r]), gpus[r], std::vector<int>(gpus.begin(), gpus.end()), words));
  }
  return out;
}

}  // namespace lathe::cuda
