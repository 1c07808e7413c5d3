// Inputs of a latent_gpu_bench case on the device: random pages, queries, tables and lists, and the
// call that reads them.
#pragma once

#include <bit>
#include <cmath>
#include <numeric>
#include <optional>

#include "base/float_formats.h"
#include "kernels/cuda/common/gpu_timing.h"
#include "kernels/cuda/sm90/codec/codec.h"
#include "kernels/cuda/sm90/latent/latent.h"
#include "kernels/cuda/sm90/latent/test/latent_bench_case.h"

namespace lathe::cuda {

/// Normal random numbers from a table: the distribution itself is slow.
class NormalTable {
 public:
  explicit NormalTable(std::mt19937& rng) : rng_(rng) {
    std::normal_distribution<float> normal;
    for (auto& x : table_) x = to_bf16(normal(rng)).bits;
  }
  std::vector<std::uint16_t> draw(std::int64_t count) {
    std::vector<std::uint16_t> out(static_cast<std::size_t>(count));
    for (auto& x : out) x = table_[rng_() & 0xffff];
    return out;
  }

 private:
  std::mt19937& rng_;
  std::vector<std::uint16_t> table_ = std::vector<std::uint16_t>(1 << 16);
};

/// Contents of pages.
class BenchSeed {
 public:
  BenchSeed(NormalTable& normal, const Stream& stream)
      : stream_(stream), rows_(upload(normal.draw(kRows * kWidth), stream)) {}

  /// Encodes random tokens.
  void fill(const PoolView& pool) const {
    std::vector<Slot> host(static_cast<std::size_t>(kRows));
    for (std::int64_t first = 0; first < pool.slots(); first += kRows) {
      const std::int64_t count = std::min(kRows, pool.slots() - first);
      for (std::int64_t i = 0; i < count; ++i) {
        host[static_cast<std::size_t>(i)] = Slot(static_cast<std::int32_t>(first + i));
      }
      const auto slots = upload(host, stream_);
      const RowsView rows{reinterpret_cast<const std::byte*>(rows_.data()), DType::bf16, count,
                          pool.layout.row_elems(), kWidth};
      need(encode_rows(rows, slots.span().first(static_cast<std::size_t>(count)), pool, {},
                       stream_));
      need(stream_.wait());
    }
  }

 private:
  static constexpr std::int64_t kRows = 1 << 16, kWidth = 576;
  const Stream& stream_;
  DeviceArray<std::uint16_t> rows_;
};

/// Consecutive pages of requests, and the pool's memory.
struct BenchPool {
  BenchPool(const CacheLayout& layout, std::int32_t page, const std::vector<std::int32_t>& lens,
            const BenchSeed& seed)
      : view(nullptr, layout, page, 0) {
    std::int64_t pages = 0;
    for (const std::int32_t n : lens) {
      first_slots.push_back(pages * page);
      pages += (n + page - 1) / page;
    }
    view = PoolView(nullptr, layout, page, pages);
    bytes.emplace(need(DeviceArray<std::byte>::make(view.bytes())));
    view.data = bytes->data();
    seed.fill(view);
  }

  PoolView view;
  std::vector<std::int64_t> first_slots;  // of requests
  std::optional<DeviceArray<std::byte>> bytes;
};

/// A call's inputs and outputs. The case must outlive them.
class BenchData {
 public:
  const BenchCase& c;
  CacheLayout layout;
  AttendArgs args;
  std::vector<std::int32_t> lens;  // of requests
  std::int32_t longest = 0, bound = 0, table_width = 0, width = 0;
  std::int64_t tokens = 0, q_rows = 0, out_width = 0;
  std::optional<BenchPool> main, extra;
  std::optional<DeviceArray<std::uint16_t>> q, out;
  std::optional<DeviceArray<e4m3>> q_e4m3;
  std::optional<DeviceArray<float>> lse;
  std::optional<DeviceArray<std::int32_t>> indptr, lens_on, list_on, extra_list_on, list_lengths;
  std::optional<DeviceArray<PageId>> table_on;
  std::vector<std::int32_t> list, extra_list;  // of rows

