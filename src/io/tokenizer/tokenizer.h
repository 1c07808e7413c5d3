// Tokenizer: converts text to ids and back, by a tokenizer.json of Hugging Face's tokenizers or a
// tiktoken.model.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "io/tokenizer/added_tokens.h"
#include "io/tokenizer/bpe.h"
#include "io/tokenizer/detokenizer.h"
#include "io/tokenizer/normalizer.h"
#include "io/tokenizer/pretokenizer.h"
#include "io/tokenizer/token_table.h"
#include "io/tokenizer/unigram.h"

namespace lathe {

struct TokenizerDescription;

/// Immutable, so threads may share one. docs/tokenizer.md lists what is supported.
class Tokenizer {
 public:
  /// `json` is the text of a tokenizer.json. Errors: malformed, unsupported and out_of_range, with
  /// the path of the key ("pre_tokenizer.pretokenizers[1].type").
  static Result<Tokenizer> parse(std::string_view json);
  /// `path`: a tokenizer.json or tiktoken.model, or a folder with one; the first is read if both
  /// are there. Errors: parse()'s, read_tiktoken()'s, check_model_path()'s, io.
  static Result<Tokenizer> load(const std::filesystem::path& path);

  /// The file that load(folder) reads: tokenizer.json, or tiktoken.model if it alone is there.
  static std::filesystem::path file_in(const std::filesystem::path& folder);

  /// Encodes any bytes. Added tokens, special ones included, are found in the text by name, so
  /// callers must keep their names out of untrusted text, or break them. A byte that is not UTF-8
  /// is a separate piece. `add_special_tokens` adds the tokens of the post-processor's template.
  /// `broken`: ascending offsets; an added token that has one of them inside is ordinary text.
  /// Errors: exhausted: a normaliser that makes the text too long (Normalizer::apply()), or a
  /// pattern that stops at its limit (Regex::find()); no published tokenizer does either. The same
  /// if `stop` was set meanwhile, which ends a long call early.
  Result<std::vector<std::int32_t>> encode(std::string_view text, bool add_special_tokens = false,
                                           std::span<const std::size_t> broken = {},
                                           const std::atomic<bool>* stop = nullptr) const;
  /// Ascending offsets that break each added token, of a normalised one only the normal form.
  std::vector<std::size_t> find_added_tokens(std::string_view text) const;

  /// UTF-8 text; invalid sequences become U+FFFD. Ids outside the vocabulary are skipped.
  std::string decode(std::span<const std::int32_t> ids,  // [n]
                     bool skip_special_tokens = false) const;
  /// The same without replacement: for a byte-level vocabulary, the input of encode(), unless the
  /// normaliser or pre-tokeniser changed it.
  std::string decode_bytes(std::span<const std::int32_t> ids,  // [n]
                           bool skip_special_tokens = false) const;
  Detokenizer detokenizer(bool skip_special_tokens = false) const;

  /// By the token's name in the vocabulary ("Ġthe", "<|im_end|>").
  std::optional<std::int32_t> id_of(std::string_view token) const;
  /// Whether the vocabulary has this id; ids may have gaps.
  bool has(std::int32_t id) const { return texts_->has(id); }
  /// The bytes that the token adds to a text. Precondition: has(id).
  const std::string& bytes_of(std::int32_t id) const;
  bool is_special(std::int32_t id) const;
  /// The highest id plus one.
  std::int32_t vocab_size() const { return static_cast<std::int32_t>(texts_->pieces.size()); }

 private:
  struct Work;
  explicit Tokenizer(TokenizerDescription description);
  static Result<Tokenizer> load_tiktoken(std::string_view ranks, const std::filesystem::path& path);
  static Result<Tokenizer> make(TokenizerDescription description);
  Result<void> encode_text(std::string_view text, bool first, Work& work) const;
  void encode_piece(std::string_view piece, Work& work) const;

  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  Bpe bpe_;
  std::optional<Unigram> unigram_;            // in place of bpe_
  TokenTable tokens_;                         // model and added tokens by name
  AddedTokenFinder added_;                    // searched for in the original text
  AddedTokenFinder added_normalized_;         // searched for in the normalised text
  std::vector<std::int32_t> before_, after_;  // template of the post-processor
  std::shared_ptr<const TokenTexts> texts_;   // shared with detokenizers
};

}  // namespace lathe
