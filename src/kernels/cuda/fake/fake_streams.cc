// Streams and events.
#include <algorithm>

#include "kernels/cuda/fake/fake_runtime.h"

using namespace lathe::cuda::fake;  // NOLINT: the runtime's names are global ones

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned) {
  *out = new CUstream_st;
  (*out)->device = current_device;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Lock lock(runtime().mutex);
  static_cast<void>(wait_for_all(lock, stream->device));
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Lock lock(runtime().mutex);
  return wait_for_all(lock, device_of(stream));
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned flags) {
  *out = new CUevent_st{.timed = (flags & cudaEventDisableTiming) == 0, .device = current_device};
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Lock lock(runtime().mutex);
  if (event->device != device_of(stream)) return fail(cudaErrorInvalidResourceHandle);
  event->after = runtime().devices[static_cast<std::size_t>(event->device)].queued();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Lock lock(runtime().mutex);
  return wait_until(lock, event->device, event->after);
}
// Every work item counts as a millisecond.
cudaError_t cudaEventElapsedTime(float* out, cudaEvent_t from, cudaEvent_t to) {
  const Lock lock(runtime().mutex);
  if (!from->timed || !to->timed) return fail(cudaErrorInvalidResourceHandle);
  if (std::max(from->after, to->after) >
      runtime().devices[static_cast<std::size_t>(to->device)].done) {
    return fail(cudaErrorNotReady);
  }
  *out = static_cast<float>(to->after - from->after);
  return cudaSuccess;
}
