#include "kernels/cuda/sm90/latent/latent_attend.h"

#include <fmt/format.h>

#include <algorithm>

#include "attn/check_args.h"
#include "kernels/cuda/common/memory.h"
#include "kernels/cuda/sm90/latent/latent_params.h"
#include "kernels/cuda/sm90/step/step.h"

namespace lathe::cuda {
namespace {

Error unfit(std::string field, std::string wanted, std::string offered, std::string hint = "") {
  return {ErrorCode::unsupported, std::move(field), std::move(wanted), std::move(offered),
          std::move(hint)};
}

// The kernels move 16 bytes at a time.
Result<void> check_lines(const std::string& field, const void* data, std::int64_t stride_bytes,
                         std::int64_t rows) {
  if (rows == 0) return {};
  if (reinterpret_cast<std::uintptr_t>(data) % 16 != 0) {
    return unfit(field, "an address that is a multiple of 16", fmt::format("{}", data));
  }
  if (rows > 1 && stride_bytes % 16 != 0) {
    return unfit(field, "a stride that is a multiple of 16 bytes",
                 fmt::format("{} bytes", stride_bytes));
  }
  return {};
}

Result<void> check_keys(const std::string& field, const KeySource& s, ProblemKind kind) {
  if (!s.pool) {
    if (s.compact.rows > 0 && s.compact.dtype != DType::bf16) {
      return unfit(field + ".compact.dtype", "bf16", std::string(name(s.compact.dtype)));
    }
    return check_lines(field + ".compact", s.compact.data, s.compact.row_stride * 2,
                       s.compact.rows);
  }
  const CacheLayout& layout = s.pool->layout;
  if (!latent_layouts(kind).contains(layout.kind())) {
    return unfit(field + ".pool.layout", latent_layouts(kind).names(),
                 std::string(name(layout.kind())));
  }
  if (!kLatentScales.contains(layout.scale_policy())) {
    return unfit(field + ".pool.layout", "scales " + kLatentScales.names(),
                 std::string(name(layout.scale_policy())));
  }
  return check_lines(field + ".pool", s.pool->data, s.pool->page_stride, s.pool->pages);
}

// What fp8 arithmetic takes beside the rest.
Result<void> check_fp8(const AttendArgs& args) {
  const KeySource& s = args.main;
  if (!s.pool || s.pool->layout.kind() != LayoutKind::mla_fp8 || s.index_width > 0) {
    return unfit("q.dtype", "bf16, or e4m3 for pages of mla_fp8 by page table", "e4m3");
  }
  if (!latent_fp8_page(s.pool->page_size)) {
    return unfit("main.pool.page_size",
                 fmt::format("a power of two from {} on where q is e4m3", kLatentFp8Page),
                 fmt::format("{}", s.pool->page_size));
  }
  return {};
}

Result<void> check_call(const AttendArgs& args) {
  const AttentionProblem& p = args.problem;
  if (auto ok = check_latent_shapes(args); !ok) return ok;
  if (p.nope != latent_nope(p.kind) || p.rope != kLatentRope) {
    return unfit("problem", fmt::format("{} + {} dimensions", latent_nope(p.kind), kLatentRope),
                 fmt::format("{} + {}", p.nope, p.rope));
  }
  if (p.heads > kLatentHeads) {
    return unfit("problem.heads", fmt::format("1 to {}", kLatentHeads), fmt::format("{}", p.heads));
  }
  const auto need_dtype = [](const char* field, DType wanted, DType offered) -> Result<void> {
    if (wanted == offered) return {};
    return unfit(field, std::string(name(wanted)), std::string(name(offered)));
  };
  const bool fp8 = args.q.dtype == DType::e4m3;
  if (!fp8) {
    if (auto ok = need_dtype("q.dtype", DType::bf16, args.q.dtype); !ok) return ok;
  } else if (auto ok = check_fp8(args); !ok) {
    return ok;
  }
  if (auto ok = need_dtype("out.dtype", DType::bf16, args.out.dtype); !ok) return ok;
  if (args.lse.data != nullptr) {
    if (auto ok = need_dtype("lse.dtype", DType::f32, args.lse.dtype); !ok) return ok;
  }
  if (p.window > 0 && args.main.table_width > 0) {
    return unfit("problem.window", "0, or an index list of the window's keys",
                 fmt::format("{} by page table", p.window));
  }
  if (auto ok =
          check_lines("q", args.q.data, bytes_of(args.q.dtype, args.q.row_stride), args.q.rows);
      !ok) {
    return ok;
  }
  if (auto ok = check_lines("out", args.out.data, args.out.row_stride * 2, args.out.rows); !ok) {
    return ok;
  }
  if (auto ok = check_keys("main", args.main, p.kind); !ok) return ok;
  if (p.two_sources()) {
    if (auto ok = check_keys("extra", args.extra, p.kind); !ok) return ok;
    const KeySource &a = args.main, &b = args.extra;
    if (a.pool.has_value() != b.pool.has_value() ||
        (a.pool && a.pool->layout.kind() != b.pool->layout.kind())) {
      return unfit("extra", "pages of main's layout, or compact rows like main's", "another form");
    }
  }
  const std::int64_t requests = std::ssize(args.kv_lens);
  if (args.max_request_rows < 1 || args.max_request_rows * requests < args.q.rows) {
    return Error{
        ErrorCode::invalid_argument, "max_request_rows",
        fmt::format("the most rows that one of {} requests has of {}", requests, args.q.rows),
        fmt::format("{}", args.max_request_rows), ""};
  }
  if (args.max_kv_len < 0) {
    return Error{ErrorCode::invalid_argument, "max_kv_len", "0 or more",
                 fmt::format("{}", args.max_kv_len), ""};
  }
  return {};
}

Result<LatentCut> cut_call(const AttendArgs& args) {
  int device = 0;
  LatentShape s{.rows = args.q.rows,
                .requests = std::ssize(args.kv_lens),
                .request_rows = args.max_request_rows,
                .heads = args.problem.heads,
                .dense = args.main.index_width == 0,
                .fp8 = args.q.dtype == DType::e4m3,
                .fp8_pages = has_fp8_pages(args.main)};
  if (auto ok = call_result(cudaGetDevice(&device), "cudaGetDevice"); !ok) return ok.error();
  if (auto ok =
          call_result(cudaDeviceGetAttribute(&s.processors, cudaDevAttrMultiProcessorCount, device),
                      "cudaDeviceGetAttribute");
      !ok) {
    return ok.error();
  }
  if (s.dense) {
    const std::int64_t page = args.main.pool ? args.main.pool->page_size : 1;
    s.keys = args.main.table_width * page;
    if (args.max_kv_len > 0) s.keys = std::min(s.keys, args.max_kv_len);
  } else {
    // The extra source's keys begin at a tile's first place.
    s.keys = (args.main.index_width + kLatentTile - 1) / kLatentTile * kLatentTile;
    s.main = listed_pool(args.main);
    if (args.problem.two_sources()) {
      s.keys += args.extra.index_width;
      s.extra = listed_pool(args.extra);
    }
    s.tokens = args.max_kv_len * s.requests;
    if (s.extra.pages > 0) s.tokens += s.tokens / args.problem.compress_ratio;
  }
  return cut_latent(s);
}

// Arrays one after another, each at a multiple of 256 bytes.
class Carve {
 public:
  template <class T>
  void take(std::span<T>& array, std::int64_t count) {
    if (base_ != nullptr) {
      array = {reinterpret_cast<T*>(base_ + bytes_), static_cast<std::size_t>(count)};
    }
    bytes_ += (count * static_cast<std::int64_t>(sizeof(T)) + 255) / 256 * 256;
  }
  std::int64_t bytes() const { return bytes_; }
  explicit Carve(std::byte* base = nullptr) : base_(base) {}

