#include "io/tokenizer/bpe.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace lathe {
namespace {

using Ids = std::vector<std::int32_t>;
using Pair = std::pair<std::int32_t, std::int32_t>;

// A vocabulary over a, b, c with random merges, and BPE by its definition: apply the merge of
// lowest rank, leftmost first, until none applies.
struct RandomModel {
  BpeModel model;
  std::map<Pair, MergeTable::Merge> merges;

  RandomModel(std::uint32_t seed, std::size_t count) {
    model.tokens = {"a", "b", "c"};
    model.merges = MergeTable(count);
    std::map<std::string, std::int32_t> ids = {{"a", 0}, {"b", 1}, {"c", 2}};
    std::mt19937 random(seed);
    for (std::uint32_t rank = 0; rank < count; ++rank) {
      const auto pick = [&] { return static_cast<std::int32_t>(random() % model.tokens.size()); };
      const Pair pair = {pick(), pick()};
      const std::string text = model.tokens[static_cast<std::size_t>(pair.first)] +
                               model.tokens[static_cast<std::size_t>(pair.second)];
      if (text.size() > 12 || merges.count(pair) != 0) continue;
      // Two pairs may give the same token.
      const auto [at, added] = ids.emplace(text, static_cast<std::int32_t>(model.tokens.size()));
      if (added) model.tokens.push_back(text);
      merges[pair] = {rank, at->second};
      model.merges.set(pair.first, pair.second, merges[pair]);
    }
  }

  Ids encode(const std::string& text) const {
    Ids ids;
    for (const char c : text) ids.push_back(c - 'a');
    while (true) {
      MergeTable::Merge best;
      std::size_t where = 0;
      for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
        const auto at = merges.find({ids[i], ids[i + 1]});
        if (at == merges.end() || at->second.rank >= best.rank) continue;
        best = at->second;
        where = i;
      }
      if (best.rank == MergeTable::kNoRank) return ids;
      ids[where] = best.id;
      ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(where) + 1);
    }
  }
};

TEST(Bpe, MergesByTheDefinition) {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    const RandomModel oracle(seed, 5 + seed * 4);
    const Bpe bpe(oracle.model);
    Bpe::Scratch scratch;
    std::mt19937 random(seed);
    // Short pieces are scanned, long ones use a heap.
    for (const std::size_t size : {1u, 2u, 3u, 5u, 8u, 31u, 32u, 33u, 34u, 70u, 300u}) {
      std::string text;
      while (text.size() < size) text.push_back(static_cast<char>('a' + random() % 3));
      Ids ids;
      bpe.encode(text, scratch, ids);
      EXPECT_EQ(ids, oracle.encode(text)) << text;
    }
    for (const std::string& token : oracle.model.tokens) {
      Ids ids;
      bpe.encode(token, scratch, ids);
      EXPECT_EQ(ids, oracle.encode(token)) << token;
    }
  }
}

TEST(Bpe, TakesAWholeTokenWhereMergesAreIgnored) {
  BpeModel model;
  model.tokens = {"a", "b", "", "ab"};  // id 2 is a gap; no merge gives "ab"
  Bpe::Scratch scratch;
  Ids ids;
  Bpe(model).encode("ab", scratch, ids);
  EXPECT_EQ(ids, (Ids{0, 1}));
  model.ignore_merges = true;
  ids.clear();
  Bpe(model).encode("ab", scratch, ids);
  EXPECT_EQ(ids, Ids{3});
}

TEST(Bpe, KnowsUnknownCharacters) {
  BpeModel model;
  model.tokens = {"?", "a", "<0xC3>", "<0xA9>"};
  Bpe::Scratch scratch;
  const auto encode = [&](const char* text) {
    Ids ids;
    Bpe(model).encode(text, scratch, ids);
    return ids;
  };
  EXPECT_EQ(encode("xaxx"), Ids{1});  // dropped
  model.unk = 0;
  EXPECT_EQ(encode("xaxx"), (Ids{0, 1, 0, 0}));
  model.fuse_unk = true;
  EXPECT_EQ(encode("xaxx"), (Ids{0, 1, 0}));
  model.byte_fallback = true;
  EXPECT_EQ(encode("a\u00E9x"), (Ids{1, 2, 3, 0}));
  EXPECT_EQ(encode("a\xC3"), (Ids{1, 2}));
}

}  // namespace
}  // namespace lathe
