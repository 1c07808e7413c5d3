#include "io/checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/json.h"
#include "io/text/json_text.h"
#include "io/text/quote.h"

namespace lathe {
namespace {

using SortedJson = nlohmann::json;

constexpr std::uint64_t kMaxHeader = 100'000'000;  // the limit of the format's own library

Error malformed(std::string field, std::string wanted, std::string offered) {
  return {ErrorCode::malformed, std::move(field), std::move(wanted), std::move(offered), ""};
}

std::uint64_t little_endian_u64(std::span<const std::byte> bytes) {
  std::uint64_t v = 0;
  for (std::size_t i = 8; i-- > 0;) v = v << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  return v;
}

// A non-negative integer below 2^63.
std::optional<std::int64_t> size_value(const SortedJson& j) {
  if (!j.is_number_unsigned()) return std::nullopt;
  const auto v = j.get<std::uint64_t>();
  if (v > static_cast<std::uint64_t>(INT64_MAX)) return std::nullopt;
  return static_cast<std::int64_t>(v);
}

// Bytes of a packed tensor; nullopt if they overflow or do not fill whole bytes.
std::optional<std::int64_t> packed_bytes(std::span<const std::int64_t> shape, int bits) {
  std::int64_t total = bits;
  // A zero dimension makes the tensor empty, even if the others' product overflows.
  if (std::ranges::find(shape, 0) != shape.end()) return 0;
  for (const std::int64_t d : shape) {
    if (__builtin_mul_overflow(total, d, &total)) return std::nullopt;
  }
  if (total % 8 != 0) return std::nullopt;
  return total / 8;
}

Result<SafetensorsEntry> read_entry(const std::string& tensor, const SortedJson& j,
                                    std::int64_t data_begin, std::int64_t file_size) {
  const std::string field = "tensor " + quote(tensor);
  if (!j.is_object()) return malformed(field, "an object", json_excerpt(j));
  const auto dtype = j.find("dtype");
  const auto shape = j.find("shape");
  const auto offsets = j.find("data_offsets");
  if (dtype == j.end() || !dtype->is_string()) {
    return malformed(field + ".dtype", "a string",
                     dtype == j.end() ? "nothing" : json_excerpt(*dtype));
  }
  SafetensorsEntry e;
  e.name = tensor;
  const auto known = parse_enum<SafetensorsDType>(dtype->get_ref<const std::string&>());
  if (!known) {
    return Error{ErrorCode::unsupported, field + ".dtype",
                 "one of " + known_names<SafetensorsDType>(), json_excerpt(*dtype), ""};
  }
  e.dtype = *known;
  if (shape == j.end() || !shape->is_array()) {
    return malformed(field + ".shape", "an array of sizes",
                     shape == j.end() ? "nothing" : json_excerpt(*shape));
  }
  for (const SortedJson& dim : *shape) {
    const auto v = size_value(dim);
    if (!v) return malformed(field + ".shape", "sizes from 0 to 2^63 - 1", json_excerpt(dim));
    e.shape.push_back(*v);
  }
  if (offsets == j.end() || !offsets->is_array() || offsets->size() != 2) {
    return malformed(field + ".data_offsets", "[begin, end]",
                     offsets == j.end() ? "nothing" : json_excerpt(*offsets));
  }
  const auto begin = size_value((*offsets)[0]);
  const auto end = size_value((*offsets)[1]);
  if (!begin || !end || *begin > *end) {
    return malformed(field + ".data_offsets", "begin <= end, both below 2^63",
                     json_excerpt(*offsets));
  }
  const auto bytes = packed_bytes(e.shape, bits_of(e.dtype));
  if (!bytes || *bytes != *end - *begin) {
    return malformed(
        field + ".data_offsets",
        bytes ? fmt::format("{} bytes, as {} {} has", *bytes, name(e.dtype), json_excerpt(*shape))
              : "a shape of whole bytes below 2^63 bits",
        fmt::format("{} bytes", *end - *begin));
  }
  if (*end > file_size - data_begin) {
    return Error{ErrorCode::malformed, field, fmt::format("{} bytes of data", *end),
                 fmt::format("{}", file_size - data_begin),
                 "the file is truncated; download it again"};
  }
  e.begin = data_begin + *begin;
  e.end = data_begin + *end;
  return e;
}

Result<void> check_overlaps(const std::vector<SafetensorsEntry>& tensors) {
  const SafetensorsEntry* last = nullptr;  // the non-empty one before
  for (const SafetensorsEntry& e : tensors) {
    if (e.begin == e.end) continue;
    if (last != nullptr && e.begin < last->end) {
      return malformed(
          "tensor " + quote(e.name),
          fmt::format("bytes from {} on, past tensor {}", last->end, quote(last->name)),
          fmt::format("bytes from {} on, shared by both", e.begin));
    }
    last = &e;
  }
  return {};
}

}  // namespace

int bits_of(SafetensorsDType t) {
  using enum SafetensorsDType;
  switch (t) {
    case F64:
    case I64:
    case U64:
      return 64;
    case F32:
    case I32:
    case U32:
      return 32;
    case F16:
    case BF16:
    case I16:
    case U16:
      return 16;
    case BOOL:
    case U8:
    case I8:
    case F8_E5M2:
    case F8_E4M3:
    case F8_E8M0:
      return 8;
    case F4:
      return 4;
  }
  return 0;
}

std::optional<DType> dtype_of(SafetensorsDType t) {
  using enum SafetensorsDType;
  switch (t) {
    case F64:
      return DType::f64;
    case F32:
      return DType::f32;
    case F16:
      return DType::f16;
    case BF16:
      return DType::bf16;
    case F8_E4M3:
      return DType::e4m3;
    case F8_E5M2:
      return DType::e5m2;
    case F8_E8M0:
      return DType::ue8m0;
    case F4:
      return DType::e2m1;
    case U8:
      return DType::u8;
    default:
      return std::nullopt;
  }
}

Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> file) {
  const char* const truncated = "the file is truncated; download it again";
  if (file.size() < 8) {
    return Error{ErrorCode::malformed, "header length", "8 bytes", fmt::format("{}", file.size()),
                 truncated};
  }
  const std::uint64_t length = little_endian_u64(file);
  if (length > kMaxHeader) {
    return malformed("header length", fmt::format("at most {} bytes", kMaxHeader),
                     fmt::format("{}; not a safetensors file?", length));
  }
  if (length > file.size() - 8) {
    return Error{ErrorCode::malformed, "header", fmt::format("{} bytes", length),
                 fmt::format("{}", file.size() - 8), truncated};
  }
  const auto json = parse_json(
      {reinterpret_cast<const char*>(file.data()) + 8, static_cast<std::size_t>(length)}, "header");
  if (!json) return json.error();
  if (!json->is_object()) return malformed("header", "a JSON object", json_excerpt(*json));

  SafetensorsHeader header;
  const auto data_begin = static_cast<std::int64_t>(8 + length);
  const auto file_size = static_cast<std::int64_t>(file.size());
  for (const auto& [key, value] : json->items()) {
    if (key == "__metadata__") {
      if (!value.is_object()) {
        return malformed(key, "an object of strings", json_excerpt(value));
      }
      for (const auto& [k, v] : value.items()) {
        if (!v.is_string()) {
          return malformed("__metadata__." + quote(k), "a string", json_excerpt(v));
        }
        header.metadata[k] = v.get<std::string>();
      }
      continue;
    }
    auto entry = read_entry(key, value, data_begin, file_size);
    if (!entry) return entry.error();
    header.tensors.push_back(*std::move(entry));
  }
  std::ranges::stable_sort(header.tensors, {}, &SafetensorsEntry::begin);
  if (const auto ok = check_overlaps(header.tensors); !ok) return ok.error();
  std::int64_t end = data_begin;
  for (const SafetensorsEntry& e : header.tensors) end = std::max(end, e.end);
  if (end != file_size) {  // the format's own reader refuses it, too
    return Error{ErrorCode::malformed, "file size",
                 fmt::format("{} bytes, where the last tensor ends", end),
                 fmt::format("{}", file_size), "the file is damaged; download it again"};
  }
  return header;
}

}  // namespace lathe
