#include "layout/pages/state_pool.h"

#include <fmt/format.h>

#include <cstring>

#include "layout/layout.h"

namespace lathe {

Result<StatePool> StatePool::create(std::int64_t bytes, std::int64_t banks, std::int32_t layers,
                                    std::int64_t block_tokens, std::int64_t slots,
                                    const Memory& memory) {
  const auto bad = [](const char* field, std::string wanted, std::int64_t offered) {
    return Error{ErrorCode::invalid_argument, field, std::move(wanted), fmt::format("{}", offered),
                 ""};
  };
  if (bytes < 1) return bad("state bytes", "at least 1", bytes);
  if (banks < 1) return bad("state banks", "at least 1", banks);
  if (layers < 1) return bad("layers", "at least 1", layers);
  if (block_tokens < 1 || block_tokens > kMaxPageSize) {
    return bad("block_tokens", fmt::format("1 to {}", kMaxPageSize), block_tokens);
  }
  const PoolShape shape{static_cast<std::int32_t>(block_tokens), slots};
  if (auto ok = check_pool_shape(shape); !ok) return ok.error();
  std::int64_t all = 0;
  if (__builtin_mul_overflow(bytes * banks * layers, slots, &all)) {
    return bad("state slots", "a number whose bytes can be counted", slots);
  }
  auto owned = memory.allocate(all);
  if (!owned) return owned.error();
  return StatePool(shape, bytes, banks, layers, std::move(*owned));
}

void StatePool::poison_free() {
  for (std::int32_t page = 0; page < ledger_.total(); ++page) {
    if (!ledger_.is_free(PageId(page))) continue;
    for (std::int32_t layer = 0; layer < layers_; ++layer) {
      const std::span<std::byte> bytes = slot(layer, PageId(page));
      std::memset(bytes.data(), 0xff, bytes.size());
    }
  }
}

}  // namespace lathe
