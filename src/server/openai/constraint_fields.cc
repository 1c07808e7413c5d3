#include "server/openai/constraint_fields.h"

#include <fmt/format.h>

#include <utility>

#include "base/json.h"
#include "base/json_limit.h"
#include "io/text/quote.h"
#include "server/openai/object_reader.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;
using grammar::Source;

Source source_of(Source::Kind kind, const std::string& path) {
  Source out;
  out.kind = kind;
  out.path = path;
  return out;
}

// The schema that a text writes. A name that stands twice is an error as in the body itself.
std::optional<ApiError> read_schema_text(const Json& text, const FieldContext& at, Json& out) {
  const auto& written = text.get_ref<const std::string&>();
  try {
    auto read = read_watched_json<Json>(written, {}, /*exact=*/true);
    if (read.twice) return bad_field(at.path, "unique names", quote(*read.twice) + " twice");
    if (!read.too_deep && !read.too_large) {
      out = std::move(read.value);
      return std::nullopt;
    }
  } catch (const Json::parse_error&) {
  }
  if (const auto limit = find_json_limit(written, at.path)) return bad_field(*limit);
  return wrong_value(at, "a JSON schema", text);
}

// Reads a schema, or its text.
std::optional<ApiError> set_schema(const Json& value, const FieldContext& at, ApiRequest& out) {
  Source source = source_of(Source::Kind::json_schema, at.path);
  source.schema = value;
  if (value.is_string()) {
    if (auto wrong = read_schema_text(value, at, source.schema)) return wrong;
  }
  if (!source.schema.is_object() && !source.schema.is_boolean()) {
    return wrong_value(at, "a JSON schema", value);
  }
  return set_constraint(std::move(source), out);
}

std::optional<ApiError> set_regex(const Json& value, const FieldContext& at, ApiRequest& out) {
  if (!value.is_string() || value.get_ref<const std::string&>().empty()) {
    return wrong_value(at, "a regular expression", value);
  }
  Source source = source_of(Source::Kind::regex, at.path);
  source.regex = value.get<std::string>();
  return set_constraint(std::move(source), out);
}

std::optional<ApiError> set_rules(const Json& value, const FieldContext& at, ApiRequest& out) {
  if (!value.is_string() || value.get_ref<const std::string&>().empty()) {
    return wrong_value(at, "a grammar in EBNF or Lark", value);
  }
  Source source = source_of(Source::Kind::grammar, at.path);
  source.grammar = value.get<std::string>();
  return set_constraint(std::move(source), out);
}

std::optional<ApiError> set_choice(const Json& value, const FieldContext& at, ApiRequest& out) {
  Source source = source_of(Source::Kind::choice, at.path);
  if (!value.is_array() || value.empty()) return wrong_value(at, "a list of texts", value);
  for (std::size_t i = 0; i < value.size(); ++i) {
    const bool text = value[i].is_string() && !value[i].get_ref<const std::string&>().empty();
    if (!text) return wrong_value({fmt::format("{}[{}]", at.path, i), at.limits}, "text", value[i]);
    source.choices.push_back(value[i].get<std::string>());
  }
  return set_constraint(std::move(source), out);
}

ApiError unknown_option(const FieldContext& at, std::string_view name, std::string_view wanted) {
  const std::string path = at.path + "." + std::string(name);
  return {400, "unsupported_field", fmt::format("{}: wanted {}, got {}", path, wanted, name), path};
}

std::optional<ApiError> read_json_schema(const Json& value, const FieldContext& at,
                                         ApiRequest& out) {
  if (!value.is_object()) return wrong_value(at, "{name, schema, strict}", value);
  for (const auto& item : value.items()) {
    const std::string& name = item.key();
    if (name == "name" || name == "schema" || name == "strict" || name == "description") continue;
    return unknown_option(at, name, "name, schema, strict, description");
  }
  if (auto wrong = check_format_words(value, at.path)) return wrong;
  if (!value.contains("schema") || value["schema"].is_string()) {
    return wrong_value({at.path + ".schema", at.limits}, "a JSON schema",
                       value.value("schema", Json()));
  }
  return set_schema(value["schema"], {at.path + ".schema", at.limits}, out);
}

}  // namespace

std::optional<ApiError> set_constraint(Source source, ApiRequest& out) {
  if (out.constraint && out.constraint->key() != source.key()) {
    return bad_field(source.path, "one constraint",
                     out.constraint->path + " and " + source.path + ", which differ");
  }
  if (!out.constraint) out.constraint = std::make_shared<Source>(std::move(source));
  return std::nullopt;
}

Reader response_format() {
  const std::string takes =
      R"({"type": "text", "json_object", or "json_schema" with "json_schema": {name, schema}})";
  return {
      takes,
      [=](const Json& value, const FieldContext& at, ApiRequest& out) -> std::optional<ApiError> {
        if (!value.is_object()) return wrong_value(at, takes, value);
        const Json type = value.value("type", Json());
        const bool schema = type == "json_schema";
        if (!schema && type != "text" && type != "json_object") {
          return ApiError{400, "unsupported_field",
                          fmt::format("{}.type: wanted \"text\", \"json_object\" or "
                                      "\"json_schema\", got {}",
                                      at.path, type.is_null() ? "nothing" : excerpt(type)),
                          at.path + ".type"};
        }
        for (const auto& item : value.items()) {
          if (item.key() == "type" || item.value().is_null()) continue;
          if (schema && item.key() == "json_schema") continue;
          return unknown_option(at, item.key(), "type, and json_schema with type json_schema");
        }
        if (type == "text") return std::nullopt;
        if (type == "json_object") {
          return set_constraint(source_of(Source::Kind::json_object, at.path), out);
        }
        return read_json_schema(value.value("json_schema", Json()),
                                {at.path + ".json_schema", at.limits}, out);
      }};
}

Reader json_schema() { return {"a JSON schema, or its text", set_schema}; }

Reader regex() { return {"a regular expression", set_regex}; }

Reader grammar_rules() { return {"a grammar in EBNF or Lark", set_rules}; }

Reader choice() { return {"a list of texts", set_choice}; }

Reader structured_outputs() {
  const std::string takes = R"({"json": schema}, {"regex"}, {"choice": [texts]} or {"grammar"})";
  return {
      takes,
      [=](const Json& value, const FieldContext& at, ApiRequest& out) -> std::optional<ApiError> {
        if (!value.is_object()) return wrong_value(at, takes, value);
        for (const auto& item : value.items()) {
          const Json& option = item.value();
          if (option.is_null() || option == false) continue;
          const std::string path = at.path + "." + item.key();
          const FieldContext here{path, at.limits};
          std::optional<ApiError> wrong;
          if (item.key() == "json") {
            wrong = set_schema(option, here, out);
          } else if (item.key() == "regex") {
            wrong = set_regex(option, here, out);
          } else if (item.key() == "choice") {
            wrong = set_choice(option, here, out);
          } else if (item.key() == "grammar") {
            wrong = set_rules(option, here, out);
          } else if (item.key() == "json_object" && option == true) {
            wrong = set_constraint(source_of(Source::Kind::json_object, path), out);
          } else {
            return unknown_option(at, item.key(), "json, regex, choice or grammar");
          }
          if (wrong) return wrong;
        }
        if (!out.constraint) return wrong_value(at, takes, value);
        return std::nullopt;
      }};
}

}  // namespace lathe
