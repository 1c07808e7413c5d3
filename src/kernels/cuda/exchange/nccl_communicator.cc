// Exchanges over NCCL: sums are rounded to the partials' type, in the library's order.
#include <atomic>
#include <chrono>
#include <mutex>

#include "base/rows.h"
#include "kernels/backend.h"
#include "kernels/cuda/common/device.h"
#include "kernels/cuda/common/device_rows.h"
#include "kernels/cuda/common/memory.h"
#include "kernels/cuda/common/stream.h"
#include "kernels/cuda/exchange/host_part.h"
#include "kernels/cuda/exchange/nccl.h"

namespace lathe::cuda {
namespace {

// A longer call is waiting for a rank that does not come, and only an abort ends it.
constexpr std::chrono::milliseconds kLongestCall{50};

// The library's communicators of all ranks, so that any thread can abort them. An abort frees them,
// so a rank's thread uses its own under a lock.
class NcclComms {
 public:
  explicit NcclComms(const Nccl& library, std::size_t ranks) : library_(library), of_(ranks) {}

  void add(std::int32_t rank, NcclComm* comm) { of(rank).comm = comm; }
  /// Calls call(the rank's), unless it has been aborted.
  template <class Call>
  void use(std::int32_t rank, Call&& call) {
    Of& own = of(rank);
    const std::lock_guard lock(own.busy);
    if (NcclComm* comm = own.comm; comm != nullptr) call(comm);
  }
  void destroy(std::int32_t rank) {
    if (NcclComm* comm = of(rank).comm.exchange(nullptr)) library_.comm_destroy(comm);
  }
  void abort() {
    for (Of& each : of_) {
      const std::unique_lock lock(each.busy, kLongestCall);
      if (NcclComm* comm = each.comm.exchange(nullptr)) library_.comm_abort(comm);
    }
  }
  NcclId id;  // of the group; rank 0 makes it

 private:
  struct Of {
    std::timed_mutex busy;  // held while the rank's thread calls the library
    std::atomic<NcclComm*> comm = nullptr;
  };
  Of& of(std::int32_t rank) { return of_[static_cast<std::size_t>(rank)]; }

  const Nccl& library_;
  std::vector<Of> of_;
};

class NcclCommunicator : public HostPart {
 public:
  NcclCommunicator(std::unique_ptr<Communicator> host, int gpu, const Nccl& library,
                   std::shared_ptr<NcclComms> comms)
      : HostPart(std::move(host), gpu), library_(library), comms_(std::move(comms)) {}
  ~NcclCommunicator() override { comms_->destroy(rank()); }

  void abort(const Error& reason) override {
    HostPart::abort(reason);
    comms_->abort();
  }

  // NCCL connects at the first call of each kind, which cannot be captured: one sum here does it.
  Result<void> reserve(const ExchangeLimits& limits) override {
    Result<void> mine;
    if (rank() == 0) mine = ok(library_.get_unique_id(&comms_->id), "ncclGetUniqueId");
    if (auto agreed = agree(mine, 0); !agreed) return agreed;
    NcclComm* comm = nullptr;
    mine = ok(library_.comm_init_rank(&comm, size(), comms_->id, rank()), "ncclCommInitRank");
    if (mine) comms_->add(rank(), comm);
    if (auto agreed = agree(mine, 0); !agreed) return agreed;
    const std::int64_t records = std::max<std::int64_t>(limits.logit_rows, 1);
    auto all = DeviceArray<std::byte>::make(size() * records * ShareRecords::kBytes);
    if (all) {
      records_ = std::make_unique<DeviceArray<std::byte>>(std::move(*all));
      mine = first_sum();
    } else {
      mine = all.error();
    }
    return agree(mine, 0);
  }

  void set_limit(double) override {}
  Result<void> check() override { return status(); }
  // Those that this thread has started: NCCL tells no more.
  Result<std::uint64_t> finished() override { return begun_.load(std::memory_order_relaxed); }

