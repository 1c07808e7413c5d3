#include "io/template/deepseek_v4_chat.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/json.h"
#include "io/template/deepseek_v4_texts.h"
#include "io/template/jinja_failure.h"
#include "io/template/jinja_runtime.h"
#include "io/template/jinja_value.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kBegin = "<｜begin▁of▁sentence｜>";
constexpr std::string_view kEnd = "<｜end▁of▁sentence｜>";
constexpr std::string_view kUser = "<｜User｜>";
constexpr std::string_view kAssistant = "<｜Assistant｜>";
constexpr std::string_view kReminder = "<｜latest_reminder｜>";
constexpr std::string_view kThink = "<think>";
constexpr std::string_view kEndThink = "</think>";
constexpr std::string_view kEndResult = "</tool_result>";
constexpr std::array<std::string_view, 6> kTasks = {"action", "query", "authority",
                                                    "domain", "title", "read_url"};

[[noreturn]] void refuse(std::string field, std::string wanted, std::string got) {
  throw JinjaFailure{
      {ErrorCode::invalid_argument, std::move(field), std::move(wanted), std::move(got), ""}};
}

// A piece of a user's message.
struct Block {
  bool result = false;  // of a tool
  std::string text;
  std::string call;  // the id of the result's call
};

struct Message {
  std::string path;  // "messages[0]", for errors
  std::string role;
  std::string text;
  std::vector<Block> blocks;
  std::string reasoning;
  std::string task;
  Json tools;
  Json response_format;
  Json calls;
  bool open = false;  // an answer without its end

  bool asks() const { return role == "user" || role == "developer"; }
};

// Like Python's json.dumps(value, ensure_ascii=False). `path`: of the value, for errors.
std::string dumps(const Json& json, const std::string& path) {
  const auto value = JinjaValue::from_json(json, path);
  if (!value) throw JinjaFailure{value.error()};
  JinjaRuntime runtime(JinjaLimits{}, std::tm{});
  return to_json(runtime, *value, JinjaJsonStyle{});
}

const Json* find(const Json& object, const char* key) {
  const auto at = object.find(key);
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

std::string text_of(const Json& object, const char* key, const std::string& path) {
  const Json* value = find(object, key);
  if (value == nullptr) return "";
  if (!value->is_string()) refuse(path + "." + key, "a string", json_excerpt(*value));
  return value->get<std::string>();
}

bool flag_of(const Json& object, const char* key, const std::string& path, bool otherwise) {
  const Json* value = find(object, key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) refuse(path + key, "true or false", json_excerpt(*value));
  return value->get<bool>();
}

// A text, or a list of text parts, joined by two newlines.
std::string content_of(const Json& message, const std::string& path) {
  const Json* content = find(message, "content");
  if (content == nullptr || !content->is_array()) return text_of(message, "content", path);
  std::string out;
  for (std::size_t i = 0; i < content->size(); ++i) {
    const Json& part = (*content)[i];
    const std::string here = fmt::format("{}.content[{}]", path, i);
    if (!part.is_object() || part.value("type", Json()) != "text") {
      refuse(here, "a part of type \"text\"", json_excerpt(part));
    }
    if (i > 0) out += "\n\n";
    out += text_of(part, "text", here);
  }
  return out;
}

// Escapes the mark of a result's end: text after it would read as the user's.
std::string escape_result(std::string text) {
  for (std::size_t at = 0; (at = text.find(kEndResult, at)) != std::string::npos;) {
    text.replace(at, 1, "&lt;");
  }
  return text;
}

// Splits reasoning off an answer that contains it in its text.
void split_reasoning(Message& m) {
  const std::size_t end = m.text.find(kEndThink);
  if (end == std::string::npos) return;
  m.reasoning = m.text.substr(0, end);
  m.text.erase(0, end + kEndThink.size());
}

Message read_message(const Json& json, const std::string& path) {
  if (!json.is_object()) refuse(path, "a message", json_excerpt(json));
  Message m;
  m.path = path;
  m.role = text_of(json, "role", path);
  m.text = content_of(json, path);
  m.reasoning = text_of(json, "reasoning_content", path);
  if (m.reasoning.empty()) m.reasoning = text_of(json, "reasoning", path);
  if (m.role == "assistant" && m.reasoning.empty()) split_reasoning(m);
  m.task = text_of(json, "task", path);
  m.open = flag_of(json, "wo_eos", path + ".", false);
  if (const Json* v = find(json, "tools")) m.tools = *v;
  if (const Json* v = find(json, "response_format")) m.response_format = *v;
  if (const Json* v = find(json, "tool_calls")) m.calls = *v;
  if (m.role == "developer" && m.text.empty()) refuse(path + ".content", "text", "none");
  if (!m.task.empty() && std::find(kTasks.begin(), kTasks.end(), m.task) == kTasks.end()) {
    refuse(path + ".task", fmt::format("{}", fmt::join(kTasks, ", ")), m.task);
  }
  return m;
}

// Consecutive user and tool messages are merged.
std::vector<Message> read_messages(const Json& list) {
  std::vector<Message> out;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string path = fmt::format("messages[{}]", i);
    Message m = read_message(list[i], path);
    const bool result = m.role == "tool";
    if (!result && m.role != "user") {
      out.push_back(std::move(m));
      continue;
    }
    Block block{result, result ? escape_result(std::move(m.text)) : std::move(m.text),
                result ? text_of(list[i], "tool_call_id", path) : ""};
    if (out.empty() || out.back().role != "user" || (!result && !out.back().task.empty())) {
      out.emplace_back().path = path;
      out.back().role = "user";
      if (!result) out.back().task = m.task;
    }
    out.back().blocks.push_back(std::move(block));
  }
  return out;
}

