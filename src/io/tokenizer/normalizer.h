// Normalises text before it is split: Unicode normal forms, replacements, lower case.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/enum.h"
#include "base/result.h"
#include "io/tokenizer/charsmap.h"
#include "io/tokenizer/regex.h"

namespace lathe {

// Names as in tokenizer.json.
#define LATHE_NORMALIZER_KINDS(X) \
  X(NFC) X(NFD) X(NFKC) X(NFKD) X(Lowercase) X(Prepend) X(Replace) X(Precompiled)
LATHE_ENUM(NormalizerKind, LATHE_NORMALIZER_KINDS)

class Normalizer {
 public:
  struct Step {
    NormalizerKind kind = NormalizerKind::NFC;
    std::string text;                  // Prepend: the prefix; Replace: the replacement
    std::optional<Regex> regex;        // Replace
    std::optional<Charsmap> charsmap;  // Precompiled
  };

  Normalizer() = default;  // changes nothing
  explicit Normalizer(std::vector<Step> steps) : steps_(std::move(steps)) {}

  bool empty() const { return steps_.empty(); }

  /// `text` is valid UTF-8. Returns `text` itself or a view into `buffer`. Linear in the text's
  /// size, except for Replace patterns. Errors: exhausted: a text that grows to more than 64 times
  /// its size and 4 KiB; a pattern that stops at its limit.
  Result<std::string_view> apply(std::string_view text, std::string& buffer) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace lathe
