#include "kernels/cuda/exchange/nccl.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string>

namespace lathe::cuda {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";
constexpr const char* kHint =
    "pip install nvidia-nccl-cu13, and add its folder nvidia/nccl/lib to LD_LIBRARY_PATH; "
    "--exchange peer needs no library";

// 2.27.3 is 22703.
std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

Error unfit(std::string offered) {
  return {ErrorCode::unsupported, "--exchange nccl",
          fmt::format("{} {} or newer", kLibrary, version_text(kNcclLeast)), std::move(offered),
          kHint};
}

}  // namespace

Result<Nccl> load_nccl(const char* library) {
  setenv("NCCL_NVLS_ENABLE", "0", 0);
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    return unfit(why != nullptr ? why : "no such library");
  }
  Nccl out;
  const char* missing = nullptr;
  const auto find = [&](const char* name, auto& function) {
    void* at = dlsym(handle, name);
    if (at == nullptr && missing == nullptr) missing = name;
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(at);
  };
  find("ncclGetVersion", out.get_version);
  find("ncclGetErrorString", out.get_error_string);
  find("ncclGetUniqueId", out.get_unique_id);
  find("ncclCommInitRank", out.comm_init_rank);
  find("ncclCommDestroy", out.comm_destroy);
  find("ncclCommAbort", out.comm_abort);
  find("ncclGroupStart", out.group_start);
  find("ncclGroupEnd", out.group_end);
  find("ncclAllReduce", out.all_reduce);
  find("ncclAllGather", out.all_gather);
  find("ncclSend", out.send);
  find("ncclRecv", out.receive);
  if (missing != nullptr) return unfit(fmt::format("{} without {}", library, missing));
  if (out.get_version(&out.version) != 0) return unfit("a library that names no version");
  if (out.version < kNcclLeast) return unfit(version_text(out.version));
  return out;
}

Result<const Nccl*> open_nccl() {
  static const Result<Nccl> opened = load_nccl(kLibrary);
  if (!opened) return opened.error();
  return &*opened;
}

Result<void> nccl_result(const Nccl& nccl, int status, const char* call) {
  if (status == 0) return {};
  return Error{ErrorCode::device, call, "success", nccl.get_error_string(status),
               "NCCL_DEBUG=WARN prints what it met"};
}

}  // namespace lathe::cuda
