// A call of attention over the C interface: its arguments, checked, and what they point to.
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

/// The error with a field of lathe_attend_args in place of one of AttendArgs.
Error in_fields(Error error);

/// An index list and its lengths: narrowed from host memory, or where they lie on a GPU.
struct Lists {
  std::vector<std::int32_t> indices, lengths;

  Result<void> take(const lathe_tensor* list, const lathe_tensor* list_lengths,
                    const std::string& prefix, Place place, KeySource& source);
};

class Call {
 public:
  /// shapes_only: for workspace_bytes(). Outputs are not looked at; of a GPU's tensors no address
  /// is needed, and no q_indptr.
  Result<void> take(const lathe_attend_args* given, bool shapes_only = false);

  const AttendArgs& args() const { return args_; }
  AttendArgs& args() { return args_; }
  const Kernel& kernel() const { return *kernel_; }
  Place place() const { return place_; }
  std::int32_t threads() const { return fields_.threads; }
  /// Null: none was given.
  const void* workspace() const;
  bool batch_invariant() const { return (fields_.flags & LATHE_SPLIT_BY_BATCH) == 0; }

  /// On a GPU with its stream and workspace, else as args().execution says. part: on a GPU.
  Result<void> run(CallPart part = CallPart::both);
  /// What run() needs; 0 in host memory.
  Result<std::int64_t> workspace_bytes() const;

 private:
  Result<void> take_keys();
  /// One more factor of `scale`, which on a GPU stays there.
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
