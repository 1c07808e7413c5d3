// PrefixCache: pages of earlier prompts, found by their tokens.
//
// A prompt is divided into blocks of granularity() tokens. That is the least number that is a whole
// number of pages in every layer group, so a shared prefix never ends inside a page. A block is
// looked up by a hash chained over its predecessors. A hit counts only if its tokens and its
// predecessor are equal, too. If a different block with the same hash is already cached, the new
// one is not stored.
//
// Invariants: the cache is an owner, once, of each page that it stores. No page is stored twice. If
// a block is in the cache, so is its predecessor. A page with another owner, or one that is being
// written, is never evicted.
//
// Windows. A group with window_tokens = W needs only the pages of the last W tokens before the
// boundary where a request resumes, or of those in the boundary's chunk (needed_tokens()). Any of
// its pages may be missing (-1): the request had released them before insert(), or they were
// evicted alone from inside a chain. match() ends at the deepest boundary that has these tokens in
// every such group. State that is needed only at a boundary, such as a compressor's, is a group
// with a window of one page.
//
// Beginnings of blocks. Keys of a token depend only on the tokens before it, so a prompt that
// leaves a cached one inside a block can copy the keys up to there
// (PrefixCacheOptions::beginnings).
//
// Not thread-safe: only the scheduling thread may call it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "layout/pages/index_units.h"
#include "layout/pages/needed_tokens.h"
#include "layout/pages/page_ledger.h"

namespace lathe {

struct PrefixGroup {
  PageLedger* ledger = nullptr;      // of the group's pages; must outlive the cache; one per group
  std::int32_t tokens_per_page = 0;  // tokens (not entries) per page
  std::int32_t window_tokens = 0;    // 0: every page is needed
  std::int32_t chunk_tokens = 0;     // the window begins at a multiple of this; 0: it slides

  /// Tokens before `boundary` that are in the window there.
  constexpr std::int64_t needed(std::int64_t boundary) const {
    return needed_tokens(boundary, window_tokens, chunk_tokens);
  }
};

/// Pages per group, in order of position.
using GroupPages = std::vector<std::vector<PageId>>;

struct PrefixMatch {
  std::int64_t tokens = 0;  // a multiple of granularity()
  GroupPages pages;         // [groups][tokens / tokens_per_page]; -1 before a group's window
  // Tokens of all cached blocks that the prompt begins with, at least `tokens`. It is more if
  // windows before the deeper boundaries have holes, so that no request can resume there.
  std::int64_t known = 0;
  // With PrefixCacheOptions::beginnings: how many tokens follow that are also in one cached block,
  // less than a block, and the page of each group with them: [groups], or empty.
  std::int64_t beginning = 0;
  std::vector<PageId> beginning_pages;
};

#define LATHE_PREFIX_EVENTS(X) X(stored) X(removed)
LATHE_ENUM(PrefixEventKind, LATHE_PREFIX_EVENTS)

/// A block was stored or removed. A predecessor is stored before its successors and removed after
/// them.
struct PrefixEvent {
  PrefixEventKind kind = PrefixEventKind::stored;
  std::uint64_t hash = 0;
  std::uint64_t parent_hash = 0;   // of the first block of a prompt: its root
  std::int64_t prefix_tokens = 0;  // tokens from the start of the prompt to the block's end
  bool operator==(const PrefixEvent&) const = default;
};

/// Hash of the empty prefix, unless a prompt has another root.
inline constexpr std::uint64_t kRootHash = 0;

/// XXH3-64 of the parent's hash (8 bytes) and the block's token ids (4 bytes each), little-endian.
std::uint64_t prefix_hash(std::uint64_t parent, std::span<const std::int32_t> tokens);

struct PrefixCacheOptions {
  std::function<std::uint64_t(std::uint64_t, std::span<const std::int32_t>)> hash = prefix_hash;
  std::function<void(const PrefixEvent&)> on_event = {};  // may be empty; must not call the cache
  // Whether match() looks for the beginning of a block after the last whole one. Every group must
  // then have pages of granularity() tokens.
  bool beginnings = false;
};

struct Evicted {
  std::int64_t blocks = 0;  // blocks that left the cache whole
  GroupPages pages;         // [groups] pages that became free, in order of release
};

class PrefixCache {
 public:
  /// Errors: no groups; tokens_per_page outside 1 to kMaxPageSize; a negative window; a null or
  /// repeated ledger; a granularity of more than kMaxSlots tokens; options.beginnings with pages of
  /// different sizes.
  static Result<PrefixCache> create(std::vector<PrefixGroup> groups,
                                    PrefixCacheOptions options = {});
  PrefixCache(PrefixCache&&) noexcept;
  PrefixCache& operator=(PrefixCache&&) noexcept;
  /// Releases all pages, without events.
  ~PrefixCache();

  /// Tokens of a block: lcm of the groups' tokens_per_page.
  std::int64_t granularity() const { return granularity_; }
  int group_count() const { return static_cast<int>(groups_.size()); }
  std::int64_t block_count() const { return static_cast<std::int64_t>(blocks_.size()); }
  /// Tokens of all blocks.
  std::int64_t token_count() const { return block_count() * granularity_; }
  /// Pages of a group in the cache. Precondition: 0 <= group < group_count().
  std::int64_t page_count(int group) const;

  /// The longest cached prefix of `tokens`, a beginning included, with at most max_tokens tokens.
  /// Pass tokens.size() - 1 if the last token must be computed. Adds an owner to each returned
  /// page; release() removes it. If nothing is found: 0 tokens and empty lists. Marks the prefix as
  /// most recently used. `root`: only prompts that were stored with the same one are found.
  /// O(tokens).
  PrefixMatch match(std::span<const std::int32_t> tokens, std::int64_t max_tokens,
                    std::uint64_t root = kRootHash);
  /// Removes the owners that match() added. Errors, with nothing changed: a match with another
  /// number of groups; a page without an owner besides the cache (already released).
  Result<void> release(const PrefixMatch& match);

