// Pools, rows and lists on the CPU with copies on the device.
#pragma once

#include "kernels/cuda/common/test/gpu_test_util.h"
#include "layout/codec/test/codec_test_util.h"

namespace lathe::cuda {

struct CopiedPool {
  DeviceCopy<std::byte> bytes;
  PoolView view;

  CopiedPool(const GpuTest& gpu, const OwnedPool& pool)
      : bytes(gpu, pool.bytes),
        view(bytes.data(), pool.view.layout, pool.view.page_size, pool.view.pages,
             pool.view.page_stride) {}
};

struct CopiedRows {
  DeviceCopy<std::byte> bytes;
  MutableRowsView view;

  CopiedRows(const GpuTest& gpu, const OwnedRows& rows) : bytes(gpu, rows.bytes), view(rows.view) {
    view.data = bytes.data();
  }
  RowsView read() const { return {view.data, view.dtype, view.rows, view.cols, view.row_stride}; }
};

inline std::span<const Slot> span_of(const DeviceCopy<Slot>& slots) {
  return {slots.data(), static_cast<std::size_t>(slots.size())};
}

}  // namespace lathe::cuda
