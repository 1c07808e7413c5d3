#include "torch_tensors.h"

#include <nanobind/ndarray.h>

#include <utility>

namespace nb = nanobind;

namespace lathe::python {
namespace {

// The beginning of DLPack's DLPackExchangeAPI, which is the same in all versions of a major one.
struct Exchange {
  std::uint32_t major, minor;
  void* older;
  void *allocate, *export_tensor, *import_tensor;
  int (*borrow)(void*, BorrowedTensor*);
  int (*current_stream)(std::int32_t, std::int32_t, void**);
};
constexpr std::uint32_t kMajor = 1;

}  // namespace

TorchTensors::TorchTensors(nb::object tensor_type, nb::object parameter_type, nb::handle exchange)
    : tensor_type_(std::move(tensor_type)),
      parameter_type_(std::move(parameter_type)),
      requires_grad_(nb::steal(PyUnicode_InternFromString("requires_grad"))) {
  const auto* found =
      static_cast<const Exchange*>(PyCapsule_GetPointer(exchange.ptr(), "dlpack_exchange_api"));
  if (found == nullptr) throw nb::python_error();
  if (found->major != kMajor || found->borrow == nullptr || found->current_stream == nullptr) {
    throw nb::value_error("wanted DLPack's exchange interface of version 1");
  }
  read_ = found->borrow;
  stream_ = found->current_stream;
}

bool TorchTensors::read(nb::handle object, BorrowedTensor& tensor) const {
  const nb::handle type = object.type();
  if (!type.is(tensor_type_) && !type.is(parameter_type_)) return false;
  if (read_(object.ptr(), &tensor) != 0) {
    PyErr_Clear();
    return false;
  }
  const auto code = static_cast<nb::dlpack::dtype_code>(tensor.code);
  if (code == nb::dlpack::dtype_code::Int || code == nb::dlpack::dtype_code::UInt) return true;
  const nb::object gradient = nb::steal(PyObject_GetAttr(object.ptr(), requires_grad_.ptr()));
  if (!gradient.is_valid()) PyErr_Clear();
  return gradient.ptr() == Py_False;
}

std::uintptr_t TorchTensors::current_stream(std::int32_t gpu) const {
  void* stream = nullptr;
  if (stream_(nb::device::cuda::value, gpu, &stream) != 0) throw nb::python_error();
  return reinterpret_cast<std::uintptr_t>(stream);
}

}  // namespace lathe::python
