#include "io/files/mapping_faults.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

namespace lathe {
namespace {

// The handler reads the table while other threads change it, so `begin` is stored last and cleared
// first. It takes no lock and allocates nothing, as a signal handler must not.
struct Mapping {
  std::atomic<const std::byte*> begin = nullptr;
  std::size_t size = 0;
  std::string path;
};

std::array<Mapping, 1024> known_mappings;
std::mutex known_mappings_guard;  // of writers
struct sigaction earlier_action;

void print_to_stderr(const char* text, std::size_t size) {
  static_cast<void>(!::write(STDERR_FILENO, text, size));
}

const Mapping* mapping_at(const std::byte* address) {
  for (const Mapping& m : known_mappings) {
    const std::byte* begin = m.begin.load(std::memory_order_acquire);
    if (begin != nullptr && address >= begin && address < begin + m.size) return &m;
  }
  return nullptr;
}

void on_bus_error(int number, siginfo_t* info, void* context) {
  const bool has_address = info->si_code > 0;  // the kernel's, not a signal that a process sent
  const Mapping* mapping =
      has_address ? mapping_at(static_cast<const std::byte*>(info->si_addr)) : nullptr;
  if (mapping != nullptr) {
    constexpr std::string_view kFront = "lathe: ";
    constexpr std::string_view kBack =
        ": wanted the bytes that it had when it was opened, got fewer; the file has been "
        "truncated, "
        "or its disk fails\n";
    print_to_stderr(kFront.data(), kFront.size());
    print_to_stderr(mapping->path.data(), mapping->path.size());
    print_to_stderr(kBack.data(), kBack.size());
    ::_exit(1);
  }
  if ((earlier_action.sa_flags & SA_SIGINFO) != 0) {
    return earlier_action.sa_sigaction(number, info, context);
  }
  if (earlier_action.sa_handler != SIG_DFL && earlier_action.sa_handler != SIG_IGN) {
    return earlier_action.sa_handler(number);
  }
  ::signal(number, SIG_DFL);  // the read repeats and ends the process
}

void install() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, &earlier_action);
}

}  // namespace

MappingFault::MappingFault(std::span<const std::byte> mapping, const std::filesystem::path& path) {
  if (mapping.empty()) return;
  static std::once_flag installed;
  std::call_once(installed, install);
  const std::lock_guard lock(known_mappings_guard);
  for (std::size_t i = 0; i < known_mappings.size(); ++i) {
    if (known_mappings[i].begin.load(std::memory_order_relaxed) != nullptr) continue;
    known_mappings[i].size = mapping.size();
    known_mappings[i].path = path.string();
    known_mappings[i].begin.store(mapping.data(), std::memory_order_release);
    place_ = static_cast<int>(i);
    return;
  }
}

MappingFault::MappingFault(MappingFault&& other) noexcept
    : place_(std::exchange(other.place_, -1)) {}

MappingFault& MappingFault::operator=(MappingFault&& other) noexcept {
  std::swap(place_, other.place_);
  return *this;
}

MappingFault::~MappingFault() {
  if (place_ < 0) return;
  const std::lock_guard lock(known_mappings_guard);
  known_mappings[static_cast<std::size_t>(place_)].begin.store(nullptr, std::memory_order_release);
}

}  // namespace lathe
