// A recursive-descent parser of Jinja's grammar. Source: the template designer documentation of
// Jinja 3.1.
#include "io/template/jinja_parser.h"

#include <algorithm>
#include <initializer_list>

#include "io/template/jinja_failure.h"
#include "io/template/jinja_lexer.h"
#include "io/text/quote.h"

namespace lathe {
namespace {

using Expr = std::unique_ptr<JinjaExpr>;
using Kind = JinjaExprKind;
using Token = JinjaTokenKind;

constexpr int kMaxNesting = 100;  // of brackets, unary operators and blocks in the text
constexpr int kMaxTreeDepth =
    250;  // of an expression; chains such as a.b.c or a + b + c are deep, too

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(lex_jinja(source)) {}

  JinjaBody run() { return parse_body({}, 1); }

 private:
  // Counts a level of nesting during its lifetime.
  class Nested {
   public:
    explicit Nested(Parser& p) : parser_(p) {
      if (++parser_.nesting_ > kMaxNesting) {
        fail_jinja(ErrorCode::unsupported, parser_.peek().line,
                   "at most " + std::to_string(kMaxNesting) + " levels of nesting", "more");
      }
    }
    ~Nested() { --parser_.nesting_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    Parser& parser_;
  };

  // --- tokens ---
  const JinjaToken& peek(std::size_t ahead = 0) const {
    return tokens_[std::min(pos_ + ahead, tokens_.size() - 1)];
  }
  JinjaToken take() {
    JinjaToken t = peek();
    if (pos_ + 1 < tokens_.size()) ++pos_;
    return t;
  }
  bool is_op(std::string_view op, std::size_t ahead = 0) const {
    return peek(ahead).kind == Token::op && peek(ahead).text == op;
  }
  bool is_word(std::string_view word, std::size_t ahead = 0) const {
    return peek(ahead).kind == Token::word && peek(ahead).text == word;
  }
  bool skip_op(std::string_view op) {
    if (!is_op(op)) return false;
    take();
    return true;
  }
  bool skip_word(std::string_view word) {
    if (!is_word(word)) return false;
    take();
    return true;
  }
  static std::string describe(const JinjaToken& t) {
    if (t.kind == Token::end) return "the end of the template";
    if (t.kind == Token::data) return "text";
    return t.kind == Token::text ? "string " + quote(t.text, 30) : quote(t.text, 30);
  }
  [[noreturn]] void fail(std::string wanted) const {
    fail_jinja(ErrorCode::malformed, peek().line, std::move(wanted), describe(peek()));
  }
  void expect_op(std::string_view op) {
    if (!skip_op(op)) fail(quote(op));
  }
  void expect_word(std::string_view word) {
    if (!skip_word(word)) fail(quote(word));
  }
  void expect(Token kind, const char* what) {
    if (peek().kind != kind) fail(what);
    take();
  }
  std::string expect_name() {
    if (peek().kind != Token::word) fail("a name");
    return take().text;
  }

  // --- expressions ---
  Expr make(Kind kind, int line, std::string text, std::vector<Expr> items) {
    auto e = std::make_unique<JinjaExpr>();
    e->kind = kind;
    e->line = line;
    e->text = std::move(text);
    e->items = std::move(items);
    return measured(std::move(e));
  }
  static Expr measured(Expr e) {
    int deepest = 0;
    for (const Expr& i : e->items) deepest = std::max(deepest, i ? i->depth : 0);
    for (const auto& [key, value] : e->keywords) deepest = std::max(deepest, value->depth);
    e->depth = deepest + 1;
    if (e->depth > kMaxTreeDepth) {
      fail_jinja(ErrorCode::unsupported, e->line,
                 "an expression of at most " + std::to_string(kMaxTreeDepth) + " levels", "more");
    }
    return e;
  }
  template <class... E>
  static std::vector<Expr> list_of(E... e) {
    std::vector<Expr> out;
    (out.push_back(std::move(e)), ...);
    return out;
  }
  Expr constant(int line, JinjaValue v) {
    Expr e = make(Kind::constant, line, "", {});
    e->constant = std::move(v);
    return e;
  }

  Expr parse_expression() { return parse_choice(); }

