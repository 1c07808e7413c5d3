#include "plan/layout_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

namespace lathe {
namespace {

// The names of --kv-cache-dtype; bfloat16 and fp8 are vLLM's and SGLang's.
struct KvDtype {
  std::string_view flag;
  DType dtype;
};
constexpr std::array kKvDtypes = {
    KvDtype{"bf16", DType::bf16},     KvDtype{"fp8_e4m3", DType::e4m3},
    KvDtype{"fp4_e2m1", DType::e2m1}, KvDtype{"bfloat16", DType::bf16},
    KvDtype{"fp8", DType::e4m3},
};
// vLLM's name for its caches with scales inside each token: 656 bytes, and V4's 584.
constexpr std::string_view kFp8DsMla = "fp8_ds_mla";

Reason request_reason(const Error& e) {
  return {Rule::request, "--kv-layout", "--kv-layout", e.wanted, e.offered, e.hint};
}

// The request with --kv-cache-dtype fp8_ds_mla: as if --kv-layout named the layout.
LayoutChoice choose_fp8_ds_mla(const AttentionProblem& problem, const PlanRequest& request) {
  const bool v4 = problem.kind == ProblemKind::window_compressed;
  const LayoutKind kind = v4 ? LayoutKind::v4_fp8 : LayoutKind::mla_fp8_block;
  PlanRequest named = request;
  named.kv_dtype = "auto";
  if (request.layout == "auto") named.layout = std::string(name(kind));
  LayoutChoice out = choose_layouts(problem, named);
  if (!out.tiers.empty() && out.tiers.front().front().kind() != kind) {
    const std::string offered = fmt::format("{}", out.tiers.front().front().name());
    out = {};
    out.reasons.push_back({Rule::dtype, "--kv-layout", "layout",
                           fmt::format("{}, which {} is", name(kind), kFp8DsMla), offered,
                           "--kv-cache-dtype auto"});
  }
  return out;
}

// The tier of --kv-layout, or why there is none. `dtype`: of --kv-cache-dtype; none: any.
LayoutChoice choose_named(const AttentionProblem& problem, const PlanRequest& request,
                          const std::optional<DType>& dtype) {
  LayoutChoice out;
  out.automatic = false;
  const auto named = CacheLayout::parse(request.layout);
  if (!named) {
    out.reasons.push_back(request_reason(named.error()));
    return out;
  }
  const auto fitting = layout_for(problem, named->kind());
  if (!fitting) {
    out.reasons.push_back({Rule::problem, "--kv-layout", "layout", fitting.error().wanted,
                           fitting.error().offered, ""});
    return out;
  }
  // A bare name gets the problem's dims; dims that are written out must be the problem's.
  const bool spelled = request.layout.find('(') != std::string::npos;
  const CacheLayout layout(named->kind(), fitting->dims(), named->scale_policy());
  if (spelled && named->dims() != fitting->dims()) {
    out.reasons.push_back({Rule::dims, "--kv-layout", "dims", layout.serialize(),
                           named->serialize(), "--kv-layout " + std::string(layout.name())});
    return out;
  }
  if (dtype && layout.value_dtype() != *dtype) {
    out.reasons.push_back({Rule::dtype, "--kv-layout", "number format", request.kv_dtype,
                           fmt::format("{} of {}", name(layout.value_dtype()), layout.name()),
                           "--kv-cache-dtype auto"});
    return out;
  }
  out.tiers.push_back({layout});
  return out;
}

// A tier for each number format, the most precise first, of the layouts that hold the problem's
// keys; or why there is none. `dtype` as above.
LayoutChoice choose_by_precision(const AttentionProblem& problem, const PlanRequest& request,
                                 const std::optional<DType>& dtype) {
  LayoutChoice out;
  std::string tried;
  for (LayoutKind kind : layouts_by_precision(problem.kind)) {
    const auto layout = layout_for(problem, kind);
    if (!layout) continue;
    const DType own = layout->value_dtype();
    tried += fmt::format("{}{} ({})", tried.empty() ? "" : ", ", name(kind), name(own));
    if (dtype && own != *dtype) continue;
    const bool same = !out.tiers.empty() && out.tiers.back().front().value_dtype() == own;
    if (!same) out.tiers.emplace_back();
    out.tiers.back().push_back(*layout);
  }
  if (out.tiers.empty()) {
    out.reasons.push_back({Rule::dtype, "--kv-cache-dtype", "number format of a layout", tried,
                           request.kv_dtype, "--kv-cache-dtype auto"});
  }
  return out;
}

// Why a page of so many tokens cannot be.
std::optional<Reason> unfit_page(const AttentionProblem& problem, std::int32_t tokens) {
  const auto reason = [&](const std::string& wanted, const char* way_out) {
    return Reason{Rule::page_size,           "--page-size", "page size", wanted,
                  fmt::format("{}", tokens), way_out};
  };
  if (problem.two_sources() && tokens % problem.compress_ratio != 0) {
    return reason(fmt::format("a multiple of the compression ratio {}", problem.compress_ratio),
                  "--page-size 256");
  }
  if (problem.index_pool > 0 && tokens % problem.index_pool != 0) {
    return reason(fmt::format("a multiple of the {} tokens of an index key", problem.index_pool),
                  "--page-size 64");
  }
  return std::nullopt;
}

// The sizes to try where --page-size says nothing, in tokens.
std::vector<std::int32_t> page_sizes(const AttentionProblem& problem) {
  if (problem.kind == ProblemKind::window_compressed) {
    // A page of each of V4's pools covers the same tokens, so one page table serves all pools: 128
    // tokens are 32 entries at ratio 4 and one at ratio 128. A shared prompt is reused in whole
    // pages; with 256 kernels are as fast on a CPU, and some 1 % faster on a GPU.
    constexpr std::int32_t kV4Page = 128;
    const bool cuts = problem.two_sources() && kV4Page % problem.compress_ratio != 0;
    return {cuts ? problem.compress_ratio : kV4Page};
  }
  std::vector<std::int32_t> sizes = {64, 128, 32, 16, 256, 1};
  std::erase_if(sizes, [&](std::int32_t page) {
    return problem.index_pool > 0 && page % problem.index_pool != 0;
  });
  // A GPU's tensor cores score index keys in boxes of eight of a page.
  std::stable_partition(sizes.begin(), sizes.end(), [&](std::int32_t page) {
    return problem.index_pool == 0 || page / problem.index_pool % 8 == 0;
  });
  return sizes;
}

}  // namespace

LayoutChoice choose_layouts(const AttentionProblem& problem, const PlanRequest& request) {
  if (request.kv_dtype == kFp8DsMla) return choose_fp8_ds_mla(problem, request);
  std::optional<DType> dtype;
  if (request.kv_dtype != "auto") {
    const auto* named = std::ranges::find(kKvDtypes, request.kv_dtype, &KvDtype::flag);
    if (named == kKvDtypes.end()) {
      LayoutChoice out;
      out.reasons.push_back({Rule::dtype, "--kv-cache-dtype", "--kv-cache-dtype",
                             "auto, bf16, fp8_e4m3 or fp4_e2m1, or bfloat16, fp8, fp8_ds_mla",
                             fmt::format("\"{}\"", request.kv_dtype), ""});
      return out;
    }
    dtype = named->dtype;
  }
  LayoutChoice out = request.layout != "auto" ? choose_named(problem, request, dtype)
                                              : choose_by_precision(problem, request, dtype);
  if (out.tiers.empty()) return out;
  if (request.page_size == 0) {
    out.page_sizes = page_sizes(problem);
  } else if (const auto reason = unfit_page(problem, request.page_size)) {
    out.reasons.push_back(*reason);
  } else {
    out.page_sizes = {request.page_size};
  }
  return out;
}

}  // namespace lathe
