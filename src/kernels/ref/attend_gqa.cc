#include "kernels/ref/attend_gqa.h"

#include <cstddef>
#include <span>
#include <vector>

#include "attn/check_args.h"
#include "kernels/ref/attend_row.h"
#include "kernels/ref/merge.h"
#include "kernels/ref/rows_io.h"
#include "kernels/ref/visible_keys.h"

namespace lathe {

Result<void> ref_attend_gqa(const AttendArgs& args) {
  if (Result<void> ok = check_gqa_args(args); !ok) return ok;
  const AttentionProblem& p = args.problem;
  const auto heads = static_cast<std::size_t>(p.heads);
  const auto width = static_cast<std::size_t>(p.head_dim);
  const auto v_width = static_cast<std::size_t>(p.v_head_dim);
  const std::int32_t group = p.heads / p.kv_heads;
  const std::int32_t row_width = p.kv_heads * (p.head_dim + p.v_head_dim);
  std::vector<double> q(heads * width);
  std::vector<double> out(heads * v_width);
  std::vector<double> lse(heads);
  std::vector<double> tokens;

  for (const RowPlace& place : row_places(args)) {
    const std::vector<std::int32_t> visible =
        visible_keys(args.main, place, p.first_key(place.position));
    tokens.clear();
    append_key_rows(args.main, visible, row_width, tokens);

    read_row(args.q, place.row, args.q_scale, q);
    for (std::size_t h = 0; h < heads; ++h) {
      const std::int32_t g = static_cast<std::int32_t>(h) / group;
      const DoubleRows keys{tokens, g * p.head_dim, row_width};
      const DoubleRows values{tokens, p.kv_heads * p.head_dim + g * p.v_head_dim, row_width};
      const std::span<double> out_h = std::span(out).subspan(h * v_width, v_width);
      lse[h] = attend_row(std::span(q).subspan(h * width, width), keys, values, std::ssize(visible),
                          p.scale, out_h);
      if (p.sink) apply_sink(out_h, lse[h], args.sink[h]);
    }
    write_row(args.out, place.row, out);
    write_lse(args, place.row, lse);
  }
  return {};
}

}  // namespace lathe
