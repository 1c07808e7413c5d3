// /v1/responses and /v1/messages become requests of chat. What their errors and X-Lathe-Ignored
// name is in the body that the client sent.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>

#include "base/test_scale.h"
#include "server/messages/message_request.h"
#include "server/responses/response_request.h"
#include "server/scripted/scripted_server.h"
#include "server/scripted/test/http_client_test_util.h"

namespace lathe {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::ordered_json;

Json nested(int levels) {
  Json out = 1;
  for (int i = 0; i < levels; ++i) out = Json{{"a", std::move(out)}};
  return out;
}

Json schema_of(const std::string& property, Json value) {
  return {{"type", "object"}, {"properties", {{property, std::move(value)}}}};
}

// A turn with a call, in each protocol's form, and tools that must be followed.
Json messages_body() {
  return {{"model", "default"},
          {"max_tokens", 2},
          {"system", {{{"type", "text"}, {"text", "be brief"}}}},
          {"stop_sequences", {"x", "y"}},
          {"thinking", {{"type", "enabled"}, {"budget_tokens", 2}}},
          {"tool_choice", {{"type", "tool"}, {"name", "f"}}},
          {"tools",
           {{{"name", "g"}, {"input_schema", schema_of("b", {{"type", "number"}})}},
            {{"name", "f"},
             {"description", "finds"},
             {"strict", true},
             {"input_schema", schema_of("a", {{"type", "string"}})}}}},
          {"messages",
           {{{"role", "user"}, {"content", {{{"type", "text"}, {"text", "one"}}}}},
            {{"role", "assistant"},
             {"content",
              {{{"type", "thinking"}, {"thinking", "hm"}, {"signature", "s"}},
               {{"type", "text"}, {"text", "two"}},
               {{"type", "tool_use"}, {"id", "c"}, {"name", "f"}, {"input", {{"a", "b"}}}}}}},
            {{"role", "user"},
             {"content",
              {{{"type", "tool_result"},
                {"tool_use_id", "c"},
                {"content", {{{"type", "text"}, {"text", "three"}}}}},
               {{"type", "text"}, {"text", "four"}}}}}}}};
}

Json responses_body() {
  return {
      {"model", "default"},
      {"max_output_tokens", 2},
      {"instructions", "be brief"},
      {"text",
       {{"format",
         {{"type", "json_schema"}, {"name", "n"}, {"schema", schema_of("c", {{"const", 1}})}}}}},
      {"reasoning", {{"effort", "low"}}},
      {"tools",
       {{{"type", "function"}, {"name", "g"}, {"parameters", schema_of("b", {{"type", "number"}})}},
        {{"type", "function"},
         {"name", "f"},
         {"strict", true},
         {"parameters", schema_of("a", {{"type", "string"}})}},
        {{"type", "custom"}, {"name", "h"}},
        {{"type", "namespace"},
         {"name", "n"},
         {"tools",
          {{{"type", "function"}, {"name", "i"}, {"parameters", schema_of("d", true)}}}}}}},
      {"input",
       {{{"role", "developer"}, {"content", "more"}},
        {{"type", "message"},
         {"role", "user"},
         {"content", {{{"type", "input_text"}, {"text", "one"}}}}},
        {{"type", "reasoning"},
         {"summary", {{{"type", "summary_text"}, {"text", "hm"}}}},
         {"encrypted_content", nullptr}},
        {{"type", "function_call"},
         {"call_id", "c"},
         {"name", "f"},
         {"arguments", "{\"a\":\"b\"}"}},
        {{"type", "function_call_output"}, {"call_id", "c"}, {"output", "three"}},
        {{"type", "custom_tool_call"}, {"call_id", "d"}, {"name", "h"}, {"input", "text"}},
        {{"type", "custom_tool_call_output"}, {"call_id", "d"}, {"output", "five"}},
        {{"role", "user"}, {"content", "four"}}}}};
}

std::vector<std::string> steps_of(const std::string& path) {
  std::vector<std::string> out;
  for (std::size_t at = 0; at < path.size();) {
    const bool index = path[at] == '[';
    const std::size_t begin = at + (index || path[at] == '.' ? 1 : 0);
    std::size_t end = index ? path.find(']', begin) : path.find_first_of(".[", begin);
    end = std::min(end, path.size());
    out.push_back(path.substr(begin, end - begin));
    at = index ? end + 1 : end;
  }
  return out;
}

// How many of a path's steps lead into a body. Texts that hold JSON are entered.
std::size_t steps_inside(Json at, const std::vector<std::string>& steps) {
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (at.is_string()) at = Json::parse(at.get<std::string>(), nullptr, false);
    const bool number =
        !steps[i].empty() && steps[i].find_first_not_of("0123456789") == std::string::npos;
    Json next;
    if (at.is_object() && at.contains(steps[i])) {
      next = at[steps[i]];
    } else if (at.is_array() && number && std::stoul(steps[i]) < at.size()) {
      next = at[std::stoul(steps[i])];
    } else {
      return i;
    }
    at = std::move(next);
  }
  return steps.size();
}

