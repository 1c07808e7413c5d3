// The bytes that attend's calls on a GPU need, by the maxima of their shapes.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "attn/call_args.h"
#include "bindings.h"
#include "errors.h"
#ifdef LATHE_HAS_CUDA
#include "kernels/cuda/common/device.h"
#include "kernels/cuda/operators/attend_workspace.h"
#include "kernels/devices/find_kernel.h"
#endif

namespace nb = nanobind;

namespace lathe::python {

#ifdef LATHE_HAS_CUDA

namespace {

// The shapes of a source without memory.
KeySource source_of(const nb::dict& fields, std::int64_t rows, std::int64_t requests,
                    std::int64_t max_kv_len) {
  KeySource s;
  const auto page_size = nb::cast<std::int32_t>(fields["page_size"]);
  const auto pages = nb::cast<std::int64_t>(fields["pages"]);
  if (nb::cast<bool>(fields["compact"])) {
    s.compact = {nullptr, DType::bf16, pages * page_size, 1, 1};
  } else {
    s.pool.emplace(nullptr, nb::cast<CacheLayout>(fields["layout"]), page_size, pages);
  }
  s.index_width = nb::cast<std::int64_t>(fields["index_width"]);
  if (s.index_width > 0) {
    s.indices = {static_cast<const std::int32_t*>(nullptr),
                 static_cast<std::size_t>(rows * s.index_width)};
  } else {
    s.table_width = (max_kv_len + page_size - 1) / page_size;
    s.page_table = {static_cast<const PageId*>(nullptr),
                    static_cast<std::size_t>(requests * s.table_width)};
  }
  return s;
}

std::int64_t attend_workspace(int gpu, const std::string& kind, const std::string& attention,
                              std::int64_t rows, std::int32_t heads, std::int64_t requests,
                              std::int64_t max_request_rows, std::int64_t max_kv_len,
                              const nb::dict& main, nb::handle extra) {
  const cuda::OnDevice on = value_or_raise(cuda::OnDevice::make(gpu));
  AttendArgs args;
  args.problem = value_or_raise(
      problem_of_call(attention, nb::cast<CacheLayout>(main["layout"]), heads, !extra.is_none()));
  args.main = source_of(main, rows, requests, max_kv_len);
  if (!extra.is_none()) {
    args.extra = source_of(nb::cast<nb::dict>(extra), rows, requests, max_kv_len);
  }
  const Kernel kernel =
      value_or_raise(find_kernel("sm90", kind, args.problem.kind, args.main.pool));
  if (kernel.capability.kind == KernelKind::ragged) {
    raise({ErrorCode::unsupported, "kind", "inplace, native or gather", kind, ""});
  }
  args.q.rows = rows;
  args.q.dtype =
      args.main.pool ? kernel.capability.q_dtype(args.main.pool->layout) : kernel.capability.wide_q;
  args.kv_lens = {static_cast<const std::int32_t*>(nullptr), static_cast<std::size_t>(requests)};
  args.max_request_rows = max_request_rows;
  args.max_kv_len = max_kv_len;
  return value_or_raise(cuda::attend_workspace(args));
}

}  // namespace

void bind_attend_workspace(nb::module_& m) {
  m.def("attend_workspace", &attend_workspace, nb::arg("gpu"), nb::arg("kind"),
        nb::arg("attention"), nb::arg("rows"), nb::arg("heads"), nb::arg("requests"),
        nb::arg("max_request_rows"), nb::arg("max_kv_len"), nb::arg("main"),
        nb::arg("extra").none());
}

#else

void bind_attend_workspace(nb::module_&) {}

#endif

}  // namespace lathe::python
