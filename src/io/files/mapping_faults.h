// What happens when a mapped file loses bytes that something reads: the kernel sends SIGBUS.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace lathe {

/// Registers a mapping while it lives. A read past the end of a file that has been truncated since,
/// or from a disk that fails, then ends the process with exit code 1 and one line on stderr that
/// names the file. SIGBUS at other addresses goes to the handler that was there before. Installs
/// the handler once, on first use. Only 1024 mappings are known at a time; a later one has no
/// message.
class MappingFault {
 public:
  MappingFault() = default;  // registers nothing
  MappingFault(std::span<const std::byte> mapping, const std::filesystem::path& path);
  MappingFault(MappingFault&& other) noexcept;
  MappingFault& operator=(MappingFault&& other) noexcept;
  ~MappingFault();

 private:
  int place_ = -1;  // in the table; -1: in none
};

}  // namespace lathe
