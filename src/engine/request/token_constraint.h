// TokenConstraint: limits the tokens of an answer, for example to a grammar.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"

namespace lathe {

/// Its state is the answer so far, which alone determines what it allows. Used on the engine's
/// thread.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  /// Sets the bits [(vocab + 31) / 32] of the tokens that may follow and clears all others. Returns
  /// whether the answer may end here, that is, whether stop tokens are allowed. Errors: exhausted.
  virtual Result<bool> allowed(std::span<std::uint32_t> bits) = 0;
  /// Whether this stop token may end the answer where allowed() returns true. If none may, the
  /// answer ends where no token may follow.
  virtual bool may_end_with(std::int32_t /*stop*/) const { return true; }
  /// Appends a token to the answer. Returns false, with nothing changed, if it may not follow.
  virtual bool accept(std::int32_t token) = 0;
  virtual std::unique_ptr<TokenConstraint> clone() const = 0;
};

}  // namespace lathe
