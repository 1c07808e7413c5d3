// Pulls between two processes, on two GPUs where there are two: this program starts itself again
// with --hold, and that process exports memory of GPU 0. Skipped where CUDA IPC is not permitted.
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "kernels/cuda/sm90/codec/test/pull_checks.h"

namespace lathe::cuda {
namespace {

// cudaMalloc() puts smaller allocations together, and IPC shares whole blocks.
constexpr std::int64_t kBlock = 2 << 20;

bool send_all(int to, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::send(to, at, bytes, MSG_NOSIGNAL);
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<std::size_t>(n);
  }
  return true;
}
bool receive_all(int from, void* data, std::size_t bytes) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::recv(from, at, bytes, 0);
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<std::size_t>(n);
  }
  return true;
}

struct Answer {
  bool ok = false;
  MemoryHandle handle;
  ErrorCode code = ErrorCode::device;
  char error[500] = {};  // the message's end may be missing
};

// The exporter: receives a count and as many bytes, keeps them on GPU 0 and answers with their
// handle; ends with the connection.
int hold(int connection) {
  const auto device = open_device();
  std::vector<DeviceArray<std::byte>> held;
  const auto keep = [&](std::span<const std::byte> bytes) -> Result<MemoryHandle> {
    if (!device) return device.error();
    auto memory = DeviceArray<std::byte>::make(std::ssize(bytes));
    if (!memory) return memory.error();
    const auto copied = cudaMemcpy(memory->data(), bytes.data(), bytes.size(), cudaMemcpyDefault);
    if (auto ok = call_result(copied, "cudaMemcpy"); !ok) return ok.error();
    held.push_back(std::move(*memory));
    return export_memory(held.back().span());
  };
  std::int64_t count = 0;
  while (receive_all(connection, &count, sizeof count)) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(count));
    if (!receive_all(connection, bytes.data(), bytes.size())) break;
    const auto handle = keep(bytes);
    Answer answer;
    answer.ok = handle.ok();
    if (handle) {
      answer.handle = *handle;
    } else {
      answer.code = handle.error().code;
      handle.error().message().copy(answer.error, sizeof answer.error - 1);
    }
    if (!send_all(connection, &answer, sizeof answer)) break;
  }
  return 0;
}

class Holder {
 public:
  Holder() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    char program[] = "/proc/self/exe", flag[] = "--hold";
    char* args[] = {program, flag, nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 0);
    EXPECT_EQ(::posix_spawn(&process_, program, &actions, nullptr, args, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    connection_ = ends[0];
  }
  ~Holder() {
    ::close(connection_);
    if (process_ != 0) ::waitpid(process_, nullptr, 0);
  }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;

  Result<MemoryHandle> hold(const std::vector<std::byte>& bytes) const {
    const std::int64_t count = std::ssize(bytes);
    Answer answer;
    if (!send_all(connection_, &count, sizeof count) ||
        !send_all(connection_, bytes.data(), bytes.size()) ||
        !receive_all(connection_, &answer, sizeof answer)) {
      return Error{ErrorCode::io, "exporter", "an answer", "none", ""};
    }
    if (answer.ok) return answer.handle;
    return Error{answer.code, "exporter", "memory to export", answer.error, ""};
  }
  void kill() {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    process_ = 0;
  }
  /// Whether the exporter's end is closed. Waits for it.
  bool ended() const {
    char byte = 0;
    return ::recv(connection_, &byte, 1, 0) == 0;
  }

 private:
  pid_t process_ = 0;
  int connection_ = -1;
};

class OnReadersGpu {
 protected:
  OnReadersGpu() {
    int count = 0;
    EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
    two_ = count > 1;
    EXPECT_EQ(cudaSetDevice(two_ ? 1 : 0), cudaSuccess);
  }
  bool two_ = false;
};

class Pull : protected OnReadersGpu, public GpuTest {
 protected:
  void SetUp() override {
    const auto handle = holder_.hold(blocks(1));
    const auto memory = handle ? PeerMemory::open(*handle) : handle.error();
    if (!memory && memory.error().code == ErrorCode::unsupported) {
      GTEST_SKIP() << "no pulls between processes: " << memory.error().message();
    }
    must(memory);
  }
  static std::vector<std::byte> blocks(std::int64_t count, std::uint32_t seed = 1) {
    std::mt19937 rng(seed);
    std::vector<std::uint32_t> words(static_cast<std::size_t>(count * kBlock / 4));
    for (std::uint32_t& w : words) w = static_cast<std::uint32_t>(rng());
    std::vector<std::byte> out(words.size() * 4);
    std::memcpy(out.data(), words.data(), out.size());
    return out;
  }
  std::vector<std::byte> read(const std::byte* there, std::int64_t bytes) {
    std::vector<std::byte> out(static_cast<std::size_t>(bytes));
    must(copy_to_host(there, std::span(out), stream()));
    must(stream().wait());
    return out;
  }

