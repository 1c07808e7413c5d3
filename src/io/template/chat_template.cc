#include "io/template/chat_template.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/json.h"
#include "io/files/model_path.h"
#include "io/files/read_file.h"
#include "io/template/deepseek_v4_texts.h"
#include "io/template/harmony_chat.h"
#include "io/template/jinja_eval.h"
#include "io/template/jinja_failure.h"
#include "io/template/jinja_lexer.h"
#include "io/template/jinja_parser.h"
#include "io/text/json_text.h"
#include "io/text/utf8.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxSource = std::size_t{4} << 20;

std::tm local_time() {
  const std::time_t t = std::time(nullptr);
  std::tm out{};
  ::localtime_r(&t, &out);
  return out;
}

struct Sources {
  std::string main;
  std::optional<std::string> tool_use;
};

// The template that a list names `wanted`.
std::optional<std::string> named_template(const nlohmann::json& list, std::string_view wanted) {
  for (const auto& named : list) {
    if (!named.is_object()) continue;
    const auto name = named.find("name");
    const auto text = named.find("template");
    if (name != named.end() && *name == wanted && text != named.end() && text->is_string()) {
      return text->get<std::string>();
    }
  }
  return std::nullopt;
}

// The templates in a "chat_template" member: a string, or a list that names them.
Result<Sources> sources_of(const nlohmann::json& member, const std::string& field) {
  if (member.is_string()) return Sources{member.get<std::string>(), std::nullopt};
  if (member.is_array()) {
    if (auto main = named_template(member, "default")) {
      return Sources{*std::move(main), named_template(member, "tool_use")};
    }
  }
  return Error{ErrorCode::malformed, field, "a string, or a list that names one \"default\"",
               json_excerpt(member), ""};
}

bool has_tools(const nlohmann::ordered_json& variables) {
  const auto tools = variables.find("tools");
  return tools != variables.end() && !tools->empty();
}

// A special token is a string, an object with its text as "content", or null.
Result<std::string> token_of(const nlohmann::json& config, const char* key,
                             const std::string& file) {
  const auto it = config.find(key);
  if (it == config.end() || it->is_null()) return std::string();
  if (it->is_string()) return it->get<std::string>();
  if (it->is_object()) {
    const auto content = it->find("content");
    if (content != it->end() && content->is_string()) return content->get<std::string>();
  }
  return Error{ErrorCode::malformed, file + ": " + key, "a string or an object with \"content\"",
               json_excerpt(*it), ""};
}

Result<nlohmann::json> read_object(const fs::path& path) {
  const auto text = read_file(path);
  if (!text) return text.error();
  auto json = parse_json(*text, path.string());
  if (json && !json->is_object()) {
    return Error{ErrorCode::malformed, path.string(), "a JSON object", json_excerpt(*json), ""};
  }
  return json;
}

// The encoding of a DeepSeek V4 folder; nullopt for others.
Result<std::optional<V4Encoding>> find_v4_encoding(const fs::path& dir) {
  const fs::path config = dir / "config.json", program = dir / "encoding" / "encoding_dsv4.py";
  if (!is_listed(config)) return std::optional<V4Encoding>();
  const auto object = read_object(config);
  if (!object) return object.error();
  const auto type = object->find("model_type");
  if (type == object->end() || *type != "deepseek_v4") return std::optional<V4Encoding>();
  if (is_listed(program)) {
    const auto text = read_file(program);
    if (!text) return text.error();
    const bool official = text->find("REASONING_EFFORT_PROMPTS") != std::string::npos;
    return std::optional(official ? V4Encoding::official : V4Encoding::preview);
  }
  for (const auto& [key, value] : object->items()) {
    if (key.starts_with("dspark_")) return std::optional(V4Encoding::official);
  }
  return std::optional(V4Encoding::preview);
}

// Whether the folder is gpt-oss's.
Result<bool> is_gpt_oss(const fs::path& dir) {
  if (!is_listed(dir / "config.json")) return false;
  const auto object = read_object(dir / "config.json");
  if (!object) return object.error();
  const auto type = object->find("model_type");
  return type != object->end() && *type == "gpt_oss";
}

}  // namespace

struct ChatTemplate::Parsed {
  struct Body {
    JinjaBody body;
    std::set<std::string, std::less<>> words;  // outside of plain text, and texts in quotes

    bool reads(std::string_view name) const { return words.contains(name); }
  };
  std::string source;
  Body main;
  std::optional<Body> tool_use = std::nullopt;
  std::optional<V4Encoding> v4 = std::nullopt;  // instead of a template
  bool harmony = false;                         // instead of a template

