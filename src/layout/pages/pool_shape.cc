#include "layout/pages/pool_shape.h"

#include <fmt/format.h>

#include "layout/layout.h"

namespace lathe {

Result<void> check_pool_shape(PoolShape shape) {
  if (auto ok = check_page_size(shape.page_size); !ok) return ok;
  const std::int64_t most = kMaxSlots / shape.page_size;
  if (shape.pages >= 1 && shape.pages <= most) return {};
  return Error{
      ErrorCode::invalid_argument, "pages",
      fmt::format("1 to {} pages of {} tokens (slots are 32 bits wide)", most, shape.page_size),
      fmt::format("{}", shape.pages), ""};
}

}  // namespace lathe
