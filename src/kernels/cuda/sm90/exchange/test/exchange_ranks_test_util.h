// Ranks with their exchange memory, one per device of this machine or of the fake runtime, for
// tests and benches of the kernels alone.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "kernels/cuda/common/device.h"
#include "kernels/cuda/common/gpu_timing.h"
#include "kernels/cuda/common/memory.h"
#include "kernels/cuda/common/stream.h"
#include "kernels/cuda/sm90/exchange/exchange.h"

namespace lathe::cuda {

/// One rank on device `rank`. Its arrays live on that device.
struct ExchangeRank {
  Stream stream;
  DeviceArray<std::byte> planes;
  DeviceArray<ExchangeFlag> flags;
  DeviceArray<ExchangeState> state;
  OwnedBytes control_bytes;
  ExchangePeers peers;

  ExchangeControl& control() const {
    return *reinterpret_cast<ExchangeControl*>(control_bytes.get());
  }
};

class ExchangeGroup {
 public:
  /// Planes of `plane_words` words. `call`: what the counters of calls begin with.
  ExchangeGroup(int size, std::int64_t plane_words, std::uint64_t call = 0,
                std::uint64_t limit_nanoseconds = 20'000'000'000) {
    for (int r = 0; r < size; ++r) {
      on(r);
      for (int peer = 0; peer < size; ++peer) {
        if (peer != r) need(enable_peer_access(peer));
      }
      ranks_.push_back(std::make_unique<ExchangeRank>(
          ExchangeRank{.stream = need(Stream::make()),
                       .planes = need(DeviceArray<std::byte>::make(kPlanes * plane_words * 16)),
                       .flags = need(DeviceArray<ExchangeFlag>::make(kFlagBlocks * kMostRanks)),
                       .state = need(DeviceArray<ExchangeState>::make(1)),
                       .control_bytes = need(allocate_pinned_bytes(sizeof(ExchangeControl))),
                       .peers = {}}));
      new (ranks_.back()->control_bytes.get())
          ExchangeControl{.limit_nanoseconds = limit_nanoseconds};
    }
    for (int r = 0; r < size; ++r) {
      on(r);
      ExchangeRank& mine = rank(r);
      mine.peers = {.rank = r, .size = size, .plane_words = plane_words};
      for (int peer = 0; peer < size; ++peer) {
        mine.peers.planes[peer] = rank(peer).planes.data();
        mine.peers.flags[peer] = rank(peer).flags.data();
      }
      mine.peers.state = mine.state.data();
      mine.peers.control = &mine.control();
      const ExchangeState state{.call = call};
      need(call_result(
          cudaMemsetAsync(mine.flags.data(), 0,
                          static_cast<std::size_t>(mine.flags.size()) * sizeof(ExchangeFlag),
                          mine.stream),
          "cudaMemsetAsync"));
      need(copy_to_device(std::span(&state, 1), mine.state.data(), mine.stream));
      need(call_result(launch_clear_planes(mine.peers, mine.stream), "clear_planes"));
    }
    wait();
  }
  int size() const { return static_cast<int>(ranks_.size()); }
  ExchangeRank& rank(int r) { return *ranks_[static_cast<std::size_t>(r)]; }
  static void on(int r) { need(call_result(cudaSetDevice(r), "cudaSetDevice")); }
  void wait() {
    for (int r = 0; r < size(); ++r) {
      on(r);
      need(rank(r).stream.wait());
    }
  }

 private:
  std::vector<std::unique_ptr<ExchangeRank>> ranks_;
};

/// An array on device `rank`, copied from and to the host.
template <class T>
struct RankArray {
  DeviceArray<T> device;
  RankArray(const ExchangeRank& r, const std::vector<T>& host) : device(make(r, std::ssize(host))) {
    set(r, host);
  }
  static DeviceArray<T> make(const ExchangeRank& r, std::int64_t count) {
    ExchangeGroup::on(r.peers.rank);
    return need(DeviceArray<T>::make(count));
  }
  void set(const ExchangeRank& r, const std::vector<T>& host) {
    ExchangeGroup::on(r.peers.rank);
    need(copy_to_device(std::span<const T>(host), device.data(), r.stream));
    need(r.stream.wait());
  }
  std::vector<T> get(const ExchangeRank& r) const {
    ExchangeGroup::on(r.peers.rank);
    std::vector<T> out(static_cast<std::size_t>(device.size()));
    need(copy_to_host(static_cast<const T*>(device.data()), std::span(out), r.stream));
    need(r.stream.wait());
    return out;
  }
};

}  // namespace lathe::cuda
