#include "engine/request/stop_strings.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace lathe {

Result<StopStrings> StopStrings::create(std::vector<std::string> strings) {
  std::vector<Pattern> patterns;
  for (std::size_t s = 0; s < strings.size(); ++s) {
    Pattern p{std::move(strings[s]), {}};
    if (p.text.empty()) {
      return Error{ErrorCode::invalid_argument, fmt::format("stop[{}]", s), "a string",
                   "an empty one", "leave it out"};
    }
    p.border.resize(p.text.size());
    for (std::size_t i = 1, k = 0; i < p.text.size(); ++i) {
      while (k > 0 && p.text[i] != p.text[k]) k = p.border[k - 1];
      if (p.text[i] == p.text[k]) ++k;
      p.border[i] = k;
    }
    patterns.push_back(std::move(p));
  }
  return StopStrings(std::move(patterns));
}

std::string StopStrings::push(std::string piece, bool may_match) {
  if (matched()) return {};
  const std::vector<Pattern>& patterns = *patterns_;
  if (patterns.empty()) return piece;
  for (char c : piece) {
    held_.push_back(c);
    for (std::size_t s = 0; s < patterns.size(); ++s) {
      const Pattern& p = patterns[s];
      std::size_t& reached = reached_[s];
      while (reached > 0 && p.text[reached] != c) reached = p.border[reached - 1];
      if (p.text[reached] == c) ++reached;
      if (reached < p.text.size()) continue;
      if (!may_match) {
        reached = p.border.back();
        continue;
      }
      if (!matched() || p.text.size() > patterns[static_cast<std::size_t>(matched_)].text.size()) {
        matched_ = static_cast<int>(s);
      }
    }
    if (matched()) {
      held_.resize(held_.size() - patterns[static_cast<std::size_t>(matched_)].text.size());
      return std::exchange(held_, {});
    }
  }
  std::size_t keep = 0;
  for (const std::size_t reached : reached_) keep = std::max(keep, reached);
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, out.size());
  return out;
}

std::string StopStrings::flush() { return std::exchange(held_, {}); }

}  // namespace lathe
