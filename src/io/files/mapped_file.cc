#include "io/files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // Linux 5.14; older C libraries lack the name
#endif

namespace lathe {
namespace {

Error io_error(const std::filesystem::path& path, const char* wanted, int error) {
  return {ErrorCode::io, path.string(), wanted, std::generic_category().message(error), ""};
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a named pipe would otherwise block before fstat can reject it.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return io_error(path, "a readable file", errno);
  struct stat st {};
  const int stat_error = ::fstat(fd, &st) == 0 ? 0 : errno;
  if (stat_error != 0 || !S_ISREG(st.st_mode)) {
    ::close(fd);
    if (stat_error != 0) return io_error(path, "a readable file", stat_error);
    return Error{ErrorCode::io, path.string(), "a regular file",
                 S_ISDIR(st.st_mode) ? "a directory" : "another kind of file", ""};
  }
  const auto size = static_cast<std::size_t>(st.st_size);
  void* data = nullptr;
  int map_error = 0;
  if (size > 0) {
    data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) map_error = errno;
  }
  ::close(fd);
  if (map_error != 0) return io_error(path, "a file that can be memory-mapped", map_error);
  return MappedFile(path, {st.st_dev, st.st_ino}, static_cast<const std::byte*>(data), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      id_(other.id_),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      fault_(std::move(other.fault_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(id_, other.id_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(fault_, other.fault_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::advise(FileAccess access) const {
  if (data_ == nullptr) return;
  constexpr int kAdvice[] = {MADV_NORMAL, MADV_SEQUENTIAL, MADV_RANDOM, MADV_WILLNEED};
  static_cast<void>(
      ::madvise(const_cast<std::byte*>(data_), size_, kAdvice[static_cast<std::size_t>(access)]));
}

Result<void> MappedFile::prefault(std::size_t offset, std::size_t size) const {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t begin = std::min(offset, size_) / page * page;
  const std::size_t end = std::min(size_, offset + std::min(size, size_));
  if (begin >= end) return {};
  if (::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_POPULATE_READ) == 0) {
    return {};
  }
  // EINVAL: the kernel lacks the call. Anything else is a disk error or a truncated file, where
  // touching the page would raise SIGBUS.
  if (errno != EINVAL) return io_error(path_, "readable bytes", errno);
  for (std::size_t i = begin; i < end; i += page) {
    static_cast<void>(*static_cast<const volatile std::byte*>(data_ + i));
  }
  return {};
}

}  // namespace lathe
