// The routes /v1/responses and /v1/messages over a scripted model: streams and whole answers agree,
// and go back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "server/scripted/scripted_server.h"
#include "server/scripted/test/http_client_test_util.h"
#include "server/service/test/protocol_test_util.h"

namespace lathe {
namespace {

using protocol_test::kSaid;
using protocol_test::speaks;
using ::testing::ElementsAre;
using PlainJson = nlohmann::json;

// The events of a stream; each line "event: NAME" names the type of its data.
std::vector<PlainJson> named_events(const TestAnswer& answer) {
  std::vector<PlainJson> out;
  std::size_t at = 0;
  while (at < answer.body.size()) {
    const std::size_t end = answer.body.find("\n\n", at);
    EXPECT_NE(end, std::string::npos);
    const std::string event = answer.body.substr(at, end - at);
    at = end + 2;
    const std::size_t data = event.find("\ndata: ");
    EXPECT_TRUE(event.starts_with("event: ") && data != std::string::npos) << event;
    out.push_back(PlainJson::parse(event.substr(data + 7)));
    EXPECT_EQ(out.back()["type"], event.substr(7, data - 7));
  }
  return out;
}

// What differs between two answers to one request.
PlainJson without_names(PlainJson answer) {
  for (const char* name : {"id", "created_at", "call_id", "signature"}) {
    if (answer.is_object()) answer.erase(name);
  }
  if (answer.is_object() && answer.contains("usage") && answer["usage"].is_object()) {
    answer["usage"].erase("input_tokens_details");  // depends on the prefix cache
    answer["usage"].erase("input_tokens");
    answer["usage"].erase("cache_read_input_tokens");
  }
  if (answer.is_structured()) {
    for (PlainJson& inner : answer) inner = without_names(inner);
  }
  return answer;
}

// Rebuilds a response from its events, checking their order.
PlainJson rebuilt_response(const std::vector<PlainJson>& events) {
  PlainJson output = PlainJson::array();
  for (std::size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i]["sequence_number"], i);
    const PlainJson& e = events[i];
    const std::string type = e["type"];
    if (type == "response.output_item.added") {
      EXPECT_EQ(e["output_index"], output.size());
      output.push_back(e["item"]);
    } else if (type == "response.content_part.added") {
      output[e["output_index"].get<std::size_t>()]["content"].push_back(e["part"]);
    } else if (type.ends_with("_text.delta")) {
      PlainJson& part = output[e["output_index"].get<std::size_t>()]["content"][0];
      part["text"] = part["text"].get<std::string>() + e["delta"].get<std::string>();
    } else if (type.ends_with("_text.done")) {
      EXPECT_EQ(output[e["output_index"].get<std::size_t>()]["content"][0]["text"], e["text"]);
    } else if (type == "response.function_call_arguments.delta") {
      PlainJson& item = output[e["output_index"].get<std::size_t>()];
      item["arguments"] = item["arguments"].get<std::string>() + e["delta"].get<std::string>();
    } else if (type == "response.output_item.done") {
      PlainJson& item = output[e["output_index"].get<std::size_t>()];
      item["status"] = e["item"]["status"];
      EXPECT_EQ(item, e["item"]);
    }
  }
  EXPECT_EQ(events[0]["type"], "response.created");
  EXPECT_EQ(events[1]["type"], "response.in_progress");
  PlainJson last = events.back()["response"];
  EXPECT_EQ(last["output"], output);
  return last;
}

PlainJson rebuilt_message(const std::vector<PlainJson>& events) {
  PlainJson message;
  std::map<std::size_t, std::string> inputs;
  std::size_t stopped = 0;
  for (const PlainJson& e : events) {
    const std::string type = e["type"];
    if (type == "message_start") message = e["message"];
    if (type == "content_block_start") {
      EXPECT_EQ(e["index"], message["content"].size());
      EXPECT_EQ(stopped, message["content"].size());  // one at a time
      message["content"].push_back(e["content_block"]);
    }
    if (type == "content_block_delta") {
      const PlainJson& delta = e["delta"];
      PlainJson& block = message["content"][e["index"].get<std::size_t>()];
      for (const char* name : {"text", "thinking", "signature"}) {
        if (!delta.contains(name)) continue;
        block[name] = block[name].get<std::string>() + delta[name].get<std::string>();
      }
      if (delta.contains("partial_json")) inputs[e["index"]] += delta["partial_json"];
    }
    if (type == "content_block_stop") ++stopped;
    if (type == "message_delta") {
      message.update(e["delta"]);
      message["usage"].update(e["usage"]);
    }
  }
  for (const auto& [index, text] : inputs)
    message["content"][index]["input"] = PlainJson::parse(text);
  EXPECT_EQ(events.front()["type"], "message_start");
  EXPECT_EQ(events.back()["type"], "message_stop");
  return message;
}

