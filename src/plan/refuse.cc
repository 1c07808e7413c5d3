#include "plan/refuse.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "plan/planner.h"

namespace lathe {
namespace {

bool serves(const LayoutOutcome& o, Side side) {
  return std::none_of(o.failures.begin(), o.failures.end(),
                      [&](const auto& f) { return side_of(f.phase) == side; });
}

bool served(const std::vector<LayoutOutcome>& outcomes, Side side) {
  return std::any_of(outcomes.begin(), outcomes.end(),
                     [&](const LayoutOutcome& o) { return serves(o, side); });
}

std::string side_subject(const PlanRequest& request, Side side) {
  return fmt::format("{} {}", name(side), request.backend(side));
}

bool has(const std::vector<Reason>& reasons, Rule rule) {
  return std::any_of(reasons.begin(), reasons.end(),
                     [&](const Reason& r) { return r.rule == rule; });
}

void add_once(std::vector<Reason>& out, const Reason& r) {
  if (std::find(out.begin(), out.end(), r) == out.end()) out.push_back(r);
}

// For each kernel, the rules that it breaks over the layout where it breaks the fewest.
using ByKernel = std::map<std::string, std::vector<Reason>>;
ByKernel nearest_by_kernel(const std::vector<LayoutOutcome>& outcomes, Side side) {
  ByKernel nearest;
  for (const LayoutOutcome& o : outcomes) {
    for (const auto& f : o.failures) {
      if (side_of(f.phase) != side) continue;
      ByKernel here;
      for (const Reason& r : f.reasons) here[r.subject].push_back(r);
      for (auto& [subject, reasons] : here) {
        const auto it = nearest.find(subject);
        if (it == nearest.end()) {
          nearest.emplace(subject, std::move(reasons));
        } else if (reasons.size() < it->second.size()) {
          it->second = std::move(reasons);
        }
      }
    }
  }
  return nearest;
}

void explain_unserved(const AttentionProblem& problem, const Machine& machine,
                      const PlanRequest& request, const Registry& registry,
                      const std::vector<LayoutOutcome>& outcomes, Side side,
                      std::vector<Reason>& out) {
  ByKernel nearest = nearest_by_kernel(outcomes, side);
  // Leave out kernels of other devices and problems, unless there are no others.
  for (Rule far : {Rule::device, Rule::problem}) {
    const bool all_far = std::all_of(nearest.begin(), nearest.end(),
                                     [&](const auto& n) { return has(n.second, far); });
    if (!all_far) {
      std::erase_if(nearest, [&](const auto& n) { return has(n.second, far); });
      continue;
    }
    // The device has no kernel that the flag allows, or none for the problem.
    EnumSet<Device> devices;
    EnumSet<ProblemKind> problems;
    const Result<BackendChoice> choice = parse_backend(request.backend(side), side, registry);
    for (const Kernel& k : registry.kernels()) {
      const Capability& c = k.capability;
      if (choice && !choice->matches(c)) continue;
      if (c.devices.contains(machine.device)) problems = problems | c.problems;
      devices = devices | c.devices;
    }
    if (far == Rule::device) {
      add_once(out, {Rule::device, side_subject(request, side), "kernel",
                     fmt::format("one for {}", name(machine.device)),
                     devices.empty() ? "no kernels at all" : "kernels for " + devices.names(),
                     devices.contains(Device::ref) ? "--device ref" : ""});
    } else {
      add_once(out, {Rule::problem, side_subject(request, side), "attention", problems.names(),
                     std::string(name(problem.kind)), ""});
    }
    return;
  }
  for (const auto& [subject, reasons] : nearest) {
    for (const Reason& r : reasons) add_once(out, r);
  }
}

std::string places(const std::vector<LayoutOutcome>& outcomes, Side side) {
  std::vector<std::string> seen;
  for (const LayoutOutcome& o : outcomes) {
    const std::string layout(o.layout.name());
    if (serves(o, side) && std::find(seen.begin(), seen.end(), layout) == seen.end()) {
      seen.push_back(layout);
    }
  }
  return fmt::format("{}", fmt::join(seen, ", "));
}

// Both sides have kernels, but over different layouts or page sizes.
void explain_pair(const PlanRequest& request, const std::vector<LayoutOutcome>& outcomes,
                  std::vector<Reason>& out) {
  for (Side side : enum_values<Side>()) {
    const Side other = side == Side::prefill ? Side::decode : Side::prefill;
    out.push_back({Rule::pair, side_subject(request, side), "layout", places(outcomes, side),
                   fmt::format("{} of {}", places(outcomes, other), side_subject(request, other)),
                   ""});
  }
  for (Side side : enum_values<Side>()) {
    std::vector<LayoutOutcome> of_other;
    for (const LayoutOutcome& o : outcomes) {
      if (!serves(o, side) && serves(o, side == Side::prefill ? Side::decode : Side::prefill)) {
        of_other.push_back(o);
      }
    }
    ByKernel nearest = nearest_by_kernel(of_other, side);
    std::erase_if(nearest, [](const auto& n) {
      return has(n.second, Rule::device) || has(n.second, Rule::problem);
    });
    for (const auto& [subject, reasons] : nearest) {
      for (const Reason& r : reasons) add_once(out, r);
    }
  }
}

}  // namespace

std::string headline_of(const std::vector<LayoutOutcome>& outcomes) {
  const bool prefill = served(outcomes, Side::prefill);
  const bool decode = served(outcomes, Side::decode);
  if (prefill && decode) return "no layout fits both sides";
  if (prefill) return "no decode kernel fits";
  return decode ? "no prefill kernel fits" : "no prefill and no decode kernel fits";
}

std::string describe_request(const AttentionProblem& problem, const Machine& machine,
                             const PlanRequest& request) {
  std::string out = fmt::format("{} on {}, prefill {}, decode {}", name(problem.kind),
                                name(machine.device), request.prefill, request.decode);
  if (request.kv_dtype != "auto") out += ", kv-cache-dtype " + request.kv_dtype;
  if (request.layout != "auto") out += ", kv-layout " + request.layout;
  if (request.page_size != 0) out += fmt::format(", page-size {}", request.page_size);
  return out;
}

std::vector<Reason> explain_outcomes(const AttentionProblem& problem, const Machine& machine,
                                     const PlanRequest& request, const Registry& registry,
                                     const std::vector<LayoutOutcome>& outcomes) {
  std::vector<Reason> out;
  bool unserved = false;
  for (Side side : enum_values<Side>()) {
    if (served(outcomes, side)) continue;
    unserved = true;
    explain_unserved(problem, machine, request, registry, outcomes, side, out);
  }
  if (!unserved) explain_pair(request, outcomes, out);
  return out;
}

std::vector<std::string> sizes_that_fit(const PlanRequest& request,
                                        const std::function<bool(const PlanRequest&)>& fits) {
  struct Size {
    std::string_view flag;
    std::int64_t PlanRequest::*value;
  };
  constexpr std::array<Size, 3> kSizes = {{
      {"--chunked-prefill-size", &PlanRequest::chunked_prefill_size},
      {"--max-running-requests", &PlanRequest::max_running_requests},
      {"--context-length", &PlanRequest::context_length},
  }};
  // A step's memory grows with each of them, so bisection finds the largest value that fits.
  const auto largest = [&](PlanRequest changed, std::int64_t PlanRequest::*value) {
    std::int64_t fit = 0;
    std::int64_t above = changed.*value;
    while (above - fit > 1) {
      const std::int64_t middle = fit + (above - fit) / 2;
      changed.*value = middle;
      (fits(changed) ? fit : above) = middle;
    }
    return fit < 64 ? fit : fit / 64 * 64;
  };
  std::vector<std::string> out;
  for (const Size& s : kSizes) {
    if (const std::int64_t fit = largest(request, s.value); fit > 0) {
      out.push_back(fmt::format("{} {}", s.flag, fit));
    }
  }
  if (!out.empty()) return out;
  constexpr std::int64_t kFewRequests = 8;
  PlanRequest few = request;
  few.max_running_requests = std::min(few.max_running_requests, kFewRequests);
  if (const std::int64_t fit = largest(few, kSizes[0].value); fit > 0) {
    out.push_back(
        fmt::format("{} {} {} {}", kSizes[0].flag, fit, kSizes[1].flag, few.max_running_requests));
  }
  return out;
}

std::vector<std::string> suggest(
    const AttentionProblem& problem, const Machine& machine, const PlanRequest& request,
    const Registry& registry,
    const std::function<bool(const Machine&, const PlanRequest&)>& legal) {
  constexpr std::size_t kEnough = 4;
  std::vector<std::string> out;
  const auto offer = [&](const PlanRequest& changed, std::string text) {
    if (out.size() < kEnough && legal(machine, changed)) out.push_back(std::move(text));
  };

  // Offers kernel names if the user gave one, otherwise kinds.
  const auto names_for = [&](Side side) {
    std::vector<std::string> names;
    if (registry.find(request.backend(side)) != nullptr) {
      for (const Kernel& k : registry.kernels()) names.push_back(k.capability.name);
    } else {
      for (std::string_view n : enum_names<KernelKind>) names.emplace_back(n);
    }
    std::erase(names, request.backend(side));
    return names;
  };
  const auto with = [&](Side side, const std::string& backend) {
    PlanRequest changed = request;
    changed.backend(side) = backend;
    return changed;
  };

  for (Side side : {Side::decode, Side::prefill}) {
    if (request.backend(side) == "auto") continue;
    for (const std::string& n : names_for(side)) {
      offer(with(side, n), fmt::format("{} {}", flag_of(side), n));
    }
  }
  if (request.layout != "auto") {
    for (LayoutKind kind : layouts_by_precision(problem.kind)) {
      PlanRequest changed = request;
      changed.layout = std::string(name(kind));
      offer(changed, "--kv-layout " + changed.layout);
    }
  }
  if (request.kv_dtype != "auto") {
    for (const char* dtype : {"bf16", "fp8_e4m3", "fp4_e2m1"}) {
      PlanRequest changed = request;
      changed.kv_dtype = dtype;
      if (request.kv_dtype != dtype) offer(changed, fmt::format("--kv-cache-dtype {}", dtype));
    }
  }
  if (request.page_size != 0) {
    for (std::int32_t page : {64, 256, 128, 32, 16}) {
      PlanRequest changed = request;
      changed.page_size = page;
      if (page != request.page_size) offer(changed, fmt::format("--page-size {}", page));
    }
  }
  if (out.empty() && request.prefill != "auto" && request.decode != "auto") {
    for (const std::string& p : names_for(Side::prefill)) {
      for (const std::string& d : names_for(Side::decode)) {
        PlanRequest changed = with(Side::prefill, p);
        changed.decode = d;
        offer(changed,
              fmt::format("{} {} {} {}", flag_of(Side::prefill), p, flag_of(Side::decode), d));
      }
    }
  }
  if (out.empty()) {
    for (Device device : enum_values<Device>()) {
      if (device == machine.device || !registry.devices().contains(device)) continue;
      if (legal(describe_machine(device), request))
        out.push_back(fmt::format("--device {}", name(device)));
    }
  }
  return out;
}

}  // namespace lathe
