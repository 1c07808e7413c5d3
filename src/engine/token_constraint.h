// TokenConstraint: what tokens an answer may have, for answers whose text has to follow a grammar.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"

namespace lathe {

/// Its state is the answer so far, and what it allows follows from that alone. The engine's thread
/// uses it.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  /// Sets the bits [(vocab + 31) / 32] of the tokens that may follow and clears those of all other
  /// tokens. Whether the answer may end here, which decides about stop tokens. Errors: exhausted.
  virtual Result<bool> allowed(std::span<std::uint32_t> bits) = 0;
  /// Takes the answer's next token. False, with nothing changed: it may not follow.
  virtual bool accept(std::int32_t token) = 0;
  virtual std::unique_ptr<TokenConstraint> clone() const = 0;
};

}  // namespace lathe
