#include "tools/terminal/prompts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/json.h"
#include "base/print.h"
#include "io/files/read_file.h"
#include "io/template/chat_messages.h"
#include "io/template/chat_prompt.h"
#include "io/template/chat_template.h"
#include "io/text/json_text.h"
#include "io/text/quote.h"
#include "server/openai/field_readers.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostNames = 8;  // of members that are not read

constexpr std::string_view kForms =
    R"({"prompt": TEXT}, {"prompt": [ID, ...]} or {"messages": [{"role": ..., "content": ...}]})";

Json user_message(const std::string& text) {
  return Json::array({{{"role", "user"}, {"content", text}}});
}

Result<std::vector<std::int32_t>> read_ids(const Json& list, const std::string& where) {
  std::vector<std::int32_t> out;
  for (const Json& id : list) {
    const auto token = integer_of(id, 0, INT32_MAX);
    if (!token) return Error{ErrorCode::malformed, where, "token ids", json_excerpt(id), ""};
    out.push_back(static_cast<std::int32_t>(*token));
  }
  if (out.empty()) return Error{ErrorCode::malformed, where, "at least one token", "[]", ""};
  return out;
}

// The messages as a request to the server has them.
Result<Prompt> read_conversation_line(Json messages, const std::string& where) {
  auto ok = read_messages(messages);
  if (ok) ok = check_results(messages);
  if (!ok) {
    Error e = ok.error();
    e.code = ErrorCode::malformed;
    e.field = fmt::format("{}: {}", where, e.field);
    return e;
  }
  Prompt p;
  p.messages = std::move(messages);
  return p;
}

// The line's value of a name; null: none.
Json take_member(Json& line, const char* name) {
  const auto at = line.find(name);
  return at == line.end() ? Json() : std::move(*at);
}

void note_unread(const Json& line, std::vector<std::string>& unread) {
  for (const auto& item : line.items()) {
    if (item.key() == "prompt" || item.key() == "messages" || unread.size() == kMostNames) continue;
    std::string name = quote(item.key());
    if (std::ranges::find(unread, name) == unread.end()) unread.push_back(std::move(name));
  }
}

// `unread`: gets the names of members other than a prompt's, in quotes.
Result<Prompt> parse_line(const std::string& line, const std::string& where, bool chat_template,
                          std::vector<std::string>& unread) {
  const auto wrong = [&](const std::string& got) {
    return Error{ErrorCode::malformed, where, std::string(kForms), got, ""};
  };
  Json j;
  try {
    auto read = read_watched_json<Json>(line, {}, /*exact=*/true);
    if (read.too_deep) {
      return wrong(fmt::format("more than {} levels at {}", kMostLevels, *read.too_deep));
    }
    if (read.too_large) return wrong(read.too_large->digits + ", which no double holds");
    if (read.twice) return wrong(quote(*read.twice) + " twice");
    j = std::move(read.value);
  } catch (const Json::parse_error& e) {
    if (e.byte <= 1) return wrong("no JSON object");
    return wrong(e.byte > line.size()
                     ? fmt::format("the end after byte {}", line.size())
                     : fmt::format("something else at byte {} of {}", e.byte, line.size()));
  }
  if (!j.is_object()) return wrong("no JSON object");
  note_unread(j, unread);
  const Json prompt = take_member(j, "prompt");
  Json messages = take_member(j, "messages");
  if (!prompt.is_null() && !messages.is_null()) return wrong("both prompt and messages");
  if (!messages.is_null()) return read_conversation_line(std::move(messages), where);
  Prompt p;
  if (prompt.is_array()) {
    auto ids = read_ids(prompt, where);
    if (!ids) return ids.error();
    p.ids = std::move(*ids);
  } else if (prompt.is_string()) {
    p.text = prompt.get<std::string>();
    if (chat_template) {
      p.messages = user_message(p.text);
    } else if (p.text.empty()) {
      return Error{ErrorCode::malformed, where, "at least one token", "\"\"", ""};
    }
  } else {
    return wrong("none of them");
  }
  return p;
}