 private:
  std::byte* base_;
  std::int64_t bytes_ = 0;
};

std::int64_t lay_out(LatentCall& call, std::byte* base) {
  Carve carve(base);
  take_arrays(call.schedule,
              [&](auto& array, std::int64_t entries) { carve.take(array, entries); });
  carve.take(call.workspace, call.schedule.cut.workspace_bytes());
  return carve.bytes();
}

}  // namespace

Result<LatentCall> schedule_latent(const AttendArgs& args) {
  if (auto ok = check_call(args); !ok) return ok.error();
  LatentCall call;
  if (args.q.rows == 0) return call;
  Scratch* scratch = args.execution.scratch;
  if (scratch == nullptr || !(scratch->memory() == device_memory())) {
    return Error{ErrorCode::invalid_argument, "execution.scratch", "scratch of device_memory()",
                 scratch == nullptr ? "none" : "scratch of the host", ""};
  }
  const auto cut = cut_call(args);
  if (!cut) return cut.error();
  call.schedule.cut = cut.value();
  const std::int64_t bytes = lay_out(call, nullptr);
  std::byte* base = scratch->take(bytes);
  if (base == nullptr) {
    // What is in the way says so once more.
    const auto again = allocate_device_bytes(bytes);
    return again ? out_of_memory(bytes, 0, 0) : again.error();
  }
  lay_out(call, base);
  const auto stream = static_cast<cudaStream_t>(args.execution.stream);
  if (auto ok = plan_latent(args, call.schedule, stream); !ok) return ok.error();
  return call;
}

Result<void> attend_latent_on_device(const AttendArgs& args) {
  const auto call = schedule_latent(args);
  if (!call) return call.error();
  if (args.q.rows == 0) return {};
  return attend_latent(args, {}, call->schedule, call->workspace,
                       static_cast<cudaStream_t>(args.execution.stream));
}

}  // namespace lathe::cuda
