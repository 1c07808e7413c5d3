// cuBLASLt as a bench's peer, opened at run time, so that nothing links it. Without cublasLt.h at
// compile time there is none.
#pragma once

#include <dlfcn.h>

#include <memory>
#include <string>

#include "kernels/cuda/common/gpu_timing.h"
#include "kernels/cuda/sm90/matmul/matmul.h"

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#define LATHE_HAS_CUBLASLT 1
#else
#define LATHE_HAS_CUBLASLT 0
#endif

namespace lathe::cuda {

#if LATHE_HAS_CUBLASLT

/// An opened library and the functions that the bench calls.
class CublasLt {
 public:
  explicit CublasLt(const std::string& path) : library_(dlopen(path.c_str(), RTLD_NOW)) {
    if (library_ == nullptr) fail(dlerror());
    find(create_, "cublasLtCreate");
    find(describe, "cublasLtMatmulDescCreate");
    find(set, "cublasLtMatmulDescSetAttribute");
    find(lay_out, "cublasLtMatrixLayoutCreate");
    find(prefer, "cublasLtMatmulPreferenceCreate");
    find(set_preference, "cublasLtMatmulPreferenceSetAttribute");
    find(choose, "cublasLtMatmulAlgoGetHeuristic");
    find(multiply, "cublasLtMatmul");
    find(version, "cublasLtGetVersion");
    check(create_(&handle));
  }
  static void check(cublasStatus_t status) {
    if (status != CUBLAS_STATUS_SUCCESS) fail(("status " + std::to_string(status)).c_str());
  }

  cublasLtHandle_t handle = nullptr;
  decltype(&cublasLtMatmulDescCreate) describe;
  decltype(&cublasLtMatmulDescSetAttribute) set;
  decltype(&cublasLtMatrixLayoutCreate) lay_out;
  decltype(&cublasLtMatmulPreferenceCreate) prefer;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference;
  decltype(&cublasLtMatmulAlgoGetHeuristic) choose;
  decltype(&cublasLtMatmul) multiply;
  decltype(&cublasLtGetVersion) version;

 private:
  static void fail(const char* why) {
    std::fprintf(stderr, "cuBLASLt: %s\n", why);
    std::exit(1);
  }
  template <class F>
  void find(F& f, const char* name) {
    f = reinterpret_cast<F>(dlsym(library_, name));
    if (f == nullptr) fail(name);
  }
  void* library_;
  decltype(&cublasLtCreate) create_;
};

/// The algorithm that cuBLASLt chooses for GEMMs of one shape.
class CublasLtProduct {
 public:
  CublasLtProduct(CublasLt& lt, const MatmulCall& c, DeviceArray<std::byte>& workspace)
      : lt_(lt), workspace_(workspace) {
    lt.check(lt.describe(&what_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t trans = CUBLAS_OP_T;
    lt.check(lt.set(what_, CUBLASLT_MATMUL_DESC_TRANSA, &trans, sizeof trans));
    const auto u64 = [](std::int64_t v) { return static_cast<std::uint64_t>(v); };
    const auto k = u64(c.x.cols), n = u64(c.w.rows), m = u64(c.x.rows);
    lt.check(lt.lay_out(&w_, CUDA_R_16BF, k, n, c.x.cols));
    lt.check(lt.lay_out(&x_, CUDA_R_16BF, k, m, c.x.row_stride));
    lt.check(lt.lay_out(&out_, c.out.dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F, n, m,
                        c.out.row_stride));
    cublasLtMatmulPreference_t preference;
    lt.check(lt.prefer(&preference));
    const auto bytes = static_cast<std::size_t>(workspace.size());
    lt.check(lt.set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                               sizeof bytes));
    int found = 0;
    lt.check(lt.choose(lt.handle, what_, w_, x_, out_, out_, preference, 1, &choice_, &found));
    if (found == 0) lt.check(CUBLAS_STATUS_NOT_SUPPORTED);
  }
  Result<void> run(const MatmulCall& c, cudaStream_t stream) const {
    const float one = 1, zero = 0;
    lt_.check(lt_.multiply(lt_.handle, what_, &one, c.w.data, w_, c.x.data, x_, &zero, c.out.data,
                           out_, c.out.data, out_, &choice_.algo, workspace_.data(),
                           static_cast<std::size_t>(workspace_.size()), stream));
    return {};
  }

 private:
  CublasLt& lt_;
  DeviceArray<std::byte>& workspace_;
  cublasLtMatmulDesc_t what_ = nullptr;
  cublasLtMatrixLayout_t w_ = nullptr, x_ = nullptr, out_ = nullptr;
  cublasLtMatmulHeuristicResult_t choice_ = {};
};

#endif

}  // namespace lathe::cuda
