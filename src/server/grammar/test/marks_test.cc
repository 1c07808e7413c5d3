// Constrained text between other text: after reasoning, and calls between marks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/grammar/matcher.h"
#include "server/grammar/test/grammar_test_util.h"
#include "server/grammar/think_budget.h"

namespace lathe::grammar {
namespace {

using Json = nlohmann::ordered_json;

TEST_F(Grammars, ReasoningComesFirst) {
  const auto grammar = compile(regex("ab"));
  const std::int32_t begin = 299, end = 301;
  const auto allows = [&](Matcher& m, std::int32_t token) {
    std::vector<std::uint32_t> own = bits();
    EXPECT_TRUE(m.allowed(own));
    return has(own, token);
  };
  Matcher inside(grammar, {true, std::nullopt, end});
  EXPECT_TRUE(allows(inside, 'x'));
  EXPECT_TRUE(inside.accept('x'));
  EXPECT_TRUE(inside.accept(end));
  EXPECT_FALSE(allows(inside, 'x'));
  EXPECT_TRUE(allows(inside, 'a'));
  Matcher possible(grammar, {false, begin, end});
  EXPECT_TRUE(allows(possible, begin));
  EXPECT_TRUE(allows(possible, 'a'));
  EXPECT_FALSE(allows(possible, 'x'));
  EXPECT_TRUE(possible.clone()->accept('a'));
  EXPECT_TRUE(possible.accept(begin));
  EXPECT_TRUE(possible.accept('x'));
  Source text = regex("ab");
  text.thinking = Thinking::possible;
  for (const char* good :
       {"ab", "<think></think>ab", "<think>a</</think>ab", "<think>\xFF<</think>ab"}) {
    EXPECT_TRUE(takes(text, good)) << good;
  }
  for (const char* bad : {"<think>", "</think>ab", "xab", "<think></think>x", "<think>ab"}) {
    EXPECT_FALSE(takes(text, bad)) << bad;
  }
}

// A mark of several tokens begins with one that other text begins with, too.
TEST_F(Grammars, AMarksHeaderIsFollowed) {
  const auto grammar = compile(regex("ab"));
  const std::int32_t begin = 299, end = 301;
  const ThinkTokens think{false, begin, end, {'t', 'h'}};
  Matcher m(grammar, think);
  ThinkBudget budget(1, think, 320, std::make_unique<Matcher>(grammar, think));
  for (TokenConstraint* one :
       {static_cast<TokenConstraint*>(&m), static_cast<TokenConstraint*>(&budget)}) {
    EXPECT_TRUE(one->accept(begin));
    for (const char header : {'t', 'h'}) {
      std::vector<std::uint32_t> own = bits();
      EXPECT_EQ(*one->allowed(own), false);
      for (std::int32_t t = 0; t < 320; ++t) EXPECT_EQ(has(own, t), t == header) << t;
      EXPECT_FALSE(one->clone()->accept('x'));
      EXPECT_TRUE(one->accept(header));
    }
    // The header is no reasoning, so the budget has a token left.
    EXPECT_TRUE(one->accept('x'));
    EXPECT_TRUE(one->clone()->accept(end));
  }
  std::vector<std::uint32_t> own = bits();
  EXPECT_TRUE(budget.allowed(own));
  for (std::int32_t t = 0; t < 320; ++t) EXPECT_EQ(has(own, t), t == end) << t;
}

// Without a constraint the model may write other text after the mark's first token.
TEST_F(Grammars, ABudgetLeavesOtherTextAlone) {
  ThinkBudget budget(1, {false, 299, 301, {'t', 'h'}}, 320, nullptr);
  for (const std::int32_t token :
       {std::int32_t{299}, std::int32_t{'f'}, std::int32_t{'x'}, std::int32_t{'y'}}) {
    EXPECT_TRUE(budget.accept(token));
    std::vector<std::uint32_t> own = bits();
    EXPECT_TRUE(budget.allowed(own));
    EXPECT_TRUE(has(own, 'z')) << token;
  }
}

// Arguments between marks may be any alternative of oneOf, also where several hold.
TEST_F(Grammars, OneOfOfAMarkedArgumentIsNamed) {
  const auto ignored = [&](const char* schema) {
    Source calls;
    calls.kind = Source::Kind::text_and_calls;
    calls.tools = {{"f", Json::parse(schema), "t"}};
    calls.form = {.begin = "<call>", .after_name = ">", .end = "</call>"};
    calls.form.marked = MarkedForm{
        .before_key = "<p=", .after_key = ">", .after_text = "</p>", .after_json = "</p>"};
    return compile(calls)->ignored(calls);
  };
  EXPECT_EQ(ignored(R"({"properties": {"a": {"oneOf": [{"type": "integer"}, {"minimum": 2}]}}})"),
            std::vector<std::string>{"t.properties.a.oneOf"});
  EXPECT_EQ(ignored(R"({"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"oneOf": [
                        {"type": "string"}, {"enum": ["a", 1]}]}}})"),
            std::vector<std::string>{"t.properties.a.oneOf"});
  EXPECT_TRUE(
      ignored(R"({"properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "string"}]}}})")
          .empty());
}

