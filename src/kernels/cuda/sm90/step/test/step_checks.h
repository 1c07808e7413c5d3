// Checks of the step's builders against the CPU's, written once for two devices: the emulator
// (step_emulated_test.cc) and a GPU (step_gpu_test.cc). A Device has
//   array(vector)  a copy on the device: .span() to pass it, .read() to copy it back
//   the functions of step.h without their stream
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "kernels/cuda/sm90/step/step.h"

namespace lathe::cuda {

template <class T>
void expect_ok(const Result<T>& result) {
  ASSERT_TRUE(result.ok()) << result.error().message();
}

template <class Index>
std::vector<Index> indices(const std::vector<std::int32_t>& values) {
  std::vector<Index> out;
  for (std::int32_t v : values) out.emplace_back(v);
  return out;
}

inline std::int32_t below(std::mt19937& rng, std::int64_t n) {
  return static_cast<std::int32_t>(rng() % static_cast<std::uint64_t>(n));
}

/// Random page lists; for the CPU, pages outside the pool are replaced by -1.
struct RandomLists {
  static constexpr PoolShape kPool{16, 5000};
  std::vector<std::int64_t> indptr = {0};
  std::vector<PageId> pages;

  RandomLists(std::mt19937& rng, std::int64_t requests, std::int64_t most_pages, bool holes) {
    for (std::int64_t r = 0; r < requests; ++r) {
      const std::int64_t count = below(rng, 5) == 0 ? 0 : below(rng, most_pages + 1);
      for (std::int64_t i = 0; i < count; ++i) {
        const bool hole = holes && below(rng, 10) == 0;
        const std::int32_t none[] = {-1, -77, 5000, 0x7fffffff};
        pages.emplace_back(hole ? none[below(rng, 4)] : below(rng, kPool.pages));
      }
      indptr.push_back(std::ssize(pages));
    }
  }
  std::vector<PageId> clean() const {
    std::vector<PageId> out = pages;
    for (PageId& p : out) {
      if (!kPool.holds(p)) p = PageId();
    }
    return out;
  }
  std::int64_t requests() const { return std::ssize(indptr) - 1; }
  std::int64_t count(std::int64_t r) const {
    return indptr[static_cast<std::size_t>(r) + 1] - indptr[static_cast<std::size_t>(r)];
  }
};

template <class Device, class T>
using ArrayOf = decltype(std::declval<Device&>().array(std::vector<T>()));

/// A list, filled up to n entries.
template <class List, class T>
std::vector<T> filled(const List& list, std::int64_t n, T fill) {
  std::vector<T> out(list.begin(), list.end());
  out.resize(static_cast<std::size_t>(n), fill);
  return out;
}

template <class Device>
struct ListsThere {
  ArrayOf<Device, std::int64_t> indptr;
  ArrayOf<Device, PageId> pages;
  ListsThere(Device& device, const RandomLists& lists)
      : indptr(device.array(lists.indptr)), pages(device.array(lists.pages)) {}
  DevicePageLists view() const { return {indptr.span(), pages.span()}; }
};

template <class Device>
void check_page_tables(Device& device) {
  std::mt19937 rng(31);
  for (std::int64_t requests : {0, 1, 7, 300, 3000}) {
    for (std::int64_t width : {0, 3, 8, 70, 300}) {
      const RandomLists lists(rng, requests, width, true);
      const ListsThere<Device> there(device, lists);
      const std::int64_t rows = requests + below(rng, 3);
      auto out =
          device.array(std::vector<PageId>(static_cast<std::size_t>(rows * width), PageId(9)));
      expect_ok(device.page_table(there.view(), lists.kPool, {}, {out.span().data(), rows, width}));
      const auto clean = lists.clean();
      const auto csr = PageLists::csr(lists.indptr, clean);
      const auto wanted = lathe::page_table(*csr, lists.kPool, {.width = width, .requests = rows});
      ASSERT_TRUE(wanted.ok() || width == 0);
      if (width > 0) {
        ASSERT_EQ(out.read(), wanted->entries) << requests << " x " << width;
      }

      // Only the pages of the first lens[r] tokens.
      std::vector<std::int32_t> lens;
      std::vector<PageLists::List> shorter;
      for (std::int64_t r = 0; r < requests; ++r) {
        const std::int64_t used = below(rng, lists.count(r) + 1);
        lens.push_back(static_cast<std::int32_t>(used == 0 ? 0 : used * 16 - below(rng, 16)));
        shorter.push_back((*csr)[r].first(static_cast<std::size_t>(used)));
      }
      const auto lens_there = device.array(lens);
      expect_ok(device.page_table(there.view(), lists.kPool, lens_there.span(),
                                  {out.span().data(), rows, width}));
      const auto cut =
          lathe::page_table(PageLists(shorter), lists.kPool, {.width = width, .requests = rows});
      if (width > 0) {
        ASSERT_EQ(out.read(), cut->entries) << requests << " x " << width;
      }
    }
  }
}

/// Contents that the CPU rejects name no key: a list that exceeds the pages, or starts before its
/// request.
template <class Device>
void check_hostile_lists(Device& device) {
  constexpr PoolShape kPool{.page_size = 4, .pages = 9};
  const auto pages = device.array(std::vector<PageId>{PageId(1), PageId(2), PageId(3)});
  const auto none = std::vector<PageId>(3);
  for (const std::vector<std::int64_t>& indptr : {std::vector<std::int64_t>{0, 2, 100},
                                                  {-3, 2, 3},
                                                  {2, 1, 3},
                                                  {3, 4, 5},
                                                  {1LL << 32, 3, 3}}) {
    const auto there = device.array(indptr);
    const DevicePageLists lists{there.span(), pages.span()};
    auto out = device.array(std::vector<PageId>(6, PageId(9)));
    expect_ok(device.page_table(lists, kPool, {}, {out.span().data(), 2, 3}));
    const auto got = out.read();
    for (std::size_t r = 0; r < 2; ++r) {
      const std::int64_t begin = indptr[r], end = indptr[r + 1];
      const bool holds = begin >= 0 && begin <= end && end <= 3;
      auto wanted = none;
      for (std::int64_t i = begin; holds && i < end; ++i) {
        wanted[static_cast<std::size_t>(i - begin)] = PageId(static_cast<std::int32_t>(i + 1));
      }
      const auto row = got.begin() + static_cast<std::ptrdiff_t>(3 * r);
      EXPECT_EQ(std::vector<PageId>(row, row + 3), wanted) << begin << " to " << end;
    }
  }
  const auto whole = device.array(std::vector<std::int64_t>{0, 3});
  const auto lengths = device.array(std::vector<std::int32_t>{10});
  const auto starts = device.array(std::vector<std::int32_t>{-5});
  auto slots = device.array(std::vector<Slot>(12, Slot(9)));
  expect_ok(device.slot_table({whole.span(), pages.span()}, kPool, {lengths.span(), starts.span()},
                              {slots.span().data(), 1, 12}));
  EXPECT_EQ(slots.read(), std::vector<Slot>(12));
}

template <class Device>
void check_ragged_lists(Device& device) {
  std::mt19937 rng(32);
  for (std::int64_t requests : {0, 1, 5, 200, 4096, 4097, 9000}) {
    const RandomLists lists(rng, requests, requests > 1000 ? 3 : 20, false);
    const auto csr = PageLists::csr(lists.indptr, lists.pages);
    std::vector<std::int32_t> lengths, starts, aligned, page_lengths;
    for (std::int64_t r = 0; r < requests; ++r) {
      const std::int64_t tokens = lists.count(r) * 16;
      starts.push_back(below(rng, tokens + 1));
      lengths.push_back(below(rng, tokens - starts.back() + 1));
      aligned.push_back(starts.back() / 16 * 16);
      page_lengths.push_back(below(rng, tokens - aligned.back() + 1));
    }
    const ListsThere<Device> there(device, lists);
    const auto lengths_there = device.array(lengths);
    const auto starts_there = device.array(starts);
    const auto aligned_there = device.array(aligned);
    const auto page_lengths_there = device.array(page_lengths);
    auto workspace = device.array(
        std::vector<std::int64_t>(static_cast<std::size_t>(scan_workspace(requests)), -5));
    auto indptr = device.array(std::vector<std::int64_t>(static_cast<std::size_t>(requests + 1)));

    const auto slots = lathe::ragged_slots(*csr, lists.kPool, {lengths, starts});
    ASSERT_TRUE(slots.ok()) << slots.error().message();
    // Room to spare, and room for half of the items.
    for (std::int64_t room : {std::ssize(slots->items) + 37, std::ssize(slots->items) / 2}) {
      auto items = device.array(std::vector<Slot>(static_cast<std::size_t>(room), Slot(9)));
      expect_ok(device.ragged_slots(there.view(), lists.kPool,
                                    {lengths_there.span(), starts_there.span()},
                                    {indptr.span(), items.span()}, workspace.span()));
      auto wanted = slots->items;
      wanted.resize(static_cast<std::size_t>(room));
      ASSERT_EQ(indptr.read(), slots->indptr) << requests;
      ASSERT_EQ(items.read(), wanted) << requests;
    }
    const auto pages = lathe::ragged_pages(*csr, lists.kPool, {page_lengths, aligned});
    ASSERT_TRUE(pages.ok()) << pages.error().message();
    auto items = device.array(std::vector<PageId>(pages->items.size() + 3, PageId(9)));
    expect_ok(device.ragged_pages(there.view(), lists.kPool,
                                  {page_lengths_there.span(), aligned_there.span()},
                                  {indptr.span(), items.span()}, workspace.span()));
    auto wanted = pages->items;
    wanted.resize(pages->items.size() + 3);
    ASSERT_EQ(indptr.read(), pages->indptr) << requests;
    ASSERT_EQ(items.read(), wanted) << requests;

    if (requests > 1000) continue;
    const auto table = lathe::slot_table(*csr, lists.kPool, {lengths, starts},
                                         {.width = 320, .requests = requests + 1});
    ASSERT_TRUE(table.ok()) << table.error().message();
    auto entries = device.array(std::vector<Slot>(table->entries.size(), Slot(9)));
    expect_ok(device.slot_table(there.view(), lists.kPool,
                                {lengths_there.span(), starts_there.span()},
                                {entries.span().data(), requests + 1, 320}));
    ASSERT_EQ(entries.read(), table->entries) << requests;
  }
}

template <class Device>
void check_transforms(Device& device) {
  std::mt19937 rng(33);
  for (std::int64_t rows : {0, 1, 40, 700}) {
    for (std::int64_t width : {0, 1, 7, 64, 130, 2048}) {
      if (rows * width > 200'000 && !device.fast()) continue;
      constexpr std::int64_t kRequests = 9, kTableWidth = 40;
      constexpr PoolShape kPool{16, 500};
      const auto entries = static_cast<std::size_t>(rows * width);
      std::vector<LocalPos> positions;
      for (std::size_t i = 0; i < entries; ++i) {
        const std::int32_t odd[] = {-1, -9, 0x7fffffff, 16 * 40, 16 * 40 + 3};
        positions.emplace_back(below(rng, 4) == 0 ? odd[below(rng, 5)] : below(rng, 16 * 40));
      }
      std::vector<std::int32_t> lens, request, clean_request, offset;
      for (std::int64_t t = 0; t < rows; ++t) {
        lens.push_back(below(rng, 700));
        request.push_back(below(rng, 12) - 1);  // 9 and 10 are not requests
        clean_request.push_back(request.back() >= kRequests ? -1 : request.back());
        offset.push_back(below(rng, 1200) - 200);
      }
      std::vector<PageId> table;
      for (std::int64_t i = 0; i < kRequests * kTableWidth; ++i) {
        table.emplace_back(below(rng, 520) - 10);
      }
      const auto positions_there = device.array(positions);
      const auto lens_there = device.array(lens);
      const auto request_there = device.array(request);
      const auto offset_there = device.array(offset);
      const auto table_there = device.array(table);
      for (bool limited : {false, true}) {
        const auto lens_or = [&](auto span) { return limited ? span : decltype(span)(); };
        LocalLists here{positions, width, lens_or(std::span<const std::int32_t>(lens))};
        LocalLists lists{positions_there.span(), width,
                         lens_or(std::span<const std::int32_t>(lens_there.span()))};
        std::vector<Slot> slots(entries, Slot(5));
        auto slots_there = device.array(slots);
        expect_ok(device.local_to_slots(lists, request_there.span(),
                                        {table_there.span().data(), kRequests, kTableWidth}, kPool,
                                        slots_there.span()));
        expect_ok(lathe::local_to_slots(here, clean_request, {table.data(), kRequests, kTableWidth},
                                        kPool, slots));
        ASSERT_EQ(slots_there.read(), slots) << rows << " x " << width;
        std::vector<RaggedRow> ragged(entries, RaggedRow(5));
        auto ragged_there = device.array(ragged);
        expect_ok(device.local_to_ragged(lists, offset_there.span(), 900, ragged_there.span()));
        expect_ok(lathe::local_to_ragged(here, offset, 900, ragged));
        ASSERT_EQ(ragged_there.read(), ragged) << rows << " x " << width;
      }
    }
  }
}

template <class Device>
void check_combinations(Device& device) {
  std::mt19937 rng(34);
  for (std::int64_t rows : {0, 1, 33, 500}) {
    for (const auto& [entry_width, window, ratio, multiple] :
         {std::tuple{0, 10, 1, 1}, std::tuple{64, 0, 4, 64}, std::tuple{70, 128, 4, 64},
          std::tuple{512, 128, 128, 128}, std::tuple{1, 1, 2, 8}}) {
      for (bool all : {false, true}) {
        if (all && entry_width == 0) continue;  // the CPU rejects this
        std::vector<LocalPos> positions, entries;
        std::vector<std::int32_t> entry_base, window_base, window_start;
        for (std::int64_t t = 0; t < rows; ++t) {
          const std::int64_t most = all ? std::int64_t{entry_width} * ratio + ratio - 1 : 3000;
          positions.emplace_back(below(rng, 9) == 0 ? -1
                                                    : below(rng, std::max<std::int64_t>(most, 1)));
          entry_base.push_back(below(rng, 900) - 50);
          window_base.push_back(below(rng, 900));
          window_start.push_back(
              std::max(0, positions.back().value - window + 1 - below(rng, 9) + 3));
          const bool trailing = below(rng, 2) == 0;
          const std::int64_t from = below(rng, entry_width + 1);
          for (std::int64_t i = 0; i < entry_width; ++i) {
            const bool hole = (trailing && i >= from) || below(rng, 6) == 0;
            entries.emplace_back(hole ? -1 - below(rng, 2) * 5 : below(rng, 800));
          }
        }
        if (all) entries.clear();
        const auto make = [&](auto p, auto e, auto eb, auto wb, auto ws) {
          CombineLists c;
          c.positions = p;
          c.window = window;
          c.ratio = ratio;
          c.entries = e;
          c.entry_width = entry_width;
          c.all_entries = all;
          c.entry_base = eb;
          c.window_base = wb;
          c.window_start = ws;
          c.compact_rows = 1000;
          c.multiple = multiple;
          return c;
        };
        const auto p = device.array(positions);
        const auto e = device.array(entries);
        const auto eb = device.array(entry_base);
        const auto wb = device.array(window_base);
        const auto ws = device.array(window_start);
        const std::int64_t width = combined_width(entry_width, window, multiple);
        std::vector<RaggedRow> out(static_cast<std::size_t>(rows * width), RaggedRow(5));
        std::vector<std::int32_t> lengths(static_cast<std::size_t>(rows), 77);
        auto out_there = device.array(out);
        auto lengths_there = device.array(lengths);
        expect_ok(
            device.combine_index_lists(make(p.span(), e.span(), eb.span(), wb.span(), ws.span()),
                                       out_there.span(), lengths_there.span()));
        expect_ok(lathe::combine_index_lists(
            make(std::span<const LocalPos>(positions), std::span<const LocalPos>(entries),
                 std::span<const std::int32_t>(entry_base),
                 std::span<const std::int32_t>(window_base),
                 std::span<const std::int32_t>(window_start)),
            out, lengths));
        ASSERT_EQ(lengths_there.read(), lengths) << rows << ", " << entry_width << " + " << window;
        ASSERT_EQ(out_there.read(), out) << rows << ", " << entry_width << " + " << window;
      }
    }
  }
}

template <class Device>
void check_work_lists(Device& device, const std::vector<std::int64_t>& row_counts) {
  std::mt19937 rng(35);
  for (std::int64_t rows : row_counts) {
    for (std::int32_t workers : {1, 132, 1024}) {
      for (std::int32_t fixed : {0, 256}) {
        for (std::int32_t longest : {1, 2000}) {
          std::vector<std::int32_t> counts(static_cast<std::size_t>(rows));
          std::vector<std::int32_t> firsts(counts.size());
          for (auto& c : counts) c = below(rng, 4) == 0 ? 0 : below(rng, longest + 1);
          for (auto& f : firsts) f = below(rng, 1000);
          const WorkOptions options{workers, 64, fixed};
          const bool whole = longest == 1;  // empty firsts
          const auto wanted =
              make_work_list({counts, whole ? std::span<const std::int32_t>() : firsts}, options);
          ASSERT_TRUE(wanted.ok());
          const auto counts_there = device.array(counts);
          const auto firsts_there = device.array(firsts);
          const std::int64_t full = max_work_items(rows, longest, options);
          for (const std::int64_t room : {full, full / 2}) {
            auto items = device.array(std::vector<WorkItem>(static_cast<std::size_t>(room)));
            auto row_items =
                device.array(std::vector<std::int64_t>(static_cast<std::size_t>(rows + 1), -3));
            auto worker_items =
                device.array(std::vector<std::int64_t>(static_cast<std::size_t>(workers) + 1, -3));
            auto workspace = device.array(
                std::vector<std::int64_t>(static_cast<std::size_t>(work_workspace(rows)), -3));
            expect_ok(device.plan_work(
                {counts_there.span(),
                 whole ? std::span<const std::int32_t>() : firsts_there.span()},
                options, {items.span(), row_items.span(), worker_items.span()}, workspace.span()));
            ASSERT_EQ(row_items.read(), wanted->row_items) << rows << " rows, " << workers;
            ASSERT_EQ(worker_items.read(), wanted->worker_items) << rows << " rows, " << workers;
            auto got = items.read();
            const auto stored = std::min(got.size(), wanted->items.size());
            got.resize(stored);
            ASSERT_TRUE(std::equal(got.begin(), got.end(), wanted->items.begin()))
                << rows << " rows, " << workers << " workers, fixed " << fixed;
          }
        }
      }
    }
  }
}

/// About 2^40 key blocks, so that indices need 64 bits.
template <class Device>
void check_long_work(Device& device) {
  constexpr std::int64_t kRows = 4500;
  std::mt19937 rng(37);
  for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{900}, kRows}) {
    for (const std::int32_t workers : {1, 3, 132, 5000}) {
      std::vector<std::int32_t> counts(static_cast<std::size_t>(rows));
      for (auto& c : counts) c = 0x7fffffff - (below(rng, 3) == 0 ? below(rng, 1'000'000) : 0);
      const WorkOptions options{workers, 1, 0};
      const auto wanted = make_work_list({counts, {}}, options);
      ASSERT_TRUE(wanted.ok());
      const auto counts_there = device.array(counts);
      auto items = device.array(std::vector<WorkItem>(wanted->items.size()));
      auto row_items = device.array(std::vector<std::int64_t>(counts.size() + 1));
      auto worker_items =
          device.array(std::vector<std::int64_t>(static_cast<std::size_t>(workers) + 1));
      auto workspace =
          device.array(std::vector<std::int64_t>(static_cast<std::size_t>(work_workspace(rows))));
      expect_ok(device.plan_work({counts_there.span(), {}}, options,
                                 {items.span(), row_items.span(), worker_items.span()},
                                 workspace.span()));
      EXPECT_EQ(row_items.read(), wanted->row_items) << rows << " rows, " << workers;
      EXPECT_EQ(items.read(), wanted->items) << rows << " rows, " << workers;
      EXPECT_EQ(worker_items.read(), wanted->worker_items) << rows << " rows, " << workers;
    }
  }
}