// Whether a path is in the body, or names what its object, or the route's body, lacks.
bool is_clients(const std::string& path, const Json& body, const FieldTable& fields) {
  const bool cut = path.ends_with("...");
  const auto steps =
      steps_of(cut ? path.substr(0, path.find_last_of(".[", path.size() - 4)) : path);
  const std::size_t inside = steps_inside(body, steps);
  const bool field =
      std::ranges::any_of(fields, [&](const Field& f) { return f.name == steps[0]; });
  return inside == steps.size() || (inside + 1 == steps.size() && (inside > 0 || field));
}

// What a 400 names: Anthropic's errors have the path in their message alone.
std::string named_path(const TestAnswer& answer) {
  const auto json = answer.json();
  const std::string message = json["error"].value("message", "");
  const std::string path = message.substr(0, message.find(": "));
  if (json["error"].contains("param")) {
    EXPECT_EQ(json["error"]["param"], path) << answer.body;
  }
  return path;
}

// A long path is cut.
::testing::Matcher<std::string> is_path(const std::string& path) {
  if (path.ends_with(".a.a")) return StartsWith(path);
  return path;
}

std::string ignored_names(const TestAnswer& answer) {
  constexpr std::string_view kName = "X-Lathe-Ignored: ";
  const std::size_t at = answer.head.find(kName);
  if (at == std::string::npos) return "";
  const std::size_t begin = at + kName.size();
  return answer.head.substr(begin, answer.head.find('\r', begin) - begin);
}

ScriptedOptions ends_at_once(const std::string& prefix = "") {
  ScriptedOptions options;
  options.context = 2048;
  options.template_prefix = "{# </think> <tool_call> #}" + prefix;
  options.next = [](std::int32_t, std::int32_t) { return kScriptEos; };
  return options;
}

// Pointers to all values of a body.
void list_values(const Json& at, const Json::json_pointer& here,
                 std::vector<Json::json_pointer>& out) {
  for (const auto& item : at.items()) {
    const auto below = at.is_array() ? here / std::stoul(item.key()) : here / item.key();
    out.push_back(below);
    if (item.value().is_structured()) list_values(item.value(), below, out);
  }
}

Json damaged(Json body, std::mt19937& random) {
  const auto below = [&](std::size_t n) { return std::size_t{random()} % n; };
  const Json values[] = {nullptr,
                         true,
                         -1,
                         0.5,
                         1e9,
                         "",
                         "x",
                         " ",
                         "{",
                         "c",
                         "f",
                         Json::array(),
                         Json::object(),
                         {1},
                         {{"type", "x"}},
                         {{{"type", "text"}}},
                         nested(70),
                         nested(300),
                         nested(300).dump(),
                         std::string(3000, 'x'),
                         schema_of("messages", {{"type", "strin"}})};
  for (std::size_t times = 1 + below(2); times > 0; --times) {
    std::vector<Json::json_pointer> all;
    list_values(body, Json::json_pointer(), all);
    const Json::json_pointer at = all[below(all.size())];
    Json& parent = body[at.parent_pointer()];
    switch (below(4)) {
      case 0:
        if (parent.is_array()) {
          parent.erase(std::stoul(at.back()));
        } else {
          parent.erase(at.back());
        }
        break;
      case 1:
        if (body[at].is_object()) body[at]["zzz"] = values[below(std::size(values))];
        break;
      case 2:
        body[at] = body[all[below(all.size())]];
        break;
      default:
        body[at] = values[below(std::size(values))];
    }
  }
  return body;
}