// Sorts a message's results in the order of their calls; texts keep their places.
void sort_results(std::vector<Message>& messages) {
  std::map<std::string, std::size_t> order;
  const auto place = [&](const Block* b) {
    const auto at = order.find(b->call);
    return at == order.end() ? std::size_t{0} : at->second;
  };
  for (Message& m : messages) {
    if (m.role == "assistant" && m.calls.is_array() && !m.calls.empty()) {
      order.clear();
      for (std::size_t i = 0; i < m.calls.size(); ++i) {
        if (!m.calls[i].is_object()) continue;
        const std::string id = text_of(m.calls[i], "id", m.path + ".tool_calls");
        if (!id.empty()) order[id] = i;
      }
    }
    if (order.empty()) continue;
    std::vector<const Block*> results;
    for (const Block& b : m.blocks) {
      if (b.result) results.push_back(&b);
    }
    std::stable_sort(results.begin(), results.end(),
                     [&](const Block* a, const Block* b) { return place(a) < place(b); });
    std::vector<Block> sorted;
    std::size_t next = 0;
    for (const Block& b : m.blocks) sorted.push_back(b.result ? *results[next++] : b);
    m.blocks = std::move(sorted);
  }
}

// Index of the last question, or -1.
std::ptrdiff_t last_question(const std::vector<Message>& messages) {
  for (std::ptrdiff_t i = std::ssize(messages) - 1; i >= 0; --i) {
    if (messages[static_cast<std::size_t>(i)].asks()) return i;
  }
  return -1;
}

// Tools given outside the messages go to the first system message.
void place_tools(const Json& tools, std::vector<Message>& messages) {
  auto at = std::find_if(messages.begin(), messages.end(),
                         [](const Message& m) { return m.role == "system"; });
  if (at == messages.end()) {
    at = messages.insert(messages.begin(), Message());
    at->role = "system";
    at->path = "tools";
  }
  at->tools = tools;
}

// The text before the first message.
std::string_view effort_text(const std::string& effort, V4Encoding encoding) {
  const bool most = effort == "max" || effort == "xhigh";
  if (encoding == V4Encoding::preview) return most ? kV4EffortAbsolute : "";
  return most ? kV4EffortBeyond : effort == "high" ? kV4EffortAbsolute : "";
}