  Expr parse_choice() {
    const Nested nested(*this);
    int line = peek().line;
    Expr e = parse_or();
    while (skip_word("if")) {
      Expr condition = parse_or();
      Expr otherwise = skip_word("else") ? parse_choice() : nullptr;
      e = make(Kind::choice, line, "",
               list_of(std::move(e), std::move(condition), std::move(otherwise)));
      line = peek().line;
    }
    return e;
  }
  Expr parse_or() { return parse_joined(&Parser::parse_and, "or"); }
  Expr parse_and() { return parse_joined(&Parser::parse_not, "and"); }
  Expr parse_joined(Expr (Parser::*operand)(), std::string_view word) {
    Expr left = (this->*operand)();
    while (is_word(word)) {
      JinjaToken op = take();
      left = make(Kind::binary, op.line, op.text, list_of(std::move(left), (this->*operand)()));
    }
    return left;
  }
  Expr parse_not() {
    if (!is_word("not")) return parse_compare();
    const Nested nested(*this);
    const int line = take().line;
    return make(Kind::unary, line, "not", list_of(parse_not()));
  }
  Expr parse_compare() {
    const int line = peek().line;
    std::vector<Expr> items = list_of(parse_sum());
    std::vector<std::string> ops;
    while (true) {
      if (peek().kind == Token::op &&
          std::ranges::find(kCompare, peek().text) != std::end(kCompare)) {
        ops.push_back(take().text);
      } else if (skip_word("in")) {
        ops.emplace_back("in");
      } else if (is_word("not") && is_word("in", 1)) {
        take();
        take();
        ops.emplace_back("not in");
      } else {
        break;
      }
      items.push_back(parse_sum());
    }
    if (ops.empty()) return std::move(items[0]);
    Expr e = make(Kind::compare, line, "", std::move(items));
    e->ops = std::move(ops);
    return e;
  }
  Expr parse_left(Expr (Parser::*operand)(), std::initializer_list<std::string_view> ops) {
    Expr left = (this->*operand)();
    while (peek().kind == Token::op && std::ranges::find(ops, peek().text) != ops.end()) {
      JinjaToken op = take();
      left = make(Kind::binary, op.line, op.text, list_of(std::move(left), (this->*operand)()));
    }
    return left;
  }
  Expr parse_sum() { return parse_left(&Parser::parse_concat, {"+", "-"}); }
  Expr parse_concat() { return parse_left(&Parser::parse_product, {"~"}); }
  Expr parse_product() { return parse_left(&Parser::parse_power, {"*", "/", "//", "%"}); }
  // Left to right, unlike Python: 2 ** 3 ** 2 is 64.
  Expr parse_power() { return parse_left(&Parser::parse_filtered_unary, {"**"}); }
  Expr parse_filtered_unary() { return parse_unary(true); }

  Expr parse_unary(bool with_filter) {
    Expr e;
    if (is_op("-") || is_op("+")) {
      const Nested nested(*this);
      JinjaToken op = take();
      e = make(Kind::unary, op.line, op.text, list_of(parse_unary(false)));
    } else {
      e = parse_primary();
    }
    e = parse_postfix(std::move(e));
    return with_filter ? parse_filters(std::move(e)) : std::move(e);
  }

  Expr parse_primary() {
    const JinjaToken t = peek();
    if (t.kind == Token::word) {
      take();
      if (t.text == "true" || t.text == "True") return constant(t.line, JinjaValue(true));
      if (t.text == "false" || t.text == "False") return constant(t.line, JinjaValue(false));
      if (t.text == "none" || t.text == "None") return constant(t.line, JinjaValue::none());
      return make(Kind::name, t.line, t.text, {});
    }
    if (t.kind == Token::text) {
      std::string text;
      while (peek().kind == Token::text) text += take().text;
      return constant(t.line, JinjaValue(std::move(text)));
    }
    if (t.kind == Token::integer) {
      take();
      return constant(t.line, JinjaValue(t.integer));
    }
    if (t.kind == Token::real) {
      take();
      return constant(t.line, JinjaValue(t.real));
    }
    if (skip_op("(")) {
      Expr e = parse_tuple(true);
      expect_op(")");
      return e;
    }
    if (is_op("[") || is_op("{")) {
      const bool dict = take().text == "{";
      const char* const close = dict ? "}" : "]";
      std::vector<Expr> items;
      while (!is_op(close)) {
        if (!items.empty()) expect_op(",");
        if (is_op(close)) break;
        items.push_back(parse_expression());
        if (!dict) continue;
        expect_op(":");
        items.push_back(parse_expression());
      }
      expect_op(close);
      return make(dict ? Kind::dict : Kind::list, t.line, "", std::move(items));
    }
    fail("an expression");
  }