  bool reads(std::string_view name) const {
    return main.reads(name) || (tool_use && tool_use->reads(name));
  }
  const Body& body_for(const nlohmann::ordered_json& variables) const {
    return tool_use && has_tools(variables) ? *tool_use : main;
  }
  static Body body_of(std::string_view source_text) {
    Body out{parse_jinja(source_text), {}};
    for (const JinjaToken& token : lex_jinja(source_text)) {
      const bool named = token.kind == JinjaTokenKind::word || token.kind == JinjaTokenKind::text;
      if (named) out.words.emplace(token.text);
    }
    return out;
  }
};

Result<ChatTemplate> ChatTemplate::parse(std::string_view source) { return parse(source, {}); }

Result<ChatTemplate> ChatTemplate::parse(std::string_view source, std::string_view tool_use) {
  for (const std::string_view text : {source, tool_use}) {
    if (text.size() <= kMaxSource) continue;
    return Error{ErrorCode::unsupported, "chat_template",
                 "at most " + std::to_string(kMaxSource) + " bytes", std::to_string(text.size()),
                 ""};
  }
  try {
    Parsed parsed{std::string(source), Parsed::body_of(source)};
    if (!tool_use.empty()) {
      parsed.tool_use = Parsed::body_of(tool_use);
      parsed.source += "\n" + std::string(tool_use);
    }
    ChatTemplate out;
    out.parsed_ = std::make_shared<const Parsed>(std::move(parsed));
    return out;
  } catch (const JinjaFailure& f) {
    return f.error;
  }
}

ChatTemplate ChatTemplate::deepseek_v4(V4Encoding encoding) {
  ChatTemplate out;
  Parsed parsed{std::string(kV4ToolsHead), {}};
  parsed.v4 = encoding;
  out.parsed_ = std::make_shared<const Parsed>(std::move(parsed));
  return out;
}

ChatTemplate ChatTemplate::harmony() {
  ChatTemplate out;
  Parsed parsed{"<|start|>assistant<|channel|>commentary to=functions.", {}};
  parsed.harmony = true;
  out.parsed_ = std::make_shared<const Parsed>(std::move(parsed));
  return out;
}

Result<void> ChatTemplate::check_tools(const nlohmann::ordered_json& variables) const {
  if (parsed_->v4 || parsed_->harmony || !has_tools(variables) ||
      parsed_->body_for(variables).reads("tools"))
    return {};
  return Error{ErrorCode::unsupported, "tools",
               "none, as the model's chat template never reads `tools`", "some",
               "a chat template that writes them into the prompt"};
}

bool ChatTemplate::reads_variable(std::string_view name) const {
  constexpr std::string_view kV4[] = {"encoding", "reasoning_effort", "thinking", "enable_thinking",
                                      "drop_thinking"};
  constexpr std::string_view kHarmony[] = {"reasoning_effort", "model_identity", "knowledge_cutoff",
                                           "conversation_start_date", "builtin_tools"};
  if (parsed_->v4) return std::ranges::find(kV4, name) != std::end(kV4);
  if (parsed_->harmony) return std::ranges::find(kHarmony, name) != std::end(kHarmony);
  return parsed_->reads(name);
}

bool ChatTemplate::reads_member(std::string_view name) const {
  constexpr std::string_view kV4[] = {"tool_calls",        "tools", "response_format", "reasoning",
                                      "reasoning_content", "task",  "wo_eos"};
  constexpr std::string_view kHarmony[] = {"tool_calls", "name", "reasoning", "reasoning_content",
                                           "thinking"};
  if (parsed_->v4) return std::ranges::find(kV4, name) != std::end(kV4);
  if (parsed_->harmony) return std::ranges::find(kHarmony, name) != std::end(kHarmony);
  return parsed_->reads(name);
}

std::string_view ChatTemplate::source() const { return parsed_->source; }

Result<std::string> ChatTemplate::render(const nlohmann::ordered_json& variables,
                                         const RenderOptions& options) const {
  if (!variables.is_object()) {
    return Error{ErrorCode::invalid_argument, "variables", "a JSON object", variables.type_name(),
                 ""};
  }
  const std::tm now = options.now ? *options.now : local_time();
  if (parsed_->v4 || parsed_->harmony) {
    try {
      return parsed_->v4 ? render_deepseek_v4(variables, *parsed_->v4)
                         : render_harmony(variables, now);
    } catch (const JinjaFailure& f) {
      return f.error;
    }
  }
  std::vector<std::pair<std::string, JinjaValue>> names;
  for (const auto& [key, value] : variables.items()) {
    auto v = JinjaValue::from_json(value, key);
    if (!v) return v.error();
    names.emplace_back(key, *std::move(v));
  }
  try {
    return render_jinja(parsed_->body_for(variables).body, names, options.limits, now);
  } catch (const JinjaFailure& f) {
    return f.error;
  }
}

