// The table of request fields: it reads them, knows their names, and prints the reference in
// docs/server.md.
#pragma once

#include <functional>
#include <optional>
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

const std::vector<Field>& request_fields();

/// Reads an object's fields into `out`. `prefix` precedes their names in messages.
std::optional<ApiError> read_fields(const nlohmann::ordered_json& object, FieldPlace place,
                                    const std::string& prefix, const FieldLimits& limits,
                                    ApiRequest& out);

/// "did you mean NAME?", or "" if no known name is near.
std::string nearest_field(FieldPlace place, std::string_view name);

/// The table as text, a line per field.
std::string describe_fields();

}  // namespace lathe
