#include "kernels/ref/rows_io.h"

#include <cstddef>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/float_formats.h"

namespace lathe {
namespace {

template <class T, class ToDouble>
void read_as(const std::byte* bytes, std::span<double> out, ToDouble to_double) {
  for (double& x : out) {
    T stored;
    std::memcpy(&stored, bytes, sizeof(T));
    x = to_double(stored);
    bytes += sizeof(T);
  }
}

template <class T, class FromDouble>
void write_as(std::byte* bytes, std::span<const double> values, FromDouble from_double) {
  for (const double x : values) {
    const T stored = from_double(x);
    std::memcpy(bytes, &stored, sizeof(T));
    bytes += sizeof(T);
  }
}

}  // namespace

void read_row(const RowsView& view, std::int64_t r, double scale, std::span<double> out) {
  LATHE_CHECK(r >= 0 && r < view.rows && std::ssize(out) == view.cols, "row outside the view");
  switch (view.dtype) {
    case DType::f64:
      read_as<double>(view.row(r), out, [&](double x) { return x * scale; });
      return;
    case DType::f32:
      read_as<float>(view.row(r), out, [&](float x) { return x * scale; });
      return;
    case DType::bf16:
      read_as<bf16>(view.row(r), out, [&](bf16 x) { return to_f32(x) * scale; });
      return;
    case DType::f16:
      read_as<f16>(view.row(r), out, [&](f16 x) { return to_f32(x) * scale; });
      return;
    case DType::e4m3:
      read_as<e4m3>(view.row(r), out, [&](e4m3 x) { return to_f32(x) * scale; });
      return;
    default:
      LATHE_CHECK(false, "a dtype that check_args rejects");
  }
}

void write_row(const MutableRowsView& view, std::int64_t r, std::span<const double> values) {
  LATHE_CHECK(r >= 0 && r < view.rows && std::ssize(values) == view.cols, "row outside the view");
  switch (view.dtype) {
    case DType::f64:
      write_as<double>(view.row(r), values, [](double x) { return x; });
      return;
    case DType::f32:
      write_as<float>(view.row(r), values, [](double x) { return static_cast<float>(x); });
      return;
    case DType::bf16:
      write_as<bf16>(view.row(r), values, [](double x) { return to_bf16(static_cast<float>(x)); });
      return;
    case DType::f16:
      write_as<f16>(view.row(r), values, [](double x) { return to_f16(static_cast<float>(x)); });
      return;
    default:
      LATHE_CHECK(false, "a dtype that check_args rejects");
  }
}

void write_lse(const AttendArgs& args, std::int64_t row, std::span<const double> natural) {
  if (args.lse.data == nullptr) return;
  std::vector<double> lse(natural.begin(), natural.end());
  for (double& x : lse) x = by_convention(args.lse_convention, x);
  write_row(args.lse, row, lse);
}

}  // namespace lathe
