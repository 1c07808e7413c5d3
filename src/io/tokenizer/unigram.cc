#include "io/tokenizer/unigram.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>

#include "io/text/utf8.h"

namespace lathe {
namespace {

constexpr double kUnknownPenalty = 10;

}  // namespace

Unigram::Unigram(UnigramModel model) : model_(std::move(model)), by_text_(model_.tokens) {
  model_.tokens.clear();
  const auto& tokens = by_text_.strings();
  order_.resize(tokens.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::ranges::sort(order_, {}, [&](std::int32_t id) -> std::string_view {
    return tokens[static_cast<std::size_t>(id)];
  });
  if (!model_.scores.empty()) unk_score_ = *std::ranges::min_element(model_.scores);
  unk_score_ -= kUnknownPenalty;
}

// Viterbi, in the order of SentencePiece: of equal sums the token that begins first stays.
void Unigram::search(std::string_view piece, std::vector<Scratch::Best>& best) const {
  best.assign(piece.size() + 1, {});
  for (std::size_t at = 0; at < piece.size();) {
    const auto here = static_cast<std::int64_t>(at);
    const double so_far = best[at].score;
    const auto offer = [&](std::size_t size, std::int32_t id, double score) {
      Scratch::Best& end = best[at + size];
      if (end.begin < 0 || so_far + score > end.score) end = {so_far + score, here, id};
    };
    const Utf8Char c = utf8_front(piece.substr(at));
    const std::size_t character = c.valid ? static_cast<std::size_t>(c.size) : 1;
    bool known = false;
    std::span<const std::int32_t> same = order_;  // tokens that begin as the text does
    for (std::size_t size = 0; at + size < piece.size() && !same.empty(); ++size) {
      const auto byte = [&](std::int32_t id) {
        const std::string& token = by_text_.strings()[static_cast<std::size_t>(id)];
        return size < token.size() ? static_cast<unsigned char>(token[size]) : -1;
      };
      const int wanted = static_cast<unsigned char>(piece[at + size]);
      const auto first = std::ranges::lower_bound(same, wanted, {}, byte);
      same = {first, std::ranges::upper_bound(first, same.end(), wanted, {}, byte)};
      if (same.empty()) break;
      // The shortest of them is the first.
      const std::int32_t id = same.front();
      if (by_text_.strings()[static_cast<std::size_t>(id)].size() != size + 1) continue;
      offer(size + 1, id, model_.scores[static_cast<std::size_t>(id)]);
      known |= size + 1 == character;
    }
    if (!known) offer(character, -1, unk_score_);
    at += character;
  }
}

void Unigram::encode(std::string_view piece, Scratch& scratch,
                     std::vector<std::int32_t>& ids) const {
  search(piece, scratch.best);
  auto& parts = scratch.parts;  // from the end; a run of unknown characters is one
  parts.clear();
  bool in_run = false;
  for (auto end = static_cast<std::int64_t>(piece.size()); end > 0;) {
    const Scratch::Best& best = scratch.best[static_cast<std::size_t>(end)];
    const bool unknown = best.id < 0 || best.id == model_.unk;
    if (unknown && in_run) {
      parts.back().first = best.begin;
    } else {
      parts.emplace_back(best.begin, end);
    }
    in_run = unknown;
    end = best.begin;
  }
  std::ranges::reverse(parts);
  for (const auto& [begin, end] : parts) {
    add(piece.substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)), ids);
  }
}

void Unigram::add(std::string_view part, std::vector<std::int32_t>& ids) const {
  const std::int32_t id = by_text_.find(part);
  if (id >= 0) return ids.push_back(id);
  if (model_.byte_fallback) {
    const std::size_t before = ids.size();
    for (const char c : part) {
      const std::int32_t byte =
          by_text_.find(fmt::format("<0x{:02X}>", static_cast<std::uint8_t>(c)));
      if (byte < 0) break;
      ids.push_back(byte);
    }
    if (ids.size() == before + part.size()) return;
    ids.resize(before);
  }
  if (model_.unk >= 0) ids.push_back(model_.unk);
}

}  // namespace lathe
