#include "capi/attend_call.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <span>
#include <string_view>
#include <utility>

#include "capi/status.h"
#include "kernels/devices/find_kernel.h"
#ifdef LATHE_HAS_CUDA
#include "kernels/cuda/common/device.h"
#include "kernels/cuda/operators/attend_workspace.h"
#endif

namespace lathe::capi {
namespace {

// AttendArgs' fields and lathe_attend_args' names for them. The first entry that is a prefix of a
// field is replaced; the rest of the field stays.
constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kFields = {{
    {"main.table_width", "page_table"},
    {"main.index_width", "indices"},
    {"main.pool.", "pool."},
    {"main.key_scale", "pool.key_scale"},
    {"main.value_scale", "pool.value_scale"},
    {"main.", ""},
    {"extra.pool.", "extra."},
    {"extra.index_width", "extra_indices"},
    {"extra.ind", "extra_ind"},
}};

Result<std::optional<std::vector<std::int32_t>>> take_list(const lathe_tensor* list,
                                                           const char* argument, const char* axes) {
  if (list == nullptr) return std::optional<std::vector<std::int32_t>>();
  Tensor tensor;
  if (auto ok = tensor.take(list, argument); !ok) return ok.error();
  auto read = int32_list(tensor.ref(), 1, axes);
  if (!read) return read.error();
  return std::optional(*std::move(read));
}

// The shape [rows, heads] or [rows, heads, width].
Result<void> need_shape(const ArrayRef& array, std::initializer_list<std::int64_t> wanted) {
  if (std::equal(array.shape.begin(), array.shape.end(), wanted.begin(), wanted.end())) return {};
  return array.wrong(fmt::format("the shape ({})", fmt::join(wanted, ", ")), array.describe());
}

}  // namespace

Error wrong(std::string field, std::string wanted, std::string offered, std::string hint) {
  return {ErrorCode::invalid_argument, std::move(field), std::move(wanted), std::move(offered),
          std::move(hint)};
}

Error in_fields(Error error) {
  for (const auto& [member, field] : kFields) {
    if (error.field.starts_with(member)) {
      error.field = std::string(field) + error.field.substr(member.size());
    }
  }
  for (const std::string_view prefix : {"problem.", "--"}) {
    if (error.field.starts_with(prefix)) error.field.erase(0, prefix.size());
  }
  return error;
}

Result<void> Lists::take(const lathe_tensor* list, const lathe_tensor* list_lengths,
                         const std::string& prefix, Place place, KeySource& source) {
  Tensor tensor, counts;
  if (auto ok = tensor.take(list, prefix + "indices", place); !ok) return ok;
  if (list_lengths != nullptr) {
    if (auto ok = counts.take(list_lengths, prefix + "index_lengths", place); !ok) return ok;
  }
  if (place.on_gpu()) {
    const auto entries = int32_span(tensor.ref(), 2, "[rows, width]");
    if (!entries) return entries.error();
    source.indices = *entries;
    source.index_width = tensor.ref().shape[1];
    if (source.index_width == 0) {
      return tensor.ref().wrong("1 entry of a row or more, -1 where it has no key", "none");
    }
    if (list_lengths == nullptr) return {};
    const auto read = int32_span(counts.ref(), 1, "[rows]");
    if (!read) return read.error();
    source.index_lengths = *read;
  } else {
    auto read = int32_list(tensor.ref(), 2, "[rows, width]");
    if (!read) return read.error();
    indices = *std::move(read);
    source.index_width = tensor.ref().shape[1];
    if (source.index_width == 0) {
      // A list without entries selects no keys, but width 0 means "no list" to the kernels.
      source.index_width = 1;
      indices.assign(static_cast<std::size_t>(tensor.ref().shape[0]), -1);
    }
    source.indices = indices;
    if (list_lengths == nullptr) return {};
    auto read_lengths = int32_list(counts.ref(), 1, "[rows]");
    if (!read_lengths) return read_lengths.error();
    lengths = *std::move(read_lengths);
    source.index_lengths = lengths;
  }
  if (source.index_lengths.empty() && !source.indices.empty()) {
    return counts.ref().wrong("an entry of each row", "none");
  }
  return {};
}

Result<void> Call::take(const lathe_attend_args* given, bool shapes_only) {
  const auto read = read_struct(given, "args");
  if (!read) return read.error();
  fields_ = *read;
  place_ = place_of(fields_.q);
  shapes_only_ = shapes_only;
  place_.shapes_only = shapes_only && place_.on_gpu();
  constexpr std::uint32_t kFlags =
      LATHE_LSE_BASE_2 | LATHE_EMPTY_LSE_PLUS_INF | LATHE_SPLIT_BY_BATCH;
  if ((fields_.flags & ~kFlags) != 0) {
    return wrong("flags", fmt::format("bits of {:#x}", kFlags),
                 fmt::format("{:#x}", fields_.flags));
  }
  if (fields_.threads < 0 || fields_.threads > kMostThreads) {
    return Error{ErrorCode::out_of_range, "threads", fmt::format("0 to {}", kMostThreads),
                 fmt::format("{}", fields_.threads), ""};
  }
  const auto take_lengths = place_.on_gpu() ? &Call::take_batch_of_gpu : &Call::take_batch;
  for (const auto step :
       {&Call::take_keys, &Call::take_problem, take_lengths, &Call::take_outputs}) {
    if (const auto ok = (this->*step)(); !ok) return in_fields(ok.error());
  }
  return {};
}

Result<void> Call::take_keys() {
  if (auto ok = pool_.take(fields_.pool, "pool", place_); !ok) return ok;
  args_.main.pool = *pool_.view;
  args_.main.key_scale = pool_.scales.key;
  args_.main.value_scale = pool_.scales.value;
  if ((fields_.page_table == nullptr) == (fields_.indices == nullptr)) {
    return wrong("page_table", "a page_table or indices",
                 fields_.indices == nullptr ? "neither" : "both");
  }
  if (fields_.page_table != nullptr) {
    Tensor table;
    if (auto ok = table.take(fields_.page_table, "page_table", place_); !ok) return ok;
    constexpr const char* kAxes = "[requests, pages]";
    if (place_.on_gpu()) {
      const auto pages = int32_span(table.ref(), 2, kAxes);
      if (!pages) return pages.error();
      args_.main.page_table = {reinterpret_cast<const PageId*>(pages->data()), pages->size()};
    } else {
      const auto pages = int32_list(table.ref(), 2, kAxes);
      if (!pages) return pages.error();
      for (const std::int32_t page : *pages) pages_.emplace_back(page);
      args_.main.page_table = pages_;
    }
    args_.main.table_width = table.ref().shape[1];
  } else if (auto ok = lists_.take(fields_.indices, fields_.index_lengths, "", place_, args_.main);
             !ok) {
    return ok;
  }
  if (fields_.extra == nullptr) return {};
  if (auto ok = extra_.take(fields_.extra, "extra", place_); !ok) return ok;
  args_.extra.pool = *extra_.view;
  args_.extra.key_scale = extra_.scales.key;
  args_.extra.value_scale = extra_.scales.value;
  return extra_lists_.take(fields_.extra_indices, fields_.extra_index_lengths, "extra_", place_,
                           args_.extra);
}

Result<void> Call::take_scale(const lathe_tensor* given, const char* field, float& scale,
                              const float*& on_device) {
  if (given == nullptr) return {};
  Tensor tensor;
  if (auto ok = tensor.take(given, field, place_); !ok) return ok;
  if (tensor.ref().shape.size() != 1 || tensor.ref().shape[0] != 1) {
    return tensor.ref().wrong("shape [1]", tensor.ref().describe());
  }
  if (place_.on_gpu()) {
    const auto one = float_span(tensor.ref(), 1, "[1]");
    if (!one) return one.error();
    on_device = one->data();
    return {};
  }
  const auto one = float_list(tensor.ref(), 1, "[1]");
  if (!one) return one.error();
  scale *= one->front();
  return {};
}

Result<void> Call::take_problem() {
  if (auto ok = q_.take(fields_.q, "q", place_); !ok) return ok;
  if (auto ok = q_.ref().need_rank(3, "[rows, heads, dim]"); !ok) return ok;
  const auto view = rows_view(q_.ref(), /*codes=*/true);
  if (!view) return view.error();
  args_.q = *view;
  if (fields_.q_scale != 0) args_.q_scale = fields_.q_scale;
  if (auto ok =
          take_scale(fields_.q_scale_tensor, "q_scale_tensor", args_.q_scale, args_.device_q_scale);
      !ok) {
    return ok;
  }
  if (auto ok = take_scale(fields_.key_scale_tensor, "key_scale_tensor", args_.main.key_scale,
                           args_.main.device_key_scale);
      !ok) {
    return ok;
  }
  const std::int64_t heads = q_.ref().shape[1];
  if (heads < 1 || heads > (1 << 20)) {
    return q_.ref().wrong("at least 1 head, shape [rows, heads, dim]", q_.ref().describe());
  }
  const std::string_view attention = fields_.attention == nullptr ? "dsa" : fields_.attention;
  auto problem = problem_of_call(attention, args_.main.pool->layout,
                                 static_cast<std::int32_t>(heads), fields_.extra != nullptr);
  if (!problem) return problem.error();
  args_.problem = *problem;
  if (fields_.scale != 0) args_.problem.scale = fields_.scale;
  if (fields_.window != 0) args_.problem.window = fields_.window;
  args_.problem.sink = fields_.sink != nullptr;
  if (fields_.sink != nullptr) {
    Tensor sink;
    if (auto ok = sink.take(fields_.sink, "sink", place_); !ok) return ok;
    if (place_.on_gpu()) {
      const auto logits = float_span(sink.ref(), 1, "[heads]");
      if (!logits) return logits.error();
      args_.sink = *logits;
    } else {
      auto read = float_list(sink.ref(), 1, "[heads]");
      if (!read) return read.error();
      sink_ = *std::move(read);
      args_.sink = sink_;
    }
  }

  const std::string_view kind = fields_.kind == nullptr ? "inplace" : fields_.kind;
  const std::string_view by_default = place_.on_gpu() ? "sm90" : "cpu";
  const std::string_view device = fields_.device == nullptr ? by_default : fields_.device;
  if (kind != "inplace" && kind != "native") {
    return wrong("kind", "inplace or native", fmt::format("\"{}\"", kind));
  }
  if (place_.on_gpu() ? device != "sm90" : device != "cpu" && device != "ref") {
    return Error{
        ErrorCode::unsupported, "device",
        place_.on_gpu() ? "sm90 for tensors of a GPU" : "cpu or ref for tensors in host memory",
        fmt::format("\"{}\"", device), "it follows from where q lies"};
  }
  auto kernel = find_kernel(device, kind, args_.problem.kind, args_.main.pool, args_.extra.pool);
  if (!kernel) return kernel.error();
  kernel_ = *std::move(kernel);
  return {};
}

Result<void> Call::take_batch() {
  auto indptr = take_list(fields_.q_indptr, "q_indptr", "[requests + 1]");
  if (!indptr) return indptr.error();
  auto lens = take_list(fields_.kv_lens, "kv_lens", "[requests]");
  if (!lens) return lens.error();
  auto batch =
      CallBatch::of(args_.q.rows, fields_.indices != nullptr, *std::move(indptr), *std::move(lens));
  if (!batch) return batch.error();
  batch_ = *std::move(batch);
  args_.q_indptr = batch_.q_indptr;
  args_.kv_lens = batch_.kv_lens;
  return {};
}

Result<void> Call::take_batch_of_gpu() {
  const auto list = [&](const lathe_tensor* given, const char* argument,
                        const char* axes) -> Result<std::span<const std::int32_t>> {
    Tensor tensor;
    if (auto ok = tensor.take(given, argument, place_); !ok) return ok.error();
    return int32_span(tensor.ref(), 1, axes);
  };
  const auto lens = list(fields_.kv_lens, "kv_lens", "[requests]");
  if (!lens) return lens.error();
  args_.kv_lens = *lens;
  if (!place_.shapes_only) {
    const auto indptr = list(fields_.q_indptr, "q_indptr", "[requests + 1]");
    if (!indptr) return indptr.error();
    args_.q_indptr = *indptr;
  }
  for (const auto& [bound, argument] : {std::pair{fields_.max_request_rows, "max_request_rows"},
                                        std::pair{fields_.max_kv_len, "max_kv_len"}}) {
    if (bound < 0) return wrong(argument, "0 or more", fmt::format("{}", bound));
  }
  if (fields_.max_request_rows > 0) args_.max_request_rows = fields_.max_request_rows;
  args_.max_kv_len = fields_.max_kv_len;
  return {};
}

Result<void> Call::take_outputs() {
  if (shapes_only_) return {};
  const std::int64_t rows = args_.q.rows;
  const std::int64_t heads = args_.problem.heads;
  if (auto ok = out_.take(fields_.out, "out", place_); !ok) return ok;
  if (auto ok = need_shape(out_.ref(), {rows, heads, args_.problem.v_dim()}); !ok) return ok;
  const auto out = mutable_rows_view(out_.ref());
  if (!out) return out.error();
  args_.out = *out;
  if (fields_.lse == nullptr) return {};
  if (auto ok = lse_.take(fields_.lse, "lse", place_); !ok) return ok;
  if (auto ok = need_shape(lse_.ref(), {rows, heads}); !ok) return ok;
  const auto lse = mutable_rows_view(lse_.ref());
  if (!lse) return lse.error();
  args_.lse = *lse;
  args_.lse_convention = {.base_2 = (fields_.flags & LATHE_LSE_BASE_2) != 0,
                          .empty_plus_inf = (fields_.flags & LATHE_EMPTY_LSE_PLUS_INF) != 0};
  return {};
}

const void* Call::workspace() const {
  const lathe_tensor* given = fields_.workspace;
  if (given == nullptr || given->data == nullptr) return nullptr;
  return static_cast<const std::byte*>(given->data) + given->byte_offset;
}

Result<void> Call::run(CallPart part) {
  const auto done = place_.on_gpu() ? run_on_gpu(part) : kernel_->attend(args_);
  return done ? done : in_fields(done.error());
}

#ifdef LATHE_HAS_CUDA

Result<std::int64_t> Call::workspace_bytes() const {
  if (!place_.on_gpu()) return 0;
  const auto on = cuda::OnDevice::make(place_.gpu);
  if (!on) return on.error();
  return cuda::attend_workspace(args_);
}

Result<void> Call::run_on_gpu(CallPart part) {
  const auto on = cuda::OnDevice::make(place_.gpu);
  if (!on) return on.error();
  Tensor workspace;
  std::span<std::byte> room;
  if (args_.q.rows > 0) {
    if (auto ok = workspace.take(fields_.workspace, "workspace", place_); !ok) return ok;
    const auto bytes = byte_span(workspace.ref());
    if (!bytes) return bytes.error();
    room = *bytes;
  }
  args_.execution = {};
  args_.execution.stream = fields_.stream;
  return cuda::attend_in_workspace(args_, room, part);
}

#else

// Without CUDA there is no kernel that needs a workspace.
Result<std::int64_t> Call::workspace_bytes() const { return 0; }
Result<void> Call::run_on_gpu(CallPart) { return {}; }

#endif

}  // namespace lathe::capi
