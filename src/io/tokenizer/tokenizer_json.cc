#include "io/tokenizer/tokenizer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/json.h"
#include "io/text/base64.h"
#include "io/text/json_text.h"
#include "io/text/utf8.h"

namespace lathe {
namespace {

using SortedJson = nlohmann::json;

constexpr std::size_t kMaxAddedTokenBytes = 4096;  // bounds the time to search for them
constexpr std::size_t kMaxSteps = 64;              // in a sequence, nested ones included
constexpr int kMaxDepth = 8;                       // of nested sequences

// Thrown inside this file only; read_tokenizer_json() turns it into an Error.
struct Refused {
  Error error;
};

// A JSON value with its path, for messages such as "decoder.decoders[0].type".
class Node {
 public:
  Node(const SortedJson& json, std::string path) : json_(json), path_(std::move(path)) {}

  // The value of `key`; a null Node if absent.
  Node get(std::string_view key) const {
    static const SortedJson kNull;
    if (!json_.is_object()) fail("an object");
    const auto it = json_.find(key);
    return Node(it == json_.end() ? kNull : *it,
                path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key));
  }
  std::vector<Node> items() const {
    if (!json_.is_array()) fail("an array");
    std::vector<Node> out;
    out.reserve(json_.size());
    for (std::size_t i = 0; i < json_.size(); ++i) out.push_back(item(i));
    return out;
  }
  Node item(std::size_t i) const { return Node(json_[i], fmt::format("{}[{}]", path_, i)); }
  bool is_null() const { return json_.is_null(); }
  const SortedJson& json() const { return json_; }
  const std::string& path() const { return path_; }

  const std::string& text() const {
    if (!json_.is_string()) fail("a string");
    return json_.get_ref<const std::string&>();
  }
  // Empty if absent or null.
  std::string text_or_empty() const { return is_null() ? std::string() : text(); }
  bool boolean() const {
    if (!json_.is_boolean()) fail("true or false");
    return json_.get<bool>();
  }
  bool boolean_or(bool otherwise) const { return is_null() ? otherwise : boolean(); }
  std::int32_t integer(std::int32_t below) const {
    const auto wanted = [&] { return fmt::format("an integer from 0 to {}", below - 1); };
    if (!json_.is_number_integer()) fail(wanted());
    // Only negative integers are not stored as unsigned.
    if (!json_.is_number_unsigned() ||
        json_.get<std::uint64_t>() >= static_cast<std::uint64_t>(below)) {
      fail(wanted(), ErrorCode::out_of_range);
    }
    return json_.get<std::int32_t>();
  }
  template <class E>
  E one_of() const {
    const auto e = parse_enum<E>(text());
    if (!e) fail("one of " + known_names<E>(), ErrorCode::unsupported);
    return *e;
  }
  [[noreturn]] void fail(std::string wanted, ErrorCode code = ErrorCode::malformed,
                         std::string hint = "") const {
    throw Refused{{code, path_.empty() ? "tokenizer.json" : path_, std::move(wanted), excerpt(),
                   std::move(hint)}};
  }

 private:
  // Does not print containers: their depth is unbounded.
  std::string excerpt() const {
    if (json_.is_null()) return "nothing";
    if (json_.is_array()) return fmt::format("an array of {}", json_.size());
    if (json_.is_object()) return "an object";
    return json_excerpt(json_);
  }