// No object has the member that it must have, so no call is possible, and the tool's schema is why.
TEST_F(Grammars, AnImpossibleCallIsNamedByItsTool) {
  const Json never = Json::parse(R"({"required": ["x"], "properties": {"x": false}})");
  Source calls;
  calls.kind = Source::Kind::calls;
  calls.path = "tools";
  calls.tools = {{"b", never, "tools[1].function.parameters"}};
  const std::string one =
      "tools[1].function.parameters: wanted a constraint that allows some text,"
      " got one that allows none";
  EXPECT_EQ(fault(calls), one);
  calls.kind = Source::Kind::text_and_calls;
  calls.form = {.begin = "<call>", .after_name = ">", .end = "</call>"};
  calls.must_call = true;
  EXPECT_EQ(fault(calls), one);
  // With a possible tool only that one is called, and other text needs none.
  calls.tools.push_back({"c", Json::object(), "tools[2].function.parameters"});
  EXPECT_TRUE(takes(calls, "<call>c>{}</call>"));
  EXPECT_FALSE(takes(calls, "<call>b>{}</call>"));
  calls.tools.pop_back();
  calls.must_call = false;
  EXPECT_TRUE(takes(calls, "a"));
}

// A text may begin with marks around reasoning, and calls may have one form alone.
TEST_F(Grammars, ChannelsHaveMarks) {
  Source text = regex("ab");
  text.thinking = Thinking::possible;
  text.think_begin = "<c>t<m>";
  text.think_end = "<e>";
  text.after_think = "<s>";
  text.opening = "<c>f<m>";
  for (const char* good : {"<c>f<m>ab", "<c>t<m><e><s><c>f<m>ab", "<c>t<m>x<<e><s><c>f<m>ab"}) {
    EXPECT_TRUE(takes(text, good)) << good;
  }
  for (const char* bad : {"ab", "<c>t<m>ab", "<c>t<m><e><c>f<m>ab", "<c>f<m>ba", "<c>t<m>x<e>ab"}) {
    EXPECT_FALSE(takes(text, bad)) << bad;
  }
  Source calls;
  calls.kind = Source::Kind::text_and_calls;
  calls.tools = {{"f", Json::object(), "t"}};
  calls.form = {.begin = "<c> to=", .after_name = "<m>"};
  calls.form.avoided = {"a to", "<<"};
  calls.form.not_first = " ";
  calls.one_call = true;
  for (const char* good : {"", "x", "x a t", "<c> to", "<c> to=f<m>{}", "a<c> to=f<m>{\"x\":1}",
                           "<c><c> to=f<m>{}", "b to=g"}) {
    EXPECT_TRUE(takes(calls, good)) << good;
  }
  for (const char* bad :
       {" x", "a to", "xa to=f", "<<", "<c> to=g", "<c> to=f<m>{} ", "<c> to=f<m>[]", "<c<<"}) {
    EXPECT_FALSE(takes(calls, bad)) << bad;
  }
  calls.must_call = true;
  EXPECT_TRUE(takes(calls, "<c> to=f<m>{}"));
  EXPECT_FALSE(takes(calls, "x<c> to=f<m>{}"));
}

// The mark's beginning occurs again in it.
TEST_F(Grammars, MarksAreFoundWhereverTheyBegin) {
  Source text = regex("z");
  text.thinking = Thinking::inside;
  text.think_end = "aabaac";
  for (const char* good : {"aabaacz", "aabaabaacz", "aaabaacz", "aabaaabaacz", "xaabaacz"}) {
    EXPECT_TRUE(takes(text, good)) << good;
  }
  EXPECT_FALSE(takes(text, "aabaabaaz"));
}

}  // namespace
}  // namespace lathe::grammar
