#include "server/openai/object_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/openai/field_readers.h"

namespace lathe {

using Json = nlohmann::ordered_json;

Result<std::string, ApiError> read_string(const Json& object, const char* name,
                                          const std::string& path) {
  const auto at = object.find(name);
  const std::string here = path + "." + name;
  if (at == object.end()) return bad_field(here, "a string", "nothing");
  if (!at->is_string()) return bad_field(here, "a string", excerpt(*at));
  return at->get<std::string>();
}

Result<std::string, ApiError> read_optional_string(const Json& object, const char* name,
                                                   const std::string& path) {
  const auto at = object.find(name);
  if (at == object.end() || at->is_null()) return std::string();
  return read_string(object, name, path);
}

void note_unknown(const Json& object, std::initializer_list<std::string_view> known,
                  const std::string& path, std::vector<std::string>& ignored) {
  for (const auto& [name, value] : object.items()) {
    if (value.is_null() || std::find(known.begin(), known.end(), name) != known.end()) continue;
    ignored.push_back(path + "." + name);
  }
}

ApiError not_offered(const std::string& path, std::string_view wanted, const Json& got,
                     std::string_view hint) {
  return {400, "unsupported_field",
          fmt::format("{}: wanted {}, got {}{}{}", path, wanted,
                      got.is_null() ? "nothing" : excerpt(got), hint.empty() ? "" : "; ", hint),
          path};
}

}  // namespace lathe
