// Loads a checkpoint's weights by the tensor table.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "base/float_formats.h"
#include "model/config/split_sizes.h"
#include "model/layers/decoder.h"
#include "model/layers/draft_layer.h"
#include "model/load/bind_format.h"
#include "model/load/check_tensors.h"
#include "model/load/check_values.h"
#include "model/load/dummy_weights.h"
#include "model/load/part.h"
#include "model/model.h"
#include "model/weights/tensor_table.h"
#include "model/weights/weight_formats.h"
#include "model/weights/weights.h"

namespace lathe {
namespace {

constexpr std::size_t kNamesShown = 16;

// Collects problems with a checkpoint's tensors, to report all of them at once.
class Complaints {
 public:
  /// quantised: of a matrix in a format.
  void missing(const std::string& name, bool quantised = false) {
    add(missing_, name);
    unreadable_ |= quantised;
  }
  void unexpected(const std::string& name, bool quantised = false) {
    add(unexpected_, name);
    unreadable_ |= quantised;
  }
  void misshapen(std::string text) { add(misshapen_, std::move(text)); }
  /// Of a quantised matrix.
  void unreadable(std::string text) {
    misshapen(std::move(text));
    unreadable_ = true;
  }

  std::optional<Error> error(const std::string& directory) const {
    std::string text;
    const auto list = [&](std::string_view what, const List& of) {
      if (of.count == 0) return;
      text += fmt::format("{}{} {}: {}", text.empty() ? "" : "; ", of.count, what,
                          fmt::join(of.shown, ", "));
      if (of.count > of.shown.size()) text += ", ...";
    };
    list("missing", missing_);
    list("unexpected", unexpected_);
    list("of another shape or dtype", misshapen_);
    if (text.empty()) return std::nullopt;
    return Error{ErrorCode::malformed, directory, "the tensors that config.json describes", text,
                 unreadable_ ? "formats of weights: " + weight_formats_text() : ""};
  }

 private:
  struct List {
    std::size_t count = 0;
    std::vector<std::string> shown;
  };
  static void add(List& list, std::string text) {
    if (++list.count <= kNamesShown) list.shown.push_back(std::move(text));
  }
  List missing_, unexpected_, misshapen_;
  bool unreadable_ = false;
};

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// What of a checkpoint is read: names, shapes and dtypes; scales, and the order of columns; the
// weights.
enum class Reads { headers, scales, all };

class Loader {
 public:
  /// wide: the dtype of matrices that have no packed form in memory. source: copies what the
  /// weights' backend asks for; null: the backend reads the mapping.
  Loader(const ModelConfig& config, const Checkpoint& checkpoint, ModelWeights& weights,
         ThreadPool* threads, DType wide, FileSource* source, Reads reads = Reads::all)
      : config_(config),
        checkpoint_(checkpoint),
        weights_(weights),
        threads_(threads),
        wide_(wide),
        source_(source),
        reads_(reads) {
    index_names();
  }

  /// Tensors with bytes that only the source copies.
  std::unordered_set<const CheckpointTensor*> of_source(
      const std::vector<TensorSpec>& table) const {
    std::unordered_set<const CheckpointTensor*> out;
    for (const TensorSpec& spec : table) {
      if ((spec.matrix == nullptr && spec.stack == nullptr) || spec.split) continue;
      if (spec.whole_stack) {
        if (config_.mxfp4) out.insert(checkpoint_.find(spec.name + "_blocks"));
        continue;
      }
      const CheckpointTensor* tensor = find(spec.name);
      if (tensor == nullptr && spec.of_stack) tensor = find(spec.of_stack->name);
      if (tensor == nullptr) continue;
      const std::optional<DType> dtype = dtype_of(tensor->dtype);
      if (plain(dtype) || dtype == DType::e4m3 || pairs_of_codes(spec, *tensor)) out.insert(tensor);
    }
    return out;
  }

  Result<void> run(const std::string& directory, const std::vector<TensorSpec>& table) {
    std::unordered_set<std::string_view> read;
    for (const TensorSpec& spec : table) {
      if (spec.whole_stack && config_.mxfp4) {
        bind_mxfp4(spec, read);
        continue;
      }
      if (may_be_packed(spec) && bind_packed(spec, read)) continue;
      const CheckpointTensor* tensor = find(spec.name);
      if (tensor == nullptr && spec.of_stack) {
        if (const CheckpointTensor* all = find(spec.of_stack->name); all != nullptr) {
          read.insert(all->name);
          bind_of_stack(spec, *all);
          continue;
        }
      }
      if (tensor == nullptr) {
        const std::string module = spec.name.substr(0, spec.name.rfind('.'));
        complaints_.missing(spec.name, !format_tensors(module).empty());
        continue;
      }
      read.insert(tensor->name);
      if (const auto pairs = pairs_of_codes(spec, *tensor)) {
        read.insert(bind_mx(spec, *tensor, *pairs));
        continue;
      }
      if (tensor->shape != spec.shape) {
        complaints_.misshapen(fmt::format("{} {} (wanted {})", spec.name, shape_text(tensor->shape),
                                          shape_text(spec.shape)));
        continue;
      }
      if (spec.vector != nullptr) {
        widen(spec, *tensor);
      } else if (spec.ids != nullptr) {
        read_ids(spec, *tensor);
      } else if (spec.whole_stack) {
        turn(spec, *tensor);
      } else if (const CheckpointTensor* scales = bind(spec, *tensor); scales != nullptr) {
        read.insert(scales->name);
      }
    }
    bind_kv_scales(read);
    for (const CheckpointTensor& t : checkpoint_.tensors()) {
      if (!read.contains(t.name) && (!ignored_tensor(config_, t.name) || of_no_draft(t.name))) {
        complaints_.unexpected(t.name, is_of_format(t.name));
      }
    }
    if (auto error = complaints_.error(directory)) return *error;
    return reads_ == Reads::headers ? Result<void>() : check_values();
  }

