// Attention over a pool's pages.
#pragma once

#include <lathe/codec.h>
#include <lathe/lathe.h>
#include <lathe/result.h>
#include <lathe/tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace lathe {
inline namespace api {

/// Arguments of attend(). lathe_attend_args documents the shapes. An empty Tensor counts as NULL.
struct AttendArgs {
  std::string attention = "dsa", kind = "inplace", device;  // "": the default
  Tensor q;
  const Pool* pool = nullptr;
  Tensor page_table, indices, index_lengths;
  const Pool* extra = nullptr;
  Tensor extra_indices, extra_index_lengths;
  Tensor q_indptr, kv_lens, sink;
  float scale = 0;  // 0: the default of `attention`
  float q_scale = 1;
  std::int32_t window = 0;
  std::uint32_t flags = 0;  // lathe_attend_flags
  std::int32_t threads = 0;
  Tensor out, lse;
  // For a q on a GPU only.
  void* stream = nullptr;
  Tensor workspace;
  std::int64_t max_request_rows = 0, max_kv_len = 0;
  Tensor q_scale_tensor, key_scale_tensor;
};

/// AttendArgs as the C struct. It points into the AttendArgs, which must outlive it.
class AttendView {
 public:
  explicit AttendView(const AttendArgs& a) {
    if (a.pool != nullptr) pool_.emplace(*a.pool);
    if (a.extra != nullptr) extra_.emplace(*a.extra);
    args_.size = sizeof args_;
    args_.attention = a.attention.c_str();
    args_.kind = a.kind.c_str();
    args_.device = a.device.empty() ? nullptr : a.device.c_str();
    args_.q = take(a.q);
    args_.pool = pool_ ? &pool_->view : nullptr;
    args_.page_table = take(a.page_table);
    args_.indices = take(a.indices);
    args_.index_lengths = take(a.index_lengths);
    args_.extra = extra_ ? &extra_->view : nullptr;
    args_.extra_indices = take(a.extra_indices);
    args_.extra_index_lengths = take(a.extra_index_lengths);
    args_.q_indptr = take(a.q_indptr);
    args_.kv_lens = take(a.kv_lens);
    args_.sink = take(a.sink);
    args_.scale = a.scale;
    args_.q_scale = a.q_scale;
    args_.window = a.window;
    args_.flags = a.flags;
    args_.threads = a.threads;
    args_.out = take(a.out);
    args_.lse = take(a.lse);
    args_.stream = a.stream;
    args_.workspace = take(a.workspace);
    args_.max_request_rows = a.max_request_rows;
    args_.max_kv_len = a.max_kv_len;
    args_.q_scale_tensor = take(a.q_scale_tensor);
    args_.key_scale_tensor = take(a.key_scale_tensor);
  }
  AttendView(const AttendView&) = delete;
  const lathe_attend_args* get() const { return &args_; }

 private:
  lathe_attend_args args_{};
  const lathe_tensor* take(const Tensor& tensor) {
    if (tensor.empty()) return nullptr;
    tensors_[count_] = tensor.view();
    return &tensors_[count_++];
  }
  std::optional<PoolView> pool_, extra_;
  std::array<lathe_tensor, 15> tensors_{};
  std::size_t count_ = 0;
};

inline Result<void> attend(const AttendArgs& args) {
  return Result<void>(lathe_attend(AttendView(args).get()));
}

/// Bytes of a workspace for GPU calls; `most` has the largest shapes.
inline Result<std::int64_t> attend_workspace(const AttendArgs& most) {
  std::int64_t bytes = 0;
  const lathe_status status = lathe_attend_workspace(AttendView(most).get(), &bytes);
  if (status != LATHE_OK) return last_error(status);
  return bytes;
}

/// Attention over some of the keys: out [rows, heads, v_dim], lse [rows, heads] float32.
struct Partial {
  Tensor out, lse;
};

/// Merges two partials over disjoint keys into `to`, which may be one of them: lathe_merge().
inline Result<void> merge(const Partial& a, const Partial& b, const Partial& to) {
  const lathe_tensor tensors[] = {a.out.view(), a.lse.view(),  b.out.view(),
                                  b.lse.view(), to.out.view(), to.lse.view()};
  return Result<void>(
      lathe_merge(&tensors[0], &tensors[1], &tensors[2], &tensors[3], &tensors[4], &tensors[5]));
}

/// The schedule and memory that the layers of one step share.
class Step {
 public:
  /// threads: 0: one per core.
  static Result<Step> create(std::int32_t threads = 0) {
    lathe_step* made = nullptr;
    const lathe_status status = lathe_step_create(threads, &made);
    if (status != LATHE_OK) return last_error(status);
    return Step(made);
  }
  /// Makes the schedule for the lengths in args.
  Result<void> update(const AttendArgs& args) {
    return Result<void>(lathe_step_update(handle_.get(), AttendView(args).get()));
  }
  /// attend() with the last update's schedule. The problem, shapes and lengths must be the same.
  Result<void> attend(const AttendArgs& args) {
    return Result<void>(lathe_attend_step(handle_.get(), AttendView(args).get()));
  }

 private:
  explicit Step(lathe_step* made) : handle_(made, &lathe_step_free) {}
  std::unique_ptr<lathe_step, void (*)(lathe_step*)> handle_;
};

}  // namespace api
}  // namespace lathe
