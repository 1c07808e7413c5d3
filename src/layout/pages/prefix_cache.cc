#include "layout/pages/prefix_cache.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <unordered_set>

#include "layout/layout.h"

namespace lathe {
namespace {

Error bad(std::string field, std::string wanted, std::string offered, std::string hint = "") {
  return {ErrorCode::invalid_argument, std::move(field), std::move(wanted), std::move(offered),
          std::move(hint)};
}

}  // namespace

std::uint64_t prefix_hash(std::uint64_t parent, std::span<const std::int32_t> tokens) {
  std::vector<std::byte> text(sizeof parent + tokens.size_bytes());
  std::memcpy(text.data(), &parent, sizeof parent);
  if (!tokens.empty()) {
    std::memcpy(text.data() + sizeof parent, tokens.data(), tokens.size_bytes());
  }
  return XXH3_64bits(text.data(), text.size());
}

Result<PrefixCache> PrefixCache::create(std::vector<PrefixGroup> groups,
                                        PrefixCacheOptions options) {
  if (groups.empty()) return bad("groups", "at least one", "none");
  std::int64_t granularity = 1;
  std::unordered_set<const PageLedger*> ledgers;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const PrefixGroup& group = groups[g];
    if (group.ledger == nullptr || !ledgers.insert(group.ledger).second) {
      return bad(fmt::format("groups[{}].ledger", g), "a ledger of its own",
                 group.ledger == nullptr ? "null" : "that of an earlier group",
                 "pools with one page numbering are one group");
    }
    if (group.tokens_per_page < 1 || group.tokens_per_page > kMaxPageSize) {
      return bad(fmt::format("groups[{}].tokens_per_page", g), fmt::format("1 to {}", kMaxPageSize),
                 fmt::format("{}", group.tokens_per_page));
    }
    if (group.window_tokens < 0) {
      return bad(fmt::format("groups[{}].window_tokens", g), "0 (no window) or more",
                 fmt::format("{}", group.window_tokens));
    }
    granularity = std::lcm(granularity, std::int64_t{group.tokens_per_page});
    if (granularity > kMaxSlots) {
      return bad(fmt::format("groups[{}].tokens_per_page", g),
                 fmt::format("a least common multiple of at most {} tokens", kMaxSlots),
                 fmt::format("{}", granularity), "choose powers of two");
    }
  }
  for (std::size_t g = 0; options.beginnings && g < groups.size(); ++g) {
    if (groups[g].tokens_per_page == granularity) continue;
    return bad("options.beginnings", "false for pages of different sizes",
               fmt::format("groups[{}] has {} tokens per page of {}", g, groups[g].tokens_per_page,
                           granularity));
  }
  return PrefixCache(std::move(groups), std::move(options), granularity);
}

PrefixCache::PrefixCache(std::vector<PrefixGroup> groups, PrefixCacheOptions options,
                         std::int64_t granularity)
    : groups_(std::move(groups)),
      options_(std::move(options)),
      granularity_(granularity),
      windows_(groups_.size()),
      stored_(groups_.size()),
      held_(groups_.size(), 0) {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    stored_[g].resize(static_cast<std::size_t>(groups_[g].ledger->total()));
  }
}

PrefixCache::PrefixCache(PrefixCache&&) noexcept = default;

PrefixCache& PrefixCache::operator=(PrefixCache&& other) noexcept {
  if (this == &other) return *this;
  release_all();
  groups_ = std::move(other.groups_);
  options_ = std::move(other.options_);
  granularity_ = other.granularity_;
  tick_ = other.tick_;
  blocks_ = std::move(other.blocks_);
  by_tokens_ = std::move(other.by_tokens_);
  leaves_ = std::move(other.leaves_);
  windows_ = std::move(other.windows_);
  stored_ = std::move(other.stored_);
  held_ = std::move(other.held_);
  other.blocks_.clear();
  other.by_tokens_.clear();
  return *this;
}

