#include "kernels/cuda/common/stream.h"

namespace lathe::cuda {

Result<Stream> Stream::make() {
  cudaStream_t stream = nullptr;
  const cudaError_t status = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (auto ok = call_result(status, "cudaStreamCreateWithFlags"); !ok) return ok.error();
  return Stream(stream);
}

Result<Mark> Mark::make(unsigned flags) {
  cudaEvent_t event = nullptr;
  const cudaError_t status = cudaEventCreateWithFlags(&event, flags);
  if (auto ok = call_result(status, "cudaEventCreateWithFlags"); !ok) return ok.error();
  return Mark(event);
}

Result<Mark> Mark::make() { return make(cudaEventDisableTiming); }
Result<Mark> Mark::make_timed() { return make(cudaEventDefault); }

Result<double> Mark::seconds_since(const Mark& earlier) const {
  float milliseconds = 0;
  const cudaError_t status =
      cudaEventElapsedTime(&milliseconds, earlier.event_.get(), event_.get());
  if (auto ok = call_result(status, "cudaEventElapsedTime"); !ok) return ok.error();
  return 1e-3 * static_cast<double>(milliseconds);
}

Result<void> Graph::begin(const Stream& stream) {
  return call_result(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                     "cudaStreamBeginCapture");
}

Result<Graph> Graph::end(const Stream& stream, const Result<void>& done) {
  cudaGraph_t recorded = nullptr;
  // End the capture even when the work failed.
  const cudaError_t ended = cudaStreamEndCapture(stream, &recorded);
  cudaGraphExec_t graph = nullptr;
  Result<void> made = done;
  if (made) made = call_result(ended, "cudaStreamEndCapture");
  if (made) made = call_result(cudaGraphInstantiate(&graph, recorded, 0), "cudaGraphInstantiate");
  if (recorded != nullptr) cudaGraphDestroy(recorded);
  if (!made) return made.error();
  return Graph(graph);
}

}  // namespace lathe::cuda
