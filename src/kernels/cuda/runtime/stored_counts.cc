#include "kernels/cuda/runtime/stored_counts.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/common/cuda_error.h"
#include "kernels/cuda/common/memory.h"

namespace lathe::cuda {
namespace {

Result<void> clear(std::byte* words, const Stream& stream) {
  return call_result(cudaMemsetAsync(words, 0, sizeof(ValueWords), stream), "clearing counts",
                     std::source_location::current());
}

}  // namespace

Result<ValueWords*> StoredCounts::of(ValueTally* tally, const Stream& stream) {
  if (tally == nullptr) return static_cast<ValueWords*>(nullptr);
  auto known = words_.find(tally);
  if (known == words_.end()) {
    auto bytes = allocate_device_bytes(sizeof(ValueWords));
    if (!bytes) return bytes.error();
    if (auto ok = clear(bytes->get(), stream); !ok) return ok.error();
    known = words_.emplace(tally, std::move(*bytes)).first;
  }
  return reinterpret_cast<ValueWords*>(known->second.get());
}

Result<void> StoredCounts::collect(const Stream& stream) {
  for (const auto& [tally, bytes] : words_) {
    ValueWords words;
    const cudaError_t copied =
        cudaMemcpyAsync(&words, bytes.get(), sizeof words, cudaMemcpyDeviceToHost, stream);
    auto ok = call_result(copied, "reading counts", std::source_location::current());
    if (ok) ok = stream.wait();
    if (ok) ok = clear(bytes.get(), stream);
    if (!ok) return ok;
    ValueCounts counts;
    counts.stored = static_cast<std::int64_t>(words.stored);
    counts.saturated = static_cast<std::int64_t>(words.saturated);
    counts.flushed = static_cast<std::int64_t>(words.flushed);
    tally->add(counts);
  }
  return {};
}

}  // namespace lathe::cuda
