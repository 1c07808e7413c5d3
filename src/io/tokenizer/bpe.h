// Byte-pair encoding of a piece of text: applies the merge of lowest rank, the leftmost of equal
// ones, until none applies.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer/token_table.h"

namespace lathe {

/// (left id, right id) → (rank, id of the merged token), open addressing.
class MergeTable {
 public:
  struct Merge {
    std::uint32_t rank = kNoRank;
    std::int32_t id = -1;
  };
  static constexpr std::uint32_t kNoRank = UINT32_MAX;

  MergeTable() : MergeTable(0) {}
  explicit MergeTable(std::size_t merges);
  /// The last value of a repeated pair wins. At most `merges` pairs.
  void set(std::int32_t left, std::int32_t right, Merge merge);
  Merge find(std::int32_t left, std::int32_t right) const;

 private:
  struct Slot {
    std::uint64_t key = kEmpty;
    Merge merge;
  };
  static constexpr std::uint64_t kEmpty = UINT64_MAX;
  std::size_t slot_of(std::uint64_t key) const;

  std::vector<Slot> slots_;  // [power of two]
  int shift_ = 0;
};

/// The BPE model of a tokenizer.json.
struct BpeModel {
  std::vector<std::string> tokens;  // [ids] as in the file; empty: unused id
  MergeTable merges;
  bool byte_level = false;     // a byte is a symbol, written in the byte-level alphabet
  bool ignore_merges = false;  // a piece that is a token needs no merges
  bool byte_fallback = false;  // an unknown character becomes tokens <0xHH>
  std::int32_t unk = -1;       // for other unknown characters; -1: drop them
  bool fuse_unk = false;       // a run of unknown characters is one unk
};

class Bpe {
 public:
  /// A thread's working memory, reused across pieces.
  struct Scratch {
    struct Symbol {
      std::int32_t id;
      std::int32_t prev;    // -1: none
      std::int32_t next;    // -1: none
      std::uint32_t rank;   // of the merge with `next`; kNoRank: none
      std::int32_t merged;  // id of the merged token
    };
    std::vector<Symbol> symbols;
    std::vector<std::uint64_t> heap;  // rank << 32 | index of the left symbol
  };

  /// Encodes the text of every token once, to find the tokens that encode to themselves.
  explicit Bpe(BpeModel model);
  Bpe() : Bpe(BpeModel{}) {}

  /// Appends the ids of `piece` (any bytes; not normalised, not split). O(n log n).
  void encode(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids) const;

 private:
  void to_symbols(std::string_view piece, std::vector<Scratch::Symbol>& out) const;
  void add_unknown(std::string_view character, bool& unk_pending,
                   std::vector<Scratch::Symbol>& out) const;
  void merge(Scratch& scratch, std::vector<std::int32_t>& ids) const;
  void merge_short(Scratch& scratch) const;
  void merge_long(Scratch& scratch) const;

  TokenTable by_text_;
  BpeModel model_;  // its tokens are moved to by_text_
  // Pieces that are a single token, found without merging. Keys are bytes of the text.
  TokenTable whole_;
  std::array<std::int32_t, 256> byte_ids_{};  // byte_level: symbol of a byte, -1: unknown
};

}  // namespace lathe
