#include "kernels/ref/attend_latent.h"

#include <cstddef>
#include <span>
#include <vector>

#include "attn/check_args.h"
#include "kernels/ref/attend_row.h"
#include "kernels/ref/merge.h"
#include "kernels/ref/rows_io.h"
#include "kernels/ref/visible_keys.h"

namespace lathe {

Result<void> ref_attend_latent(const AttendArgs& args) {
  if (Result<void> ok = check_latent_args(args); !ok) return ok;
  const AttentionProblem& p = args.problem;
  const auto heads = static_cast<std::size_t>(p.heads);
  const auto width = static_cast<std::size_t>(p.qk_dim());
  const auto v_width = static_cast<std::size_t>(p.v_dim());
  std::vector<double> q(heads * width);
  std::vector<double> out(heads * v_width);
  std::vector<double> lse(heads);
  std::vector<double> keys;

  for (const RowPlace& place : row_places(args)) {
    keys.clear();
    append_key_rows(args.main, visible_keys(args.main, place, p.first_key(place.position)),
                    p.qk_dim(), keys);
    if (p.two_sources()) {
      RowPlace entry = place;  // the place of the last entry that the row sees
      entry.position = (place.position + 1) / p.compress_ratio - 1;
      append_key_rows(args.extra, visible_keys(args.extra, entry, 0), p.qk_dim(), keys);
    }
    // A latent's value is a prefix of its key.
    const DoubleRows rows{keys, 0, p.qk_dim()};
    const auto count = static_cast<std::int64_t>(keys.size() / width);

    read_row(args.q, place.row, args.q_scale, q);
    for (std::size_t h = 0; h < heads; ++h) {
      const std::span<double> out_h = std::span(out).subspan(h * v_width, v_width);
      lse[h] =
          attend_row(std::span(q).subspan(h * width, width), rows, rows, count, p.scale, out_h);
      if (p.sink) apply_sink(out_h, lse[h], args.sink[h]);
    }
    write_row(args.out, place.row, out);
    write_lse(args, place.row, lse);
  }
  return {};
}

}  // namespace lathe
