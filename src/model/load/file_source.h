// FileSource: the weights of a checkpoint for a backend that copies them to a device. Bytes go from
// the files to the backend's buffers with read calls, each once; a rank's columns of a matrix are
// gathered on the way, so the host has no copy of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "io/checkpoint/checkpoint.h"
#include "kernels/weight_source.h"

namespace lathe {

class FileSource : public WeightSource {
 public:
  /// `checkpoint` must outlive it.
  explicit FileSource(const Checkpoint& checkpoint);
  ~FileSource() override;
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  /// The matrix [rows, width] of bytes [first, first + width) of each row of `pitch` bytes. Only
  /// copy() can read it. Null: there are no addresses left. Not while copy() runs.
  const std::byte* columns(const std::byte* from, std::int64_t rows, std::int64_t pitch,
                           std::int64_t first, std::int64_t width);

  Result<void> copy(const std::byte* from, std::span<std::byte> to) const override;

 private:
  struct Columns {
    const std::byte* at = nullptr;    // in the reserved addresses
    const std::byte* from = nullptr;  // the first row's first byte
    std::size_t pitch = 0, width = 0;
  };
  const MappedFile* file_of(const std::byte* at) const;
  Result<void> gather(const Columns& columns, std::size_t first, std::span<std::byte> to) const;

  std::vector<const MappedFile*> files_;  // ascending by address
  std::byte* reserved_ = nullptr;         // [size_] addresses without memory; null if refused
  std::size_t size_ = 0, used_ = 0;
  std::vector<Columns> columns_;  // ascending by `at`
};

}  // namespace lathe
