#include "server/messages/content_blocks.h"

#include <fmt/format.h>

#include "server/openai/field_readers.h"
#include "server/openai/object_reader.h"

namespace lathe::anthropic {
namespace {

using Json = nlohmann::ordered_json;
using Wrong = std::optional<ApiError>;
using Names = std::vector<std::string>;

constexpr std::string_view kTextAlone = "this server reads text alone";

// A text block. The server caches every prompt, so cache_control has no effect.
Result<std::string, ApiError> read_block_text(const Json& block, const std::string& path,
                                              Names& ignored) {
  auto text = read_string(block, "text", path);
  note_unknown(block, {"type", "text", "cache_control", "citations"}, path, ignored);
  return text;
}

// Text of a user's message up to a result of a tool, which is a message of its own.
struct UserText {
  std::string text;
  bool any = false;

  void add(const std::string& more) {
    if (std::exchange(any, true)) text += '\n';
    text += more;
  }
  void flush(ChatHistory& history) {
    if (std::exchange(any, false)) history.add("user", std::exchange(text, {}));
  }
};

Wrong read_result(const Json& block, const std::string& path, ChatHistory& history,
                  Names& ignored) {
  auto id = read_string(block, "tool_use_id", path);
  if (!id) return id.error();
  note_unknown(block, {"type", "tool_use_id", "content", "cache_control", "is_error"}, path,
               ignored);
  if (block.value("is_error", Json()) == true) ignored.push_back(path + ".is_error");
  const Json content = block.value("content", Json());
  std::string text;
  if (!content.is_null()) {
    auto texts = read_block_texts(content, path + ".content", ignored);
    if (!texts) return texts.error();
    text = std::move(*texts);
  }
  if (history.add_result(*id, std::move(text))) return std::nullopt;
  return bad_field(path + ".tool_use_id", "the id of a tool_use before it", excerpt(*id));
}

Wrong read_user_block(const Json& block, const std::string& path, UserText& text,
                      ChatHistory& history, Names& ignored) {
  const Json type = block.value("type", Json());
  if (type == "text") {
    auto more = read_block_text(block, path, ignored);
    if (!more) return more.error();
    text.add(*more);
    return std::nullopt;
  }
  if (type == "tool_result") {
    text.flush(history);
    return read_result(block, path, history, ignored);
  }
  return not_offered(path + ".type", "\"text\" or \"tool_result\"", type, kTextAlone);
}

Wrong read_call(const Json& block, const std::string& path, ChatHistory& history, Names& ignored) {
  auto id = read_string(block, "id", path);
  if (!id) return id.error();
  auto name = read_string(block, "name", path);
  if (!name) return name.error();
  note_unknown(block, {"type", "id", "name", "input", "cache_control", "caller"}, path, ignored);
  Json input = block.value("input", Json());
  if (!input.is_object()) {
    return bad_field(path + ".input", "an object", input.is_null() ? "nothing" : excerpt(input));
  }
  history.add_call(*id, *name, std::move(input));
  return std::nullopt;
}

Wrong read_answer_block(const Json& block, const std::string& path, ChatHistory& history,
                        Names& ignored) {
  const Json type = block.value("type", Json());
  if (type == "text") {
    auto text = read_block_text(block, path, ignored);
    if (!text) return text.error();
    history.add_answer(*text);
    return std::nullopt;
  }
  if (type == "tool_use") return read_call(block, path, history, ignored);
  if (type == "thinking") {
    auto text = read_string(block, "thinking", path);
    if (!text) return text.error();
    note_unknown(block, {"type", "thinking", "signature", "cache_control"}, path, ignored);
    history.add_reasoning(*text);
    return std::nullopt;
  }
  // Anthropic's own, which nobody else can read.
  if (type == "redacted_thinking") {
    ignored.push_back(path);
    return std::nullopt;
  }
  return not_offered(path + ".type", R"("text", "tool_use" or "thinking")", type, kTextAlone);
}

Wrong read_message(const Json& message, const std::string& path, ChatHistory& history,
                   Names& ignored) {
  if (!message.is_object()) return bad_field(path, "a message", excerpt(message));
  const Json role = message.value("role", Json());
  if (role != "user" && role != "assistant") {
    return bad_field(path + ".role", "user or assistant",
                     role.is_null() ? "nothing" : excerpt(role),
                     role == "system" ? "the field system" : "");
  }
  note_unknown(message, {"role", "content"}, path, ignored);
  const bool user = role == "user";
  const Json content = message.value("content", Json());
  const std::string inside = path + ".content";
  if (content.is_string()) {
    if (user) {
      history.add("user", content);
    } else {
      history.add_answer(content.get_ref<const std::string&>());
    }
    return std::nullopt;
  }
  if (!content.is_array() || content.empty()) {
    return bad_field(inside, "text, or a list of blocks, at least one",
                     content.is_null() ? "nothing" : excerpt(content));
  }
  UserText text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string here = fmt::format("{}[{}]", inside, i);
    if (!content[i].is_object()) return bad_field(here, "a block", excerpt(content[i]));
    auto wrong = user ? read_user_block(content[i], here, text, history, ignored)
                      : read_answer_block(content[i], here, history, ignored);
    if (wrong) return wrong;
  }
  text.flush(history);
  return std::nullopt;
}

}  // namespace

Result<std::string, ApiError> read_block_texts(const Json& value, const std::string& path,
                                               Names& ignored) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return bad_field(path, "text, or a list of text blocks", excerpt(value));
  UserText out;
  for (std::size_t i = 0; i < value.size(); ++i) {
    const std::string here = fmt::format("{}[{}]", path, i);
    if (!value[i].is_object()) return bad_field(here, "a block", excerpt(value[i]));
    const Json type = value[i].value("type", Json());
    if (type != "text") return not_offered(here + ".type", "\"text\"", type, kTextAlone);
    auto text = read_block_text(value[i], here, ignored);
    if (!text) return text.error();
    out.add(*text);
  }
  return std::move(out.text);
}

Wrong read_content_blocks(const Json& messages, const std::string& path, ChatHistory& history,
                          Names& ignored) {
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string here = fmt::format("{}[{}]", path, i);
    if (auto wrong = read_message(messages[i], here, history, ignored)) return wrong;
  }
  const std::string last = fmt::format("{}[{}].content", path, messages.size() - 1);
  if (history.ends_with_calls()) {
    return bad_field(last, "the results of the calls after them", "none");
  }
  if (history.ends_with_answer() && !history.ends_with_text()) {
    return bad_field(last, "text, which the answer continues, or a user's message after it",
                     "none");
  }
  return std::nullopt;
}

}  // namespace lathe::anthropic
