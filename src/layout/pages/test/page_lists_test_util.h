// Page lists of requests, for tests of lists and tables made from them.
#pragma once

#include <vector>

#include "layout/pages/page_table.h"

namespace lathe::layout_test {

using Lists = std::vector<std::vector<PageId>>;

inline std::vector<PageLists::List> spans(const Lists& lists) {
  return {lists.begin(), lists.end()};
}

/// The numbers of a span or vector of pages or slots.
template <class Row>
std::vector<int> ids(const Row& row) {
  std::vector<int> out;
  for (const auto i : row) out.push_back(i.value);
  return out;
}

}  // namespace lathe::layout_test