 private:
  bool headers_only() const { return reads_ != Reads::all; }

  // DeepSeek V4's tensors have several names; the table has one of them.
  void index_names() {
    if (!config_.is_compressed()) return;
    for (const CheckpointTensor& t : checkpoint_.tensors()) {
      by_published_name_.emplace(published_v4_name(t.name), &t);
    }
  }
  const CheckpointTensor* find(const std::string& name) const {
    if (!config_.is_compressed()) return checkpoint_.find(name);
    const auto found = by_published_name_.find(name);
    return found == by_published_name_.end() ? nullptr : found->second;
  }

  // A tensor of a layer past the last that has no eh_proj, so is not a draft layer: the
  // configuration has fewer layers than the checkpoint.
  bool of_no_draft(std::string_view tensor) const {
    const std::optional<std::int32_t> layer = layer_of(tensor);
    return layer && *layer >= config_.layers &&
           checkpoint_.find(fmt::format("model.layers.{}.eh_proj.weight", *layer)) == nullptr;
  }
  static bool plain(std::optional<DType> t) {
    return t == DType::f32 || t == DType::bf16 || t == DType::f16;
  }

  void wrong_dtype(const TensorSpec& spec, const CheckpointTensor& tensor,
                   std::string_view wanted) {
    complaints_.misshapen(fmt::format("{} {} (wanted {})", spec.name, name(tensor.dtype), wanted));
  }

  std::span<float> widened(const CheckpointTensor& tensor) {
    const DType dtype = *dtype_of(tensor.dtype);
    const auto size = static_cast<std::size_t>(bits_of(dtype) / 8);
    const std::size_t count = tensor.bytes.size() / size;
    const std::span out(weights_.take_floats(static_cast<std::int64_t>(count)), count);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::byte* at = tensor.bytes.data() + i * size;  // any alignment
      if (dtype == DType::f32) {
        std::memcpy(&out[i], at, size);
        continue;
      }
      std::uint16_t bits = 0;
      std::memcpy(&bits, at, size);
      out[i] = dtype == DType::bf16 ? to_f32(bf16{bits}) : to_f32(f16{bits});
    }
    return out;
  }

  void widen(const TensorSpec& spec, const CheckpointTensor& tensor) {
    if (!plain(dtype_of(tensor.dtype))) return wrong_dtype(spec, tensor, "F32, BF16 or F16");
    if (headers_only()) return;
    const std::span<float> values = widened(tensor);
    for (float& v : values) v = (v + spec.offset) * spec.factor;
    *spec.vector = values;
    if (is_whole(spec)) return;
    const std::vector<float> part = vector_part(spec, values);
    float* to = weights_.take_floats(std::ssize(part));
    std::ranges::copy(part, to);
    *spec.vector = {to, part.size()};
  }

  // A matrix without rows or columns, in the dtype that every GEMM computes without bytes.
  static WeightView set_nothing(const TensorSpec& spec) {
    const WeightView none{nullptr, DType::f32, spec.part.rows.count, spec.part.cols.count};
    spec.set(none);
    return none;
  }

  // Sets this rank's part of a matrix whose bytes have been counted, and returns it.
  WeightView set_part(const TensorSpec& spec, const WeightView& whole) {
    if (headers_only() || is_whole(spec)) {
      if (headers_only()) {  // a fused tensor's bytes are counted once
        weights_.bytes -= whole.bytes() / spec.shape[0] * (spec.shape[0] - spec.part.rows.count);
      }
      spec.set(whole);
      return whole;
    }
    weights_.bytes -= whole.bytes();
    if (spec.place < 0) return {};
    if (spec.part.empty()) return set_nothing(spec);
    const bool cut =
        spec.joined && whole.dtype == DType::e4m3 && spec.stack->rows % kWeightBlock != 0;
    const WeightView part =
        matrix_part(whole, spec.part, threads_, weights_, cut ? nullptr : source_);
    const bool viewed = part.data >= whole.data && part.data < whole.data + whole.bytes();
    if (viewed) weights_.bytes += part.bytes();
    spec.set(cut && part.dtype == DType::e4m3 ? in_f32(part) : part);
    return part;
  }

