#include "server/grammar/text_search.h"

#include <array>
#include <cstdint>
#include <span>

namespace lathe::grammar {
namespace {

// Where reading goes on after each text that is a beginning of a pattern (Aho and Corasick 1975).
struct Searcher {
  struct Node {
    std::array<std::uint16_t, 256> next{};
    std::uint16_t shorter = 0;  // the longest end of its text that is a node
    int pattern = -1;           // that its text, or an end of it, is
  };
  std::vector<Node> nodes = std::vector<Node>(1);

  explicit Searcher(std::span<const std::string> patterns) {
    for (std::size_t p = 0; p < patterns.size(); ++p) {
      if (patterns[p].empty()) continue;
      std::uint16_t at = 0;
      for (const char c : patterns[p]) {
        const auto byte = static_cast<std::uint8_t>(c);
        if (nodes[at].next[byte] == 0) {
          nodes[at].next[byte] = static_cast<std::uint16_t>(nodes.size());
          nodes.emplace_back();
        }
        at = nodes[at].next[byte];
      }
      nodes[at].pattern = static_cast<int>(p);
    }
    std::vector<std::uint16_t> queue = {0};  // breadth first
    for (std::size_t i = 0; i < queue.size(); ++i) {
      const std::uint16_t at = queue[i];
      for (std::size_t byte = 0; byte < 256; ++byte) {
        const std::uint16_t to = nodes[at].next[byte];
        const std::uint16_t other = at == 0 ? 0 : nodes[nodes[at].shorter].next[byte];
        if (to == 0) {
          nodes[at].next[byte] = other;
          continue;
        }
        nodes[to].shorter = other;
        if (nodes[to].pattern < 0) nodes[to].pattern = nodes[other].pattern;
        queue.push_back(to);
      }
    }
  }
};

}  // namespace

State add_until(Builder& b, State from, std::string_view mark, const UntilOptions& options) {
  std::vector<std::string> patterns = {std::string(mark)};
  patterns.insert(patterns.end(), options.avoided.begin(), options.avoided.end());
  const Searcher searcher(patterns);
  const State found = b.state(from);
  std::vector<State> states = {b.state(from)};  // [nodes]
  for (std::size_t i = 1; i < searcher.nodes.size(); ++i) states.push_back(b.state(from));
  const auto add = [&](State state, const Searcher::Node& node, std::string_view skipped) {
    if (options.stop) b.skip(state, *options.stop);
    const auto skips = [&](int byte) {
      return skipped.find(static_cast<char>(byte)) != std::string_view::npos;
    };
    for (int first = 0; first < 256;) {
      const std::uint16_t to = node.next[static_cast<std::size_t>(first)];
      int last = first;
      while (last < 255 && node.next[static_cast<std::size_t>(last + 1)] == to && !skips(last) &&
             !skips(last + 1)) {
        ++last;
      }
      const int pattern = searcher.nodes[to].pattern;
      if (pattern <= 0 && !skips(first)) {
        b.bytes(state, static_cast<std::uint8_t>(first), static_cast<std::uint8_t>(last),
                pattern == 0 ? found : states[to]);
      }
      first = last + 1;
    }
  };
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (searcher.nodes[i].pattern < 0) add(states[i], searcher.nodes[i], "");
  }
  if (options.not_first.empty()) {
    b.skip(from, states[0]);
    return found;
  }
  const State first = b.state(from);
  b.skip(from, first);
  add(first, searcher.nodes[0], options.not_first);
  return found;
}

}  // namespace lathe::grammar
