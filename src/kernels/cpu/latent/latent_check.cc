#include "kernels/cpu/latent/latent_check.h"

#include <fmt/format.h>

#include "attn/check_args.h"

namespace lathe {
namespace {

Result<void> check_codec_scale(const char* field, const KeySource& source) {
  if (!source.pool || (source.key_scale >= 0x1p-126f && source.key_scale <= 0x1p126f)) return {};
  return Error{ErrorCode::invalid_argument, fmt::format("{}.key_scale", field),
               "a scale from 2^-126 to 2^126", fmt::format("{}", source.key_scale), ""};
}

}  // namespace

Result<void> check_cpu_latent_args(const AttendArgs& args) {
  if (Result<void> ok = check_latent_args(args); !ok) return ok;
  if (Result<void> ok = check_codec_scale("main", args.main); !ok) return ok;
  if (!args.problem.two_sources()) return {};
  return check_codec_scale("extra", args.extra);
}

}  // namespace lathe