  void read_ids(const TensorSpec& spec, const CheckpointTensor& tensor) {
    const bool wide = tensor.dtype == SafetensorsDType::I64;
    if (!wide && tensor.dtype != SafetensorsDType::I32) {
      return wrong_dtype(spec, tensor, "I32 or I64");
    }
    if (headers_only()) return;
    const std::int64_t n = spec.elements();
    auto* ids = reinterpret_cast<std::int32_t*>(weights_.take(4 * n));
    for (std::int64_t i = 0; i < n; ++i) {
      std::int64_t id = 0;  // safetensors files are little-endian
      std::memcpy(&id, tensor.bytes.data() + i * (wide ? 8 : 4), wide ? 8 : 4);
      if (!wide) id = static_cast<std::int32_t>(id);
      if (id < 0 || id >= spec.id_end) {
        complaints_.misshapen(fmt::format("{}[{}, {}] = {} (wanted 0 to {})", tensor.name,
                                          i / spec.shape[1], i % spec.shape[1], id,
                                          spec.id_end - 1));
        return;
      }
      ids[i] = static_cast<std::int32_t>(id);
    }
    *spec.ids = {ids, static_cast<std::size_t>(n)};
  }

  // Bytes of a row of e2m1 codes, two in a byte, if the tensor has such codes, under any dtype that
  // files use for them.
  static std::optional<std::int64_t> pairs_of_codes(const TensorSpec& spec,
                                                    const CheckpointTensor& tensor) {
    const bool codes = tensor.dtype == SafetensorsDType::I8 ||
                       tensor.dtype == SafetensorsDType::U8 || tensor.dtype == SafetensorsDType::F4;
    if (!spec.may_be_mx || !codes) return std::nullopt;
    return spec.shape[1] / (tensor.dtype == SafetensorsDType::F4 ? 1 : 2);
  }

  // Binds a matrix of e2m1 codes in place; returns the name of its scales, or an empty one.
  std::string_view bind_mx(const TensorSpec& spec, const CheckpointTensor& tensor,
                           std::int64_t cols) {
    if (tensor.shape != std::vector{spec.shape[0], cols} || spec.shape[1] % kMxBlock != 0) {
      complaints_.misshapen(fmt::format("{} {} {} (wanted {}, of blocks of {})", spec.name,
                                        name(tensor.dtype), shape_text(tensor.shape),
                                        shape_text(std::vector{spec.shape[0], cols}), kMxBlock));
      return {};
    }
    check_like(spec, {.dtype = DType::e2m1});
    const std::string scale = scale_name(spec);
    const CheckpointTensor* scales = find(scale);
    if (scales == nullptr) {
      complaints_.missing(scale);
      return {};
    }
    const std::vector shape = {spec.shape[0], spec.shape[1] / kMxBlock};
    if (!exponents(*scales) || scales->shape != shape) {
      complaints_.misshapen(fmt::format("{} {} {} (wanted F8_E8M0 or U8 {})", scale,
                                        name(scales->dtype), shape_text(scales->shape),
                                        shape_text(shape)));
      return scales->name;
    }
    weights_.bytes += std::ssize(tensor.bytes) + std::ssize(scales->bytes);
    set_part(spec, {tensor.bytes.data(), DType::e2m1, spec.shape[0], spec.shape[1], nullptr,
                    reinterpret_cast<const ue8m0*>(scales->bytes.data())});
    packed_.push_back({{}, {}, scales});
    return scales->name;
  }

  // Whether the scales are powers of two stored as one exponent byte each.
  static bool exponents(const CheckpointTensor& tensor) {
    return tensor.dtype == SafetensorsDType::F8_E8M0 || tensor.dtype == SafetensorsDType::U8;
  }
  std::span<const float> factors(const CheckpointTensor& tensor) {
    if (!exponents(tensor)) return widened(tensor);
    const std::span out(weights_.take_floats(std::ssize(tensor.bytes)), tensor.bytes.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = to_f32(ue8m0{std::to_integer<std::uint8_t>(tensor.bytes[i])});
    }
    return out;
  }

  // dst[2c] is column c of src [rows, cols], and dst[2c + 1] is column cols / 2 + c.
  static void transpose_halves(const std::byte* src, std::int64_t rows, std::int64_t cols,
                               std::int64_t size, std::byte* dst) {
    const std::int64_t row = rows * size;  // bytes
    std::vector<std::byte> turned(static_cast<std::size_t>(cols * row));
    transpose(src, rows, cols, size, turned.data());
    for (std::int64_t c = 0; c < cols; ++c) {
      const std::int64_t to = c < cols / 2 ? 2 * c : 2 * (c - cols / 2) + 1;
      std::memcpy(dst + to * row, turned.data() + c * row, static_cast<std::size_t>(row));
    }
  }

