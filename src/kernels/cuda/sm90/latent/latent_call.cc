#include "kernels/cuda/sm90/latent/latent_call.h"

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>

#include "kernels/cuda/sm90/latent/latent_limits.h"

namespace lathe::cuda {
namespace {

Error unfit(std::string field, std::string wanted, std::string offered) {
  return {ErrorCode::unsupported, std::move(field), std::move(wanted), std::move(offered), ""};
}

// The kernels copy 16 bytes at a time.
Result<void> check_alignment(const char* field, const void* data, std::int64_t stride_bytes,
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

// Supported RoPE widths: 64, as DeepSeek, and 0, where the key is the value.
bool has_rope(ProblemKind kind, std::int32_t rope) {
  return rope == kLatentRope || (rope == 0 && kind != ProblemKind::window_compressed);
}

/// Names of a source's fields, for messages.
struct SourceFields {
  const char *pool, *layout, *compact, *compact_dtype;
};
constexpr SourceFields kMain{"main.pool", "main.pool.layout", "main.compact", "main.compact.dtype"};
constexpr SourceFields kExtra{"extra.pool", "extra.pool.layout", "extra.compact",
                              "extra.compact.dtype"};

Result<void> check_keys(const SourceFields& fields, const KeySource& s, ProblemKind kind) {
  if (!s.pool) {
    if (s.compact.rows > 0 && s.compact.dtype != DType::bf16) {
      return unfit(fields.compact_dtype, "bf16", std::string(name(s.compact.dtype)));
    }
    return check_alignment(fields.compact, s.compact.data, s.compact.row_stride * 2,
                           s.compact.rows);
  }
  const CacheLayout& layout = s.pool->layout;
  if (!latent_layouts(kind).contains(layout.kind())) {
    return unfit(fields.layout, latent_layouts(kind).names(), std::string(name(layout.kind())));
  }
  if (layout.kind() == LayoutKind::mla_fp8 && layout.dims().rope == 0) {
    return unfit(fields.layout, "mla_bf16 or mla_fp8_block without rope", "mla_fp8");
  }
  return check_alignment(fields.pool, s.pool->data, s.pool->page_stride, s.pool->pages);
}

// What fp8 operands (e4m3 q on e4m3 pages) need in addition.
Result<void> check_fp8(const AttendArgs& args) {
  const KeySource& s = args.main;
  if (!s.pool || s.pool->layout.kind() != LayoutKind::mla_fp8) {
    return unfit("main.pool.layout", "mla_fp8 where q is e4m3",
                 s.pool ? std::string(name(s.pool->layout.kind())) : "bf16 rows");
  }
  if (s.index_width == 0 && !latent_fp8_page(s.pool->page_size)) {
    return unfit(
        "main.pool.page_size",
        fmt::format("a power of two, at least {}, where q is e4m3 and a page table gives the keys",
                    kLatentFp8Page),
        fmt::format("{}", s.pool->page_size));
  }
  // TMA boxes need strides of 16 bytes even for a single row and a single page.
  if (auto ok = check_alignment("main.pool", s.pool->data, s.pool->page_stride, 2); !ok) return ok;
  return check_alignment("q", args.q.data, args.q.row_stride, 2);
}

Result<void> check_scales(const AttendArgs& args) {
  if (args.q.dtype != DType::e4m3) {
    if (args.device_q_scale != nullptr) {
      return unfit("q_scale", "a number where q is bf16", "a tensor");
    }
    if (args.main.device_key_scale != nullptr) {
      return unfit("main.key_scale", "a number where q is bf16", "a tensor");
    }
  }
  constexpr const char* kRange = "a scale from 2^-100 to 2^60";
  const auto within = [](double s) { return s >= kLatentLeastScale && s <= kLatentMostScale; };
  const double key = args.main.key_scale;
  if (!within(key)) return unfit("main.key_scale", kRange, fmt::format("{}", key));
  const double q = args.q.dtype == DType::e4m3 ? args.q_scale : 1;
  if (within(args.problem.scale * key * q)) return {};
  return unfit("problem.scale", fmt::format("{}, times key_scale and q_scale", kRange),
               fmt::format("{} x {} x {}", double{args.problem.scale}, key, q));
}

Result<void> check_sources(const AttendArgs& args) {
  const AttentionProblem& p = args.problem;
  const KeySource &a = args.main, &b = args.extra;
  if (p.window > 0 && a.table_width > 0 && a.index_width == 0) {
    return unfit("problem.window", "0, or an index list of the window's keys",
                 fmt::format("{} by page table", p.window));
  }
  if (auto ok = check_keys(kMain, a, p.kind); !ok) return ok;
  if (!p.two_sources()) return {};
  if (auto ok = check_keys(kExtra, b, p.kind); !ok) return ok;
  if (a.pool.has_value() != b.pool.has_value() ||
      (a.pool && a.pool->layout.kind() != b.pool->layout.kind())) {
    return unfit("extra", "pages of main's layout, or compact rows like main's", "another form");
  }
  // A work tile has the keys of one page table, or of one row's lists.
  if (a.index_width == 0 && b.index_width > 0) {
    return unfit("main.indices", "an index list, as extra has one",
                 a.table_width > 0 ? "a page table" : "none");
  }
  return {};
}

}  // namespace

Result<void> check_latent_call(const AttendArgs& args) {
  const AttentionProblem& p = args.problem;
  if (p.nope != latent_nope(p.kind) || !has_rope(p.kind, p.rope)) {
    const char* without = has_rope(p.kind, 0) ? ", or without the latter" : "";
    return unfit("problem",
                 fmt::format("{} + {} dimensions{}", latent_nope(p.kind), kLatentRope, without),
                 fmt::format("{} + {}", p.nope, p.rope));
  }
  if (p.heads < 1 || p.heads > kLatentHeads) {
    return unfit("problem.heads", fmt::format("1 to {}", kLatentHeads), fmt::format("{}", p.heads));
  }
  if (args.q.dtype != DType::bf16 && args.q.dtype != DType::e4m3) {
    return unfit("q.dtype", "bf16, or e4m3 for pages of mla_fp8", std::string(name(args.q.dtype)));
  }
  if (args.out.dtype != DType::bf16) {
    return unfit("out.dtype", "bf16", std::string(name(args.out.dtype)));
  }
  if (args.lse.data != nullptr && args.lse.dtype != DType::f32) {
    return unfit("lse.dtype", "f32", std::string(name(args.lse.dtype)));
  }
  if (reinterpret_cast<std::uintptr_t>(args.lse.data) % alignof(float) != 0) {
    return unfit("lse", "an address that is a multiple of 4",
                 fmt::format("{}", static_cast<const void*>(args.lse.data)));
  }
  const std::int64_t q_stride = bytes_of(args.q.dtype, args.q.row_stride);
  if (auto ok = check_alignment("q", args.q.data, q_stride, args.q.rows); !ok) return ok;
  if (auto ok = check_alignment("out", args.out.data, args.out.row_stride * 2, args.out.rows);
      !ok) {
    return ok;
  }
  if (auto ok = check_scales(args); !ok) return ok;
  if (auto ok = check_sources(args); !ok || args.q.dtype != DType::e4m3) return ok;
  return check_fp8(args);
}

}  // namespace lathe::cuda
