#include "kernels/cuda/sm90/latent/latent_attend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "attn/check_args.h"
#include "kernels/cuda/common/device.h"
#include "kernels/cuda/common/memory.h"
#include "kernels/cuda/sm90/latent/latent_call.h"
#include "kernels/cuda/sm90/latent/latent_params.h"
#include "kernels/cuda/sm90/step/step.h"

namespace lathe::cuda {
namespace {

Result<void> check_call(const AttendArgs& args) {
  if (auto ok = check_latent_shapes(args); !ok) return ok;
  if (auto ok = check_latent_call(args); !ok) return ok;
  const std::int64_t requests = std::ssize(args.kv_lens);
  const std::int64_t least = requests == 0 ? args.q.rows : (args.q.rows + requests - 1) / requests;
  if (args.max_request_rows < std::max<std::int64_t>(least, 1) || (requests == 0 && least > 0)) {
    return Error{ErrorCode::invalid_argument, "max_request_rows",
                 fmt::format("at least {} ({} rows over {} requests)",
                             std::max<std::int64_t>(least, 1), args.q.rows, requests),
                 fmt::format("{}", args.max_request_rows), ""};
  }
  if (args.max_kv_len < 0) {
    return Error{ErrorCode::invalid_argument, "max_kv_len", "0 or more",
                 fmt::format("{}", args.max_kv_len), ""};
  }
  return {};
}

Result<LatentShape> shape_of(const AttendArgs& args) {
  const auto sms = count_sms();
  if (!sms) return sms.error();
  LatentShape s{
      .rows = args.q.rows,
      .requests = std::ssize(args.kv_lens),
      .request_rows = std::min(args.max_request_rows, args.q.rows),
      .heads = args.problem.heads,
      .dense = args.main.index_width == 0,
      .fp8 = args.q.dtype == DType::e4m3,
      .fp8_pages = has_fp8_pages(args.main),
      .fixed_keys = args.execution.batch_invariant.value_or(false) ? kLatentFixedKeys : 0};
  s.sms = *sms;
  if (s.dense) {
    const std::int64_t page = args.main.pool ? args.main.pool->page_size : 1;
    // The most that an int32 length can hold, in pairs of tiles.
    constexpr std::int64_t kMost = INT32_MAX / (2 * kLatentTile) * (2 * kLatentTile);
    s.keys = std::min(args.main.table_width * page, kMost);
    if (args.max_kv_len > 0) s.keys = std::min(s.keys, args.max_kv_len);
  } else {
    // The extra source's keys begin at a tile.
    s.keys = (args.main.index_width + kLatentTile - 1) / kLatentTile * kLatentTile;
    s.main = listed_pool(args.main);
    if (args.problem.two_sources()) {
      s.keys += args.extra.index_width;
      s.extra = listed_pool(args.extra);
    }
    s.tokens = std::min<std::int64_t>(args.max_kv_len, INT32_MAX) * s.requests;
    if (s.extra.pages > 0) s.tokens += s.tokens / args.problem.compress_ratio;
  }
  return s;
}

Result<LatentCut> cut_call(const AttendArgs& args) {
  const auto shape = shape_of(args);
  if (!shape) return shape.error();
  return cut_latent(*shape);
}

// Places arrays one after another, each aligned to 256 bytes.
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

void lay_out_schedule(LatentSchedule& schedule, Carve& carve) {
  take_arrays(schedule, [&](auto& array, std::int64_t entries) { carve.take(array, entries); });
}

std::int64_t lay_out(LatentCall& call, std::byte* base) {
  Carve carve(base);
  lay_out_schedule(call.schedule, carve);
  carve.take(call.workspace, call.schedule.cut.workspace_bytes());
  return carve.bytes();
}

Result<void> check_scratch(const AttendArgs& args) {
  const Scratch* scratch = args.execution.scratch;
  if (scratch != nullptr && scratch->memory() == kDeviceMemory) return {};
  return Error{ErrorCode::invalid_argument, "execution.scratch", "scratch of device memory",
               scratch == nullptr ? "none" : "scratch of the host", ""};
}

// Precondition: check_scratch().
Result<std::byte*> take_scratch(const AttendArgs& args, std::int64_t bytes) {
  std::byte* base = args.execution.scratch->take(bytes);
  if (base == nullptr && bytes > 0) return no_scratch(bytes);
  return base;
}

// For a call with a schedule made by prepare_latent_on_device().
Result<LatentCall> prepared_call(const AttendArgs& args) {
  if (auto ok = check_call(args); !ok) return ok.error();
  if (auto ok = check_scratch(args); !ok) return ok.error();
  LatentCall call;
  std::memcpy(&call.schedule, args.schedule->host(), sizeof call.schedule);
  const std::int64_t bytes = call.schedule.cut.workspace_bytes();
  const auto base = take_scratch(args, bytes);
  if (!base) return base.error();
  call.workspace = {*base, static_cast<std::size_t>(bytes)};
  return call;
}

// take(bytes): returns device memory for schedule and workspace. make: false if the schedule is
// already there.
template <class Take>
Result<LatentCall> schedule_in(const AttendArgs& args, const Take& take, bool make = true) {
  LatentCall call;
  const auto cut = cut_call(args);
  if (!cut) return cut.error();
  call.schedule.cut = cut.value();
  const Result<std::byte*> base = take(lay_out(call, nullptr));
  if (!base) return base.error();
  lay_out(call, *base);
  if (!make) return call;
  const auto stream = static_cast<cudaStream_t>(args.execution.stream);
  if (auto ok = plan_latent(args, call.schedule, stream); !ok) return ok.error();
  return call;
}

}  // namespace

Result<LatentCall> schedule_latent(const AttendArgs& args) {
  if (auto ok = check_call(args); !ok) return ok.error();
  if (args.q.rows == 0) return LatentCall{};
  if (auto ok = check_scratch(args); !ok) return ok.error();
  return schedule_in(args, [&](std::int64_t bytes) { return take_scratch(args, bytes); });
}

Result<void> prepare_latent_on_device(const AttendArgs& args, Schedule& out) {
  static_assert(std::is_trivially_copyable_v<LatentSchedule>);
  LatentSchedule schedule;
  const auto cut = cut_call(args);
  if (!cut) return cut.error();
  schedule.cut = *cut;
  Carve size;
  lay_out_schedule(schedule, size);
  std::byte* base = out.take_device(size.bytes());
  if (base == nullptr) return no_scratch(size.bytes());
  Carve carve(base);
  lay_out_schedule(schedule, carve);
  std::memcpy(out.take_host(sizeof schedule), &schedule, sizeof schedule);
  return plan_latent(args, schedule, static_cast<cudaStream_t>(args.execution.stream));
}

Result<std::int64_t> latent_workspace(const AttendArgs& args) {
  const auto shape = shape_of(args);
  if (!shape) return shape.error();
  return latent_workspace_bytes(*shape);
}

Result<void> attend_latent_in(const AttendArgs& args, std::span<std::byte> workspace,
                              CallPart part) {
  if (auto ok = check_call(args); !ok) return ok;
  if (args.q.rows == 0) return {};
  const auto take = [&](std::int64_t bytes) -> Result<std::byte*> {
    if (bytes <= std::ssize(workspace)) return workspace.data();
    return Error{ErrorCode::invalid_argument, "workspace", fmt::format("{} bytes", bytes),
                 fmt::format("{}", workspace.size()), ""};
  };
  const auto call = schedule_in(args, take, part != CallPart::attention);
  if (!call) return call.error();
  if (part == CallPart::schedule) return {};
  return attend_latent(args, {}, call->schedule, call->workspace,
                       static_cast<cudaStream_t>(args.execution.stream));
}

Result<void> attend_latent_on_device(const AttendArgs& args) {
  const bool prepared = args.schedule != nullptr && args.schedule->host() != nullptr;
  const auto call = prepared ? prepared_call(args) : schedule_latent(args);
  if (!call) return call.error();
  if (args.q.rows == 0) return {};
  return attend_latent(args, {}, call->schedule, call->workspace,
                       static_cast<cudaStream_t>(args.execution.stream));
}

}  // namespace lathe::cuda
