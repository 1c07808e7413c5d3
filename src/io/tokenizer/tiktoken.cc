#include "io/tokenizer/tiktoken.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/json.h"
#include "io/text/base64.h"
#include "io/text/json_text.h"
#include "io/text/quote.h"
#include "io/text/utf8.h"
#include "io/tokenizer/byte_level.h"

namespace lathe {
namespace {

constexpr std::int32_t kSpecials = 256;       // ids after the last rank
constexpr std::size_t kMaxTokenBytes = 1024;  // bounds the time to find a token's merges
constexpr const char* kLine =
    "base64 of a token's bytes, at most 1024, then a space and the token's rank";

// Han alone; words, which may begin with another character and end in an English contraction, in
// either order of cases; numbers; the rest.
constexpr std::string_view kPattern =
    R"([\p{Han}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

Error bad_line(std::size_t line, std::string wanted, std::string_view offered) {
  return {ErrorCode::malformed, fmt::format("tiktoken.model, line {}", line), std::move(wanted),
          quote(offered.substr(0, 64)), ""};
}

// [ranks] tokens' bytes; empty: no token.
using Ranks = std::vector<std::string>;

Result<Ranks> read_ranks(std::string_view text) {
  Ranks out;
  std::size_t number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const std::size_t space = std::min(line.find(' '), line.size());
    const auto bytes = decode_base64(line.substr(0, space));
    const std::string_view digits = line.substr(std::min(space + 1, line.size()));
    std::int32_t rank = -1;
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    if (!bytes || bytes->size() > kMaxTokenBytes || digits.empty() || read.ec != std::errc() ||
        read.ptr != digits.data() + digits.size()) {
      return bad_line(number, kLine, line);
    }
    if (rank < 0 || rank >= kMaxTokenIds - kSpecials) {
      return bad_line(number, fmt::format("a rank from 0 to {}", kMaxTokenIds - kSpecials - 1),
                      line);
    }
    const auto id = static_cast<std::size_t>(rank);
    if (id >= out.size()) out.resize(id + 1);
    if (!out[id].empty()) return bad_line(number, "a rank that no other token has", line);
    out[id] = *bytes;
  }
  return out;
}

// Every way to cut a token into two others: what merges by rank, without a list of merges.
MergeTable merges_of(const Ranks& ranks, const TokenTable& table) {
  struct Pair {
    std::int32_t left, right, id;
  };
  std::vector<Pair> pairs;
  for (std::size_t id = 0; id < ranks.size(); ++id) {
    const std::string_view token = ranks[id];
    for (std::size_t cut = 1; cut < token.size(); ++cut) {
      const std::int32_t left = table.find(token.substr(0, cut));
      if (left < 0) continue;
      const std::int32_t right = table.find(token.substr(cut));
      if (right >= 0) pairs.push_back({left, right, static_cast<std::int32_t>(id)});
    }
  }
  MergeTable merges(pairs.size());
  for (const Pair& p : pairs) merges.set(p.left, p.right, {static_cast<std::uint32_t>(p.id), p.id});
  return merges;
}

Result<BpeModel> make_model(const Ranks& ranks) {
  const TokenTable table(ranks);
  BpeModel model;
  model.byte_level = true;
  model.ignore_merges = true;  // as tiktoken: a piece that is a token needs no merges
  for (int b = 0; b < 256; ++b) {
    if (table.find(std::string(1, static_cast<char>(b))) >= 0) continue;
    return Error{ErrorCode::malformed, "tiktoken.model", "every byte as a token",
                 fmt::format("none for byte 0x{:02X}", b), ""};
  }
  for (std::size_t id = 0; id < ranks.size(); ++id) {
    const std::string& token = ranks[id];
    if (!token.empty() && table.find(token) != static_cast<std::int32_t>(id)) {
      return Error{ErrorCode::malformed, "tiktoken.model", "no token twice",
                   fmt::format("ranks {} and {} of one token", table.find(token), id), ""};
    }
    std::string& name = model.tokens.emplace_back();
    for (const char c : token) append_utf8(name, byte_level_char(static_cast<std::uint8_t>(c)));
  }
  model.merges = merges_of(ranks, table);
  return model;
}

Error bad_key(std::string_view key, std::string wanted, std::string offered,
              ErrorCode code = ErrorCode::malformed) {
  return {code, fmt::format("tokenizer_config.json{}{}", key.empty() ? "" : ": ", key),
          std::move(wanted), std::move(offered), ""};
}

// Names of special tokens, by id.
Result<std::map<std::int32_t, AddedToken>> read_named(std::string_view config) {
  std::map<std::int32_t, AddedToken> out;
  if (config.empty()) return out;
  const auto json = parse_json(config, "tokenizer_config.json");
  if (!json) return json.error();
  if (!json->is_object()) return bad_key("", "an object", json_excerpt(*json));
  const auto type = json->find("tokenizer_class");
  if (type != json->end() && *type != "TikTokenTokenizer" && *type != "TikTokenV3Tokenizer") {
    return bad_key("tokenizer_class",
                   "TikTokenTokenizer: other code splits text by another pattern", type->dump(),
                   ErrorCode::unsupported);
  }
  const auto named = json->find("added_tokens_decoder");
  if (named == json->end()) return out;
  if (!named->is_object()) return bad_key("added_tokens_decoder", "an object", "another value");
  for (const auto& [key, value] : named->items()) {
    const std::string place = fmt::format("added_tokens_decoder[{}]", quote(key));
    AddedToken token;
    const auto read = std::from_chars(key.data(), key.data() + key.size(), token.id);
    if (read.ec != std::errc() || read.ptr != key.data() + key.size() || token.id < 0) {
      return bad_key(place, "ids as keys", quote(key));
    }
    const auto content = value.is_object() ? value.find("content") : value.end();
    if (!value.is_object() || content == value.end() || !content->is_string() ||
        content->get_ref<const std::string&>().empty()) {
      return bad_key(place, "an object with a text as `content`", "another value");
    }
    token.content = content->get<std::string>();
    token.special = value.value("special", nlohmann::json(false)) == true;
    out.emplace(token.id, std::move(token));
  }
  return out;
}

}  // namespace

