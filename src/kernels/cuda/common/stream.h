// Streams, events on them, and graphs captured from them.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <utility>

#include "base/result.h"
#include "kernels/cuda/common/cuda_error.h"

namespace lathe::cuda {

/// A non-blocking stream: it does not synchronize with the default stream.
class Stream {
 public:
  static Result<Stream> make();
  cudaStream_t get() const { return stream_.get(); }
  operator cudaStream_t() const { return get(); }
  /// Waits until all work on it is done. Errors: any that the device met since.
  Result<void> wait(std::source_location where = std::source_location::current()) const {
    return call_result(cudaStreamSynchronize(get()), "cudaStreamSynchronize", where);
  }

 private:
  struct Destroy {
    void operator()(cudaStream_t s) const { cudaStreamDestroy(s); }
  };
  explicit Stream(cudaStream_t s) : stream_(s) {}
  std::unique_ptr<CUstream_st, Destroy> stream_;
};

/// A position in a stream's order (a CUDA event).
class Mark {
 public:
  static Result<Mark> make();
  /// A mark that also records the time at which the device reached it.
  static Result<Mark> make_timed();
  /// Records it after all work on the stream so far.
  Result<void> set(const Stream& stream,
                   std::source_location where = std::source_location::current()) {
    return call_result(cudaEventRecord(event_.get(), stream), "cudaEventRecord", where);
  }
  /// Waits until all work before it is done. Errors: any that the device met since.
  Result<void> wait(std::source_location where = std::source_location::current()) const {
    return call_result(cudaEventSynchronize(event_.get()), "cudaEventSynchronize", where);
  }
  /// Preconditions: both are timed, and the device has reached them.
  Result<double> seconds_since(const Mark& earlier) const;

 private:
  struct Destroy {
    void operator()(cudaEvent_t e) const { cudaEventDestroy(e); }
  };
  static Result<Mark> make(unsigned flags);
  explicit Mark(cudaEvent_t e) : event_(e) {}
  std::unique_ptr<CUevent_st, Destroy> event_;
};

/// Launches captured once and replayed, with the addresses they were captured with.
class Graph {
 public:
  /// Captures what `work`, a Result<void>(), puts on the stream; nothing runs. Errors: those that
  /// `work` returns, and a call that cannot be captured.
  template <class Work>
  static Result<Graph> capture(const Stream& stream, Work&& work) {
    if (auto ok = begin(stream); !ok) return ok.error();
    const Result<void> done = work();
    return end(stream, done);
  }
  Result<void> launch(const Stream& stream,
                      std::source_location where = std::source_location::current()) const {
    return call_result(cudaGraphLaunch(graph_.get(), stream), "cudaGraphLaunch", where);
  }

 private:
  struct Destroy {
    void operator()(cudaGraphExec_t g) const { cudaGraphExecDestroy(g); }
  };
  explicit Graph(cudaGraphExec_t g) : graph_(g) {}
  static Result<void> begin(const Stream& stream);
  static Result<Graph> end(const Stream& stream, const Result<void>& done);
  std::unique_ptr<CUgraphExec_st, Destroy> graph_;
};

}  // namespace lathe::cuda
