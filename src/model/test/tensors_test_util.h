// For tests: the tensors of a safetensors file as bytes, to change and write again.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "io/files/read_file.h"

namespace lathe {

struct TensorBytes {
  std::string dtype;  // as safetensors names it
  std::vector<std::int64_t> shape;
  std::string bytes;
};
using TensorsByName = std::map<std::string, TensorBytes>;

/// The values' bytes.
template <class T>
std::string bytes_of_values(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

inline TensorsByName read_tensors(const std::filesystem::path& file) {
  const std::string bytes = *read_file(file);
  std::uint64_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof(size));
  TensorsByName out;
  const auto header = nlohmann::json::parse(bytes.substr(sizeof(size), size));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const auto begin = entry["data_offsets"][0].get<std::size_t>();
    const auto end = entry["data_offsets"][1].get<std::size_t>();
    out[name] = {entry["dtype"].get<std::string>(), entry["shape"].get<std::vector<std::int64_t>>(),
                 bytes.substr(sizeof(size) + size + begin, end - begin)};
  }
  return out;
}

/// Replaces the file; mappings of the old one stay valid.
inline void write_tensors(const std::filesystem::path& file, const TensorsByName& tensors) {
  nlohmann::json header;
  std::string data;
  for (const auto& [name, t] : tensors) {
    const std::size_t begin = data.size();
    data += t.bytes;
    header[name] = {{"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  const std::uint64_t size = text.size();
  std::filesystem::remove(file);
  std::ofstream(file, std::ios::binary)
      << std::string_view(reinterpret_cast<const char*>(&size), sizeof(size)) << text << data;
}

}  // namespace lathe
