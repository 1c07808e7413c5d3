// Plan JSON: any text is a plan or an error; a plan survives its own JSON, and explaining it does
// not fail.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/check.h"
#include "plan/explain.h"
#include "plan/plan_json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto plan = lathe::plan_from_json({reinterpret_cast<const char*>(data), size});
  if (!plan) {
    LATHE_CHECK(!plan.error().message().empty(), "an error without words");
    return 0;
  }
  const auto back = lathe::plan_from_json(
      lathe::to_json(*plan).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  LATHE_CHECK(back.ok() && *back == *plan, "a plan does not survive its own JSON");
  LATHE_CHECK(!lathe::explain(*plan).empty(), "a plan without words");
  static_cast<void>(plan->route(lathe::Phase::decode, 1, 1));
  static_cast<void>(plan->bytes_per_token());
  return 0;
}
