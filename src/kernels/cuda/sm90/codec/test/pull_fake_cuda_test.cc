// Memory of another process, which the fake runtime tells apart by a number, and pulls from it.
#include "kernels/cuda/fake/fake_cuda.h"
#include "kernels/cuda/sm90/codec/test/pull_checks.h"

namespace lathe::cuda {
namespace {

// Calls of the process that exports memory, on GPU 0.
class AsExporter {
 public:
  AsExporter() {
    fake::act_as_process(1);
    EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  }
  ~AsExporter() {
    fake::act_as_process(0);
    EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
  }
};

class OnSecondGpu {
 protected:
  OnSecondGpu() {
    fake::set_devices(2);
    EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
  }
  ~OnSecondGpu() {
    EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
    fake::set_devices(1);
  }
};

class FakePull : private OnSecondGpu, public GpuTest {
 protected:
  ~FakePull() override { free_exported(); }
  Result<MemoryHandle> share(const std::vector<std::byte>& bytes) {
    const AsExporter exporter;
    auto stream = std::move(Stream::make()).value();
    auto memory = DeviceArray<std::byte>::make(std::ssize(bytes)).value();
    must(copy_to_device(std::span(bytes), memory.data(), stream));
    must(stream.wait());
    exported_.push_back(std::move(memory));
    return export_memory(exported_.back().span());
  }
  void free_exported() {
    const AsExporter exporter;
    exported_.clear();
  }
  static std::string refusal(const MemoryHandle& handle) {
    const auto opened = PeerMemory::open(handle);
    return opened ? "opened" : opened.error().message();
  }

  std::vector<DeviceArray<std::byte>> exported_;
};

std::vector<std::byte> numbered(int count) {
  std::vector<std::byte> out;
  for (int i = 0; i < count; ++i) out.push_back(static_cast<std::byte>(i * 37));
  return out;
}

TEST_F(FakePull, HasTheBytesOfTheCpu) {
  PullCheck(
      *this, [this](const auto& bytes) { return share(bytes); }, 60)
      .run();
}

TEST_F(FakePull, MemoryStaysUntilItIsClosed) {
  const auto bytes = numbered(1000);
  const auto handle = share(bytes).value();
  {
    const auto memory = PeerMemory::open(handle).value();
    free_exported();
    EXPECT_EQ(refusal(handle).find("handle: wanted memory that another process holds, got "), 0u)
        << refusal(handle);
    std::vector<std::byte> got(bytes.size());
    must(copy_to_host(memory.data(), std::span(got), stream()));
    must(stream().wait());
    EXPECT_EQ(got, bytes);
  }
  const AsExporter exporter;
  EXPECT_EQ(fake::device_bytes(), 0);
}

TEST_F(FakePull, PartsOfAnAllocationCanBeExported) {
  const auto bytes = numbered(4096);
  static_cast<void>(share(bytes).value());
  MemoryHandle handle;
  {
    const AsExporter exporter;
    const auto whole = exported_.back().span();
    handle = export_memory(whole.subspan(300, 512)).value();
    EXPECT_EQ(export_memory({whole.data() + 300, 4096}).error().message(),
              "memory: wanted at most 3796 bytes, up to the allocation's end, got 4096");
  }
  const auto memory = PeerMemory::open(handle).value();
  ASSERT_EQ(memory.bytes(), 512);
  std::vector<std::byte> got(512);
  must(copy_to_host(memory.data(), std::span(got), stream()));
  must(stream().wait());
  EXPECT_EQ(first_difference(got, {bytes.begin() + 300, bytes.begin() + 812}), -1);
}

TEST_F(FakePull, WhatCannotBeSharedIsRefused) {
  const auto bytes = numbered(512);
  EXPECT_EQ(export_memory(bytes).error().message(),
            "memory: wanted memory of a GPU, got memory of the host; shared memory of the host "
            "needs no export");
  auto handle = share(bytes).value();
  {
    const AsExporter exporter;
    EXPECT_EQ(refusal(handle).find("handle: wanted memory of another process, got "), 0u)
        << refusal(handle);
  }
  fake::set_devices(2, false);
  EXPECT_EQ(refusal(handle),
            "handle: wanted memory of a GPU that GPU 1 can access, got GPU 0; nvidia-smi topo -p2p "
            "r shows which pairs can");
  handle.gpu = {};  // of a GPU that this process does not see
  EXPECT_EQ(refusal(handle),
            "handle: wanted memory of a GPU that GPU 1 can access, got one that it cannot; "
            "nvidia-smi topo -p2p r shows which pairs can");
  fake::set_devices(2);
  EXPECT_EQ(refusal(handle), "opened");
  handle.bytes = -1;
  EXPECT_EQ(refusal(handle), "handle: wanted the bytes of a MemoryHandle, got -1 bytes at 0");
}

TEST_F(FakePull, PoolsThatDifferAreRefused) {
  std::byte byte{};
  const CacheLayout layout(LayoutKind::mla_fp8), other(LayoutKind::mla_bf16);
  const ConstPoolView from(&byte, layout, 64, 1);
  const auto refused = [&](const CacheLayout& to, std::int32_t page_size) {
    return copy_pages(from, {}, {&byte, to, page_size, 1}, {}, stream()).error().message();
  };
  EXPECT_EQ(refused(other, 64), "to: wanted a pool of " + layout.serialize() + ", got one of " +
                                    other.serialize() + "; requantize converts layouts");
  EXPECT_EQ(refused(layout, 16),
            "to: wanted pages of 64 tokens, as from, got pages of 16; copy slots");
  const std::vector<Slot> one(1);
  EXPECT_EQ(copy_slots(from, one, {&byte, layout, 16, 1}, {}, stream()).error().message(),
            "dst: wanted 1 entries, as many as src, got 0");
}

}  // namespace
}  // namespace lathe::cuda
