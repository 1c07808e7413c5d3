// Call: a checked attention call of the C interface, with the memory that its arguments point to.
#pragma once

#include <lathe/lathe.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "attn/attend.h"
#include "attn/call_args.h"
#include "attn/call_part.h"
#include "attn/capability.h"
#include "capi/tensors.h"

namespace lathe::capi {

inline constexpr std::int32_t kMostThreads = 1024;

Error wrong(std::string field, std::string wanted, std::string offered, std::string hint = "");

/// The error with its field renamed from AttendArgs' to lathe_attend_args'.
Error in_fields(Error error);

/// Copies of an index list and its lengths as int32. Lists in GPU memory are not copied.
struct Lists {
  std::vector<std::int32_t> indices, lengths;

  Result<void> take(const lathe_tensor* list, const lathe_tensor* list_lengths,
                    const std::string& prefix, Place place, KeySource& source);
};

class Call {
 public:
  /// shapes_only: for workspace_bytes(). Outputs are not checked, and GPU tensors need no address
  /// and no q_indptr.
  Result<void> take(const lathe_attend_args* given, bool shapes_only = false);

  const AttendArgs& args() const { return args_; }
  AttendArgs& args() { return args_; }
  const Kernel& kernel() const { return *kernel_; }
  Place place() const { return place_; }
  std::int32_t threads() const { return fields_.threads; }
  /// Null if the call has none.
  const void* workspace() const;
  bool batch_invariant() const { return (fields_.flags & LATHE_SPLIT_BY_BATCH) == 0; }

  /// Runs on the GPU with the call's stream and workspace, or on the CPU as args().execution says.
  /// `part` matters on a GPU only.
  Result<void> run(CallPart part = CallPart::both);
  /// What run() needs; 0 in host memory.
  Result<std::int64_t> workspace_bytes() const;

 private:
  Result<void> take_keys();
  /// Multiplies `scale` by the tensor's value. On a GPU the value stays there for the kernel.
  Result<void> take_scale(const lathe_tensor* given, const char* field, float& scale,
                          const float*& on_device);
  Result<void> take_problem();
  Result<void> take_batch();
  Result<void> take_batch_of_gpu();
  Result<void> take_outputs();
  Result<void> run_on_gpu(CallPart part);

  lathe_attend_args fields_{};
  Place place_;
  bool shapes_only_ = false;
  Tensor q_, out_, lse_;
  PoolRef pool_, extra_;
  std::vector<PageId> pages_;
  Lists lists_, extra_lists_;
  CallBatch batch_;
  std::vector<float> sink_;
  std::optional<Kernel> kernel_;
  AttendArgs args_;
};

}  // namespace lathe::capi
