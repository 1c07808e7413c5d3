// The table of request fields: it reads them, knows their names, and prints the reference in
// docs/server.md.
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai/api_request.h"

namespace lathe {

/// Where a field may appear; a bit mask.
enum FieldPlace : unsigned {
  kInChat = 1,
  kInCompletions = 2,
  kInGenerate = 4,
  kInSampling = 8,  // sampling_params of /generate
};

/// What a field's reader gets besides the value, which is never null.
struct FieldContext {
  const std::string& path;
  const FieldLimits& limits;
};

using FieldRead = std::function<std::optional<ApiError>(const nlohmann::ordered_json& value,
                                                        const FieldContext& at, ApiRequest& out)>;

struct Field {
  std::string_view name;
  unsigned places = 0;
  std::string takes;        // accepted values, in words
  std::string_view absent;  // meaning of null or absence
  std::string_view note;
  FieldRead read;
};

using FieldTable = std::vector<Field>;

/// Of the routes chat, completions and generate.
const FieldTable& request_fields();
/// The fields that a place has.
const FieldTable& fields_of(FieldPlace place);
/// Chat's field of that name, for a route of another protocol that has it, too.
Field chat_field(std::string_view name);

/// Reads an object's fields into `out`, in the table's order, so that the same request is always
/// rejected for the same field. `prefix` precedes their names in messages.
std::optional<ApiError> read_fields(const nlohmann::ordered_json& object, const FieldTable& fields,
                                    const std::string& prefix, const FieldLimits& limits,
                                    ApiRequest& out);

/// With --strict-fields an unknown field is an error, with a hint at the nearest known one.
std::optional<ApiError> refuse_ignored(const ApiRequest& request, const FieldTable& fields,
                                       const FieldLimits& limits);

/// As read_fields() and refuse_ignored() treat unknown names, for a route without a table: adds the
/// names of a body's fields that are not among `known` to `ignored`.
std::optional<ApiError> note_fields(const nlohmann::ordered_json& body,
                                    std::initializer_list<std::string_view> known,
                                    const FieldLimits& limits, std::vector<std::string>& ignored);

/// A path of a client's as messages and headers show it: at most some 160 bytes, with "" for a name
/// that is empty.
std::string shown_path(std::string_view path);

/// "did you mean NAME?", or "" if no known name is near.
std::string nearest_field(const FieldTable& fields, std::string_view name);

/// Fields of a route that has a table of its own.
struct RouteFields {
  char letter;
  std::string_view what;
  const FieldTable& fields;
};

/// The tables as text, a line per field.
std::string describe_fields(std::span<const RouteFields> more = {});

}  // namespace lathe
