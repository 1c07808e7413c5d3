// For tests: the checkpoints of tests/data/models with weights from a formula
// (tools/fixtures/generated_weights.py, tools/fixtures/make_v4_fixtures.py).
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "base/float_formats.h"
#include "io/files/read_file.h"

namespace lathe {

/// A checkpoint's folder, written on construction and removed on destruction.
class GeneratedCheckpoint {
 public:
  /// `fixture`: a folder with config.json and tensors.json.
  explicit GeneratedCheckpoint(const std::filesystem::path& fixture)
      : dir_(std::filesystem::path(testing::TempDir()) /
             ("lathe_generated_" + fixture.filename().string() + "_" + std::to_string(getpid()) +
              "_" + std::to_string(made_++))) {
    std::filesystem::create_directories(dir_);
    for (const char* file : {"config.json", "generation_config.json"}) {
      if (!std::filesystem::exists(fixture / file)) continue;
      std::filesystem::copy_file(fixture / file, dir_ / file,
                                 std::filesystem::copy_options::overwrite_existing);
    }
    write(nlohmann::ordered_json::parse(*read_file(fixture / "tensors.json")));
  }
  ~GeneratedCheckpoint() { std::filesystem::remove_all(dir_); }
  GeneratedCheckpoint(const GeneratedCheckpoint&) = delete;
  GeneratedCheckpoint& operator=(const GeneratedCheckpoint&) = delete;

  std::string dir() const { return dir_.string(); }

 private:
  using Json = nlohmann::ordered_json;

  static std::uint64_t splitmix64(std::uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
  static std::uint64_t fnv1a64(std::string_view text) {
    std::uint64_t h = 0xcbf29ce484222325u;
    for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    return h;
  }

  template <class T>
  static void append(std::string& bytes, T value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  static std::string int32_tensor(const Json& spec, std::uint64_t base, std::uint64_t count) {
    std::string bytes;
    for (std::uint64_t i = 0; i < count; ++i) {
      std::uint64_t v = 0;
      if (spec.contains("value")) {
        v = spec["value"].get<std::uint64_t>();
      } else if (spec.contains("group")) {
        v = spec["step"].get<std::uint64_t>() * i % count / spec["group"].get<std::uint64_t>();
      } else {
        v = splitmix64(base + i) >> 32;
      }
      append(bytes, static_cast<std::uint32_t>(v));
    }
    return bytes;
  }
  static std::string bytes_of_tensor(const std::string& name, const Json& spec,
                                     std::uint64_t count) {
    const std::uint64_t base = splitmix64(fnv1a64(name));
    const auto dtype = spec["dtype"].get<std::string>();
    std::string bytes;
    if (dtype == "I32" && !spec.contains("count")) return int32_tensor(spec, base, count);
    if (dtype == "I32" || dtype == "I64") {
      const auto count_of = spec["count"].get<std::uint64_t>();
      const auto cols = spec["shape"][1].get<std::uint64_t>();
      for (std::uint64_t i = 0; i < count; ++i) {
        const std::uint64_t id = (splitmix64(base + i / cols) + i % cols) % count_of;
        dtype == "I32" ? append(bytes, static_cast<std::int32_t>(id))
                       : append(bytes, static_cast<std::int64_t>(id));
      }
      return bytes;
    }
    if (dtype == "U8" || dtype == "I8" || dtype == "F8_E8M0") {
      const auto low = spec["low"].get<std::uint64_t>(), range = spec["count"].get<std::uint64_t>();
      for (std::uint64_t i = 0; i < count; ++i) {
        append(bytes, static_cast<std::uint8_t>(low + splitmix64(base + i) % range));
      }
      return bytes;
    }
    const auto mean = spec["mean"].get<double>(), reach = spec["reach"].get<double>();
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto bits = static_cast<std::int32_t>(splitmix64(base + i) >> 32);
      const auto v = static_cast<float>(mean + reach * (static_cast<double>(bits) * 0x1p-31));
      if (dtype == "F32") append(bytes, v);
      if (dtype == "BF16") append(bytes, to_bf16(v));
      if (dtype == "F16") append(bytes, to_f16(v));
      if (dtype == "F8_E4M3") append(bytes, to_e4m3(v));
    }
    return bytes;
  }

  void write(const Json& tensors) {
    Json header;
    std::string data;
    for (const auto& [name, spec] : tensors.items()) {
      std::uint64_t count = 1;
      for (const Json& d : spec["shape"]) count *= d.get<std::uint64_t>();
      const std::size_t begin = data.size();
      data += bytes_of_tensor(name, spec, count);
      header[name] = {{"dtype", spec["dtype"]},
                      {"shape", spec["shape"]},
                      {"data_offsets", {begin, data.size()}}};
    }
    const std::string text = header.dump();
    std::string size;
    append(size, static_cast<std::uint64_t>(text.size()));
    std::ofstream(dir_ / "model.safetensors", std::ios::binary) << size << text << data;
  }

  static inline int made_ = 0;  // a folder may outlive another of the same fixture

  std::filesystem::path dir_;
};

/// The checkpoint of a folder of tests/data/models. One with generated weights is written at first
/// use, and removed at the end of the process.
inline std::string checkpoint_dir(const std::filesystem::path& fixture) {
  if (!std::filesystem::exists(fixture / "tensors.json")) return fixture.string();
  static std::map<std::string, GeneratedCheckpoint> made;
  return made.try_emplace(fixture.string(), fixture).first->second.dir();
}

}  // namespace lathe
