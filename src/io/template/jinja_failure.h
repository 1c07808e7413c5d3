// JinjaFailure: the template engine's exception. chat_template.cc turns it into a Result.
#pragma once

#include <string>
#include <utility>

#include "base/result.h"

namespace lathe {

struct JinjaFailure {
  Error error;
};

/// Throws: "chat_template line 12: wanted ..., got ...".
[[noreturn]] inline void fail_jinja(ErrorCode code, int line, std::string wanted,
                                    std::string offered, std::string hint = "") {
  throw JinjaFailure{{code, "chat_template line " + std::to_string(line), std::move(wanted),
                      std::move(offered), std::move(hint)}};
}

}  // namespace lathe