// At every length, so that streams end anywhere: in reasoning, in text, in a call.
TEST(Protocols, AStreamIsTheWholeAnswerAtEveryCut) {
  const std::string text = kSaid;
  for (const int step : {1, 7}) {
    ScriptedServer s(speaks(text, step));
    for (std::size_t n = 1; n <= text.size(); ++n) {
      SCOPED_TRACE(n);
      const std::string response =
          fmt::format(R"({{"input":"x","max_output_tokens":{},"ignore_eos":true,)"
                      R"("tools":[{{"type":"function","name":"f","parameters":{{}}}}])",
                      n);
      const TestAnswer whole = ask(s.port(), "POST", "/v1/responses", response + "}");
      ASSERT_EQ(whole.status, 200) << whole.body;
      const TestAnswer stream =
          ask(s.port(), "POST", "/v1/responses", response + R"(,"stream":true})");
      EXPECT_EQ(without_names(rebuilt_response(named_events(stream))), without_names(whole.json()));
      const std::string message = fmt::format(
          R"({{"messages":[{{"role":"user","content":"x"}}],"max_tokens":{},"ignore_eos":true,)"
          R"("tools":[{{"name":"f","input_schema":{{}}}}])",
          n);
      const TestAnswer whole_message = ask(s.port(), "POST", "/v1/messages", message + "}");
      ASSERT_EQ(whole_message.status, 200) << whole_message.body;
      const TestAnswer streamed =
          ask(s.port(), "POST", "/v1/messages", message + R"(,"stream":true})");
      EXPECT_EQ(without_names(rebuilt_message(named_events(streamed))),
                without_names(whole_message.json()));
    }
  }
}

// An answer of /v1/chat/completions: what its message or its events say.
PlainJson said_in_chat(const TestAnswer& answer, bool stream) {
  EXPECT_EQ(answer.status, 200) << answer.body;
  PlainJson out = {{"content", ""}, {"reasoning", ""}, {"calls", PlainJson::array()}};
  std::vector<PlainJson> parts = {answer.json()};
  if (stream) parts = answer.events();
  for (const PlainJson& part : parts) {
    if (part["choices"].empty()) continue;
    const PlainJson& choice = part["choices"][0];
    const PlainJson& message = choice[stream ? "delta" : "message"];
    for (const char* name : {"content", "reasoning"}) {
      const PlainJson text = message.value(name, PlainJson());
      if (text.is_string()) out[name] = out[name].get<std::string>() + text.get<std::string>();
    }
    for (const PlainJson& call : message.value("tool_calls", PlainJson::array())) {
      const std::size_t index = stream ? call["index"].get<std::size_t>() : out["calls"].size();
      if (index == out["calls"].size()) out["calls"].push_back({{"name", ""}, {"arguments", ""}});
      for (const char* name : {"name", "arguments"}) {
        PlainJson& text = out["calls"][index][name];
        text = text.get<std::string>() + call["function"].value(name, "");
      }
    }
    if (choice["finish_reason"].is_string()) out["end"] = choice["finish_reason"];
  }
  return out;
}

struct SpokenFormat {
  const char* tools;
  const char* reasoning;
  std::string text;  // some text or reasoning, and a call of f with x "é"
};