PrefixCache::~PrefixCache() { release_all(); }

void PrefixCache::release_all() {
  options_.on_event = nullptr;
  if (!blocks_.empty()) clear();
}

std::int64_t PrefixCache::page_count(int group) const {
  LATHE_CHECK(group >= 0 && group < group_count(), "group of a PrefixCache");
  return held_[static_cast<std::size_t>(group)];
}

// The cached blocks at the start of `tokens`, at most `blocks`.
std::vector<PrefixCache::Block*> PrefixCache::walk(std::span<const std::int32_t> tokens,
                                                   std::int64_t blocks, std::uint64_t root) const {
  std::vector<Block*> chain;
  const auto size = static_cast<std::size_t>(granularity_);
  Block* parent = nullptr;
  for (std::int64_t b = 0; b < blocks; ++b) {
    const auto part = tokens.subspan(static_cast<std::size_t>(b) * size, size);
    const auto found = blocks_.find(options_.hash(parent ? parent->hash : root, part));
    if (found == blocks_.end()) break;
    Block* block = found->second.get();
    // The hash only finds a candidate. Compare its tokens, its root and its parent; the parent
    // stands for the tokens of all predecessors.
    if (block->parent != parent || block->root != root ||
        !std::equal(part.begin(), part.end(), block->tokens.begin())) {
      break;
    }
    chain.push_back(parent = block);
  }
  return chain;
}

// Number of blocks up to the deepest boundary of the chain where every window is complete.
std::size_t PrefixCache::resumable(std::span<Block* const> chain) const {
  std::vector<std::int64_t> run(groups_.size(), 0);  // tokens without a hole before the boundary
  std::size_t best = 0;
  for (std::size_t b = 0; b < chain.size(); ++b) {
    bool complete = true;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      if (groups_[g].window_tokens == 0) continue;
      for (PageId page : chain[b]->pages[g]) {
        run[g] = page.is_hole() ? 0 : run[g] + groups_[g].tokens_per_page;
      }
      complete &= run[g] >= groups_[g].needed(chain[b]->end);
    }
    if (complete) best = b + 1;
  }
  return best;
}

void PrefixCache::use(Block& block) {
  if (block.children == 0) leaves_.erase(used_key(block));
  block.used = tick_;
  if (block.children == 0) leaves_.insert(used_key(block));
}

bool PrefixCache::ByTokens::before(const Sought& a, const Sought& b) {
  if (a.root != b.root) return a.root < b.root;
  if (a.parent != b.parent) return std::less<const Block*>()(a.parent, b.parent);
  return std::ranges::lexicographical_compare(a.tokens, b.tokens);
}

// Finds the successor of `parent` that has the longest beginning of `rest`. In the order of tokens
// it is a neighbour of `rest`.
void PrefixCache::match_beginning(const Block* parent, std::uint64_t root,
                                  std::span<const std::int32_t> rest, PrefixMatch& match) {
  const auto next = by_tokens_.lower_bound(ByTokens::Sought{root, parent, rest});
  Block* best = nullptr;
  const auto consider = [&](Block* block) {
    if (block->root != root || block->parent != parent) return;
    const std::int64_t n = std::ranges::mismatch(block->tokens, rest).in2 - rest.begin();
    const bool whole = std::ranges::none_of(
        block->pages, [](const std::vector<PageId>& pages) { return pages.front().is_hole(); });
    if (n <= match.beginning || !whole) return;
    match.beginning = n;
    best = block;
  };
  if (next != by_tokens_.begin()) consider(*std::prev(next));
  if (next != by_tokens_.end()) consider(*next);
  if (best == nullptr) return;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    match.beginning_pages.push_back(best->pages[g].front());
    LATHE_CHECK(groups_[g].ledger->retain(match.beginning_pages.back()),
                "a page of the prefix cache has lost the cache's ownership");
  }
  if (parent == nullptr) ++tick_;  // otherwise it is used when its predecessor is
  use(*best);
}

