// Compares every text with jinja2's in the environment of Hugging Face transformers
// (tools/fixtures/make_template_fixtures.py).
#include "io/template/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "io/files/read_file.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;

const fs::path kTemplates = fs::path(LATHE_TEST_DATA) / "templates";

RenderOptions fixed_time() {
  std::tm t{};
  t.tm_year = 124, t.tm_mon = 6, t.tm_mday = 26, t.tm_hour = 9, t.tm_min = 5, t.tm_sec = 3;
  t.tm_wday = 5, t.tm_yday = 207;
  return {t, {}};
}

const Json& expected() {
  static const Json kExpected = Json::parse(*read_file(kTemplates / "expected.json"));
  return kExpected;
}

Result<std::string> render(const std::string& source, const Json& variables,
                           const RenderOptions& options = fixed_time()) {
  const auto t = ChatTemplate::parse(source);
  if (!t) return t.error();
  return t->render(variables, options);
}

// Compares Lathe's rendering with a text or {"error": ...}.
void expect_like_jinja(const std::string& source, const Json& variables, const Json& wanted) {
  const auto got = render(source, variables);
  if (wanted.is_string()) {
    ASSERT_TRUE(got.ok()) << got.error().message();
    EXPECT_EQ(*got, wanted.get<std::string>());
    return;
  }
  const auto message = wanted["error"].get<std::string>();
  ASSERT_FALSE(got.ok()) << "jinja2 gives " << message << ", we give " << *got;
  EXPECT_THAT(got.error().field, HasSubstr("chat_template line "));
  // The template's own message reaches the user.
  if (message.starts_with("TemplateError: ")) {
    EXPECT_EQ(got.error().code, ErrorCode::invalid_argument);
    EXPECT_THAT(got.error().message(), HasSubstr(message.substr(15)));
  }
}

TEST(ChatTemplate, SnippetsAsJinja2) {
  const Json& e = expected();
  ASSERT_GT(e["snippets"].size(), 150u);
  for (const Json& snippet : e["snippets"]) {
    SCOPED_TRACE(snippet[0].get<std::string>());
    expect_like_jinja(snippet[0].get<std::string>(), e["variables"], snippet[1]);
  }
}

TEST(ChatTemplate, FamiliesAsJinja2) {
  const Json& e = expected();
  ASSERT_GE(e["templates"].size(), 8u);
  for (const auto& [name, conversations] : e["templates"].items()) {
    const std::string source = *read_file(kTemplates / (name + ".jinja"));
    ASSERT_GE(conversations.size(), 15u);
    for (const auto& [conversation, wanted] : conversations.items()) {
      SCOPED_TRACE(name + " with " + conversation);
      expect_like_jinja(source, e["conversations"][conversation], wanted);
    }
  }
}

std::string template_refusal(const std::string& source, const Json& variables = Json::object()) {
  const auto r = render(source, variables);
  return r.ok() ? "accepted: " + *r : r.error().message();
}

TEST(ChatTemplate, ErrorsNameLineAndConstruct) {
  EXPECT_EQ(template_refusal("a\nb\n{% autoescape true %}"),
            "chat_template line 3: wanted if, for, set, macro, call, with, filter, generation, "
            "break or continue, got \"{% autoescape %}\"");
  EXPECT_EQ(template_refusal("a\n{{ x.y.z }}", {{"x", Json::object()}}),
            "chat_template line 2: wanted a defined value, got 'dict object' has no attribute 'y'");
  EXPECT_EQ(
      template_refusal("{% macro m() %}\n{{ 1 + 'a' }}{% endmacro %}\n{{ m() }}"),
      "chat_template line 2: wanted operands that \"+\" takes, got int object and str object");
  EXPECT_THAT(template_refusal("\n{% if true %}\n\nx"),
              HasSubstr("line 2: wanted {% endif %}, got the end"));
  EXPECT_THAT(template_refusal("{{ 'x' | wordwrap }}"), HasSubstr("got \"wordwrap\""));
  EXPECT_THAT(template_refusal("{% for x in y recursive %}{% endfor %}"), HasSubstr("recursive"));
  EXPECT_THAT(template_refusal("{% include 'x' %}"), HasSubstr("{% include %}"));
  EXPECT_THAT(template_refusal("{{ f(*x) }}"), HasSubstr("unpacking"));
  EXPECT_EQ(template_refusal("{{ ('a,b' | safe).split(',') }}"),
            "chat_template line 1: wanted this method before the filter safe, got \"split\"");
  EXPECT_EQ(template_refusal("{% filter length %}ab{% endfilter %}"),
            "chat_template line 1: wanted filters that give a text, got int object");
  EXPECT_THAT(template_refusal("{{ 9223372036854775807 + 1 }}"), HasSubstr("integers of 64 bits"));
  EXPECT_EQ(render("{{ '%s' % 1 }}", Json::object()).error().code, ErrorCode::unsupported);
  EXPECT_THAT(template_refusal("x", Json::array()), HasSubstr("a JSON object"));
}

