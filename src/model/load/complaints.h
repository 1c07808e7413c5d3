// Problems with a checkpoint's tensors, reported all at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace lathe {

class Complaints {
 public:
  /// quantised: of a matrix in a format.
  void missing(const std::string& name, bool quantised = false) {
    add(missing_, name);
    unreadable_ |= quantised;
  }
  void unexpected(const std::string& name, bool quantised = false) {
    add(unexpected_, name);
    unreadable_ |= quantised;
  }
  void misshapen(std::string text) { add(misshapen_, std::move(text)); }
  /// Of a quantised matrix.
  void unreadable(std::string text) {
    misshapen(std::move(text));
    unreadable_ = true;
  }

  /// One list of all complaints, or nothing. directory: of the checkpoint.
  std::optional<Error> error(const std::string& directory) const;

 private:
  struct List {
    std::size_t count = 0;
    std::vector<std::string> shown;
  };
  static void add(List& list, std::string text);
  List missing_, unexpected_, misshapen_;
  bool unreadable_ = false;
};

/// "[2, 3]".
std::string shape_text(std::span<const std::int64_t> shape);

}  // namespace lathe