class Rendering {
 public:
  Rendering(const Json& variables, V4Encoding encoding) : encoding_(encoding) {
    if (const Json* v = find(variables, "encoding")) {
      const std::string text = text_of(variables, "encoding", "chat template");
      const auto named = parse_enum<V4Encoding>(text);
      if (!named) refuse("encoding", known_names<V4Encoding>(), json_excerpt(*v));
      encoding_ = *named;
    }
    effort_ = text_of(variables, "reasoning_effort", "chat template");
    constexpr std::array<std::string_view, 8> kEfforts = {"",       "none", "minimal", "low",
                                                          "medium", "high", "xhigh",   "max"};
    if (std::find(kEfforts.begin(), kEfforts.end(), effort_) == kEfforts.end()) {
      refuse("reasoning_effort",
             fmt::format("{}", fmt::join(kEfforts.begin() + 1, kEfforts.end(), ", ")), effort_);
    }
    thinking_ = flag_of(variables, "thinking", "", flag_of(variables, "enable_thinking", "", true));
    thinking_ = thinking_ && effort_ != "none";
    opens_answer_ = flag_of(variables, "add_generation_prompt", "", true);
    const Json* list = find(variables, "messages");
    if (list == nullptr || !list->is_array()) refuse("messages", "a list of messages", "none");
    messages_ = read_messages(*list);
    sort_results(messages_);
    const Json* tools = find(variables, "tools");
    if (tools != nullptr && !tools->empty()) place_tools(*tools, messages_);
    // With tools, the model needs its reasoning from earlier turns.
    drops_ = thinking_ && flag_of(variables, "drop_thinking", "", true) &&
             std::none_of(messages_.begin(), messages_.end(),
                          [](const Message& m) { return !m.tools.empty(); });
    if (drops_) {
      const std::ptrdiff_t last = last_question(messages_);
      std::ptrdiff_t at = 0;
      std::erase_if(messages_,
                    [&](const Message& m) { return at++ < last && m.role == "developer"; });
    }
    last_ = last_question(messages_);
  }

