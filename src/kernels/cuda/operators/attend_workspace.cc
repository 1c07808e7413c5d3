#include "kernels/cuda/operators/attend_workspace.h"

#include <fmt/format.h>

#include "kernels/cuda/sm90/gqa/gqa_attend.h"
#include "kernels/cuda/sm90/latent/latent_attend.h"

namespace lathe::cuda {
namespace {

bool grouped(const AttendArgs& args) { return args.problem.kind == ProblemKind::grouped_query; }

}  // namespace

Result<std::int64_t> attend_workspace(const AttendArgs& most) {
  return grouped(most) ? gqa_workspace(most) : latent_workspace(most);
}

Result<void> attend_in_workspace(const AttendArgs& args, std::span<std::byte> workspace,
                                 CallPart part) {
  if (args.q.rows > 0) {
    // Checks against the bound that callers size by, which is more than some calls need.
    const auto wanted = attend_workspace(args);
    if (!wanted) return wanted.error();
    if (std::ssize(workspace) < *wanted ||
        reinterpret_cast<std::uintptr_t>(workspace.data()) % 256 != 0) {
      return Error{
          ErrorCode::invalid_argument, "workspace",
          fmt::format("{} bytes at a multiple of 256", *wanted),
          fmt::format("{} at {}", workspace.size(), static_cast<const void*>(workspace.data())),
          "attend_workspace of the largest call says how many"};
    }
  }
  return grouped(args) ? attend_gqa_in(args, workspace, part)
                       : attend_latent_in(args, workspace, part);
}

}  // namespace lathe::cuda
