// Classes of characters by Unicode's general category, as \p{...} in regular expressions.
#pragma once

#include <optional>
#include <string_view>

#include "server/grammar/text/characters.h"

namespace lathe::grammar {

/// The characters of `name`: a general category by its short or long name (L, Letter, Lu, Nd, ...;
/// also after gc= or General_Category=), Any or ASCII. nullopt: another name. The table is
/// utf8proc's.
std::optional<CharSet> unicode_class(std::string_view name);

}  // namespace lathe::grammar