  BenchData(const BenchCase& of, NormalTable& normal, const BenchSeed& seed, std::mt19937& rng,
            const Stream& stream)
      : c(of), layout(layout_of(of)), rng_(rng), stream_(stream) {
    const bool v4 = c.layout == LayoutKind::v4_fp8;
    for (std::int32_t r = 0; r < c.requests; ++r) {
      lens.push_back(v4 && c.extra > 0 && c.lengths.empty() ? 4096 : c.length(r));
    }
    longest = *std::max_element(lens.begin(), lens.end());
    bound = std::max(c.bound, longest);
    table_width = (bound + c.page - 1) / c.page;
    tokens = std::accumulate(lens.begin(), lens.end(), std::int64_t{0});
    width = layout.row_elems();
    q_rows = std::int64_t{c.requests} * c.q_len;
    args.problem.kind = v4            ? ProblemKind::window_compressed
                        : c.top_k > 0 ? ProblemKind::sparse_latent
                                      : ProblemKind::dense_latent;
    args.problem.heads = c.heads;
    args.problem.nope = layout.dims().nope;
    args.problem.rope = layout.dims().rope;
    args.problem.scale = static_cast<float>(c.deviation / std::sqrt(static_cast<double>(width)));
    args.problem.top_k = c.top_k;
    args.problem.compress_ratio = c.extra > 0 ? 4 : 0;
    args.max_request_rows = c.q_len;
    main.emplace(layout, c.page, lens, seed);
    args.main.pool = main->view;
    put_queries(normal);
    put_requests();
    if (c.top_k > 0) {
      put_lists(seed);
    } else {
      put_table();
    }
  }

  /// The shape for cut_latent().
  LatentShape shape(std::int32_t min_block_m, int sms) const {
    LatentShape s{.rows = q_rows,
                  .requests = c.requests,
                  .request_rows = c.q_len,
                  .keys = bound,
                  .heads = c.heads,
                  .dense = c.top_k == 0,
                  .fp8 = c.native,
                  .fp8_pages = !c.gather && has_fp8_pages(args.main),
                  .min_block_m = min_block_m,
                  .fixed_keys = c.batch_invariant ? kLatentFixedKeys : 0,
                  .sms = sms};
    if (c.top_k == 0) return s;
    s.keys = (c.top_k + 63) / 64 * 64 + c.extra;
    if (!c.staged || c.gather || c.layout == LayoutKind::mla_bf16) return s;
    s.main = listed_pool(args.main);
    s.tokens = tokens;
    if (c.extra > 0 && s.main.pages > 0) {
      s.extra = listed_pool(args.extra);
      s.tokens += std::int64_t{c.requests} * c.context;
    }
    return s;
  }
  /// Average keys of a row.
  double keys() const {
    if (c.top_k == 0) return static_cast<double>(tokens) / c.requests;
    double listed = 0;
    for (const std::int32_t n : lens) listed += std::min(n, c.top_k);
    return listed / c.requests * (1 - c.holes) + c.extra;
  }
  /// Least seconds that the GPU needs: the larger of bytes (each key once, q and out) and
  /// operations.
  double limit() const {
    const double rows = static_cast<double>(q_rows);
    const double read = c.top_k == 0 ? keys() * c.requests
                        : c.rows     ? double{1} * c.context
                                     : keys() * rows;
    const double moved = read * static_cast<double>(layout.bytes_per_token()) +
                         rows * c.heads * (width * (c.native ? 1 : 2) + 1024.0);
    const double flops = 2.0 * keys() * rows * c.heads * (width + 512);
    return std::max(moved / 4.3e12, flops / (c.native ? 1400e12 : 790e12));
  }
  std::string what() const {
    std::string text =
        fmt::format("{} {} b{} q{} h{} {}", c.group, name(c.layout), c.requests, c.q_len, c.heads,
                    c.top_k == 0  ? fmt::format("s{}", c.context)
                    : c.extra > 0 ? fmt::format("k{}+{}", c.top_k, c.extra)
                                  : fmt::format("k{} s{}", c.top_k, c.context));
    if (!c.lengths.empty()) text += fmt::format(" mean {:.0f}", keys());
    if (c.bound > longest) text += fmt::format(" bound {}", bound);
    if (c.deviation != 1) text += fmt::format(" deviation {}", c.deviation);
    if (c.holes > 0) text += fmt::format(" holes {}", c.holes);
    if (c.page != 64) text += fmt::format(" page {}", c.page);
    if (c.batch_invariant) text += " batch-invariant";
    return text;
  }

 private:
  std::mt19937& rng_;
  const Stream& stream_;

