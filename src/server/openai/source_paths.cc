#include "server/openai/source_paths.h"

#include <utility>

namespace lathe {

void SourcePaths::add(std::string path, std::string source) {
  sources_.insert_or_assign(std::move(path), Source{std::move(source), false});
}

void SourcePaths::add_copy(std::string path, std::string source) {
  sources_.insert_or_assign(std::move(path), Source{std::move(source), true});
}

std::string SourcePaths::of(std::string_view path) const {
  for (std::string_view part = path; !part.empty();) {
    if (const auto at = sources_.find(std::string(part)); at != sources_.end()) {
      const auto& [source, copied] = at->second;
      return copied ? source + std::string(path.substr(part.size())) : source;
    }
    const std::size_t end = part.find_last_of(".[");
    part = part.substr(0, end == std::string_view::npos ? 0 : end);
  }
  return std::string(path);
}

ApiError SourcePaths::rename(ApiError error) const {
  const std::string source = of(error.param);
  if (error.message.starts_with(error.param)) {
    error.message.replace(0, error.param.size(), source);
  }
  error.param = source;
  return error;
}

}  // namespace lathe
