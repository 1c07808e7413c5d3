// The peer's side of a latent_gpu_bench case: the same inputs in the form of latent_peer.h.
#pragma once

#include "kernels/cuda/common/bench_peer.h"
#include "kernels/cuda/sm90/latent/test/latent_bench_data.h"
#include "kernels/cuda/sm90/latent/test/latent_peer.h"

namespace lathe::cuda {

/// A peer's call on a case's inputs. If the peer does not support it, failed() says why.
class PeerCall {
 public:
  PeerCall(const PeerLibrary& peer, const BenchData& d, const Stream& stream)
      : stream_(stream), out_(need(DeviceArray<std::uint16_t>::make(d.out->size()))) {
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
    open_.emplace(peer, &call_, stream_);
  }
  PeerCall(const PeerCall&) = delete;

  Result<void> run() { return open_->run(); }
  const char* failed() const { return open_->failed(); }  // null: supported
  const std::string& peer_name() const { return open_->name(); }
  /// 1 - cosine of the first outputs of both.
  double difference(const DeviceArray<std::uint16_t>& own) {
    open_->finish();
    return one_minus_cosine(own.data(), out_.data(), own.size(), stream_);
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

  const Stream& stream_;
  DeviceArray<std::uint16_t> out_;
  LathePeerCall call_{};
  std::string layout_;
  std::optional<DeviceArray<std::uint16_t>> rows_;
  std::optional<DeviceArray<std::int32_t>> joined_;
  std::optional<OpenPeer> open_;  // closed before the arrays that it reads go
};

}  // namespace lathe::cuda
