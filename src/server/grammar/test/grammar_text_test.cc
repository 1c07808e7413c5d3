// Grammars in EBNF and in Lark's language: texts that they derive and texts that they do not, left
// recursion among them, and what is wrong with some.
#include "server/grammar/text/grammar_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/grammar/grammar.h"

namespace lathe::grammar {
namespace {

using ::testing::HasSubstr;

Source rules(std::string text) {
  Source out;
  out.kind = Source::Kind::grammar;
  out.path = "grammar";
  out.grammar = std::move(text);
  return out;
}

const Vocabulary& byte_tokens() {
  static const Vocabulary out = [] {
    std::vector<std::string> texts;
    for (int b = 0; b < 256; ++b) texts.emplace_back(1, static_cast<char>(b));
    return Vocabulary(std::move(texts));
  }();
  return out;
}

struct RulesCase {
  const char* grammar;
  std::vector<const char*> good, bad;
};

void check_rules(const std::vector<RulesCase>& cases) {
  for (const RulesCase& c : cases) {
    const auto grammar = Grammar::compile(rules(c.grammar), byte_tokens());
    ASSERT_TRUE(grammar) << c.grammar << grammar.error().message();
    const auto takes = [&](std::string_view text) {
      Walk walk((*grammar)->automaton());
      Place place = walk.start();
      for (const char b : text) place = walk.step(place, static_cast<std::uint8_t>(b));
      return walk.may_end(place);
    };
    for (const char* text : c.good) EXPECT_TRUE(takes(text)) << c.grammar << "\n" << text;
    for (const char* text : c.bad) EXPECT_FALSE(takes(text)) << c.grammar << "\n" << text;
  }
}

TEST(GrammarText, Ebnf) {
  check_rules({
      {"root ::= \"a\" [b-d]* (\"x\" | \"yy\")?  # comment\n",
       {"a", "abcd", "abx", "ayy"},
       {"", "b", "axx", "ae"}},
      {"root ::= item (\",\" item)*\nitem ::= [0-9]{2,3} |\n  \"(\" root \")\"",
       {"12", "12,345", "(12,(34))", "((12))"},
       {"1", "1234", "(12", "12,"}},
      {"root ::= [^\"\\n\\x41]{3} \"\\u00e9\" .", {"abcéz", "€€€éA"}, {"abAéz", "abcez", "abcé"}},
      {"root-2 ::= \"b\"\nroot ::= root-2 \"c\" empty\nempty ::= \"\"", {"bc"}, {"b", "c"}},
      {"root ::= \"a\"? \"b\"?", {"", "a", "b", "ab"}, {"ba"}},
  });
}

TEST(GrammarText, RulesMayBeginWithThemselves) {
  check_rules({
      {"root ::= root \"+\" term | term\nterm ::= term \"*\" [0-9] | [0-9]",
       {"1", "1+2", "1*2*3+4", "1+2+3"},
       {"", "+1", "1+", "1**2"}},
      {"root ::= expr\nexpr ::= call | [a-z]\ncall ::= expr \"(\" expr? \")\"",
       {"a", "a()", "a(b)", "a()()", "a(b(c))(d)"},
       {"(", "a(", "()", "a)"}},
      {"root ::= maybe root \"x\" | \"y\"\nmaybe ::= \"m\"?",
       {"y", "yx", "myx", "mmyxx", "myxx"},
       {"x", "m", "my"}},
      {"root ::= root root | \"a\"", {"a", "aa", "aaa"}, {"", "b"}},
      {"root ::= b \"1\" | \"r\"\nb ::= c \"2\" | \"s\"\nc ::= root \"3\" | \"t\"",
       {"r", "s1", "t21", "r321", "s1321"},
       {"r3", "r32", "t1"}},
  });
}

TEST(GrammarText, Lark) {
  check_rules({
      {"start: \"(\" item (\",\" item)* \")\"  // comment\n"
       "item: NAME | start\nNAME: \"a\"..\"c\"+\n%ignore \" \"",
       {"(a)", "( ab , c )", "((a),b) ", " (a)"},
       {"()", "(d)", "(a b)", "(a"}},
      {"?start: sum\n?sum: product | sum \"+\" product -> add\nproduct: INT | product \"*\" INT\n"
       "%import common.INT\n%import common.WS_INLINE -> SPACE\n%ignore SPACE",
       {"1", "1+2*3", "12 * 3 + 4"},
       {"+", "1 2", "1+"}},
      {"start: /[a-z]{2}/i \"end\"i [\"!\"] (\"x\"~2 | \"y\" ~ 1..2)\n",
       {"aBEnDxx", "zzend!y", "aaENDyy"},
       {"aend", "aaendx", "aaendyyy"}},
  });
}

TEST(GrammarText, LarkWithSchemasAndLibraries) {
  check_rules({
      {"start: \"<\" %json {\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}},"
       " \"required\": [\"a\"], \"additionalProperties\": false} \">\"",
       {"<{\"a\":1}>", "<{ \"a\" : 12 }>"},
       {"<{}>", "<{\"a\":\"x\"}>"}},
      {"start: (NUMBER | ESCAPED_STRING | CNAME) (\";\" start)?\n"
       "%import common (NUMBER, ESCAPED_STRING, CNAME)",
       {"1.5e3", "\"a\\\"b\"", "_x1;2", "a;b;3."},
       {"1x", "\"a", ";"}},
      {"start: /a.c/s | /d\\/e/\n!other.2: \"unused\"\n", {"a\nc", "abc", "d/e"}, {"ac", "d\\/e"}},
  });
}

TEST(GrammarText, EmptyTextsAloneAreRefusedAsSuch) {
  Source regex, choice;
  regex.kind = Source::Kind::regex;
  choice.kind = Source::Kind::choice;
  choice.choices = {""};
  for (const Source& source :
       {rules("root ::= \"\""), rules("root ::= a\na ::= \"\" | \"\""), regex, choice}) {
    const auto got = Grammar::compile(source, byte_tokens());
    ASSERT_FALSE(got) << source.grammar;
    EXPECT_THAT(got.error().message(),
                HasSubstr("wanted a constraint that allows a text of a token, "
                          "got one that allows the empty text alone"));
  }
  // A text of none is another one.
  EXPECT_TRUE(Grammar::compile(rules("root ::= \"a\"?"), byte_tokens()));
}

TEST(GrammarText, FaultsNameLineAndColumn) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"root ::= \"a\nroot2 ::= \"b\"", "wanted a \" for each \"", "line 1, column 10"},
      {"root ::= a\nb ::= \"x\"", "wanted a rule \"a\", got none", "line 1, column 10"},
      {"root ::= (\"a\" | [b-\n", "wanted", "line 1, column 17"},
      {"root ::= \"a\"\nroot ::= \"b\"", "wanted one rule \"root\"", "line 2, column 1"},
      {"other ::= \"a\"", "wanted a rule \"root\"", "line 1, column 1"},
      {"root ::= \"a\"{3,2}", "the smaller number first", "line 1, column 13"},
      {"root ::= \"a\" )", "wanted", "line 1, column 14"},
      {"root ::= [z-a]", "ascending", "line 1, column 10"},
      {"root ::= [a-", "wanted a ] for each [, got one without", "line 1, column 10"},
      {"start: /[a-\\d]/", "a character at a range's end, got a class", "line 1, column 8"},
      {"root ::= \"a\" (=\"b\")", "look-ahead", "line 1, column 14"},
      {"start: a\n\nb: \"x\"", "wanted a rule \"a\"", "line 1, column 8"},
      {"start: \"a\"\n%declare X", "%declare", "line 2, column 1"},
      {"start: \"a\" <|eot|>", "a special token", "line 1, column 12"},
      {"start: /(/", "wanted", "line 1, column 8"},
      {"start: /a/m", "the flag m", "line 1, column 11"},
      {"start: x{y}\n", "a template", "line 1, column 9"},
      {"start: \"a\"\n%import common.NOTHING", "common.NOTHING", "line 2, column 1"},
      {"start: %json {\"a\": ", "JSON object", "line 1, column 14"},
      {"hello", "wanted a :", "line 1, column 6"},
      {"", "wanted a rule \"start\"", "line 1, column 1"},
  };
  for (const auto& [text, what, where] : cases) {
    const auto got = Grammar::compile(rules(text), byte_tokens());
    ASSERT_FALSE(got) << text;
    EXPECT_EQ(got.error().field, "grammar");
    EXPECT_THAT(got.error().message(), HasSubstr(what)) << text;
    EXPECT_THAT(got.error().message(), HasSubstr(where)) << text;
  }
  // Texts that end inside something.
  for (const char* text : {"root ::= \"a\\", "root ::= \"\\x", "root ::= [a-\\", "start: /a\\",
                           "start: %json {\"a\\", "start: \"a\"..\"", "root ::= \"", "%"}) {
    EXPECT_FALSE(Grammar::compile(rules(text), byte_tokens())) << text;
  }
  std::string deep = "root ::= ";
  for (int i = 0; i < 100; ++i) deep += "(";
  EXPECT_FALSE(Grammar::compile(rules(deep + "\"a\""), byte_tokens()));
  EXPECT_FALSE(Grammar::compile(rules("root ::= (([a-z]{1,999}){1,999}){1,999}"), byte_tokens()));
  EXPECT_FALSE(Grammar::compile(rules("root ::= root \"a\""), byte_tokens()));
}

}  // namespace
}  // namespace lathe::grammar
