#include "attn/refuse.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "attn/planner.h"

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

std::string side_subject(const Wishes& wishes, Side side) {
  return fmt::format("{} {}", name(side), wishes.backend(side));
}

bool has(const std::vector<Reason>& reasons, Rule rule) {
  return std::any_of(reasons.begin(), reasons.end(),
                     [&](const Reason& r) { return r.rule == rule; });
}

void add_once(std::vector<Reason>& out, const Reason& r) {
  if (std::find(out.begin(), out.end(), r) == out.end()) out.push_back(r);
}

// Per kernel, the rules it breaks over the layout that comes nearest to serving the side.
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

void explain_unserved(const AttentionProblem& problem, const Machine& machine, const Wishes& wishes,
                      const Registry& registry, const std::vector<LayoutOutcome>& outcomes,
                      Side side, std::vector<Reason>& out) {
  ByKernel nearest = nearest_by_kernel(outcomes, side);
  // Kernels of other devices and problems are noise where one of this device has a reason to give.
  for (Rule far : {Rule::device, Rule::problem}) {
    const bool all_far = std::all_of(nearest.begin(), nearest.end(),
                                     [&](const auto& n) { return has(n.second, far); });
    if (!all_far) {
      std::erase_if(nearest, [&](const auto& n) { return has(n.second, far); });
      continue;
    }
    // The device has no kernel of the wish at all, or none for the problem.
    EnumSet<Device> devices;
    EnumSet<ProblemKind> problems;
    const Result<BackendWish> wish = parse_backend(wishes.backend(side), side, registry);
    for (const Kernel& k : registry.kernels()) {
      const Capability& c = k.capability;
      if (wish && !wish->matches(c)) continue;
      if (c.devices.contains(machine.device)) problems = problems | c.problems;
      devices = devices | c.devices;
    }
    if (far == Rule::device) {
      add_once(
          out,
          {Rule::device, side_subject(wishes, side), "kernel",
           fmt::format("one for {}", name(machine.device)),
           devices.empty() ? "no kernels at all" : "kernels for " + devices.names(),
           devices.contains(Device::ref) ? "--device ref plans with the exact, slow oracle" : ""});
    } else {
      add_once(out, {Rule::problem, side_subject(wishes, side), "attention", problems.names(),
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

// Both sides are served, over different layouts or page sizes.
void explain_pair(const Wishes& wishes, const std::vector<LayoutOutcome>& outcomes,
                  std::vector<Reason>& out) {
  for (Side side : enum_values<Side>()) {
    const Side other = side == Side::prefill ? Side::decode : Side::prefill;
    out.push_back({Rule::pair, side_subject(wishes, side), "layout", places(outcomes, side),
                   fmt::format("{} of {}", places(outcomes, other), side_subject(wishes, other)),
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
                             const Wishes& wishes) {
  std::string out = fmt::format("{} on {}, prefill {}, decode {}", name(problem.kind),
                                name(machine.device), wishes.prefill, wishes.decode);
  if (wishes.kv_dtype != "auto") out += ", kv-cache-dtype " + wishes.kv_dtype;
  if (wishes.layout != "auto") out += ", kv-layout " + wishes.layout;
  if (wishes.page_size != 0) out += fmt::format(", page-size {}", wishes.page_size);
  return out;
}

std::vector<Reason> explain_outcomes(const AttentionProblem& problem, const Machine& machine,
                                     const Wishes& wishes, const Registry& registry,
                                     const std::vector<LayoutOutcome>& outcomes) {
  std::vector<Reason> out;
  bool unserved = false;
  for (Side side : enum_values<Side>()) {
    if (served(outcomes, side)) continue;
    unserved = true;
    explain_unserved(problem, machine, wishes, registry, outcomes, side, out);
  }
  if (!unserved) explain_pair(wishes, outcomes, out);
  return out;
}

std::vector<std::string> sizes_that_fit(const Wishes& wishes,
                                        const std::function<bool(const Wishes&)>& fits) {
  struct Size {
    std::string_view flag;
    std::int64_t Wishes::*value;
  };
  constexpr std::array<Size, 3> kSizes = {{
      {"--chunked-prefill-size", &Wishes::chunked_prefill_size},
      {"--max-running-requests", &Wishes::max_running_requests},
      {"--context-length", &Wishes::context_length},
  }};
  // What a step takes rises with each of them, so the largest that fits is found by halves.
  const auto largest = [&](Wishes w, std::int64_t Wishes::*value) {
    std::int64_t fit = 0;
    std::int64_t above = w.*value;
    while (above - fit > 1) {
      const std::int64_t middle = fit + (above - fit) / 2;
      w.*value = middle;
      (fits(w) ? fit : above) = middle;
    }
    return fit < 64 ? fit : fit / 64 * 64;
  };
  std::vector<std::string> out;
  for (const Size& s : kSizes) {
    if (const std::int64_t fit = largest(wishes, s.value); fit > 0) {
      out.push_back(fmt::format("{} {}", s.flag, fit));
    }
  }
  if (!out.empty()) return out;
  constexpr std::int64_t kFewRequests = 8;
  Wishes few = wishes;
  few.max_running_requests = std::min(few.max_running_requests, kFewRequests);
  if (const std::int64_t fit = largest(few, kSizes[0].value); fit > 0) {
    out.push_back(
        fmt::format("{} {} {} {}", kSizes[0].flag, fit, kSizes[1].flag, few.max_running_requests));
  }
  return out;
}

std::vector<std::string> suggest(const AttentionProblem& problem, const Machine& machine,
                                 const Wishes& wishes, const Registry& registry,
                                 const std::function<bool(const Machine&, const Wishes&)>& legal) {
  constexpr std::size_t kEnough = 4;
  std::vector<std::string> out;
  const auto offer = [&](const Wishes& w, std::string text) {
    if (out.size() < kEnough && legal(machine, w)) out.push_back(std::move(text));
  };

  // Offers kernel names where the user gave one, else kinds.
  const auto names_for = [&](Side side) {
    std::vector<std::string> names;
    if (registry.find(wishes.backend(side)) != nullptr) {
      for (const Kernel& k : registry.kernels()) names.push_back(k.capability.name);
    } else {
      for (std::string_view n : enum_names<KernelKind>) names.emplace_back(n);
    }
    std::erase(names, wishes.backend(side));
    return names;
  };
  const auto with = [&](Side side, const std::string& backend) {
    Wishes w = wishes;
    w.backend(side) = backend;
    return w;
  };

  for (Side side : {Side::decode, Side::prefill}) {
    if (wishes.backend(side) == "auto") continue;
    for (const std::string& n : names_for(side)) {
      offer(with(side, n), fmt::format("{} {}", flag_of(side), n));
    }
  }
  if (wishes.layout != "auto") {
    for (LayoutKind kind : layouts_of(problem)) {
      Wishes w = wishes;
      w.layout = std::string(name(kind));
      offer(w, "--kv-layout " + w.layout);
    }
  }
  if (wishes.kv_dtype != "auto") {
    for (const char* dtype : {"bf16", "fp8_e4m3", "fp4_e2m1"}) {
      Wishes w = wishes;
      w.kv_dtype = dtype;
      if (wishes.kv_dtype != dtype) offer(w, fmt::format("--kv-cache-dtype {}", dtype));
    }
  }
  if (wishes.page_size != 0) {
    for (std::int32_t page : {64, 256, 128, 32, 16}) {
      Wishes w = wishes;
      w.page_size = page;
      if (page != wishes.page_size) offer(w, fmt::format("--page-size {}", page));
    }
  }
  if (out.empty() && wishes.prefill != "auto" && wishes.decode != "auto") {
    for (const std::string& p : names_for(Side::prefill)) {
      for (const std::string& d : names_for(Side::decode)) {
        Wishes w = with(Side::prefill, p);
        w.decode = d;
        offer(w, fmt::format("{} {} {} {}", flag_of(Side::prefill), p, flag_of(Side::decode), d));
      }
    }
  }
  if (out.empty()) {
    for (Device device : enum_values<Device>()) {
      if (device == machine.device || !registry.devices().contains(device)) continue;
      if (legal(describe_machine(device), wishes))
        out.push_back(fmt::format("--device {}", name(device)));
    }
  }
  return out;
}

}  // namespace lathe
