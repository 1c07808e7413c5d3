// attend on arrays of a GPU: launches the kernel on the caller's stream and does not wait.
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "attend_parts.h"
#include "bindings.h"
#include "errors.h"
#include "gpu_call.h"
#ifdef LATHE_HAS_CUDA
#include "attn/check_args.h"
#include "kernels/cuda/common/device.h"
#include "kernels/cuda/common/memory.h"
#include "kernels/devices/find_kernel.h"
#endif

namespace nb = nanobind;

namespace lathe::python {

#ifdef LATHE_HAS_CUDA

namespace {

/// Arrays of the call, kept until it is on the stream.
class Arrays {
 public:
  explicit Arrays(int gpu) : gpu_(gpu) {}
  const Array& on_gpu(std::string argument, nb::handle object, bool writable = false) {
    return kept_.emplace_back(std::move(argument), object, writable, gpu_);
  }

 private:
  int gpu_;
  std::list<Array> kept_;
};

KeySource source_of(GpuScratch& keeper, cudaStream_t stream, Arrays& arrays,
                    const std::string& prefix, const nb::dict& fields) {
  KeySource s;
  if (!fields["pool"].is_none()) {
    s.pool = pool_view(arrays.on_gpu(prefix + "pool", fields["pool"]),
                       nb::cast<CacheLayout>(fields["layout"]),
                       nb::cast<std::int32_t>(fields["page_size"]));
  } else {
    const Array& rows = arrays.on_gpu(prefix + "compact", fields["compact"]);
    rows.need_rank(2, "[rows, row_elems]");
    s.compact = rows_view(rows);
  }
  s.key_scale = nb::cast<float>(fields["key_scale"]);
  s.value_scale = nb::cast<float>(fields["value_scale"]);
  if (!fields["page_table"].is_none()) {
    const Array& table = arrays.on_gpu(prefix + "page_table", fields["page_table"]);
    const auto pages = int32_span(table, 2, "[requests, pages]");
    s.page_table = {reinterpret_cast<const PageId*>(pages.data()), pages.size()};
    s.table_width = table.shape(1);
  }
  if (!fields["indices"].is_none()) {
    const Array& indices = arrays.on_gpu(prefix + "indices", fields["indices"]);
    s.indices = int32_span(indices, 2, "[rows, width]");
    s.index_width = indices.shape(1);
    if (s.index_width == 0) {
      // A list of no entries names no keys, but for the kernels width 0 means "no list".
      s.index_width = 1;
      s.indices = keeper.holes().take(indices.shape(0), stream);
    }
  }
  if (!fields["index_lengths"].is_none()) {
    const Array& lengths = arrays.on_gpu(prefix + "index_lengths", fields["index_lengths"]);
    s.index_lengths = int32_span(lengths, 1, "[rows]");
    if (s.index_lengths.empty() && !s.indices.empty()) {
      lengths.refuse("an entry of each row", "none");
    }
  }
  return s;
}

/// A kernel's output: the caller's array, or memory of the device that Python gets as an object
/// with DLPack. `object` is what the caller receives.
struct DeviceOutput {
  nb::object object;
  MutableRowsView view;

