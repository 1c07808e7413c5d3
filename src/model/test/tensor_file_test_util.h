// TensorFile: a safetensors file with a test's expected values.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "io/checkpoint/safetensors.h"
#include "io/files/mapped_file.h"

namespace lathe {

class TensorFile {
 public:
  explicit TensorFile(const std::string& path)
      : file_(*MappedFile::open(path)), header_(*parse_safetensors_header(file_.bytes())) {}

  /// A tensor's elements, of type T; a missing name fails the test.
  template <class T>
  std::vector<T> values(const std::string& name) const {
    for (const SafetensorsEntry& e : header_.tensors) {
      if (e.name != name) continue;
      std::vector<T> out(static_cast<std::size_t>(e.end - e.begin) / sizeof(T));
      std::memcpy(out.data(), file_.bytes().data() + e.begin, out.size() * sizeof(T));
      return out;
    }
    ADD_FAILURE() << name;
    return {};
  }

 private:
  MappedFile file_;
  SafetensorsHeader header_;
};

}  // namespace lathe
