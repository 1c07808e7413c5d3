// Why something does not fit. A refused plan is a list of Reasons.
#pragma once

#include <string>
#include <vector>

#include "base/enum.h"

namespace lathe {

/// The rules, and when each is broken. A broken rule gives a Reason.
// clang-format off
#define LATHE_RULE_LIST(X)                                                                     \
  X(request, "a value names nothing known or is out of range")                                    \
  X(dtype, "the layout's number format is not that of --kv-cache-dtype")                       \
  X(device, "the kernel runs elsewhere")                                                       \
  X(problem, "the kernel computes another kind of attention, or the layout cannot hold it")    \
  X(phase, "the kernel has no such phase")                                                     \
  X(homogeneous, "native arithmetic over a layout of mixed number formats")                    \
  X(layout, "the kernel cannot read the stored bytes and takes no compact rows")               \
  X(adapter, "the kernel takes compact rows, but nothing makes them from this layout")         \
  X(scale_policy, "the kernel would read these scales wrongly")                                \
  X(dims, "the kernel or the layout is made for other widths")                                 \
  X(heads, "a head count that the kernel does not accept")                                     \
  X(page_size, "a page size that the kernel does not accept")                                  \
  X(top_k, "a top-k width that the kernel does not accept")                                    \
  X(window, "the kernel has no sliding window, or wants chunks of whole pages")                \
  X(sink, "the kernel has no attention sinks")                                                 \
  X(two_sources, "the kernel reads one pool, the problem has two")                             \
  X(ranks, "ranks cannot share the heads or a width, or there are too few devices")            \
  X(rows, "a step may bring more query rows than the kernel's schedule holds")                 \
  X(context, "requests may be longer than the kernel handles")                                 \
  X(graph, "decode steps are captured in a CUDA graph, and the kernel cannot be")              \
  X(bits, "the kernel's bits depend on what else is in a step")                                  \
  X(pair, "each side fits, but not over one layout and page size")                             \
  X(budget, "a tile of one row exceeds a buffer's ceiling")                                    \
  X(memory, "weights, buffers and cache together exceed the machine")
// clang-format on
LATHE_ENUM_WITH_TEXT(Rule, LATHE_RULE_LIST)

struct Reason {
  Rule rule = Rule::request;
  std::string subject;  // a kernel ("native sm90.dense_latent.native"), a side, or a flag
  std::string field;
  std::string wanted;
  std::string offered;
  std::string hint;  // may be empty

  bool operator==(const Reason&) const = default;
};

/// A refused plan: a headline with the configuration, the reasons, and changes that make it legal.
struct Refusal {
  std::string headline;
  std::vector<Reason> reasons;
  std::vector<std::string> suggestions;  // each a flag setting: "--kv-layout mla_fp8"
};

}  // namespace lathe
