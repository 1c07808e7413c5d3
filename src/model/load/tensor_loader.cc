#include "model/load/tensor_loader.h"

#include <fmt/format.h>

#include <mutex>

#include "model/load/check_values.h"

namespace lathe {

std::unordered_set<const CheckpointTensor*> TensorLoader::of_source(
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

Result<void> TensorLoader::run(const std::string& directory, const std::vector<TensorSpec>& table) {
  Names read;
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
    // The complaint about a matrix is one about its scales.
    const CheckpointTensor* scales = config_.is_compressed() ? find(scale_name(spec)) : nullptr;
    if (tensor == nullptr) {
      const std::string module = spec.name.substr(0, spec.name.rfind('.'));
      complaints_.missing(spec.name, !format_tensors(module).empty());
      if (scales != nullptr) read.insert(scales->name);
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
      if (scales != nullptr) read.insert(scales->name);
      continue;
    }
    if ((spec.vector != nullptr || spec.compared) && plain(dtype_of(tensor->dtype))) {
      numbers_.push_back({tensor, spec.vector == nullptr});
    }
    if (spec.vector != nullptr) {
      widen(spec, *tensor);
    } else if (spec.ids != nullptr) {
      read_ids(spec, *tensor);
    } else if (spec.whole_stack) {
      turn(spec, *tensor);
    } else if (const CheckpointTensor* bound = bind(spec, *tensor); bound != nullptr) {
      read.insert(bound->name);
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

// DeepSeek V4's tensors have several names; the table has one of them.
void TensorLoader::index_names() {
  if (!config_.is_compressed()) return;
  for (const CheckpointTensor& t : checkpoint_.tensors()) {
    by_published_name_.emplace(published_name(t.name), &t);
  }
}

std::string TensorLoader::published_name(std::string_view name) const {
  return config_.is_compressed() ? published_v4_name(name) : std::string(name);
}

const CheckpointTensor* TensorLoader::find(const std::string& name) const {
  if (!config_.is_compressed()) return checkpoint_.find(name);
  const auto found = by_published_name_.find(name);
  return found == by_published_name_.end() ? nullptr : found->second;
}

// A tensor of a layer past the last that has no eh_proj, so is not a draft layer: the
// configuration has fewer layers than the checkpoint.
bool TensorLoader::of_no_draft(std::string_view tensor) const {
  const std::optional<std::int32_t> layer = layer_of(tensor);
  return layer && *layer >= config_.layers &&
         checkpoint_.find(fmt::format("model.layers.{}.eh_proj.weight", *layer)) == nullptr;
}

// Kernels check neither for NaN codes or scales out of range (kernels/linear.h) nor for NaN that
// they only compare.
Result<void> TensorLoader::check_values() {
  std::mutex guard;
  std::optional<Error> found;
  auto check_numbers = [&](const Numbers& n) {
    return nan_value(*n.tensor, n.of_source ? source_ : nullptr);
  };
  auto check_packed = [&](const Packed& p) {
    const bool one =
        p.scales->bytes.size() * 8 == static_cast<std::size_t>(bits_of(p.scales->dtype));
    const ScaleSign sign = p.any_sign ? ScaleSign::any
                           : one      ? ScaleSign::positive
                                      : ScaleSign::not_negative;
    std::optional<Error> bad = wild_scale(*p.scales, sign);
    if (!bad && p.factor != nullptr) bad = wild_scale(*p.factor, ScaleSign::positive, p.divides);
    if (!bad && p.codes.dtype == DType::e4m3 && !headers_only()) {
      bad = nan_code(p.codes, p.name, p.part, source_);
    }
    return bad;
  };
  auto check = [&](std::int64_t i, int) {
    const auto at = static_cast<std::size_t>(i);
    std::optional<Error> bad = at < packed_.size() ? check_packed(packed_[at])
                                                   : check_numbers(numbers_[at - packed_.size()]);
    if (!bad) return;
    const std::lock_guard lock(guard);
    if (!found) found = std::move(bad);
  };
  const std::int64_t n = std::ssize(packed_) + std::ssize(numbers_);
  if (threads_ != nullptr) {
    threads_->run(n, check);
  } else {
    for (std::int64_t i = 0; i < n; ++i) check(i, 0);
  }
  if (found) return *found;
  return {};
}

}  // namespace lathe
