// FileReader: copies bytes of a mapped file with read calls, which maps no pages. Mapping and
// unmapping a page costs more than its copy, so this is faster for bytes that are needed once.
#pragma once

#include <cstddef>
#include <span>

#include "base/result.h"
#include "io/files/mapped_file.h"

namespace lathe {

class FileReader {
 public:
  /// Opens the file a second time. If its path has another file by then, or none, read() copies
  /// from the mapping. `file` must outlive the reader.
  explicit FileReader(const MappedFile& file);
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  /// Copies bytes [offset, offset + to.size()), which the file had when it was mapped. Thread-safe.
  /// Errors: io: a disk failure, or a file that has shrunk.
  Result<void> read(std::size_t offset, std::span<std::byte> to) const;

 private:
  const MappedFile& file_;
  int fd_ = -1;  // -1: the path has another file
};

}  // namespace lathe
