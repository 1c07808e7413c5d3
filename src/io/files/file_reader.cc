#include "io/files/file_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

namespace lathe {

FileReader::FileReader(const MappedFile& file) : file_(file) {
  const int fd = ::open(file.path().c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return;
  struct stat st {};
  if (::fstat(fd, &st) == 0 && FileId{st.st_dev, st.st_ino} == file.id()) {
    fd_ = fd;
  } else {
    ::close(fd);
  }
}

FileReader::~FileReader() {
  if (fd_ >= 0) ::close(fd_);
}

Result<void> FileReader::read(std::size_t offset, std::span<std::byte> to) const {
  if (fd_ < 0) {
    if (!to.empty()) std::memcpy(to.data(), file_.bytes().data() + offset, to.size());
    return {};
  }
  while (!to.empty()) {
    const ssize_t n = ::pread(fd_, to.data(), to.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      return Error{ErrorCode::io, file_.path().string(), "readable bytes",
                   n == 0 ? "a file that has shrunk" : std::generic_category().message(errno), ""};
    }
    offset += static_cast<std::size_t>(n);
    to = to.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

}  // namespace lathe
