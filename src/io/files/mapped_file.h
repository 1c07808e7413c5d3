// MappedFile: a read-only memory mapping of a file. Pages are read from disk on first access and
// stay in the page cache, so a second start of the same model reads nothing from disk. Reading a
// page that a truncated file has lost ends the process (io/files/mapping_faults.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "base/enum.h"
#include "base/result.h"
#include "io/files/mapping_faults.h"

namespace lathe {

#define LATHE_FILE_ACCESS(X) X(normal) X(sequential) X(random) X(will_need)
LATHE_ENUM(FileAccess, LATHE_FILE_ACCESS)

/// Tells files apart, whatever their names.
struct FileId {
  std::uint64_t device = 0, inode = 0;
  bool operator==(const FileId&) const = default;
};

class MappedFile {
 public:
  /// Maps the whole file; an empty file has an empty span. Errors: io, with errno's text: a
  /// missing, unreadable or irregular file.
  static Result<MappedFile> open(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  FileId id() const { return id_; }

  /// Advises the kernel how the bytes will be read; affects only speed.
  void advise(FileAccess access) const;

  /// Reads the pages of [offset, offset + size), clamped to the file, into memory. Thread-safe.
  /// Errors: io: a disk failure, or a file that has shrunk since it was mapped.
  Result<void> prefault(std::size_t offset, std::size_t size) const;

 private:
  MappedFile(std::filesystem::path path, FileId id, const std::byte* data, std::size_t size)
      : path_(std::move(path)), id_(id), data_(data), size_(size), fault_(bytes(), path_) {}

  std::filesystem::path path_;
  FileId id_;
  const std::byte* data_ = nullptr;  // [size_]; null for an empty file
  std::size_t size_ = 0;
  MappingFault fault_;
};

}  // namespace lathe
