// Histories of calls: the same ones are accepted by /v1/chat/completions, /v1/responses and
// /v1/messages, but for what one of them specifies otherwise.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/template/chat_prompt.h"
#include "server/messages/message_request.h"
#include "server/responses/response_request.h"
#include "server/service/render_chat.h"

namespace lathe {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::ordered_json;

// What a conversation has after a user's message: a call, a result, or a user's text.
struct Entry {
  enum class Kind { call, result, user } kind;
  std::string id = {};
  std::string name = "f";
  std::string arguments = "{}";
};
Entry call(std::string id, std::string name = "f", std::string arguments = "{}") {
  return {Entry::Kind::call, std::move(id), std::move(name), std::move(arguments)};
}
Entry result(std::string id) { return {Entry::Kind::result, std::move(id)}; }
const Entry kUser{Entry::Kind::user};

std::string joined(const std::vector<std::string>& parts) {
  return fmt::format("{}", fmt::join(parts, ","));
}
std::string quoted(const std::string& text) { return Json(text).dump(); }
const std::string kText = R"({"role":"user","content":"a"})";

// Calls that follow each other are a message's.
std::string chat_body(const std::vector<Entry>& entries) {
  std::vector<std::string> messages = {kText}, calls;
  const auto flush = [&] {
    if (calls.empty()) return;
    messages.push_back(R"({"role":"assistant","content":"","tool_calls":[)" + joined(calls) + "]}");
    calls.clear();
  };
  for (const Entry& e : entries) {
    if (e.kind == Entry::Kind::call) {
      calls.push_back(
          fmt::format(R"({{"id":{},"type":"function","function":{{"name":{},"arguments":{}}}}})",
                      quoted(e.id), quoted(e.name), quoted(e.arguments)));
      continue;
    }
    flush();
    messages.push_back(e.kind == Entry::Kind::user
                           ? kText
                           : R"({"role":"tool","content":"r","tool_call_id":)" + quoted(e.id) +
                                 "}");
  }
  flush();
  return R"({"messages":[)" + joined(messages) + "]}";
}

std::string responses_body(const std::vector<Entry>& entries) {
  std::vector<std::string> items = {kText};
  for (const Entry& e : entries) {
    if (e.kind == Entry::Kind::user) {
      items.push_back(kText);
    } else if (e.kind == Entry::Kind::call) {
      items.push_back(
          fmt::format(R"({{"type":"function_call","call_id":{},"name":{},"arguments":{}}})",
                      quoted(e.id), quoted(e.name), quoted(e.arguments)));
    } else {
      items.push_back(R"({"type":"function_call_output","output":"r","call_id":)" + quoted(e.id) +
                      "}");
    }
  }
  return R"({"input":[)" + joined(items) + "]}";
}

// Entries of one role that follow each other are a message.
std::string messages_body(const std::vector<Entry>& entries) {
  std::vector<std::string> messages = {kText}, blocks;
  bool calls = false;
  const auto flush = [&] {
    if (blocks.empty()) return;
    messages.push_back(fmt::format(R"({{"role":"{}","content":[{}]}})",
                                   calls ? "assistant" : "user", joined(blocks)));
    blocks.clear();
  };
  for (const Entry& e : entries) {
    if (calls != (e.kind == Entry::Kind::call)) flush();
    calls = e.kind == Entry::Kind::call;
    blocks.push_back(calls ? fmt::format(R"({{"type":"tool_use","id":{},"name":{},"input":{}}})",
                                         quoted(e.id), quoted(e.name), e.arguments)
                     : e.kind == Entry::Kind::user
                         ? R"({"type":"text","text":"a"})"
                         : R"({"type":"tool_result","content":"r","tool_use_id":)" + quoted(e.id) +
                               "}");
  }
  flush();
  return R"({"max_tokens":9,"messages":[)" + joined(messages) + "]}";
}

// The error of a request, or "".
std::string error_of_history(const Result<ApiRequest, ApiError>& request) {
  if (!request) return request.error().message;
  const ChatTemplateFile chat{
      *ChatTemplate::parse("{% for m in messages %}{{ m.content }}{% endfor %}"), "", ""};
  const auto text = render_chat(*request, Json::object(), chat);
  return text ? "" : text.error().message;
}
std::string chat_error(const std::string& body) {
  return error_of_history(parse_request(ApiRoute::chat, body, {}));
}

TEST(Histories, RoutesAgree) {
  const std::vector<std::vector<Entry>> good = {
      {call("c"), result("c")},
      {call("c"), call("d"), result("d"), result("c"), kUser},
      {call("c", "f", R"({"x":[1,{"y":2}]})"), result("c"), kUser},
  };
  for (const auto& entries : good) {
    EXPECT_EQ(chat_error(chat_body(entries)), "");
    EXPECT_EQ(error_of_history(responses_api::parse_request(responses_body(entries), {})), "");
    EXPECT_EQ(error_of_history(anthropic::parse_request(messages_body(entries), {})), "");
  }
  // What all refuse, and what the messages say.
  const std::vector<std::pair<std::vector<Entry>, std::string>> bad = {
      {{result("c")}, "\"c\""},             // without a call
      {{call("c"), result("d")}, "\"d\""},  // of no call
      {{call("c"), result("c"), result("c")}, "a second one of \"c\""},
      {{call("c"), result("c"), kUser, result("c")}, "\"c\""},
      {{call("c"), call("c"), result("c")}, "another id"},
      {{call("c", ""), result("c")}, "name"},
      {{call("c", " \n"), result("c")}, "name"},
      {{call("c", "f", "[1]"), result("c")}, "object"},
      {{call("c", "f", "7"), result("c")}, "object"},
  };
  for (const auto& [entries, words] : bad) {
    for (const std::string& error :
         {chat_error(chat_body(entries)),
          error_of_history(responses_api::parse_request(responses_body(entries), {})),
          error_of_history(anthropic::parse_request(messages_body(entries), {}))}) {
      EXPECT_THAT(error, HasSubstr(": wanted ")) << chat_body(entries);
      EXPECT_THAT(error, HasSubstr(words)) << chat_body(entries);
    }
  }
}

// A history of a call without text. `content`: its member of chat's message, with a comma.
std::vector<std::string> renderings_of_call(const std::string& source, const std::string& content) {
  std::string chat_text = chat_body({call("c"), result("c"), kUser});
  const std::string member = R"("content":"",)";
  chat_text.replace(chat_text.find(member), member.size(), content);
  const std::vector<Entry> entries = {call("c"), result("c"), kUser};
  const ChatTemplateFile chat{*ChatTemplate::parse(source), "", ""};
  std::vector<std::string> out;
  for (const auto& request : {parse_request(ApiRoute::chat, chat_text, {}),
                              responses_api::parse_request(responses_body(entries), {}),
                              anthropic::parse_request(messages_body(entries), {})}) {
    if (!request) return {request.error().message};
    const auto text = render_chat(*request, Json::object(), chat);
    out.push_back(text ? *text : text.error().message);
  }
  const auto own = render_chat(Json::parse(chat_text)["messages"], chat);  // C, C++, Python
  out.push_back(own ? *own : own.error().message());
  return out;
}

// vLLM renders "", DeepSeek's templates look for null.
TEST(Histories, NoContentIsEmptyWhereATemplateNeedsText) {
  for (const char* content : {R"("content":null,)", ""}) {
    EXPECT_THAT(renderings_of_call(
                    "{% for m in messages %}{{ m.role[0] + m.content }},{% endfor %}", content),
                Each("ua,a,tr,ua,"));
    EXPECT_THAT(
        renderings_of_call("{% for m in messages %}{{ m.content }},{% endfor %}None", content),
        Each("a,,r,a,None"));
    EXPECT_THAT(
        renderings_of_call("{% for m in messages %}{{ m.content is none }},{% endfor %}", content),
        Each("False,True,False,False,"));
    // Both fail: with null first.
    EXPECT_THAT(renderings_of_call("{% set m = messages[1] %}{% if m.content is none %}"
                                   "{{ raise_exception('null') }}{% endif %}"
                                   "{{ raise_exception('text') }}",
                                   content),
                Each(HasSubstr("null")));
  }
}

// Clients send an answer back with all its members.
TEST(Histories, EmptyMembersOfAnswersAreAbsent) {
  const ChatTemplateFile chat{
      *ChatTemplate::parse("{% set m = messages[1] %}{{ 'tool_calls' in m or 'reasoning' in m or "
                           "m.reasoning_content is defined }}"),
      "", ""};
  for (const char* member :
       {R"("tool_calls":null)", R"("tool_calls":[])", R"("reasoning":null)",
        R"("reasoning_content":null)", R"("reasoning_content":null,"reasoning":null)"}) {
    const auto request = parse_request(
        ApiRoute::chat,
        fmt::format(R"({{"messages":[{0},{{"role":"assistant","content":"b",{1}}},{0}]}})", kText,
                    member),
        {});
    EXPECT_EQ(*render_chat(*request, Json::object(), chat), "False") << member;
  }
}

// Some models write an id again in a later turn. Anthropic's server refuses that, the others pass
// it on.
TEST(Histories, AnIdMayComeAgainLater) {
  const std::vector<Entry> entries = {call("c"), result("c"), call("c"), result("c"), kUser};
  EXPECT_EQ(chat_error(chat_body(entries)), "");
  EXPECT_EQ(error_of_history(responses_api::parse_request(responses_body(entries), {})), "");
  EXPECT_THAT(error_of_history(anthropic::parse_request(messages_body(entries), {})),
              StartsWith("messages[3].content[0].id: wanted another id than earlier calls'"));
}

// vLLM and SGLang accept calls and results without ids; the order says which belong together.
TEST(Histories, ChatNeedsNoIds) {
  EXPECT_EQ(chat_error(chat_body({call(""), call(""), result(""), result(""), kUser})), "");
  EXPECT_EQ(chat_error(chat_body({result(""), kUser})), "");
  for (const auto& entries : {std::vector{call(""), result("")}, std::vector{result("")}}) {
    EXPECT_THAT(error_of_history(responses_api::parse_request(responses_body(entries), {})),
                HasSubstr("call_id: wanted"));
    EXPECT_THAT(error_of_history(anthropic::parse_request(messages_body(entries), {})),
                HasSubstr("id: wanted"));
  }
}

// Of equal names in a text the last one counts, as in Python's json; a body has unique names.
TEST(Histories, EqualNamesInArguments) {
  const std::vector<Entry> twice = {call("c", "f", R"({"a":1,"b":{"c":1,"c":2},"a":3})"),
                                    result("c"), kUser};
  const ChatTemplateFile chat{
      *ChatTemplate::parse("{{ messages[1].tool_calls[0].function.arguments | tojson }}"), "", ""};
  for (const auto& request : {parse_request(ApiRoute::chat, chat_body(twice), {}),
                              responses_api::parse_request(responses_body(twice), {})}) {
    ASSERT_TRUE(request) << request.error().message;
    EXPECT_EQ(*render_chat(*request, Json::object(), chat), R"({"a": 3, "b": {"c": 2}})");
  }
  EXPECT_THAT(error_of_history(anthropic::parse_request(messages_body(twice), {})),
              HasSubstr("twice"));
}

// Arguments that are a value in place of a text.
TEST(Histories, ArgumentsAreAnObject) {
  const auto body = [](const std::string& arguments) {
    return fmt::format(
        R"({{"messages":[{},{{"role":"assistant","tool_calls":[{{"function":{{"name":"f","arguments":{}}}}}]}},{}]}})",
        kText, arguments, kText);
  };
  for (const char* good : {"{}", R"({"a":1})", "null", R"("")", R"("null")"})
    EXPECT_EQ(chat_error(body(good)), "") << good;
  for (const char* bad : {"[]", "7", "true", "1.5", R"("[]")", R"("7")", R"("{\"a\":")"}) {
    EXPECT_THAT(chat_error(body(bad)),
                StartsWith("messages[1].tool_calls[0].function.arguments: wanted a JSON object"))
        << bad;
  }
}

// What is JSON and cannot be read is not said to be none.
TEST(Histories, ArgumentsBeyondLimitsAreNamed) {
  const auto error = [](const std::string& arguments) {
    return chat_error(fmt::format(
        R"({{"messages":[{},{{"role":"assistant","tool_calls":[{{"function":{{"name":"f","arguments":{}}}}}]}}]}})",
        kText, quoted(arguments)));
  };
  const std::string path = "messages[1].tool_calls[0].function.arguments";
  EXPECT_EQ(error(R"({"x":[1e9999]})"),
            path + ".x[0]: wanted a number that a double can hold, got 1e9999");
  EXPECT_EQ(error("-1e400"), path + ": wanted a number that a double can hold, got -1e400");
  EXPECT_THAT(error(R"({"x":)" + std::string(600, '[') + std::string(600, ']') + "}"),
              testing::AllOf(StartsWith(path + ".x[0][0]"),
                             testing::EndsWith(": wanted at most 500 levels, got more")));
  EXPECT_THAT(error(std::string(600, '[') + "1e9999"), StartsWith(path + "[0][0]"));
  EXPECT_THAT(error(R"({"x":1e9999)"), StartsWith(path + ".x: wanted a number that"));
  const std::vector<Entry> huge = {call("c", "f", R"({"x":[1e9999]})")};
  EXPECT_EQ(error_of_history(responses_api::parse_request(responses_body(huge), {})),
            "input[1].arguments.x[0]: wanted a number that a double can hold, got 1e9999");
}

// A message's reasoning has two names.
TEST(Histories, ReasoningHasOneText) {
  const auto rendered_reasoning = [](const std::string& members) -> std::string {
    const ChatTemplateFile chat{
        *ChatTemplate::parse("{{ messages[1].reasoning }},{{ messages[1].reasoning_content }}"), "",
        ""};
    const auto request = parse_request(
        ApiRoute::chat,
        fmt::format(R"({{"messages":[{},{{"role":"assistant","content":"b",{}}},{}]}})", kText,
                    members, kText),
        {});
    const auto text = render_chat(*request, Json::object(), chat);
    return text ? *text : text.error().message;
  };
  for (const char* members :
       {R"("reasoning":"w")", R"("reasoning_content":"w")",
        R"("reasoning":"w","reasoning_content":"w")", R"("reasoning":"w","reasoning_content":null)",
        R"("reasoning":"","reasoning_content":"w")"}) {
    EXPECT_EQ(rendered_reasoning(members), "w,w") << members;
  }
  EXPECT_THAT(rendered_reasoning(R"("reasoning":"v","reasoning_content":"w")"),
              StartsWith("messages[1].reasoning_content: wanted"));
}

}  // namespace
}  // namespace lathe
