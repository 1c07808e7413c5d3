// For tests of operators on the emulated GPU: a context, and copies of rows to the device and back.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "base/rows.h"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/common/memory.h"
#include "ops/test/test_util.h"

namespace lathe::ops_test {

struct GpuContext {
  std::unique_ptr<Backend> backend = std::move(cuda::make_cuda_backend()).value();
  Arena tensors{cuda::kDeviceMemory}, control;
  std::vector<OwnedBytes> owned;
  OpsContext ops;

  GpuContext() {
    ops.backend = backend.get();
    ops.precision = MatmulPrecision::bf16;
    ops.tensors = &tensors;
    ops.control = &control;
  }

  std::byte* bring(const void* from, std::size_t bytes) {
    owned.push_back(
        std::move(cuda::allocate_device_bytes(static_cast<std::int64_t>(bytes))).value());
    const std::span source(static_cast<const std::byte*>(from), bytes);
    EXPECT_TRUE(backend->upload(ops, source, owned.back().get()).ok());
    return owned.back().get();
  }
  template <class T>
  std::span<const T> list(const std::vector<T>& host) {
    return {reinterpret_cast<const T*>(bring(host.data(), host.size() * sizeof(T))), host.size()};
  }
  /// Copies rows to the device, with the same gaps.
  MutableRowsView rows(Rows& host) {
    MutableRowsView out = host.out();
    out.data = bring(host.data.data(), host.data.size() * sizeof(float));
    return out;
  }
  /// Copies rows to the device, rounded to bf16.
  MutableRowsView bf16_rows(const Rows& host) {
    std::vector<bf16> values;
    for (const float v : host.data) values.push_back(to_bf16(v));
    return {bring(values.data(), values.size() * sizeof(bf16)), DType::bf16, host.rows, host.cols,
            host.stride};
  }
  /// Copies rows of f32 or bf16 (widened) back to the host.
  Rows read(const MutableRowsView& there) {
    EXPECT_TRUE(backend->wait().ok());
    Rows out(there.rows, there.cols, 0, there.row_stride - there.cols);
    const auto count = out.data.size();
    std::vector<std::byte> bytes(
        static_cast<std::size_t>(bytes_of(there.dtype, std::ssize(out.data))));
    EXPECT_TRUE(backend->download(ops, there.data, bytes).ok());
    for (std::size_t i = 0; i < count; ++i) {
      if (there.dtype == DType::f32) {
        std::memcpy(&out.data[i], bytes.data() + 4 * i, 4);
      } else {
        bf16 v;
        std::memcpy(&v, bytes.data() + 2 * i, 2);
        out.data[i] = to_f32(v);
      }
    }
    return out;
  }
  WeightView weight(const Weight& w) { return std::move(backend->prepare(w.view, owned)).value(); }
};

}  // namespace lathe::ops_test
