#include "io/tokenizer/detokenizer.h"

#include <utility>

#include "io/text/utf8.h"

namespace lathe {
namespace {

// Calls each(id) for ids with text.
template <class Each>
void for_each_known(const TokenTexts& texts, std::span<const std::int32_t> ids,
                    bool skip_special_tokens, const Each& each) {
  for (const std::int32_t id : ids) {
    if (!texts.has(id)) continue;
    const auto i = static_cast<std::size_t>(id);
    if (!(skip_special_tokens && texts.special[i])) each(i);
  }
}

// How many of the first `most` characters equal the one to strip.
std::size_t strippable(const TokenTexts& texts, std::string_view text, std::int32_t most) {
  const std::size_t size = texts.strip.size();
  std::size_t n = 0;
  while (n < static_cast<std::size_t>(most) && text.substr(n * size).starts_with(texts.strip)) ++n;
  return n;
}

void strip_text(const TokenTexts& texts, std::string& out) {
  out.erase(0, texts.strip.size() * strippable(texts, out, texts.strip_count));
}

}  // namespace

std::string join_bytes(const TokenTexts& texts, std::span<const std::int32_t> ids,
                       bool skip_special_tokens) {
  std::string out;
  bool first = true;
  for_each_known(texts, ids, skip_special_tokens, [&](std::size_t i) {
    if (texts.spaced && !first) out.push_back(' ');
    out.append(texts.piece(i, first));
    first = false;
  });
  strip_text(texts, out);
  return out;
}

std::string join_text(const TokenTexts& texts, std::span<const std::int32_t> ids,
                      bool skip_special_tokens) {
  std::string out;
  if (texts.bytes || texts.spaced) {
    append_lossy_utf8(out, join_bytes(texts, ids, skip_special_tokens));
    return out;
  }
  std::string run;  // of ByteFallback tokens
  bool first = true;
  const auto end_run = [&] {
    if (utf8_valid_prefix(run) == run.size()) {
      out.append(run);
    } else {
      for (std::size_t n = 0; n < run.size(); ++n) out.append(kReplacement);
    }
    run.clear();
  };
  for_each_known(texts, ids, skip_special_tokens, [&](std::size_t i) {
    if (texts.is_byte[i]) {
      run.append(texts.pieces[i]);
    } else {
      end_run();
      out.append(texts.piece(i, first));
    }
    first = false;
  });
  end_run();
  strip_text(texts, out);
  return out;
}

// Whether the piece's first byte belongs to the unfinished character.
bool Detokenizer::continues(std::string_view piece) const {
  const std::string begun = pending_ + std::string(piece.substr(0, 1));
  if (utf8_valid_prefix(begun) == begun.size()) return true;
  std::string out;
  return append_lossy_utf8(out, begun, /*keep_tail=*/true) == 0;
}

std::string Detokenizer::push(std::int32_t id) {
  std::string out;
  gave_up_ = false;
  for_each_known(*texts_, std::span(&id, 1), skip_special_tokens_, [&](std::size_t i) {
    // Text cannot complete the bytes before it.
    const bool text = !texts_->bytes && !texts_->is_byte[i];
    const bool spaced = texts_->spaced && !first_;
    const std::string& piece = texts_->piece(i, std::exchange(first_, false));
    if (!pending_.empty()) gave_up_ = text || spaced || !continues(piece);
    if (text) append_lossy_utf8(out, std::exchange(pending_, {}));
    if (spaced) pending_.push_back(' ');
    if (pending_.empty() && utf8_valid_prefix(piece) == piece.size()) {  // nearly always
      out.append(piece);
      return;
    }
    pending_.append(piece);
    pending_.erase(0, append_lossy_utf8(out, pending_, /*keep_tail=*/true));
  });
  if (stripped_ != texts_->strip_count) strip_front(out);
  return out;
}

std::string Detokenizer::flush() {
  std::string out;
  append_lossy_utf8(out, std::exchange(pending_, {}));
  if (stripped_ != texts_->strip_count) strip_front(out);
  first_ = true;
  stripped_ = 0;
  return out;
}

void Detokenizer::strip_front(std::string& out) {
  if (out.empty()) return;
  const std::size_t n = strippable(*texts_, out, texts_->strip_count - stripped_);
  out.erase(0, n * texts_->strip.size());
  // Any other character ends the stripping.
  stripped_ = out.empty() ? stripped_ + static_cast<std::int32_t>(n) : texts_->strip_count;
}

}  // namespace lathe
