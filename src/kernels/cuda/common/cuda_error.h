// Turns a CUDA status into an Error that says what was called, with what, and from where.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <source_location>
#include <string>

#include "base/result.h"

namespace lathe::cuda {

/// What was launched, for the error message.
struct Launch {
  const char* kernel;          // "encode"
  std::string shape;           // "mla_fp8_block, 4096 rows of 576"
  std::source_location where;  // of the caller
};

/// No error for cudaSuccess, else: "kernel encode (SHAPE) launched at FILE:LINE: wanted success,
/// got cudaErrorLaunchFailure: unspecified launch failure; an earlier launch on this device may be
/// at fault ...". Code unsupported where the machine code does not fit the device, else device.
Result<void> launch_result(cudaError_t status, const Launch& launch);

/// The error of a runtime call that launches nothing.
Result<void> call_result(cudaError_t status, const char* call,
                         std::source_location where = std::source_location::current());

/// File name without its folders, and line: "codec.cc:71".
std::string place(const std::source_location& where);

}  // namespace lathe::cuda