TEST(SourcePaths, DamagedBodiesAreNamedByTheirOwnPaths) {
  ScriptedServer s(ends_at_once());
  EXPECT_TRUE(comes([&] { return ask(s.port(), "GET", "/ready").status == 200; }));
  const struct {
    const char* path;
    Json body;
    const FieldTable& fields;
  } routes[] = {{"/v1/messages", messages_body(), anthropic::fields()},
                {"/v1/messages/count_tokens", messages_body(), anthropic::fields()},
                {"/v1/responses", responses_body(), responses_api::fields()}};
  for (const auto& [path, good, fields] : routes) {
    const TestAnswer first = ask(s.port(), "POST", path, good.dump());
    EXPECT_EQ(first.status, 200) << first.body;
    const std::uint32_t seed = test_seed(63);
    std::mt19937 random(seed);
    std::set<std::string> seen;
    for (int i = 0; i < 200 * test_scale(); ++i) {
      const Json body = damaged(good, random);
      const TestAnswer answer = ask(s.port(), "POST", path, body.dump());
      SCOPED_TRACE(fmt::format("seed {} case {} of {}:\n{}\n{}\n{}", seed, i, path,
                               body.dump().substr(0, 3000), answer.head, answer.body));
      EXPECT_TRUE(answer.status == 200 || answer.status == 400 || answer.status == 404);
      if (answer.status == 400) {
        const std::string name = named_path(answer);
        seen.insert(name);
        EXPECT_TRUE(is_clients(name, body, fields)) << name;
        EXPECT_FALSE(name == "messages" && body.contains("input")) << name;
      }
      std::istringstream names(ignored_names(answer));
      for (std::string name; std::getline(names, name, ',');) {
        if (name == "...") continue;
        const auto steps = steps_of(name);
        EXPECT_EQ(steps_inside(body, steps), steps.size()) << name;
        EXPECT_FALSE((name == "input" || name == "messages") && body[name].is_array()) << name;
      }
    }
    EXPECT_GT(seen.size(), 40u) << path;
  }
}

