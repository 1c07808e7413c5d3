#include "model/load/bind_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/float_formats.h"
#include "model/load/check_values.h"
#include "model/load/repack.h"

namespace lathe {
namespace {

using enum WeightPacking;
using Find = std::function<const CheckpointTensor*(const std::string&)>;
using Shape = std::vector<std::int64_t>;

bool is_float(SafetensorsDType t) {
  return t == SafetensorsDType::F32 || t == SafetensorsDType::BF16 || t == SafetensorsDType::F16;
}
bool is_half(SafetensorsDType t) {
  return t == SafetensorsDType::BF16 || t == SafetensorsDType::F16;
}
// Powers of two stored as one exponent byte each.
bool is_exponent(SafetensorsDType t) {
  return t == SafetensorsDType::F8_E8M0 || t == SafetensorsDType::U8;
}

bool holds_codes(WeightPacking packing, SafetensorsDType t) {
  switch (packing) {
    case fp8:
      return t == SafetensorsDType::F8_E4M3;
    case u4_rows:
    case u4_gptq:
    case u4_awq:
      return t == SafetensorsDType::I32;
    case e2m1_nv:
    case e2m1_mx:
      return t == SafetensorsDType::U8 || t == SafetensorsDType::I8;
  }
  return false;
}
bool may_hold_scales(WeightPacking packing, SafetensorsDType t) {
  switch (packing) {
    case fp8:
      return is_float(t) || is_exponent(t);
    case u4_rows:
    case u4_gptq:
    case u4_awq:
      return is_half(t);
    case e2m1_nv:
      return t == SafetensorsDType::F8_E4M3;
    case e2m1_mx:
      return is_exponent(t);
  }
  return false;
}

// Dtypes under which some format stores codes, right or wrong for a row.
bool may_hold_codes(SafetensorsDType t) {
  return is_exponent(t) || t == SafetensorsDType::F8_E4M3 || t == SafetensorsDType::I8 ||
         t == SafetensorsDType::I32;
}

std::string text_of(const CheckpointTensor& t) {
  return fmt::format("{} {} [{}]", t.name, name(t.dtype), fmt::join(t.shape, ", "));
}

// Tries one row of the table.
class Binder {
 public:
  Binder(const Find& find, const std::string& module, const WeightFormat& format, std::int64_t rows,
         std::int64_t cols, const FormatOptions& options, ThreadPool* threads,
         ModelWeights& weights)
      : find_(find),
        module_(module),
        format_(format),
        rows_(rows),
        cols_(cols),
        options_(options),
        threads_(threads),
        weights_(weights) {
    codes_ = tensor(format.codes);
    scales_ = tensor(format.scales);
  }

  bool has_scales() const { return scales_ != nullptr; }
  std::string codes_name() const { return module_ + std::string(format_.codes); }
  /// How much the module resembles the row: by its own tensors, and by what the checkpoint has
  /// elsewhere.
  int likeness() const {
    int out = codes_ != nullptr && is_dtype_of_codes() ? 4 : 0;
    if (codes_ != nullptr && codes_fit()) out += 1;
    if (scales_ != nullptr) out += may_hold_scales(format_.packing, scales_->dtype) ? 6 : 2;
    if (!format_.factor.empty()) out += tensor(format_.factor) != nullptr ? 3 : -1;
    for (const WeightFormat& other : weight_formats()) {
      if (other.factor.empty() || other.factor == format_.factor) continue;
      if (tensor(other.factor) != nullptr) out -= 2;
    }
    if (options_.is_used && options_.is_used(format_)) out += 4;
    return out;
  }

  /// Whether a tensor of the row's name for codes is there that is not a plain matrix: those have
  /// no scales.
  bool has_codes() const {
    if (format_.packing == u4_awq && tensor(".g_idx") != nullptr) return false;  // GPTQ's
    return codes_ != nullptr &&
           (format_.codes != ".weight" || scales_ != nullptr || may_hold_codes(codes_->dtype));
  }
  bool codes_fit() const { return is_dtype_of_codes() && codes_->shape == codes_shape(); }
  std::string codes_text() const { return text_of(*codes_); }
  std::string wanted_codes() const {
    const char* dtype = format_.packing == fp8 ? "F8_E4M3" : is_int4() ? "I32" : "U8";
    return fmt::format("{} [{}] of {}", dtype, fmt::join(codes_shape(), ", "), format_.name);
  }
  bool is_dtype_of_codes() const { return holds_codes(format_.packing, codes_->dtype); }