  const SortedJson& json_;
  std::string path_;
};

template <class T>
T taken(Result<T> result) {
  if (!result) throw Refused{result.error()};
  return std::move(*result);
}

// {"String": "..."} or {"Regex": "..."}
Regex read_pattern(const Node& pattern) {
  if (const Node regex = pattern.get("Regex"); !regex.is_null()) {
    return taken(Regex::compile(regex.text(), regex.path()));
  }
  const Node literal = pattern.get("String");
  if (literal.is_null()) pattern.fail(R"({"Regex": ...} or {"String": ...})");
  return taken(Regex::literal(literal.text(), literal.path()));
}

// Calls each(node, type) for a component; for a Sequence, for each component listed under `key`, in
// order.
template <class Each>
void flatten(const Node& node, const char* key, int depth, std::size_t& steps, const Each& each) {
  if (node.is_null()) return;
  const std::string& type = node.get("type").text();
  if (++steps > kMaxSteps || depth > kMaxDepth) {
    node.fail(fmt::format("at most {} steps, {} deep", kMaxSteps, kMaxDepth));
  }
  if (type != "Sequence") return each(node, type);
  for (const Node& item : node.get(key).items()) flatten(item, key, depth + 1, steps, each);
}

template <class Each>
void for_each_step(const Node& node, const char* key, const Each& each) {
  std::size_t steps = 0;
  flatten(node, key, 0, steps, each);
}

Charsmap read_charsmap(const Node& n) {
  const auto bytes = decode_base64(n.text());
  auto map = bytes ? Charsmap::parse(*bytes) : std::nullopt;
  if (!map) n.fail("base64 of SentencePiece's trie and replacements");
  return std::move(*map);
}

Normalizer read_normalizer(const Node& node) {
  std::vector<Normalizer::Step> steps;
  for_each_step(node, "normalizers", [&](const Node& n, const std::string&) {
    Normalizer::Step step;
    step.kind = n.get("type").one_of<NormalizerKind>();
    if (step.kind == NormalizerKind::Prepend) step.text = n.get("prepend").text();
    if (step.kind == NormalizerKind::Replace) {
      step.text = n.get("content").text();
      step.regex = read_pattern(n.get("pattern"));
    }
    if (step.kind == NormalizerKind::Precompiled) {
      step.charsmap = read_charsmap(n.get("precompiled_charsmap"));
    }
    steps.push_back(std::move(step));
  });
  return Normalizer(std::move(steps));
}

// Names as in tokenizer.json.
#define LATHE_PRE_TOKENIZER_KINDS(X) X(Split) X(ByteLevel) X(Digits) X(Punctuation) X(Metaspace)
}  // namespace
LATHE_ENUM(PreTokenizerKind, LATHE_PRE_TOKENIZER_KINDS)
#define LATHE_PREPEND_SCHEMES(X) X(always) X(first) X(never)
LATHE_ENUM(PrependScheme, LATHE_PREPEND_SCHEMES)
namespace {

// The pattern of GPT-2's original tokenizer.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::string read_character(const Node& n) {
  const std::string& text = n.text();
  const Utf8Char c = utf8_front(text);
  if (!c.valid || static_cast<std::size_t>(c.size) != text.size()) n.fail("one character");
  return text;
}

struct Metaspace {
  std::string mark;  // replaces spaces
  PrependScheme prepend = PrependScheme::always;
};

// A pre-tokenizer or a decoder. Older files have add_prefix_space.
Metaspace read_metaspace(const Node& n) {
  Metaspace m{read_character(n.get("replacement"))};
  const Node scheme = n.get("prepend_scheme");
  if (!scheme.is_null()) m.prepend = scheme.one_of<PrependScheme>();
  const Node prefix = n.get("add_prefix_space");
  if (!prefix.boolean_or(true)) {
    if (!scheme.is_null() && m.prepend != PrependScheme::never) {
      prefix.fail("true, as prepend_scheme says");
    }
    m.prepend = PrependScheme::never;
  }
  return m;
}