  bool at_tuple_end() const {
    return peek().kind == Token::variable_end || peek().kind == Token::block_end || is_op(")");
  }
  // Expressions with commas form a tuple; `empty_ok` inside parentheses.
  Expr parse_tuple(bool empty_ok, bool with_choice = true) {
    const int line = peek().line;
    std::vector<Expr> items;
    bool is_tuple = false;
    while (true) {
      if (!items.empty()) expect_op(",");
      if (at_tuple_end() || (!with_choice && is_word("recursive"))) break;
      items.push_back(with_choice ? parse_expression() : parse_or_nested());
      if (!is_op(",")) break;
      is_tuple = true;
    }
    if (!is_tuple) {
      if (!items.empty()) return std::move(items[0]);
      if (!empty_ok) fail("an expression");
    }
    return make(Kind::tuple, line, "", std::move(items));
  }
  Expr parse_or_nested() {
    const Nested nested(*this);
    return parse_or();
  }

  Expr parse_postfix(Expr e) {
    while (true) {
      if (is_op(".")) {
        const int line = take().line;
        if (peek().kind == Token::integer) {
          Expr index = constant(line, JinjaValue(take().integer));
          e = make(Kind::item, line, "", list_of(std::move(e), std::move(index)));
        } else {
          e = make(Kind::attribute, line, expect_name(), list_of(std::move(e)));
        }
      } else if (is_op("[")) {
        e = parse_subscript(std::move(e));
      } else if (is_op("(")) {
        e = parse_call(Kind::call, peek().line, "", std::move(e));
      } else {
        return e;
      }
    }
  }
  Expr parse_subscript(Expr e) {
    const int line = take().line;
    Expr parts[3];  // begin, end, step
    bool slice = false;
    for (int i = 0; i < 3; ++i) {
      if (!is_op(":") && !is_op("]")) parts[i] = parse_expression();
      if (i == 2 || !skip_op(":")) break;
      slice = true;
    }
    if (is_op(",")) {
      fail_jinja(ErrorCode::unsupported, line, "one index", "several, with commas");
    }
    if (!slice && !parts[0]) fail("an index");
    expect_op("]");
    if (!slice) return make(Kind::item, line, "", list_of(std::move(e), std::move(parts[0])));
    return make(
        Kind::slice, line, "",
        list_of(std::move(e), std::move(parts[0]), std::move(parts[1]), std::move(parts[2])));
  }
  // Parses ( arguments ) after `e`.
  Expr parse_call(Kind kind, int line, std::string text, Expr e) {
    Expr call = make(kind, line, std::move(text), list_of(std::move(e)));
    expect_op("(");
    bool first = true;
    while (!is_op(")")) {
      if (!first) expect_op(",");
      if (is_op(")")) break;
      first = false;
      if (is_op("*") || is_op("**")) {
        fail_jinja(ErrorCode::unsupported, peek().line, "arguments one by one",
                   quote(peek().text) + " unpacking");
      }
      if (peek().kind == Token::word && is_op("=", 1)) {
        std::string key = take().text;
        take();
        call->keywords.emplace_back(std::move(key), parse_expression());
      } else {
        if (!call->keywords.empty()) fail("a keyword argument");
        call->items.push_back(parse_expression());
      }
    }
    expect_op(")");
    return measured(std::move(call));
  }

