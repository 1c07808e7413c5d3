// Models' own forms of calls: what the grammar of strict tools allows is read as a call whose
// arguments follow the schema, and calls as models write them are allowed.
#include "server/service/call_form.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/test_scale.h"
#include "server/grammar/matcher.h"
#include "server/markup/answer_parts.h"

namespace lathe {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

const Json& forecast_schema() {
  static const Json out = Json::parse(R"({"type": "object", "additionalProperties": false,
      "required": ["city", "days"], "properties": {"city": {"type": "string"},
      "days": {"$ref": "#/$defs/days"}, "unit": {"enum": ["C", "F", null]},
      "tags": {"type": "array", "items": {"enum": ["wind", "rain"]}, "maxItems": 2},
      "notes": {"type": "array", "items": {"type": "string"}}},
      "$defs": {"days": {"type": "integer", "minimum": 1, "maximum": 12}}})");
  return out;
}

Json tools_json() {
  Json out = Json::array();
  out.push_back({{"type", "function"},
                 {"function", {{"name", "forecast"}, {"parameters", forecast_schema()}}}});
  out.push_back({{"type", "function"}, {"function", {{"name", "now"}}}});
  return out;
}

grammar::Source source_of(const grammar::CallForm& form) {
  grammar::Source out;
  out.kind = grammar::Source::Kind::text_and_calls;
  out.path = "tools";
  out.form = form;
  out.tools = {{"forecast", forecast_schema(), "tools[0].function.parameters"},
               {"now", {{"type", "object"}, {"additionalProperties", false}}, "tools[1]"}};
  return out;
}

const grammar::Vocabulary& bytes() {
  static const grammar::Vocabulary out = [] {
    std::vector<std::string> texts;
    for (int b = 0; b < 256; ++b) texts.emplace_back(1, static_cast<char>(b));
    return grammar::Vocabulary(std::move(texts));
  }();
  return out;
}

std::shared_ptr<grammar::Grammar> compile(const grammar::Source& source) {
  auto out = grammar::Grammar::compile(source, bytes());
  EXPECT_TRUE(out) << out.error().message();
  return *out;
}

// Whether the grammar allows the whole text, and an end after it.
bool allows(const std::shared_ptr<grammar::Grammar>& grammar, std::string_view text) {
  grammar::Matcher matcher(grammar, {});
  std::vector<std::uint32_t> bits(8);
  for (const char c : text) {
    std::fill(bits.begin(), bits.end(), 0);
    if (!matcher.allowed(bits)) return false;
    const auto byte = static_cast<std::uint8_t>(c);
    if ((bits[byte / 32] >> (byte % 32) & 1u) == 0 || !matcher.accept(byte)) return false;
  }
  std::fill(bits.begin(), bits.end(), 0);
  const auto ends = matcher.allowed(bits);
  return ends && *ends;
}

TextParts read(ToolFormat format, const grammar::CallForm& form, const std::string& text) {
  MarkupRules rules;
  rules.tools = format;
  rules.bare_first = form.begins_answer;
  rules.no_bare = !form.begins_answer;
  rules.schemas = std::make_shared<const Json>(tools_json());
  AnswerParts machine(rules);
  TextParts out;
  machine.push(text, out);
  machine.finish(out);
  return out;
}

// A form as a template shows it, how a call of forecast begins, and whole calls as models write
// them, with FORECAST's arguments.
struct Form {
  ToolFormat format;
  const char* chat_template;
  const char* begin;
  std::vector<std::string> forecasts;  // of {"city": "Oslo", "days": 3, "unit": "C"}
  std::vector<std::string> wrong;      // not allowed
};

