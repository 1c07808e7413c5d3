// Turns a call of grouped-query attention into its kernels' parameters: block sizes, device memory
// and launch parameters. Makes no CUDA call.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>

#include "attn/attend.h"
#include "base/result.h"
#include "kernels/cuda/sm90/gqa/gqa_params.h"

namespace lathe::cuda {

/// A problem as grouped queries: grouped_query itself, or dense_latent, which has one KV head with
/// values in its keys.
struct GqaForm {
  std::int32_t kv_heads = 1, group = 1;
  std::int32_t key_dim = 0, value_dim = 0;
  bool latent = false;
};
GqaForm gqa_form(const AttentionProblem& problem);

/// Sizes that follow from the host's bounds of a call; the lengths themselves are on the device.
struct GqaShape {
  bool pairs = false;           // as GqaParams::pairs
  std::int32_t kv_heads = 0;    // or pairs of them
  std::int32_t block_m = 8;     // M rows of a block: 8 to 64; 128 for prefill
  std::int32_t tile = 64;       // keys of a tile
  std::int32_t item_cost = 0;   // in tiles
  std::int64_t max_blocks = 0;  // most M blocks
  std::int32_t workers = 0;     // resident blocks
  std::int32_t pieces = 0;      // as GqaParams::pieces
  std::int64_t partials = 0;    // of block_m rows
  // Device memory, multiples of 256.
  std::int64_t schedule_bytes = 0;
  std::int64_t partial_bytes = 0;

  std::int64_t bytes() const { return schedule_bytes + partial_bytes; }
};

/// Places arrays one after another, each aligned to 256 bytes. Without a base it only counts.
class Placement {
 public:
  explicit Placement(std::byte* base) : base_(base) {}
  template <class T>
  void take(T*& array, std::int64_t count) {
    if (base_ != nullptr) array = reinterpret_cast<T*>(base_ + bytes_);
    bytes_ += (count * static_cast<std::int64_t>(sizeof(T)) + 255) / 256 * 256;
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  std::int64_t bytes_ = 0;
};

void place_gqa_schedule(Placement& places, std::int64_t requests, const GqaShape& shape,
                        GqaSchedule& s);
void place_gqa_partials(Placement& places, const GqaShape& shape, std::int32_t value_dim,
                        GqaParams& p);

inline Error unsupported(std::string field, std::string wanted, std::string offered,
                         std::string hint = "") {
  return {ErrorCode::unsupported, std::move(field), std::move(wanted), std::move(offered),
          std::move(hint)};
}

template <std::size_t N>
Result<void> one_of(const char* field, const std::int32_t (&values)[N], std::int32_t value) {
  if (std::ranges::find(values, value) != std::end(values)) return {};
  return unsupported(field, fmt::format("one of {}", fmt::join(values, ", ")),
                     fmt::format("{}", value), "the cpu device takes others");
}

/// Checks query rows and outputs, independent of where keys come from. Errors, by argument: dtypes,
/// alignment, bounds.
Result<void> check_gqa_rows(const AttendArgs& args);

/// Checks a whole call. Errors, by argument: dtypes, head dims, pages, index lists, alignment,
/// bounds.
Result<void> check_gqa_call(const AttendArgs& args);

/// sms: of the device. args must have passed their check.
GqaShape gqa_shape(const AttendArgs& args, int sms);

/// Bytes that gqa_shape() needs at most for any call with at most the rows, requests and
/// max_request_rows of `most`.
std::int64_t gqa_workspace_bytes(const AttendArgs& most, int sms);

/// schedule, partials: device memory, aligned to 256, of the sizes that shape says.
GqaParams gqa_params(const AttendArgs& args, const GqaShape& shape, std::byte* schedule,
                     std::byte* partials);

}  // namespace lathe::cuda
