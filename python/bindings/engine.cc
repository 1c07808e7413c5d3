// The engine through the C interface: requests in, events out. lathe/_engine.py adds locks, batches
// and streams.
// Compiled alone: no other binding includes the installed headers.
#include <lathe/lathe.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bindings.h"
#include "unlocked.h"

namespace nb = nanobind;

namespace lathe::python {
namespace {

// The code of a lathe.LatheError.
const char* code_of(lathe_status status) {
  switch (status) {
    case LATHE_OUT_OF_MEMORY:
      return "exhausted";
    case LATHE_DEVICE_ERROR:
      return "device";
    default:
      return lathe_status_name(status);
  }
}

void check(lathe_status status) {
  if (status == LATHE_OK) return;
  if (ending()) end_thread();  // before any code in Python, where the thread might be unwound
  const lathe_error* e = lathe_last_error();
  const nb::module_ errors = nb::module_::import_("lathe._errors");
  nb::object type, exception;
  if (status == LATHE_REFUSED) {
    type = errors.attr("PlanRefused");
    exception = type(e->text, nb::module_::import_("json").attr("loads")(lathe_refusal_json()));
  } else {
    type = errors.attr("LatheError");
    exception = type(code_of(status), e->field, e->wanted, e->offered, e->hint);
  }
  PyErr_SetObject(type.ptr(), exception.ptr());
  throw nb::python_error();
}

// A model may write bytes that are not UTF-8.
nb::object decoded(const lathe_event& e) {
  return nb::steal(PyUnicode_DecodeUTF8(e.text, e.text_bytes, "replace"));
}

// Called while weights load: Python's signals (Ctrl-C) and the caller's own function.
struct LoadProgress {
  nb::object call;  // None, or f(loaded, total), in bytes
  std::optional<nb::python_error> thrown;

  static int step(std::int64_t loaded, std::int64_t total, void* user) {
    auto& self = *static_cast<LoadProgress*>(user);
    if (ending()) return 1;
    const nb::gil_scoped_acquire locked;
    try {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (!self.call.is_none()) self.call(loaded, total);
      return 0;
    } catch (nb::python_error& error) {
      self.thrown.emplace(std::move(error));
      return 1;
    }
  }
};

// Not safe for threads by itself: a step runs without Python's lock.
class Engine {
 public:
  Engine(const std::string& options, nb::object progress) {
    LoadProgress call{std::move(progress), std::nullopt};
    lathe_engine* made = nullptr;
    lathe_status status = LATHE_OK;
    {
      const Unlocked unlocked;
      status = lathe_engine_load(options.c_str(), &LoadProgress::step, &call, &made);
    }
    if (call.thrown) throw nb::python_error(std::move(*call.thrown));
    check(status);
    handle_.reset(made);
  }

  std::string json() const { return lathe_engine_json(handle_.get()); }
  std::string stats_json() {
    const char* json = nullptr;
    check(lathe_engine_stats_json(handle_.get(), &json));
    return json;
  }

  std::vector<std::int32_t> encode(const std::string& text) {
    const std::int32_t* tokens = nullptr;
    std::int64_t count = 0;
    check(lathe_engine_encode(handle_.get(), text.data(), std::ssize(text), &tokens, &count));
    return {tokens, tokens + count};
  }
  std::vector<std::int32_t> encode_chat(const std::string& messages) {
    const std::int32_t* tokens = nullptr;
    std::int64_t count = 0;
    check(lathe_engine_encode_chat(handle_.get(), messages.c_str(), &tokens, &count));
    return {tokens, tokens + count};
  }

  std::uint64_t submit(const std::vector<std::int32_t>& prompt, const std::string& params) {
    static constexpr std::int32_t kNone = 0;
    std::uint64_t request = 0;
    check(lathe_engine_submit(handle_.get(), prompt.empty() ? &kNone : prompt.data(),
                              std::ssize(prompt), params.c_str(), &request));
    return request;
  }
  void cancel(std::uint64_t request) { check(lathe_engine_cancel(handle_.get(), request)); }

  // (request, kind, token, logprob or None, JSON of the likeliest or None, text, finish reason or
  // None, error or None, prompt tokens, cached tokens) of each event.
  nb::list step() {
    std::int64_t count = 0;
    lathe_status status = LATHE_OK;
    {
      const Unlocked unlocked;
      status = lathe_engine_step(handle_.get(), &count);
    }
    check(status);
    nb::list events;
    const auto text = [](const char* t) {
      return t == nullptr ? nb::none() : nb::object(nb::str(t));
    };
    for (std::int64_t i = 0; i < count; ++i) {
      lathe_event e{};
      e.size = sizeof e;
      check(lathe_engine_event(handle_.get(), i, &e));
      events.append(nb::make_tuple(
          e.request, static_cast<int>(e.kind), e.token,
          e.logprobs_json == nullptr ? nb::none() : nb::object(nb::float_(e.logprob)),
          text(e.logprobs_json), decoded(e), text(e.finish_reason), text(e.error), e.prompt_tokens,
          e.cached_tokens));
    }
    return events;
  }

  void close() { handle_.reset(); }
  bool closed() const { return handle_ == nullptr; }

 private:
  struct Free {
    void operator()(lathe_engine* engine) const { lathe_engine_free(engine); }
  };
  std::unique_ptr<lathe_engine, Free> handle_;
};

}  // namespace

void bind_engine(nb::module_& m) {
  nb::class_<Engine>(m, "Engine")
      .def(nb::init<const std::string&, nb::object>(), nb::arg("options"),
           nb::arg("progress").none())
      .def("json", &Engine::json)
      .def("stats_json", &Engine::stats_json)
      .def("encode", &Engine::encode)
      .def("encode_chat", &Engine::encode_chat)
      .def("submit", &Engine::submit)
      .def("cancel", &Engine::cancel)
      .def("step", &Engine::step)
      .def("close", &Engine::close)
      .def("closed", &Engine::closed);
}

}  // namespace lathe::python
