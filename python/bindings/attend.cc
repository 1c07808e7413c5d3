// attend and attend_reference: registered kernels on the caller's arrays.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "attend_parts.h"
#include "attn/attend.h"
#include "bindings.h"
#include "errors.h"
#include "kernels/cpu/latent/latent_gather.h"
#include "kernels/devices/find_kernel.h"
#include "unlocked.h"

namespace nb = nanobind;

namespace lathe::python {
namespace {

// A kernel's output: the caller's array, or a new numpy array of T.
template <class T>
class Output {
 public:
  Output(const char* argument, nb::handle given, std::vector<std::int64_t> dims)
      : dims_(std::move(dims)) {
    if (!given.is_none()) {
      given_.emplace(argument, given, /*writable=*/true);
      if (!std::equal(dims_.begin(), dims_.end(), given_->ref().shape.begin(),
                      given_->ref().shape.end())) {
        given_->refuse(fmt::format("the shape ({})", fmt::join(dims_, ", ")), given_->describe());
      }
      view_ = mutable_rows_view(*given_);
      object_ = nb::borrow(given);
      return;
    }
    std::size_t count = 1;
    for (const std::int64_t n : dims_) count *= static_cast<std::size_t>(n);
    made_ = std::make_unique<T[]>(std::max<std::size_t>(count, 1));
    std::int64_t cols = 1;
    for (std::size_t d = 1; d < dims_.size(); ++d) cols *= dims_[d];
    view_ = {reinterpret_cast<std::byte*>(made_.get()), sizeof(T) == 8 ? DType::f64 : DType::f32,
             dims_[0], cols, cols};
  }
  const MutableRowsView& view() const { return view_; }
  /// The caller's array, or the new one.
  nb::object release() {
    if (object_) return object_;
    T* raw = made_.release();
    const nb::capsule owner(raw, [](void* p) noexcept { delete[] static_cast<T*>(p); });
    const std::vector<std::size_t> shape(dims_.begin(), dims_.end());
    return nb::cast(nb::ndarray<nb::numpy, T>(raw, shape.size(), shape.data(), owner));
  }

 private:
  std::vector<std::int64_t> dims_;
  std::optional<Array> given_;
  nb::object object_;
  std::unique_ptr<T[]> made_;
  MutableRowsView view_;
};

// A KeySource and what its spans and views point to. `fields` is the dict that lathe/_attend.py
// makes; absent things are None.
class Source {
 public:
  Source(const std::string& prefix, const nb::dict& fields)
      : layout_(nb::cast<CacheLayout>(fields["layout"])) {
    if (!fields["pool"].is_none()) {
      pool_.emplace(prefix + "pool", fields["pool"]);
      source_.pool = pool_view(*pool_, layout_, nb::cast<std::int32_t>(fields["page_size"]));
    } else {
      compact_.emplace(prefix + "compact", fields["compact"]);
      compact_->need_rank(2, "[rows, row_elems]");
      source_.compact = rows_view(*compact_);
    }
    source_.key_scale = nb::cast<float>(fields["key_scale"]);
    source_.value_scale = nb::cast<float>(fields["value_scale"]);
    if (!fields["page_table"].is_none()) {
      const Array table(prefix + "page_table", fields["page_table"]);
      for (const std::int32_t page : int32_list(table, 2, "[requests, pages]")) {
        pages_.emplace_back(page);
      }
      source_.page_table = pages_;
      source_.table_width = table.shape(1);
    }
    if (!fields["indices"].is_none()) {
      const Array indices(prefix + "indices", fields["indices"]);
      indices_ = int32_list(indices, 2, "[rows, width]");
      source_.index_width = indices.shape(1);
      if (source_.index_width == 0) {
        // A list of no entries names no keys, but for the kernels width 0 means "no list".
        source_.index_width = 1;
        indices_.assign(static_cast<std::size_t>(indices.shape(0)), -1);
      }
      source_.indices = indices_;
    }
    if (!fields["index_lengths"].is_none()) {
      lengths_ = int32_list(Array(prefix + "index_lengths", fields["index_lengths"]), 1, "[rows]");
      source_.index_lengths = lengths_;
    }
  }
  Source(const Source&) = delete;

  const KeySource& view() const { return source_; }
  const CacheLayout& layout() const { return layout_; }

