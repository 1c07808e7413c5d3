// Edit distance between two words, for "did you mean" hints.
#pragma once

#include <cstddef>
#include <string_view>

namespace lathe {

/// Number of letters to insert, delete or replace to turn one word into the other (Levenshtein).
/// O(a x b).
std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace lathe