  /// Whether the other tensors fit the row. Sets the complaints of `out` if not.
  bool fits(BoundFormat& out) {
    if (scales_ == nullptr) return miss(out, format_.scales);
    switch (format_.packing) {
      case fp8:
        return fits_e4m3(out);
      case u4_rows:
      case u4_gptq:
      case u4_awq:
        return fits_u4(out);
      case e2m1_nv:
        return fits_nv(out);
      case e2m1_mx:
        return fits_mx(out);
    }
    return false;
  }

  /// Precondition: fits(). Contents may still be wrong.
  void bind(BoundFormat& out) {
    out.format = &format_;
    out.scales = scales_;
    out.factor = factor_;
    out.weight = {nullptr, DType::e4m3, rows_, cols_};
    for (const CheckpointTensor* t : {codes_, scales_, zeros_, order_, factor_}) {
      if (t != nullptr) out.read.push_back(t->name);
    }
    for (const std::string_view suffix : unread_suffixes()) {
      if (const CheckpointTensor* t = tensor(suffix)) out.read.push_back(t->name);
    }
    if (const CheckpointTensor* bias = tensor(".bias"); bias != nullptr && all_zero(*bias)) {
      out.read.push_back(bias->name);  // AutoGPTQ writes one for every module
    }
    if (!shape_is_right(out)) return;
    switch (format_.packing) {
      case fp8:
        return bind_e4m3(out.weight);
      case u4_rows:
      case u4_gptq:
      case u4_awq:
        return bind_u4(out);
      case e2m1_nv:
        return bind_nv(out);
      case e2m1_mx:
        out.weight.dtype = DType::e2m1;
        out.weight.data = in_place(*codes_);
        out.weight.mx_scales = reinterpret_cast<const ue8m0*>(in_place(*scales_));
    }
  }

 private:
  const CheckpointTensor* tensor(std::string_view suffix) const {
    return suffix.empty() ? nullptr : find_(module_ + std::string(suffix));
  }
  static bool complain(BoundFormat& out, const CheckpointTensor& t, std::string_view wanted) {
    out.misshapen = fmt::format("{} (wanted {})", text_of(t), wanted);
    return false;
  }
  bool miss(BoundFormat& out, std::string_view suffix) const {
    out.missing = module_ + std::string(suffix);
    return false;
  }
  static bool all_zero(const CheckpointTensor& t) {
    return std::ranges::all_of(t.bytes, [](std::byte b) { return b == std::byte{0}; });
  }
  // compressed-tensors' shape before packing, which config.json gives as well. Zeros say nothing.
  bool shape_is_right(BoundFormat& out) const {
    const CheckpointTensor* t = tensor(".weight_shape");
    if (t == nullptr) return true;
    const bool wide = t->dtype == SafetensorsDType::I64;
    if ((!wide && t->dtype != SafetensorsDType::I32) || t->shape != Shape{2}) {
      return complain(out, *t, "I64 or I32 [2]");
    }
    if (!options_.contents) return true;
    std::int64_t given[2] = {};
    for (std::size_t i = 0; i < 2; ++i) {
      std::int32_t narrow = 0;
      if (wide) {
        std::memcpy(&given[i], t->bytes.data() + 8 * i, 8);
      } else {
        std::memcpy(&narrow, t->bytes.data() + 4 * i, 4);
        given[i] = narrow;
      }
    }
    if ((given[0] == rows_ && given[1] == cols_) || (given[0] == 0 && given[1] == 0)) return true;
    out.misshapen =
        fmt::format("{} [{}, {}] (wanted [{}, {}])", t->name, given[0], given[1], rows_, cols_);
    return false;
  }
  const std::byte* in_place(const CheckpointTensor& t) {
    weights_.bytes += std::ssize(t.bytes);
    return t.bytes.data();
  }

  Shape codes_shape() const {
    switch (format_.packing) {
      case fp8:
        return {rows_, cols_};
      case u4_rows:
        return {rows_, (cols_ + 7) / 8};
      case u4_gptq:
        return {cols_ / 8, rows_};
      case u4_awq:
        return {cols_, rows_ / 8};
      case e2m1_nv:
      case e2m1_mx:
        return {rows_, cols_ / 2};
    }
    return {};
  }

  // ---------------------------------------------------------------- fp8