PreTokenizer read_pre_tokenizer(const Node& node, bool& byte_level) {
  std::vector<PreTokenizer::Step> steps;
  for_each_step(node, "pretokenizers", [&](const Node& n, const std::string&) {
    const auto kind = n.get("type").one_of<PreTokenizerKind>();
    if (byte_level) {
      n.get("type").fail("nothing after ByteLevel", ErrorCode::unsupported);
    }
    PreTokenizer::Step step;
    switch (kind) {
      case PreTokenizerKind::Split:
        step.regex = read_pattern(n.get("pattern"));
        step.behavior = n.get("behavior").one_of<SplitBehavior>();
        step.invert = n.get("invert").boolean_or(false);
        break;
      case PreTokenizerKind::ByteLevel:
        byte_level = true;
        if (n.get("add_prefix_space").boolean()) step.prefix = " ";
        if (n.get("use_regex").boolean_or(true)) {
          step.regex = taken(Regex::compile(kGpt2Pattern, n.path()));
        }
        break;
      case PreTokenizerKind::Digits:
        step.regex = taken(Regex::compile(R"(\p{N})", n.path()));
        step.behavior = n.get("individual_digits").boolean() ? SplitBehavior::Isolated
                                                             : SplitBehavior::Contiguous;
        break;
      case PreTokenizerKind::Punctuation:
        step.regex = taken(Regex::compile(R"([!-/:-@\[-`{-~\p{P}])", n.path()));
        if (!n.get("behavior").is_null()) {
          step.behavior = n.get("behavior").one_of<SplitBehavior>();
        }
        break;
      case PreTokenizerKind::Metaspace: {
        const Metaspace m = read_metaspace(n);
        step.space = m.mark;
        if (m.prepend != PrependScheme::never) step.prefix = m.mark;
        step.first_only = m.prepend == PrependScheme::first;
        if (n.get("split").boolean_or(true)) step.regex = taken(Regex::literal(m.mark, n.path()));
        step.behavior = SplitBehavior::MergedWithNext;
        break;
      }
    }
    steps.push_back(std::move(step));
  });
  return PreTokenizer(std::move(steps));
}

void refuse_if_set(const Node& node) {
  const SortedJson& j = node.json();
  const bool unset =
      j.is_null() || j == SortedJson("") || (j.is_number() && j.get<double>() == 0.0);
  if (!unset) node.fail("null", ErrorCode::unsupported);
}

using TokenIds = std::unordered_map<std::string_view, std::int32_t>;

// The two tokens of merges[i]: ["a", "b"] or "a b".
std::pair<std::string_view, std::string_view> read_pair(const Node& merges, std::size_t i) {
  const SortedJson& merge = merges.json()[i];
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return {merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>()};
  }
  if (merge.is_string()) {
    const std::string_view text = merge.get_ref<const std::string&>();
    const std::size_t space = text.find(' ');
    if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  }
  merges.item(i).fail(R"("a b" or ["a", "b"])");
}

void read_merges(const Node& node, const TokenIds& ids, BpeModel& model) {
  if (!node.json().is_array()) node.fail("an array");
  const std::size_t count = node.json().size();
  model.merges = MergeTable(count);
  std::string merged;
  for (std::size_t i = 0; i < count; ++i) {
    const SortedJson& merge = node.json()[i];
    if (merge.is_string() && merge.get_ref<const std::string&>().starts_with("#version")) continue;
    const auto [left, right] = read_pair(node, i);
    merged.assign(left).append(right);
    const auto id_of = [&](std::string_view token) {
      const auto it = ids.find(token);
      if (it == ids.end()) node.item(i).fail("tokens of model.vocab that merge to one");
      return it->second;
    };
    model.merges.set(id_of(left), id_of(right), {static_cast<std::uint32_t>(i), id_of(merged)});
  }
}

// Fills ids with keys that are views into `node`.
BpeModel read_model(const Node& node, TokenIds& ids) {
  refuse_if_set(node.get("dropout"));
  refuse_if_set(node.get("continuing_subword_prefix"));
  refuse_if_set(node.get("end_of_word_suffix"));
  BpeModel model;
  model.ignore_merges = node.get("ignore_merges").boolean_or(false);
  model.byte_fallback = node.get("byte_fallback").boolean_or(false);
  model.fuse_unk = node.get("fuse_unk").boolean_or(false);

  const Node vocab = node.get("vocab");
  if (!vocab.json().is_object()) vocab.fail("an object of tokens and ids");
  ids.reserve(vocab.json().size());
  for (auto it = vocab.json().begin(); it != vocab.json().end(); ++it) {
    const std::string& token = it.key();
    const Node entry(*it, "model.vocab[" + json_text(token) + "]");
    const auto id = static_cast<std::size_t>(entry.integer(kMaxTokenIds));
    if (token.empty()) entry.fail("no empty token");
    if (id >= model.tokens.size()) model.tokens.resize(id + 1);
    if (!model.tokens[id].empty()) entry.fail("an id that no other token has");
    model.tokens[id] = token;
    ids.emplace(token, static_cast<std::int32_t>(id));
  }
  read_merges(node.get("merges"), ids, model);

  if (const Node unk = node.get("unk_token"); !unk.is_null()) {
    const auto it = ids.find(unk.text());
    if (it == ids.end()) unk.fail("a token of model.vocab");
    model.unk = it->second;
  }
  return model;
}

