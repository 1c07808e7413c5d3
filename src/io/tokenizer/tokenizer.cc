#include "io/tokenizer/tokenizer.h"

#include <algorithm>
#include <system_error>

#include "io/files/model_path.h"
#include "io/files/read_file.h"
#include "io/text/utf8.h"
#include "io/tokenizer/tiktoken.h"
#include "io/tokenizer/tokenizer_json.h"

namespace lathe {
namespace {

// Merging uses 32-bit indices. Longer pieces are cut, which changes no token of any known
// vocabulary.
constexpr std::size_t kMaxPiece = std::size_t{1} << 30;

}  // namespace

// Working memory of one encode() call.
struct Tokenizer::Work {
  Bpe::Scratch bpe;
  Unigram::Scratch unigram;
  PreTokenizer::Matches matches;
  std::string normalized;
  std::vector<std::int32_t> ids;
  const std::atomic<bool>* stop = nullptr;
  bool stopped() const { return stop != nullptr && stop->load(std::memory_order_relaxed); }
};

Result<Tokenizer> Tokenizer::parse(std::string_view json) {
  auto description = read_tokenizer_json(json);
  if (!description) return description.error();
  return make(std::move(*description));
}

Result<Tokenizer> Tokenizer::make(TokenizerDescription description) {
  for (const AddedToken& token : description.added_tokens) {
    if (!token.normalized) continue;
    std::string buffer;
    const auto normalized = description.normalizer.apply(token.content, buffer);
    if (!normalized) return normalized.error();
  }
  Tokenizer made(std::move(description));
  if (made.texts_->too_long) {
    return Error{ErrorCode::exhausted, "decoder", "tokens that it makes at most 64 times longer",
                 "longer ones", ""};
  }
  return made;
}

Result<Tokenizer> Tokenizer::load(const std::filesystem::path& path) {
  if (const auto ok = check_model_path(path.string()); !ok) return ok.error();
  std::error_code ec;
  const bool folder = std::filesystem::is_directory(path, ec);
  const auto file_path = folder ? file_in(path) : path;
  const auto text = read_file(file_path);
  if (!text) {
    Error error = text.error();
    if (folder && is_listed(path / "tokenizer.model")) {
      error.hint =
          "transformers writes it: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)";
    }
    return with_way_out(std::move(error));
  }
  if (file_path.extension() == ".model") return load_tiktoken(*text, file_path);
  auto tokenizer = parse(*text);
  if (tokenizer) return tokenizer;
  Error error = tokenizer.error();
  // Of the whole file, or of one of its values.
  const bool whole = error.field == "tokenizer.json";
  error.field = whole ? file_path.string() : file_path.string() + ": " + error.field;
  return with_way_out(std::move(error));
}

std::filesystem::path Tokenizer::file_in(const std::filesystem::path& folder) {
  const auto json = folder / "tokenizer.json";
  const auto ranks = folder / "tiktoken.model";
  return !is_listed(json) && is_listed(ranks) ? ranks : json;
}

Result<Tokenizer> Tokenizer::load_tiktoken(std::string_view ranks,
                                           const std::filesystem::path& path) {
  std::string config;
  const auto config_path = path.parent_path() / "tokenizer_config.json";
  if (is_listed(config_path)) {
    auto text = read_file(config_path);
    if (!text) return with_way_out(text.error());
    config = std::move(*text);
  }
  auto description = read_tiktoken(ranks, config);
  if (description) return make(std::move(*description));
  Error error = description.error();
  error.field = (path.parent_path() / "").string() + error.field;
  return with_way_out(std::move(error));
}

Tokenizer::Tokenizer(TokenizerDescription d)
    : normalizer_(std::move(d.normalizer)),
      pre_tokenizer_(std::move(d.pre_tokenizer)),
      before_(std::move(d.before)),
      after_(std::move(d.after)) {
  std::vector<std::string> names = d.model.tokens;  // [ids]
  if (d.unigram) {
    unigram_.emplace(std::move(*d.unigram));
  } else {
    bpe_ = Bpe(std::move(d.model));
  }
  std::vector<bool> special(names.size());
  std::vector<std::string> shown = names;  // the decoder's input
  std::vector<AddedToken> plain, normalized;
  for (AddedToken& token : d.added_tokens) {
    const auto id = static_cast<std::size_t>(token.id);
    if (id >= names.size()) {
      names.resize(id + 1);
      shown.resize(id + 1);
      special.resize(id + 1);
    }
    names[id] = token.content;
    special[id] = token.special;
    if (token.normalized) {
      std::string buffer;
      token.content = std::string(*normalizer_.apply(token.content, buffer));  // see parse()
    }
    shown[id] = token.content;
    (token.normalized ? normalized : plain).push_back(std::move(token));
  }
  added_ = AddedTokenFinder(std::move(plain));
  added_normalized_ = AddedTokenFinder(std::move(normalized));
  texts_ = std::make_shared<TokenTexts>(decode_vocabulary(d.decoder, shown, std::move(special)));
  tokens_ = TokenTable(std::move(names));
}

Result<std::vector<std::int32_t>> Tokenizer::encode(std::string_view text, bool add_special_tokens,
                                                    std::span<const std::size_t> broken,
                                                    const std::atomic<bool>* stop) const {
  Work work;
  work.stop = stop;
  Result<void> ok;
  work.matches = pre_tokenizer_.make_matches();
  work.ids.reserve(text.size() / 4 + 8);
  if (add_special_tokens) work.ids = before_;
  // Normalised text has other offsets, so a part that is normalised has no break inside.
  const auto next_break = [&](std::string_view part) {
    const auto at = static_cast<std::size_t>(part.data() - text.data());
    const auto next = std::upper_bound(broken.begin(), broken.end(), at);
    return next == broken.end() || added_normalized_.empty() ? std::string_view::npos : *next - at;
  };
  const auto on_part = [&](std::string_view part, std::int32_t id) {
    if (id >= 0) {
      work.ids.push_back(id);
      return;
    }
    while (!part.empty() && ok && !work.stopped()) {
      std::size_t valid = utf8_valid_prefix(part);
      const std::size_t to_break = next_break(part);
      const bool breaks = to_break < valid;
      valid = std::min(valid, to_break);
      ok = encode_text(part.substr(0, valid), part.data() == text.data(), work);
      part.remove_prefix(valid);
      if (breaks) continue;
      const auto invalid = static_cast<std::size_t>(utf8_front(part).size);
      for (std::size_t i = 0; i < invalid; ++i) encode_piece(part.substr(i, 1), work);
      part.remove_prefix(invalid);
    }
  };
  added_.split(text, on_part, broken);
  if (!ok) return ok.error();
  if (work.stopped()) {
    return Error{ErrorCode::exhausted, "text", "a caller that waits", "one that has left", ""};
  }
  for (const Regex::Match& match : work.matches) {
    if (match.stopped()) return search_stopped("pre_tokenizer");
  }
  if (add_special_tokens) work.ids.insert(work.ids.end(), after_.begin(), after_.end());
  return std::move(work.ids);
}

void Tokenizer::encode_piece(std::string_view piece, Work& work) const {
  if (unigram_) return unigram_->encode(piece, work.unigram, work.ids);
  bpe_.encode(piece, work.bpe, work.ids);
}

// `text` is valid UTF-8 without added tokens, except normalised ones; `first`: nothing is before
// it.
Result<void> Tokenizer::encode_text(std::string_view text, bool first, Work& work) const {
  const auto normalized = normalizer_.apply(text, work.normalized);
  if (!normalized) return normalized.error();
  text = *normalized;
  const PreTokenizer::Emit merge = [&](std::string_view piece) {
    if (work.stopped()) return;
    for (; piece.size() > kMaxPiece; piece.remove_prefix(kMaxPiece)) {
      encode_piece(piece.substr(0, kMaxPiece), work);
    }
    encode_piece(piece, work);
  };
  if (added_normalized_.empty()) {
    pre_tokenizer_.split(text, first, work.matches, merge);
    return {};
  }
  added_normalized_.split(text, [&](std::string_view part, std::int32_t id) {
    if (id >= 0) {
      work.ids.push_back(id);
    } else {
      pre_tokenizer_.split(part, first && part.data() == text.data(), work.matches, merge);
    }
  });
  return {};
}

std::vector<std::size_t> Tokenizer::find_added_tokens(std::string_view text) const {
  std::vector<std::size_t> out;
  added_.find_breaks(text, out);
  added_normalized_.find_breaks(text, out);
  std::ranges::sort(out);
  return out;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const {
  return join_text(*texts_, ids, skip_special_tokens);
}

std::string Tokenizer::decode_bytes(std::span<const std::int32_t> ids,
                                    bool skip_special_tokens) const {
  return join_bytes(*texts_, ids, skip_special_tokens);
}

Detokenizer Tokenizer::detokenizer(bool skip_special_tokens) const {
  return Detokenizer(texts_, skip_special_tokens);
}

std::optional<std::int32_t> Tokenizer::id_of(std::string_view token) const {
  const std::int32_t id = tokens_.find(token);
  return id < 0 ? std::nullopt : std::optional(id);
}

const std::string& Tokenizer::bytes_of(std::int32_t id) const {
  LATHE_CHECK(has(id), "bytes_of() an id outside the vocabulary");
  return texts_->pieces[static_cast<std::size_t>(id)];
}

bool Tokenizer::is_special(std::int32_t id) const {
  return has(id) && texts_->special[static_cast<std::size_t>(id)];
}

}  // namespace lathe