// Marks the chain as used, and its last blocks as part of each group's window.
void PrefixCache::touch(std::span<Block* const> chain) {
  ++tick_;
  for (Block* block : chain) {
    use(*block);
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const std::int64_t end = chain.back()->end;
      if (groups_[g].window_tokens == 0 || block->end <= end - groups_[g].needed(end)) continue;
      const bool listed = windows_[g].erase(window_key(*block, g)) > 0;
      block->window[g] = tick_;
      if (listed) windows_[g].insert(window_key(*block, g));
    }
  }
}

PrefixMatch PrefixCache::match(std::span<const std::int32_t> tokens, std::int64_t max_tokens,
                               std::uint64_t root) {
  const auto most = std::min(static_cast<std::int64_t>(tokens.size()), max_tokens);
  std::vector<Block*> chain = walk(tokens, most / granularity_, root);
  PrefixMatch match;
  match.known = static_cast<std::int64_t>(chain.size()) * granularity_;
  chain.resize(resumable(chain));
  match.pages.resize(groups_.size());
  if (!chain.empty()) match.tokens = chain.back()->end;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    std::vector<PageId>& out = match.pages[g];
    for (const Block* block : chain) {
      out.insert(out.end(), block->pages[g].begin(), block->pages[g].end());
    }
    std::size_t first = 0;  // first page in the group's window
    if (groups_[g].window_tokens > 0) {
      first = static_cast<std::size_t>((match.tokens - groups_[g].needed(match.tokens)) /
                                       groups_[g].tokens_per_page);
    }
    std::fill_n(out.begin(), first, PageId());
    const auto kept = groups_[g].ledger->retain(std::span(out).subspan(first));
    LATHE_CHECK(kept, "a page of the prefix cache has lost the cache's ownership");
  }
  if (!chain.empty()) touch(chain);
  if (options_.beginnings && match.tokens == match.known) {
    const std::int64_t rest = std::min(most - match.tokens, granularity_ - 1);
    match_beginning(
        chain.empty() ? nullptr : chain.back(), root,
        tokens.subspan(static_cast<std::size_t>(match.tokens), static_cast<std::size_t>(rest)),
        match);
  }
  return match;
}

Result<void> PrefixCache::release(const PrefixMatch& match) {
  if (match.pages.size() != groups_.size()) {
    return bad("match.pages", fmt::format("{} groups", groups_.size()),
               fmt::format("{}", match.pages.size()));
  }
  GroupPages owned(groups_.size());
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const PageLedger& ledger = *groups_[g].ledger;
    std::vector<PageId> pages = match.pages[g];
    if (match.beginning > 0) pages.push_back(match.beginning_pages[g]);
    for (std::size_t i = 0; i < pages.size(); ++i) {
      const PageId page = pages[i];
      if (page.is_hole()) continue;
      // Otherwise an extra release would remove the cache's own owner.
      const bool ours =
          ledger.shape().holds(page) && stored_[g][static_cast<std::size_t>(page.value)];
      if (ledger.owners(page) <= (ours ? 1 : 0)) {
        return bad(fmt::format("match.pages[{}][{}]", g, i),
                   "a page with an owner besides the cache", fmt::format("page {}", page.value),
                   "a match is released once");
      }
      owned[g].push_back(page);
    }
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    LATHE_CHECK(groups_[g].ledger->release(owned[g]), "a page is listed twice in one match");
  }
  return {};
}

