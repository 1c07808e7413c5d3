// SharedPrefixes: keys that several requests of a step have in common, because their page tables
// begin with the same pages. A kernel reads them once for a group of requests.
//
// Groups are nodes of a tree: a group's parent has more requests and earlier keys. A row has a
// place, called a slot, in each of its groups, up to kPrefixLevels of them. A row sees all keys of
// its groups, and then its request's own keys, from the group's end on:
//
//   keys        0 ....... 640 ........ 1024 ....
//   request 0   | group 0 |  group 1   | own       slots 0 (group 0) and 3 (group 1)
//   request 1   | group 0 |  group 1   | own       slots 1 and 4
//   request 2   | group 0 | own                    slot 2
#pragma once

#include <cstdint>
#include <span>

#include "base/enum.h"

namespace lathe {

inline constexpr std::int64_t kPrefixGroups = 64;  // most groups of a step
inline constexpr std::int64_t kPrefixLevels = 3;   // most groups of a row

/// How many M rows (query row x query head of a KV head) the largest group has. A captured graph
/// holds for one of these.
#define LATHE_PREFIX_SIZES(X) X(none) X(few) X(many)
LATHE_ENUM(PrefixSize, LATHE_PREFIX_SIZES)
inline constexpr std::int64_t kFewPrefixRows = 64;  // most M rows of `few`

/// A row's place in one of its groups. slot -1: none, and none after it.
struct PrefixPart {
  std::int32_t slot, group;
};

struct SharedPrefixes {
  PrefixSize size = PrefixSize::none;
  // The lists of prefix_lists(), one after another, in host memory or, for a device's kernels, in
  // its memory.
  std::span<const std::int32_t> lists;

  bool empty() const { return size == PrefixSize::none; }
};

/// The lists of a step, or of a call, with some requests and rows. Int: std::int32_t, or const.
template <class Int>
struct PrefixLists {
  Int* indptr = nullptr;      // [kPrefixGroups + 1] first slot of a group; unused groups have none
  Int* begins = nullptr;      // [kPrefixGroups] first key
  Int* ends = nullptr;        // [kPrefixGroups] one past the last key
  Int* tables = nullptr;      // [kPrefixGroups] a request of the group: its page table has the keys
  Int* own_begins = nullptr;  // [requests] first key that is in none of the request's groups
  Int* row_requests = nullptr;  // [rows] the row's request
  Int* slot_rows = nullptr;     // [kPrefixLevels * rows] the slot's row of q
  Int* parts = nullptr;         // [rows, kPrefixLevels] PrefixParts

  PrefixLists(Int* at, std::int64_t requests, std::int64_t rows) {
    const auto take = [&](Int*& list, std::int64_t count) {
      list = at;
      at += count;
    };
    take(indptr, kPrefixGroups + 1);
    take(begins, kPrefixGroups);
    take(ends, kPrefixGroups);
    take(tables, kPrefixGroups);
    take(own_begins, requests);
    take(row_requests, rows);
    take(slot_rows, kPrefixLevels * rows);
    take(parts, 2 * kPrefixLevels * rows);
  }
  static std::int64_t size(std::int64_t requests, std::int64_t rows) {
    return 4 * kPrefixGroups + 1 + requests + rows * (1 + 3 * kPrefixLevels);
  }
};

/// Whether steps of a plan look for shared prefixes, and what one layer's attention costs, in
/// picoseconds.
struct PrefixSharing {
  bool on = false;
  std::int64_t key_ps = 0;      // to read a key, all KV heads, that other requests read as well
  std::int64_t row_key_ps = 0;  // of a group's key for each of its rows: arithmetic
  std::int64_t row_ps = 0;      // of a row in a group: its parts, and what they add to its own call
  std::int64_t launch_ps = 0;   // of a step with groups
  std::int32_t row_heads = 1;   // M rows of a query row: query heads of a KV head

  bool operator==(const PrefixSharing&) const = default;
};

}  // namespace lathe
