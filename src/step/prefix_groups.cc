#include "step/prefix_groups.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "step/prefix_sizes.h"
#include "step/step_util.h"

namespace lathe {
namespace {

using step_internal::at;

// Bounds the work for tables that branch at every page.
constexpr std::int64_t kMostVisits = 4 * kPrefixGroups;
constexpr std::int32_t kUnseen = -1;

bool same_pages(std::span<const PageId> a, std::span<const PageId> b, std::int32_t first,
                std::int32_t last) {
  return std::memcmp(a.data() + first, b.data() + first, at(last - first) * sizeof(PageId)) == 0;
}

// The first page from `first` on, up to `last`, that is not the same in both.
std::int32_t equal_pages(std::span<const PageId> a, std::span<const PageId> b, std::int32_t first,
                         std::int32_t last) {
  if (same_pages(a, b, first, last)) return last;
  constexpr std::int32_t kRun = 64;
  while (first + kRun <= last && same_pages(a, b, first, first + kRun)) first += kRun;
  while (a[at(first)] == b[at(first)]) ++first;
  return first;
}

}  // namespace

PrefixGrouper::PrefixGrouper(const PrefixSharing& sharing, std::int32_t page_size,
                             std::int64_t requests)
    : sharing_(sharing), page_size_(page_size) {
  order_.reserve(at(requests));
  keys_.reserve(at(requests));
  seen_.resize(std::bit_ceil(2 * at(requests) + 1));
  groups_.reserve(at(kPrefixGroups));
  nodes_.reserve(at(requests));
}

std::span<const PageId> PrefixGrouper::pages(std::size_t i) const {
  return requests_[at(order_[i])].pages;
}

std::int64_t PrefixGrouper::rows_of(const Node& node) const {
  std::int64_t rows = 0;
  for (std::size_t i = node.first; i < node.last; ++i) rows += requests_[at(order_[i])].rows;
  return rows;
}

std::int64_t PrefixGrouper::blocks(std::int64_t rows) const {
  return prefix_blocks(sharing_, rows);
}

// Pages that all requests of the node share.
std::int32_t PrefixGrouper::common(const Node& node) const {
  const auto pivot = pages(node.first);
  auto end = static_cast<std::int32_t>(pivot.size());
  for (std::size_t i = node.first + 1; i < node.last; ++i) {
    const auto other = pages(i);
    end = equal_pages(pivot, other, node.known,
                      std::min(end, static_cast<std::int32_t>(other.size())));
  }
  return end;
}

// Whether two requests of the node have the same page there.
bool PrefixGrouper::repeats(const Node& node, std::int32_t page) {
  std::fill(seen_.begin(), seen_.end(), kUnseen);
  const std::size_t mask = seen_.size() - 1;
  for (std::size_t i = node.first; i < node.last; ++i) {
    if (pages(i).size() <= at(page)) continue;
    const std::int32_t id = pages(i)[at(page)].value;
    std::size_t slot = static_cast<std::uint32_t>(id) * 0x9e3779b1u & mask;
    for (; seen_[slot] != kUnseen; slot = (slot + 1) & mask) {
      if (seen_[slot] == id) return true;
    }
    seen_[slot] = id;
  }
  return false;
}

// Makes requests with the same page there neighbours. Requests without such a page come first.
void PrefixGrouper::sort(const Node& node, std::int32_t page) {
  keys_.clear();
  for (std::size_t i = node.first; i < node.last; ++i) {
    const auto list = pages(i);
    const std::uint64_t id =
        list.size() <= at(page) ? 0 : static_cast<std::uint32_t>(list[at(page)].value) + 1u;
    keys_.push_back(id << 32 | static_cast<std::uint32_t>(order_[i]));
  }
  if (std::is_sorted(keys_.begin(), keys_.end())) return;
  std::sort(keys_.begin(), keys_.end());
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    order_[node.first + i] = static_cast<std::int32_t>(keys_[i] & 0xffffffffu);
  }
}

// Whether a group of the node's requests over pages node.begin to `end` saves enough. reads: how
// often these keys are read without it. Adds it then.
bool PrefixGrouper::pays(const Node& node, std::int32_t end, std::int64_t reads) {
  if (node.level == kPrefixLevels || std::ssize(groups_) == kPrefixGroups) return false;
  const std::int64_t rows = rows_of(node), keys = std::int64_t{end - node.begin} * page_size_;
  const std::int64_t saved = (reads - blocks(rows)) * keys * sharing_.key_ps;
  const std::int64_t cost = rows * (keys * sharing_.row_key_ps + sharing_.row_ps);
  if (!clearly_more(saved, cost)) return false;
  saved_ += saved;
  cost_ += cost;
  groups_.push_back({node.first, node.last, node.begin, end, node.level, rows});
  return true;
}

