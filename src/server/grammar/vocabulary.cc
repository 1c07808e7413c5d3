#include "server/grammar/vocabulary.h"

#include <algorithm>
#include <cstddef>

namespace lathe::grammar {

Vocabulary::Vocabulary(std::vector<std::string> texts) : texts_(std::move(texts)) {
  for (std::int32_t t = 0; t < std::ssize(texts_); ++t) {
    std::string& own = texts_[static_cast<std::size_t>(t)];
    if (std::ssize(own) > kLongestToken) own.clear();
    if (!own.empty()) tokens_.push_back(t);
  }
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [&](std::int32_t a, std::int32_t b) { return text(a) < text(b); });
  nodes_.push_back({0, 0, 0, 0});
  std::vector<std::size_t> path = {0};  // nodes from the root to the last one
  const auto close = [&](std::size_t depth) {
    while (path.size() > depth + 1) {
      nodes_[path.back()].end = static_cast<std::uint32_t>(nodes_.size());
      path.pop_back();
    }
  };
  std::string_view before;
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const std::string_view now = text(tokens_[i]);
    const auto common = static_cast<std::size_t>(
        std::mismatch(now.begin(), now.end(), before.begin(), before.end()).first - now.begin());
    close(common);
    for (std::size_t d = common; d < now.size(); ++d) {
      path.push_back(nodes_.size());
      nodes_.push_back({0, static_cast<std::uint32_t>(i), static_cast<std::uint8_t>(d + 1),
                        static_cast<std::uint8_t>(now[d])});
    }
    before = now;
  }
  close(0);
  nodes_[0].end = static_cast<std::uint32_t>(nodes_.size());
  // Tokens are sorted by text, and a text precedes its extensions: a node's tokens end where the
  // next node's begin.
  nodes_.push_back({0, static_cast<std::uint32_t>(tokens_.size()), 0, 0});
}

std::bitset<256> Vocabulary::bytes(std::span<const std::uint32_t> usable) const {
  std::bitset<256> out;
  for (const std::int32_t token : tokens_) {
    const std::string& own = text(token);
    if (own.size() == 1 && (usable.empty() || has_bit(usable, token))) {
      out.set(static_cast<std::uint8_t>(own[0]));
    }
  }
  return out;
}

}  // namespace lathe::grammar
