// Streams, marks on them, and graphs captured from them.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <utility>

#include "base/result.h"
#include "kernels/cuda/common/cuda_error.h"

namespace lathe::cuda {

/// A stream of its own, that does not wait for the default one.
class Stream {
 public:
  static Result<Stream> make();
  cudaStream_t get() const { return stream_.get(); }
  operator cudaStream_t() const { return get(); }
  /// Waits until all that was put on it is done. Errors: any that the device met since.
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

/// A place in the order of a stream.
class Mark {
 public:
  static Result<Mark> make();
  /// One that also holds the time at which the device came to it.
  static Result<Mark> make_timed();
  /// After all that was put on the stream.
  Result<void> set(const Stream& stream,
                   std::source_location where = std::source_location::current()) {
    return call_result(cudaEventRecord(event_.get(), stream), "cudaEventRecord", where);
  }
  /// Waits until what lies before it is done. Errors: any that the device met since.
  Result<void> wait(std::source_location where = std::source_location::current()) const {
    return call_result(cudaEventSynchronize(event_.get()), "cudaEventSynchronize", where);
  }
  /// Preconditions: both are timed, and the device has come to them.
  Result<double> seconds_since(const Mark& earlier) const;

 private:
  struct Destroy {
    void operator()(cudaEvent_t e) const { cudaEventDestroy(e); }
  };
  static Result<Mark> make(unsigned flags);
  explicit Mark(cudaEvent_t e) : event_(e) {}
  std::unique_ptr<CUevent_st, Destroy> event_;
};

/// Launches recorded once and replayed, at the addresses they were recorded with.
class Graph {
 public:
  /// Records what `work`, a Result<void>(), puts on the stream; nothing runs. Errors: those of
  /// `work`, and a call that cannot be recorded.
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