  // The part of one matrix of a whole stack, as it is stored: [in, out]. With `halves`, the part's
  // columns of the first half, then those of the second.
  static std::vector<std::byte> stored_part(const TensorSpec& spec, const std::byte* from,
                                            std::int64_t size) {
    const Range &rows = spec.part.rows, &cols = spec.part.cols;
    const std::int64_t stride = spec.shape[2], halves = spec.halves ? 2 : 1;
    const std::int64_t width = rows.count / halves * size;
    std::vector<std::byte> out(static_cast<std::size_t>(cols.count * rows.count * size));
    for (std::int64_t i = 0; i < cols.count * halves; ++i) {
      const std::int64_t in = cols.first + i / halves;
      const std::int64_t first = i % halves * (stride / 2) + rows.first / halves;
      std::memcpy(out.data() + i * width, from + (in * stride + first) * size,
                  static_cast<std::size_t>(width));
    }
    return out;
  }

  // Transposes a stack of matrices stored as [in, out].
  void turn(const TensorSpec& spec, const CheckpointTensor& tensor) {
    const std::optional<DType> dtype = dtype_of(tensor.dtype);
    if (!plain(dtype)) return wrong_dtype(spec, tensor, "F32, BF16 or F16");
    if (headers_only()) return;
    WeightStack& stack = *spec.stack;
    stack.dtype = *dtype;
    const std::int64_t size = bits_of(*dtype) / 8;
    const std::int64_t whole = spec.shape[1] * spec.shape[2] * size;
    const std::int64_t bytes = stack.rows * stack.cols * size;
    std::byte* to = weights_.take(stack.count() * bytes);
    for_each(threads_, stack.count(), [&](std::int64_t i) {
      const std::byte* from = tensor.bytes.data() + (spec.part.matrices.first + i) * whole;
      std::vector<std::byte> part;
      if (bytes != whole) {
        part = stored_part(spec, from, size);
        from = part.data();
      }
      if (spec.halves) {
        transpose_halves(from, stack.cols, stack.rows, size, to + i * bytes);
      } else {
        transpose(from, stack.cols, stack.rows, size, to + i * bytes);
      }
      stack.set(i, {to + i * bytes, *dtype, stack.rows, stack.cols});
    });
  }

  // Binds an MXFP4 stack in place: its bytes need no alignment.
  void bind_mxfp4(const TensorSpec& spec, std::unordered_set<std::string_view>& read) {
    WeightStack& stack = *spec.stack;
    const std::int64_t count = spec.shape[0], cols = spec.shape[1], rows = spec.shape[2];
    const std::int64_t blocks = cols / kMxBlock;
    const auto bytes_of_part = [&](const char* part, std::vector<std::int64_t> shape) {
      const std::string name = spec.name + part;
      const CheckpointTensor* tensor = checkpoint_.find(name);
      if (tensor == nullptr) {
        complaints_.missing(name);
        return static_cast<const std::byte*>(nullptr);
      }
      read.insert(tensor->name);
      if (tensor->dtype != SafetensorsDType::U8 || tensor->shape != shape) {
        complaints_.misshapen(fmt::format("{} {} {} (wanted U8 {})", name,
                                          lathe::name(tensor->dtype), shape_text(tensor->shape),
                                          shape_text(shape)));
        return static_cast<const std::byte*>(nullptr);
      }
      return tensor->bytes.data();
    };
    const std::byte* codes = bytes_of_part("_blocks", {count, rows, blocks, kMxBlock / 2});
    const std::byte* scales = bytes_of_part("_scales", {count, rows, blocks});
    if (codes == nullptr || scales == nullptr) return;
    stack.dtype = DType::e2m1;
    for (std::int64_t i = 0; i < stack.count(); ++i) {
      const std::int64_t at = spec.part.matrices.first + i;
      const WeightView whole{codes + at * rows * cols / 2,
                             DType::e2m1,
                             rows,
                             cols,
                             nullptr,
                             reinterpret_cast<const ue8m0*>(scales + at * rows * blocks)};
      if (headers_only()) {
        stack.set(i, whole);
        continue;
      }
      stack.set(i, matrix_part(whole, spec.part, threads_, weights_, source_));
      if (spec.part.cols.count == cols) weights_.bytes += stack.at(i).bytes();
    }
    packed_.push_back({{}, {}, checkpoint_.find(spec.name + "_scales")});
  }

  // DeepSeek V4's own formats have scales in scale_name(); NVIDIA's has experts in NVFP4.
  bool may_be_packed(const TensorSpec& spec) const {
    if (!spec.linear && !spec.packable) return false;
    if (!config_.is_compressed()) return true;
    const std::string module = spec.name.substr(0, spec.name.rfind('.'));
    return spec.may_be_mx && find(module + ".weight_scale") != nullptr;
  }