void PrefixGrouper::visit(const Node& node) {
  const std::int32_t end = common(node);
  const bool branches = repeats(node, end);
  if (branches) sort(node, end);
  // Requests that stay together would read these keys once for each of their blocks.
  std::int64_t reads = 0;
  for (std::size_t i = node.first; i < node.last;) {
    std::int64_t rows = requests_[at(order_[i])].rows;
    std::size_t next = i + 1;
    while (branches && next < node.last && pages(i).size() > at(end) &&
           pages(next)[at(end)] == pages(i)[at(end)]) {
      rows += requests_[at(order_[next++])].rows;
    }
    reads += blocks(rows);
    i = next;
  }
  const bool kept = pays(node, end, reads);
  if (branches) branch(node, end, kept ? end : node.begin, kept ? node.level + 1 : node.level);
}

// Adds a node for all requests of `node` that have the same page there.
void PrefixGrouper::branch(const Node& node, std::int32_t page, std::int32_t begin,
                           std::int32_t level) {
  for (std::size_t i = node.first; i < node.last;) {
    std::size_t next = i + 1;
    if (pages(i).size() > at(page)) {
      while (next < node.last && pages(next)[at(page)] == pages(i)[at(page)]) ++next;
      if (next - i > 1) nodes_.push_back({i, next, begin, page + 1, level});
    }
    i = next;
  }
}

SharedPrefixes PrefixGrouper::find(std::span<const PrefixRequest> requests,
                                   std::span<const std::int32_t> row_requests,
                                   std::span<std::int32_t> lists) {
  savings_ = {};
  groups_.clear();
  nodes_.clear();
  order_.clear();
  visits_ = saved_ = cost_ = 0;
  requests_ = requests;
  for (std::size_t r = 0; r < requests.size(); ++r) {
    if (!requests[r].pages.empty()) order_.push_back(static_cast<std::int32_t>(r));
  }
  const Node all{0, order_.size(), 0, 0, 0};
  if (!sharing_.on || !repeats(all, 0)) return {};
  sort(all, 0);
  branch(all, 0, 0, 0);
  for (; !nodes_.empty() && visits_ < kMostVisits; ++visits_) {
    const Node node = nodes_.back();
    nodes_.pop_back();
    visit(node);
  }
  if (!clearly_more(saved_, cost_ + sharing_.launch_ps)) return {};
  const auto rows = std::ssize(row_requests);
  const PrefixLists<std::int32_t> out(lists.data(), std::ssize(requests), rows);
  std::copy(row_requests.begin(), row_requests.end(), out.row_requests);
  std::fill_n(out.slot_rows, kPrefixLevels * rows, 0);
  std::fill_n(out.parts, 2 * kPrefixLevels * rows, -1);
  write(out, std::ssize(requests));
  SharedPrefixes found{.size = PrefixSize::few, .lists = lists};
  for (const Group& g : groups_) {
    if (g.rows * sharing_.row_heads > kFewPrefixRows) found.size = PrefixSize::many;
    const std::int64_t keys = std::int64_t{g.end - g.begin} * page_size_;
    savings_.shared_keys += keys * static_cast<std::int64_t>(g.last - g.first);
    savings_.read_keys += keys;
  }
  savings_.groups = std::ssize(groups_);
  return found;
}

void PrefixGrouper::write(PrefixLists<std::int32_t> lists, std::int64_t requests) const {
  std::fill_n(lists.own_begins, requests, 0);
  std::int32_t slot = 0;
  for (std::size_t g = 0; g < at(kPrefixGroups); ++g) {
    lists.indptr[g] = slot;
    lists.begins[g] = lists.ends[g] = lists.tables[g] = 0;
    if (g >= groups_.size()) continue;
    const Group& group = groups_[g];
    lists.begins[g] = group.begin * page_size_;
    lists.ends[g] = group.end * page_size_;
    lists.tables[g] = order_[group.first];
    for (std::size_t i = group.first; i < group.last; ++i) {
      const PrefixRequest& request = requests_[at(order_[i])];
      lists.own_begins[order_[i]] = lists.ends[g];
      for (std::int32_t j = 0; j < request.rows; ++j, ++slot) {
        const std::int32_t row = request.first_row + j;
        lists.slot_rows[slot] = row;
        std::int32_t* part = lists.parts + 2 * (row * kPrefixLevels + group.level);
        part[0] = slot;
        part[1] = static_cast<std::int32_t>(g);
      }
    }
  }
  lists.indptr[kPrefixGroups] = slot;
}

}  // namespace lathe
