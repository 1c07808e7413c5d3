#include "server/grammar/schema/schema_document.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <span>
#include <utility>

#include "base/json.h"

namespace lathe::grammar {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostPathBytes = 400;
constexpr std::size_t kMostIgnored = 100;

// Keywords with a schema, a list of schemas, or named schemas.
constexpr std::string_view kSchemas[] = {"additionalProperties",
                                         "items",
                                         "contains",
                                         "not",
                                         "if",
                                         "then",
                                         "else",
                                         "propertyNames",
                                         "unevaluatedItems",
                                         "unevaluatedProperties",
                                         "allOf",
                                         "anyOf",
                                         "oneOf",
                                         "prefixItems"};
constexpr std::string_view kNamedSchemas[] = {"properties",  "patternProperties", "$defs",
                                              "definitions", "dependentSchemas",  "dependencies"};

bool is_one_of(std::string_view word, std::span<const std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool has_scheme(std::string_view uri) {
  const std::size_t colon = uri.find(':');
  return colon != std::string_view::npos && colon > 0 && uri.find_first_of("/?#") > colon;
}

// Joins a reference to the URI that it is relative to (RFC 3986, without dot segments).
std::string join_uri(const std::string& base, std::string_view reference) {
  if (reference.empty()) return base;
  if (has_scheme(reference)) return std::string(reference);
  while (reference.starts_with("./")) reference.remove_prefix(2);
  const std::string stem = base.substr(0, base.find('#'));
  if (reference[0] == '#') return stem + std::string(reference);
  const std::size_t host = stem.find("://");
  const std::size_t root =
      host == std::string::npos ? 0 : std::min(stem.find('/', host + 3), stem.size());
  if (reference[0] == '/') return stem.substr(0, root) + std::string(reference);
  const std::size_t slash = stem.rfind('/');
  const bool none = slash == std::string::npos || slash < root;
  return (none ? stem.substr(0, root) + (root > 0 ? "/" : "") : stem.substr(0, slash + 1)) +
         std::string(reference);
}

std::string without_empty_fragment(std::string uri) {
  if (uri.ends_with('#')) uri.pop_back();
  return uri;
}

std::string text_in(const Json& schema, const char* word) {
  const auto at = schema.find(word);
  return at != schema.end() && at->is_string() ? at->get<std::string>() : std::string();
}

// Decodes a step of a JSON pointer in a URI fragment.
std::string unescape(std::string_view step) {
  std::string out;
  for (std::size_t i = 0; i < step.size(); ++i) {
    unsigned byte = 0;
    const char* hex = step.data() + i + 1;
    if (step[i] == '%' && i + 2 < step.size() &&
        std::from_chars(hex, hex + 2, byte, 16).ptr == hex + 2) {
      out += static_cast<char>(byte);
      i += 2;
    } else {
      out += step[i];
    }
  }
  for (std::size_t i = 0; i + 1 < out.size(); ++i) {
    if (out[i] != '~') continue;
    out[i] = out[i + 1] == '1' ? '/' : '~';
    out.erase(i + 1, 1);
  }
  return out;
}

}  // namespace

std::string below(const std::string& path, std::string_view name) {
  std::string out = path + "." + (name.empty() ? "\"\"" : std::string(name));
  if (out.size() > kMostPathBytes) out = out.substr(0, kMostPathBytes) + "...";
  return out;
}

std::string item_of(const std::string& path, std::size_t i) {
  return path + fmt::format("[{}]", i);
}

SchemaDocument::SchemaDocument(const Json& root, const std::string& path, bool lenient,
                               std::vector<std::string>* ignored)
    : root_(root), root_path_(path), lenient_(lenient), ignored_(ignored) {
  name(root, path);
  index();
}

void SchemaDocument::fail(Error error) {
  if (!error_) error_ = std::move(error);
}

void SchemaDocument::malformed(const std::string& path, std::string wanted, const Json& got) {
  fail({ErrorCode::malformed, path, std::move(wanted), json_excerpt(got), ""});
}

void SchemaDocument::unsupported(const std::string& path, std::string wanted, std::string got) {
  fail({ErrorCode::unsupported, path, std::move(wanted), std::move(got), ""});
}

void SchemaDocument::cannot_follow(const std::string& path, std::string wanted, std::string got) {
  unsupported(path, std::move(wanted), std::move(got));
  ignore(path);
}

bool SchemaDocument::forgive() {
  if (!error_ || error_->code == ErrorCode::malformed) return false;
  error_.reset();
  return true;
}

bool SchemaDocument::ignore(const std::string& path) {
  if (!lenient_ || !forgive()) return false;
  note(path);
  return true;
}

void SchemaDocument::note(const std::string& path) {
  if (ignored_ == nullptr) return;
  const bool known = std::find(ignored_->begin(), ignored_->end(), path) != ignored_->end();
  if (!known && ignored_->size() < kMostIgnored) ignored_->push_back(path);
}

const std::string& SchemaDocument::path_of(const Json& schema) const {
  const auto at = paths_.find(&schema);
  return at == paths_.end() ? root_path_ : at->second;
}

const Json& SchemaDocument::name(const Json& schema, const std::string& path) {
  paths_.try_emplace(&schema, path);
  return schema;
}

const Json& SchemaDocument::name_below(const Json& parent, std::string_view keyword,
                                       const Json& schema) {
  return name(schema, below(path_of(parent), keyword));
}

// Finds all identifiers. Iterative, so a deep schema needs no stack.
void SchemaDocument::index() {
  todo_.push_back({&root_, "", root_path_});
  while (!todo_.empty()) {
    const Todo next = std::move(todo_.back());
    todo_.pop_back();
    if (next.schema->is_object()) index_one(next);
  }
  const bool several = std::any_of(dynamic_.begin(), dynamic_.end(),
                                   [](const auto& name) { return name.second > 1; });
  if (several) index_resources();
}

void SchemaDocument::index_one(const Todo& at) {
  const Json& schema = *at.schema;
  Todo own = at;
  if (const std::string id = text_in(schema, "$id"); !id.empty()) {
    own.base = without_empty_fragment(join_uri(at.base, id));
    by_uri_.try_emplace(own.base, &schema);
    name(schema, at.path);
  }
  for (const char* word : {"$anchor", "$dynamicAnchor"}) {
    const std::string anchor = text_in(schema, word);
    if (anchor.empty()) continue;
    by_uri_.try_emplace(own.base + "#" + anchor, &schema);
    name(schema, at.path);
    if (word[1] == 'd') ++dynamic_[anchor];
  }
  if (schema.contains("$ref") || schema.contains("$dynamicRef")) base_of_[&schema] = own.base;
  add_parts(own);
}

// Finds which schemas and anchors are in which resource.
void SchemaDocument::index_resources() {
  scopes_.emplace_back();
  scope_of_[{}] = 0;
  todo_.push_back({&root_, "", "", &root_});
  while (!todo_.empty()) {
    Todo at = std::move(todo_.back());
    todo_.pop_back();
    if (!at.schema->is_object()) continue;
    if (!text_in(*at.schema, "$id").empty()) at.resource = at.schema;
    resource_of_[at.schema] = at.resource;
    const std::string anchor = text_in(*at.schema, "$dynamicAnchor");
    if (!anchor.empty()) anchors_of_[at.resource].try_emplace(anchor, at.schema);
    add_parts(at);
  }
}

int SchemaDocument::enter(int scope, const Json& schema) {
  const auto resource = resource_of_.find(&schema);
  if (resource == resource_of_.end()) return scope;
  const auto own = anchors_of_.find(resource->second);
  if (own == anchors_of_.end()) return scope;
  Anchors all = scopes_[static_cast<std::size_t>(scope)];
  all.insert(own->second.begin(), own->second.end());  // keeps those that it has
  const auto [it, fresh] = scope_of_.try_emplace(all, static_cast<int>(scopes_.size()));
  if (fresh) scopes_.push_back(std::move(all));
  return it->second;
}

// The schemas inside a schema.
void SchemaDocument::add_parts(const Todo& of) {
  for (const auto& item : of.schema->items()) {
    const Json& value = item.value();
    if (is_one_of(item.key(), kSchemas)) {
      const std::string at = below(of.path, item.key());
      if (value.is_object()) todo_.push_back({&value, of.base, at, of.resource});
      for (std::size_t i = 0; value.is_array() && i < value.size(); ++i) {
        todo_.push_back({&value[i], of.base, item_of(at, i), of.resource});
      }
    } else if (value.is_object() && is_one_of(item.key(), kNamedSchemas)) {
      for (const auto& named : value.items()) {
        const std::string at = below(below(of.path, item.key()), named.key());
        todo_.push_back({&named.value(), of.base, at, of.resource});
      }
    }
  }
}

const Json* SchemaDocument::follow_pointer(const Json& from, std::string_view pointer,
                                           std::string path) {
  const Json* target = &from;
  while (!pointer.empty()) {
    if (pointer[0] != '/') return nullptr;
    pointer.remove_prefix(1);
    const std::size_t end = std::min(pointer.find('/'), pointer.size());
    const std::string step = unescape(pointer.substr(0, end));
    pointer.remove_prefix(end);
    std::size_t i = 0;
    const bool number =
        std::from_chars(step.data(), step.data() + step.size(), i).ptr == step.data() + step.size();
    if (target->is_object() && target->contains(step)) {
      target = &(*target)[step];
    } else if (target->is_array() && number && i < target->size()) {
      target = &(*target)[i];
    } else {
      return nullptr;
    }
    path = below(path, step);
  }
  name(*target, path);
  return target;
}

const Json* SchemaDocument::resolve(const Json& schema, const char* keyword, int scope) {
  const Json& ref = schema[keyword];
  const std::string path = below(path_of(schema), keyword);
  if (!ref.is_string()) {
    malformed(path, "a string", ref);
    return nullptr;
  }
  const auto base = base_of_.find(&schema);
  const std::string uri =
      join_uri(base == base_of_.end() ? "" : base->second, ref.get<std::string>());
  const std::size_t hash = std::min(uri.find('#'), uri.size());
  const std::string resource = uri.substr(0, hash);
  const std::string_view fragment = std::string_view(uri).substr(std::min(hash + 1, uri.size()));
  if (const auto at = by_uri_.find(uri); at != by_uri_.end() && !fragment.empty()) {
    const bool dynamic =
        keyword[1] == 'd' && !scopes_.empty() && text_in(*at->second, "$dynamicAnchor") == fragment;
    if (!dynamic) return at->second;
    const Anchors& anchors = scopes_[static_cast<std::size_t>(scope)];
    const auto first = anchors.find(std::string(fragment));
    return first == anchors.end() ? at->second : first->second;
  }
  const Json* target = nullptr;
  if (const auto at = by_uri_.find(resource); at != by_uri_.end()) {
    target = at->second;
  } else if (resource.empty()) {
    target = &root_;
  }
  const bool pointer = fragment.empty() || fragment[0] == '/';
  if (target == nullptr || !pointer) {
    unsupported(path, "#, a path in the schema as #/$defs/name, or an identifier in it",
                ref.get<std::string>());
    return nullptr;
  }
  const Json* out = follow_pointer(*target, fragment, path_of(*target));
  if (out == nullptr) malformed(path, "a path in the schema", ref);
  return out;
}

const Regex* SchemaDocument::pattern(const std::string& text, const std::string& path) {
  const auto [it, fresh] = patterns_.try_emplace(text);
  if (it->second) return &*it->second;
  auto regex = parse_regex(text, path);
  if (!regex) {
    fail(regex.error());
    ignore(path);
    return nullptr;
  }
  if (regex->floats) {
    cannot_follow(path, "a look-ahead after ^", "one without");
    return nullptr;
  }
  it->second = std::move(*regex);
  return &*it->second;
}

}  // namespace lathe::grammar