  bool by_block() const {
    return scales_->shape == Shape{weight_blocks(rows_), weight_blocks(cols_)};
  }
  bool by_row() const {
    return scales_->shape == Shape{rows_} || scales_->shape == Shape{rows_, 1};
  }
  bool is_scalar(const CheckpointTensor& t) const {
    return std::ranges::all_of(t.shape, [](std::int64_t n) { return n == 1; });
  }
  bool fits_e4m3(BoundFormat& out) {
    const SafetensorsDType t = scales_->dtype;
    if ((is_float(t) || is_exponent(t)) && (by_block() || by_row() || is_scalar(*scales_))) {
      return true;
    }
    return complain(out, *scales_,
                    fmt::format("F32, BF16, F16 or F8_E8M0 of [{}, {}] blocks, [{}, 1] rows or one "
                                "tensor",
                                weight_blocks(rows_), weight_blocks(cols_), rows_));
  }
  void bind_e4m3(WeightView& w) {
    w.data = in_place(*codes_);
    w.scale_rows = by_row() && !by_block() && rows_ > 1;
    if (options_.headers_only) return;
    const std::int64_t count = w.scale_count();
    float* to = weights_.take_floats(count);
    const bool one = is_scalar(*scales_);
    for (std::int64_t i = 0; i < count; ++i) to[i] = float_at(*scales_, one ? 0 : i);
    w.scales = to;
  }

  // ---------------------------------------------------------------- int4

  std::int64_t groups() const { return cols_ / group_; }
  bool by_output() const { return format_.packing == u4_rows; }  // scales are [out, groups]
  bool is_int4() const {
    return format_.packing == u4_rows || format_.packing == u4_gptq || format_.packing == u4_awq;
  }

  bool fits_u4(BoundFormat& out) {
    // Scales are [out, groups] or [groups, out].
    const Shape& s = scales_->shape;
    const std::size_t of_group = by_output() ? 1 : 0;
    const std::int64_t count = s.size() == 2 ? s[of_group] : 0;
    group_ = count > 0 && cols_ % count == 0 ? static_cast<std::int32_t>(cols_ / count) : 0;
    const bool known = group_ == 32 || group_ == 64 || group_ == 128;
    if (!known || !is_half(scales_->dtype) || s[1 - of_group] != rows_ || rows_ % 8 != 0) {
      return complain_scales(out);
    }
    zeros_ = tensor(format_.zeros);
    order_ = tensor(format_.order);
    if (zeros_ == nullptr && (!by_output() || options_.has_zeros)) return miss(out, format_.zeros);
    const bool ordered = format_.packing == u4_gptq
                             ? options_.has_order
                             : format_.packing == u4_rows && options_.rows_ordered;
    if (order_ == nullptr && ordered) {
      return miss(out, format_.order);
    }
    if (zeros_ != nullptr) {
      const Shape shape = by_output() ? Shape{rows_ / 8, groups()} : Shape{groups(), rows_ / 8};
      // One of the two has other groups: config.json says which.
      const bool as_said =
          zeros_->shape == shape || options_.group == 0 || group_ == options_.group;
      if (!as_said) return complain_scales(out);
      if (zeros_->dtype != SafetensorsDType::I32 || zeros_->shape != shape) {
        return complain(out, *zeros_, fmt::format("I32 [{}]", fmt::join(shape, ", ")));
      }
    }
    if (order_ != nullptr &&
        (order_->dtype != SafetensorsDType::I32 || order_->shape != Shape{cols_})) {
      return complain(out, *order_, fmt::format("I32 [{}]", cols_));
    }
    return true;
  }

  bool complain_scales(BoundFormat& out) const {
    const std::string wanted = by_output() ? fmt::format("[{}, {} / group]", rows_, cols_)
                                           : fmt::format("[{} / group, {}]", cols_, rows_);
    return complain(out, *scales_, "BF16 or F16 " + wanted + ", groups of 32, 64 or 128");
  }

  // columns: sorted by group, or empty if they are so already. False: not every group has group_
  // columns.
  bool sort_columns(std::vector<std::int32_t>& columns) const {
    if (order_ == nullptr) return true;
    std::vector<std::int32_t> group(static_cast<std::size_t>(cols_));
    std::memcpy(group.data(), order_->bytes.data(), order_->bytes.size());
    // compressed-tensors leaves -1 where nothing has ordered the columns.
    if (format_.packing == u4_rows && std::ranges::count(group, -1) > 0) return true;
    if (std::ranges::is_sorted(group)) {
      columns.clear();
    } else {
      columns.resize(group.size());
      std::iota(columns.begin(), columns.end(), 0);
      std::ranges::stable_sort(columns, {},
                               [&](std::int32_t c) { return group[static_cast<std::size_t>(c)]; });
    }
    std::ranges::sort(group);
    for (std::int64_t c = 0; c < cols_; ++c) {
      if (group[static_cast<std::size_t>(c)] != c / group_) return false;
    }
    return true;
  }

