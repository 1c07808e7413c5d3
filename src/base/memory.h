// Memory: which memory bytes are in, and how to allocate and free them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>

#include "base/enum.h"
#include "base/result.h"

namespace lathe {

/// host    ordinary memory of the CPU
/// pinned  CPU memory with fixed physical addresses: a GPU can copy it asynchronously
/// device  memory of a GPU: only its kernels and copies may access it
#define LATHE_MEMORY_KINDS(X) X(host) X(pinned) X(device)
LATHE_ENUM(MemoryKind, LATHE_MEMORY_KINDS)

/// Bytes with the function that frees them.
using OwnedBytes = std::unique_ptr<std::byte, void (*)(std::byte*)>;

/// Thrown when memory runs out in the middle of work (an arena that grows, for example). what() is
/// one line with the bytes wanted and the bytes available.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(const Error& error) : text_(error.message()) {}
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

struct Memory {
  MemoryKind kind = MemoryKind::host;
  /// Returns `bytes` uninitialised bytes, at least 64-byte aligned. Error: exhausted, with the
  /// bytes wanted and, if known, the bytes available.
  Result<OwnedBytes> (*allocate)(std::int64_t bytes) = nullptr;

  bool operator==(const Memory&) const = default;
};

/// "21.4 of 23.5 GB free": memory of this computer, from /proc/meminfo; a text without numbers if
/// that cannot be read.
std::string host_memory_text();

/// Errors: the system is out of memory.
Result<OwnedBytes> allocate_host_bytes(std::int64_t bytes);
inline constexpr Memory kHostMemory{MemoryKind::host, allocate_host_bytes};

}  // namespace lathe
