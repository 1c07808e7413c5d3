// Binds a checkpoint's tensors to a model's weights, by the tensor table. load.cc says what is read
// when; this class is one pass over the table.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "base/threads.h"
#include "io/checkpoint/checkpoint.h"
#include "kernels/linear.h"
#include "model/config/config.h"
#include "model/load/complaints.h"
#include "model/load/file_source.h"
#include "model/weights/tensor_table.h"
#include "model/weights/weight_formats.h"
#include "model/weights/weights.h"

namespace lathe {

class TensorLoader {
 public:
  // What of a checkpoint is read: names, shapes and dtypes; scales, and the order of columns; the
  // weights.
  enum class Reads { headers, scales, all };

  /// wide: the dtype of matrices that have no packed form in memory. source: copies what the
  /// weights' backend asks for; null: the backend reads the mapping.
  TensorLoader(const ModelConfig& config, const Checkpoint& checkpoint, ModelWeights& weights,
               ThreadPool* threads, DType wide, FileSource* source, Reads reads = Reads::all)
      : config_(config),
        checkpoint_(checkpoint),
        weights_(weights),
        threads_(threads),
        wide_(wide),
        source_(source),
        reads_(reads) {
    index_names();
    needs_zeros_ = config.int4_zeros &&
                   std::ranges::none_of(checkpoint.tensors(), [](const CheckpointTensor& t) {
                     return t.name.ends_with(".qweight");
                   });
  }

  /// Tensors with bytes that only the source copies.
  std::unordered_set<const CheckpointTensor*> of_source(const std::vector<TensorSpec>& table) const;

  /// Binds all tensors of the table. directory: for messages. Errors: one list of all missing,
  /// unexpected and misshapen tensors, up to 16 of each; NaN codes and scales out of range.
  Result<void> run(const std::string& directory, const std::vector<TensorSpec>& table);

 private:
  using Names = std::unordered_set<std::string_view>;  // of tensors that have been read

  bool headers_only() const { return reads_ != Reads::all; }
  bool reads_values() const { return reads_ != Reads::headers; }
  static bool plain(std::optional<DType> t) {
    return t == DType::f32 || t == DType::bf16 || t == DType::f16;
  }

  // tensor_loader.cc: the pass.
  void index_names();
  std::string published_name(std::string_view name) const;
  const CheckpointTensor* find(const std::string& name) const;
  bool of_no_draft(std::string_view tensor) const;
  Result<void> check_values();

  // bind_tensor.cc: vectors, lists of ids, matrices, and this rank's parts of them.
  void wrong_dtype(const TensorSpec& spec, const CheckpointTensor& tensor, std::string_view wanted);
  std::span<float> widened(const CheckpointTensor& tensor);
  void widen(const TensorSpec& spec, const CheckpointTensor& tensor);
  static WeightView set_nothing(const TensorSpec& spec);
  WeightView set_part(const TensorSpec& spec, const WeightView& whole);
  void read_ids(const TensorSpec& spec, const CheckpointTensor& tensor);
  WeightView in_f32(const WeightView& w);
  const std::byte* in_place(std::span<const std::byte> stored, DType dtype);
  const CheckpointTensor* bind(const TensorSpec& spec, const CheckpointTensor& tensor);

  // bind_quantised.cc: matrices of codes and scales.
  static std::optional<std::int64_t> pairs_of_codes(const TensorSpec& spec,
                                                    const CheckpointTensor& tensor);
  std::string scale_beside(const CheckpointTensor& weight) const;
  std::string_view bind_mx(const TensorSpec& spec, const CheckpointTensor& tensor,
                           std::int64_t cols);
  static bool exponents(const CheckpointTensor& tensor);
  std::span<const float> factors(const CheckpointTensor& tensor);
  bool may_be_packed(const TensorSpec& spec) const;
  bool bind_packed(const TensorSpec& spec, Names& read);
  bool is_used(const WeightFormat& format);
  static bool is_of_format(std::string_view name);
  std::vector<const CheckpointTensor*> format_tensors(const std::string& module) const;
  void check_like(const TensorSpec& spec, const WeightView& w);
  WeightView widened(const WeightView& w);

  // bind_stack.cc: tensors that have the matrices of all experts.
  void turn(const TensorSpec& spec, const CheckpointTensor& tensor);
  void bind_mxfp4(const TensorSpec& spec, Names& read);
  void bind_of_stack(const TensorSpec& spec, const CheckpointTensor& tensor);

  // bind_kv_scales.cc: scales of per-tensor caches.
  void bind_kv_scales(Names& read);
  bool bind_kv_scale(std::int32_t layer, std::string_view part, float& to, Names& read);

  const ModelConfig& config_;
  const Checkpoint& checkpoint_;
  ModelWeights& weights_;
  ThreadPool* threads_;
  DType wide_;
  FileSource* source_;
  Reads reads_;
  Complaints complaints_;
  // config.json says that compressed-tensors' int4 has zero points. With matrices of GPTQ or AWQ
  // in the checkpoint, it speaks of those.
  bool needs_zeros_ = false;
  // A quantised matrix, or a stack of them.
  struct Packed {
    WeightView codes;  // looked through if they are e4m3
    std::string name;  // of their tensor
    const CheckpointTensor* scales;
    TensorPart part = {};  // that `codes` are of their tensor
    const CheckpointTensor* factor = nullptr;
    bool divides = false;   // by the factor
    bool any_sign = false;  // its scales may be negative
  };
  std::vector<Packed> packed_;
  // Tensors of floats in which NaN is refused, and whether only the source copies their bytes.
  struct Numbers {
    const CheckpointTensor* tensor;
    bool of_source;
  };
  std::vector<Numbers> numbers_;
  // The first whole matrix of each stack that others must be like.
  std::unordered_map<const WeightStack*, WeightView> first_like_;
  std::unordered_map<std::string, const CheckpointTensor*> by_published_name_;
  std::vector<bool> used_;  // is_used() of weight_formats(); empty until asked
};

}  // namespace lathe