  std::string text() {
    out_ = kBegin;
    if (thinking_) out_ += effort_text(effort_, encoding_);
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      add_message(i);
      add_transition(i);
    }
    if (opens_answer_ && !in_answer_ && !messages_.empty()) open_answer(messages_.size() - 1);
    return std::move(out_);
  }

 private:
  void add_message(std::size_t i) {
    const Message& m = messages_[i];
    if (m.role != "latest_reminder") in_answer_ = m.role == "assistant" && m.open;
    if (m.role == "system" || m.role == "developer") {
      if (m.role == "developer") out_ += kUser;
      out_ += m.text;
      add_extras(m);
    } else if (m.role == "user") {
      out_ += kUser;
      for (std::size_t b = 0; b < m.blocks.size(); ++b) {
        if (b > 0) out_ += "\n\n";
        const Block& block = m.blocks[b];
        out_ +=
            block.result ? fmt::format("<tool_result>{}{}", block.text, kEndResult) : block.text;
      }
    } else if (m.role == "latest_reminder") {
      out_ += kReminder;
      out_ += m.text;
    } else if (m.role == "assistant") {
      const bool task = i > 0 && !messages_[i - 1].task.empty();
      if (thinking_ && !task && (!drops_ || static_cast<std::ptrdiff_t>(i) > last_)) {
        out_ += m.reasoning;
        out_ += kEndThink;
      }
      out_ += m.text;
      add_calls(m);
      if (!m.open) out_ += kEnd;
    } else {
      refuse(m.path + ".role", "system, developer, user, assistant, tool or latest_reminder",
             m.role.empty() ? "none" : m.role);
    }
  }

  // Adds tools and the schema of answers after a message's text.
  void add_extras(const Message& m) {
    if (!m.tools.empty()) {
      if (!m.tools.is_array()) refuse(m.path + ".tools", "a list", json_excerpt(m.tools));
      out_ += "\n\n";
      out_ += kV4ToolsHead;
      for (std::size_t i = 0; i < m.tools.size(); ++i) {
        const Json* f = m.tools[i].is_object() ? find(m.tools[i], "function") : nullptr;
        if (f == nullptr) {
          refuse(fmt::format("tools[{}]", i), "an object with \"function\"",
                 json_excerpt(m.tools[i]));
        }
        if (i > 0) out_ += '\n';
        out_ += dumps(*f, fmt::format("tools[{}].function", i));
      }
      out_ += kV4ToolsTail;
    }
    if (!m.response_format.empty()) {
      out_ += "\n\n";
      out_ += kV4ResponseFormat;
      out_ += dumps(m.response_format, m.path + ".response_format");
    }
  }

  void add_calls(const Message& m) {
    if (m.calls.empty()) return;
    if (!m.calls.is_array()) refuse(m.path + ".tool_calls", "a list", json_excerpt(m.calls));
    out_ += "\n\n<｜DSML｜tool_calls>\n";
    for (std::size_t i = 0; i < m.calls.size(); ++i) {
      const std::string path = fmt::format("{}.tool_calls[{}]", m.path, i);
      const Json* f = m.calls[i].is_object() ? find(m.calls[i], "function") : nullptr;
      if (f == nullptr || !f->is_object()) {
        refuse(path, "an object with \"function\"", json_excerpt(m.calls[i]));
      }
      out_ += fmt::format("<｜DSML｜invoke name=\"{}\">\n", text_of(*f, "name", path));
      add_arguments(f->value("arguments", Json::object()), path + ".function.arguments");
      out_ += "\n</｜DSML｜invoke>\n";
    }
    out_ += "</｜DSML｜tool_calls>";
  }

  // One line per argument. Text that is not JSON becomes one argument named "arguments".
  void add_arguments(Json arguments, const std::string& path) {
    if (arguments.is_string()) {
      Json parsed = read_json<Json>(arguments.get_ref<const std::string&>());
      arguments = parsed.is_discarded() ? Json{{"arguments", arguments}} : std::move(parsed);
    }
    if (!arguments.is_object()) refuse(path, "a JSON object", json_excerpt(arguments));
    bool first = true;
    for (const auto& [key, value] : arguments.items()) {
      if (!std::exchange(first, false)) out_ += '\n';
      out_ += fmt::format(
          "<｜DSML｜parameter name=\"{}\" string=\"{}\">{}</｜DSML｜parameter>", key,
          value.is_string(),
          value.is_string() ? value.get<std::string>() : dumps(value, path + "." + key));
    }
  }

  // Opens the answer if one follows a question.
  void add_transition(std::size_t i) {
    const Message& m = messages_[i];
    const bool last = i + 1 == messages_.size();
    if (last ? !opens_answer_
             : messages_[i + 1].role != "assistant" && messages_[i + 1].role != "latest_reminder") {
      return;
    }
    if (!m.task.empty()) {
      in_answer_ = true;
      if (m.task == "action") {
        out_ += kAssistant;
        out_ += thinking_ ? kThink : kEndThink;
      }
      out_ += fmt::format("<｜{}｜>", m.task);
      return;
    }
    if (m.asks()) open_answer(i);
  }

  // i: the message before the answer. DeepSeek's programs open one after a question alone (the
  // official one also after a last system message), and a model that is asked to go on after the
  // end of an answer writes anything.
  void open_answer(std::size_t i) {
    in_answer_ = true;
    out_ += kAssistant;
    const bool thinks = thinking_ && (!drops_ || static_cast<std::ptrdiff_t>(i) >= last_);
    out_ += thinks ? kThink : kEndThink;
  }

  V4Encoding encoding_;
  std::string effort_;
  bool thinking_ = true;
  bool opens_answer_ = true;
  bool drops_ = false;  // drops reasoning before the last question
  std::vector<Message> messages_;
  std::ptrdiff_t last_ = -1;  // the last question
  bool in_answer_ = false;    // the text ends in an answer that is open
  std::string out_;
};

}  // namespace

std::string render_deepseek_v4(const Json& variables, V4Encoding encoding) {
  return Rendering(variables, encoding).text();
}

}  // namespace lathe