  Holder holder_;
};

TEST_F(Pull, HasTheBytesOfTheCpu) {
  const Share share = [this](std::vector<std::byte> bytes) {
    bytes.resize((bytes.size() + kBlock - 1) / kBlock * kBlock);
    return holder_.hold(bytes);
  };
  PullCheck(*this, share, 700).run();
}

// Neighbours in a block, opened one after another and all at once.
TEST_F(Pull, SmallAllocationsAreToldApart) {
  std::vector<std::vector<std::byte>> wanted;
  std::vector<PeerMemory> opened;
  for (int i = 0; i < 5; ++i) {
    const auto random = blocks(1, test_seed(static_cast<unsigned>(50 + i)));
    wanted.emplace_back(random.begin(), random.begin() + 1000 + 7000 * i);
    const auto handle = holder_.hold(wanted.back());
    ASSERT_TRUE(handle.ok()) << handle.error().message();
    auto memory = PeerMemory::open(*handle);
    ASSERT_TRUE(memory.ok()) << memory.error().message();
    opened.push_back(std::move(*memory));
  }
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(first_difference(wanted[i], read(opened[i].data(), opened[i].bytes())), -1) << i;
  }
}

TEST_F(Pull, WhatCannotBeSharedIsRefused) {
  const DeviceCopy<std::byte> own(*this, blocks(2));
  const auto handle = export_memory({own.data(), static_cast<std::size_t>(kBlock)});
  ASSERT_TRUE(handle.ok()) << handle.error().message();
  const auto same = PeerMemory::open(*handle);
  ASSERT_FALSE(same.ok());
  EXPECT_EQ(same.error().wanted, "memory of another process") << same.error().message();
  EXPECT_FALSE(export_memory({own.data() + kBlock, static_cast<std::size_t>(2 * kBlock)}).ok());
  std::byte host{};
  EXPECT_FALSE(export_memory({&host, 1}).ok());
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

// Many pulls are queued, then the exporter is killed.
TEST_F(Pull, AKilledExportersMemoryStaysReadable) {
  constexpr int kPulls = 200;
  const CacheLayout layout(LayoutKind::mla_fp8);
  const auto bytes = blocks(64, test_seed(41));
  const std::int64_t pages = std::ssize(bytes) / layout.page_stride(64);
  const auto handle = holder_.hold(bytes);
  const auto other = holder_.hold(blocks(1));
  ASSERT_TRUE(handle.ok() && other.ok());
  std::vector<PageId> list;
  for (int i = 0; i < pages; ++i) list.emplace_back(static_cast<int>(pages) - 1 - i);
  const DeviceCopy<PageId> src(*this, list);
  std::ranges::reverse(list);
  const DeviceCopy<PageId> dst(*this, list);
  OwnedPool wanted(layout, 64, pages);
  const std::int64_t stride = layout.page_stride(64);
  for (int i = 0; i < pages; ++i) {
    std::memcpy(wanted.bytes.data() + i * stride, bytes.data() + (pages - 1 - i) * stride,
                static_cast<std::size_t>(stride));
  }
  {
    const auto memory = PeerMemory::open(*handle);
    ASSERT_TRUE(memory.ok()) << memory.error().message();
    const ConstPoolView from(memory->data(), layout, 64, pages);
    const auto pull = [&](const CopiedPool& to) {
      must(copy_pages(from, {src.data(), list.size()}, to.view, {dst.data(), list.size()},
                      stream()));
    };
    const OwnedPool empty(layout, 64, pages);
    const CopiedPool during(*this, empty), after(*this, empty);
    for (int i = 0; i < kPulls; ++i) pull(during);
    const bool ran = cudaStreamQuery(stream()) == cudaErrorNotReady;
    holder_.kill();
    std::printf("killed while pulls %s\n", ran ? "ran" : "had ended");
    EXPECT_EQ(first_difference(wanted.bytes, during.bytes.read(*this)), -1);
    EXPECT_TRUE(holder_.ended());
    pull(after);
    EXPECT_EQ(first_difference(wanted.bytes, after.bytes.read(*this)), -1);
    const auto late = PeerMemory::open(*other);
    ASSERT_FALSE(late.ok());
    EXPECT_EQ(late.error().wanted, "memory that another process holds") << late.error().message();
  }
  // Closed; the process goes on with another exporter.
  const Holder second;
  const auto again = second.hold(bytes);
  ASSERT_TRUE(again.ok()) << again.error().message();
  const auto memory = PeerMemory::open(*again);
  ASSERT_TRUE(memory.ok()) << memory.error().message();
  EXPECT_EQ(first_difference(bytes, read(memory->data(), memory->bytes())), -1);
}

class PullSpeed : public Pull {
 protected:
  static constexpr std::int64_t kBytes = 256 << 20;
  static constexpr int kRepeats = 9, kEach = 4;

  std::vector<int> shuffled(std::int64_t count) {
    std::vector<int> out(static_cast<std::size_t>(count));
    std::iota(out.begin(), out.end(), 0);
    std::shuffle(out.begin(), out.end(), rng_);
    return out;
  }
  template <class Index>
  std::vector<Index> places(std::int64_t count) {
    std::vector<Index> out;
    for (const int i : shuffled(count)) out.emplace_back(i);
    return out;
  }
  // Prints GB/s of bytes written, the median of some runs.
  template <class Run>
  void print(const char* what, std::int64_t bytes, const char* goal, Run run) {
    std::vector<double> seconds;
    for (int i = 0; i < kRepeats; ++i) {
      Mark from = Mark::make_timed().value(), to = Mark::make_timed().value();
      must(from.set(stream()));
      for (int k = 0; k < kEach; ++k) must(run());
      must(to.set(stream()));
      must(to.wait());
      seconds.push_back(to.seconds_since(from).value() / kEach);
    }
    std::ranges::nth_element(seconds, seconds.begin() + kRepeats / 2);
    std::printf("%-58s %8.0f %10s\n", what,
                static_cast<double>(bytes) / seconds[kRepeats / 2] * 1e-9, goal);
  }

  std::mt19937 rng_{test_seed(42)};
};

TEST_F(PullSpeed, OfScatteredPages) {
  const auto handle = holder_.hold(std::vector<std::byte>(kBytes));
  ASSERT_TRUE(handle.ok()) << handle.error().message();
  const auto memory = PeerMemory::open(*handle);
  ASSERT_TRUE(memory.ok()) << memory.error().message();
  const auto own = DeviceArray<std::byte>::make(kBytes).value();
  std::printf("%-58s %8s %10s\n", two_ ? "pull from another GPU, scattered" : "pull on one GPU",
              "GB/s", "spec");
  struct Row {
    const char* what;
    const char* layout;
    const char* goal;
  };
  for (const Row& row : {Row{"pages of 36,864 B, mla_fp8", "mla_fp8", "362-365"},
                         Row{"pages of 41,984 B, mla_fp8_block", "mla_fp8_block", "362-365"},
                         Row{"pages of 8,448 B, index_fp8", "index_fp8", "342"}}) {
    const CacheLayout layout = *CacheLayout::parse(row.layout);
    const std::int64_t pages = kBytes / layout.page_stride(64);
    const DeviceCopy<PageId> src(*this, places<PageId>(pages)), dst(*this, places<PageId>(pages));
    print(row.what, pages * layout.page_stride(64), row.goal, [&] {
      return copy_pages(
          {memory->data(), layout, 64, pages}, {src.data(), static_cast<std::size_t>(pages)},
          {own.data(), layout, 64, pages}, {dst.data(), static_cast<std::size_t>(pages)}, stream());
    });
  }
  // Pages are scattered, and tokens in order within them.
  const CacheLayout block(LayoutKind::mla_fp8_block), plain(LayoutKind::mla_fp8);
  const std::int64_t pages = kBytes / block.page_stride(64);
  const auto tokens = [&](std::int32_t page_size) {
    std::vector<Slot> out;
    for (const int page : shuffled(pages * 64 / page_size)) {
      for (int i = 0; i < page_size; ++i) out.push_back(slot_of(PageId(page), page_size, i));
    }
    return out;
  };
  const DeviceCopy<Slot> src(*this, tokens(64)), dst(*this, tokens(64)), small(*this, tokens(16));
  const ConstPoolView from(memory->data(), block, 64, pages);
  print("mla_fp8_block, pages of 64 tokens to 16", pages * block.page_stride(64), "", [&] {
    return copy_slots(from, span_of(src), {own.data(), block, 16, pages * 4}, span_of(small),
                      stream());
  });
  print("mla_fp8_block to mla_fp8, written", pages * plain.page_stride(64), "345", [&] {
    return requantize({.src = from,
                       .src_slots = span_of(src),
                       .dst = {own.data(), plain, 64, pages},
                       .dst_slots = span_of(dst)},
                      stream());
  });
}

}  // namespace
}  // namespace lathe::cuda

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--hold") == 0) return lathe::cuda::hold(0);
  return lathe::cuda::gpu_test_main(argc, argv);
}
