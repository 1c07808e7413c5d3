// A call of grouped-query attention as its kernels get it: block sizes, what it keeps in memory of
// the device, parameters. No CUDA call is made here.
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

/// The bounds that a call's shape follows from; lengths are the device's.
struct GqaShape {
  std::int32_t block_m = 8;     // M rows of a block: 8, 16, 32 or 64, or 128 of many
  std::int32_t tile = 64;       // keys
  std::int32_t item_cost = 0;   // in tiles
  std::int64_t max_blocks = 0;  // M blocks
  std::int32_t workers = 0;     // resident blocks
  // Of the device's memory, multiples of 256.
  std::int64_t schedule_bytes = 0;
  std::int64_t partial_bytes = 0;

  std::int64_t bytes() const { return schedule_bytes + partial_bytes; }
};

/// Places arrays one after another, each at a multiple of 256 bytes; without a base it counts.
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

/// What holds for a call's query rows and outputs, whatever its keys are. Errors, by argument:
/// batch_invariant, as workers share what all requests bring; dtypes, alignment, bounds.
Result<void> check_gqa_rows(const AttendArgs& args);

/// Errors: what the kernels do not take, by argument: dtypes, head dims, pages, index lists,
/// alignment, bounds.
Result<void> check_gqa_call(const AttendArgs& args);

/// sms: of the device. args have passed their check.
GqaShape gqa_shape(const AttendArgs& args, int sms);

/// Bytes within which gqa_shape() stays of every call whose rows, requests and max_request_rows are
/// at most those of `most`.
std::int64_t gqa_workspace_bytes(const AttendArgs& most, int sms);

/// schedule, partials: memory of the device, as many bytes as shape says at a multiple of 256.
GqaParams gqa_params(const AttendArgs& args, const GqaShape& shape, std::byte* schedule,
                     std::byte* partials);

}  // namespace lathe::cuda
