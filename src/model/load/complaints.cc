#include "model/load/complaints.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "model/config/quantization.h"

namespace lathe {
namespace {

constexpr std::size_t kNamesShown = 16;

}  // namespace

std::optional<Error> Complaints::error(const std::string& directory) const {
  std::string text;
  const auto list = [&](std::string_view what, const List& of) {
    if (of.count == 0) return;
    text += fmt::format("{}{} {}: {}", text.empty() ? "" : "; ", of.count, what,
                        fmt::join(of.shown, ", "));
    if (of.count > of.shown.size()) text += ", ...";
  };
  list("missing", missing_);
  list("unexpected", unexpected_);
  list("of another shape or dtype", misshapen_);
  if (text.empty()) return std::nullopt;
  return Error{ErrorCode::malformed, directory, "the tensors that config.json describes", text,
               unreadable_ ? "formats of weights: " + weight_formats_text()
                           : "mend config.json, or copy the model again"};
}

void Complaints::add(List& list, std::string text) {
  if (++list.count <= kNamesShown) list.shown.push_back(std::move(text));
}

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace lathe
