#include "server/openai/fields.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/edit_distance.h"
#include "server/openai/field_readers.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

std::string places_text(unsigned places) {
  std::string out;
  for (const auto& [bit, letter] :
       {std::pair{kInChat, 'C'}, {kInCompletions, 'T'}, {kInGenerate, 'G'}, {kInSampling, 'S'}}) {
    out += (places & bit) != 0 ? letter : ' ';
  }
  return out;
}

FieldTable chosen_fields(FieldPlace place) {
  FieldTable out;
  for (const Field& f : request_fields()) {
    if ((f.places & place) != 0) out.push_back(f);
  }
  return out;
}

std::string field_line(const Field& f, std::string_view letters) {
  std::string line = fmt::format("{:28} {}  {}", f.name, letters, f.takes);
  if (f.absent == "required") line += "; required";
  if (!f.absent.empty() && f.absent != "required") line += fmt::format("; default {}", f.absent);
  if (!f.note.empty()) line += fmt::format("; {}", f.note);
  return line + "\n";
}

bool is_same(const Field& a, const Field& b) {
  return a.name == b.name && a.takes == b.takes && a.absent == b.absent && a.note == b.note;
}

}  // namespace

const FieldTable& fields_of(FieldPlace place) {
  static const FieldTable chat = chosen_fields(kInChat);
  static const FieldTable completions = chosen_fields(kInCompletions);
  static const FieldTable generate = chosen_fields(kInGenerate);
  static const FieldTable sampling = chosen_fields(kInSampling);
  switch (place) {
    case kInChat:
      return chat;
    case kInCompletions:
      return completions;
    case kInGenerate:
      return generate;
    case kInSampling:
      return sampling;
  }
  return chat;
}

Field chat_field(std::string_view name) {
  const FieldTable& chat = fields_of(kInChat);
  const auto at =
      std::find_if(chat.begin(), chat.end(), [&](const Field& f) { return f.name == name; });
  LATHE_CHECK(at != chat.end(), "chat has no such field");
  return *at;
}

std::optional<ApiError> read_fields(const Json& object, const FieldTable& fields,
                                    const std::string& prefix, const FieldLimits& limits,
                                    ApiRequest& out) {
  for (const Field& f : fields) {
    const auto value = object.find(std::string(f.name));
    if (value == object.end() || value->is_null()) continue;
    const std::string path = prefix + std::string(f.name);
    if (auto wrong = f.read(*value, {path, limits}, out)) return wrong;
  }
  for (const auto& item : object.items()) {
    const std::string& name = item.key();
    const bool known =
        std::any_of(fields.begin(), fields.end(), [&](const Field& f) { return f.name == name; });
    if (!known) out.ignored.push_back(prefix + name);
  }
  return std::nullopt;
}

std::optional<ApiError> refuse_ignored(const ApiRequest& request, const FieldTable& fields,
                                       const FieldLimits& limits) {
  if (!limits.strict || request.ignored.empty()) return std::nullopt;
  return bad_field(shown_path(request.ignored[0]), "a known name", "an unknown one",
                   nearest_field(fields, request.ignored[0]));
}

std::optional<ApiError> note_fields(const Json& body, std::initializer_list<std::string_view> known,
                                    const FieldLimits& limits, std::vector<std::string>& ignored) {
  for (const auto& item : body.items()) {
    const std::string& name = item.key();
    if (std::ranges::find(known, name) != known.end()) continue;
    if (limits.strict) {
      FieldTable fields;
      for (const std::string_view field : known) fields.emplace_back().name = field;
      return bad_field(shown_path(name), "a known name", "an unknown one",
                       nearest_field(fields, name));
    }
    ignored.push_back(name);
  }
  return std::nullopt;
}

std::string shown_path(std::string_view path) {
  constexpr std::size_t kMostBytes = 160;
  if (path.empty() || path.ends_with('.')) return std::string(path) + "\"\"";
  if (path.size() <= kMostBytes) return std::string(path);
  std::size_t end = kMostBytes;
  while ((static_cast<unsigned char>(path[end]) & 0xc0) == 0x80) --end;  // inside a character
  return std::string(path.substr(0, end)) + "...";
}

std::string nearest_field(const FieldTable& fields, std::string_view name) {
  if (name.empty() || name.size() > 64) return "";
  std::string_view best;
  std::size_t least = 3;  // names further away are not suggested
  for (const Field& f : fields) {
    const std::size_t d = edit_distance(name, f.name);
    if (d < least) {
      least = d;
      best = f.name;
    }
  }
  return best.empty() ? "" : fmt::format("did you mean {}?", best);
}

std::string describe_fields(std::span<const RouteFields> more) {
  std::string out = "C chat, T completions, G generate, S its sampling_params";
  for (const RouteFields& route : more) out += fmt::format(", {} {}", route.letter, route.what);
  out += "\n\n";
  const auto letters = [&](const Field& field, bool first) {
    std::string text = first ? places_text(field.places) : "    ";
    for (const RouteFields& route : more) {
      const bool has = std::any_of(route.fields.begin(), route.fields.end(),
                                   [&](const Field& f) { return is_same(f, field); });
      text += has ? route.letter : ' ';
    }
    return text;
  };
  for (const Field& f : request_fields()) out += field_line(f, letters(f, true));
  FieldTable own;  // of the other routes
  for (const RouteFields& route : more) {
    for (const Field& f : route.fields) {
      const auto same = [&](const Field& other) { return is_same(f, other); };
      if (std::any_of(request_fields().begin(), request_fields().end(), same)) continue;
      if (std::any_of(own.begin(), own.end(), same)) continue;
      out += field_line(f, letters(f, false));
      own.push_back(f);
    }
  }
  return out;
}

}  // namespace lathe