  DeviceOutput(Arrays& arrays, int gpu, bool captured, const char* argument, nb::handle given,
               const std::vector<std::int64_t>& shape, DType dtype) {
    if (!given.is_none()) {
      const Array& array = arrays.on_gpu(argument, given, true);
      bool same = array.ndim() == shape.size();
      for (std::size_t d = 0; same && d < shape.size(); ++d) same = array.shape(d) == shape[d];
      if (!same) {
        array.refuse(fmt::format("the shape ({})", fmt::join(shape, ", ")), array.describe());
      }
      object = nb::borrow(given);
      view = mutable_rows_view(array);
      return;
    }
    if (captured) {
      raise({ErrorCode::invalid_argument, argument,
             "an array to write to while a graph is captured", "None",
             "one that is allocated can't be part of a graph"});
    }
    std::int64_t cols = 1;
    for (std::size_t d = 1; d < shape.size(); ++d) cols *= shape[d];
    const std::int64_t bytes = bytes_of(dtype, shape[0] * cols);
    std::byte* made =
        value_or_raise(cuda::allocate_device_bytes(std::max<std::int64_t>(bytes, 1))).release();
    const nb::capsule owner(
        made, [](void* p) noexcept { cuda::free_device_bytes(static_cast<std::byte*>(p)); });
    const std::vector<std::size_t> dims(shape.begin(), shape.end());
    const auto code =
        dtype == DType::bf16 ? nb::dlpack::dtype_code::Bfloat : nb::dlpack::dtype_code::Float;
    const nb::dlpack::dtype type{static_cast<std::uint8_t>(code),
                                 static_cast<std::uint8_t>(bits_of(dtype)), 1};
    object = nb::cast(nb::ndarray<nb::array_api>(made, dims.size(), dims.data(), owner, nullptr,
                                                 type, nb::device::cuda::value, gpu));
    view = {made, dtype, shape[0], cols, cols};
  }
};

bool is_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  value_or_raise(
      cuda::call_result(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing"));
  return status != cudaStreamCaptureStatusNone;
}

/// Checks lengths in host memory like the CPU's, bounds the batch by them, and copies them to the
/// device in one copy. Errors: check_latent_args()'s or check_gqa_args()'s; a stream that is being
/// captured, because a graph would read this memory again at each replay.
void take_host_lengths(GpuScratch& keeper, cudaStream_t stream, bool by_list, nb::handle q_indptr,
                       nb::handle kv_lens, AttendArgs& args) {
  if (is_captured(stream)) {
    raise({ErrorCode::invalid_argument, "kv_lens", "an array on the GPU while a graph is captured",
           kv_lens.is_none() ? "None" : "one in host memory",
           "so must q_indptr be, as replays read both again"});
  }
  const CallBatch batch = batch_of(args.q.rows, by_list, q_indptr, kv_lens);
  AttendArgs host = args;
  host.q_indptr = batch.q_indptr;
  host.kv_lens = batch.kv_lens;
  host.main.index_lengths = host.extra.index_lengths = {};
  const std::int64_t width = std::int64_t{args.problem.heads} * args.problem.v_dim();
  host.out = {const_cast<std::byte*>(host.q.data), DType::bf16, args.q.rows, width, width};
  value_or_raise(args.problem.kind == ProblemKind::grouped_query ? check_gqa_args(host)
                                                                 : check_latent_args(host));

  args.max_request_rows = 1;
  args.max_kv_len = 1;
  const std::size_t requests = batch.kv_lens.size();
  for (std::size_t r = 0; r < requests; ++r) {
    args.max_request_rows =
        std::max<std::int64_t>(args.max_request_rows, batch.q_indptr[r + 1] - batch.q_indptr[r]);
    args.max_kv_len = std::max<std::int64_t>(args.max_kv_len, batch.kv_lens[r]);
  }
  std::vector<std::int32_t> column = batch.q_indptr;
  column.insert(column.end(), batch.kv_lens.begin(), batch.kv_lens.end());
  const auto bytes = static_cast<std::int64_t>(column.size() * sizeof(std::int32_t));
  std::byte* room = keeper.scratch().outer().take(bytes);
  if (room == nullptr) raise(cuda::no_scratch(bytes));
  auto* lists = reinterpret_cast<std::int32_t*>(room);
  value_or_raise(cuda::copy_to_device(std::span<const std::int32_t>(column), lists, stream));
  args.q_indptr = {lists, requests + 1};
  args.kv_lens = {lists + requests + 1, requests};
}

CallPart part_of(const std::string& name) {
  return name == "schedule"    ? CallPart::schedule
         : name == "attention" ? CallPart::attention
                               : CallPart::both;
}

nb::tuple attend_on_gpu(GpuScratch& keeper, std::uintptr_t stream_handle, const std::string& kind,
                        const std::string& attention, nb::handle q, nb::handle q_indptr,
                        nb::handle kv_lens, bool lens_on_gpu, const nb::dict& main,
                        nb::handle extra, const nb::dict& options, nb::handle out, nb::handle lse,
                        nb::handle workspace) {
  const int gpu = keeper.ordinal();
  const cuda::OnDevice on = value_or_raise(cuda::OnDevice::make(gpu));
  auto* const stream = reinterpret_cast<cudaStream_t>(stream_handle);
  Arrays arrays(gpu);
  const Array& q_array = arrays.on_gpu("q", q);
  GpuCall call;
  AttendArgs& args = call.args;
  args.problem = problem_of(attention, q_array, nb::cast<CacheLayout>(main["layout"]),
                            !extra.is_none(), options);
  args.q = rows_view(q_array, true);
  args.q_scale = nb::cast<float>(options["q_scale"]);
  args.main = source_of(keeper, stream, arrays, "", main);
  if (!extra.is_none()) {
    args.extra = source_of(keeper, stream, arrays, "extra.", nb::cast<nb::dict>(extra));
  }
  if (args.problem.sink) {
    args.sink = float_span(arrays.on_gpu("sink", options["sink"]), 1, "[heads]");
  }

  const auto scale_on_gpu = [&](const char* argument, const char* option) -> const float* {
    const nb::handle given = options[option];
    if (given.is_none()) return nullptr;
    return float_span(arrays.on_gpu(argument, given), 1, "[1]").data();
  };
  args.device_q_scale = scale_on_gpu("q_scale", "device_q_scale");
  args.main.device_key_scale = scale_on_gpu("key_scale", "device_key_scale");

  const Kernel kernel =
      value_or_raise(find_kernel("sm90", kind, args.problem.kind, args.main.pool));
  if (kernel.capability.kind == KernelKind::ragged) {
    raise({ErrorCode::unsupported, "kind", "a plan's route, or arrays in host memory", kind,
           "on a GPU it reads a checkpoint's kv_b_proj, which this call has no argument for"});
  }
  // The kind alone chooses the arithmetic; q's type must match it.
  const DType wanted =
      args.main.pool ? kernel.capability.q_dtype(args.main.pool->layout) : kernel.capability.wide_q;
  if (args.q.dtype != wanted) {
    raise({ErrorCode::unsupported, "q.dtype",
           fmt::format("{} for {}", name(wanted), kernel.capability.name),
           std::string(name(args.q.dtype)), ""});
  }

  const auto most_rows = nb::cast<std::int64_t>(options["max_request_rows"]);  // 0: not given
  args.max_request_rows = std::max<std::int64_t>(most_rows, 1);
  args.max_kv_len = nb::cast<std::int64_t>(options["max_kv_len"]);
  const bool by_list = !main["indices"].is_none();
  if (lens_on_gpu) {
    args.kv_lens = int32_span(arrays.on_gpu("kv_lens", kv_lens), 1, "[requests]");
    if (q_indptr.is_none()) {
      value_or_raise(check_a_row_each(std::ssize(args.kv_lens), args.q.rows));
      call.lengths = LengthsOf::a_row_each;
    } else {
      args.q_indptr = int32_span(arrays.on_gpu("q_indptr", q_indptr), 1, "[requests + 1]");
    }
  } else if (by_list && q_indptr.is_none() && kv_lens.is_none()) {
    call.lengths = most_rows > 0 ? LengthsOf::listed_rows : LengthsOf::one_request;
    if (most_rows == 0) args.max_request_rows = std::max<std::int64_t>(args.q.rows, 1);
  } else {
    call.lengths = LengthsOf::host;
    take_host_lengths(keeper, stream, by_list, q_indptr, kv_lens, args);
  }
  call.take_lengths(keeper, stream);

  const std::int64_t heads = args.problem.heads;
  const bool captured = (out.is_none() || lse.is_none()) && is_captured(stream);
  const DeviceOutput out_made(arrays, gpu, captured, "out", out,
                              {args.q.rows, heads, args.problem.v_dim()}, DType::bf16);
  const DeviceOutput lse_made(arrays, gpu, captured, "lse", lse, {args.q.rows, heads}, DType::f32);
  args.out = out_made.view;
  args.lse = lse_made.view;
  args.lse_convention = convention_of(options);
  call.attend = kernel.attend;
  call.part = part_of(nb::cast<std::string>(options["part"]));
  if (!workspace.is_none()) {
    call.workspace = value_or_raise(byte_span(arrays.on_gpu("workspace", workspace, true).ref()));
  }
  call.run(keeper, stream);
  return nb::make_tuple(out_made.object, lse_made.object, std::move(call));
}

}  // namespace

void bind_attend_cuda(nb::module_& m) {
  m.attr("has_cuda") = true;
  nb::class_<GpuScratch>(m, "GpuScratch").def(nb::init<int>());
  m.def("attend_on_gpu", &attend_on_gpu, nb::arg("scratch"), nb::arg("stream"), nb::arg("kind"),
        nb::arg("attention"), nb::arg("q"), nb::arg("q_indptr").none(), nb::arg("kv_lens").none(),
        nb::arg("lens_on_gpu"), nb::arg("main"), nb::arg("extra").none(), nb::arg("options"),
        nb::arg("out").none(), nb::arg("lse").none(), nb::arg("workspace").none());
}

#else

void bind_attend_cuda(nb::module_& m) { m.attr("has_cuda") = false; }

#endif

}  // namespace lathe::python
