// The peer's side of a latent_gpu_bench case: the same inputs in the form of latent_peer.h.
#pragma once

#include <dlfcn.h>

#include "kernels/cuda/sm90/latent/test/latent_bench_data.h"
#include "kernels/cuda/sm90/latent/test/latent_peer.h"

namespace lathe::cuda {

/// Exits if the file is no such library.
inline PeerLibrary load_peer(const char* file) {
  void* handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    std::fprintf(stderr, "--peer %s: wanted a shared library (latent_peer.h), got: %s\n", file,
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

/// A peer's call on a case's inputs. If the peer does not support it, failed() says why.
class PeerCall {
 public:
  PeerCall(const PeerLibrary& peer, const BenchData& d, const Stream& stream)
      : peer_(peer), stream_(stream), out_(need(DeviceArray<std::uint16_t>::make(d.out->size()))) {
    const BenchCase& c = d.c;
    layout_ = c.rows ? "rows_bf16" : std::string(name(c.layout));
    call_.kind = c.top_k == 0 ? "dense_decode" : c.rows ? "sparse_prefill" : "sparse_decode";
    call_.layout = layout_.c_str();
    call_.requests = c.requests;
    call_.q_len = c.q_len;
    call_.heads = c.heads;
    call_.d_qk = d.width;
    call_.d_v = 512;
    call_.scale = d.args.problem.scale;
    call_.kv_scale = call_.q_scale = 1;
    call_.q = d.q_e4m3 ? static_cast<const void*>(d.q_e4m3->data()) : d.q->data();
    const PoolView& pool = d.main->view;
    call_.cache = pool.data;
    call_.page_stride_bytes = pool.page_stride;
    call_.page_size = c.page;
    call_.pages = static_cast<std::int32_t>(pool.pages);
    if (d.table_on) call_.page_table = reinterpret_cast<const std::int32_t*>(d.table_on->data());
    call_.table_width = d.table_width;
    call_.lengths = d.lens_on->data();
    call_.max_length = d.bound;
    if (d.list_on) call_.indices = d.list_on->data();
    call_.topk = c.top_k;
    if (d.list_lengths) call_.topk_lengths = d.list_lengths->data();
    if (d.extra) {
      const PoolView& extra = d.extra->view;
      call_.extra_cache = extra.data;
      call_.extra_page_stride_bytes = extra.page_stride;
      call_.extra_page_size = c.page;
      call_.extra_pages = static_cast<std::int32_t>(extra.pages);
      call_.extra_indices = d.extra_list_on->data();
      call_.extra_topk = c.extra;
    }
    if (c.rows) decode_rows_before(d);
    call_.out = out_.data();
    failed_ = peer_.open(&call_, stream_.get(), &state_);
    if (failed_ == nullptr) name_ = peer_.name(&call_);
  }
  ~PeerCall() {
    if (state_ != nullptr) peer_.close(state_);
  }
  PeerCall(const PeerCall&) = delete;

  Result<void> run() {
    if (const char* text = peer_.run(state_, stream_.get())) failed_ = text;
    return {};
  }
  const char* failed() const { return failed_; }  // null: supported
  const std::string& peer_name() const { return name_; }
  /// 1 - cosine of the first outputs of both.
  double difference(const DeviceArray<std::uint16_t>& own) {
    peer_.finish(state_, stream_.get());
    need(stream_.wait());
    std::vector<std::uint16_t> x(
        static_cast<std::size_t>(std::min<std::int64_t>(own.size(), 1 << 22))),
        y(x.size());
    need(copy_to_host(own.data(), std::span(x), stream_));
    need(copy_to_host(out_.data(), std::span(y), stream_));
    need(stream_.wait());
    double dot = 0, a = 0, b = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double u = to_f32(bf16{x[i]}), v = to_f32(bf16{y[i]});
      dot += u * v;
      a += u * u;
      b += v * v;
    }
    return 1 - 2 * dot / (a + b);
  }

 private:
  /// Gives the peer both sources as one list of bf16 rows, decoded beforehand.
  void decode_rows_before(const BenchData& d) {
    const PoolView& pool = d.main->view;
    const std::int64_t rows = pool.slots() + (d.extra ? d.extra->view.slots() : 0);
    rows_.emplace(need(DeviceArray<std::uint16_t>::make(rows * d.width)));
    const auto decode = [&](const PoolView& from, std::int64_t at) {
      const MutableRowsView to{reinterpret_cast<std::byte*>(rows_->data() + at * d.width),
                               DType::bf16, from.slots(), d.width, d.width};
      need(decode_rows(from, Slot(0), to, {}, stream_));
    };
    decode(pool, 0);
    if (d.extra) decode(d.extra->view, pool.slots());
    need(stream_.wait());
    call_.cache = rows_->data();
    call_.kv_rows = rows;
    call_.requests = 1;
    call_.q_len = static_cast<std::int32_t>(d.q_rows);
    call_.extra_cache = nullptr;
    call_.extra_indices = nullptr;
    call_.extra_topk = 0;
    if (!d.extra) return;
    std::vector<std::int32_t> joined;
    for (std::int64_t r = 0; r < d.q_rows; ++r) {
      const auto a = d.list.begin() + r * d.c.top_k;
      joined.insert(joined.end(), a, a + d.c.top_k);
      for (std::int32_t i = 0; i < d.c.extra; ++i) {
        joined.push_back(d.extra_list[static_cast<std::size_t>(r * d.c.extra + i)] +
                         static_cast<std::int32_t>(pool.slots()));
      }
    }
    joined_.emplace(upload(joined, stream_));
    call_.indices = joined_->data();
    call_.topk = d.c.top_k + d.c.extra;
  }

  const PeerLibrary& peer_;
  const Stream& stream_;
  DeviceArray<std::uint16_t> out_;
  LathePeerCall call_{};
  std::string layout_, name_;
  std::optional<DeviceArray<std::uint16_t>> rows_;
  std::optional<DeviceArray<std::int32_t>> joined_;
  void* state_ = nullptr;
  const char* failed_ = nullptr;
};

}  // namespace lathe::cuda