// An error in a loop over messages, however the template cuts the list, names the message, too.
TEST(ChatTemplate, ErrorsNameTheMessage) {
  const Json messages = {{{"role", "user"}, {"content", "a"}},
                         {{"role", "assistant"}, {"content", "b"}, {"tool_calls", {1, 2}}},
                         {{"role", "user"}, {"content", "a"}},
                         {{"role", "assistant"}, {"content", "b"}, {"tool_calls", {3, 4}}}};
  const auto refusal = [&](const std::string& source) {
    return template_refusal(source, {{"messages", messages}, {"others", messages}});
  };
  const std::string raised =
      "chat_template line 2: wanted a conversation that the template takes, got \"no\"";
  const std::string two =
      "{% if m.tool_calls | length > 1 %}\n{{ raise_exception('no') }}{% endif %}";
  EXPECT_EQ(refusal("{% for m in messages %}" + two + "{% endfor %}"), "messages[1], " + raised);
  EXPECT_EQ(refusal("{% for m in messages[2:] %}" + two + "{% endfor %}"),
            "messages[3], " + raised);
  EXPECT_EQ(refusal("{% for m in messages | reverse %}" + two + "{% endfor %}"),
            "messages[3], " + raised);
  EXPECT_EQ(refusal("{% macro f(m) %}{% for c in m.tool_calls or [] %}{% if c == 4 %}\n"
                    "{{ raise_exception('no') }}{% endif %}{% endfor %}{% endmacro %}"
                    "{% for m in messages %}{{ f(m) }}{% endfor %}"),
            "messages[3], " + raised);
  EXPECT_EQ(refusal("{% for m in messages %}\n{{ m.content + 1 }}{% endfor %}"),
            "messages[0], chat_template line 2: wanted operands that \"+\" takes, got str object "
            "and int object");
  // Of no message, or of none of the request's.
  EXPECT_EQ(refusal("\n{{ raise_exception('no') }}"), raised);
  EXPECT_EQ(refusal("{% for m in others %}" + two + "{% endfor %}"), raised);
  EXPECT_EQ(refusal("{% for m in messages %}{% endfor %}\n{{ raise_exception('no') }}"), raised);
}

// As Python prints an integer of any size.
TEST(ChatTemplate, A8IntegersBeyond63BitsKeepTheirDigits) {
  const auto text =
      render("{{ n }} {{ [n] | tojson }} {{ n is number }}", {{"n", 18446744073709551615u}});
  ASSERT_TRUE(text);
  EXPECT_EQ(*text, "18446744073709551615 [18446744073709551615] True");
}

TEST(ChatTemplate, HostileTemplatesEndInAnError) {
  const char* const sources[] = {
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% macro m() %}{% for i in [1] %}{% if true %}{{ [[m() ~ 'x']] | map('trim') | first }}"
      "{% endif %}{% endfor %}{% endmacro %}{{ m() }}",
      "{{ 'a' * 99999999999 }}",
      "{{ [0] * 99999999999 }}",
      "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}"
      "{% endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% "
      "endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(999) %}{% set ns.l = [ns.l] %}{% endfor %}",
      // A list that holds the previous one twice, 99 times over: small in memory, endless to print
      // or compare.
      "{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = [ns.l, ns.l] %}"
      "{% endfor %}{{ ns.l }}",
      "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(99) %}{% set ns.a = [ns.a, ns.a] %}"
      "{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}",
      "{% set ns = namespace() %}{% set ns.self = [ns] %}{{ ns }}",
      "{{ 'aaaaaaaaaa' | indent(99999999999, true) }}",
      "{{ [1] | tojson(indent=99999999999) }}",
      "{{ ('a' * 9999999).replace('a', 'b' * 9999999) }}",
      "{{ ('a' * 9999999).split('a') | length }}",
      "{{ (('a' * 9999) | list | join('b' * 99999)) }}",
      "{{ range(999999999) | list }}",
      "{{ 2 ** 99999999999 }}",
      "{{ strftime_now('%c' * 999) }}",
  };
  RenderOptions options = fixed_time();
  options.limits.steps = 1'000'000;  // the default limit works, too, but is slow under sanitizers
  for (const char* source : sources) {
    const auto r = render(source, Json::object(), options);
    EXPECT_FALSE(r.ok()) << source;
  }
  const auto nested = [](const char* open, const char* close, int n) {
    std::string s;
    for (int i = 0; i < n; ++i) s += open;
    s += "1";
    for (int i = 0; i < n; ++i) s += close;
    return s;
  };
  EXPECT_THAT(template_refusal("{{ " + nested("(", ")", 100000) + " }}"),
              HasSubstr("levels of nesting"));
  EXPECT_THAT(template_refusal("{{ " + nested("-", "", 100000) + " }}"),
              HasSubstr("levels of nesting"));
  EXPECT_THAT(template_refusal("{{ " + nested("not ", "", 100000) + " }}"),
              HasSubstr("levels of nesting"));
  EXPECT_THAT(template_refusal("{{ " + nested("", ".a", 100000) + " }}"), HasSubstr("levels"));
  EXPECT_THAT(template_refusal("{{ " + nested("", "+1", 100000) + " }}"), HasSubstr("levels"));
  EXPECT_THAT(template_refusal("{{ " + nested("1 if 1 else ", "", 100000) + " }}"),
              HasSubstr("levels"));
  EXPECT_THAT(template_refusal(nested("{% if 1 %}", "{% endif %}", 100000)), HasSubstr("levels"));
  EXPECT_EQ(template_refusal("{{ " + nested("(", ")", 50) + " }}"), "accepted: 1");
  Json deep = 1;
  for (int i = 0; i < 1000; ++i) deep = Json::array({std::move(deep)});
  EXPECT_THAT(template_refusal("x", {{"deep", deep}}), HasSubstr("levels of nesting"));
}