/// Invalid ranges have no items; the CPU rejects them.
template <class Device>
void check_bad_work(Device& device) {
  const std::vector<std::int32_t> counts = {100, -1, 0x7fffffff, 65, 5};
  const std::vector<std::int32_t> firsts = {0, 0, 1, -1, 0x7fffffff - 5};
  const auto wanted = make_work_list({std::vector<std::int32_t>{100, 0, 0, 0, 5},
                                      std::vector<std::int32_t>{0, 0, 0, 0, 0x7fffffff - 5}},
                                     {3, 64, 0});
  ASSERT_TRUE(wanted.ok());
  const auto counts_there = device.array(counts);
  const auto firsts_there = device.array(firsts);
  auto items = device.array(std::vector<WorkItem>(wanted->items.size()));
  auto row_items = device.array(std::vector<std::int64_t>(6));
  auto worker_items = device.array(std::vector<std::int64_t>(4));
  auto workspace =
      device.array(std::vector<std::int64_t>(static_cast<std::size_t>(work_workspace(5))));
  expect_ok(device.plan_work({counts_there.span(), firsts_there.span()}, {3, 64, 0},
                             {items.span(), row_items.span(), worker_items.span()},
                             workspace.span()));
  EXPECT_EQ(row_items.read(), wanted->row_items);
  EXPECT_EQ(items.read(), wanted->items);
  EXPECT_EQ(worker_items.read(), wanted->worker_items);
}

}  // namespace lathe::cuda
