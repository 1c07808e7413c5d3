// SchemaDocument: a JSON schema, its references, and what went wrong in it.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "server/grammar/text/regex.h"

namespace lathe::grammar {

class SchemaDocument {
 public:
  using Json = nlohmann::ordered_json;

  /// `root` and `path`, which names it in errors, outlive the object. `lenient`: constraints that
  /// cannot be followed are left out. Their paths are appended to `ignored`, unless it is null.
  SchemaDocument(const Json& root, const std::string& path, bool lenient,
                 std::vector<std::string>* ignored);

  const Json& root() const { return root_; }

  /// The first error, of the whole schema.
  const std::optional<Error>& error() const { return error_; }
  bool failed() const { return error_.has_value(); }
  void malformed(const std::string& path, std::string wanted, const Json& got);
  void unsupported(const std::string& path, std::string wanted, std::string got);
  /// The keyword cannot be followed: an error, or a path in `ignored`.
  void cannot_follow(const std::string& path, std::string wanted, std::string got);
  void fail(Error error);
  /// Forgets the error of an attempt that has another way out, unless the schema is malformed.
  bool forgive();
  /// As forgive(), if constraints may be left out; then the path is in `ignored`.
  bool ignore(const std::string& path);
  /// The keyword is not followed in full, also where constraints may not be left out.
  void note(const std::string& path);

  /// A schema's path in errors, as given by name().
  const std::string& path_of(const Json& schema) const;
  /// Names a schema, unless it has a name.
  const Json& name(const Json& schema, const std::string& path);
  const Json& name_below(const Json& parent, std::string_view keyword, const Json& schema);

  /// The schema that `keyword` ($ref or $dynamicRef) of `schema` refers to; null after an error.
  /// `scope` is the schema's own, by enter().
  const Json* resolve(const Json& schema, const char* keyword, int scope);
  /// The scope of a schema that was reached from one of that scope (0: the root). A scope has, for
  /// each name of a $dynamicAnchor, the schema that a $dynamicRef means: the first one on the way.
  /// Always 0 if no name has two.
  int enter(int scope, const Json& schema);
  /// A parsed pattern, each once; null after an error, or if it cannot be followed.
  const Regex* pattern(const std::string& text, const std::string& path);

 private:
  struct Todo {
    const Json* schema;
    std::string base;  // URI
    std::string path;
    const Json* resource = nullptr;
  };
  // For each name of a $dynamicAnchor, its schema.
  using Anchors = std::map<std::string, const Json*>;

  void index();
  void index_one(const Todo& at);
  void index_resources();
  void add_parts(const Todo& of);
  const Json* follow_pointer(const Json& from, std::string_view pointer, std::string path);

  const Json& root_;
  const std::string& root_path_;
  bool lenient_;
  std::vector<std::string>* ignored_;
  std::optional<Error> error_;
  std::unordered_map<const Json*, std::string> paths_;
  std::unordered_map<std::string, std::optional<Regex>> patterns_;

  std::vector<Todo> todo_;
  std::unordered_map<std::string, const Json*> by_uri_;   // of $id and anchors
  std::unordered_map<const Json*, std::string> base_of_;  // of schemas with a reference
  std::unordered_map<std::string, int> dynamic_;          // names of $dynamicAnchor: how many
  // If a name has two: the schema with the $id around a schema, its anchors, and all scopes.
  std::unordered_map<const Json*, const Json*> resource_of_;
  std::unordered_map<const Json*, Anchors> anchors_of_;
  std::vector<Anchors> scopes_;
  std::map<Anchors, int> scope_of_;
};

/// The path of a member, shortened if it is long.
std::string below(const std::string& path, std::string_view name);
std::string item_of(const std::string& path, std::size_t i);

}  // namespace lathe::grammar
