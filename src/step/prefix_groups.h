// Finds shared prefixes in a step's page tables (attn/shared_prefixes.h). Requests of a prefix
// cache that begin with the same tokens have the same pages, so comparing page ids is enough.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attn/shared_prefixes.h"
#include "layout/pages/index_units.h"

namespace lathe {

/// A request of a step, as far as prefixes are concerned.
struct PrefixRequest {
  std::span<const PageId> pages;  // full pages before the request's first row; empty: never grouped
  std::int32_t first_row = 0;
  std::int32_t rows = 0;
};

/// What a step's groups save, in keys of one layer.
struct PrefixSavings {
  std::int64_t groups = 0;
  std::int64_t shared_keys = 0;  // keys of groups, each counted for every request
  std::int64_t read_keys = 0;    // keys of groups, each counted once
};

class PrefixGrouper {
 public:
  PrefixGrouper() = default;
  /// The most requests of a step. Allocates; find() does not.
  PrefixGrouper(const PrefixSharing& sharing, std::int32_t page_size, std::int64_t requests);

  /// Chooses the groups that pay and writes the step's lists. Without any, writes nothing and
  /// returns `none`. row_requests: [rows]; lists: of PrefixLists::size(requests, rows). Costs a few
  /// nanoseconds for each page that requests share.
  SharedPrefixes find(std::span<const PrefixRequest> requests,
                      std::span<const std::int32_t> row_requests, std::span<std::int32_t> lists);
  const PrefixSavings& savings() const { return savings_; }

 private:
  struct Group {
    std::size_t first, last;  // of order_
    std::int32_t begin, end;  // pages
    std::int32_t level;
    std::int64_t rows;
  };
  struct Node {
    std::size_t first, last;  // of order_: requests that share `begin` pages
    std::int32_t begin;       // pages that groups above have
    std::int32_t known;       // pages that are known to be equal
    std::int32_t level;
  };
  std::span<const PageId> pages(std::size_t i) const;
  std::int32_t common(const Node& node) const;
  bool repeats(const Node& node, std::int32_t page);
  void sort(const Node& node, std::int32_t page);
  void visit(const Node& node);
  void branch(const Node& node, std::int32_t page, std::int32_t begin, std::int32_t level);
  bool pays(const Node& node, std::int32_t end, std::int64_t parts);
  std::int64_t rows_of(const Node& node) const;
  std::int64_t blocks(std::int64_t rows) const;
  void write(PrefixLists<std::int32_t> lists, std::int64_t requests) const;

  PrefixSharing sharing_;
  std::int32_t page_size_ = 1;
  std::span<const PrefixRequest> requests_;
  std::vector<std::int32_t> order_;  // requests; a group's are neighbours
  std::vector<std::uint64_t> keys_;  // to sort by
  std::vector<std::int32_t> seen_;   // hash table of pages
  std::vector<Group> groups_;        // a parent before its children
  std::vector<Node> nodes_;          // to visit, the last one first
  std::int64_t visits_ = 0, saved_ = 0, cost_ = 0;
  PrefixSavings savings_;
};

}  // namespace lathe