  void bind_u4(BoundFormat& out) {
    WeightView& w = out.weight;
    w.dtype = DType::u4;
    w.groups.size = group_;
    w.groups.dtype = scales_->dtype == SafetensorsDType::BF16 ? DType::bf16 : DType::f16;
    std::vector<std::int32_t> columns;
    if (options_.contents && !sort_columns(columns)) {
      if (options_.group != 0 && group_ != options_.group) {
        complain_scales(out);
        return;
      }
      complain(out, *order_, fmt::format("{} columns of each of {} groups", group_, groups()));
      return;
    }
    if (options_.contents && drops_zeros() && !stored_zeros_are_8()) {
      complain(out, *zeros_, "zero points of 8, as config.json's \"sym\" says");
      return;
    }
    if (options_.headers_only) {
      w.data = codes_->bytes.data();
      w.groups.data = scales_->bytes.data();
      return;
    }
    w.data = packed_codes();
    if (!columns.empty()) {
      std::byte* to = weights_.take(rows_ * cols_ / 2);
      reorder_columns(w.data, rows_, cols_, columns, threads_, to);
      w.data = to;
      auto* kept = reinterpret_cast<std::int32_t*>(weights_.take(4 * cols_));
      std::ranges::copy(columns, kept);
      w.columns = kept;
    }
    w.groups.data = packed_scales();
    if (zeros_ != nullptr && !drops_zeros()) bind_zeros(w);
  }
  bool drops_zeros() const { return format_.packing == u4_gptq && options_.no_zeros; }
  bool stored_zeros_are_8() const {
    const unsigned each = options_.gptq_v2 ? 0x88 : 0x77;
    return std::ranges::all_of(zeros_->bytes,
                               [&](std::byte b) { return std::to_integer<unsigned>(b) == each; });
  }
  const std::byte* packed_codes() {
    if (by_output()) return in_place(*codes_);
    std::byte* to = weights_.take(rows_ * cols_ / 2);
    const U4Source from{codes_->bytes.data(), rows_, cols_};
    if (format_.packing == u4_gptq) {
      repack_gptq(from, threads_, to);
    } else {
      repack_awq(from, threads_, to);
    }
    return to;
  }
  const std::byte* packed_scales() {
    if (by_output()) return in_place(*scales_);
    std::byte* to = weights_.take(2 * rows_ * groups());
    transpose(scales_->bytes.data(), groups(), rows_, 2, to);
    return to;
  }
  void bind_zeros(WeightView& w) {
    const std::int64_t count = rows_ * groups();
    auto* to = reinterpret_cast<std::uint8_t*>(weights_.take(count));
    const std::byte* words = zeros_->bytes.data();
    if (by_output()) {
      unpack_zeros_rows(words, groups(), rows_, to);
    } else if (format_.packing == u4_awq) {
      unpack_zeros_awq(words, groups(), rows_, to);
    } else {
      unpack_zeros_gptq(words, groups(), rows_, options_.gptq_v2 ? 0 : 1, to);
    }
    w.groups.zeros = to;
  }

  // ---------------------------------------------------------------- e2m1

  bool fits_nv(BoundFormat& out) {
    const Shape shape = {rows_, cols_ / kNvBlock};
    if (scales_->dtype != SafetensorsDType::F8_E4M3 || scales_->shape != shape ||
        cols_ % kMxBlock != 0) {
      return complain(out, *scales_, fmt::format("F8_E4M3 [{}]", fmt::join(shape, ", ")));
    }
    factor_ = tensor(format_.factor);
    if (factor_ == nullptr) return miss(out, format_.factor);
    if (factor_->dtype == SafetensorsDType::F32 && is_scalar(*factor_)) return true;
    return complain(out, *factor_, "one F32");
  }
  void bind_nv(BoundFormat& out) {
    WeightView& w = out.weight;
    w.dtype = DType::e2m1;
    w.data = in_place(*codes_);
    w.groups = {in_place(*scales_), DType::e4m3, static_cast<std::int32_t>(kNvBlock), nullptr};
    if (options_.headers_only) return;
    float* factor = weights_.take_floats(1);
    *factor = float_at(*factor_, 0);
    if (format_.divides) *factor = 1 / *factor;
    w.scales = factor;
  }
  bool fits_mx(BoundFormat& out) {
    const Shape shape = {rows_, cols_ / kMxBlock};
    if (is_exponent(scales_->dtype) && scales_->shape == shape && cols_ % kMxBlock == 0) {
      return true;
    }
    return complain(out, *scales_, fmt::format("U8 or F8_E8M0 [{}]", fmt::join(shape, ", ")));
  }

