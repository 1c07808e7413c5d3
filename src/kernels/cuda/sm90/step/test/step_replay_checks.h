// Checks each builder, captured once and replayed over batches of several sizes, against its CPU
// function. step_rows() is checked in step_batch_checks.h. A Device is as there.
#pragma once

#include <fmt/format.h>

#include "kernels/cuda/sm90/step/test/step_checks.h"

namespace lathe::cuda {

template <class Device>
void check_list_replays(Device& device) {
  std::mt19937 rng(51);
  constexpr std::int64_t kRequests = 60, kMostPages = 12, kWidth = 16;
  constexpr std::int64_t kTokens = kRequests * kMostPages * 16, kSlots = 200;
  auto indptr = device.array(std::vector<std::int64_t>(kRequests + 1));
  auto pages = device.array(std::vector<PageId>(kRequests * kMostPages));
  auto lengths = device.array(std::vector<std::int32_t>(kRequests));
  auto starts = device.array(std::vector<std::int32_t>(kRequests));
  auto page_starts = device.array(std::vector<std::int32_t>(kRequests));
  const auto table = device.array(std::vector<PageId>(kRequests * kWidth));
  const auto slot_table = device.array(std::vector<Slot>(kRequests * kSlots));
  const auto slot_indptr = device.array(std::vector<std::int64_t>(kRequests + 1));
  const auto slots = device.array(std::vector<Slot>(kTokens));
  const auto page_indptr = device.array(std::vector<std::int64_t>(kRequests + 1));
  const auto listed = device.array(std::vector<PageId>(kRequests * kMostPages));
  auto workspace = device.array(std::vector<std::int64_t>(1));
  const DevicePageLists there{indptr.span(), pages.span()};
  const PoolShape pool = RandomLists::kPool;
  const auto replay = device.capture([&](Device& d) -> Result<void> {
    if (auto ok =
            d.page_table(there, pool, lengths.span(), {table.span().data(), kRequests, kWidth});
        !ok) {
      return ok;
    }
    if (auto ok = d.slot_table(there, pool, {lengths.span(), starts.span()},
                               {slot_table.span().data(), kRequests, kSlots});
        !ok) {
      return ok;
    }
    if (auto ok = d.ragged_slots(there, pool, {lengths.span(), starts.span()},
                                 {slot_indptr.span(), slots.span()}, workspace.span());
        !ok) {
      return ok;
    }
    return d.ragged_pages(there, pool, {lengths.span(), page_starts.span()},
                          {page_indptr.span(), listed.span()}, workspace.span());
  });
  for (std::int64_t requests : {std::int64_t{60}, std::int64_t{0}, std::int64_t{7}, kRequests}) {
    const RandomLists lists(rng, requests, kMostPages, false);
    std::vector<std::int32_t> host_lengths, host_starts, host_page_starts;
    std::vector<PageLists::List> used;
    const auto csr = PageLists::csr(lists.indptr, lists.pages);
    for (std::int64_t r = 0; r < requests; ++r) {
      const std::int64_t tokens = lists.count(r) * 16;
      host_starts.push_back(below(rng, tokens + 1));
      host_page_starts.push_back(host_starts.back() / 16 * 16);
      host_lengths.push_back(below(rng, tokens - host_starts.back() + 1));
      used.push_back((*csr)[r].first(static_cast<std::size_t>((host_lengths.back() + 15) / 16)));
    }
    indptr.write(filled(lists.indptr, kRequests + 1, lists.indptr.back()));
    pages.write(filled(lists.pages, kRequests * kMostPages, PageId(1)));
    lengths.write(filled(host_lengths, kRequests, 0));
    starts.write(filled(host_starts, kRequests, 0));
    page_starts.write(filled(host_page_starts, kRequests, 0));
    expect_ok(replay());

    const TokenRanges ranges{host_lengths, host_starts};
    const auto wanted_table =
        lathe::page_table(PageLists(used), pool, {.width = kWidth, .requests = kRequests});
    const auto wanted_slots =
        lathe::slot_table(*csr, pool, ranges, {.width = kSlots, .requests = kRequests});
    const auto ragged = lathe::ragged_slots(*csr, pool, ranges);
    const auto ragged_pages = lathe::ragged_pages(*csr, pool, {host_lengths, host_page_starts});
    ASSERT_TRUE(wanted_table.ok() && wanted_slots.ok() && ragged.ok() && ragged_pages.ok());
    EXPECT_EQ(table.read(), wanted_table->entries) << requests;
    EXPECT_EQ(slot_table.read(), wanted_slots->entries) << requests;
    EXPECT_EQ(slot_indptr.read(), filled(ragged->indptr, kRequests + 1, ragged->indptr.back()));
    EXPECT_EQ(slots.read(), filled(ragged->items, kTokens, Slot())) << requests;
    EXPECT_EQ(page_indptr.read(),
              filled(ragged_pages->indptr, kRequests + 1, ragged_pages->indptr.back()));
    EXPECT_EQ(listed.read(), filled(ragged_pages->items, kRequests * kMostPages, PageId()));
  }
}

/// Rows beyond the batch have no position and no request.
template <class Device>
void check_transform_replays(Device& device) {
  std::mt19937 rng(52);
  constexpr std::int64_t kRows = 90, kWidth = 70, kRequests = 20, kTableWidth = 8;
  constexpr std::int64_t kCompact = 4000, kEntries = 30;
  constexpr std::int32_t kWindow = 20, kRatio = 4;
  constexpr PoolShape kPool{16, 500};
  constexpr auto kListed = static_cast<std::size_t>(kRows * kWidth);
  constexpr std::int64_t kCombined = combined_width(kEntries, kWindow, 64);
  auto positions = device.array(std::vector<LocalPos>(kListed));
  auto lens = device.array(std::vector<std::int32_t>(kRows));
  auto request = device.array(std::vector<std::int32_t>(kRows));
  auto offset = device.array(std::vector<std::int32_t>(kRows));
  auto table = device.array(std::vector<PageId>(kRequests * kTableWidth));
  auto query = device.array(std::vector<LocalPos>(kRows));
  auto entries = device.array(std::vector<LocalPos>(kRows * kEntries));
  auto start = device.array(std::vector<std::int32_t>(kRows));
  const auto slots = device.array(std::vector<Slot>(kListed));
  const auto ragged = device.array(std::vector<RaggedRow>(kListed));
  const auto combined = device.array(std::vector<RaggedRow>(kRows * kCombined));
  const auto combined_lens = device.array(std::vector<std::int32_t>(kRows));
  const auto combination = [](auto p, auto e, auto bases, auto starts) {
    CombineLists c;
    c.positions = p;
    c.window = kWindow;
    c.ratio = kRatio;
    c.entries = e;
    c.entry_width = kEntries;
    c.entry_base = c.window_base = bases;
    c.window_start = starts;
    c.compact_rows = kCompact;
    c.multiple = 64;
    return c;
  };
  const auto replay = device.capture([&](Device& d) -> Result<void> {
    const LocalLists lists{positions.span(), kWidth, lens.span()};
    if (auto ok =
            d.local_to_slots(lists, request.span(), {table.span().data(), kRequests, kTableWidth},
                             kPool, slots.span());
        !ok) {
      return ok;
    }
    if (auto ok = d.local_to_ragged(lists, offset.span(), kCompact, ragged.span()); !ok) return ok;
    return d.combine_index_lists(
        combination(query.span(), entries.span(), offset.span(), start.span()), combined.span(),
        combined_lens.span());
  });
  for (std::int64_t rows : {kRows, std::int64_t{0}, std::int64_t{11}, kRows}) {
    std::vector<LocalPos> host_positions(kListed), host_query(kRows), host_entries;
    std::vector<std::int32_t> host_lens(kRows, 0), host_request(kRows, -1), host_offset(kRows, 0),
        host_start(kRows, 0);
    std::vector<PageId> host_table;
    for (std::int64_t i = 0; i < kRequests * kTableWidth; ++i) {
      host_table.emplace_back(below(rng, 510) - 10);
    }
    for (std::int64_t i = 0; i < kRows * kEntries; ++i) {
      host_entries.emplace_back(below(rng, 40) - 5);
    }
    for (std::int64_t t = 0; t < rows; ++t) {
      const auto row = static_cast<std::size_t>(t);
      for (std::int64_t i = 0; i < kWidth; ++i) {
        host_positions[static_cast<std::size_t>(t * kWidth + i)] = LocalPos(below(rng, 140) - 3);
      }
      host_lens[row] = below(rng, 140);
      host_request[row] = below(rng, kRequests);
      host_offset[row] = below(rng, kCompact);
      host_query[row] = LocalPos(below(rng, 150) - 1);
      host_start[row] = std::max(0, host_query[row].value - kWindow + 1 - below(rng, 4));
    }
    positions.write(host_positions);
    lens.write(host_lens);
    request.write(host_request);
    offset.write(host_offset);
    table.write(host_table);
    query.write(host_query);
    entries.write(host_entries);
    start.write(host_start);
    expect_ok(replay());

    const LocalLists lists{host_positions, kWidth, host_lens};
    std::vector<Slot> wanted_slots(kListed);
    std::vector<RaggedRow> wanted_ragged(kListed), wanted_combined(kRows * kCombined);
    std::vector<std::int32_t> wanted_lens(kRows);
    expect_ok(lathe::local_to_slots(
        lists, host_request, {host_table.data(), kRequests, kTableWidth}, kPool, wanted_slots));
    expect_ok(lathe::local_to_ragged(lists, host_offset, kCompact, wanted_ragged));
    using Numbers = std::span<const std::int32_t>;
    using Positions = std::span<const LocalPos>;
    expect_ok(lathe::combine_index_lists(combination(Positions(host_query), Positions(host_entries),
                                                     Numbers(host_offset), Numbers(host_start)),
                                         wanted_combined, wanted_lens));
    EXPECT_EQ(slots.read(), wanted_slots) << rows;
    EXPECT_EQ(ragged.read(), wanted_ragged) << rows;
    EXPECT_EQ(combined.read(), wanted_combined) << rows;
    EXPECT_EQ(combined_lens.read(), wanted_lens) << rows;
  }
}

/// Work lists of one launch and of three; rows beyond the batch have no keys.
template <class Device>
void check_work_replays(Device& device) {
  std::mt19937 rng(53);
  for (const std::int64_t room : {3000, 9000}) {
    for (const std::int32_t fixed : {0, 64}) {
      constexpr std::int32_t kLongest = 3000;
      const WorkOptions options{132, 64, fixed};
      const auto n = static_cast<std::size_t>(room);
      auto counts = device.array(std::vector<std::int32_t>(n));
      auto firsts = device.array(std::vector<std::int32_t>(n));
      const auto items = device.array(
          std::vector<WorkItem>(static_cast<std::size_t>(max_work_items(room, kLongest, options))));
      const auto row_items = device.array(std::vector<std::int64_t>(n + 1));
      const auto worker_items = device.array(std::vector<std::int64_t>(133));
      auto workspace =
          device.array(std::vector<std::int64_t>(static_cast<std::size_t>(work_workspace(room))));
      const auto replay = device.capture([&](Device& d) {
        return d.plan_work({counts.span(), firsts.span()}, options,
                           {items.span(), row_items.span(), worker_items.span()}, workspace.span());
      });
      for (const std::int64_t rows : {room, std::int64_t{0}, std::int64_t{1}, room / 2}) {
        for (const std::int32_t longest : {kLongest, 1}) {
          std::vector<std::int32_t> host(n, 0), host_firsts(n, 0);
          for (std::int64_t r = 0; r < rows; ++r) {
            host[static_cast<std::size_t>(r)] = below(rng, longest + 1);
            host_firsts[static_cast<std::size_t>(r)] = below(rng, 100);
          }
          counts.write(host);
          firsts.write(host_firsts);
          expect_ok(replay());
          const auto wanted = make_work_list({host, host_firsts}, options);
          ASSERT_TRUE(wanted.ok());
          EXPECT_EQ(row_items.read(), wanted->row_items) << rows << " of " << room;
          EXPECT_EQ(worker_items.read(), wanted->worker_items) << rows << " of " << room;
          auto got = items.read();
          got.resize(wanted->items.size());
          EXPECT_EQ(got, wanted->items) << rows << " of " << room << ", fixed " << fixed;
        }
      }
    }
  }
}

}  // namespace lathe::cuda
