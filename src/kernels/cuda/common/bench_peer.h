// Another library's kernels, timed beside ours: a bench loads them with --peer FILE.
//
// The file exports the functions of PeerLibrary with C linkage, as lathe_peer_open and so on.
// `call` is the struct of the bench's operation (*_peer.h beside the bench). Its first member,
// `const char* kind`, names the operation, so that one file may serve several. It and all that it
// points to stay where they are until close(). All other pointers are to device memory.
#pragma once

#include <dlfcn.h>

#include <deque>
#include <optional>

#include "base/float_formats.h"
#include "kernels/cuda/common/gpu_timing.h"

namespace lathe::cuda {

/// The exported functions. open(), run() and finish() return null for success, else an error
/// message; they must neither exit nor throw.
struct PeerLibrary {
  /// Prepares a call; may allocate and convert inputs. An error means that it is not supported.
  const char* (*open)(const void* call, void* stream, void** state) = nullptr;
  /// What is timed: launches on the stream, and may be captured.
  const char* (*run)(void* state, void* stream) = nullptr;
  /// Copies the output to the call's `out`.
  const char* (*finish)(void* state, void* stream) = nullptr;
  void (*close)(void* state) = nullptr;
  const char* (*name)(const void* call) = nullptr;
};

/// Exits if the file is no such library.
inline PeerLibrary load_peer(const char* file) {
  void* handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    std::fprintf(stderr, "--peer %s: wanted a shared library (bench_peer.h), got: %s\n", file,
                 dlerror());
    std::exit(2);
  }
  PeerLibrary peer;
  const auto find = [&](const char* symbol, auto& to) {
    to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(dlsym(handle, symbol));
    if (to != nullptr) return;
    std::fprintf(stderr, "--peer %s: wanted a function %s, got none\n", file, symbol);
    std::exit(2);
  };
  find("lathe_peer_open", peer.open);
  find("lathe_peer_run", peer.run);
  find("lathe_peer_finish", peer.finish);
  find("lathe_peer_close", peer.close);
  find("lathe_peer_name", peer.name);
  return peer;
}

/// A call that a peer has opened and run once. If it does not support the call, failed() says why.
class OpenPeer {
 public:
  OpenPeer(const PeerLibrary& peer, const void* call, const Stream& stream)
      : peer_(peer), stream_(stream), failed_(peer.open(call, stream.get(), &state_)) {
    if (failed_ != nullptr) return;
    name_ = peer.name(call);
    need(run());
    need(stream.wait());
  }
  ~OpenPeer() {
    if (state_ != nullptr) peer_.close(state_);
  }
  OpenPeer(const OpenPeer&) = delete;

  /// An error of the peer shows in failed().
  Result<void> run() {
    if (const char* text = peer_.run(state_, stream_.get())) failed_ = text;
    return {};
  }
  /// Runs once more, and waits for the output.
  void finish() {
    need(run());
    if (const char* text = peer_.finish(state_, stream_.get())) failed_ = text;
    need(stream_.wait());
  }
  const char* failed() const { return failed_; }  // null: it has not
  const std::string& name() const { return name_; }

 private:
  const PeerLibrary& peer_;
  const Stream& stream_;
  void* state_ = nullptr;
  const char* failed_ = nullptr;
  std::string name_;
};

/// The peer's side of a row: the same call for each copy of its inputs.
class PeerSide {
 public:
  PeerSide(const char* file, const Stream& stream) : stream_(stream) {
    if (file != nullptr) peer_.emplace(load_peer(file));
  }
  PeerSide(const PeerSide&) = delete;

  bool given() const { return peer_.has_value(); }
  /// Begins a row without calls.
  void clear() { calls_.clear(); }
  /// Opens a call, unless there is no peer or it has failed before.
  void add(const void* call) {
    if (given() && (calls_.empty() || supports())) calls_.emplace_back(*peer_, call, stream_);
  }
  bool supports() const { return !calls_.empty() && calls_.back().failed() == nullptr; }
  /// Runs the call of copy i, modulo the number of copies.
  Result<void> run(int i = 0) { return at(i).run(); }
  void finish(int i = 0) { at(i).finish(); }
  /// A row's last columns: the peer's time and its ratio to ours, from microseconds, and the
  /// difference of both outputs in words. Nothing without a peer.
  std::string columns(double ours, double theirs, const std::string& difference) const {
    if (calls_.empty()) return "";
    if (!supports()) return fmt::format("  peer         -  {}", calls_.back().failed());
    return fmt::format("  peer {:9.1f} us  ratio {:6.3f}  {}  {}", theirs, theirs / ours,
                       difference, calls_.back().name());
  }

 private:
  OpenPeer& at(int i) { return calls_[static_cast<std::size_t>(i) % calls_.size()]; }

  const Stream& stream_;
  std::optional<PeerLibrary> peer_;
  std::deque<OpenPeer> calls_;
};

/// 1 - cosine of the first elements of both: bf16, or f32.
template <class T>
double one_minus_cosine(const T* x_on, const T* y_on, std::int64_t count, const Stream& stream) {
  std::vector<T> x(static_cast<std::size_t>(std::min<std::int64_t>(count, 1 << 22))), y(x.size());
  need(copy_to_host(x_on, std::span(x), stream));
  need(copy_to_host(y_on, std::span(y), stream));
  need(stream.wait());
  const auto value = [](T v) {
    if constexpr (std::is_same_v<T, float>)
      return double{v};
    else
      return double{to_f32(bf16{v})};
  };
  double dot = 0, a = 0, b = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double u = value(x[i]), v = value(y[i]);
    dot += u * v;
    a += u * u;
    b += v * v;
  }
  return 1 - 2 * dot / (a + b);
}

}  // namespace lathe::cuda