  const Find& find_;
  const std::string& module_;
  const WeightFormat& format_;
  std::int64_t rows_, cols_;
  const FormatOptions& options_;
  ThreadPool* threads_;
  ModelWeights& weights_;
  const CheckpointTensor *codes_ = nullptr, *scales_ = nullptr, *zeros_ = nullptr,
                         *order_ = nullptr, *factor_ = nullptr;
  std::int32_t group_ = 0;  // int4: columns of a group
};

void add_once(std::vector<std::string>& to, std::string text) {
  if (std::ranges::find(to, text) == to.end()) to.push_back(std::move(text));
}

// The complaints of the rows that the module resembles most.
BoundFormat nearest(std::vector<Binder>& binders, bool any_codes) {
  int most = std::numeric_limits<int>::min();
  std::vector<Binder*> best;
  for (Binder& b : binders) {
    if (any_codes ? !b.has_codes() : !b.has_scales()) continue;
    const int likeness = b.likeness();
    if (likeness > most) best.clear();
    most = std::max(most, likeness);
    if (likeness == most) best.push_back(&b);
  }
  BoundFormat out;
  std::vector<std::string> wanted, missing;
  std::string codes;
  for (Binder* b : best) {
    BoundFormat row;
    if (!any_codes) {
      row.missing = b->codes_name();
    } else if (!b->codes_fit()) {
      codes = b->codes_text();
      add_once(wanted, b->wanted_codes());
    } else {
      b->fits(row);
    }
    if (!row.missing.empty()) add_once(missing, std::move(row.missing));
    if (out.misshapen.empty()) out.misshapen = std::move(row.misshapen);
  }
  if (out.misshapen.empty() && !codes.empty()) {
    out.misshapen = fmt::format("{} (wanted {})", codes, fmt::join(wanted, ", or "));
  }
  // A wrong shape says more than a name that another row does not have.
  if (out.misshapen.empty()) out.missing = fmt::format("{}", fmt::join(missing, " or "));
  return out;
}

}  // namespace

bool is_in_format(const Find& find, const std::string& module, const WeightFormat& format) {
  const auto tensor = [&](std::string_view suffix) { return find(module + std::string(suffix)); };
  const CheckpointTensor *codes = tensor(format.codes), *scales = tensor(format.scales);
  if (codes == nullptr || scales == nullptr) return false;
  if (!holds_codes(format.packing, codes->dtype)) return false;
  if (!may_hold_scales(format.packing, scales->dtype)) return false;
  if (!format.factor.empty() && tensor(format.factor) == nullptr) return false;
  // GPTQ and AWQ have the same names. Their scales are [groups, out].
  const auto width = [](const CheckpointTensor& t) { return t.shape.empty() ? 0 : t.shape.back(); };
  if (format.packing == u4_gptq) return width(*codes) == width(*scales);
  return format.packing != u4_awq || width(*codes) * 8 == width(*scales);
}

bool bind_format(const Find& find, const std::string& module, std::int64_t rows, std::int64_t cols,
                 const FormatOptions& options, ThreadPool* threads, ModelWeights& weights,
                 BoundFormat& out) {
  std::vector<Binder> binders;
  binders.reserve(weight_formats().size());
  bool any_codes = false, any_scales = false;
  for (const WeightFormat& format : weight_formats()) {
    Binder& binder =
        binders.emplace_back(find, module, format, rows, cols, options, threads, weights);
    any_codes |= binder.has_codes();
    any_scales |= binder.has_scales();
    BoundFormat row;
    if (!binder.has_codes() || !binder.codes_fit() || !binder.fits(row)) continue;
    binder.bind(row);
    out = std::move(row);
    return true;
  }
  const bool no_codes = any_scales && find(module + ".weight") == nullptr;
  if (!any_codes && !no_codes) return false;
  out = nearest(binders, any_codes);
  return true;
}

}  // namespace lathe
