#include "server/messages/content_blocks.h"

#include <fmt/format.h>

#include <set>

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
  note_unknown(block, {"type", "text", "cache_control"}, path, ignored);
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
  // `path`: of the message's content.
  void flush(ChatHistory& history, const std::string& path) {
    if (std::exchange(any, false)) history.add("user", std::exchange(text, {}), path);
  }
};

// Calls and their results, by the rules of Anthropic's server: consecutive messages of one role are
// a turn, and the turn after calls has one result of each.
class CallTurns {
 public:
  // A message of this role begins. `path`: of its content.
  Wrong begin(bool user, const std::string& path) {
    if (!user && users_) {
      if (auto wrong = finish()) return wrong;
      last_.clear();
    }
    users_ = user;
    if (!user) path_ = path;
    return std::nullopt;
  }
  Wrong call(const std::string& id, const std::string& path) {
    if (!known_.insert(id).second) {
      return bad_field(path, "another id than earlier calls'", excerpt(id));
    }
    last_.insert(id);
    open_.insert(id);
    return std::nullopt;
  }
  Wrong result(const std::string& id, const std::string& path) {
    if (!last_.contains(id)) {
      return bad_field(path, "the id of a tool_use in the message before it", excerpt(id));
    }
    if (open_.erase(id) > 0) return std::nullopt;
    return bad_field(path, "one result of each call", "a second one of " + excerpt(id));
  }
  // Whether each call has its result.
  Wrong finish() const {
    if (open_.empty()) return std::nullopt;
    return bad_field(path_, "the results of the calls in the message after it",
                     "none of " + excerpt(*open_.begin()));
  }

 private:
  std::set<std::string> known_, last_, open_;  // ids: of all calls; of the last turn's; unanswered
  std::string path_;                           // of the assistant's last content
  bool users_ = false;
};

// What reading a message changes.
struct Conversation {
  ChatHistory& history;
  Names& ignored;
  Names& idle;
  CallTurns calls = {};
};

Wrong read_result(const Json& block, const std::string& path, Conversation& out) {
  auto& [history, ignored, idle, calls] = out;
  auto id = read_string(block, "tool_use_id", path);
  if (!id) return id.error();
  note_unknown(block, {"type", "tool_use_id", "content", "cache_control", "is_error"}, path,
               ignored);
  const Json failed = block.value("is_error", Json());
  if (!failed.is_null() && !failed.is_boolean()) {
    return bad_field(path + ".is_error", "true or false", excerpt(failed));
  }
  if (failed == true) idle.push_back(path + ".is_error");
  const Json content = block.value("content", Json());
  std::string text;
  if (!content.is_null()) {
    auto texts = read_block_texts(content, path + ".content", ignored);
    if (!texts) return texts.error();
    text = std::move(*texts);
  }
  if (auto wrong = calls.result(*id, path + ".tool_use_id")) return wrong;
  history.add_result(*id, std::move(text), path, "content");
  return std::nullopt;
}

// `inside`: the path of the message's content.
Wrong read_user_block(const Json& block, const std::string& path, const std::string& inside,
                      UserText& text, Conversation& out) {
  const Json type = block.value("type", Json());
  if (type == "text") {
    auto more = read_block_text(block, path, out.ignored);
    if (!more) return more.error();
    text.add(*more);
    return std::nullopt;
  }
  if (type == "tool_result") {
    text.flush(out.history, inside);
    return read_result(block, path, out);
  }
  return not_offered(path + ".type", "\"text\" or \"tool_result\"", type, kTextAlone);
}

Wrong read_call(const Json& block, const std::string& path, Conversation& out) {
  auto& [history, ignored, idle, calls] = out;
  auto id = read_name(block, "id", path);
  if (!id) return id.error();
  auto name = read_name(block, "name", path);
  if (!name) return name.error();
  note_unknown(block, {"type", "id", "name", "input", "cache_control", "caller"}, path, ignored);
  Json input = block.value("input", Json());
  if (!input.is_object()) {
    return bad_field(path + ".input", "an object", input.is_null() ? "nothing" : excerpt(input));
  }
  if (auto wrong = calls.call(*id, path + ".id")) return wrong;
  history.add_call(*id, *name, std::move(input), path, "input");
  return std::nullopt;
}

Wrong read_answer_block(const Json& block, const std::string& path, Conversation& out) {
  const Json type = block.value("type", Json());
  if (type == "text") {
    auto text = read_block_text(block, path, out.ignored);
    if (!text) return text.error();
    out.history.add_answer(*text, path + ".text");
    return std::nullopt;
  }
  if (type == "tool_use") return read_call(block, path, out);
  if (type == "thinking") {
    auto text = read_string(block, "thinking", path);
    if (!text) return text.error();
    note_unknown(block, {"type", "thinking", "signature", "cache_control"}, path, out.ignored);
    out.history.add_reasoning(*text, path + ".thinking");
    return std::nullopt;
  }
  // Anthropic's own, which nobody else can read.
  if (type == "redacted_thinking") {
    out.idle.push_back(path);
    return std::nullopt;
  }
  return not_offered(path + ".type", R"("text", "tool_use" or "thinking")", type, kTextAlone);
}

Wrong read_message(const Json& message, const std::string& path, Conversation& out) {
  if (!message.is_object()) return bad_field(path, "a message", excerpt(message));
  const Json role = message.value("role", Json());
  if (role != "user" && role != "assistant") {
    return bad_field(path + ".role", "user or assistant",
                     role.is_null() ? "nothing" : excerpt(role),
                     role == "system" ? "the field system" : "");
  }
  note_unknown(message, {"role", "content"}, path, out.ignored);
  const bool user = role == "user";
  const Json content = message.value("content", Json());
  const std::string inside = path + ".content";
  if (auto wrong = out.calls.begin(user, inside)) return wrong;
  if (content.is_string()) {
    if (user) {
      out.history.add("user", content, inside);
    } else {
      out.history.add_answer(content.get_ref<const std::string&>(), inside);
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
    auto wrong = user ? read_user_block(content[i], here, inside, text, out)
                      : read_answer_block(content[i], here, out);
    if (wrong) return wrong;
  }
  text.flush(out.history, inside);
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
                          ApiRequest& request) {
  Conversation out{history, request.ignored, request.idle};
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string here = fmt::format("{}[{}]", path, i);
    if (auto wrong = read_message(messages[i], here, out)) return wrong;
  }
  if (auto wrong = out.calls.finish()) return wrong;
  const std::string last = fmt::format("{}[{}].content", path, messages.size() - 1);
  if (history.ends_with_answer() && !history.ends_with_text()) {
    return bad_field(last, "text, which the answer continues, or a user's message after it",
                     "none");
  }
  return std::nullopt;
}

}  // namespace lathe::anthropic
