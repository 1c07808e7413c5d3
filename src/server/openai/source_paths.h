// SourcePaths: where a client wrote what a request of chat has, which is made from it.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>

#include "server/openai/api_error.h"

namespace lathe {

/// The other protocols' routes record the client's own path of each part that they translate, so
/// that errors and ignored names have it. Chat's own requests record nothing.
class SourcePaths {
 public:
  /// The client wrote at `source` what chat has at `path` and below.
  void add(std::string path, std::string source);
  /// As add(), but the value is the same in both, and so are paths below.
  void add_copy(std::string path, std::string source);

  /// The client's path of chat's, by its longest part that was recorded. Without one it is the
  /// client's own.
  std::string of(std::string_view path) const;
  /// The error with the client's path.
  ApiError rename(ApiError error) const;

 private:
  struct Source {
    std::string path;
    bool copied;
  };
  std::unordered_map<std::string, Source> sources_;  // by chat's path
};

}  // namespace lathe
