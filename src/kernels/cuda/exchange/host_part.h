// The part of a communicator that runs on the host. The ranks are threads of one process, so a host
// communicator does it.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "kernels/cuda/exchange/cuda_communicator.h"
#include "kernels/cuda/exchange/nccl.h"

namespace lathe::cuda {

class HostPart : public CudaCommunicator {
 public:
  HostPart(std::unique_ptr<Communicator> host, int gpu) : host_(std::move(host)), gpu_(gpu) {}

  std::int32_t rank() const override { return host_->rank(); }
  std::int32_t size() const override { return host_->size(); }
  int ordinal() const override { return gpu_; }
  void attach(ExchangeStream& stream) override { stream_ = &stream; }
  Result<void> barrier() override { return host_->barrier(); }
  Result<void> agree(const Result<void>& mine, std::uint64_t key) override {
    return host_->agree(mine, key);
  }
  Result<std::vector<void*>> publish(void* address) override { return host_->publish(address); }
  Result<void> status() const override { return host_->status(); }
  void abort(const Error& reason) override { host_->abort(reason); }
  std::string name() const override { return fmt::format("rank {} (GPU {})", rank(), gpu_); }

  MutableRowsView partials(const OpsContext& ops, std::int64_t rows, std::int64_t cols,
                           DType dtype) override;

 protected:
  ExchangeStream& stream() const { return *stream_; }

 private:
  std::unique_ptr<Communicator> host_;
  int gpu_;
  ExchangeStream* stream_ = nullptr;
};

/// The implementations of make_cuda_communicators().
std::vector<std::unique_ptr<CudaCommunicator>> make_peer_communicators(
    std::vector<std::unique_ptr<Communicator>> hosts, std::span<const int> gpus);
std::vector<std::unique_ptr<CudaCommunicator>> make_nccl_communicators(
    std::vector<std::unique_ptr<Communicator>> hosts, std::span<const int> gpus,
    const Nccl& library);

}  // namespace lathe::cuda