  Expr parse_filters(Expr e) {
    while (true) {
      if (skip_op("|")) {
        e = parse_filter(std::move(e));
      } else if (is_word("is")) {
        e = parse_test(std::move(e));
      } else if (is_op("(")) {
        e = parse_call(Kind::call, peek().line, "", std::move(e));
      } else {
        return e;
      }
    }
  }
  std::string dotted_name() {
    std::string name = expect_name();
    while (skip_op(".")) name += "." + expect_name();
    return name;
  }
  Expr parse_filter(Expr e) {
    const int line = peek().line;
    std::string name = dotted_name();
    if (is_op("(")) return parse_call(Kind::filter, line, std::move(name), std::move(e));
    return make(Kind::filter, line, std::move(name), list_of(std::move(e)));
  }
  Expr parse_test(Expr e) {
    const int line = take().line;
    const bool negated = skip_word("not");
    std::string name = dotted_name();
    if (is_op("(")) {
      e = parse_call(Kind::test, line, std::move(name), std::move(e));
    } else {
      // A test may take one argument without parentheses: x is divisibleby 3.
      std::vector<Expr> items = list_of(std::move(e));
      const Token k = peek().kind;
      const bool starts = k == Token::word || k == Token::text || k == Token::integer ||
                          k == Token::real || is_op("[") || is_op("{");
      if (starts && !is_word("else") && !is_word("or") && !is_word("and")) {
        if (is_word("is")) fail("one test at a time");
        const Nested nested(*this);
        items.push_back(parse_postfix(parse_primary()));
      }
      e = make(Kind::test, line, std::move(name), std::move(items));
    }
    return negated ? make(Kind::unary, line, "not", list_of(std::move(e))) : std::move(e);
  }

  // --- statements ---
  // Parses up to a tag with one of the words `ends`, which is then the next token; without `ends`,
  // up to the template's end. `opened` is the line of the body's tag.
  JinjaBody parse_body(std::initializer_list<std::string_view> ends, int opened) {
    const Nested nested(*this);
    JinjaBody body;
    while (true) {
      const JinjaToken& t = peek();
      if (t.kind == Token::end) {
        if (ends.size() == 0) return body;
        fail_jinja(ErrorCode::malformed, opened, "{% " + std::string(*(ends.end() - 1)) + " %}",
                   "the end of the template");
      }
      JinjaNode node;
      node.line = t.line;
      if (t.kind == Token::data) {
        node.text = take().text;
      } else if (t.kind == Token::variable_begin) {
        take();
        node.kind = JinjaNodeKind::output;
        node.exprs.push_back(parse_tuple(false));
        expect(Token::variable_end, "\"}}\"");
      } else {
        expect(Token::block_begin, "a tag");
        if (peek().kind == Token::word && std::ranges::find(ends, peek().text) != ends.end()) {
          return body;
        }
        parse_statement(node);
        expect(Token::block_end, "\"%}\"");
      }
      body.push_back(std::move(node));
    }
  }
  JinjaBody body_until(std::string_view end, int opened) {
    expect(Token::block_end, "\"%}\"");
    JinjaBody body = parse_body({end}, opened);
    expect_word(end);
    return body;
  }

  void parse_statement(JinjaNode& node) {
    if (peek().kind != Token::word) fail("a tag's name");
    const JinjaToken tag = take();
    if (tag.text == "if") return parse_if(node);
    if (tag.text == "for") return parse_for(node);
    if (tag.text == "set") return parse_set(node);
    if (tag.text == "macro") return parse_macro(node);
    if (tag.text == "call") return parse_call_block(node);
    if (tag.text == "with") return parse_with(node);
    if (tag.text == "filter") {
      node.kind = JinjaNodeKind::filtered;
      return parse_captured(node, parse_filter(nullptr), "endfilter");
    }
    if (tag.text == "generation") {
      node.kind = JinjaNodeKind::scope;
      node.bodies.push_back(body_until("endgeneration", node.line));
      return;
    }
    if (tag.text == "break" || tag.text == "continue") {
      if (loops_ == 0) fail_jinja(ErrorCode::malformed, tag.line, "a loop around it", tag.text);
      node.kind = tag.text == "break" ? JinjaNodeKind::break_loop : JinjaNodeKind::continue_loop;
      return;
    }
    const bool stray = tag.text.starts_with("end") || tag.text == "else" || tag.text == "elif";
    fail_jinja(stray ? ErrorCode::malformed : ErrorCode::unsupported, tag.line,
               "if, for, set, macro, call, with, filter, generation, break or continue",
               quote("{% " + tag.text + " %}"));
  }

  void parse_if(JinjaNode& node) {
    node.kind = JinjaNodeKind::branch;
    while (true) {
      node.exprs.push_back(parse_tuple(false, false));
      expect(Token::block_end, "\"%}\"");
      node.bodies.push_back(parse_body({"elif", "else", "endif"}, node.line));
      if (skip_word("elif")) continue;
      if (skip_word("else"))
        node.bodies.push_back(body_until("endif", node.line));
      else
        expect_word("endif");
      return;
    }
  }