TEST(ChatTemplate, LimitsAreTheCallers) {
  RenderOptions small = fixed_time();
  small.limits.text_bytes = 10;
  EXPECT_TRUE(render("0123456789", Json::object(), small).ok());
  EXPECT_EQ(render("0123456789a", Json::object(), small).error().code, ErrorCode::exhausted);
  small = fixed_time();
  small.limits.steps = 100;
  EXPECT_EQ(
      render("{% for i in range(50) %}{{ i }}{% endfor %}", Json::object(), small).error().code,
      ErrorCode::exhausted);
}

class TemplateFolder {
 public:
  TemplateFolder() {
    std::string pattern = (fs::temp_directory_path() / "lathe-template-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemplateFolder() {
    std::error_code ec;
    fs::remove_all(path_, ec);
  }
  const fs::path& path() const { return path_; }
  void write(const std::string& file, const std::string& text) const {
    std::ofstream(path_ / file) << text;
  }
  std::string loaded() const {
    const auto f = load_chat_template(path_);
    if (!f) return f.error().message();
    return *f->chat_template.render({{"x", 1}}) + " " + f->bos_token + " " + f->eos_token;
  }

 private:
  fs::path path_;
};

TEST(LoadChatTemplate, FindsTheTemplateWhereItMayLie) {
  const TemplateFolder f;
  EXPECT_THAT(f.loaded(), HasSubstr("wanted chat_template.jinja"));
  f.write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": null})");
  EXPECT_THAT(f.loaded(), HasSubstr("wanted chat_template.jinja"));
  f.write("tokenizer_config.json",
          R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "c{{ x }}"})");
  EXPECT_EQ(f.loaded(), "c1 <s> </s>");
  f.write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "t"},
                                       {"name": "default", "template": "d{{ x }}"}]})");
  EXPECT_EQ(f.loaded(), "d1  ");
  f.write("chat_template.json", R"({"chat_template": "j{{ x }}"})");
  EXPECT_EQ(f.loaded(), "j1  ");
  f.write("chat_template.jinja", "f{{ x }}\n");
  EXPECT_EQ(f.loaded(), "f1  ");
  f.write("tokenizer_config.json", R"({"bos_token": 3})");
  EXPECT_THAT(f.loaded(), HasSubstr("tokenizer_config.json: bos_token: wanted a string"));
  f.write("tokenizer_config.json", "{");
  EXPECT_THAT(f.loaded(), HasSubstr("valid JSON"));
  f.write("tokenizer_config.json", "{}");
  f.write("chat_template.jinja", "\n{% if %}");
  EXPECT_THAT(f.loaded(), HasSubstr("chat_template.jinja: chat_template line 2: "));
}

