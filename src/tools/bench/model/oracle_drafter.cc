#include "tools/bench/model/oracle_drafter.h"

#include <chrono>

#include "kernels/philox.h"

namespace lathe {
namespace {

class Timer {
 public:
  explicit Timer(double& seconds) : seconds_(seconds) {}
  ~Timer() {
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

void OracleDrafter::propose(std::span<DraftRequest> requests) {
  if (!on_) return;
  {
    const Timer timer(seconds_);
    inner_->propose(requests);
  }
  for (DraftRequest& r : requests) {
    r.drafts.clear();
    const auto known = answers_.find(r.id.value);
    if (known == answers_.end()) continue;
    const auto& [prompt, tokens] = known->second;
    for (std::int64_t i = 0; i < r.most; ++i) {
      const std::int64_t place = std::ssize(r.tokens) + i - prompt;
      if (place >= std::ssize(tokens)) break;
      const std::int32_t next = tokens[static_cast<std::size_t>(place)];
      const std::uint64_t bits = random_bits(r.id.value, static_cast<std::uint64_t>(place));
      const bool right = static_cast<double>(bits >> 11) * 0x1p-53 < right_;
      r.drafts.push_back(right ? next : next > 0 ? next - 1 : 1);
      if (!right) break;
    }
  }
}

Result<void> OracleDrafter::read(std::span<const ComputedRows> rows) {
  if (!on_) return Error{ErrorCode::unsupported, "drafts", "a drafter that is on", "off", ""};
  const Timer timer(seconds_);
  return inner_->read(rows);
}

void OracleDrafter::forget(RequestId id) {
  inner_->forget(id);
  answers_.erase(id.value);
}

}  // namespace lathe