TEST(SourcePaths, ErrorsNameWhatTheClientWrote) {
  ScriptedServer s(ends_at_once());
  EXPECT_TRUE(comes([&] { return ask(s.port(), "GET", "/ready").status == 200; }));
  const Json wrong_type{{"type", "strin"}};
  struct Damage {
    const char* pointer;
    Json value;
    std::string path;
  };
  const Damage messages[] = {
      {"/messages/1/content/2/input", nested(300), "messages[1].content[2].input.a.a.a"},
      {"/tools/1/input_schema/properties/a", wrong_type, "tools[1].input_schema.properties.a.type"},
      {"/tools/1/input_schema/properties/function", wrong_type,
       "tools[1].input_schema.properties.function.type"},
      {"/tools/0/input_schema/required", 1, "tools[0].input_schema.required"},
      {"/tools/0/description", 1, "tools[0].description"},
      {"/tools/0/name", "f", "tools[1].name"},
      {"/tool_choice/name", "z", "tool_choice.name"},
      {"/stop_sequences/1", "", "stop_sequences[1]"},
      {"/system/0/text", 1, "system[0].text"},
      {"/messages/2/content/0/content/0/text", 1, "messages[2].content[0].content[0].text"},
      {"/min_tokens", 9, "min_tokens"},
      {"/messages/0/content/0/text", std::string(5000, 'x'), "messages"}};
  for (const auto& [pointer, value, path] : messages) {
    Json body = messages_body();
    body[Json::json_pointer(pointer)] = value;
    const TestAnswer answer = ask(s.port(), "POST", "/v1/messages", body.dump());
    EXPECT_EQ(answer.status, 400) << pointer;
    EXPECT_THAT(named_path(answer), is_path(path)) << answer.body;
  }
  const Damage responses[] = {
      {"/input/3/arguments", nested(300).dump(), "input[3].arguments.a.a.a"},
      {"/tools/1/parameters/properties/a", wrong_type, "tools[1].parameters.properties.a.type"},
      {"/tools/1/parameters/properties/function", wrong_type,
       "tools[1].parameters.properties.function.type"},
      {"/tools/0/parameters/required", 1, "tools[0].parameters.required"},
      {"/tools/3/tools/0/parameters/required", 1, "tools[3].tools[0].parameters.required"},
      {"/tools/3/tools/0/description", 1, "tools[3].tools[0].description"},
      {"/tools/2/name", "f", "tools[2].name"},
      {"/text/format/schema/properties/messages", wrong_type,
       "text.format.schema.properties.messages.type"},
      {"/text/format/schema/properties/max_tokens", wrong_type,
       "text.format.schema.properties.max_tokens.type"},
      {"/tool_choice", {{"type", "function"}, {"name", "z"}}, "tool_choice.name"},
      {"/max_output_tokens", 1000000, "max_output_tokens"},
      {"/input/7/content", std::string(5000, 'x'), "input"}};
  for (const auto& [pointer, value, path] : responses) {
    Json body = responses_body();
    body[Json::json_pointer(pointer)] = value;
    const TestAnswer answer = ask(s.port(), "POST", "/v1/responses", body.dump());
    EXPECT_EQ(answer.status, 400) << pointer;
    EXPECT_THAT(named_path(answer), is_path(path)) << answer.body;
    EXPECT_EQ(answer.json()["error"]["message"].get<std::string>().find(" max_tokens"),
              std::string::npos)
        << answer.body;
  }
}

TEST(SourcePaths, IgnoredNamesAreTheClients) {
  ScriptedServer s(ends_at_once());
  EXPECT_TRUE(comes([&] { return ask(s.port(), "GET", "/ready").status == 200; }));
  const auto ignored = [](ScriptedServer& server, const char* route, const Json& body) {
    const TestAnswer answer = ask(server.port(), "POST", route, body.dump());
    EXPECT_EQ(answer.status, 200) << answer.body;
    return ignored_names(answer);
  };
  Json message = messages_body();
  EXPECT_EQ(ignored(s, "/v1/messages", message), "thinking.type");  // a template without it
  message.erase("thinking");
  EXPECT_EQ(ignored(s, "/v1/messages", message), "");
  message["messages"][0]["content"][0]["citations"] = Json::array();
  message["messages"][1]["content"][1]["citations"] = {{{"type", "char_location"}}};
  message["messages"][1]["foo"] = 1;
  message["system"][0]["bar"] = 1;
  message["tools"][0]["baz"] = 1;
  EXPECT_EQ(ignored(s, "/v1/messages", message),
            "system[0].bar,messages[1].foo,messages[1].content[1].citations,tools[0].baz");

  Json response = responses_body();
  EXPECT_EQ(ignored(s, "/v1/responses", response), "reasoning.effort");
  response.erase("reasoning");
  EXPECT_EQ(ignored(s, "/v1/responses", response), "");
  response["input"][0]["foo"] = 1;
  response["input"][1]["content"][0]["annotations"] = Json::array();
  response["input"][3]["bar"] = 1;
  response["input"].push_back({{"role", "assistant"},
                               {"content",
                                {{{"type", "output_text"},
                                  {"text", "six"},
                                  {"logprobs", Json::array()},
                                  {"annotations", {{{"type", "url_citation"}}}}}}}});
  EXPECT_EQ(ignored(s, "/v1/responses", response),
            "input[0].foo,input[3].bar,input[8].content[0].annotations");

  // A template that leaves out the first message.
  ScriptedServer cut(ends_at_once("{% set messages = messages[1:] %}"));
  EXPECT_TRUE(comes([&] { return ask(cut.port(), "GET", "/ready").status == 200; }));
  const Json user{{"role", "user"}, {"content", "an instruction to follow"}};
  const Json last{{"role", "user"}, {"content", "another one, which is shown"}};
  const struct {
    const char* route;
    Json body;
    std::string names;
  } cases[] = {
      {"/v1/messages", {{"max_tokens", 1}, {"messages", {user, last}}}, "messages[0].content"},
      {"/v1/messages",
       {{"max_tokens", 1}, {"system", "be brief, and kind"}, {"messages", {last}}},
       "system"},
      {"/v1/responses", {{"input", {user, last}}}, "input[0].content"},
      {"/v1/responses",
       {{"instructions", "be brief, and kind"}, {"input", {last}}},
       "instructions"}};
  for (const auto& [route, body, names] : cases) EXPECT_EQ(ignored(cut, route, body), names);
}

