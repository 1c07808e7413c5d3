// PrefixCache: pages of past prompts, found again by the tokens that they hold.
//
// A prompt is cut into blocks of granularity() tokens, the least number that is a whole number of
// pages for every layer group, so that a shared prefix never ends inside a page. A block is found
// by a hash chained over its predecessors and used only after its tokens and predecessor have been
// compared; where another block has the same hash already, the later one is not cached.
//
// Invariants: the cache is one owner of each page it stores, and no page is stored twice. A block's
// predecessor is in the cache as long as the block is. A page with another owner, or one that is
// being written, is never evicted.
//
// Windows. A group that declares window_tokens W needs only the pages with the last W tokens before
// the boundary where a request resumes. Such a group's pages may be missing (-1) anywhere: inserted
// as holes, because the request had dropped them, or evicted on their own from the inside of a
// chain. match() ends at the deepest boundary whose last W tokens are there. State that is needed
// at a boundary only, such as a compressor's, is a group whose window is one page.
//
// Not thread-safe: the one thread that schedules calls it.
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
#include "layout/pages/page_ledger.h"

namespace lathe {

struct PrefixGroup {
  PageLedger* ledger = nullptr;      // where the pages live; outlives the cache, one per group
  std::int32_t tokens_per_page = 0;  // tokens of the prompt (not entries) that a page covers
  std::int32_t window_tokens = 0;    // 0: every page is needed
};

/// Pages per group, in order of position.
using GroupPages = std::vector<std::vector<PageId>>;

struct PrefixMatch {
  std::int64_t tokens = 0;  // a multiple of granularity()
  GroupPages pages;         // [groups][tokens / tokens_per_page]; -1 before a group's window
};

#define LATHE_PREFIX_EVENTS(X) X(stored) X(removed)
LATHE_ENUM(PrefixEventKind, LATHE_PREFIX_EVENTS)

/// A block was stored or removed. Predecessors are stored before and removed after their
/// successors.
struct PrefixEvent {
  PrefixEventKind kind = PrefixEventKind::stored;
  std::uint64_t hash = 0;
  std::uint64_t parent_hash = 0;   // kRootHash for the first block of a prompt
  std::int64_t prefix_tokens = 0;  // tokens from the start of the prompt to the block's end
  bool operator==(const PrefixEvent&) const = default;
};

/// Hash of the empty prefix.
inline constexpr std::uint64_t kRootHash = 0;

/// XXH3-64 of the parent's hash (8 bytes) and the block's token ids (4 bytes each), little-endian.
std::uint64_t prefix_hash(std::uint64_t parent, std::span<const std::int32_t> tokens);

struct PrefixCacheOptions {
  std::function<std::uint64_t(std::uint64_t, std::span<const std::int32_t>)> hash = prefix_hash;
  std::function<void(const PrefixEvent&)> on_event;  // may be empty; must not call the cache
};

struct Evicted {
  std::int64_t blocks = 0;  // blocks that left the cache whole
  GroupPages pages;         // [groups] what became free, in the order of their release
};

class PrefixCache {
 public:
  /// Errors: no groups; tokens_per_page outside 1 to kMaxPageSize; a negative window; a null or
  /// repeated ledger; a granularity of more than kMaxSlots tokens.
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
  /// Pages of a group that the cache holds. Precondition: 0 <= group < group_count().
  std::int64_t page_count(int group) const;

  /// The longest cached prefix of `tokens` that has at most max_tokens tokens; a caller that needs
  /// the last prompt token computed gives tokens.size() - 1. Every page returned has gained one
  /// owner, which release() takes away. Nothing found: 0 tokens, empty lists. It becomes the most
  /// recently used. O(tokens).
  PrefixMatch match(std::span<const std::int32_t> tokens, std::int64_t max_tokens);
  /// Ends the ownership that match() gave. Errors (nothing is changed then): a match with another
  /// number of groups, a page that has no owner left but the cache (released before).
  Result<void> release(const PrefixMatch& match);

  /// Stores the full blocks of `tokens`. pages[g] lists at least the pages of group g for them; the
  /// cache becomes one more owner of those it stores. Blocks that are there already keep their
  /// pages, and their missing window pages are filled in. Blocks from a hash collision on stay out.
  /// Returns the tokens of the prefix that is cached afterwards. O(tokens). Errors (nothing is
  /// changed then): a wrong number of lists, a list too short, a hole in a group without a window,
  /// a page to be stored that has no owner, is being written, is listed twice or is in the cache
  /// for other tokens.
  Result<std::int64_t> insert(std::span<const std::int32_t> tokens,
                              std::span<const std::vector<PageId>> pages);

  /// The pages of the first `tokens_stored` tokens of `tokens`, as insert() returned them, without
  /// an owner gained: holes where a group lacks them, whether or not a request could resume there.
  /// [groups][tokens_stored / tokens_per_page]. O(tokens).
  GroupPages stored_pages(std::span<const std::int32_t> tokens, std::int64_t tokens_stored) const;

  /// Frees pages until `pages` of them of `group` are free or no more can be: blocks without
  /// successors, least recently used first. In a group with a window the order is that in which
  /// blocks were last inside a window that was matched or inserted (never: first), and the pages of
  /// a block that has successors, or whose other pages are in use, go without the block. Deeper
  /// blocks first among those used at once. O(log blocks) for each block looked at, those in use
  /// included.
  /// Precondition: 0 <= group < group_count().
  Evicted evict(int group, std::int64_t pages);

  /// Releases everything, deepest blocks first, with events; pages with other owners stay theirs.
  void clear();

 private:
  struct Block {
    std::uint64_t hash = 0;
    Block* parent = nullptr;  // null: the block starts a prompt
    std::int64_t end = 0;     // tokens from the prompt's start to the block's end
    std::int64_t children = 0;
    std::int64_t used = 0;             // tick of the last match or insert through it
    std::vector<std::int64_t> window;  // [groups] tick of the last window that it was part of
    std::vector<std::int32_t> tokens;  // [granularity]
    GroupPages pages;                  // [groups][granularity / tokens_per_page]
  };
  // Least recently used first, deeper first: a block sorts before its predecessor, which is used
  // whenever the block is, so that one pass over a set meets blocks as they lose their successors.
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
  static Key used_key(Block& b) { return {b.used, b.end, b.hash, &b}; }
  static Key window_key(Block& b, std::size_t g) { return {b.window[g], b.end, b.hash, &b}; }

  PrefixCache(std::vector<PrefixGroup> groups, PrefixCacheOptions options,
              std::int64_t granularity);
  std::size_t per_block(std::size_t g) const {
    return static_cast<std::size_t>(granularity_ / groups_[g].tokens_per_page);
  }
  std::vector<Block*> walk(std::span<const std::int32_t> tokens, std::int64_t blocks) const;
  std::size_t resumable(std::span<Block* const> chain) const;
  void touch(std::span<Block* const> chain);
  Result<void> check_insert(std::span<const std::vector<PageId>> pages,
                            std::span<Block* const> known, std::size_t blocks) const;
  Block* add_block(std::uint64_t hash, Block* parent, std::span<const std::int32_t> tokens);
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
  std::set<Key> leaves_;                   // blocks without successors, by used
  std::vector<std::set<Key>> windows_;     // [groups] blocks with pages, by window
  std::vector<std::vector<bool>> stored_;  // [groups][pages of the ledger]
  std::vector<std::int64_t> held_;         // [groups] pages stored
};

}  // namespace lathe
