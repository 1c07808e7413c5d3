// NCCL, opened at run time. Without the library everything but `--exchange nccl` works.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/result.h"

namespace lathe::cuda {

struct NcclComm;  // ncclComm
/// ncclUniqueId
struct NcclId {
  char bytes[128] = {};
};

/// The oldest version that works, as ncclGetVersion() encodes it.
inline constexpr int kNcclLeast = 22700;

/// The functions of libnccl.so.2 that Lathe calls, with the library's own parameters. They return 0
/// on success.
struct Nccl {
  static constexpr int kUint8 = 1, kFloat32 = 7, kBfloat16 = 9;  // ncclDataType_t
  static constexpr int kSum = 0;                                 // ncclRedOp_t

  int version = 0;
  int (*get_version)(int*) = nullptr;
  const char* (*get_error_string)(int) = nullptr;
  int (*get_unique_id)(NcclId*) = nullptr;
  int (*comm_init_rank)(NcclComm**, int size, NcclId, int rank) = nullptr;
  int (*comm_destroy)(NcclComm*) = nullptr;
  int (*comm_abort)(NcclComm*) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*all_reduce)(const void* from, void* to, std::size_t count, int type, int op, NcclComm*,
                    cudaStream_t) = nullptr;
  int (*all_gather)(const void* from, void* to, std::size_t count, int type, NcclComm*,
                    cudaStream_t) = nullptr;
  int (*send)(const void* from, std::size_t count, int type, int peer, NcclComm*,
              cudaStream_t) = nullptr;
  int (*receive)(void* to, std::size_t count, int type, int peer, NcclComm*,
                 cudaStream_t) = nullptr;
};

/// Opens the library once per process; later calls return the same. Sets NCCL_NVLS_ENABLE=0 first
/// unless it is set: NVLink multicast fails at start on some hosts. Errors: the library is missing,
/// lacks a function, or is older than kNcclLeast.
Result<const Nccl*> open_nccl();

/// open_nccl() for a library of another name; for tests.
Result<Nccl> load_nccl(const char* library);

/// The error of a call that returned `status`.
Result<void> nccl_result(const Nccl& nccl, int status, const char* call);

}  // namespace lathe::cuda