TEST(LoadChatTemplate, TextThatIsNoUtf8IsRefused) {
  const TemplateFolder f;
  f.write("tokenizer_config.json", R"({"bos_token": "<s>"})");
  f.write("chat_template.jinja", "a\xc3\xa9\xff{{ x }}");
  EXPECT_THAT(f.loaded(), HasSubstr("chat_template.jinja: wanted text in UTF-8, got 0xff at byte 4 "
                                    "of 11"));
  f.write("chat_template.jinja", "{{ x }}");
  fs::create_directories(f.path() / "additional_chat_templates");
  f.write("additional_chat_templates/tool_use.jinja", "\xe2\x82");  // half a character
  EXPECT_THAT(f.loaded(), HasSubstr("tool_use.jinja: wanted text in UTF-8, got 0xe2 at byte 1"));
  f.write("additional_chat_templates/tool_use.jinja", "{{ x }}");
  for (const char* text : {"{\"chat_template\": \"\xff\"}", R"({"chat_template": "\ud800"})"}) {
    f.write("tokenizer_config.json", text);
    EXPECT_THAT(f.loaded(), HasSubstr("tokenizer_config.json: wanted valid JSON")) << text;
  }
}

// --chat-template replaces the folder's template; the tokens stay the folder's.
TEST(LoadChatTemplate, AnotherTemplateGetsTheFoldersTokens) {
  const TemplateFolder f;
  f.write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
  const auto loaded = load_chat_template(f.path(), "{{ x }}", "--chat-template t");
  ASSERT_TRUE(loaded) << loaded.error().message();
  EXPECT_EQ(loaded->bos_token + loaded->eos_token, "<s></s>");
  EXPECT_EQ(load_chat_template(f.path(), "a\xff", "--chat-template t").error().message(),
            "--chat-template t: wanted text in UTF-8, got 0xff at byte 2 of 2");
  EXPECT_THAT(load_chat_template(f.path(), "{% if %}", "--chat-template t").error().message(),
              HasSubstr("--chat-template t: chat_template line 1"));
}

// transformers' get_chat_template() picks "tool_use" of named templates where there are tools, in
// tokenizer_config.json's list and in the files that save_pretrained() writes.
TEST(ChatTemplate, B9ToolsHaveTheirOwnTemplate) {
  std::string name = (fs::temp_directory_path() / "lathe_tool_use_XXXXXX").string();
  ASSERT_NE(mkdtemp(name.data()), nullptr);
  const fs::path dir = name;
  const std::string main = "plain {{ messages[0].content }}";
  const std::string tools = "with {{ tools | length }} <tool_call>";
  const Json variables = {{"messages", {{{"role", "user"}, {"content", "hi"}}}}};
  Json with = variables;
  with["tools"] = {{{"type", "function"}}};
  const auto check = [&] {
    const auto loaded = load_chat_template(dir);
    ASSERT_TRUE(loaded.ok()) << loaded.error().message();
    const ChatTemplate& chat = loaded->chat_template;
    EXPECT_EQ(*chat.render(variables), "plain hi");
    EXPECT_EQ(*chat.render(with), "with 1 <tool_call>");
    EXPECT_TRUE(chat.check_tools(with).ok());
    EXPECT_THAT(std::string(chat.source()), HasSubstr("<tool_call>"));
    Json empty = variables;
    empty["tools"] = Json::array();
    EXPECT_EQ(*chat.render(empty), "plain hi");
  };
  const auto entry = [](const std::string& of, const std::string& text) {
    return Json{{"name", of}, {"template", text}};
  };
  const Json list =
      Json::array({entry("rag", "r"), entry("default", main), entry("tool_use", tools)});
  for (const char* file : {"tokenizer_config.json", "chat_template.json"}) {
    std::ofstream(dir / file) << Json{{"chat_template", list}}.dump();
    SCOPED_TRACE(file);
    check();
    fs::remove(dir / file);
  }
  fs::create_directories(dir / "additional_chat_templates");
  std::ofstream(dir / "chat_template.jinja") << main;
  std::ofstream(dir / "additional_chat_templates" / "tool_use.jinja") << tools;
  check();
  fs::remove_all(dir);
}

TEST(ChatTemplate, B9ATemplateThatIgnoresToolsIsKnown) {
  const Json none = {{"messages", Json::array()}};
  Json with = none;
  with["tools"] = {{{"type", "function"}}};
  // The word in plain text reads nothing.
  for (const char* source : {"tools: {{ messages }}", "{{ messages }}{# tools #}"}) {
    const auto chat = ChatTemplate::parse(source);
    EXPECT_TRUE(chat->check_tools(none).ok()) << source;
    const auto refused = chat->check_tools(with);
    ASSERT_FALSE(refused.ok()) << source;
    EXPECT_THAT(refused.error().message(), HasSubstr("tools: wanted none"));
  }
  EXPECT_TRUE(ChatTemplate::parse("{% if tools %}x{% endif %}")->check_tools(with).ok());
  EXPECT_TRUE(ChatTemplate::deepseek_v4(V4Encoding::preview).check_tools(with).ok());
}

}  // namespace
}  // namespace lathe
