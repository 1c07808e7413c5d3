// Why something does not fit. A refused plan is a list of Reasons.
#pragma once

#include <string>
#include <vector>

#include "base/enum.h"

namespace lathe {

/// One code per rule. Every rule either passes or returns a Reason.
///   wish          a value that names nothing known, or is out of range
///   dtype         the layout's number format against --kv-cache-dtype
///   device        the kernel runs elsewhere
///   problem       the kernel computes another kind of attention
///   phase         the kernel has no such phase
///   homogeneous   native arithmetic over a layout of mixed number formats
///   layout        the kernel cannot read the stored bytes and takes no compact rows
///   adapter       the kernel takes compact rows, but nothing makes them from this layout
///   scale_policy  the kernel would read these scales wrongly
///   dims          the kernel is made for other latent widths
///   heads, page_size, top_k, window, sink, two_sources
///                 a parameter that the kernel does not accept
///   rows          more query rows in a step than the kernel's schedule holds
///   context       a longer context than the kernel handles
///   graph         the kernel cannot be captured in a CUDA graph
///   pair          each side fits, but not over one layout and page size
///   budget        a tile of one row does not fit the buffer's budget
///   memory        cache and buffers together exceed the machine
// clang-format off
#define LATHE_RULES(X)                                                                     \
  X(wish) X(dtype) X(device) X(problem) X(phase) X(homogeneous) X(layout) X(adapter)       \
  X(scale_policy) X(dims) X(heads) X(page_size) X(top_k) X(window) X(sink) X(two_sources)  \
  X(rows) X(context) X(graph) X(pair) X(budget) X(memory)
// clang-format on
LATHE_ENUM(Rule, LATHE_RULES)

struct Reason {
  Rule rule = Rule::wish;
  std::string subject;  // whom it concerns: "native (sm90)", or a flag
  std::string field;
  std::string wanted;
  std::string offered;
  std::string hint;  // may be empty

  bool operator==(const Reason&) const = default;
};

/// A refused plan: a headline that names the configuration, the reasons, and changes that would
/// make it legal.
struct Refusal {
  std::string headline;
  std::vector<Reason> reasons;
  std::vector<std::string> suggestions;  // each a flag setting: "--kv-layout mla_fp8"
};

}  // namespace lathe