// Llama's templates take one call of a message. Their words, and the message's path in the body.
TEST(SourcePaths, ATemplatesRefusalNamesTheMessage) {
  ScriptedOptions options;
  options.template_prefix =
      "{# <tool_call> #}{% for m in messages[1:] %}{% if m.tool_calls | length > 1 %}"
      "{{ raise_exception('one call at a time') }}{% endif %}{% endfor %}";
  ScriptedServer s(std::move(options));
  const auto call = [](const char* id) {
    return fmt::format(
        R"({{"id":"{}","type":"function","function":{{"name":"f","arguments":"{{}}"}}}})", id);
  };
  const std::string chat = fmt::format(
      R"({{"max_tokens":1,"messages":[{{"role":"user","content":"a"}},{{"role":"assistant","content":"b"}},)"
      R"({{"role":"user","content":"c"}},{{"role":"assistant","tool_calls":[{},{}]}},)"
      R"({{"role":"tool","tool_call_id":"d","content":"1"}},{{"role":"tool","tool_call_id":"e","content":"2"}}])",
      call("d"), call("e"));
  const std::string responses =
      R"({"max_output_tokens":1,"instructions":"i","input":[{"role":"user","content":"a"},)"
      R"({"type":"function_call","call_id":"d","name":"f","arguments":"{}"},)"
      R"({"type":"function_call","call_id":"e","name":"f","arguments":"{}"},)"
      R"({"type":"function_call_output","call_id":"d","output":"1"},)"
      R"({"type":"function_call_output","call_id":"e","output":"2"}])";
  const std::string messages =
      R"({"system":"i","messages":[{"role":"user","content":"a"},{"role":"assistant","content":[)"
      R"({"type":"tool_use","id":"d","name":"f","input":{}},)"
      R"({"type":"tool_use","id":"e","name":"f","input":{}}]},{"role":"user","content":[)"
      R"({"type":"tool_result","tool_use_id":"d","content":"1"},)"
      R"({"type":"tool_result","tool_use_id":"e","content":"2"}]}])";
  const std::string sampled = messages + R"(,"max_tokens":1)";
  const struct {
    const char* route;
    std::string body, path;
  } cases[] = {{"/v1/chat/completions", chat, "messages[3]"},
               {"/tokenize", chat, "messages[3]"},
               {"/v1/responses", responses, "input[1]"},
               {"/v1/messages", sampled, "messages[1]"},
               {"/v1/messages/count_tokens", messages, "messages[1]"}};
  for (const auto& [route, body, path] : cases) {
    for (const char* more : {"}", R"(,"stream":true})"}) {
      if (std::string(more) != "}" && std::string(route).find("token") != std::string::npos)
        continue;
      const TestAnswer answer = ask(s.port(), "POST", route, body + more);
      EXPECT_EQ(answer.status, 400) << answer.body;
      const auto error = answer.json()["error"];
      EXPECT_EQ(error["message"], path +
                                      ", chat_template line 1: wanted a conversation that the "
                                      "template takes, got \"one call at a time\"")
          << route;
      if (error.contains("param")) {
        EXPECT_EQ(error["param"], path);
      }
    }
  }
}

}  // namespace
}  // namespace lathe
