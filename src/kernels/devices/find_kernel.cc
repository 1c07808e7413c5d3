#include "kernels/devices/find_kernel.h"

#include <fmt/format.h>

#include <string>

#include "kernels/devices/all.h"

namespace lathe {
namespace {

bool reads(const Capability& c, const CacheLayout& layout) {
  return c.layouts.contains(layout.kind()) && !(c.homogeneous_only && !layout.homogeneous());
}

}  // namespace

Result<Kernel> find_kernel(std::string_view device, std::string_view kind, ProblemKind problem,
                           const std::optional<ConstPoolView>& pool,
                           const std::optional<ConstPoolView>& extra) {
  const Registry registry = all_kernels();
  const Kernel* kernel = registry.find(fmt::format("{}.{}.{}", device, name(problem), kind));
  if (kernel != nullptr && kernel->attend != nullptr) {
    EnumSet<LayoutKind> layouts;  // of this device's kernels of the kind
    for (const Kernel& k : registry.kernels()) {
      const Capability& c = k.capability;
      if (c.kind != kernel->capability.kind || c.devices != kernel->capability.devices ||
          !c.problems.contains(problem) || k.attend == nullptr) {
        continue;
      }
      if ((!pool || reads(c, pool->layout)) && (!extra || reads(c, extra->layout))) return k;
      for (const LayoutKind layout : enum_values<LayoutKind>()) {
        if (reads(c, CacheLayout(layout))) layouts.insert(layout);
      }
    }
    const bool in_main = pool && !layouts.contains(pool->layout.kind());
    return Error{ErrorCode::unsupported, in_main || !extra ? "layout" : "extra.layout",
                 fmt::format("{} for {} on {}", layouts.names(), kind, device),
                 std::string(name((in_main || !extra ? pool : extra)->layout.kind())),
                 "kind=\"inplace\" reads the layouts that it names; kind=\"gather\" compact rows"};
  }
  std::string known;
  for (const Kernel& k : registry.kernels()) {
    if (!k.capability.problems.contains(problem) || k.attend == nullptr) continue;
    const std::string pair =
        fmt::format("{} on {}", name(k.capability.kind), k.capability.devices.names());
    known += (known.empty() ? "" : ", ") + pair;
  }
  return Error{ErrorCode::invalid_argument, "kind", fmt::format("for {}: {}", name(problem), known),
               fmt::format("{} on {}", kind, device), ""};
}

}  // namespace lathe
