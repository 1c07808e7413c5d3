#include "capi/status.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/json.h"
#include "capi/json.h"
#include "plan/plan_json.h"

#define LATHE_TEXT_(x) #x
#define LATHE_TEXT(x) LATHE_TEXT_(x)
static_assert(std::string_view(LATHE_VERSION) ==
                  LATHE_TEXT(LATHE_VERSION_MAJOR) "." LATHE_TEXT(
                      LATHE_VERSION_MINOR) "." LATHE_TEXT(LATHE_VERSION_PATCH),
              "lathe.h and CMakeLists.txt name different versions");

namespace lathe::capi {
namespace {

struct LastError {
  Error error;
  std::string text;
  std::string refusal;
  lathe_error view{};
};

// Allocated by the thread's first error.
thread_local std::unique_ptr<LastError> last;
thread_local bool without_text = false;

constexpr lathe_error kNoMemory = {sizeof(lathe_error),
                                   LATHE_OUT_OF_MEMORY,
                                   "memory: wanted room for an error's text, got none",
                                   "memory",
                                   "room for an error's text",
                                   "none",
                                   ""};

lathe_status status_of_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
    case ErrorCode::out_of_range:
    case ErrorCode::malformed:
      return LATHE_INVALID_ARGUMENT;
    case ErrorCode::unsupported:
      return LATHE_UNSUPPORTED;
    case ErrorCode::exhausted:
      return LATHE_OUT_OF_MEMORY;
    case ErrorCode::io:
      return LATHE_IO;
    case ErrorCode::device:
      return LATHE_DEVICE_ERROR;
  }
  return LATHE_INTERNAL;
}

LastError& thread_error() {
  if (!last) last = std::make_unique<LastError>();
  return *last;
}

lathe_status keep(lathe_status status, const Error& error, const std::string* refusal) noexcept {
  try {
    LastError& l = thread_error();
    std::string text = error.message();
    l.error = error;
    l.text = std::move(text);
    if (refusal != nullptr) l.refusal = *refusal;
    l.view = {sizeof(lathe_error),    status,
              l.text.c_str(),         l.error.field.c_str(),
              l.error.wanted.c_str(), l.error.offered.c_str(),
              l.error.hint.c_str()};
    without_text = false;
    return status;
  } catch (...) {
    without_text = true;
    return LATHE_OUT_OF_MEMORY;
  }
}

}  // namespace

lathe_status fail(const Error& error) noexcept { return fail(status_of_code(error.code), error); }

lathe_status fail(lathe_status status, const Error& error) noexcept {
  return keep(status, error, nullptr);
}

lathe_status fail(const Refusal& refusal) noexcept {
  try {
    Error error{ErrorCode::invalid_argument, "plan", "", refusal.headline, ""};
    if (!refusal.reasons.empty()) {
      const Reason& r = refusal.reasons.front();
      error = {ErrorCode::invalid_argument, r.field, r.wanted,
               fmt::format("{} ({}; {})", r.offered, r.subject, refusal.headline), r.hint};
    }
    if (error.hint.empty() && !refusal.suggestions.empty()) {
      error.hint = "try " + refusal.suggestions.front();
    }
    const std::string json = json_text(to_json(refusal));
    return keep(LATHE_REFUSED, in_json(std::move(error)), &json);
  } catch (...) {
    without_text = true;
    return LATHE_OUT_OF_MEMORY;
  }
}

Result<std::size_t> known_size(const std::int64_t* size, std::size_t known, const char* argument) {
  if (auto ok = need(size, argument); !ok) return ok.error();
  if (*size < static_cast<std::int64_t>(sizeof(std::int64_t))) {
    return Error{ErrorCode::invalid_argument, std::string(argument) + ".size",
                 fmt::format("the struct's bytes, {} in this version", known),
                 fmt::format("{}", *size), "set size to the struct's sizeof"};
  }
  return std::min(static_cast<std::size_t>(*size), known);
}

}  // namespace lathe::capi

uint32_t lathe_version(void) {
  return LATHE_VERSION_MAJOR << 16 | LATHE_VERSION_MINOR << 8 | LATHE_VERSION_PATCH;
}

const char* lathe_build_info(void) {
#ifdef LATHE_HAS_CUDA
#define LATHE_CUDA_TEXT "true"
#else
#define LATHE_CUDA_TEXT "false"
#endif
  return "{\"version\": \"" LATHE_VERSION "\", \"compiler\": \"" __VERSION__
         "\", \"cuda\": " LATHE_CUDA_TEXT "}";
}

const char* lathe_status_name(lathe_status status) {
  switch (status) {
    case LATHE_OK:
      return "ok";
    case LATHE_INVALID_ARGUMENT:
      return "invalid_argument";
    case LATHE_REFUSED:
      return "refused";
    case LATHE_UNSUPPORTED:
      return "unsupported";
    case LATHE_OUT_OF_MEMORY:
      return "out_of_memory";
    case LATHE_DEVICE_ERROR:
      return "device_error";
    case LATHE_IO:
      return "io";
    case LATHE_ABORTED:
      return "aborted";
    case LATHE_INTERNAL:
      return "internal";
  }
  return "unknown";
}

const lathe_error* lathe_last_error(void) {
  if (lathe::capi::without_text) return &lathe::capi::kNoMemory;
  return lathe::capi::last ? &lathe::capi::last->view : nullptr;
}

const char* lathe_refusal_json(void) {
  const auto& last = lathe::capi::last;
  return last && !last->refusal.empty() ? last->refusal.c_str() : nullptr;
}
