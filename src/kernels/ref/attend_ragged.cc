#include "kernels/ref/attend_ragged.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "attn/check_args.h"
#include "kernels/ref/attend_row.h"
#include "kernels/ref/merge.h"
#include "kernels/ref/rows_io.h"
#include "kernels/ref/visible_keys.h"

namespace lathe {
namespace {

// out = weights in, with weights [out.size(), in.size()].
void multiply(std::span<const float> weights, std::span<const double> in, std::span<double> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    double sum = 0;
    for (std::size_t c = 0; c < in.size(); ++c) sum += double{weights[i * in.size() + c]} * in[c];
    out[i] = sum;
  }
}

// One request's keys and values, expanded per head.
struct Expanded {
  std::vector<double> keys;    // [count, heads, qk_nope_head + rope]
  std::vector<double> values;  // [count, heads, v_head]
};

// latents: [count, nope + rope]
Expanded expand(const AttentionProblem& p, const Expansion& weights,
                std::span<const double> latents) {
  const auto heads = static_cast<std::size_t>(p.heads);
  const auto nope = static_cast<std::size_t>(p.nope);
  const auto rope = static_cast<std::size_t>(p.rope);
  const auto k_nope = static_cast<std::size_t>(p.qk_nope_head);
  const auto v_width = static_cast<std::size_t>(p.v_head);
  const std::size_t k_width = k_nope + rope;
  const std::size_t count = latents.size() / (nope + rope);
  Expanded all{std::vector<double>(count * heads * k_width),
               std::vector<double>(count * heads * v_width)};
  for (std::size_t i = 0; i < count; ++i) {
    const std::span<const double> latent = latents.subspan(i * (nope + rope), nope);
    const std::span<const double> rotary = latents.subspan(i * (nope + rope) + nope, rope);
    for (std::size_t h = 0; h < heads; ++h) {
      const std::span<double> key = std::span(all.keys).subspan((i * heads + h) * k_width, k_width);
      multiply(weights.w_uk.subspan(h * k_nope * nope, k_nope * nope), latent, key.first(k_nope));
      std::ranges::copy(rotary, key.begin() + p.qk_nope_head);
      multiply(weights.w_uv.subspan(h * v_width * nope, v_width * nope), latent,
               std::span(all.values).subspan((i * heads + h) * v_width, v_width));
    }
  }
  return all;
}

}  // namespace

Result<void> ref_attend_ragged(const AttendArgs& args) {
  if (Result<void> ok = check_ragged_args(args); !ok) return ok;
  const AttentionProblem& p = args.problem;
  const auto heads = static_cast<std::size_t>(p.heads);
  const auto k_width = static_cast<std::size_t>(p.qk_nope_head + p.rope);
  const auto v_width = static_cast<std::size_t>(p.v_head);
  std::vector<double> q(heads * k_width);
  std::vector<double> out(heads * v_width);
  std::vector<double> lse(heads);

  std::int64_t expanded_request = -1;
  Expanded expanded;
  for (const RowPlace& place : row_places(args)) {
    if (place.request != expanded_request) {
      // Each row of a request sees a prefix of what its last row sees, so one expansion serves all.
      const std::int64_t last = args.kv_lens[static_cast<std::size_t>(place.request)] - 1;
      const RowPlace end{place.row, place.request, last};
      std::vector<double> latents;
      append_key_rows(args.main, visible_keys(args.main, end, 0), p.qk_dim(), latents);
      expanded = expand(p, args.expansion, latents);
      expanded_request = place.request;
    }
    const std::int64_t count = std::ssize(visible_keys(args.main, place, 0));

    read_row(args.q, place.row, args.q_scale, q);
    for (std::size_t h = 0; h < heads; ++h) {
      const DoubleRows keys{expanded.keys, static_cast<std::int64_t>(h * k_width),
                            static_cast<std::int64_t>(heads * k_width)};
      const DoubleRows values{expanded.values, static_cast<std::int64_t>(h * v_width),
                              static_cast<std::int64_t>(heads * v_width)};
      const std::span<double> out_h = std::span(out).subspan(h * v_width, v_width);
      lse[h] = attend_row(std::span(q).subspan(h * k_width, k_width), keys, values, count, p.scale,
                          out_h);
      if (p.sink) apply_sink(out_h, lse[h], args.sink[h]);
    }
    write_row(args.out, place.row, out);
    write_lse(args, place.row, lse);
  }
  return {};
}

}  // namespace lathe