  void parse_for(JinjaNode& node) {
    node.kind = JinjaNodeKind::loop;
    node.target = parse_target();
    expect_word("in");
    node.exprs.push_back(parse_tuple(false, false));
    node.exprs.push_back(skip_word("if") ? parse_expression() : nullptr);
    if (is_word("recursive")) {
      fail_jinja(ErrorCode::unsupported, peek().line, "a loop without recursion", "recursive");
    }
    expect(Token::block_end, "\"%}\"");
    ++loops_;
    node.bodies.push_back(parse_body({"else", "endfor"}, node.line));
    --loops_;
    if (skip_word("else"))
      node.bodies.push_back(body_until("endfor", node.line));
    else
      expect_word("endfor");
  }

  JinjaTarget parse_target() {
    JinjaTarget t;
    const bool parentheses = skip_op("(");
    t.names.push_back(target_name());
    if (!parentheses && skip_op(".")) {
      t.attribute = expect_name();
      return t;
    }
    while (skip_op(",")) {
      t.unpack = true;
      if (peek().kind != Token::word || is_word("in")) break;
      t.names.push_back(target_name());
    }
    if (parentheses) expect_op(")");
    return t;
  }
  std::string target_name() {
    std::string name = expect_name();
    constexpr std::string_view kReserved[] = {"true", "false", "none", "True", "False", "None"};
    if (std::ranges::find(kReserved, name) != std::end(kReserved)) {
      fail_jinja(ErrorCode::malformed, peek().line, "a name that can be set", quote(name));
    }
    return name;
  }

  void parse_set(JinjaNode& node) {
    node.target = parse_target();
    if (skip_op("=")) {
      node.kind = JinjaNodeKind::assign;
      node.exprs.push_back(parse_tuple(false));
      return;
    }
    node.kind = JinjaNodeKind::capture;
    parse_captured(node, nullptr, "endset");
  }
  // Parses further filters and the body that they apply to.
  void parse_captured(JinjaNode& node, Expr filters, std::string_view end) {
    while (skip_op("|")) filters = parse_filter(std::move(filters));
    node.exprs.push_back(std::move(filters));
    node.bodies.push_back(outside_loops(end, node.line));
  }
  // A captured body or a macro's; break cannot leave it.
  JinjaBody outside_loops(std::string_view end, int opened) {
    const int loops = std::exchange(loops_, 0);
    JinjaBody body = body_until(end, opened);
    loops_ = loops;
    return body;
  }

  std::vector<JinjaParameter> parse_signature() {
    std::vector<JinjaParameter> out;
    expect_op("(");
    while (!is_op(")")) {
      if (!out.empty()) expect_op(",");
      JinjaParameter p{target_name(), nullptr};
      if (skip_op("=")) {
        p.value = parse_expression();
      } else if (!out.empty() && out.back().value) {
        fail("a default, as for the parameter before it");
      }
      out.push_back(std::move(p));
    }
    expect_op(")");
    return out;
  }
  void parse_macro(JinjaNode& node) {
    node.kind = JinjaNodeKind::macro;
    node.text = target_name();
    node.parameters = parse_signature();
    node.bodies.push_back(outside_loops("endmacro", node.line));
  }
  void parse_call_block(JinjaNode& node) {
    node.kind = JinjaNodeKind::call_block;
    if (is_op("(")) node.parameters = parse_signature();
    node.exprs.push_back(parse_expression());
    if (node.exprs[0]->kind != Kind::call) {
      fail_jinja(ErrorCode::malformed, node.line, "a macro's call", "another expression");
    }
    node.bodies.push_back(outside_loops("endcall", node.line));
  }
  void parse_with(JinjaNode& node) {
    node.kind = JinjaNodeKind::with;
    while (peek().kind != Token::block_end) {
      if (!node.parameters.empty()) expect_op(",");
      std::string name = target_name();
      expect_op("=");
      node.parameters.push_back({std::move(name), parse_expression()});
    }
    node.bodies.push_back(body_until("endwith", node.line));
  }

  static constexpr std::string_view kCompare[] = {"==", "!=", "<", "<=", ">", ">="};

  std::vector<JinjaToken> tokens_;
  std::size_t pos_ = 0;
  int nesting_ = 0;
  int loops_ = 0;
};

}  // namespace

JinjaBody parse_jinja(std::string_view source) { return Parser(source).run(); }

}  // namespace lathe
