// Checkpoint: the tensors in the safetensors files of a model directory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "base/threads.h"
#include "io/checkpoint/safetensors.h"
#include "io/files/mapped_file.h"

namespace lathe {

struct CheckpointTensor {
  std::string name;
  SafetensorsDType dtype = SafetensorsDType::F32;
  std::vector<std::int64_t> shape;   // outermost first; empty = one element
  std::span<const std::byte> bytes;  // in the mapping, packed row-major, any alignment
  std::size_t shard = 0;             // index into Checkpoint::shards()
};

/// Whether `dir` has files that Checkpoint::open() reads.
bool has_weight_files(const std::filesystem::path& dir);

class Checkpoint {
 public:
  /// Maps model.safetensors, else the shards in model.safetensors.index.json, else every
  /// *.safetensors of `dir`. Reads only the headers. Errors name the file: io (missing or
  /// unreadable), malformed (a header; an index that disagrees with its shards; a tensor that two
  /// shards hold), unsupported (a dtype). `beside` names one more file in `dir`, if it exists.
  static Result<Checkpoint> open(const std::filesystem::path& dir, const std::string& beside = {});

  /// Gives each tensor the name that name_of() returns for its name, and drops those for which it
  /// is empty. Errors: malformed (two tensors of one name), which leaves the checkpoint without
  /// names.
  Result<void> rename(const std::function<std::string(std::string_view)>& name_of);

  /// By shard, then by offset in the file: the fastest order to read.
  std::span<const CheckpointTensor> tensors() const { return tensors_; }
  /// Null for an unknown name.
  const CheckpointTensor* find(std::string_view name) const;
  std::span<const MappedFile> shards() const { return shards_; }
  /// Bytes of all tensors.
  std::int64_t total_bytes() const { return total_bytes_; }

  /// Reads all files into the page cache on the pool's threads, in the order of tensors().
  /// `progress` (may be empty) is called with (bytes done, bytes of all files) from any thread, one
  /// call at a time, ascending, and must not throw. Errors: io.
  Result<void> prefault(
      ThreadPool& pool,
      const std::function<void(std::int64_t done, std::int64_t total)>& progress) const;
  /// Reads all tensors into the page cache, and maps their pages, but those in `without`. Errors:
  /// io.
  Result<void> prefault(ThreadPool& pool,
                        const std::unordered_set<const CheckpointTensor*>& without) const;

 private:
  static Result<Checkpoint> open_files(const std::filesystem::path& dir, const std::string& beside);

  std::vector<MappedFile> shards_;
  std::vector<CheckpointTensor> tensors_;
  std::unordered_map<std::string_view, std::size_t> by_name_;  // keys point into tensors_
  std::int64_t total_bytes_ = 0;
};

}  // namespace lathe
