#include <cstring>
#include <vector>

#include "base/float_formats.h"
#include "layout/rope/rope_rotate.h"

namespace lathe {
namespace {

float load(const std::byte* at, DType dtype) {
  if (dtype == DType::bf16) {
    bf16 x;
    std::memcpy(&x, at, sizeof x);
    return to_f32(x);
  }
  float x;
  std::memcpy(&x, at, sizeof x);
  return x;
}

void store(std::byte* at, DType dtype, float x, float inverse_scale) {
  if (dtype == DType::e4m3) {
    *at = std::byte{to_e4m3(x * inverse_scale).bits};
  } else if (dtype == DType::bf16) {
    const bf16 b = to_bf16(x);
    std::memcpy(at, &b, sizeof b);
  } else {
    std::memcpy(at, &x, sizeof x);
  }
}

void rotate_head(const RotateJob& job, LocalPos position, const std::byte* in, std::byte* out,
                 std::vector<float>& turned) {
  const auto begin = job.first;
  const auto end = begin + job.rotary();
  for (std::int64_t i = begin; i < end; ++i) {
    turned[static_cast<std::size_t>(i - begin)] =
        load(in + bytes_of(job.in.dtype, i), job.in.dtype);
  }
  if (job.table != nullptr) rotate_row(*job.table, position, job.direction, turned.data());
  for (std::int64_t i = 0; i < job.width(); ++i) {
    const std::byte* from = in + bytes_of(job.in.dtype, i);
    std::byte* to = out + bytes_of(job.out.dtype, i);
    if (i >= begin && i < end) {
      store(to, job.out.dtype, turned[static_cast<std::size_t>(i - begin)], job.inverse_scale);
    } else if (job.in.dtype == job.out.dtype) {
      std::memmove(to, from, static_cast<std::size_t>(bytes_of(job.in.dtype, 1)));
    } else {
      store(to, job.out.dtype, load(from, job.in.dtype), job.inverse_scale);
    }
  }
}

}  // namespace

void rotate_reference(const RotateJob& job) {
  std::vector<float> turned(static_cast<std::size_t>(job.rotary()));
  for (std::int64_t t = 0; t < job.in.rows; ++t) {
    const LocalPos position = job.positions[static_cast<std::size_t>(t)];
    if (position.is_hole()) {
      if (job.in_place()) continue;
      std::memset(job.out.row(t), 0,
                  static_cast<std::size_t>(bytes_of(job.out.dtype, job.out.cols)));
      continue;
    }
    for (std::int64_t h = 0; h < job.heads; ++h) {
      rotate_head(job, position, job.in.row(t) + bytes_of(job.in.dtype, h * job.width()),
                  job.out.row(t) + bytes_of(job.out.dtype, h * job.width()), turned);
    }
  }
}

}  // namespace lathe