// Fills `tokens`, and ids with keys that are views into `node`.
UnigramModel read_unigram(const Node& node, TokenIds& ids, std::vector<std::string>& tokens) {
  UnigramModel model;
  model.byte_fallback = node.get("byte_fallback").boolean_or(false);
  for (const Node& entry : node.get("vocab").items()) {
    const SortedJson& pair = entry.json();
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string() || !pair[1].is_number()) {
      entry.fail("[token, score]");
    }
    const std::string& token = pair[0].get_ref<const std::string&>();
    const auto id = static_cast<std::int32_t>(tokens.size());
    if (id >= kMaxTokenIds) entry.fail("an id below 1048576", ErrorCode::out_of_range);
    if (token.empty() || token.size() > kMaxUnigramToken) {
      entry.fail(fmt::format("a token of 1 to {} bytes", kMaxUnigramToken));
    }
    if (!ids.emplace(token, id).second) entry.fail("a token that no other id has");
    tokens.push_back(token);
    model.scores.push_back(pair[1].get<double>());
  }
  model.tokens = tokens;
  if (const Node unk = node.get("unk_id"); !unk.is_null()) {
    model.unk = unk.integer(static_cast<std::int32_t>(tokens.size()));
  }
  return model;
}

std::vector<AddedToken> read_added_tokens(const Node& node, const BpeModel& model, TokenIds& ids) {
  std::vector<AddedToken> tokens;
  if (node.is_null()) return tokens;
  std::unordered_map<std::int32_t, std::string_view> taken_ids;
  for (const Node& item : node.items()) {
    AddedToken t;
    const Node content = item.get("content");
    t.content = content.text();
    if (t.content.empty()) continue;
    if (t.content.size() > kMaxAddedTokenBytes) {
      content.fail(fmt::format("at most {} bytes", kMaxAddedTokenBytes));
    }
    const Node id = item.get("id");
    t.id = id.integer(kMaxTokenIds);
    t.single_word = item.get("single_word").boolean();
    t.lstrip = item.get("lstrip").boolean();
    t.rstrip = item.get("rstrip").boolean();
    t.normalized = item.get("normalized").boolean();
    t.special = item.get("special").boolean();
    const auto [known, is_new] = ids.try_emplace(content.text(), t.id);
    if (known->second != t.id)
      id.fail(fmt::format("{}, the token's id in model.vocab", known->second));
    const auto index = static_cast<std::size_t>(t.id);
    if (!taken_ids.try_emplace(t.id, content.text()).second ||
        (is_new && index < model.tokens.size() && !model.tokens[index].empty())) {
      id.fail("an id that no other token has");
    }
    tokens.push_back(std::move(t));
  }
  return tokens;
}

// The ids of a template's token in `special_tokens`.
std::vector<std::int32_t> template_ids(const Node& special_tokens, const std::string& name) {
  std::vector<std::int32_t> out;
  for (const Node& id : special_tokens.get(name).get("ids").items()) {
    out.push_back(id.integer(kMaxTokenIds));
  }
  return out;
}

void read_template(const Node& node, TokenizerDescription& d) {
  std::vector<std::int32_t> before, after;
  bool seen = false;
  for (const Node& piece : node.get("single").items()) {
    if (const Node sequence = piece.get("Sequence"); !sequence.is_null()) {
      if (seen || sequence.get("id").text() != "A") {
        sequence.fail("the sequence A, once", ErrorCode::unsupported);
      }
      seen = true;
      continue;
    }
    const std::string& name = piece.get("SpecialToken").get("id").text();
    const auto ids = template_ids(node.get("special_tokens"), name);
    auto& side = seen ? after : before;
    side.insert(side.end(), ids.begin(), ids.end());
  }
  if (!seen) node.get("single").fail("the sequence A, once", ErrorCode::unsupported);
  // Each processor's template wraps the output of those before it.
  d.before.insert(d.before.begin(), before.begin(), before.end());
  d.after.insert(d.after.end(), after.begin(), after.end());
}

