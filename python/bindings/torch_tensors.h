// Reads torch's tensors in place through C functions of torch 2.10 and later (DLPack's exchange
// interface): makes no object, and does not wait.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

namespace lathe::python {

/// DLPack's DLTensor.
struct BorrowedTensor {
  void* data = nullptr;
  std::int32_t device_type = 0;
  std::int32_t device = 0;
  std::int32_t rank = 0;
  std::uint8_t code = 0, bits = 0;
  std::uint16_t lanes = 0;
  std::int64_t* shape = nullptr;
  std::int64_t* strides = nullptr;  // in elements
  std::uint64_t byte_offset = 0;

  std::uintptr_t address() const { return reinterpret_cast<std::uintptr_t>(data) + byte_offset; }
};
static_assert(sizeof(BorrowedTensor) == 48);

class TorchTensors {
 public:
  /// exchange: torch.Tensor.__dlpack_c_exchange_api__. Errors: a ValueError for another major
  /// version, or an interface without these functions.
  TorchTensors(nanobind::object tensor_type, nanobind::object parameter_type,
               nanobind::handle exchange);

  /// Reads `object` if it is exactly a tensor or parameter that needs no gradient; returns whether
  /// it is. The shape and strides stay valid until the object is resized.
  bool read(nanobind::handle object, BorrowedTensor& tensor) const;
  /// torch's current stream of a GPU.
  std::uintptr_t current_stream(std::int32_t gpu) const;

 private:
  nanobind::object tensor_type_, parameter_type_, requires_grad_;
  int (*read_)(void* object, BorrowedTensor* tensor) = nullptr;
  int (*stream_)(std::int32_t device_type, std::int32_t device, void** stream) = nullptr;
};

}  // namespace lathe::python
