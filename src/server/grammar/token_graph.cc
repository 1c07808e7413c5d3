#include "server/grammar/token_graph.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "server/grammar/walk.h"

namespace lathe::grammar {
namespace {

// Bytes read and edges made: some 100 ms. Places need 1.2 KB each while the graph is made.
constexpr std::int64_t kMostWork = 1'000'000;
constexpr std::int64_t kMostPlaces = 20'000;

}  // namespace

class TokenGraph::Maker {
 public:
  Maker(const Automaton& automaton, const Vocabulary& vocabulary,
        std::span<const std::uint32_t> usable)
      : walk_(automaton) {
    trim_trie(vocabulary, usable);
  }

  bool explore(TokenGraph& out) {
    node_of(walk_.start());
    for (Node node = 0; node < places_.size(); ++node) {
      out.first_.push_back(static_cast<std::uint32_t>(out.edges_.size()));
      out.ends_.push_back(walk_.may_end(places_[node]));
      if (!visit(places_[node], out.edges_)) return false;
      const auto by_token = [](const Edge& a, const Edge& b) { return a.token < b.token; };
      std::sort(out.edges_.begin() + out.first_.back(), out.edges_.end(), by_token);
    }
    out.first_.push_back(static_cast<std::uint32_t>(out.edges_.size()));
    return true;
  }

  // Removes edges to nodes from which no text can be completed.
  static void drop_dead_ends(TokenGraph& graph) {
    const std::size_t nodes = graph.ends_.size();
    std::vector<std::vector<Node>> before(nodes);
    for (Node node = 0; node < nodes; ++node) {
      for (auto e = graph.first_[node]; e < graph.first_[node + 1]; ++e) {
        before[graph.edges_[e].to].push_back(node);
      }
    }
    std::vector<bool> live = graph.ends_;
    std::vector<Node> todo;
    for (Node node = 0; node < nodes; ++node) {
      if (live[node]) todo.push_back(node);
    }
    while (!todo.empty()) {
      const Node node = todo.back();
      todo.pop_back();
      for (const Node b : before[node]) {
        if (!live[b]) todo.push_back(b);
        live[b] = true;
      }
    }
    std::vector<Edge> kept;
    std::vector<std::uint32_t> first;
    for (Node node = 0; node < nodes; ++node) {
      first.push_back(static_cast<std::uint32_t>(kept.size()));
      for (auto e = graph.first_[node]; e < graph.first_[node + 1]; ++e) {
        if (live[graph.edges_[e].to]) kept.push_back(graph.edges_[e]);
      }
    }
    first.push_back(static_cast<std::uint32_t>(kept.size()));
    graph.edges_ = std::move(kept);
    graph.first_ = std::move(first);
  }

 private:
  // A node of the vocabulary's trie with usable tokens at it or below it.
  struct Branch {
    std::uint32_t end = 0;  // the first branch after its subtree
    std::uint8_t depth = 0;
    std::uint8_t byte = 0;
    std::vector<std::int32_t> tokens;
  };

  void trim_trie(const Vocabulary& vocabulary, std::span<const std::uint32_t> usable) {
    const auto nodes = vocabulary.nodes();
    const auto tokens = vocabulary.tokens();
    std::vector<std::size_t> path;  // branches from the first byte to the last one
    const auto close = [&](std::size_t depth) {
      while (path.size() >= depth) {
        Branch& last = trie_[path.back()];
        last.end = static_cast<std::uint32_t>(trie_.size());
        const bool used = !last.tokens.empty() || last.end > path.back() + 1;
        if (!used) trie_.pop_back();
        path.pop_back();
      }
    };
    for (std::size_t i = 1; i + 1 < nodes.size(); ++i) {
      close(nodes[i].depth);
      path.push_back(trie_.size());
      trie_.push_back({0, nodes[i].depth, nodes[i].byte, {}});
      for (std::uint32_t t = nodes[i].first_token; t < nodes[i + 1].first_token; ++t) {
        if (has_bit(usable, tokens[t])) trie_.back().tokens.push_back(tokens[t]);
      }
    }
    close(1);
  }

  Node node_of(Place place) {
    const auto [at, added] = node_of_.emplace(place, static_cast<Node>(places_.size()));
    if (added) places_.push_back(place);
    return at->second;
  }

  bool visit(Place from, std::vector<Edge>& edges) {
    path_[0] = from;
    for (std::uint32_t i = 0; i < trie_.size();) {
      const Branch& branch = trie_[i];
      if (++work_ > kMostWork || walk_.places() > kMostPlaces) return false;
      const Place to = walk_.step(path_[branch.depth - 1u], branch.byte);
      if (to == Walk::kNowhere) {
        i = branch.end;
        continue;
      }
      path_[branch.depth] = to;
      work_ += std::ssize(branch.tokens);
      for (const std::int32_t token : branch.tokens) edges.push_back({token, node_of(to)});
      i = walk_.goes_on(to) ? i + 1 : branch.end;
    }
    return true;
  }

  Walk walk_;
  std::vector<Branch> trie_;
  std::vector<Place> places_;  // [nodes]
  std::unordered_map<Place, Node> node_of_;
  std::array<Place, kLongestToken + 1> path_{};  // [depth]
  std::int64_t work_ = 0;
};

std::optional<TokenGraph> TokenGraph::make(const Automaton& automaton, const Vocabulary& vocabulary,
                                           std::span<const std::uint32_t> usable) {
  TokenGraph out;
  if (!Maker(automaton, vocabulary, usable).explore(out)) return std::nullopt;
  Maker::drop_dead_ends(out);
  return out;
}

void TokenGraph::fill(Node node, std::span<std::uint32_t> bits) const {
  std::ranges::fill(bits, 0u);
  for (auto e = first_[node]; e < first_[node + 1]; ++e) {
    const auto token = static_cast<std::uint32_t>(edges_[e].token);
    bits[token / 32] |= std::uint32_t{1} << (token % 32);
  }
}

std::optional<TokenGraph::Node> TokenGraph::step(Node node, std::int32_t token) const {
  const auto first = edges_.begin() + first_[node], last = edges_.begin() + first_[node + 1];
  const auto at = std::lower_bound(first, last, token,
                                   [](const Edge& e, std::int32_t t) { return e.token < t; });
  if (at == last || at->token != token) return std::nullopt;
  return at->to;
}

}  // namespace lathe::grammar
