// quote(): quotes untrusted text for an error message.
#pragma once

#include <string>
#include <string_view>

namespace lathe {

/// `text` in double quotes, escaped as JSON (control characters cannot reach a terminal), invalid
/// UTF-8 replaced, cut after about `max` bytes.
std::string quote(std::string_view text, std::size_t max = 80);

}  // namespace lathe