 private:
  CacheLayout layout_;
  std::optional<Array> pool_;
  std::optional<Array> compact_;
  std::vector<PageId> pages_;
  std::vector<std::int32_t> indices_;
  std::vector<std::int32_t> lengths_;
  KeySource source_;
};

std::int32_t width(const Array& weights) {
  weights.need_rank(3, "[heads, width, nope]");
  return static_cast<std::int32_t>(std::min<std::int64_t>(weights.shape(1), 1 << 20));
}

// The caller's arrays for the results, or None.
struct Wanted {
  nb::handle out, lse;
};

// Runs the kernel into the caller's arrays, or arrays of T.
template <class T, class KernelFn>
nb::tuple run(const KernelFn& kernel, AttendArgs& args, std::int64_t v_dim, const Wanted& wanted) {
  const std::int64_t heads = args.problem.heads;
  Output<T> out("out", wanted.out, {args.q.rows, heads, v_dim});
  Output<T> lse("lse", wanted.lse, {args.q.rows, heads});
  args.out = out.view();
  args.lse = lse.view();
  const auto done = [&] {
    const Unlocked unlocked;
    return kernel(args);
  }();
  value_or_raise(done);
  return nb::make_tuple(out.release(), lse.release());
}

nb::tuple attend(const std::string& device, int threads, bool batch_invariant,
                 const std::string& kind, const std::string& attention, nb::handle q,
                 nb::handle q_indptr, nb::handle kv_lens, const nb::dict& main, nb::handle extra,
                 const nb::dict& options, nb::handle out, nb::handle lse) {
  const bool ragged = kind == "ragged";
  const Array q_array("q", q);
  const Source main_source("", main);
  std::optional<Source> extra_source;
  if (!extra.is_none()) extra_source.emplace("extra.", nb::cast<nb::dict>(extra));

  AttendArgs args;
  args.problem =
      problem_of(attention, q_array, main_source.layout(), extra_source.has_value(), options);
  args.q = rows_view(q_array, true);
  args.q_scale = nb::cast<float>(options["q_scale"]);
  const CallBatch batch = batch_of(args.q.rows, !main["indices"].is_none(), q_indptr, kv_lens);
  args.q_indptr = batch.q_indptr;
  args.kv_lens = batch.kv_lens;
  args.main = main_source.view();
  if (extra_source) args.extra = extra_source->view();
  std::vector<float> sink;
  if (args.problem.sink) {
    sink = float_list(Array("sink", options["sink"]), 1, "[heads]");
    args.sink = sink;
  }
  std::vector<float> w_uk;
  std::vector<float> w_uv;
  if (ragged) {
    const Array uk("w_uk", options["w_uk"]);
    const Array uv("w_uv", options["w_uv"]);
    args.problem.qk_nope_head = width(uk);
    args.problem.v_head = width(uv);
    w_uk = float_list(uk, 3, "[heads, qk_nope_head, nope]");
    w_uv = float_list(uv, 3, "[heads, v_head, nope]");
    args.expansion = {w_uk, w_uv};
  }

  const std::int64_t v_dim = ragged ? args.problem.v_head : args.problem.v_dim();
  const Wanted wanted{out, lse};
  args.lse_convention = convention_of(options);
  ThreadPool pool(threads);
  Scratch scratch;
  args.execution = {&pool, &scratch, batch_invariant};
  // The budget of a plan with a route that gathers: keys are gathered from the pools in it.
  const auto gather_elems = nb::cast<std::size_t>(options["gather_bytes"]) / 2;
  if (gather_elems > 0) {
    const auto workspace = std::make_unique_for_overwrite<std::uint16_t[]>(gather_elems);
    const auto gather = [&](const AttendArgs& all) {
      return cpu_gather_attend(all, {workspace.get(), gather_elems});
    };
    return run<float>(gather, args, v_dim, wanted);
  }
  const AttendFn kernel =
      value_or_raise(find_kernel(device, kind, args.problem.kind, args.main.pool, args.extra.pool))
          .attend;
  if (device == name(Device::ref)) return run<double>(kernel, args, v_dim, wanted);
  return run<float>(kernel, args, v_dim, wanted);
}

}  // namespace

void bind_attend(nb::module_& m) {
  m.def("attend", &attend, nb::arg("device"), nb::arg("threads"), nb::arg("batch_invariant"),
        nb::arg("kind"), nb::arg("attention"), nb::arg("q").none(), nb::arg("q_indptr").none(),
        nb::arg("kv_lens").none(), nb::arg("main"), nb::arg("extra").none(), nb::arg("options"),
        nb::arg("out").none(), nb::arg("lse").none());
}

}  // namespace lathe::python
