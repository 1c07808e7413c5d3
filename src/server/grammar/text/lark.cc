// The part of Lark's language that llguidance documents:
//
//   start: "(" item ("," item)* ")"   // a comment
//   item: NAME | start | /[0-9]{2,3}/ | %json {"type": "boolean"}
//   NAME: "a".."z"+
//   %ignore " "
//   %import common.INT
#include <fmt/format.h>

#include <map>
#include <utility>

#include "base/json.h"
#include "base/json_digits.h"
#include "io/text/quote.h"
#include "server/grammar/text/grammar_reader.h"

namespace lathe::grammar {
namespace {

// Terminals of Lark's library `common`, as regular expressions.
constexpr std::pair<std::string_view, std::string_view> kCommon[] = {
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[0-9a-fA-F]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
    {"FLOAT", "[0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"SIGNED_FLOAT", "[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"NUMBER", "([0-9]+(\\.[0-9]*)?|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"SIGNED_NUMBER", "[+-]?([0-9]+(\\.[0-9]*)?|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"ESCAPED_STRING", "\"([^\"\\\\\\n\\r]|\\\\.)*\""},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[A-Za-z]"},
    {"WORD", "[A-Za-z]+"},
    {"CNAME", "[A-Za-z_][A-Za-z_0-9]*"},
    {"WS_INLINE", "[ \\t]+"},
    {"WS", "[ \\t\\f\\r\\n]+"},
    {"CR", "\\r"},
    {"LF", "\\n"},
    {"NEWLINE", "(\\r?\\n)+"},
    {"SH_COMMENT", "#[^\\n]*"},
    {"CPP_COMMENT", "//[^\\n]*"},
    {"C_COMMENT", "/\\*([^*]|\\*+[^*/])*\\*+/"},
    {"SQL_COMMENT", "--[^\\n]*"},
};

constexpr const char* kIgnore = "%ignore";
constexpr const char* kStart = "%start";

bool is_terminal(std::string_view name) {
  const std::size_t first = name.find_first_not_of('_');
  return first != std::string_view::npos && name[first] >= 'A' && name[first] <= 'Z';
}

// Adds the other case of ASCII letters.
void ignore_case(Regex& regex) {
  std::vector<CharRange> more;
  for (const CharRange& r : regex.chars.ranges()) {
    for (char32_t c = std::max<char32_t>(r.first, U'A'); c <= std::min<char32_t>(r.last, U'z');
         ++c) {
      if (c <= U'Z') more.push_back({c + 32, c + 32});
      if (c >= U'a') more.push_back({c - 32, c - 32});
    }
  }
  regex.chars = regex.chars | CharSet(std::move(more));
  for (Regex& part : regex.parts) ignore_case(part);
}

}  // namespace

class LarkReader : GrammarReader {
 public:
  using GrammarReader::GrammarReader;

  Result<GrammarText> read(const std::string& path) {
    out_.path = path;
    out_.start = "start";
    for (space(); more(); space()) {
      if (peek() == U'%') {
        directive();
      } else {
        rule();
      }
    }
    if (error_) return *error_;
    if (!ignored_.parts.empty()) add_ignored();
    return std::move(out_);
  }

 private:
  static bool is_name(char32_t c) {
    return (c >= U'a' && c <= U'z') || (c >= U'A' && c <= U'Z') || (c >= U'0' && c <= U'9') ||
           c == U'_';
  }
  void line_space() {
    while (peek() == U' ' || peek() == U'\t') next();
  }
  // Whether a line has begun since the last part.
  bool space() {
    const std::size_t line = here().line;
    while (more()) {
      if (sees(U"//")) {
        while (more() && peek() != U'\n') next();
      } else if (peek() == U' ' || peek() == U'\t' || peek() == U'\n' || peek() == U'\r') {
        next();
      } else {
        break;
      }
    }
    return here().line != line;
  }
  std::string name() {
    std::u32string out;
    while (is_name(peek())) out += next();
    return utf8_of(out);
  }

  void directive() {
    const TextPosition at = here();
    next();
    const std::string word = name();
    line_space();
    if (word == "ignore") {
      ignored_.parts.push_back(choice(0));
    } else if (word == "import") {
      import(at);
    } else if (word == "llguidance") {
      json_value();  // options of that engine
    } else {
      unsupported("%" + word, at);
    }
  }

  // Reads common.NAME, common.NAME -> OWN, common (A, B).
  void import(TextPosition at) {
    const std::string library = name();
    if (library != "common") return unsupported("an import from " + quote(library), at);
    line_space();
    if (take(U"(")) {
      do {
        line_space();
        add_common(name(), "", at);
        line_space();
      } while (take(U","));
      if (!take(U")")) malformed(")");
      return;
    }
    if (!take(U".")) return malformed("a . or (");
    const std::string theirs = name();
    line_space();
    std::string own;
    if (take(U"->")) {
      line_space();
      own = name();
    }
    add_common(theirs, own, at);
  }

  void add_common(const std::string& theirs, const std::string& own, TextPosition at) {
    for (const auto& [word, pattern] : kCommon) {
      if (word != theirs) continue;
      out_.rules.push_back({own.empty() ? theirs : own, regex_of(std::string(pattern), at), at});
      return;
    }
    unsupported("common." + theirs, at);
  }

  void rule() {
    const TextPosition at = here();
    if (peek() == U'?' || peek() == U'!') next();
    const std::string own = name();
    if (own.empty()) return malformed("a rule, a terminal or a directive");
    if (peek() == U'{') return unsupported("a template", here());
    if (peek() == U'[') return unsupported("options of a rule", here());
    priority();
    line_space();
    if (!take(U":")) return malformed("a :");
    out_.rules.push_back({own, choice(0), at});
  }

  void priority() {
    if (peek() != U'.') return;
    next();
    take(U"-");
    if (!number()) malformed("a priority");
  }

  // Whether what follows, on a line of its own, is no part of the rule before.
  bool starts_rule(bool new_line) {
    if (!new_line) return false;
    if (peek() == U'%' && !sees(U"%json")) return true;
    if (peek() == U'?' || peek() == U'!') return true;
    const std::size_t begin = offset();
    const TextPosition at = here();
    const bool named = !name().empty();
    if (peek() == U'.' && peek(1) != U'.') {
      next();
      take(U"-");
      number();
    }
    line_space();
    const bool out = named && (peek() == U':' || peek() == U'{' || peek() == U'[');
    go_back(begin, at);
    return out;
  }

  Expression join(int depth) override {
    Expression out;
    out.at = here();
    for (bool fresh = space(); more() && peek() != U'|' && peek() != U')' && peek() != U']';
         fresh = space()) {
      if (starts_rule(fresh && depth == 0)) break;
      if (take(U"->")) {  // a name for the tree
        line_space();
        name();
        continue;
      }
      out.parts.push_back(repeated(atom(depth)));
    }
    return out;
  }

  Expression repeated(Expression what) {
    for (;;) {
      const TextPosition at = here();
      if (take(U"*")) {
        what = repeat(std::move(what), 0, -1, at);
      } else if (take(U"+")) {
        what = repeat(std::move(what), 1, -1, at);
      } else if (peek() == U'?') {
        next();
        what = repeat(std::move(what), 0, 1, at);
      } else if (sees(U"~") || sees(U" ~")) {
        line_space();
        next();
        line_space();
        const auto least = number();
        auto most = least;
        if (take(U"..")) most = number();
        if (!least || !most) malformed("~ and a number, or two with .. between them");
        what = repeat(std::move(what), least.value_or(0), most.value_or(0), at);
      } else if (take(U"{")) {
        const auto least = number();
        auto most = least;
        if (take(U",")) most = number();
        if (!least || !take(U"}")) malformed("{least,most}");
        what = repeat(std::move(what), least.value_or(0), most.value_or(-1), at);
      } else {
        return what;
      }
    }
  }

  Expression atom(int depth) {
    const TextPosition at = here();
    if (peek() == U'"') return text();
    if (peek() == U'/') return regex();
    if (peek() == U'<') {
      unsupported("a special token", at);
      return {};
    }
    if (take(U"(")) {
      Expression out = choice(depth + 1);
      if (!error_ && !take(U")")) malformed("a ) for each (");
      return out;
    }
    if (take(U"[")) {
      Expression out = choice(depth + 1);
      if (!error_ && !take(U"]")) malformed("a ] for each [");
      return repeat(std::move(out), 0, 1, at);
    }
    if (take(U"%json")) {
      Expression out{Expression::Kind::json};
      out.at = at;
      out.schema = json_value();
      return out;
    }
    std::string own = name();
    if (own.empty()) malformed("a name, a text, an expression or a group");
    if (peek() == U'{') unsupported("a template", here());
    return rule_of(std::move(own), at);
  }

  // A text, or a range of characters.
  Expression text() {
    const TextPosition at = here();
    const std::u32string first = quoted();
    if (peek() == U'.' && peek(1) == U'.' && peek(2) == U'"') {
      next();
      next();
      const std::u32string last = quoted();
      const bool right = first.size() == 1 && last.size() == 1 && first[0] <= last[0];
      if (!right) fail(ErrorCode::malformed, "an ascending range of characters", "another", at);
      return chars_of(right ? CharSet{{first[0], last[0]}} : CharSet(), at);
    }
    Expression out = text_of(first, at);
    if (take(U"i")) ignore_case(out.regex);
    return out;
  }

  Expression regex() {
    const TextPosition at = here();
    next();
    std::string pattern;
    while (more() && peek() != U'/' && peek() != U'\n') {
      std::u32string c(1, next());
      if (c[0] == U'\\' && more()) c += next();
      // In Lark a / is written with a backslash, which regular expressions do not need.
      pattern += utf8_of(c == U"\\/" ? U"/" : c);
    }
    if (!error_ && !take(U"/")) fail(ErrorCode::malformed, "a / for each /", "one without", at);
    bool any_case = false, any_char = false;
    for (; peek() >= U'a' && peek() <= U'z'; next()) {
      any_case = any_case || peek() == U'i';
      any_char = any_char || peek() == U's';
      if (peek() != U'i' && peek() != U's' && peek() != U'u') {
        unsupported(fmt::format("the flag {}", static_cast<char>(peek())), here());
      }
    }
    Expression out = regex_of(pattern, at);
    if (any_case) ignore_case(out.regex);
    if (any_char) let_dots_match_all(out.regex);
    return out;
  }

  static void let_dots_match_all(Regex& regex) {
    const auto dot = parse_regex(".", "");
    const auto& own = regex.chars.ranges();
    const auto& of_dot = dot->chars.ranges();
    const bool same = own.size() == of_dot.size() && !own.empty() &&
                      std::equal(own.begin(), own.end(), of_dot.begin(), [](auto& a, auto& b) {
                        return a.first == b.first && a.last == b.last;
                      });
    if (same) regex.chars = CharSet::all();
    for (Regex& part : regex.parts) let_dots_match_all(part);
  }

  // A JSON object, by its brackets.
  nlohmann::ordered_json json_value() {
    const TextPosition at = (space(), here());
    const std::size_t begin = offset();
    if (peek() != U'{') {
      malformed("a JSON object");
      return {};
    }
    int open = 0;
    bool in_text = false;
    do {
      const char32_t c = next();
      if (in_text && c == U'\\') {
        next();
      } else if (c == U'"') {
        in_text = !in_text;
      } else if (!in_text) {
        open += c == U'{' ? 1 : c == U'}' ? -1 : 0;
      }
    } while (more() && open > 0);
    auto out = read_json_exact(utf8_of(slice(begin, offset())));
    if (out.is_discarded()) fail(ErrorCode::malformed, "a JSON object", "another text", at);
    return out;
  }

  // Ignored texts may follow each terminal of a rule, and come first.
  void add_ignored() {
    for (GrammarRule& r : out_.rules) {
      if (!is_terminal(r.name)) r.body = with_ignored(std::move(r.body));
    }
    const TextPosition at = ignored_.parts[0].at;
    ignored_.kind = Expression::Kind::choice;
    out_.rules.push_back({kIgnore, repeat(std::move(ignored_), 0, -1, at), at});
    Expression start;
    start.parts = {rule_of(kIgnore, at), rule_of(out_.start, at)};
    out_.rules.push_back({kStart, std::move(start), at});
    out_.start = kStart;
  }

  static Expression with_ignored(Expression e) {
    const bool is_text = e.kind == Expression::Kind::regex || e.kind == Expression::Kind::json ||
                         (e.kind == Expression::Kind::rule && is_terminal(e.name));
    if (!is_text) {
      for (Expression& part : e.parts) part = with_ignored(std::move(part));
      return e;
    }
    Expression out;
    out.at = e.at;
    out.parts.push_back(std::move(e));
    out.parts.push_back(rule_of(kIgnore, out.at));
    return out;
  }

  Expression ignored_;  // choices
};

Result<GrammarText> parse_lark(std::string_view text, const std::string& path) {
  return LarkReader(text, path).read(path);
}

}  // namespace lathe::grammar
