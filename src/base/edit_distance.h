// How far two words are apart, for "did you mean".
#pragma once

#include <cstddef>
#include <string_view>

namespace lathe {

/// Letters to put in, take out or replace until one is the other (Levenshtein). O(a x b).
std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace lathe
