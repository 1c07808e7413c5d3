// TokenTable: a two-way map between ids and strings.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lathe {

/// An open-addressing hash table; its keys are in a vector, by id. At most half full, so a
/// look-up usually touches one slot and one string.
class TokenTable {
 public:
  /// `strings[id]`; empty strings are not found. Of equal strings, the lower id is found.
  TokenTable() : TokenTable(std::vector<std::string>{}) {}
  explicit TokenTable(std::vector<std::string> strings);

  std::int32_t find(std::string_view s) const;  // -1: none
  const std::vector<std::string>& strings() const { return strings_; }

 private:
  struct Slot {
    std::int32_t id = -1;
    std::uint32_t tag = 0;  // bits of the hash, which avoid most comparisons
  };
  std::vector<std::string> strings_;  // [ids]
  std::vector<Slot> slots_;           // [power of two]
  std::size_t longest_ = 0;
};

}  // namespace lathe