  void sum(const OpsContext& ops, const SumRows& op) override {
    const Arena::Scope scope(*ops.tensors);
    RowsView partial = op.partial;
    if (partial.dtype == DType::f32 && !op.exact) {
      const MutableRowsView narrow =
          alloc_rows(*ops.tensors, partial.rows, partial.cols, DType::bf16);
      ops.backend->cast_rows(ops, {.x = partial, .out = narrow});
      partial = constant(narrow);
    }
    reduce(partial);
    if (op.add) {
      ops.backend->add_rows(ops, partial, op.out);
    } else {
      ops.backend->cast_rows(ops, {.x = partial, .out = op.out});
    }
  }
  void sum_norm(const OpsContext& ops, const SumNorm& op) override {
    sum(ops, {.partial = op.partial, .out = op.x, .add = true});
    ops.backend->rms_norm(ops,
                          {.x = constant(op.x), .weight = op.weight, .eps = op.eps, .out = op.h});
  }
  void trade_columns(const OpsContext&, const TradeColumns& op) override {
    const cudaStream_t on = next();
    const auto from = [&](std::int64_t row) {
      return floats(op.columns) + row * op.columns.row_stride;
    };
    const auto to = [&](std::int64_t own, std::int32_t peer) {
      return floats(op.rows) + own * op.rows.row_stride + op.first[static_cast<std::size_t>(peer)];
    };
    const auto width = [&](std::int32_t peer) {
      const auto r = static_cast<std::size_t>(peer);
      return static_cast<std::size_t>(op.first[r + 1] - op.first[r]);
    };
    comms_->use(rank(), [&](NcclComm* comm) {
      keep(library_.group_start(), "ncclGroupStart");
      for (std::int64_t row = 0; row < op.columns.rows; ++row) {
        const auto owner = static_cast<std::int32_t>(row % size());
        if (owner != rank()) {
          keep(library_.send(from(row), width(rank()), Nccl::kFloat32, owner, comm, on),
               "ncclSend");
          continue;
        }
        for (std::int32_t peer = 0; peer < size(); ++peer) {
          if (peer == rank()) continue;
          keep(
              library_.receive(to(row / size(), peer), width(peer), Nccl::kFloat32, peer, comm, on),
              "ncclRecv");
        }
      }
      keep(library_.group_end(), "ncclGroupEnd");
    });
    if (op.rows.rows == 0) return;
    const auto pitch = [](std::int64_t elements) { return static_cast<std::size_t>(elements) * 4; };
    stream().keep(call_result(
        cudaMemcpy2DAsync(to(0, rank()), pitch(op.rows.row_stride), from(rank()),
                          pitch(op.columns.row_stride * size()), 4 * width(rank()),
                          static_cast<std::size_t>(op.rows.rows), cudaMemcpyDeviceToDevice, on),
        "copy on the device"));
  }
  void share_records(const OpsContext&, const ShareRecords& op) override {
    if (op.count == 0) return;
    const cudaStream_t on = next();
    constexpr auto kBytes = static_cast<std::size_t>(ShareRecords::kBytes);
    const auto bytes = static_cast<std::size_t>(op.count) * kBytes;
    comms_->use(rank(), [&](NcclComm* comm) {
      keep(library_.all_gather(op.records, records_->data(), bytes, Nccl::kUint8, comm, on),
           "ncclAllGather");
    });
    for (std::int32_t owner = 0; owner < size() && owner < op.count; ++owner) {
      if (owner == rank()) continue;
      const std::size_t first = static_cast<std::size_t>(owner) * kBytes;
      const std::size_t step = static_cast<std::size_t>(size()) * kBytes;
      const auto count = static_cast<std::size_t>((op.count + size() - 1 - owner) / size());
      stream().keep(call_result(
          cudaMemcpy2DAsync(op.records + first, step,
                            records_->data() + static_cast<std::size_t>(owner) * bytes + first,
                            step, kBytes, count, cudaMemcpyDeviceToDevice, on),
          "copy on the device"));
    }
  }

 private:
  Result<void> ok(int status, const char* call) { return nccl_result(library_, status, call); }
  void keep(int status, const char* call) { stream().keep(ok(status, call)); }
  cudaStream_t next() {
    begun_.fetch_add(1, std::memory_order_relaxed);
    return stream().next();
  }
  // The sum replaces the partial, and what is between rows is added, too.
  void reduce(const RowsView& partial) {
    const cudaStream_t on = next();
    if (partial.rows == 0) return;
    auto* at = const_cast<std::byte*>(partial.data);
    const int type = partial.dtype == DType::f32 ? Nccl::kFloat32 : Nccl::kBfloat16;
    const auto count = static_cast<std::size_t>(partial.rows * partial.row_stride);
    comms_->use(rank(), [&](NcclComm* comm) {
      keep(library_.all_reduce(at, at, count, type, Nccl::kSum, comm, on), "ncclAllReduce");
    });
  }
  Result<void> first_sum() {
    auto on = Stream::make();
    if (!on) return on.error();
    Result<void> sum = status();
    comms_->use(rank(), [&](NcclComm* comm) {
      sum = ok(library_.all_reduce(records_->data(), records_->data(), 4, Nccl::kBfloat16,
                                   Nccl::kSum, comm, *on),
               "ncclAllReduce");
    });
    return sum ? on->wait() : sum;
  }

  const Nccl& library_;
  std::shared_ptr<NcclComms> comms_;
  std::unique_ptr<DeviceArray<std::byte>> records_;  // [size, records, 16] of all ranks
  std::atomic<std::uint64_t> begun_ = 0;
};

}  // namespace

std::vector<std::unique_ptr<CudaCommunicator>> make_nccl_communicators(
    std::vector<std::unique_ptr<Communicator>> hosts, std::span<const int> gpus,
    const Nccl& library) {
  const auto comms = std::make_shared<NcclComms>(library, gpus.size());
  std::vector<std::unique_ptr<CudaCommunicator>> out;
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    out.push_back(std::make_unique<NcclCommunicator>(std::move(hosts[r]), gpus[r], library, comms));
  }
  return out;
}

}  // namespace lathe::cuda
