// Calls on torch's GPU tensors that repeat an earlier call in all but addresses. They skip all
// checks that the earlier call passed.
#include <nanobind/nanobind.h>

#include "bindings.h"
#ifdef LATHE_HAS_CUDA
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>

#include "errors.h"
#include "gpu_call.h"
#include "kernels/cuda/common/device.h"
#include "torch_tensors.h"
#endif

namespace nb = nanobind;

namespace lathe::python {

#ifdef LATHE_HAS_CUDA

namespace {

// The arrays of a call, in the order of lathe/_repeat.py.
enum ArgumentAt : std::size_t {
  kQ,
  kPool,
  kCompact,
  kPageTable,
  kIndices,
  kIndexLengths,
  kExtraPool,
  kExtraCompact,
  kExtraIndices,
  kExtraIndexLengths,
  kSink,
  kQScale,
  kKeyScale,
  kQIndptr,
  kKvLens,
  kOut,
  kLse,
  kWorkspace,
  kSlots
};

/// Types, shapes and strides of a call's arrays, which are equal if a call repeats.
class Signature {
 public:
  void add(std::int64_t number) {
    if (count_ < numbers_.size()) numbers_[count_] = number;
    ++count_;
  }
  bool complete() const { return count_ <= numbers_.size(); }
  bool operator==(const Signature& other) const {
    return count_ == other.count_ &&
           std::equal(numbers_.begin(), numbers_.begin() + count_, other.numbers_.begin());
  }

 private:
  std::array<std::int64_t, 160> numbers_{};
  std::size_t count_ = 0;
};

struct Given {
  std::array<std::uintptr_t, kSlots> at{};  // 0: none, or a number
  std::int32_t gpu = -1;
  Signature signature;
};

bool is_number(ArgumentAt slot, nb::handle object) {
  return (slot == kQScale || slot == kKeyScale) && PyFloat_CheckExact(object.ptr());
}

/// Nothing if an array is not torch's, or not on the first one's GPU.
std::optional<Given> read(const TorchTensors& tensors, const nb::tuple& arrays) {
  if (arrays.size() != kSlots) throw nb::value_error("wanted an array or None of each slot");
  Given g;
  for (std::size_t i = 0; i < kSlots; ++i) {
    const nb::handle object = arrays[i];
    if (object.is_none()) {
      g.signature.add(-1);
      continue;
    }
    if (is_number(static_cast<ArgumentAt>(i), object)) {
      std::int64_t bits = 0;
      const double number = PyFloat_AsDouble(object.ptr());
      std::memcpy(&bits, &number, sizeof bits);
      g.signature.add(-2);
      g.signature.add(bits);
      continue;
    }
    BorrowedTensor t;
    if (!tensors.read(object, t) || t.device_type != nb::device::cuda::value) return {};
    if (g.gpu == -1) g.gpu = t.device;
    if (t.device != g.gpu) return {};
    g.at[i] = t.address();
    g.signature.add(t.rank << 24 | t.lanes << 16 | t.bits << 8 | t.code);
    for (std::int32_t d = 0; d < t.rank; ++d) {
      g.signature.add(t.shape[d]);
      g.signature.add(t.strides[d]);
    }
  }
  if (!g.signature.complete()) return {};
  return g;
}

/// Calls `visit(slot, pointer)` with every address of a call; visit may replace the pointer.
template <class Visit>
void visit_addresses(GpuCall& call, Visit visit) {
  const auto span = [&](ArgumentAt slot, auto& list) {
    auto* data = list.data();
    visit(slot, data);
    list = {data, list.size()};
  };
  AttendArgs& a = call.args;
  const auto source = [&](KeySource& s, ArgumentAt pool, ArgumentAt compact, ArgumentAt indices,
                          ArgumentAt lengths) {
    if (s.pool) visit(pool, s.pool->data);
    if (!s.pool) visit(compact, s.compact.data);
    span(indices, s.indices);
    span(lengths, s.index_lengths);
  };
  visit(kQ, a.q.data);
  source(a.main, kPool, kCompact, kIndices, kIndexLengths);
  span(kPageTable, a.main.page_table);
  source(a.extra, kExtraPool, kExtraCompact, kExtraIndices, kExtraIndexLengths);
  span(kSink, a.sink);
  visit(kQScale, a.device_q_scale);
  visit(kKeyScale, a.main.device_key_scale);
  if (call.lengths == LengthsOf::arrays) {
    span(kQIndptr, a.q_indptr);
  }
  const bool made_here =
      call.lengths == LengthsOf::one_request || call.lengths == LengthsOf::listed_rows;
  if (!made_here) span(kKvLens, a.kv_lens);
  visit(kOut, a.out.data);
  visit(kLse, a.lse.data);
  if (call.workspace) span(kWorkspace, *call.workspace);
}

bool same(nb::handle a, nb::handle b) {
  if (a.is(b)) return true;
  if (!a.type().is(b.type())) return false;
  const int equal = PyObject_RichCompareBool(a.ptr(), b.ptr(), Py_EQ);
  if (equal < 0) PyErr_Clear();
  return equal == 1;
}

bool all_same(const nb::tuple& a, const nb::tuple& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!same(nb::handle(a[i]), nb::handle(b[i]))) return false;
  }
  return true;
}

