#include "kernels/cuda/sm90/gqa/gqa_shared.h"

#include <fmt/format.h>

#include "kernels/cuda/sm90/gqa/gqa_limits.h"

namespace lathe::cuda {
namespace {

PrefixLists<const std::int32_t> lists_of(const AttendArgs& args) {
  return {args.prefixes.lists.data(), std::ssize(args.kv_lens), args.q.rows};
}

// The call over shared keys, except for its memory.
AttendArgs group_args(const AttendArgs& args) {
  const auto lists = lists_of(args);
  const std::int64_t group = gqa_form(args.problem).group;
  const bool few = args.prefixes.size == PrefixSize::few;
  AttendArgs a = args;
  a.prefixes = {};
  a.problem.window = 0;
  a.problem.chunked = false;
  a.q.rows = kPrefixLevels * args.q.rows;
  a.q_indptr = {lists.indptr, static_cast<std::size_t>(kPrefixGroups + 1)};
  a.kv_lens = {lists.ends, static_cast<std::size_t>(kPrefixGroups)};
  // Only chooses the M rows of a block.
  a.max_request_rows =
      few ? std::max<std::int64_t>(kFewPrefixRows / group, 1) : kFewPrefixRows / group + 1;
  return a;
}

void place_parts(Placement& places, const AttendArgs& args, std::int64_t rows, GqaParams& p) {
  const GqaForm form = gqa_form(args.problem);
  const std::int64_t heads = std::int64_t{form.kv_heads} * form.group;
  float* out = nullptr;
  places.take(p.lse, rows * heads);
  places.take(out, rows * heads * form.value_dim);
  p.out = out;
  p.out_f32 = true;
  p.out_stride = heads * form.value_dim;
  p.lse_stride = heads;
  p.lse_form = lse_form({.base_2 = true});
  p.sink = nullptr;
}

}  // namespace

Result<void> check_gqa_prefixes(const AttendArgs& args) {
  if (args.prefixes.empty()) return {};
  if (args.execution.batch_invariant.value_or(false)) {
    return Error{ErrorCode::invalid_argument, "prefixes", "none with execution.batch_invariant",
                 "some", "rows that share keys depend on each other"};
  }
  const std::int64_t wanted =
      PrefixLists<const std::int32_t>::size(std::ssize(args.kv_lens), args.q.rows);
  if (std::ssize(args.prefixes.lists) == wanted) return {};
  return Error{ErrorCode::invalid_argument, "prefixes", fmt::format("lists of {} integers", wanted),
               fmt::format("{}", args.prefixes.lists.size()), ""};
}

GqaSharedShape gqa_shared_shape(const AttendArgs& args, int sms) {
  const AttendArgs groups = group_args(args);
  GqaSharedShape s;
  s.groups = gqa_shape(groups, sms);
  s.requests = gqa_shape(args, sms);
  s.schedule_bytes = s.groups.schedule_bytes + s.requests.schedule_bytes;
  s.partial_bytes = s.groups.partial_bytes + s.requests.partial_bytes;
  GqaParams unused;
  Placement parts(nullptr);
  place_parts(parts, groups, groups.q.rows, unused);
  place_parts(parts, args, args.q.rows, unused);
  s.part_bytes = parts.bytes();
  return s;
}

GqaJoin gqa_shared_params(const AttendArgs& args, const GqaSharedShape& shape, std::byte* schedule,
                          std::byte* rest) {
  const auto lists = lists_of(args);
  const AttendArgs groups = group_args(args);
  const auto after = [](std::byte* at, std::int64_t bytes) {
    return at == nullptr ? at : at + bytes;
  };
  GqaJoin join;
  join.groups = gqa_params(groups, shape.groups, schedule, rest);
  join.requests = gqa_params(args, shape.requests, after(schedule, shape.groups.schedule_bytes),
                             after(rest, shape.groups.partial_bytes));
  GqaParams& g = join.groups;
  g.begins = lists.begins;
  g.tables = lists.tables;
  g.slot_rows = lists.slot_rows;
  g.once = false;
  join.requests.begins = lists.own_begins;
  join.row_requests = lists.row_requests;
  join.parts = lists.parts;
  join.levels = static_cast<std::int32_t>(kPrefixLevels);
  join.rows = static_cast<std::int32_t>(args.q.rows);
  join.value_dim = gqa_form(args.problem).value_dim;
  const GqaParams& p = join.requests;
  join.sink = p.sink;
  join.out = p.out;
  join.out_f32 = p.out_f32;
  join.out_stride = p.out_stride;
  join.lse = p.lse;
  join.lse_stride = p.lse_stride;
  join.lse_form = p.lse_form;
  Placement parts(after(rest, shape.partial_bytes));
  place_parts(parts, groups, groups.q.rows, join.groups);
  place_parts(parts, args, args.q.rows, join.requests);
  return join;
}

}  // namespace lathe::cuda