Result<void> PrefixCache::check_insert(std::span<const std::vector<PageId>> pages,
                                       std::span<Block* const> known, std::size_t blocks) const {
  if (pages.size() != groups_.size()) {
    return bad("pages", fmt::format("{} lists, one per group", groups_.size()),
               fmt::format("{}", pages.size()));
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::size_t per = per_block(g);
    if (pages[g].size() < blocks * per) {
      return bad(
          fmt::format("pages[{}]", g),
          fmt::format("{} pages ({} blocks of {} tokens)", blocks * per, blocks, granularity_),
          fmt::format("{}", pages[g].size()));
    }
    const PageLedger& ledger = *groups_[g].ledger;
    std::unordered_set<std::int32_t> seen;
    for (std::size_t i = 0; i < blocks * per; ++i) {
      const PageId page = pages[g][i];
      const bool there = i / per < known.size() && !known[i / per]->pages[g][i % per].is_hole();
      if (there || (page.is_hole() && groups_[g].window_tokens > 0)) continue;
      const auto refuse = [&](std::string wanted, std::string hint) {
        return bad(fmt::format("pages[{}][{}]", g, i), std::move(wanted),
                   fmt::format("page {}", page.value), std::move(hint));
      };
      if (ledger.owners(page) < 1) return refuse("a page with an owner", "");
      if (ledger.writers(page) > 0) {
        return refuse("a page that is not being written", "insert after end_write()");
      }
      if (stored_[g][static_cast<std::size_t>(page.value)]) {
        return refuse("a page that is not cached for other tokens", "");
      }
      if (!seen.insert(page.value).second) return refuse("every page once", "");
    }
  }
  return {};
}

PrefixCache::Block* PrefixCache::add_block(std::uint64_t hash, std::uint64_t root, Block* parent,
                                           std::span<const std::int32_t> tokens) {
  auto owned = std::make_unique<Block>();
  Block* block = owned.get();
  block->hash = hash;
  block->root = root;
  block->parent = parent;
  block->end = (parent ? parent->end : 0) + granularity_;
  block->window.resize(groups_.size(), 0);
  block->tokens.assign(tokens.begin(), tokens.end());
  block->pages.resize(groups_.size());
  for (std::size_t g = 0; g < groups_.size(); ++g) block->pages[g].resize(per_block(g));
  if (parent != nullptr && parent->children++ == 0) leaves_.erase(used_key(*parent));
  leaves_.insert(used_key(*block));
  blocks_.emplace(hash, std::move(owned));
  if (options_.beginnings) by_tokens_.insert(block);
  return block;
}

// Adds the pages that the block does not have. Pages are already checked.
void PrefixCache::fill_pages(Block& block, std::span<const std::vector<PageId>> pages) {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::size_t first =
        static_cast<std::size_t>((block.end - granularity_) / groups_[g].tokens_per_page);
    for (std::size_t i = 0; i < per_block(g); ++i) {
      const PageId page = pages[g][first + i];
      if (!block.pages[g][i].is_hole() || page.is_hole()) continue;
      LATHE_CHECK(groups_[g].ledger->retain(page), "a checked page");
      block.pages[g][i] = page;
      stored_[g][static_cast<std::size_t>(page.value)] = true;
      ++held_[g];
      if (groups_[g].window_tokens > 0) windows_[g].insert(window_key(block, g));
    }
  }
}

Result<std::int64_t> PrefixCache::insert(std::span<const std::int32_t> tokens,
                                         std::span<const std::vector<PageId>> pages,
                                         std::uint64_t root) {
  const auto size = static_cast<std::size_t>(granularity_);
  const std::size_t blocks = tokens.size() / size;
  std::vector<Block*> chain = walk(tokens, static_cast<std::int64_t>(blocks), root);
  if (auto ok = check_insert(pages, chain, blocks); !ok) return ok.error();

  for (Block* block : chain) fill_pages(*block, pages);
  while (chain.size() < blocks) {
    Block* parent = chain.empty() ? nullptr : chain.back();
    const std::uint64_t parent_hash = parent ? parent->hash : root;
    const auto part = tokens.subspan(chain.size() * size, size);
    const std::uint64_t hash = options_.hash(parent_hash, part);
    if (blocks_.contains(hash)) break;  // a collision: with equal tokens walk() would have found it
    Block* block = add_block(hash, root, parent, part);
    fill_pages(*block, pages);
    chain.push_back(block);
    if (options_.on_event) {
      options_.on_event({PrefixEventKind::stored, hash, parent_hash, block->end});
    }
  }
  if (!chain.empty()) touch(chain);
  return static_cast<std::int64_t>(chain.size() * size);
}

