#include "attn/capability.h"

#include <fmt/format.h>

#include <algorithm>

namespace lathe {

bool Accepts::contains(std::int64_t v) const {
  if (!only.empty()) return std::find(only.begin(), only.end(), v) != only.end();
  return v >= min && v <= max && v % multiple == 0;
}

std::string Accepts::text() const {
  if (!only.empty()) {
    std::string out;
    for (std::size_t i = 0; i < only.size(); ++i) {
      if (i > 0) out += i + 1 == only.size() ? " or " : ", ";
      out += fmt::format("{}", only[i]);
    }
    return out;
  }
  std::string out = multiple > 1 ? fmt::format("a multiple of {}", multiple) : "";
  const bool lower = min > multiple;
  if (max < INT32_MAX) {
    out += fmt::format("{}{} to {}", out.empty() ? "" : " from ", min, max);
  } else if (lower) {
    out += fmt::format("{}at least {}", out.empty() ? "" : ", ", min);
  }
  return out.empty() ? "any" : out;
}

}  // namespace lathe