namespace {

Result<void> take_tokens(const nlohmann::json& config, const fs::path& path,
                         ChatTemplateFile& out) {
  auto bos = token_of(config, "bos_token", path.string());
  if (!bos) return bos.error();
  auto eos = token_of(config, "eos_token", path.string());
  if (!eos) return eos.error();
  out.bos_token = *std::move(bos);
  out.eos_token = *std::move(eos);
  return {};
}

Result<ChatTemplateFile> read_chat_template(const fs::path& dir) {
  ChatTemplateFile out;
  std::optional<Sources> source;
  std::string field;
  const fs::path jinja = dir / "chat_template.jinja", json = dir / "chat_template.json",
                 config = dir / "tokenizer_config.json";
  const auto take = [&](const nlohmann::json& object, const fs::path& path) -> Result<void> {
    const auto it = object.find("chat_template");
    if (source || it == object.end() || it->is_null()) return {};
    field = path.string() + ": chat_template";
    auto sources = sources_of(*it, field);
    if (!sources) return sources.error();
    source = *std::move(sources);
    return {};
  };
  if (is_listed(jinja)) {
    auto text = read_file(jinja);
    if (!text) return text.error();
    if (const auto ok = check_utf8(*text, jinja.string()); !ok) return ok.error();
    source = Sources{*std::move(text), std::nullopt};
    field = jinja.string();
    const fs::path more = dir / "additional_chat_templates" / "tool_use.jinja";
    if (is_listed(more)) {
      auto tool_use = read_file(more);
      if (!tool_use) return tool_use.error();
      if (const auto ok = check_utf8(*tool_use, more.string()); !ok) return ok.error();
      source->tool_use = *std::move(tool_use);
    }
  } else if (is_listed(json)) {
    const auto object = read_object(json);
    if (!object) return object.error();
    if (const auto ok = take(*object, json); !ok) return ok.error();
  }
  if (is_listed(config)) {
    const auto object = read_object(config);
    if (!object) return object.error();
    if (const auto ok = take(*object, config); !ok) return ok.error();
    if (const auto ok = take_tokens(*object, config, out); !ok) return ok.error();
  }
  if (!source || source->main.find("<|channel|>") != std::string::npos) {
    const auto oss = is_gpt_oss(dir);
    if (!oss) return oss.error();
    if (*oss) {
      out.chat_template = ChatTemplate::harmony();
      return out;
    }
  }
  if (!source) {
    const auto v4 = find_v4_encoding(dir);
    if (!v4) return v4.error();
    if (*v4) {
      out.chat_template = ChatTemplate::deepseek_v4(**v4);
      return out;
    }
    return Error{ErrorCode::unsupported, dir.string(),
                 "chat_template.jinja, or a chat_template in tokenizer_config.json", "neither",
                 "a base model has none; give a raw prompt"};
  }
  auto parsed = ChatTemplate::parse(source->main, source->tool_use.value_or(""));
  if (!parsed) {
    Error e = parsed.error();
    e.field = field + ": " + e.field;
    return e;
  }
  out.chat_template = *std::move(parsed);
  return out;
}

}  // namespace

Result<ChatTemplateFile> load_chat_template(const fs::path& dir, std::string_view source,
                                            const std::string& field) {
  ChatTemplateFile out;
  if (const auto ok = check_utf8(source, field); !ok) return ok.error();
  auto parsed = ChatTemplate::parse(source);
  if (!parsed) {
    Error e = parsed.error();
    e.field = field + ": " + e.field;
    return e;
  }
  out.chat_template = *std::move(parsed);
  const fs::path config = dir / "tokenizer_config.json";
  if (!is_listed(config)) return out;
  const auto object = read_object(config);
  if (!object) return with_way_out(object.error());
  if (const auto ok = take_tokens(*object, config, out); !ok) return with_way_out(ok.error());
  return out;
}

Result<ChatTemplateFile> load_chat_template(const fs::path& dir) {
  auto file = read_chat_template(dir);
  return file ? std::move(file) : with_way_out(file.error());
}

}  // namespace lathe
