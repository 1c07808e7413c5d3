#include "io/tokenizer/added_tokens.h"

#include <algorithm>

#include "io/text/utf8.h"

namespace lathe {
namespace {

std::size_t white_space_at_end(std::string_view text) {
  std::size_t n = 0;
  while (true) {
    const Utf8Char c = utf8_back(text.substr(0, text.size() - n));
    if (c.size == 0 || !is_white_space(c.code)) return n;
    n += static_cast<std::size_t>(c.size);
  }
}

std::size_t white_space_at_front(std::string_view text) {
  std::size_t n = 0;
  while (true) {
    const Utf8Char c = utf8_front(text.substr(n));
    if (!c.valid || !is_white_space(c.code)) return n;
    n += static_cast<std::size_t>(c.size);
  }
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)), ends_(1, -1) {
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    if (tokens_[i].content.empty()) continue;
    first_[static_cast<unsigned char>(tokens_[i].content[0])] = true;
    std::int32_t node = 0;
    for (const char c : tokens_[i].content) {
      const std::uint64_t key =
          static_cast<std::uint64_t>(node) << 8 | static_cast<unsigned char>(c);
      const auto [at, added] = next_.try_emplace(key, static_cast<std::int32_t>(ends_.size()));
      if (added) ends_.push_back(-1);
      node = at->second;
    }
    ends_[static_cast<std::size_t>(node)] = static_cast<std::int32_t>(i);
  }
  if (std::any_of(tokens_.begin(), tokens_.end(), [](const auto& t) { return t.single_word; })) {
    // A word character as defined by UTS 18, annex C.
    auto word =
        Regex::compile(R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}])", "single_word");
    LATHE_CHECK(word.ok(), "the pattern of a word character");
    word_ = std::move(*word);
  }
}

std::optional<std::pair<std::size_t, std::size_t>> AddedTokenFinder::longest(
    std::string_view text) const {
  std::optional<std::pair<std::size_t, std::size_t>> best;
  std::int32_t node = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::uint64_t key =
        static_cast<std::uint64_t>(node) << 8 | static_cast<unsigned char>(text[i]);
    const auto at = next_.find(key);
    if (at == next_.end()) break;
    node = at->second;
    const std::int32_t token = ends_[static_cast<std::size_t>(node)];
    if (token >= 0) best = {static_cast<std::size_t>(token), i + 1};
  }
  return best;
}

bool AddedTokenFinder::is_word(std::string_view character) const {
  Regex::Match match;
  return !character.empty() && word_->find(character, 0, match).has_value();
}

void AddedTokenFinder::find_breaks(std::string_view text, std::vector<std::size_t>& broken) const {
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (!first_[static_cast<unsigned char>(text[at])]) continue;
    const auto found = longest(text.substr(at));
    if (!found) continue;
    const auto first = static_cast<std::size_t>(utf8_front(text.substr(at)).size);
    if (found->second > first) broken.push_back(at + first);
  }
}

void AddedTokenFinder::split(std::string_view text, const OnPart& on_part,
                             std::span<const std::size_t> broken) const {
  std::size_t done = 0;  // end of the last part
  for (std::size_t at = 0; at < text.size();) {
    if (!first_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    const auto found = longest(text.substr(at));
    if (!found) {
      ++at;
      continue;
    }
    const auto inside = std::upper_bound(broken.begin(), broken.end(), at);
    if (inside != broken.end() && *inside < at + found->second) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[found->first];
    std::size_t begin = at;
    std::size_t end = at + found->second;
    at = end;
    if (token.single_word) {
      const Utf8Char before = utf8_back(text.substr(0, begin));
      const Utf8Char after = utf8_front(text.substr(end));
      if (is_word(text.substr(begin - static_cast<std::size_t>(before.size),
                              static_cast<std::size_t>(before.size))) ||
          (after.valid && is_word(text.substr(end, static_cast<std::size_t>(after.size))))) {
        continue;
      }
    }
    // The search continues after the token itself, not after the white space included with it, so a
    // token that begins with white space may begin before `done`.
    if (token.lstrip && begin > done) {
      begin -= white_space_at_end(text.substr(done, begin - done));
    }
    if (token.rstrip) end += white_space_at_front(text.substr(end));
    if (done < begin) on_part(text.substr(done, begin - done), -1);
    on_part(text.substr(begin, end - begin), token.id);
    done = end;
  }
  if (done < text.size()) on_part(text.substr(done), -1);
}

}  // namespace lathe
