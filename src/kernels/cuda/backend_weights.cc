// Weights: copies them to the device, or makes random ones there.
#include <utility>

#include "kernels/announced_source.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/runtime/random_weights.h"

namespace lathe::cuda {

void CudaBackend::begin_prepare(const WeightSource& source) {
  source_ = &source;
  weight_memory_.reset();
}

Result<WeightView> CudaBackend::prepare(const WeightView& weight, std::vector<OwnedBytes>& owned) {
  if (auto ok = make_ring(); !ok) return ok.error();
  return upload_weight(weight, *ring_, stream_, weight_memory(owned));
}

Result<WeightStack> CudaBackend::prepare(const WeightStack& weights,
                                         std::vector<OwnedBytes>& owned) {
  if (auto ok = make_ring(); !ok) return ok.error();
  return upload_weights(weights, *ring_, stream_, weight_memory(owned));
}

Result<std::span<const float>> CudaBackend::prepare(std::span<const float> vector,
                                                    std::vector<OwnedBytes>& owned) {
  if (auto ok = make_ring(); !ok) return ok.error();
  auto at = upload_bytes(std::as_bytes(vector), *ring_, stream_, weight_memory(owned));
  if (!at) return at.error();
  return std::span(reinterpret_cast<const float*>(*at), vector.size());
}

Result<std::span<const std::int32_t>> CudaBackend::prepare(std::span<const std::int32_t> table,
                                                           std::vector<OwnedBytes>& owned) {
  if (auto ok = make_ring(); !ok) return ok.error();
  auto at = upload_bytes(std::as_bytes(table), *ring_, stream_, weight_memory(owned));
  if (!at) return at.error();
  return std::span(reinterpret_cast<const std::int32_t*>(*at), table.size());
}

Result<WeightStack> CudaBackend::random_weights(const RandomWeights& weights,
                                                std::vector<OwnedBytes>& owned) {
  if (auto ok = make_ring(); !ok) return ok.error();
  return cuda::random_weights(weights, *ring_, stream_, weight_memory(owned));
}

Result<void> CudaBackend::end_prepare() {
  Result<void> done = ring_ == nullptr ? Result<void>() : ring_->flush(stream_);
  if (const Result<void> copied = stream_.wait(); done) done = copied;
  ring_.reset();
  source_ = nullptr;
  weight_memory_.reset();
  return done;
}

Result<void> CudaBackend::make_ring() {
  if (ring_ != nullptr) return {};
  auto ring = UploadRing::make(source_);
  if (!ring) return ring.error();
  ring_ = std::move(*ring);
  return {};
}

WeightMemory& CudaBackend::weight_memory(std::vector<OwnedBytes>& owned) {
  if (!weight_memory_ || weight_memory_->owner() != &owned) {
    const auto* announced = dynamic_cast<const AnnouncedSource*>(source_);
    weight_memory_.emplace(owned, announced == nullptr ? 0 : announced->bytes());
  }
  return *weight_memory_;
}

}  // namespace lathe::cuda