void read_post_processor(const Node& node, TokenizerDescription& d) {
  for_each_step(node, "processors", [&](const Node& n, const std::string& type) {
    if (type == "TemplateProcessing") return read_template(n, d);
    // ByteLevel changes offsets only.
    if (type != "ByteLevel") {
      n.get("type").fail("ByteLevel, TemplateProcessing or Sequence", ErrorCode::unsupported);
    }
  });
}

Decoder::StripStep read_strip(const Node& n) {
  Decoder::StripStep strip;
  strip.character = read_character(n.get("content"));
  strip.start = n.get("start").integer(INT32_MAX);
  strip.stop = n.get("stop").integer(INT32_MAX);
  return strip;
}

Decoder read_decoder(const Node& node) {
  Decoder d;
  d.none = true;
  bool fused = false;
  for_each_step(node, "decoders", [&](const Node& n, const std::string& type) {
    const auto refuse_unless = [&](bool ok, const char* wanted) {
      if (!ok) n.get("type").fail(wanted, ErrorCode::unsupported);
    };
    if (type == "ByteLevel") {
      refuse_unless(d.none, "ByteLevel as the first decoder");
      d.byte_level = true;
    } else if (type == "Fuse") {
      fused = true;
    } else if (type == "ByteFallback") {
      refuse_unless(!d.byte_level && !fused, "ByteFallback before Fuse, without ByteLevel");
      d.byte_fallback = true;
    } else if (type == "Replace") {
      refuse_unless(!d.byte_level && !d.byte_fallback && !fused,
                    "Replace before ByteFallback and Fuse, without ByteLevel");
      d.steps.push_back(
          Decoder::ReplaceStep{read_pattern(n.get("pattern")), n.get("content").text()});
    } else if (type == "Metaspace") {
      refuse_unless(!d.byte_level && !d.byte_fallback && !fused,
                    "Metaspace before ByteFallback and Fuse, without ByteLevel");
      const Metaspace m = read_metaspace(n);
      d.steps.push_back(Decoder::MetaspaceStep{m.mark, m.prepend != PrependScheme::never});
    } else if (type == "Strip") {
      const Decoder::StripStep strip = read_strip(n);
      if (!fused) {
        refuse_unless(!d.byte_level && !d.byte_fallback,
                      "Strip before ByteFallback, or after Fuse");
        d.steps.push_back(strip);
      } else {
        refuse_unless(!d.byte_level && strip.stop == 0 && d.text_strip.character.empty(),
                      "one Strip after Fuse, of the start");
        d.text_strip = strip;
      }
    } else {
      refuse_unless(false, "ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip or Sequence");
    }
    d.none = false;
  });
  return d;
}

TokenizerDescription read(const SortedJson& json) {
  const Node root(json, "");
  if (const Node version = root.get("version"); !version.is_null() && version.text() != "1.0") {
    version.fail("1.0", ErrorCode::unsupported);
  }
  TokenizerDescription d;
  d.normalizer = read_normalizer(root.get("normalizer"));
  bool byte_level = false;
  d.pre_tokenizer = read_pre_tokenizer(root.get("pre_tokenizer"), byte_level);
  TokenIds ids;
  const Node model = root.get("model");
  const Node type = model.get("type");
  if (!type.is_null() && type.text() == "Unigram") {
    d.unigram = read_unigram(model, ids, d.model.tokens);
    if (byte_level) type.fail("BPE with the pre-tokenizer ByteLevel", ErrorCode::unsupported);
  } else if (type.is_null() || type.text() == "BPE") {
    d.model = read_model(model, ids);
  } else {
    type.fail("BPE or Unigram", ErrorCode::unsupported);
  }
  d.model.byte_level = byte_level;
  d.added_tokens = read_added_tokens(root.get("added_tokens"), d.model, ids);
  read_post_processor(root.get("post_processor"), d);
  d.decoder = read_decoder(root.get("decoder"));
  return d;
}

}  // namespace

Result<TokenizerDescription> read_tokenizer_json(std::string_view text) {
  const auto json = parse_json(text, "tokenizer.json");
  if (!json) return json.error();
  try {
    return read(*json);
  } catch (const Refused& refused) {
    return refused.error;
  }
}

}  // namespace lathe