  // Binds a matrix in one of weight_formats(); false: it is not quantised.
  bool bind_packed(const TensorSpec& spec, std::unordered_set<std::string_view>& read) {
    const std::string module = spec.name.substr(0, spec.name.rfind('.'));
    // Of a matrix that other ranks have, only the headers matter.
    const bool absent = spec.part.empty();
    const FormatOptions options{config_.gptq_v2, !config_.int4_zeros, headers_only() || absent,
                                reads_ != Reads::headers && !absent};
    const std::int64_t bytes = weights_.bytes;
    const auto find_tensor = [&](const std::string& name) { return find(name); };
    BoundFormat bound;
    if (!bind_format(find_tensor, module, spec.shape[0], spec.shape[1], options, threads_, weights_,
                     bound)) {
      return false;
    }
    read.insert(bound.read.begin(), bound.read.end());
    if (!bound.missing.empty() || !bound.misshapen.empty()) {
      if (!bound.missing.empty()) complaints_.missing(bound.missing, true);
      if (!bound.misshapen.empty()) complaints_.unreadable(std::move(bound.misshapen));
      for (const CheckpointTensor* t : format_tensors(module)) read.insert(t->name);
      return true;
    }
    if (absent && !headers_only()) {
      weights_.bytes = bytes;
      if (spec.place >= 0) set_nothing(spec);
      return true;
    }
    WeightView& w = bound.weight;
    check_like(spec, w);
    const WeightFormat& format = *bound.format;
    const bool whole = w.dtype == DType::e4m3 && !w.scale_rows;
    const WeightView codes = w;
    if (spec.split && !whole && !headers_only()) w = widened(w);
    const WeightView part = set_part(spec, w);
    const bool own = part.dtype == DType::e4m3 && part.data != nullptr;
    packed_.push_back({own ? part : codes, module + std::string(format.codes), bound.scales,
                       own ? spec.part : TensorPart{}, bound.factor, format.divides});
    return true;
  }
  // Whether a tensor has a name that only formats of weights use.
  static bool is_of_format(std::string_view name) {
    return std::ranges::any_of(weight_formats(), [&](const WeightFormat& f) {
      return std::ranges::any_of(
          std::array{f.codes, f.scales, f.zeros, f.order, f.factor},
          [&](std::string_view s) { return !s.empty() && s != ".weight" && name.ends_with(s); });
    });
  }
  // Tensors of the module that some format has.
  std::vector<const CheckpointTensor*> format_tensors(const std::string& module) const {
    std::vector<const CheckpointTensor*> out;
    const auto add = [&](std::string_view suffix) {
      const CheckpointTensor* t = suffix.empty() ? nullptr : find(module + std::string(suffix));
      if (t != nullptr) out.push_back(t);
    };
    for (const WeightFormat& f : weight_formats()) {
      for (const std::string_view s : {f.codes, f.scales, f.zeros, f.order, f.factor}) add(s);
    }
    for (const std::string_view s : unread_suffixes()) add(s);
    return out;
  }

  // Binds a tensor; returns the tensor of its scales, if it has one.
  const CheckpointTensor* bind(const TensorSpec& spec, const CheckpointTensor& tensor) {
    const std::optional<DType> dtype = dtype_of(tensor.dtype);
    const bool fp8 =
        dtype == DType::e4m3 && spec.linear && config_.block_fp8 && config_.is_compressed();
    if (!plain(dtype) && !fp8) {
      wrong_dtype(spec, tensor, "F32, BF16 or F16");
      return nullptr;
    }
    WeightView w{in_place(tensor.bytes, *dtype), *dtype, spec.shape[0], spec.shape[1], nullptr};
    check_like(spec, w);
    if (!fp8) {
      set_part(spec, w);
      return nullptr;
    }
    const std::string scale = scale_name(spec);
    const CheckpointTensor* scales = find(scale);
    if (scales == nullptr) {
      complaints_.missing(scale);
      return nullptr;
    }
    const std::vector<std::int64_t> shape = {weight_blocks(spec.shape[0]),
                                             weight_blocks(spec.shape[1])};
    if (scales->shape != shape || (!plain(dtype_of(scales->dtype)) && !exponents(*scales))) {
      complaints_.misshapen(fmt::format("{} {} {} (wanted F8_E8M0, U8 or F32 {})", scale,
                                        name(scales->dtype), shape_text(scales->shape),
                                        shape_text(shape)));
      return scales;
    }
    if (headers_only()) {
      packed_.push_back({{}, {}, scales});
      spec.set(w);
      return scales;
    }
    w.scales = factors(*scales).data();
    if (is_whole(spec)) {
      packed_.push_back({w, tensor.name, scales});
      if (spec.joined && spec.stack->rows % kWeightBlock != 0) w = in_f32(w);
      spec.set(w);
      return scales;
    }
    const WeightView part = set_part(spec, w);
    const bool own = part.dtype == DType::e4m3;
    if (!spec.part.empty()) {
      packed_.push_back({own ? part : w, tensor.name, scales, own ? spec.part : TensorPart{}});
    }
    return scales;
  }

