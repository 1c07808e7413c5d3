// Included first in files of the emulated build. The runtime's calls become the fake's, and what
// those files define is in separate namespaces, so that a test can also link the GPU build.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>

#define cuda emulated_cuda
#define register_sm90_kernels register_emulated_sm90_kernels

// The runtime calls that the project makes, with the runtime's own parameters.
#define LATHE_FAKE_CALLS(X)                                                                     \
  X(cudaMalloc, (void**, std::size_t))                                                          \
  X(cudaFree, (void*))                                                                          \
  X(cudaMallocHost, (void**, std::size_t))                                                      \
  X(cudaFreeHost, (void*))                                                                      \
  X(cudaMemcpy, (void*, const void*, std::size_t, cudaMemcpyKind))                              \
  X(cudaMemcpyAsync, (void*, const void*, std::size_t, cudaMemcpyKind, cudaStream_t))           \
  X(cudaMemcpy2DAsync, (void*, std::size_t, const void*, std::size_t, std::size_t, std::size_t, \
                        cudaMemcpyKind, cudaStream_t))                                          \
  X(cudaMemsetAsync, (void*, int, std::size_t, cudaStream_t))                                   \
  X(cudaMemset2DAsync, (void*, std::size_t, int, std::size_t, std::size_t, cudaStream_t))       \
  X(cudaMemGetInfo, (std::size_t*, std::size_t*))                                               \
  X(cudaStreamCreateWithFlags, (cudaStream_t*, unsigned))                                       \
  X(cudaStreamDestroy, (cudaStream_t))                                                          \
  X(cudaStreamSynchronize, (cudaStream_t))                                                      \
  X(cudaStreamWaitEvent, (cudaStream_t, cudaEvent_t, unsigned))                                 \
  X(cudaStreamBeginCapture, (cudaStream_t, cudaStreamCaptureMode))                              \
  X(cudaStreamEndCapture, (cudaStream_t, cudaGraph_t*))                                         \
  X(cudaThreadExchangeStreamCaptureMode, (cudaStreamCaptureMode*))                              \
  X(cudaGraphInstantiate, (cudaGraphExec_t*, cudaGraph_t, unsigned long long))                  \
  X(cudaGraphLaunch, (cudaGraphExec_t, cudaStream_t))                                           \
  X(cudaGraphDestroy, (cudaGraph_t))                                                            \
  X(cudaGraphExecDestroy, (cudaGraphExec_t))                                                    \
  X(cudaEventCreateWithFlags, (cudaEvent_t*, unsigned))                                         \
  X(cudaEventDestroy, (cudaEvent_t))                                                            \
  X(cudaEventRecord, (cudaEvent_t, cudaStream_t))                                               \
  X(cudaEventSynchronize, (cudaEvent_t))                                                        \
  X(cudaEventElapsedTime, (float*, cudaEvent_t, cudaEvent_t))                                   \
  X(cudaGetLastError, (void))                                                                   \
  X(cudaPeekAtLastError, (void))                                                                \
  X(cudaGetDevice, (int*))                                                                      \
  X(cudaSetDevice, (int))                                                                       \
  X(cudaGetDeviceCount, (int*))                                                                 \
  X(cudaDeviceCanAccessPeer, (int*, int, int))                                                  \
  X(cudaDeviceEnablePeerAccess, (int, unsigned))                                                \
  X(cudaGetDeviceProperties, (cudaDeviceProp*, int))                                            \
  X(cudaDeviceGetAttribute, (int*, cudaDeviceAttr, int))                                        \
  X(cudaPointerGetAttributes, (cudaPointerAttributes*, const void*))                            \
  X(cudaIpcGetMemHandle, (cudaIpcMemHandle_t*, void*))                                          \
  X(cudaIpcOpenMemHandle, (void**, cudaIpcMemHandle_t, unsigned))                               \
  X(cudaIpcCloseMemHandle, (void*))                                                             \
  X(cudaDriverGetVersion, (int*))                                                               \
  X(cudaGetDriverEntryPointByVersion,                                                           \
    (const char*, void**, unsigned, unsigned long long, cudaDriverEntryPointQueryResult*))

#define cudaMalloc fake_cudaMalloc
#define cudaFree fake_cudaFree
#define cudaMallocHost fake_cudaMallocHost
#define cudaFreeHost fake_cudaFreeHost
#define cudaMemcpy fake_cudaMemcpy
#define cudaMemcpyAsync fake_cudaMemcpyAsync
#define cudaMemcpy2DAsync fake_cudaMemcpy2DAsync
#define cudaMemsetAsync fake_cudaMemsetAsync
#define cudaMemset2DAsync fake_cudaMemset2DAsync
#define cudaMemGetInfo fake_cudaMemGetInfo
#define cudaStreamCreateWithFlags fake_cudaStreamCreateWithFlags
#define cudaStreamDestroy fake_cudaStreamDestroy
#define cudaStreamSynchronize fake_cudaStreamSynchronize
#define cudaStreamWaitEvent fake_cudaStreamWaitEvent
#define cudaStreamBeginCapture fake_cudaStreamBeginCapture
#define cudaStreamEndCapture fake_cudaStreamEndCapture
#define cudaThreadExchangeStreamCaptureMode fake_cudaThreadExchangeStreamCaptureMode
#define cudaGraphInstantiate fake_cudaGraphInstantiate
#define cudaGraphLaunch fake_cudaGraphLaunch
#define cudaGraphDestroy fake_cudaGraphDestroy
#define cudaGraphExecDestroy fake_cudaGraphExecDestroy
#define cudaEventCreateWithFlags fake_cudaEventCreateWithFlags
#define cudaEventDestroy fake_cudaEventDestroy
#define cudaEventRecord fake_cudaEventRecord
#define cudaEventSynchronize fake_cudaEventSynchronize
#define cudaEventElapsedTime fake_cudaEventElapsedTime
#define cudaGetLastError fake_cudaGetLastError
#define cudaPeekAtLastError fake_cudaPeekAtLastError
#define cudaGetDevice fake_cudaGetDevice
#define cudaSetDevice fake_cudaSetDevice
#define cudaGetDeviceCount fake_cudaGetDeviceCount
#define cudaDeviceCanAccessPeer fake_cudaDeviceCanAccessPeer
#define cudaDeviceEnablePeerAccess fake_cudaDeviceEnablePeerAccess
#define cudaGetDeviceProperties fake_cudaGetDeviceProperties
#define cudaDeviceGetAttribute fake_cudaDeviceGetAttribute
#define cudaPointerGetAttributes fake_cudaPointerGetAttributes
#define cudaIpcGetMemHandle fake_cudaIpcGetMemHandle
#define cudaIpcOpenMemHandle fake_cudaIpcOpenMemHandle
#define cudaIpcCloseMemHandle fake_cudaIpcCloseMemHandle
#define cudaDriverGetVersion fake_cudaDriverGetVersion
#define cudaGetDriverEntryPointByVersion fake_cudaGetDriverEntryPointByVersion
#define cudaGetErrorName fake_cudaGetErrorName
#define cudaGetErrorString fake_cudaGetErrorString

#define LATHE_DECLARE(name, params) cudaError_t name params;
LATHE_FAKE_CALLS(LATHE_DECLARE)
#undef LATHE_DECLARE
const char* cudaGetErrorName(cudaError_t status);
const char* cudaGetErrorString(cudaError_t status);