Result<TokenizerDescription> read_tiktoken(std::string_view ranks, std::string_view config) {
  const auto read = read_ranks(ranks);
  if (!read) return read.error();
  auto model = make_model(*read);
  if (!model) return model.error();
  auto named = read_named(config);
  if (!named) return named.error();

  TokenizerDescription d;
  const auto first = static_cast<std::int32_t>(read->size());
  for (const auto& [id, token] : *named) {
    if (id >= first && id < first + kSpecials) continue;
    return bad_key("added_tokens_decoder",
                   fmt::format("ids from {} to {}", first, first + kSpecials - 1),
                   fmt::format("{}", id), ErrorCode::out_of_range);
  }
  std::map<std::string, std::int32_t> ids;
  for (std::int32_t id = first; id < first + kSpecials; ++id) {
    AddedToken token;
    token.id = id;
    token.content = fmt::format("<|reserved_token_{}|>", id);
    token.special = true;
    if (const auto it = named->find(id); it != named->end()) token = it->second;
    const auto [other, added] = ids.emplace(token.content, id);
    if (!added) {
      return bad_key("added_tokens_decoder", "no name twice",
                     fmt::format("{} for {} and {}", quote(token.content), other->second, id));
    }
    d.added_tokens.push_back(std::move(token));
  }
  std::vector<PreTokenizer::Step> steps(1);
  auto pattern = Regex::compile(kPattern, "tiktoken.model");
  if (!pattern) return pattern.error();
  steps[0].regex = std::move(*pattern);
  d.pre_tokenizer = PreTokenizer(std::move(steps));
  d.model = std::move(*model);
  d.decoder.byte_level = true;
  return d;
}

}  // namespace lathe
