// Parses the header of a safetensors file: names, dtypes, shapes and offsets of its tensors.
// Format: 8 bytes of little-endian header length N, N bytes of JSON, then the tensors' bytes.
// Source: https://github.com/huggingface/safetensors ("Format").
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/enum.h"
#include "base/result.h"

namespace lathe {

#define LATHE_SAFETENSORS_DTYPES(X) \
  X(BOOL)                           \
  X(U8)                             \
  X(I8)                             \
  X(F8_E5M2)                        \
  X(F8_E4M3) X(F8_E8M0) X(I16) X(U16) X(F16) X(BF16) X(I32) X(U32) X(F32) X(F64) X(I64) X(U64) X(F4)
LATHE_ENUM(SafetensorsDType, LATHE_SAFETENSORS_DTYPES)

/// Bits of one element; F4 packs two elements in a byte.
int bits_of(SafetensorsDType t);

/// The corresponding element type; nullopt for integers other than U8 and for BOOL.
std::optional<DType> dtype_of(SafetensorsDType t);

struct SafetensorsEntry {
  std::string name;
  SafetensorsDType dtype = SafetensorsDType::F32;
  std::vector<std::int64_t> shape;  // outermost first; empty = one element
  std::int64_t begin = 0;           // bytes from the start of the file
  std::int64_t end = 0;             // begin + the bytes of the shape
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  // ascending begin
  std::map<std::string, std::string> metadata;
};

/// Parses and checks the header of a whole file. Every entry is inside `file`, has the size of
/// its shape and dtype, and overlaps no other. Gaps are tolerated, but not bytes after the last
/// tensor. Errors: malformed (with the tensor's name), unsupported (a dtype that is not listed
/// above).
Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> file);

}  // namespace lathe
