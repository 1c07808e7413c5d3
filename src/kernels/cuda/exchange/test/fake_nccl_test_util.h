// A fake of NCCL on the fake CUDA runtime: collectives wait for all ranks, and an abort ends them.
// It notices calls with a communicator that is gone, which in the library are reads of freed
// memory.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/float_formats.h"
#include "kernels/cuda/common/emulator.h"
#include "kernels/cuda/exchange/nccl.h"
#include "kernels/cuda/fake/fake_cuda.h"

namespace lathe::cuda {

/// One group of ranks at a time.
struct FakeNccl {
  struct Comm {
    int rank = 0;
    int calls = 0;                   // collectives that have run
    std::atomic<bool> gone = false;  // destroyed or aborted
  };
  int size = 0;
  std::vector<std::unique_ptr<Comm>> comms;  // never freed, so that late calls are seen
  std::map<int, std::vector<std::vector<std::byte>>> inputs;  // [ranks] of each collective
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> sent;  // by from and to
  std::atomic<bool> aborted = false;
  std::atomic<int> late_calls = 0;
  int fails = -1;  // the rank that ncclCommInitRank() fails on
  std::mutex guard;

  void reset() {
    const std::lock_guard lock(guard);
    comms.clear();
    inputs.clear();
    sent.clear();
    aborted = false;
    late_calls = 0;
    fails = -1;
  }
};
inline FakeNccl fake_nccl;

namespace fake_nccl_detail {

inline FakeNccl::Comm& comm_of(NcclComm* at) { return *reinterpret_cast<FakeNccl::Comm*>(at); }

/// Runs `work` on the stream as a kernel, unless the communicator is gone.
template <class Work>
int enqueue(NcclComm* at, cudaStream_t stream, Work work) {
  FakeNccl::Comm& comm = comm_of(at);
  if (comm.gone) {
    ++fake_nccl.late_calls;
    return 1;
  }
  fake::launch(dim3(1), dim3(1), 0, stream, [&comm, work] { work(comm); });
  return 0;
}
/// Lets other devices run until `ready`; false: the group was aborted.
template <class Ready>
bool wait_for(const Ready& ready) {
  while (!ready()) {
    if (fake_nccl.aborted) return false;
    emulated::run_others();
  }
  return true;
}
/// All ranks' bytes, in their order; empty: aborted. Device work is on one thread at a time.
inline std::vector<std::vector<std::byte>> meet(FakeNccl::Comm& comm, const void* from,
                                                std::size_t bytes) {
  auto& all = fake_nccl.inputs[comm.calls++];
  all.resize(static_cast<std::size_t>(fake_nccl.size));
  auto& mine = all[static_cast<std::size_t>(comm.rank)];
  mine.resize(bytes + 1);  // never empty
  std::memcpy(mine.data(), from, bytes);
  const auto ready = [&] {
    for (const auto& each : all) {
      if (each.empty()) return false;
    }
    return true;
  };
  return wait_for(ready) ? all : std::vector<std::vector<std::byte>>();
}
inline std::size_t size_of(int type) {
  return type == Nccl::kFloat32 ? 4 : type == Nccl::kBfloat16 ? 2 : 1;
}

inline int comm_init_rank(NcclComm** out, int size, NcclId, int rank) {
  const std::lock_guard lock(fake_nccl.guard);
  if (rank == fake_nccl.fails) return 2;
  fake_nccl.size = size;
  auto& comm = fake_nccl.comms.emplace_back(std::make_unique<FakeNccl::Comm>());
  comm->rank = rank;
  *out = reinterpret_cast<NcclComm*>(comm.get());
  return 0;
}
inline int comm_abort(NcclComm* comm) {
  comm_of(comm).gone = true;
  fake_nccl.aborted = true;
  return 0;
}
inline int all_reduce(const void* from, void* to, std::size_t count, int type, int, NcclComm* comm,
                      cudaStream_t stream) {
  return enqueue(comm, stream, [=](FakeNccl::Comm& own) {
    const auto all = meet(own, from, count * size_of(type));
    if (all.empty()) return;
    for (std::size_t i = 0; i < count; ++i) {
      float sum = 0;
      for (const auto& each : all) {
        if (type == Nccl::kFloat32) {
          sum += reinterpret_cast<const float*>(each.data())[i];
        } else {
          sum += to_f32(reinterpret_cast<const bf16*>(each.data())[i]);
        }
      }
      if (type == Nccl::kFloat32) {
        static_cast<float*>(to)[i] = sum;
      } else {
        static_cast<bf16*>(to)[i] = to_bf16(sum);
      }
    }
  });
}
inline int all_gather(const void* from, void* to, std::size_t count, int type, NcclComm* comm,
                      cudaStream_t stream) {
  return enqueue(comm, stream, [=](FakeNccl::Comm& own) {
    const std::size_t bytes = count * size_of(type);
    std::byte* at = static_cast<std::byte*>(to);
    for (const auto& each : meet(own, from, bytes)) {
      std::memcpy(at, each.data(), bytes);
      at += bytes;
    }
  });
}
inline int send(const void* from, std::size_t count, int type, int peer, NcclComm* comm,
                cudaStream_t stream) {
  return enqueue(comm, stream, [=](FakeNccl::Comm& own) {
    const auto* at = static_cast<const std::byte*>(from);
    fake_nccl.sent[{own.rank, peer}].emplace_back(at, at + count * size_of(type));
  });
}
inline int receive(void* to, std::size_t count, int type, int peer, NcclComm* comm,
                   cudaStream_t stream) {
  return enqueue(comm, stream, [=](FakeNccl::Comm& own) {
    auto& from = fake_nccl.sent[{peer, own.rank}];
    if (!wait_for([&] { return !from.empty(); })) return;
    std::memcpy(to, from.front().data(), count * size_of(type));
    from.pop_front();
  });
}

}  // namespace fake_nccl_detail

/// The library's functions.
inline Nccl fake_nccl_library() {
  using namespace fake_nccl_detail;
  Nccl out;
  out.version = kNcclLeast;
  out.get_error_string = [](int status) { return status == 2 ? "unhandled system error" : "gone"; };
  out.get_unique_id = [](NcclId*) { return 0; };
  out.comm_init_rank = comm_init_rank;
  out.comm_destroy = [](NcclComm* comm) {
    comm_of(comm).gone = true;
    return 0;
  };
  out.comm_abort = comm_abort;
  out.group_start = [] { return 0; };
  out.group_end = [] { return 0; };
  out.all_reduce = all_reduce;
  out.all_gather = all_gather;
  out.send = send;
  out.receive = receive;
  return out;
}

}  // namespace lathe::cuda