GroupPages PrefixCache::stored_pages(std::span<const std::int32_t> tokens,
                                     std::int64_t tokens_stored, std::uint64_t root) const {
  GroupPages out(groups_.size());
  for (const Block* block : walk(tokens, tokens_stored / granularity_, root)) {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      out[g].insert(out[g].end(), block->pages[g].begin(), block->pages[g].end());
    }
  }
  return out;
}

bool PrefixCache::only_ours(std::size_t g, PageId page) const {
  return groups_[g].ledger->owners(page) == 1 && groups_[g].ledger->writers(page) == 0;
}

bool PrefixCache::evictable(const Block& block) const {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (PageId page : block.pages[g]) {
      if (!page.is_hole() && !only_ours(g, page)) return false;
    }
  }
  return true;
}

// Releases a block's pages of a group. Pages with other owners or writers only if shared_too.
void PrefixCache::drop_pages(Block& block, std::size_t g, bool shared_too, Evicted& out) {
  bool left = false;
  for (PageId& page : block.pages[g]) {
    if (page.is_hole()) continue;
    if (!shared_too && !only_ours(g, page)) {
      left = true;
      continue;
    }
    const auto freed = groups_[g].ledger->release(page);
    LATHE_CHECK(freed, "a page of the prefix cache has lost the cache's ownership");
    if (*freed > 0) out.pages[g].push_back(page);
    stored_[g][static_cast<std::size_t>(page.value)] = false;
    --held_[g];
    page = PageId();
  }
  if (!left) windows_[g].erase(window_key(block, g));
}

// Removes a block without successors, and predecessors that then have neither successors nor pages.
void PrefixCache::remove(Block& block, Evicted& out) {
  Block* last = &block;
  while (last != nullptr) {
    for (std::size_t g = 0; g < groups_.size(); ++g) drop_pages(*last, g, true, out);
    leaves_.erase(used_key(*last));
    Block* parent = last->parent;
    if (parent != nullptr && --parent->children == 0) leaves_.insert(used_key(*parent));
    const PrefixEvent event{PrefixEventKind::removed, last->hash,
                            parent ? parent->hash : last->root, last->end};
    by_tokens_.erase(last);
    blocks_.erase(last->hash);
    ++out.blocks;
    if (options_.on_event) options_.on_event(event);
    // A leaf without pages (they were evicted earlier) would never be evicted, so remove it now.
    last = parent != nullptr && parent->children == 0 && empty(*parent) ? parent : nullptr;
  }
}

bool PrefixCache::empty(const Block& block) {
  for (const std::vector<PageId>& pages : block.pages) {
    for (const PageId page : pages) {
      if (!page.is_hole()) return false;
    }
  }
  return true;
}

Evicted PrefixCache::evict(int group, std::int64_t pages) {
  LATHE_CHECK(group >= 0 && group < group_count(), "group of a PrefixCache");
  const auto g = static_cast<std::size_t>(group);
  const bool window = groups_[g].window_tokens > 0;
  std::set<Key>& order = window ? windows_[g] : leaves_;
  Evicted out;
  out.pages.resize(groups_.size());
  for (auto it = order.begin(); it != order.end();) {
    if (static_cast<std::int64_t>(out.pages[g].size()) >= pages) break;
    const Key key = *it;
    if (key.block->children == 0 && evictable(*key.block)) {
      remove(*key.block, out);
    } else if (window) {
      drop_pages(*key.block, g, false, out);
    }
    it = order.upper_bound(key);
  }
  return out;
}

void PrefixCache::clear() {
  Evicted out;
  out.pages.resize(groups_.size());
  while (!leaves_.empty()) remove(*leaves_.begin()->block, out);
}

}  // namespace lathe
