// Capture of a stream's work and graphs of it.
#include <utility>

#include "kernels/cuda/fake/fake_runtime.h"

using namespace lathe::cuda::fake;  // NOLINT: the runtime's names are global ones

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream == nullptr || capturing != nullptr) return fail(cudaErrorStreamCaptureUnsupported);
  capturing = stream;
  stream->capturing = true;
  stream->captured = {};
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* out) {
  if (capturing != stream) return fail(cudaErrorStreamCaptureInvalidated);
  capturing = nullptr;
  stream->capturing = false;
  *out = new CUgraph_st(std::move(stream->captured));
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long) {
  *out = new CUgraphExec_st{*graph};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  Runtime& r = runtime();
  const Lock lock(r.mutex);
  ++r.counts.graph_launches;
  r.counts.launches += graph->graph.kernels;
  for (const auto& work : graph->graph.work) put(stream, work);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  Lock lock(runtime().mutex);
  static_cast<void>(wait_for_all(lock));
  delete graph;
  return cudaSuccess;
}