/// The latest checked calls. `scratches`: GpuScratch by thread, GPU and stream.
class Repeats {
 public:
  Repeats(nb::object tensor_type, nb::object parameter_type, nb::handle exchange,
          nb::dict scratches)
      : tensors_(std::move(tensor_type), std::move(parameter_type), exchange),
        scratches_(std::move(scratches)) {}

  /// The kept call that differs from these arrays in addresses alone, if there is one. `settings`:
  /// all arguments that are no arrays. stream: None, or torch's current one.
  std::optional<GpuCall> find(const nb::tuple& arrays, const nb::tuple& settings,
                              nb::handle stream) {
    const auto given = read(tensors_, arrays);
    if (!given || given->gpu < 0) return {};
    const auto found = std::find_if(calls_.begin(), calls_.end(), [&](const Kept& kept) {
      return kept.signature == given->signature && kept.gpu == given->gpu &&
             all_same(kept.settings, settings);
    });
    if (found == calls_.end()) return {};
    if (found != calls_.begin()) std::rotate(calls_.begin(), found, found + 1);
    GpuCall call = calls_.front().call;
    call.stream = tensors_.current_stream(given->gpu);
    if (!stream.is_none() && (!PyLong_CheckExact(stream.ptr()) ||
                              PyLong_AsUnsignedLongLong(stream.ptr()) != call.stream)) {
      PyErr_Clear();
      return {};
    }
    const nb::tuple owner = nb::make_tuple(PyThread_get_thread_ident(), given->gpu, call.stream);
    call.scratch = nb::borrow(PyDict_GetItemWithError(scratches_.ptr(), owner.ptr()));
    if (!call.scratch.is_valid()) return {};
    visit_addresses(call, [&]<class T>(ArgumentAt slot, T*& address) {
      address = reinterpret_cast<T*>(given->at[slot]);
    });
    return call;
  }

  /// Keeps a call that has run, and an object of the caller's with it. Does not keep a call with a
  /// kernel that has read other memory than the arrays', such as copies of them.
  void keep(const nb::tuple& arrays, const nb::tuple& settings, const GpuCall& made,
            nb::object kept) {
    const auto given = read(tensors_, arrays);
    if (!given || given->gpu < 0 || made.lengths == LengthsOf::host) return;
    bool all = true;
    std::array<bool, kSlots> seen{};
    GpuCall call = made;
    visit_addresses(call, [&]<class T>(ArgumentAt slot, T*& address) {
      seen[slot] = true;
      const bool given_by_caller = !arrays[std::size_t{slot}].is_none();
      const bool made_here = slot == kOut || slot == kLse || slot == kWorkspace;
      all = all && (given_by_caller || !made_here
                        ? reinterpret_cast<std::uintptr_t>(address) == given->at[slot]
                        : true);
    });
    for (std::size_t i = 0; i < kSlots; ++i) all = all && (seen[i] || given->at[i] == 0);
    if (!all) return;
    call.kept = std::move(kept);
    calls_.push_front({given->signature, given->gpu, settings, std::move(call)});
    if (calls_.size() > kMost) calls_.pop_back();
  }

 private:
  static constexpr std::size_t kMost = 64;
  struct Kept {
    Signature signature;
    std::int32_t gpu;
    nb::tuple settings;
    GpuCall call;
  };
  TorchTensors tensors_;
  nb::dict scratches_;
  std::deque<Kept> calls_;  // latest first
};

/// Runs a call from find(). out, lse, workspace: addresses of arrays that the caller has allocated
/// because it was given none; 0 if it was given them.
void run_again(GpuCall& call, std::uintptr_t out, std::uintptr_t lse, std::uintptr_t workspace,
               bool scheduled) {
  auto& keeper = *nb::inst_ptr<GpuScratch>(call.scratch);
  if (out != 0) call.args.out.data = reinterpret_cast<std::byte*>(out);
  if (lse != 0) call.args.lse.data = reinterpret_cast<std::byte*>(lse);
  if (workspace != 0 && call.workspace) {
    call.workspace = {reinterpret_cast<std::byte*>(workspace), call.workspace->size()};
    call.part = scheduled ? CallPart::attention : CallPart::both;
  }
  const cuda::OnDevice on = value_or_raise(cuda::OnDevice::make(keeper.ordinal()));
  auto* const stream = reinterpret_cast<cudaStream_t>(call.stream);
  call.take_lengths(keeper, stream);
  call.run(keeper, stream);
}

}  // namespace

void bind_attend_repeat(nb::module_& m) {
  nb::class_<GpuCall>(m, "GpuCall")
      .def_ro("kept", &GpuCall::kept)
      .def("run", &run_again, nb::arg("out") = 0, nb::arg("lse") = 0, nb::arg("workspace") = 0,
           nb::arg("scheduled") = false);
  nb::class_<Repeats>(m, "Repeats")
      .def(nb::init<nb::object, nb::object, nb::handle, nb::dict>())
      .def("find", &Repeats::find, nb::arg("arrays"), nb::arg("settings"), nb::arg("stream").none())
      .def("keep", &Repeats::keep, nb::arg("arrays"), nb::arg("settings"), nb::arg("call"),
           nb::arg("kept").none());
}

#else

void bind_attend_repeat(nb::module_&) {}

#endif

}  // namespace lathe::python