std::vector<SpokenFormat> spoken_formats() {
  const std::string json = R"({"x": "é"})";
  const std::string call = R"({"name": "f", "arguments": )" + json + "}";
  const std::string dsml = "｜DSML｜";
  return {
      {"tag", "think", "<think>w</think>a<tool_call>" + call + "</tool_call>"},
      {"tag", "none", "a<tool_call><function=f><parameter=x>é</parameter></function></tool_call>"},
      {"tag", "none", "a<tool_call>f\n<arg_key>x</arg_key><arg_value>é</arg_value></tool_call>"},
      {"deepseek", "none",
       "a<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>" + json +
           "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
      {"dsml", "none",
       "a<" + dsml + "function_calls><" + dsml + "invoke name=\"f\"><" + dsml +
           "parameter name=\"x\" string=\"true\">é</" + dsml + "parameter></" + dsml + "invoke></" +
           dsml + "function_calls>"},
      {"harmony", "harmony",
       "<|channel|>analysis<|message|>w<|end|><|start|>assistant<|channel|>commentary "
       "to=functions.f<|message|>" +
           json + "<|call|>"},
      {"llama", "none", R"({"name": "f", "parameters": )" + json + "}"},
      {"llama", "none", R"(a<|python_tag|>f.call(x="é"))"},
      {"pythonic", "none", R"([f(x="é")])"},
      {"mistral", "mistral", "[THINK]w[/THINK][TOOL_CALLS] [" + call + "]"},
      {"mistral", "none", "a[TOOL_CALLS]f[ARGS]" + json},
      {"gemma", "none", R"(a<|tool_call>call:f{x:<|"|>é<|"|>}<tool_call|>)"},
      {"kimi", "none",
       "a<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>" +
           json + "<|tool_call_end|><|tool_calls_section_end|>"},
      {"minimax", "none",
       "a<minimax:tool_call><invoke name=\"f\"><parameter name=\"x\">é</parameter></invoke>"
       "</minimax:tool_call>"},
      {"minimax", "none", "a<tool_calls>[" + call + "]</tool_calls>"},
      {"deepseek", "think",
       "<think>w</"
       "think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n" +
           json + "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
      {"dsml", "think",
       "<think>w</think>a<" + dsml + "tool_calls><" + dsml + "invoke name=\"f\">" + json + "</" +
           dsml + "invoke></" + dsml + "tool_calls>"},
      {"pythonic", "seed",
       R"(<seed:think>w</seed:think><|tool_call_start|>[f(x="é")]<|tool_call_end|>)"},
      {"pythonic", "none", "a<|python_start|>[f(x=\"é\")]<|python_end|>"},
      {"pythonic", "none", "a```tool_code\nf(x=\"é\")\n```"},
      {"mistral", "none", "a[TOOL_CALLS]f[CALL_ID]123456789[ARGS]" + json},
      {"gemma", "gemma",
       "<|channel>thought\nw<channel|>a<start_function_call>call:f{x:<escape>é<escape>}"
       "<end_function_call>"},
      {"kimi", "kimi",
       "◁think▷w◁/think▷<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>" + json +
           "<|tool_call_end|>"},
  };
}

// In every format and protocol, a byte per event, and ended anywhere.
TEST(Protocols, EveryFormatAtEveryCut) {
  constexpr const char* kOneText = R"({"properties":{"x":{"type":"string"}}})";
  for (const SpokenFormat& format : spoken_formats()) {
    ScriptedOptions options = speaks(format.text, 1);
    options.server.tool_call_parser = format.tools;
    options.server.reasoning_parser = format.reasoning;
    options.next = [text = format.text](std::int32_t, std::int32_t position) {
      const auto at = static_cast<std::size_t>(position);
      return at < text.size() ? std::int32_t{static_cast<unsigned char>(text[at])} : kScriptEos;
    };
    ScriptedServer s(std::move(options));
    const auto asked = [&](const char* path, const std::string& body, bool stream) {
      return ask(s.port(), "POST", path, "{" + body + (stream ? R"(,"stream":true})" : "}"));
    };
    PlainJson chat, response, message;
    for (std::size_t n = 1; n <= format.text.size() + 1; ++n) {
      SCOPED_TRACE(fmt::format("{}: {}", format.tools, format.text.substr(0, n)));
      const std::string messages = fmt::format(
          R"("messages":[{{"role":"user","content":"x"}}],"max_tokens":{},"tools":)", n);
      const std::string chat_body =
          messages +
          fmt::format(R"([{{"type":"function","function":{{"name":"f","parameters":{}}}}}])",
                      kOneText);
      chat = said_in_chat(asked("/v1/chat/completions", chat_body, false), false);
      EXPECT_EQ(said_in_chat(asked("/v1/chat/completions", chat_body, true), true), chat);
      const std::string response_body = fmt::format(
          R"("input":"x","max_output_tokens":{},"tools":[{{"type":"function","name":"f","parameters":{}}}])",
          n, kOneText);
      response = asked("/v1/responses", response_body, false).json();
      EXPECT_EQ(without_names(
                    rebuilt_response(named_events(asked("/v1/responses", response_body, true)))),
                without_names(response));
      const std::string message_body =
          messages + fmt::format(R"([{{"name":"f","input_schema":{}}}])", kOneText);
      message = asked("/v1/messages", message_body, false).json();
      EXPECT_EQ(
          without_names(rebuilt_message(named_events(asked("/v1/messages", message_body, true)))),
          without_names(message));
    }
    SCOPED_TRACE(format.text);
    const PlainJson arguments = {{"x", "é"}};
    ASSERT_EQ(chat["calls"].size(), 1u) << chat;
    EXPECT_EQ(chat["calls"][0]["name"], "f");
    EXPECT_EQ(PlainJson::parse(chat["calls"][0]["arguments"].get<std::string>()), arguments);
    EXPECT_EQ(chat["end"], "tool_calls");
    const PlainJson item = response["output"].back(), block = message["content"].back();
    EXPECT_EQ(item["name"], "f");
    EXPECT_EQ(item["arguments"], chat["calls"][0]["arguments"]);
    EXPECT_EQ(block["name"], "f");
    EXPECT_EQ(block["input"], arguments);
    EXPECT_EQ(message["stop_reason"], "tool_use");
  }
}

// The kind and text of each item of a response, or block of a message.
std::vector<std::string> kinds_and_texts(const PlainJson& items) {
  std::vector<std::string> out;
  for (const PlainJson& item : items) {
    const PlainJson& part = item.contains("content") ? item["content"][0] : item;
    out.push_back(item["type"].get<std::string>() + ":" +
                  part[part.contains("text") ? "text" : "thinking"].get<std::string>());
  }
  return out;
}

// gpt-oss may reason, speak and reason again. An event has several tokens, or all that the server
// writes to its log.
TEST(Protocols, PartsKeepTheirOrder) {
  const auto said = [](const char* channel, const char* text) {
    return fmt::format("<|channel|>{}<|message|>{}<|end|>", channel, text);
  };
  const std::string next = "<|start|>assistant";
  const std::string text = said("final", "words") + next + said("analysis", "why") + next +
                           said("commentary", "more") + next + said("analysis", "end");
  for (const int step : {1, 7, 1000}) {
    ScriptedOptions options = speaks(text, step);
    options.server.tool_call_parser = options.server.reasoning_parser = "harmony";
    ScriptedServer s(std::move(options));
    for (std::size_t n = 1; n <= text.size(); ++n) {
      SCOPED_TRACE(fmt::format("{}: {}", step, text.substr(0, n)));
      const bool all = n == text.size();
      std::string body =
          fmt::format(R"({{"input":"x","max_output_tokens":{},"ignore_eos":true)", n);
      const auto response = ask(s.port(), "POST", "/v1/responses", body + "}").json();
      const auto responses =
          named_events(ask(s.port(), "POST", "/v1/responses", body + R"(,"stream":true})"));
      EXPECT_EQ(without_names(rebuilt_response(responses)), without_names(response));
      body = fmt::format(
          R"({{"messages":[{{"role":"user","content":"x"}}],"max_tokens":{},"ignore_eos":true)", n);
      const auto message = ask(s.port(), "POST", "/v1/messages", body + "}").json();
      const auto messages =
          named_events(ask(s.port(), "POST", "/v1/messages", body + R"(,"stream":true})"));
      EXPECT_EQ(without_names(rebuilt_message(messages)), without_names(message));
      if (!all) continue;
      EXPECT_THAT(
          kinds_and_texts(response["output"]),
          ElementsAre("message:words", "reasoning:why", "message:\nmore", "reasoning:\nend"));
      EXPECT_THAT(kinds_and_texts(message["content"]),
                  ElementsAre("text:words", "thinking:why", "text:\nmore", "thinking:\nend"));
    }
  }
}

// --log-requests 3 keeps what streams have sent, whatever waits for their next event.
TEST(Protocols, LoggedStreamsLoseNothing) {
  const std::string text = kSaid;
  ScriptedOptions options = speaks(text, 7);
  options.server.log_requests = 3;
  ScriptedServer s(std::move(options));
  const std::string body =
      fmt::format(R"({{"input":"x","max_output_tokens":{},"ignore_eos":true,)"
                  R"("tools":[{{"type":"function","name":"f","parameters":{{}}}}])",
                  text.size());
  const TestAnswer whole = ask(s.port(), "POST", "/v1/responses", body + "}");
  const TestAnswer stream = ask(s.port(), "POST", "/v1/responses", body + R"(,"stream":true})");
  EXPECT_EQ(without_names(rebuilt_response(named_events(stream))), without_names(whole.json()));
}

// The format's text with a value of x in place of its string.
std::string with_value(std::string text, const std::string& value) {
  const std::pair<std::string, std::string> changes[] = {{R"("é")", value},
                                                         {R"(<|"|>é<|"|>)", value},
                                                         {"<escape>é<escape>", value},
                                                         {"é", value},
                                                         {R"(string="true")", R"(string="false")"}};
  for (const auto& [from, to] : changes) {
    const std::size_t at = text.find(from);
    if (at != std::string::npos) text.replace(at, from.size(), to);
  }
  return text;
}

// Whatever an answer has can be sent back: arguments with more levels than a history may have are
// text.
TEST(Protocols, EveryCallCanBeSentBack) {
  constexpr const char* kFunction = R"({"name":"f","parameters":{}})";
  const PlainJson user = {{"role", "user"}, {"content", "x"}};
  for (const SpokenFormat& format : spoken_formats()) {
    for (const std::size_t levels : {50, 190, 191, 250}) {  // of the arguments, an object
      const std::string deep = std::string(levels - 1, '[') + std::string(levels - 1, ']');
      const std::string text = with_value(format.text, deep);
      SCOPED_TRACE(fmt::format("{} levels: {}", levels, format.text));
      ScriptedOptions options = speaks(text, 1);
      options.server.tool_call_parser = format.tools;
      options.server.reasoning_parser = format.reasoning;
      options.next = [text](std::int32_t, std::int32_t position) {
        const auto at = static_cast<std::size_t>(position);
        return at < text.size() ? std::int32_t{static_cast<unsigned char>(text[at])} : kScriptEos;
      };
      ScriptedServer s(std::move(options));
      // Python's and Gemma's own values have at most 64 levels.
      const bool literal = text.find("f(x=") != std::string::npos ||
                           text.find("f.call(x=") != std::string::npos ||
                           text.find("f{x:") != std::string::npos;
      const bool calls = levels == 50 || (levels == 190 && !literal);
      const auto asked = [&](const char* path, const PlainJson& body) {
        const TestAnswer answer = ask(s.port(), "POST", path, body.dump());
        EXPECT_EQ(answer.status, 200) << path << answer.body;
        return answer.json();
      };
      const auto has_call = [&](const PlainJson& items) {
        return items.dump().find(R"("name":"f")") != std::string::npos;
      };
      PlainJson body = {
          {"messages", {user}},
          {"tools", {{{"type", "function"}, {"function", PlainJson::parse(kFunction)}}}}};
      const PlainJson said = asked("/v1/chat/completions", body)["choices"][0]["message"];
      EXPECT_EQ(has_call(said), calls) << said;
      body["messages"].push_back(said);
      if (calls) {
        body["messages"].push_back(
            {{"role", "tool"}, {"tool_call_id", said["tool_calls"][0]["id"]}, {"content", "r"}});
      }
      asked("/v1/chat/completions", body);

      PlainJson tool = PlainJson::parse(kFunction);
      tool["type"] = "function";
      body = {{"input", {user}}, {"tools", {tool}}};
      const PlainJson items = asked("/v1/responses", body)["output"];
      EXPECT_EQ(has_call(items), calls) << items;
      for (const PlainJson& item : items) body["input"].push_back(item);
      if (calls) {
        body["input"].push_back({{"type", "function_call_output"},
                                 {"call_id", items.back()["call_id"]},
                                 {"output", "r"}});
      }
      asked("/v1/responses", body);

      body = {{"messages", {user}},
              {"max_tokens", text.size() + 1},
              {"tools", {{{"name", "f"}, {"input_schema", PlainJson::object()}}}}};
      const PlainJson blocks = asked("/v1/messages", body)["content"];
      EXPECT_EQ(has_call(blocks), calls) << blocks;
      body["messages"].push_back({{"role", "assistant"}, {"content", blocks}});
      body["messages"].push_back(user);
      if (calls) {
        body["messages"].back()["content"] = {
            {{"type", "tool_result"}, {"tool_use_id", blocks.back()["id"]}, {"content", "r"}}};
      }
      asked("/v1/messages", body);
    }
  }
}

}  // namespace
}  // namespace lathe
