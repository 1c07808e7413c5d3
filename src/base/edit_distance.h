// The edit distance of two words, for "did you mean".
#pragma once

#include <cstddef>
#include <string_view>

namespace lathe {

/// Letters to insert, delete or replace to turn one into the other (Levenshtein). O(a x b).
std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace lathe