  // Binds an expert's matrix in a tensor that has those of all experts.
  void bind_of_stack(const TensorSpec& spec, const CheckpointTensor& tensor) {
    const TensorSpec::OfStack& of = *spec.of_stack;
    const std::vector shape = {of.matrices, of.rows, spec.shape[1]};
    const std::optional<DType> dtype = dtype_of(tensor.dtype);
    if (!plain(dtype) || tensor.shape != shape) {
      if (of.matrix > 0 || of.first > 0) return;  // once for the tensor
      complaints_.misshapen(fmt::format("{} {} {} (wanted F32, BF16 or F16 {})", of.name,
                                        name(tensor.dtype), shape_text(tensor.shape),
                                        shape_text(shape)));
      return;
    }
    const std::int64_t rows = spec.shape[0], row = bytes_of(*dtype, spec.shape[1]);
    const auto bytes =
        tensor.bytes.subspan(static_cast<std::size_t>((of.matrix * of.rows + of.first) * row),
                             static_cast<std::size_t>(rows * row));
    const WeightView w{in_place(bytes, *dtype), *dtype, rows, spec.shape[1], nullptr};
    check_like(spec, w);
    set_part(spec, w);
  }

  // Reads scales of per-tensor caches, under quantisers' names. A latent is key and value at once;
  // its key's scale counts.
  void bind_kv_scales(std::unordered_set<std::string_view>& read) {
    std::vector<TensorScales> scales(static_cast<std::size_t>(config_.layers));
    bool some = false;
    std::vector<std::string> absent;
    for (std::int32_t l = 0; l < config_.layers; ++l) {
      if (config_.is_delta(l) || config_.is_reader(l)) continue;
      TensorScales& s = scales[static_cast<std::size_t>(l)];
      const bool key = bind_kv_scale(l, "k", s.key, read);
      const bool value = bind_kv_scale(l, "v", s.value, read);
      some |= key || value;
      if (!key) absent.push_back(kv_scale_name(l, "", "k"));
      // Values that are keys are normed, so a scale of 1 does if quantisers write none.
      const bool projected = !config_.groups[config_.group_of(l)].values_are_keys;
      if (!value && !config_.is_mla() && projected) absent.push_back(kv_scale_name(l, "", "v"));
    }
    if (!some) return;
    for (const std::string& name : absent) complaints_.missing(name);
    weights_.kv_scales = std::move(scales);
  }
  static std::string kv_scale_name(std::int32_t layer, std::string_view of, std::string_view part) {
    return fmt::format("model.layers.{}.self_attn.{}{}_scale", layer, of, part);
  }
  bool bind_kv_scale(std::int32_t layer, std::string_view part, float& to,
                     std::unordered_set<std::string_view>& read) {
    for (const std::string& of :
         {std::string(), std::string("attn."), fmt::format("{}_proj.", part)}) {
      const CheckpointTensor* tensor = checkpoint_.find(kv_scale_name(layer, of, part));
      if (tensor == nullptr) continue;
      read.insert(tensor->name);
      const bool one = tensor->shape.empty() || tensor->shape == std::vector<std::int64_t>{1};
      if (!one || !plain(dtype_of(tensor->dtype))) {
        complaints_.misshapen(fmt::format("{} {} {} (wanted one F32)", tensor->name,
                                          name(tensor->dtype), shape_text(tensor->shape)));
        return true;
      }
      if (headers_only()) return true;
      to = widened(*tensor)[0];
      if (!(to >= 0x1p-126f && to <= 0x1p126f)) {
        complaints_.misshapen(
            fmt::format("{} = {} (wanted a scale from 2^-126 to 2^126)", tensor->name, to));
      }
      return true;
    }
    return false;
  }

  // Expert GEMMs are prepared for one format of gates and ups and one of downs.
  void check_like(const TensorSpec& spec, const WeightView& w) {
    if (spec.like == nullptr || spec.like->count() == 0 || spec.like->data[0] == nullptr) return;
    const WeightView first = spec.like->at(0);
    const auto same = [](const auto* a, const auto* b) { return (a == nullptr) == (b == nullptr); };
    const bool alike = first.dtype == w.dtype && first.scale_rows == w.scale_rows &&
                       first.groups.size == w.groups.size && first.groups.dtype == w.groups.dtype &&
                       same(first.groups.zeros, w.groups.zeros) && same(first.columns, w.columns);
    if (alike) return;
    const std::string_view stem(spec.name.data(), spec.name.rfind('.'));
    complaints_.misshapen(fmt::format("{} {} (wanted {}, as experts.0 has)", stem, format_text(w),
                                      format_text(first)));
  }
  static std::string format_text(const WeightView& w) {
    std::string out(name(w.dtype));
    if (w.scale_rows) out += " with scales of rows";
    if (w.groups.size != 0) {
      out += fmt::format(" in groups of {}{}{}", w.groups.size,
                         w.groups.zeros == nullptr ? "" : " with zeros",
                         w.columns == nullptr ? "" : " and an order");
    }
    return out;
  }

