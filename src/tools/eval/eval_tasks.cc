#include "tools/eval/eval_tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/json.h"
#include "io/files/gzip.h"
#include "io/text/quote.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kDigits = "0123456789";

std::optional<EvalItem> parse_item(const std::string& line) {
  const Json j = read_json<Json>(line);
  if (!j.is_object()) return std::nullopt;
  EvalItem item;
  for (const auto& [key, to] : {std::pair{"prompt", &item.prompt},
                                {"response", &item.response},
                                {"answer", &item.answer}}) {
    const auto at = j.find(key);
    if (at == j.end() || !at->is_string()) return std::nullopt;
    *to = at->get<std::string>();
  }
  item.group = 0;
  for (const char* key : {"steps", "length"}) {
    if (const auto at = j.find(key); at != j.end() && at->is_number_integer()) {
      item.group = at->get<std::int64_t>();
    }
  }
  return item;
}

// The number after the last "####".
std::optional<std::string> marked_number(std::string_view text) {
  const std::size_t at = text.rfind("####");
  if (at == std::string_view::npos) return std::nullopt;
  text.remove_prefix(at + 4);
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  text = text.substr(0, text.find_first_not_of(kDigits));
  if (text.empty()) return std::nullopt;
  return std::string(text);
}

// The last word of the sentence "... KEY VALUE."
std::optional<std::string> marked_value(std::string_view text) {
  const std::size_t end = text.find('.');
  if (!text.starts_with("The pair is ") || end == std::string_view::npos) return std::nullopt;
  text = text.substr(0, end);
  return std::string(text.substr(text.rfind(' ') + 1));
}

std::optional<std::string> marked_list(std::string_view text) {
  constexpr std::string_view kStart = "Copy: ";
  if (!text.starts_with(kStart)) return std::nullopt;
  return std::string(text.substr(kStart.size()));
}

}  // namespace

Result<EvalTask> read_eval_task(EvalTaskKind kind, const std::string& directory,
                                std::int64_t limit) {
  const std::string path = fmt::format("{}/{}.jsonl.gz", directory, name(kind));
  const auto text = read_gzip_file(path);
  if (!text) {
    Error e = text.error();
    e.hint = "--task-dir names the folder of the test sets";
    return e;
  }
  EvalTask task{kind, {}};
  std::int64_t number = 0;
  for (std::size_t at = 0; at < text->size();) {
    if (limit > 0 && std::ssize(task.items) == limit) break;
    const std::size_t end = std::min(text->find('\n', at), text->size());
    const std::string line = text->substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    auto item = parse_item(line);
    if (!item) {
      return Error{ErrorCode::malformed, fmt::format("{}:{}", path, number),
                   R"({"prompt": TEXT, "response": TEXT, "answer": TEXT, ...})",
                   quote(line.substr(0, 80)), ""};
    }
    task.items.push_back(std::move(*item));
  }
  if (task.items.empty()) {
    return Error{ErrorCode::malformed, path, "at least one item", "none", ""};
  }
  return task;
}

Mark mark_answer(EvalTaskKind kind, const EvalItem& item, const std::string& text) {
  std::optional<std::string> marked;
  switch (kind) {
    case EvalTaskKind::arithmetic:
    case EvalTaskKind::chains:
      marked = marked_number(text);
      break;
    case EvalTaskKind::retrieval:
      marked = marked_value(text);
      break;
    case EvalTaskKind::copy:
      marked = marked_list(text);
      break;
  }
  if (!marked) return Mark::invalid;
  return *marked == item.answer ? Mark::right : Mark::wrong;
}

Interval wilson_interval(std::int64_t right, std::int64_t items) {
  if (items == 0) return {};
  constexpr double z = 1.959963984540054;
  const auto n = static_cast<double>(items);
  const double p = static_cast<double>(right) / n;
  const double scale = 1 / (1 + z * z / n);
  const double middle = (p + z * z / (2 * n)) * scale;
  const double half = z * std::sqrt(p * (1 - p) / n + z * z / (4 * n * n)) * scale;
  // The ends are exact where rounding would miss them by a bit.
  return {right == 0 ? 0.0 : middle - half, right == items ? 1.0 : middle + half};
}

}  // namespace lathe