Result<std::vector<Prompt>> read_lines(const PromptFlags& flags) {
  const bool piped = flags.prompts == "-";
  const auto text = piped ? read_stdin() : read_flag_file("--prompts", flags.prompts);
  if (!text) return text.error();
  std::vector<Prompt> out;
  std::vector<std::string> unread;
  std::size_t number = 0;
  for (std::size_t at = 0; at < text->size();) {
    const std::size_t end = std::min(text->find('\n', at), text->size());
    const std::string line = text->substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (flags.count > 0 && std::ssize(out) == flags.count) break;
    const std::string where = fmt::format("{}:{}", piped ? "stdin" : flags.prompts, number);
    auto p = parse_line(line, where, flags.chat_template, unread);
    if (p) {
      out.push_back(std::move(*p));
      out.back().where = where;
    } else {
      out.emplace_back().error = p.error();
    }
  }
  if (!unread.empty()) {
    print_err(fmt::format("lathe: --prompts: members that are not read: {}; flags set sampling\n",
                          fmt::join(unread, ", ")));
  }
  if (out.empty()) {
    return Error{ErrorCode::invalid_argument, "--prompts", "at least one prompt",
                 (piped ? "stdin" : flags.prompts) + " without any", ""};
  }
  return out;
}

}  // namespace

Result<std::string> read_stdin() {
  std::string out;
  char buffer[1 << 16];
  while (const std::size_t n = std::fread(buffer, 1, sizeof(buffer), stdin)) out.append(buffer, n);
  if (std::ferror(stdin) != 0) {
    return Error{ErrorCode::io, "stdin", "input that can be read", "an error", ""};
  }
  return out;
}

Result<std::vector<Prompt>> read_prompts(const PromptFlags& flags) {
  std::vector<std::string_view> given;
  for (const auto& [name, is_given] :
       {std::pair<std::string_view, bool>{flags.name, flags.prompt.has_value()},
        {flags.file_name, !flags.prompt_file.empty()},
        {"--prompt-ids", !flags.ids.empty()},
        {"--prompts", !flags.prompts.empty()}}) {
    if (is_given) given.push_back(name);
  }
  const auto refused = [&](std::string got, std::string hint = "") {
    return Error{ErrorCode::invalid_argument, flags.name, "one of " + flags.sources, std::move(got),
                 std::move(hint)};
  };
  if (given.size() > 1) {
    return refused(fmt::format("{}", fmt::join(given, " and ")), "leave out all but one");
  }
  if (flags.batched()) return read_lines(flags);
  Prompt p;
  p.ids = flags.ids;
  p.text = flags.prompt.value_or("");
  const bool piped = given.empty() || flags.prompt == "-" || flags.prompt_file == "-";
  if (piped) {
    if (given.empty() && isatty(STDIN_FILENO) == 1) return refused("none");
    auto text = read_stdin();
    if (!text) return text.error();
    if (text->empty()) return refused("none");
    p.text = std::move(*text);
  } else if (!flags.prompt_file.empty()) {
    auto text = read_flag_file(flags.file_name, flags.prompt_file);
    if (!text) return text.error();
    p.text = std::move(*text);
  }
  if (flags.chat_template && !flags.ids.empty()) {
    return Error{ErrorCode::invalid_argument, "--apply-chat-template", "a prompt of text",
                 "--prompt-ids", ""};
  }
  if (flags.chat_template) p.messages = user_message(p.text);
  return std::vector{std::move(p)};
}

Result<std::vector<std::vector<std::int32_t>>> encode_prompts(const PromptFlags& flags,
                                                              std::vector<Prompt>& prompts,
                                                              const Tokenizer* tokenizer,
                                                              const std::string& directory) {
  const auto variables =
      read_chat_variables(flags.template_kwargs, "--chat-template-kwargs", /*tools=*/false);
  if (!variables) return variables.error();
  const bool chats = std::ranges::any_of(
      prompts, [](const Prompt& p) { return p.error || !p.messages.is_null(); });
  if (!flags.template_kwargs.empty() && !chats) {
    return Error{ErrorCode::invalid_argument, "--chat-template-kwargs",
                 "--apply-chat-template, or messages in --prompts, with it",
                 "prompts without a template", ""};
  }
  std::optional<ChatTemplateFile> chat;
  std::vector<std::vector<std::int32_t>> out;
  for (Prompt& p : prompts) {
    auto& tokens = out.emplace_back();
    if (p.error) continue;
    if (!p.ids.empty()) {
      tokens = p.ids;
      continue;
    }
    if (!p.messages.is_null() && !chat) {
      auto loaded = load_chat_template(directory);
      if (!loaded) return loaded.error();
      chat = std::move(*loaded);
    }
    auto encoded = p.messages.is_null() ? tokenizer->encode(p.text, /*add_special_tokens=*/true)
                                        : encode_chat(p.messages, *chat, *tokenizer, *variables);
    if (encoded) {
      tokens = std::move(*encoded);
    } else {
      p.error = encoded.error();
    }
  }
  return out;
}

}  // namespace lathe