const std::vector<Form>& forms() {
  static const std::vector<Form> out = {
      {ToolFormat::kimi,
       "<|tool_call_begin|>",
       "<|tool_call_begin|>",
       {"<|tool_calls_section_begin|><|tool_call_begin|>functions.forecast:0"
        "<|tool_call_argument_begin|>{\"city\": \"Oslo\", \"days\": 3, \"unit\": \"C\"}"
        "<|tool_call_end|><|tool_calls_section_end|>"},
       {"<|tool_call_begin|>functions.other:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
        "<|tool_call_begin|>functions.forecast:0<|tool_call_argument_begin|>{}<|tool_call_end|>"}},
      {ToolFormat::llama,
       "<|python_tag|>",
       "{\"name\": \"forecast\"",
       {R"({"name": "forecast", "parameters": {"city": "Oslo", "days": 3, "unit": "C"}})",
        R"(<|python_tag|>{"name": "forecast", "parameters": {"city": "Oslo", "days": 3, "unit": "C"}})"},
       {R"({"name": "forecast", "parameters": {"city": "Oslo", "days": 13}})",
        R"({"name": "forecast", "parameters": {"days": 3}})", "{\"a\": 1}",
        "<|python_tag|>forecast.call(city=\"Oslo\")"}},
      {ToolFormat::pythonic,
       "[func_name1(params_name1=",
       "[forecast(",
       {R"([forecast(city="Oslo", days=3, unit="C")])"},
       {R"([forecast(city="Oslo", days=13)])", "[forecast(days=3)]", "[other()]", "[1]"}},
      {ToolFormat::pythonic,
       "<|tool_call_start|>",
       "<|tool_call_start|>[forecast(",
       {R"(<|tool_call_start|>[forecast(city="Oslo", days=3, unit="C")]<|tool_call_end|>)"},
       {R"(<|tool_call_start|>[forecast(city=3, days=3)]<|tool_call_end|>)", "<|tool_call_start|>{",
        "Use <|tool_call_start|> for calls."}},
      {ToolFormat::gemma,
       "<|tool_call>",
       "<|tool_call>call:forecast{",
       {R"(<|tool_call>call:forecast{city:<|"|>Oslo<|"|>,days:3,unit:<|"|>C<|"|>}<tool_call|>)"},
       {R"(<|tool_call>call:forecast{city:<|"|>Oslo<|"|>,days:13}<tool_call|>)",
        R"(<|tool_call>call:forecast{city:<|"|>Oslo<|"|>}<tool_call|>)"}},
      {ToolFormat::gemma,
       "<start_function_call>",
       "<start_function_call>call:forecast{",
       {"<start_function_call>call:forecast{city:<escape>Oslo<escape>,days:3,unit:<escape>C<escape>"
        "}"
        "<end_function_call>"},
       {"<start_function_call>call:other{}<end_function_call>"}},
      {ToolFormat::mistral,
       "[TOOL_CALLS] [",
       "[TOOL_CALLS] [{\"name\": \"forecast\"",
       {R"([TOOL_CALLS] [{"name": "forecast", "arguments": {"city": "Oslo", "days": 3, "unit": "C"}}])",
        R"(Look.[TOOL_CALLS][{"name": "forecast", "arguments": {"city": "Oslo", "days": 3, "unit": )"
        R"("C"}, "id": "aB3dE6gH9"}])"},
       {R"([TOOL_CALLS] [{"name": "forecast", "arguments": {"city": "Oslo", "days": 13}}])",
        R"([TOOL_CALLS] [{"name": "other", "arguments": {}}])",
        R"([TOOL_CALLS] {"name": "now", "arguments": {}})", "[TOOL_CALLS] []",
        R"([TOOL_CALLS] [{"name": "now", "arguments": {}, "id": "1"}])"}},
      {ToolFormat::minimax,
       "<tool_calls>",
       "<tool_calls>\n{\"name\": \"forecast\"",
       {"<tool_calls>\n{\"name\": \"forecast\", \"arguments\": {\"city\": \"Oslo\", \"days\": 3, "
        "\"unit\": \"C\"}}\n</tool_calls>",
        " <tool_calls>[\n    {\"name\": \"forecast\", \"arguments\": {\"city\": \"Oslo\", "
        "\"days\": 3, "
        "\"unit\": \"C\"}}\n]</tool_calls>"},
       {"<tool_calls>\n{\"name\": \"forecast\", \"arguments\": {}}\n</tool_calls>",
        "<tool_calls>\n{\"name\": \"now\", \"arguments\": {}}]\n</tool_calls>",
        "<tool_calls></tool_calls>",
        "<tool_calls>[{\"name\": \"now\", \"arguments\": {}}</tool_calls>"}},
      {ToolFormat::minimax,
       "<minimax:tool_call>",
       "<invoke name=\"forecast\">",
       {"<minimax:tool_call>\n<invoke name=\"forecast\">\n<parameter "
        "name=\"city\">Oslo</parameter>\n"
        "<parameter name=\"days\">3</parameter>\n<parameter "
        "name=\"unit\">C</parameter>\n</invoke>\n"
        "</minimax:tool_call>"},
       {"<invoke name=\"forecast\"><parameter name=\"city\">Oslo</parameter></invoke>",
        "<invoke name=\"forecast\"><parameter name=\"city\">Oslo</parameter>"
        "<parameter name=\"days\">many</parameter></invoke>"}},
      {ToolFormat::tag,
       "<tool_call> <function=",
       "<tool_call>\n<function=forecast>",
       {"<tool_call>\n<function=forecast>\n<parameter=city>\nOslo\n</"
        "parameter>\n<parameter=days>\n3\n"
        "</parameter>\n<parameter=unit>\nC\n</parameter>\n</function>\n</tool_call>"},
       {"<tool_call><function=forecast>\n<parameter=days>\n3\n</parameter>\n</function></"
        "tool_call>",
        "<function=now>\n</function>", "<tool_call>{\"name\": \"forecast\"}</tool_call>"}},
      {ToolFormat::tag,
       "<tool_call> <arg_key>",
       "<tool_call>forecast",
       {"<tool_call>forecast\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</"
        "arg_key>"
        "\n<arg_value>3</arg_value>\n<arg_key>unit</arg_key>\n<arg_value>C</arg_value>\n</"
        "tool_call>",
        "<tool_call>forecast<arg_key>city</arg_key><arg_value>Oslo</arg_value><arg_key>days</"
        "arg_key>"
        "<arg_value>3</arg_value><arg_key>unit</arg_key><arg_value>C</arg_value></tool_call>"},
       {"<tool_call>forecast<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>",
        "<tool_call>other</tool_call>"}},
      {ToolFormat::dsml,
       "｜DSML｜",
       "<｜DSML｜invoke name=\"forecast\">",
       {"<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"forecast\">\n<｜DSML｜parameter "
        "name=\"city\" "
        "string=\"true\">Oslo</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" "
        "string=\"false\">3"
        "</｜DSML｜parameter>\n<｜DSML｜parameter name=\"unit\" "
        "string=\"true\">C</｜DSML｜parameter>\n"
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>"},
       {"<｜DSML｜invoke name=\"forecast\">\n<｜DSML｜parameter name=\"city\" string=\"false\">3"
        "</｜DSML｜parameter>\n</｜DSML｜invoke>"}},
      {ToolFormat::tag,
       "<tool_call>",
       "<tool_call>{\"name\": \"forecast\"",
       {"<tool_call>\n{\"name\": \"forecast\", \"arguments\": {\"city\": \"Oslo\", \"days\": 3, "
        "\"unit\": "
        "\"C\"}}\n</tool_call>"},
       {"<tool_call>{\"name\": \"other\", \"arguments\": {}}</tool_call>"}},
  };
  return out;
}

grammar::CallForm form_of(const Form& f) {
  const auto out = find_call_form(f.format, f.chat_template);
  EXPECT_TRUE(out) << f.chat_template;
  return *out;
}

TEST(CallForm, CallsOfModelsAreAllowedAndRead) {
  for (const Form& f : forms()) {
    SCOPED_TRACE(f.chat_template);
    const grammar::CallForm form = form_of(f);
    const auto grammar = compile(source_of(form));
    for (const std::string& text : f.forecasts) {
      EXPECT_TRUE(allows(grammar, text)) << text;
      const TextParts parts = read(f.format, form, text);
      ASSERT_EQ(parts.calls.size(), 1u) << text << parts.content;
      EXPECT_EQ(parts.calls[0].name, "forecast");
      EXPECT_EQ(Json::parse(parts.calls[0].arguments),
                Json::parse(R"({"city": "Oslo", "days": 3, "unit": "C"})"));
    }
    for (const std::string& text : f.wrong) EXPECT_FALSE(allows(grammar, text)) << text;
    for (const char* text : {"", "No.", "a < b, [1] {2}", "x\n{\"a\": 1}\n"}) {
      EXPECT_TRUE(allows(grammar, text)) << text;
    }
  }
}

bool is_forecast(const Json& arguments) {
  for (const auto& [name, value] : arguments.items()) {
    if (name == "city" && value.is_string()) continue;
    if (name == "days" && value.is_number_integer() && value >= 1 && value <= 12) continue;
    if (name == "unit" && (value == "C" || value == "F" || value.is_null())) continue;
    if (name == "notes" && value.is_array() &&
        std::ranges::all_of(value, [](const Json& v) { return v.is_string(); })) {
      continue;
    }
    const bool tags =
        name == "tags" && value.is_array() && value.size() <= 2 &&
        std::ranges::all_of(value, [](const Json& v) { return v == "wind" || v == "rain"; });
    if (!tags) return false;
  }
  return arguments.contains("city") && arguments.contains("days");
}

// Appends `more` to the text if the grammar allows it.
bool append(grammar::Matcher& matcher, std::string& text, std::string_view more) {
  grammar::Matcher next = matcher;
  for (const char c : more) {
    std::vector<std::uint32_t> bits(8);
    const auto byte = static_cast<std::uint8_t>(c);
    if (!next.allowed(bits) || (bits[byte / 32] >> (byte % 32) & 1u) == 0) return false;
    EXPECT_TRUE(next.accept(byte));
  }
  matcher = std::move(next);
  text += more;
  return true;
}

// The text of a call: `begin`, then marks of the form and random printable bytes that the grammar
// allows, until the answer may end. Empty: it did not come to an end.
std::string walk(const std::shared_ptr<grammar::Grammar>& grammar, const grammar::CallForm& form,
                 std::string_view begin, std::mt19937& random) {
  std::vector<std::string> marks = {form.in_json_list ? form.list_end : form.end,
                                    "\"",
                                    "}",
                                    "]",
                                    ")",
                                    ", ",
                                    ": ",
                                    "\n",
                                    "wind",
                                    "C"};
  if (form.marked) {
    marks.insert(marks.end(),
                 {form.marked->after_text, form.marked->after_json, form.marked->before_key});
  }
  grammar::Matcher matcher(grammar, {});
  std::string text;
  EXPECT_TRUE(append(matcher, text, begin)) << begin;
  for (int i = 0; i < 400; ++i) {
    std::vector<std::uint32_t> bits(8);
    const auto ends = matcher.allowed(bits);
    EXPECT_TRUE(ends);
    if (*ends) return text;
    if (random() % 2 == 0 && append(matcher, text, marks[random() % marks.size()])) continue;
    std::vector<char> may, rest;  // rest: bytes of marks
    for (int c = 1; c < 256; ++c) {
      if ((bits[static_cast<std::size_t>(c / 32)] >> (c % 32) & 1u) == 0) continue;
      const bool printable = (c >= ' ' && c < 127) || c == '\n';
      (printable ? may : rest).push_back(static_cast<char>(c));
    }
    if (may.empty()) may = rest;
    if (may.empty()) return {};
    EXPECT_TRUE(append(matcher, text, std::string(1, may[random() % may.size()])));
  }
  return {};
}

TEST(CallForm, WhatTheGrammarAllowsFollowsTheSchema) {
  std::mt19937 random(test_seed(11));
  for (const Form& f : forms()) {
    SCOPED_TRACE(f.chat_template);
    const grammar::CallForm form = form_of(f);
    const auto grammar = compile(source_of(form));
    int calls = 0;
    for (int i = 0; i < 400 * test_scale(); ++i) {
      const std::string text = walk(grammar, form, f.begin, random);
      if (text.empty()) continue;
      const TextParts parts = read(f.format, form, text);
      ASSERT_FALSE(parts.calls.empty()) << text << "\n" << parts.content;
      for (const ToolCall& call : parts.calls) {
        ++calls;
        const Json arguments = Json::parse(call.arguments);
        ASSERT_TRUE(call.name == "now" ? arguments.empty() : is_forecast(arguments))
            << text << "\n"
            << call.name << call.arguments;
      }
    }
    EXPECT_GT(calls, 20);
  }
}

// Arguments of `forecast` that the grammar of this schema allows, as they are read; null: the form
// refuses it, with `path` named.
Json arguments_of(const Form& f, const Json& schema, const std::string& path,
                  std::mt19937& random) {
  const grammar::CallForm form = form_of(f);
  grammar::Source source = source_of(form);
  source.tools = {{"forecast", schema, "t"}};
  source.one_call = true;
  const auto grammar = grammar::Grammar::compile(source, bytes());
  if (!grammar) {
    EXPECT_TRUE(form.marked);
    EXPECT_THAT(grammar.error().message(), HasSubstr(path));
    return nullptr;
  }
  for (int i = 0; i < 50; ++i) {
    const std::string text = walk(*grammar, form, f.begin, random);
    if (text.empty()) continue;
    const TextParts parts = read(f.format, form, text);
    if (parts.calls.size() != 1) return text + " is read as " + parts.content;
    return Json::parse(parts.calls[0].arguments);
  }
  return "no text came to an end";
}

// A name that the form cannot write between its marks is refused; any other is read back.
TEST(CallForm, OddNamesOfArgumentsAreReadOrRefused) {
  const unsigned seed = std::random_device()();
  std::mt19937 random(seed);
  for (const Form& f : forms()) {
    for (const std::string name :
         {"k",   "k-1", "é",   "",     " k",          "k ",      "k\"",
          "\"k", "k>",  "k:",  "k=",   "k l",         "k,",      "k)",
          "}k",  "k<",  "'k'", "k\nl", "k</arg_key>", "<|\"|>k", "k</tool_call>"}) {
      SCOPED_TRACE(::testing::Message()
                   << f.chat_template << ", name " << Json(name) << ", seed " << seed);
      const Json schema = {{"type", "object"},
                           {"properties", {{name, {{"const", 1}}}}},
                           {"required", {name}},
                           {"additionalProperties", false}};
      const Json got = arguments_of(f, schema, "t.properties", random);
      const bool plain = name == "k" || name == "é";
      if (!plain && got.is_null()) continue;
      EXPECT_EQ(got, Json({{name, 1}}));
    }
  }
}
TEST(CallForm, OddNamesInValuesAreRead) {
  const unsigned seed = std::random_device()();
  std::mt19937 random(seed);
  const Json value = {
      {"k<", 1}, {"k\"", {{"", 2}}}, {"k\n\\", Json::array({{{"}", 3}}})}, {"k:,", "<"}};
  const Json schema = {{"type", "object"},
                       {"properties", {{"tags", {{"const", value}}}}},
                       {"required", {"tags"}},
                       {"additionalProperties", false}};
  for (const Form& f : forms()) {
    SCOPED_TRACE(::testing::Message() << f.chat_template << ", seed " << seed);
    EXPECT_EQ(arguments_of(f, schema, "t.properties", random), Json({{"tags", value}}));
  }
}

// The marks that end a call, a list or an argument of the form.
std::vector<std::string> end_marks(const Form& f, const grammar::CallForm& form) {
  std::vector<std::string> out = {form.end, form.list_end};
  for (const CallMarks& marks : tool_marks(f.format).calls) out.emplace_back(marks.end);
  if (form.marked) out.insert(out.end(), {form.marked->after_text, form.marked->after_json});
  for (std::string& mark : out) {
    mark.erase(0, mark.find_first_not_of("\n"));
    mark.erase(std::min(mark.size(), mark.find_last_not_of("\n") + 1));
  }
  std::erase_if(out, [](const std::string& mark) { return mark.size() < 3; });
  return out;
}

// A call as a model writes it, of another city.
std::string call_with(const Form& f, const std::string& city) {
  std::string out = f.forecasts.back();
  return out.replace(out.find("Oslo"), 4, city);
}

// Either the grammar allows no such text, or it is read as it is.
TEST(CallForm, StringsMayHoldMarksThatEndCalls) {
  for (const Form& f : forms()) {
    SCOPED_TRACE(f.chat_template);
    const grammar::CallForm form = form_of(f);
    const auto grammar = compile(source_of(form));
    for (const std::string& mark : end_marks(f, form)) {
      const std::string city = "a" + mark + "b";
      const std::string text = call_with(f, city);
      if (!allows(grammar, text)) {
        EXPECT_TRUE(form.marked && !form.marked->after_text.empty()) << text;
        continue;
      }
      const TextParts parts = read(f.format, form, text);
      ASSERT_EQ(parts.calls.size(), 1u) << text << parts.content;
      EXPECT_EQ(Json::parse(parts.calls[0].arguments)["city"], city) << text;
      EXPECT_EQ(parts.content.find(mark), std::string::npos) << text << parts.content;
    }
  }
}

TEST(CallForm, ListsOfStringsHoldMarksAsEscapes) {
  for (const auto& [format, shown, front, back, mark] :
       {std::tuple(ToolFormat::tag, "<function=",
                   "<tool_call>\n<function=forecast>\n<parameter=city>\nOslo\n</parameter>\n"
                   "<parameter=days>\n3\n</parameter>\n<parameter=notes>\n",
                   "\n</parameter>\n</function>\n</tool_call>", "</tool_call>"),
        std::tuple(ToolFormat::tag, "<arg_key>",
                   "<tool_call>forecast\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
                   "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n<arg_key>notes</arg_key>\n"
                   "<arg_value>",
                   "</arg_value>\n</tool_call>", "</arg_value>"),
        std::tuple(ToolFormat::minimax, "<minimax:tool_call>",
                   "<invoke name=\"forecast\">\n<parameter name=\"city\">Oslo</parameter>\n"
                   "<parameter name=\"days\">3</parameter>\n<parameter name=\"notes\">",
                   "</parameter>\n</invoke>", "</parameter>"),
        std::tuple(ToolFormat::gemma, "<|tool_call>",
                   "<|tool_call>call:forecast{city:<|\"|>Oslo<|\"|>,days:3,notes:", "}<tool_call|>",
                   "<tool_call|>"),
        std::tuple(ToolFormat::dsml, "",
                   "<｜DSML｜invoke name=\"forecast\">\n<｜DSML｜parameter name=\"city\" "
                   "string=\"true\">Oslo</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" "
                   "string=\"false\">3</｜DSML｜parameter>\n<｜DSML｜parameter name=\"notes\" "
                   "string=\"false\">",
                   "</｜DSML｜parameter>\n</｜DSML｜invoke>", "</｜DSML｜parameter>"),
        std::tuple(ToolFormat::pythonic, "<|tool_call_start|>",
                   "<|tool_call_start|>[forecast(city=\"Oslo\", days=3, notes=",
                   ")]<|tool_call_end|>", "<|tool_call_end|>")}) {
    SCOPED_TRACE(shown);
    const grammar::CallForm form = *find_call_form(format, shown);
    const auto grammar = compile(source_of(form));
    const std::string escaped = "\\u003c" + std::string(mark).substr(1);
    for (const std::string& spelled : {std::string(mark), escaped}) {
      const std::string text = front + ("[\"a" + spelled + "b\"]") + back;
      EXPECT_EQ(allows(grammar, text), spelled == escaped || format == ToolFormat::pythonic)
          << text;
      if (!allows(grammar, text)) continue;
      const TextParts parts = read(format, form, text);
      ASSERT_EQ(parts.calls.size(), 1u) << text << parts.content;
      EXPECT_EQ(Json::parse(parts.calls[0].arguments)["notes"],
                Json::array({"a" + std::string(mark) + "b"}));
    }
  }
}

TEST(CallForm, WhatMarksCannotFollowIsNamed) {
  const auto fault = [](const char* schema) {
    grammar::Source source = source_of(*find_call_form(ToolFormat::minimax, "<minimax:tool_call>"));
    source.tools = {{"f", Json::parse(schema), "tools[0].function.parameters"}};
    const auto out = grammar::Grammar::compile(source, bytes());
    return out ? std::string() : out.error().message();
  };
  EXPECT_THAT(fault(R"({"properties": {"a": {"type": "string", "pattern": "^x"}}})"),
              HasSubstr("tools[0].function.parameters.properties.a.pattern"));
  EXPECT_THAT(fault(R"({"properties": {"a": {}}, "minProperties": 1})"),
              HasSubstr("minProperties"));
  EXPECT_THAT(fault(R"({"properties": {"a": {"$ref": "#/properties/b"}, "b": {}}})"),
              HasSubstr("properties.a.$ref"));
  EXPECT_THAT(fault(R"({"required": ["z"]})"), HasSubstr("required"));
  EXPECT_EQ(
      fault(R"({"properties": {"a": {"type": "object", "properties": {"b": {"pattern": "^x"}}}}})"),
      "");
}

TEST(CallForm, ListsHaveSeveralCallsOrOne) {
  const std::string now = R"({"name": "now", "arguments": {}})";
  for (const auto& [format, shown, text] :
       {std::tuple(ToolFormat::mistral, "[TOOL_CALLS]", "[TOOL_CALLS][" + now + ", " + now + "]"),
        {ToolFormat::minimax, "<tool_calls>", "<tool_calls>" + now + "\n" + now + "</tool_calls>"},
        {ToolFormat::minimax, "<tool_calls>",
         "<tool_calls>[" + now + "," + now + "]</tool_calls>"}}) {
    grammar::Source source = source_of(*find_call_form(format, shown));
    EXPECT_TRUE(allows(compile(source), text)) << text;
    EXPECT_EQ(read(format, source.form, text).calls.size(), 2u) << text;
    source.one_call = true;
    EXPECT_FALSE(allows(compile(source), text)) << text;
  }
}

// A text that follows its own schema, or calls and nothing else.
TEST(CallForm, ATextOfASchemaOrCalls) {
  for (const Form& f : forms()) {
    SCOPED_TRACE(f.chat_template);
    grammar::Source source = source_of(form_of(f));
    source.kind = grammar::Source::Kind::json_schema;
    source.schema = Json::parse(R"({"type": "object", "required": ["answer"],
        "properties": {"answer": {"type": "string"}}, "additionalProperties": false})");
    source.or_calls = true;
    const auto grammar = compile(source);
    EXPECT_TRUE(allows(grammar, R"({"answer": "a </tool_call> b"})"));
    for (const char* text : {"", "No.", "{}", "\n", R"({"answer": 1})", "Look."}) {
      EXPECT_FALSE(allows(grammar, text)) << text;
    }
    for (const std::string& text : f.forecasts) {
      const std::string call = text.substr(text.find_first_not_of(" "));
      EXPECT_EQ(allows(grammar, call), !call.starts_with("Look.")) << call;
      EXPECT_FALSE(allows(grammar, call + R"({"answer": ""})")) << call;
      EXPECT_FALSE(allows(grammar, "Well. " + call)) << call;
    }
    for (const std::string& text : f.wrong) EXPECT_FALSE(allows(grammar, text)) << text;
  }
}

// openai-harmony reads a recipient in any header.
TEST(CallForm, ChannelsHaveOneFormOfCalls) {
  const auto grammar = compile(source_of(harmony_call_form()));
  const std::string rest = " <|constrain|>json<|message|>{}";
  EXPECT_TRUE(allows(grammar, "<|channel|>commentary to=functions.now" + rest));
  EXPECT_TRUE(allows(grammar,
                     "<|channel|>analysis<|message|>Now?<|end|><|start|>assistant"
                     "<|channel|>commentary to=functions.now" +
                         rest));
  EXPECT_TRUE(allows(grammar, "<|channel|>final<|message|>It is noon."));
  for (const std::string front :
       {"<|channel|>commentary to=functions.other", "<|channel|>comment to=functions.now",
        "<|channel|>analysis to=functions.now",
        "<|start|>assistant to=functions.now<|channel|>commentary",
        "<|channel|>commentary  to=functions.now"}) {
    EXPECT_FALSE(allows(grammar, front + rest)) << front;
  }
  // A recipient at another place in the header is not begun, so that the answer turns to this form.
  for (const char* front : {" to", "<|channel|>final<|message|>Now.<|end|><|start|>assistant to"}) {
    EXPECT_FALSE(allows(grammar, front)) << front;
  }
}

TEST(CallForm, SomeTemplatesShowNone) { EXPECT_FALSE(find_call_form(ToolFormat::none, "")); }

}  // namespace
}  // namespace lathe