  /// Stores the full blocks of `tokens`. pages[g] has at least the pages of group g for them. The
  /// cache becomes another owner of the pages that it stores. Blocks that are already cached keep
  /// their pages; missing window pages are added to them. At a hash collision it stops. Returns the
  /// number of tokens that are cached afterwards. O(tokens). Errors, with nothing changed: a wrong
  /// number of lists; a list that is too short; a hole in a group without a window; a page to store
  /// that has no owner, is being written, is listed twice or is cached for other tokens.
  Result<std::int64_t> insert(std::span<const std::int32_t> tokens,
                              std::span<const std::vector<PageId>> pages,
                              std::uint64_t root = kRootHash);

  /// The cached pages of the first `tokens_stored` tokens (the result of insert()), without adding
  /// owners. Missing pages are holes, so a request may not be able to resume there.
  /// [groups][tokens_stored / tokens_per_page]. O(tokens).
  GroupPages stored_pages(std::span<const std::int32_t> tokens, std::int64_t tokens_stored,
                          std::uint64_t root = kRootHash) const;

  /// Evicts until `pages` pages of `group` became free, or nothing more can be evicted. Evicts
  /// blocks without successors, least recently used first; among blocks used at the same time,
  /// deeper ones first. In a group with a window, blocks are ordered by when they were last part of
  /// the window of a match or an insert (never: first), and a block that has successors or other
  /// pages in use loses only its pages of this group. O(log blocks) per block visited, blocks in
  /// use included. Precondition: 0 <= group < group_count().
  Evicted evict(int group, std::int64_t pages);

  /// Removes all blocks, deepest first, with events. Other owners keep their pages.
  void clear();

 private:
  struct Block {
    std::uint64_t hash = 0;
    std::uint64_t root = 0;   // hash of the empty prefix of its prompts
    Block* parent = nullptr;  // null: first block of a prompt
    std::int64_t end = 0;     // tokens from the prompt's start to the block's end
    std::int64_t children = 0;
    std::int64_t used = 0;             // tick of the last match or insert through it
    std::vector<std::int64_t> window;  // [groups] tick when it was last part of a window
    std::vector<std::int32_t> tokens;  // [granularity]
    GroupPages pages;                  // [groups][granularity / tokens_per_page]
  };
  // Least recently used first, then deeper first. A use of a block is a use of its predecessor, so
  // a block sorts before its predecessor, and one pass over a set finds predecessors after they
  // have lost their successors.
  struct Key {
    std::int64_t tick = 0;
    std::int64_t end = 0;
    std::uint64_t hash = 0;
    Block* block = nullptr;
    bool operator<(const Key& o) const {
      if (tick != o.tick) return tick < o.tick;
      if (end != o.end) return end > o.end;
      return hash < o.hash;
    }
  };
  // Successors of one block are neighbours, in the order of their tokens.
  struct ByTokens {
    using is_transparent = void;
    struct Sought {
      std::uint64_t root;
      const Block* parent;
      std::span<const std::int32_t> tokens;
    };
    static Sought of(const Block* b) { return {b->root, b->parent, b->tokens}; }
    static const Sought& of(const Sought& s) { return s; }
    bool operator()(const auto& a, const auto& b) const { return before(of(a), of(b)); }
    static bool before(const Sought& a, const Sought& b);
  };
  static Key used_key(Block& b) { return {b.used, b.end, b.hash, &b}; }
  static Key window_key(Block& b, std::size_t g) { return {b.window[g], b.end, b.hash, &b}; }

  PrefixCache(std::vector<PrefixGroup> groups, PrefixCacheOptions options,
              std::int64_t granularity);
  std::size_t per_block(std::size_t g) const {
    return static_cast<std::size_t>(granularity_ / groups_[g].tokens_per_page);
  }
  std::vector<Block*> walk(std::span<const std::int32_t> tokens, std::int64_t blocks,
                           std::uint64_t root) const;
  std::size_t resumable(std::span<Block* const> chain) const;
  void touch(std::span<Block* const> chain);
  void use(Block& block);
  void match_beginning(const Block* parent, std::uint64_t root, std::span<const std::int32_t> rest,
                       PrefixMatch& match);
  Result<void> check_insert(std::span<const std::vector<PageId>> pages,
                            std::span<Block* const> known, std::size_t blocks) const;
  Block* add_block(std::uint64_t hash, std::uint64_t root, Block* parent,
                   std::span<const std::int32_t> tokens);
  void fill_pages(Block& block, std::span<const std::vector<PageId>> pages);
  bool only_ours(std::size_t g, PageId page) const;
  bool evictable(const Block& block) const;
  static bool empty(const Block& block);
  void drop_pages(Block& block, std::size_t g, bool shared_too, Evicted& out);
  void remove(Block& block, Evicted& out);
  void release_all();

  std::vector<PrefixGroup> groups_;
  PrefixCacheOptions options_;
  std::int64_t granularity_ = 0;
  std::int64_t tick_ = 0;
  std::unordered_map<std::uint64_t, std::unique_ptr<Block>> blocks_;  // by hash
  std::set<Block*, ByTokens> by_tokens_;   // all blocks, if options_.beginnings
  std::set<Key> leaves_;                   // blocks without successors, by used_key()
  std::vector<std::set<Key>> windows_;     // [groups] blocks with pages, by window_key()
  std::vector<std::vector<bool>> stored_;  // [groups][pages of the ledger] is in the cache
  std::vector<std::int64_t> held_;         // [groups] number of pages in the cache
};

}  // namespace lathe
