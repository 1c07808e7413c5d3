#include "engine/draft/ngram_drafter.h"

#include <algorithm>

namespace lathe {
namespace {

std::uint64_t hash_of(std::span<const std::int32_t> gram) {
  std::uint64_t hash = 0x9e3779b97f4a7c15u;
  for (const std::int32_t token : gram) {
    hash = (hash ^ static_cast<std::uint32_t>(token)) * 0xff51afd7ed558ccdu;
    hash ^= hash >> 32;
  }
  return hash;
}

std::span<const std::int32_t> gram_before(std::span<const std::int32_t> tokens, std::int64_t end,
                                          std::int64_t size) {
  return tokens.subspan(static_cast<std::size_t>(end - size), static_cast<std::size_t>(size));
}

}  // namespace

// Indexes every n-gram that is followed by a token, so not the last ones.
void NgramDrafter::learn(Index& index, std::span<const std::int32_t> tokens) {
  for (; index.tokens + 1 < std::ssize(tokens); ++index.tokens) {
    const std::int64_t end = index.tokens + 1;
    for (std::int64_t size = kShortest; size <= std::min(kLongest, end); ++size) {
      index.after[static_cast<std::size_t>(size - kShortest)]
                 [hash_of(gram_before(tokens, end, size))] = end;
    }
  }
}

// Position after the latest earlier occurrence of the last tokens; 0: none.
std::int64_t NgramDrafter::find(const Index& index, std::span<const std::int32_t> tokens) {
  const std::int64_t n = std::ssize(tokens);
  for (std::int64_t size = std::min(kLongest, n); size >= kShortest; --size) {
    const auto gram = gram_before(tokens, n, size);
    const auto& places = index.after[static_cast<std::size_t>(size - kShortest)];
    const auto at = places.find(hash_of(gram));
    // Hashes may collide.
    if (at == places.end()) continue;
    if (std::ranges::equal(gram_before(tokens, at->second, size), gram)) return at->second;
  }
  return 0;
}

// Copies what followed, up to the end of the tokens.
void NgramDrafter::propose(std::span<DraftRequest> requests) {
  for (DraftRequest& r : requests) {
    Index& index = indices_[r.id.value];
    learn(index, r.tokens);
    const std::int64_t from = find(index, r.tokens);
    if (from == 0) continue;
    const std::int64_t n = std::min(r.most, std::ssize(r.tokens) - from);
    const auto run = r.tokens.subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(n));
    r.drafts.assign(run.begin(), run.end());
  }
}

}  // namespace lathe