  // An f32 copy, which can be cut at any row.
  WeightView in_f32(const WeightView& w) {
    return widened_part(w, {{0, 1}, {0, w.rows}, {0, w.cols}}, threads_, weights_);
  }

  // A copy in wide_, with the columns in x's order.
  WeightView widened(const WeightView& w) {
    const WeightView f32 = in_f32(w);
    if (wide_ == DType::f32) return f32;
    auto* to = reinterpret_cast<bf16*>(weights_.take(2 * w.rows * w.cols));
    const auto* from = reinterpret_cast<const float*>(f32.data);
    for_each(threads_, w.rows, [&](std::int64_t r) {
      for (std::int64_t i = r * w.cols; i < (r + 1) * w.cols; ++i) to[i] = to_bf16(from[i]);
    });
    return {reinterpret_cast<const std::byte*>(to), DType::bf16, w.rows, w.cols};
  }

  // The mapping itself, or a copy if its elements are not aligned.
  const std::byte* in_place(std::span<const std::byte> stored, DType dtype) {
    const auto bytes = static_cast<std::int64_t>(stored.size());
    const auto address = reinterpret_cast<std::uintptr_t>(stored.data());
    if (headers_only() || address % static_cast<std::uintptr_t>(bits_of(dtype) / 8) == 0) {
      weights_.bytes += bytes;
      return stored.data();
    }
    std::byte* copy = weights_.take(bytes);
    std::memcpy(copy, stored.data(), stored.size());
    return copy;
  }

  // Kernels do not check for NaN codes or scales out of range (kernels/linear.h).
  Result<void> check_values() {
    std::mutex guard;
    std::optional<Error> found;
    auto check = [&](std::int64_t i, int) {
      const Packed& p = packed_[static_cast<std::size_t>(i)];
      std::optional<Error> bad = wild_scale(*p.scales);
      if (!bad && p.factor != nullptr) bad = wild_scale(*p.factor, p.divides);
      if (!bad && p.codes.dtype == DType::e4m3 && !headers_only()) {
        bad = nan_code(p.codes, p.name, p.part, source_);
      }
      if (!bad) return;
      const std::lock_guard lock(guard);
      if (!found) found = std::move(bad);
    };
    const std::int64_t n = std::ssize(packed_);
    if (threads_ != nullptr) {
      threads_->run(n, check);
    } else {
      for (std::int64_t i = 0; i < n; ++i) check(i, 0);
    }
    if (found) return *found;
    return {};
  }

  const ModelConfig& config_;
  const Checkpoint& checkpoint_;
  ModelWeights& weights_;
  ThreadPool* threads_;
  DType wide_;
  FileSource* source_;
  Reads reads_;
  Complaints complaints_;
  // A quantised matrix, or a stack of them.
  struct Packed {
    WeightView codes;  // looked through if they are e4m3
    std::string name;  // of their tensor
    const CheckpointTensor* scales;
    TensorPart part = {};  // that `codes` are of their tensor
    const CheckpointTensor* factor = nullptr;
    bool divides = false;  // by the factor
  };
  std::vector<Packed> packed_;
  std::unordered_map<std::string, const CheckpointTensor*> by_published_name_;
};

// Reports how much of the weights has been prepared.
class PrepareProgress {
 public:
  PrepareProgress(std::function<void(std::int64_t, std::int64_t)> report, std::int64_t total)
      : report_(std::move(report)), total_(total) {}

  void add(std::int64_t bytes) {
    done_ = std::min(done_ + bytes, total_);
    if (report_) report_(done_, total_);
  }
  void end() {
    if (report_) report_(total_, total_);
  }