  static CacheLayout layout_of(const BenchCase& c) {
    return CacheLayout(c.layout, c.layout == LayoutKind::v4_fp8
                                     ? LayoutDims{.nope = 448, .rope = 64}
                                     : LayoutDims{.nope = 512, .rope = 64});
  }
  void put_queries(NormalTable& normal) {
    std::vector<std::uint16_t> host = normal.draw(q_rows * c.heads * width);
    // With e4m3 keys, queries are values that e4m3 can hold, in both formats, because the peer
    // needs e4m3.
    if (c.layout == LayoutKind::mla_fp8) {
      std::vector<e4m3> codes(host.size());
      for (std::size_t i = 0; i < host.size(); ++i) {
        codes[i] = to_e4m3(to_f32(bf16{host[i]}));
        host[i] = to_bf16(to_f32(codes[i])).bits;
      }
      q_e4m3.emplace(upload(codes, stream_));
    }
    q.emplace(upload(host, stream_));
    args.q = {reinterpret_cast<const std::byte*>(q->data()), DType::bf16, q_rows, c.heads * width,
              c.heads * width};
    if (c.native) {
      args.q.data = reinterpret_cast<const std::byte*>(q_e4m3->data());
      args.q.dtype = DType::e4m3;
    }
    out_width = std::int64_t{c.heads} * 512;
    out.emplace(need(DeviceArray<std::uint16_t>::make(q_rows * out_width)));
    lse.emplace(need(DeviceArray<float>::make(q_rows * c.heads)));
    args.out = {reinterpret_cast<std::byte*>(out->data()), DType::bf16, q_rows, out_width,
                out_width};
    args.lse = {reinterpret_cast<std::byte*>(lse->data()), DType::f32, q_rows, c.heads, c.heads};
  }
  void put_requests() {
    std::vector<std::int32_t> host;
    for (std::int32_t r = 0; r <= c.requests; ++r) host.push_back(r * c.q_len);
    indptr.emplace(upload(host, stream_));
    lens_on.emplace(upload(lens, stream_));
    args.q_indptr = indptr->span();
    args.kv_lens = lens_on->span();
  }
  void put_table() {
    std::vector<PageId> pages(static_cast<std::size_t>(main->view.pages)), table;
    for (std::size_t i = 0; i < pages.size(); ++i) pages[i] = PageId(static_cast<std::int32_t>(i));
    std::shuffle(pages.begin(), pages.end(), rng_);
    for (std::size_t r = 0; r < lens.size(); ++r) {
      const auto own = pages.begin() + main->first_slots[r] / c.page;
      table.insert(table.end(), own, own + (lens[r] + c.page - 1) / c.page);
      table.resize((r + 1) * static_cast<std::size_t>(table_width), PageId(-1));
    }
    table_on.emplace(upload(table, stream_));
    args.main.page_table = table_on->span();
    args.main.table_width = table_width;
  }
  void put_lists(const BenchSeed& seed) {
    list = lists(c.top_k, lens, main->first_slots);
    list_on.emplace(upload(list, stream_));
    args.main.indices = list_on->span();
    args.main.index_width = c.top_k;
    if (!c.lengths.empty() && c.list_lengths) {
      std::vector<std::int32_t> host;
      for (const std::int32_t n : lens) {
        host.resize(host.size() + static_cast<std::size_t>(c.q_len), std::min(n, c.top_k));
      }
      list_lengths.emplace(upload(host, stream_));
      args.main.index_lengths = list_lengths->span();
    }
    if (c.extra == 0) return;
    const std::vector<std::int32_t> contexts(lens.size(), c.context);
    extra.emplace(layout, c.page, contexts, seed);
    extra_list = lists(c.extra, contexts, extra->first_slots);
    extra_list_on.emplace(upload(extra_list, stream_));
    args.extra.pool = extra->view;
    args.extra.indices = extra_list_on->span();
    args.extra.index_width = c.extra;
  }
  /// Distinct slots of each row's request, then holes. first_slots: of requests.
  std::vector<std::int32_t> lists(std::int32_t entries, const std::vector<std::int32_t>& contexts,
                                  const std::vector<std::int64_t>& first_slots) {
    std::vector<std::int32_t> to;
    for (std::size_t r = 0; r < contexts.size(); ++r) {
      const auto context = static_cast<std::uint32_t>(contexts[r]);
      // An odd step and a power of two are coprime.
      const std::uint32_t period = std::bit_ceil(std::max(context, 1u));
      for (std::int32_t j = 0; j < c.q_len; ++j) {
        const auto step = static_cast<std::uint32_t>(rng_() % std::max(context, 1u)) | 1u;
        auto at = static_cast<std::uint32_t>(rng_());
        const std::size_t end = to.size() + static_cast<std::size_t>(entries);
        for (std::uint32_t i = 0; i < period && to.size() < end; ++i, at += step) {
          if (at % period >= context) continue;
          const bool hole = c.holes > 0 && static_cast<double>(rng_()) < c.holes * 4294967296.0;
          to.push_back(hole ? -1 : static_cast<std::int32_t>(first_slots[r] + at % period));
        }
        to.resize(end, -1);
      }
    }
    return to;
  }
};

}  // namespace lathe::cuda
