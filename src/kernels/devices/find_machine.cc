#include "kernels/devices/find_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/devices/query_gpu.h"

namespace lathe {
namespace {

Error bad_gpus(std::string wanted, std::string offered) {
  return {ErrorCode::invalid_argument, "--gpus", std::move(wanted), std::move(offered), ""};
}

// Whole numbers with commas between. None: something else, or one twice.
std::optional<std::vector<std::int32_t>> parse_numbers(std::string_view text) {
  std::vector<std::int32_t> out;
  const char *at = text.data(), *end = at + text.size();
  while (true) {
    std::int32_t n = -1;
    const auto [next, error] = std::from_chars(at, end, n);
    if (error != std::errc() || n < 0 || std::ranges::find(out, n) != out.end()) {
      return std::nullopt;
    }
    out.push_back(n);
    if (next == end) return out;
    if (*next != ',') return std::nullopt;
    at = next + 1;
  }
}

Result<Machine> described(Machine machine, const GpuChoice& choice) {
  if (!is_gpu(machine.device)) {
    if (choice.gpus.empty()) return machine;
    return bad_gpus("a GPU with it", fmt::format("--device {}", name(machine.device)));
  }
  if (choice.gpus.empty()) return with_ranks(std::move(machine), choice.ranks);
  const auto count = parse_numbers(choice.gpus);
  if (!count || count->size() != 1 || count->front() < 1) {
    return bad_gpus("how many GPUs the described machine has", fmt::format("\"{}\"", choice.gpus));
  }
  return with_ranks(std::move(machine), count->front());
}

// A process's first use of a GPU takes 150 ms, so all GPUs are asked at the same time.
void find_free_bytes(std::span<FoundGpu> gpus) {
  std::vector<std::jthread> threads;
  for (FoundGpu& gpu : gpus) {
    threads.emplace_back([&gpu] { gpu.free_bytes = free_gpu_bytes(gpu.number); });
  }
}

Result<Machine> found(const GpuChoice& choice, std::span<const std::int32_t> numbers) {
  std::vector<FoundGpu> gpus;
  for (const std::int32_t n : numbers) {
    const auto machine = query_gpu(n);
    if (!machine) return bad_gpus("GPUs that Lathe knows", fmt::format("{}", n));
    gpus.push_back({n, *machine, 0});
  }
  if (gpus.size() > 1) find_free_bytes(gpus);
  const bool peers = peer_access(numbers);
  auto joined = join_gpus(gpus, peers, peers || has_nccl());  // NCCL is opened only where needed
  if (joined && choice.gpus.empty()) joined->ranks = gpu_count();
  return joined;
}

// A described machine by a GPU's name.
std::optional<Machine> named(std::string_view text) {
  if (text != "h100" && text != "h200") return std::nullopt;
  Machine m = describe_machine(Device::sm90);
  if (text == "h200") return m;
  m.model = "H100";
  m.memory_bytes = std::int64_t{78} << 30;  // what the driver leaves of 80 GB
  m.bytes_per_second = 3.35e12;
  return m;
}

}  // namespace

Result<std::vector<std::int32_t>> choose_gpus(const GpuChoice& choice, std::int32_t count) {
  std::vector<std::int32_t> first(static_cast<std::size_t>(std::min(count, choice.ranks)));
  std::iota(first.begin(), first.end(), 0);
  if (choice.gpus.empty()) return first;
  const auto listed = parse_numbers(choice.gpus);
  if (!listed)
    return bad_gpus("different numbers, such as 0,1", fmt::format("\"{}\"", choice.gpus));
  for (const std::int32_t n : *listed) {
    if (n >= count) {
      return bad_gpus(fmt::format("numbers from 0 to {}", count - 1), fmt::format("{}", n));
    }
  }
  if (std::ssize(*listed) != choice.ranks) {
    return bad_gpus(fmt::format("{} GPU{} for --tp {}", choice.ranks, choice.ranks == 1 ? "" : "s",
                                choice.ranks),
                    fmt::format("{}", listed->size()));
  }
  return *listed;
}

Result<Machine> join_gpus(std::span<const FoundGpu> gpus, bool peers, bool nccl) {
  const FoundGpu& first = gpus.front();
  Machine out = with_ranks(first.machine, static_cast<std::int32_t>(gpus.size()));
  out.peers = peers;
  out.nccl = nccl;
  if (gpus.size() == 1) return out;
  for (const FoundGpu& gpu : gpus) {
    if (gpu.machine.model != first.machine.model) {
      return bad_gpus("GPUs of one kind",
                      fmt::format("{} {} and {} {}", first.number, first.machine.model, gpu.number,
                                  gpu.machine.model));
    }
    out.free_bytes.push_back(gpu.free_bytes);
  }
  return out;
}

Result<Machine> find_machine(std::string_view device, const GpuChoice& choice) {
  if (device == "auto" || device == "cuda") {
    const std::int32_t count = gpu_count();
    if (count > 0) {
      const auto numbers = choose_gpus(choice, count);
      if (!numbers) return numbers.error();
      const auto gpu = query_gpu(numbers->front());
      if (gpu && (device == "cuda" || gpu->device == Device::sm90)) return found(choice, *numbers);
    }
    return described(describe_machine(device == "cuda" ? Device::sm90 : Device::cpu), choice);
  }
  if (const auto machine = named(device)) return described(*machine, choice);
  if (const auto d = parse_enum<Device>(device)) return described(describe_machine(*d), choice);
  return Error{ErrorCode::invalid_argument, "--device",
               "one of auto, cuda, " + known_names<Device>() + ", h100, h200",
               fmt::format("\"{}\"", device), ""};
}

}  // namespace lathe