 private:
  std::function<void(std::int64_t, std::int64_t)> report_;  // or empty
  std::int64_t total_, done_ = 0;
};

// Lets the backend prepare the weights that its kernels read.
Result<void> prepare(const LoadOptions& options, const FileSource* source,
                     const std::vector<TensorSpec>& table, ModelWeights& weights) {
  Backend& backend = *options.backend;
  std::function<void(std::int64_t, std::int64_t)> report;  // otherwise it was called before
  if (source != nullptr) {
    backend.begin_prepare(*source);
    report = options.on_progress;
  }
  PrepareProgress progress(std::move(report), weights.bytes);
  const auto keep = [](auto made, auto& to) -> Result<void> {
    if (!made) return made.error();
    to = std::move(made).value();
    return {};
  };
  std::vector<OwnedBytes>& owned = weights.prepared;
  for (const TensorSpec& spec : table) {
    if (weights.on_device.contains(spec.matrix) || weights.on_device.contains(spec.stack)) continue;
    Result<void> ok;
    std::int64_t bytes = 0;
    if (spec.matrix != nullptr) {
      bytes = spec.matrix->bytes();
      ok = keep(backend.prepare(*spec.matrix, owned), *spec.matrix);
    }
    if (spec.vector != nullptr) ok = keep(backend.prepare(*spec.vector, owned), *spec.vector);
    if (spec.ids != nullptr) ok = keep(backend.prepare(*spec.ids, owned), *spec.ids);
    if (spec.stack != nullptr && spec.place == 0) {
      bytes = spec.stack->count() * spec.stack->at(0).bytes();
      ok = keep(backend.prepare(*spec.stack, owned), *spec.stack);
    }
    if (!ok) return ok;
    progress.add(bytes);
  }
  for (LayerWeights& layer : weights.layers) {
    MlaWeights& m = layer.mla;
    for (WeightStack* stack : {&m.uk, &m.uv}) {
      if (auto ok = keep(backend.prepare(*stack, owned), *stack); !ok) return ok;
    }
    for (Vector* vector : {&m.w_uk, &m.w_uv, &layer.delta.conv}) {
      if (auto ok = keep(backend.prepare(*vector, owned), *vector); !ok) return ok;
    }
  }
  progress.end();
  return backend.end_prepare();
}

// Sizes the weights for a rank. Returns the table of its tensors.
std::vector<TensorSpec> begin(const ModelConfig& config, const LoadOptions& options,
                              ModelWeights& weights) {
  weights.share = share_of(split_sizes(config), options.parallel, options.rank);
  std::vector<TensorSpec> table = tensor_table(config, weights, weights.share);
  for (LayerWeights& layer : weights.layers) {
    layer.moe.first_expert = weights.share.experts.first;
  }
  return table;
}

Result<std::unique_ptr<Model>> finish(const ModelConfig& whole, const LoadOptions& options,
                                      const std::vector<TensorSpec>& table,
                                      const FileSource* source,
                                      std::unique_ptr<ModelWeights> weights) {
  const ModelConfig config = rank_config(whole, options.parallel.tp);
  split_kv_b(config, options.expansion, options.threads, *weights);
  join_convolutions(*weights);
  if (options.backend != nullptr) {
    if (auto ok = prepare(options, source, table, *weights); !ok) return ok.error();
  }
  if (config.tied_embeddings) weights->head = weights->embedding;
  if (options.backend != nullptr && options.backend->memory().kind == MemoryKind::device) {
    // Kernels read the backend's copies.
    weights->owned.clear();
    weights->checkpoint.reset();
  }
  return make_decoder(config, std::move(weights));
}

}  // namespace

Result<void> check_tensors(const std::string& directory, const ModelConfig& config,
                           const Checkpoint& checkpoint) {
  ModelWeights nowhere(config);
  const std::vector<TensorSpec> table = tensor_table(config, nowhere);
  return Loader(config, checkpoint, nowhere, nullptr, DType::f32, nullptr, Reads::headers)
      .run(directory, table);
}

Result<void> check_scales(const std::string& directory, const ModelConfig& config,
                          const Checkpoint& checkpoint, ThreadPool* threads) {
  ModelWeights nowhere(config);
  const std::vector<TensorSpec> table = tensor_table(config, nowhere);
  return Loader(config, checkpoint, nowhere, threads, DType::f32, nullptr, Reads::scales)
      .run(directory, table);
}

Result<std::unique_ptr<Model>> make_dummy_model(const ModelConfig& config,
                                                const LoadOptions& options) {
  auto weights = std::make_unique<ModelWeights>(config);
  const std::vector<TensorSpec> table = begin(config, options, *weights);
  if (auto ok = fill_dummy(config, options, table, *weights); !ok) return ok.error();
  return finish(config, options, table, nullptr, std::move(weights));
}

Result<std::unique_ptr<Model>> load_model(const std::string& directory,
                                          const LoadOptions& options) {
  auto config = load_model_config(directory, options.overrides);
  if (config && options.drafts) config = add_draft_layer(std::move(*config));
  if (!config) return config.error();
  if (options.dummy) return make_dummy_model(*config, options);
  auto checkpoint = open_checkpoint(directory, *config);
  if (!checkpoint) return checkpoint.error();
  auto weights = std::make_unique<ModelWeights>(*config);
  weights->checkpoint = std::move(*checkpoint);
  const Checkpoint& files = *weights->checkpoint;
  const std::vector<TensorSpec> table = begin(*config, options, *weights);
  const DType wide = options.backend == nullptr ? DType::f32 : options.backend->activations();
  std::optional<FileSource> source;
  if (options.backend != nullptr && options.backend->memory().kind == MemoryKind::device) {
    source.emplace(files);
  }
  FileSource* const copies = source ? &*source : nullptr;
  Loader loader(*config, files, *weights, options.threads, wide, copies);
  // A file that is too short or cannot be read is an error here; later it would end the process.
  if (options.threads != nullptr) {
    const Result<void> read = source ? files.prefault(*options.threads, loader.of_source(table))
                                     : files.prefault(*options.threads, options.on_progress);
    if (!read) return read.error();
  }
  if (auto ok = loader.run(directory, table); !ok) return ok.error();
  return finish(*config, options, table, copies, std::move(weights));
}

}  // namespace lathe
