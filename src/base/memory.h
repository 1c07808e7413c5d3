// Memory: where bytes lie, and how they are allocated and freed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>

#include "base/enum.h"
#include "base/result.h"

namespace lathe {

/// host    the processor's own
/// pinned  the processor's, at fixed physical addresses, so that a device copies it without waiting
/// device  an accelerator's: only its kernels and copies may look there
#define LATHE_MEMORY_KINDS(X) X(host) X(pinned) X(device)
LATHE_ENUM(MemoryKind, LATHE_MEMORY_KINDS)

/// Bytes that go back to the memory they came from.
using OwnedBytes = std::unique_ptr<std::byte, void (*)(std::byte*)>;

/// Thrown when memory runs out in the middle of work, such as an arena's. One line says how much
/// was wanted and how much is available.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(const Error& error) : text_(error.message()) {}
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

struct Memory {
  MemoryKind kind = MemoryKind::host;
  /// `bytes` bytes at a multiple of 64 or more, contents unspecified. Errors (exhausted): the bytes
  /// wanted and, where known, the bytes available.
  Result<OwnedBytes> (*allocate)(std::int64_t bytes) = nullptr;

  bool operator==(const Memory&) const = default;
};

/// "21.4 of 23.5 GB free": this computer's memory; without the figures where the system has none.
std::string host_memory_text();

/// Errors: the system is out of memory.
Result<OwnedBytes> allocate_host_bytes(std::int64_t bytes);
inline constexpr Memory kHostMemory{MemoryKind::host, allocate_host_bytes};

}  // namespace lathe
