#include "io/tokenizer/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>

#include "base/check.h"
#include "io/text/utf8.h"
#include "io/tokenizer/byte_level.h"

namespace lathe {
namespace {

// Up to this many symbols, scanning them all for the lowest rank beats a heap.
constexpr std::size_t kShort = 32;

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

}  // namespace

MergeTable::MergeTable(std::size_t merges)
    : slots_(std::bit_ceil(2 * merges + 2)), shift_(64 - std::countr_zero(slots_.size())) {}

std::size_t MergeTable::slot_of(std::uint64_t key) const {
  std::size_t at = key * 0x9E3779B97F4A7C15u >> shift_;
  while (slots_[at].key != key && slots_[at].key != kEmpty) at = (at + 1) & (slots_.size() - 1);
  return at;
}

void MergeTable::set(std::int32_t left, std::int32_t right, Merge merge) {
  const std::uint64_t key = pair_key(left, right);
  slots_[slot_of(key)] = {key, merge};
}

MergeTable::Merge MergeTable::find(std::int32_t left, std::int32_t right) const {
  return slots_[slot_of(pair_key(left, right))].merge;
}

Bpe::Bpe(BpeModel model) : by_text_(std::move(model.tokens)), model_(std::move(model)) {
  if (model_.byte_level) {
    for (unsigned b = 0; b < 256; ++b) {
      std::string symbol;
      append_utf8(symbol, byte_level_char(static_cast<std::uint8_t>(b)));
      byte_ids_[b] = by_text_.find(symbol);
    }
  }
  std::vector<std::string> whole(by_text_.strings().size());
  Scratch scratch;
  std::vector<std::int32_t> ids;
  for (std::size_t id = 0; id < whole.size(); ++id) {
    const std::string& token = by_text_.strings()[id];
    std::string text = model_.byte_level ? byte_level_bytes(token).value_or("") : token;
    ids.clear();
    if (!model_.ignore_merges) encode(text, scratch, ids);
    const bool itself = ids.size() == 1 && ids[0] == static_cast<std::int32_t>(id);
    if (model_.ignore_merges || itself) whole[id] = std::move(text);
  }
  whole_ = TokenTable(std::move(whole));
}

void Bpe::encode(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids) const {
  const std::int32_t id = whole_.find(piece);
  if (id >= 0) {
    ids.push_back(id);
    return;
  }
  to_symbols(piece, scratch.symbols);
  merge(scratch, ids);
}

void Bpe::to_symbols(std::string_view piece, std::vector<Scratch::Symbol>& out) const {
  out.clear();
  bool unk_pending = false;
  const auto add = [&](std::int32_t id, std::string_view character) {
    if (id < 0) return add_unknown(character, unk_pending, out);
    if (unk_pending) out.push_back({model_.unk, 0, 0, 0, 0});
    unk_pending = false;
    out.push_back({id, 0, 0, 0, 0});
  };
  if (model_.byte_level) {
    for (const char c : piece) {
      const auto byte = static_cast<std::uint8_t>(c);
      if (byte_ids_[byte] >= 0) {
        add(byte_ids_[byte], {});
      } else {
        std::string symbol;
        append_utf8(symbol, byte_level_char(byte));
        add(-1, symbol);
      }
    }
  } else {
    for (std::size_t at = 0; at < piece.size();) {
      const Utf8Char c = utf8_front(piece.substr(at));
      const std::string_view character =
          piece.substr(at, c.valid ? static_cast<std::size_t>(c.size) : 1);
      add(by_text_.find(character), character);
      at += character.size();
    }
  }
  if (unk_pending) out.push_back({model_.unk, 0, 0, 0, 0});
}

// Order as in HF tokenizers: a character's byte tokens go before a pending unk.
void Bpe::add_unknown(std::string_view character, bool& unk_pending,
                      std::vector<Scratch::Symbol>& out) const {
  if (model_.byte_fallback) {
    std::array<std::int32_t, 4> bytes;
    std::size_t n = 0;
    for (const char c : character) {
      bytes[n] = by_text_.find(fmt::format("<0x{:02X}>", static_cast<std::uint8_t>(c)));
      if (bytes[n] < 0) break;
      ++n;
    }
    if (n == character.size()) {
      for (std::size_t i = 0; i < n; ++i) out.push_back({bytes[i], 0, 0, 0, 0});
      return;
    }
  }
  if (model_.unk < 0) return;
  if (unk_pending && !model_.fuse_unk) out.push_back({model_.unk, 0, 0, 0, 0});
  unk_pending = true;
}

void Bpe::merge(Scratch& scratch, std::vector<std::int32_t>& ids) const {
  auto& symbols = scratch.symbols;
  for (std::size_t i = 0; i < symbols.size(); ++i) {
    symbols[i].rank = MergeTable::kNoRank;
    if (i + 1 == symbols.size()) break;
    const auto found = model_.merges.find(symbols[i].id, symbols[i + 1].id);
    symbols[i].rank = found.rank;
    symbols[i].merged = found.id;
  }
  if (symbols.size() <= kShort) {
    merge_short(scratch);
    for (const auto& s : symbols) ids.push_back(s.id);
  } else {
    merge_long(scratch);
    for (std::int32_t i = 0; i >= 0; i = symbols[static_cast<std::size_t>(i)].next) {
      ids.push_back(symbols[static_cast<std::size_t>(i)].id);
    }
  }
}

void Bpe::merge_short(Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  const auto look_up = [&](std::size_t i) {
    const auto found = i + 1 < symbols.size() ? model_.merges.find(symbols[i].id, symbols[i + 1].id)
                                              : MergeTable::Merge{};
    symbols[i].rank = found.rank;
    symbols[i].merged = found.id;
  };
  while (symbols.size() > 1) {
    const auto best = std::min_element(symbols.begin(), symbols.end(),
                                       [](auto& a, auto& b) { return a.rank < b.rank; });
    if (best->rank == MergeTable::kNoRank) return;
    const auto i = static_cast<std::size_t>(best - symbols.begin());
    symbols[i].id = symbols[i].merged;
    symbols.erase(best + 1);
    look_up(i);
    if (i > 0) look_up(i - 1);
  }
}

void Bpe::merge_long(Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  const auto at = [&](std::int32_t i) -> Scratch::Symbol& {
    return symbols[static_cast<std::size_t>(i)];
  };
  const auto push = [&](std::int32_t i) {
    if (at(i).rank == MergeTable::kNoRank) return;
    heap.push_back(static_cast<std::uint64_t>(at(i).rank) << 32 | static_cast<std::uint32_t>(i));
    std::push_heap(heap.begin(), heap.end(), std::greater<>{});
  };
  const auto look_up = [&](std::int32_t i) {
    const auto found =
        at(i).next >= 0 ? model_.merges.find(at(i).id, at(at(i).next).id) : MergeTable::Merge{};
    at(i).rank = found.rank;
    at(i).merged = found.id;
    push(i);
  };
  const auto size = static_cast<std::int32_t>(symbols.size());
  heap.clear();
  for (std::int32_t i = 0; i < size; ++i) {
    at(i).prev = i - 1;
    at(i).next = i + 1 < size ? i + 1 : -1;
    push(i);
  }
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>{});
    const std::uint64_t top = heap.back();
    heap.pop_back();
    const auto i = static_cast<std::int32_t>(top & UINT32_MAX);
    // An entry is stale if its pair is gone: a merge with a neighbour has changed the symbol's
    // rank, or has merged the symbol away, which clears it.
    if (at(i).rank != top >> 32) continue;
    const std::int32_t gone = at(i).next;
    at(i).id = at(i).merged;
    at(i).next = at(gone).next;
    at(gone).rank = MergeTable::kNoRank;
    if (at(i).next >= 0) at(at(i).next).prev = i;
    look_up(i);
    if (at(i).prev >= 0) look_up(at(i).prev);
  }
}

}  // namespace lathe
