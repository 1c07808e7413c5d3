// Plan: the kernels of every phase, the cache layouts that they share, and their buffers.
#pragma once

#include <lathe/lathe.h>
#include <lathe/layout.h>
#include <lathe/result.h>

#include <cstdint>
#include <memory>
#include <string>

namespace lathe {
inline namespace api {

class Machine {
 public:
  /// "auto", "cpu", "cuda", "sm90", ...
  static Result<Machine> query(const std::string& device) {
    lathe_machine* made = nullptr;
    const lathe_status status = lathe_machine_query(device.c_str(), &made);
    if (status != LATHE_OK) return last_error(status);
    return Machine(made);
  }
  std::string json() const { return lathe_machine_json(handle_.get()); }
  const lathe_machine* get() const { return handle_.get(); }

 private:
  explicit Machine(lathe_machine* made) : handle_(made, &lathe_machine_free) {}
  std::shared_ptr<lathe_machine> handle_;
};

class Plan {
 public:
  struct Cache {
    Layout layout;
    std::int64_t page_size = 0;
  };

  /// request: JSON, see lathe_plan_create(). If nothing fits, the error's status is LATHE_REFUSED,
  /// and lathe_refusal_json() has all reasons.
  static Result<Plan> make(const std::string& request, const Machine& machine) {
    lathe_plan* made = nullptr;
    const lathe_status status = lathe_plan_create(request.c_str(), machine.get(), &made);
    if (status != LATHE_OK) return last_error(status);
    return Plan(made);
  }
  std::string json() const { return lathe_plan_json(handle_.get()); }
  /// What `lathe plan` prints.
  std::string text() const { return lathe_plan_text(handle_.get()); }
  std::int32_t cache_count() const { return lathe_plan_cache_count(handle_.get()); }
  /// Cache 0 is the main one.
  Result<Cache> cache(std::int32_t index) const {
    lathe_layout* layout = nullptr;
    std::int64_t page_size = 0;
    const lathe_status status = lathe_plan_layout(handle_.get(), index, &layout, &page_size);
    if (status != LATHE_OK) return last_error(status);
    return Cache{Layout(layout), page_size};
  }
  /// JSON list of a phase's kernels, preferred first.
  Result<std::string> routes(const std::string& phase) const {
    const char* json = nullptr;
    const lathe_status status = lathe_plan_route_json(handle_.get(), phase.c_str(), &json);
    if (status != LATHE_OK) return last_error(status);
    return std::string(json);
  }
  Result<std::int64_t> budget(const std::string& name) const {
    std::int64_t bytes = 0;
    const lathe_status status = lathe_plan_budget(handle_.get(), name.c_str(), &bytes);
    if (status != LATHE_OK) return last_error(status);
    return bytes;
  }

 private:
  explicit Plan(lathe_plan* made) : handle_(made, &lathe_plan_free) {}
  std::shared_ptr<lathe_plan> handle_;
};

}  // namespace api
}  // namespace lathe
