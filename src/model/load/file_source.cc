#include "model/load/file_source.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "io/files/file_reader.h"

namespace lathe {
namespace {

constexpr std::size_t kAlignment = 64;
// Narrower parts of rows are copied from whole rows, as a call costs about as much as copying 2
// KiB.
constexpr std::size_t kNarrow = 4096;
constexpr std::size_t kBlockBytes = std::size_t{128} << 10;  // whole rows of a call

bool in(std::span<const std::byte> bytes, const std::byte* at) {
  return at >= bytes.data() && at < bytes.data() + bytes.size();
}

}  // namespace

FileSource::FileSource(const Checkpoint& checkpoint) {
  std::size_t tensors = 0;
  for (const MappedFile& file : checkpoint.shards()) files_.push_back(&file);
  std::ranges::sort(files_, {}, [](const MappedFile* f) { return f->bytes().data(); });
  for (const CheckpointTensor& t : checkpoint.tensors()) tensors += t.bytes.size() + kAlignment;
  // Twice: a tensor of all experts has a matrix for each of them, aligned by itself.
  const std::size_t size = 2 * tensors + kAlignment;
  void* at = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return;
  reserved_ = static_cast<std::byte*>(at);
  size_ = size;
}

FileSource::~FileSource() {
  if (reserved_ != nullptr) ::munmap(reserved_, size_);
}

const std::byte* FileSource::columns(const std::byte* from, std::int64_t rows, std::int64_t pitch,
                                     std::int64_t first, std::int64_t width) {
  const auto bytes = static_cast<std::size_t>(rows * width);
  const std::size_t next = (used_ + bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (next > size_ || bytes == 0) return nullptr;
  columns_.push_back({reserved_ + used_, from + first, static_cast<std::size_t>(pitch),
                      static_cast<std::size_t>(width)});
  used_ = next;
  return columns_.back().at;
}

const MappedFile* FileSource::file_of(const std::byte* at) const {
  const auto next = std::ranges::upper_bound(files_, at, {},
                                             [](const MappedFile* f) { return f->bytes().data(); });
  if (next == files_.begin()) return nullptr;
  const MappedFile* file = *std::prev(next);
  return in(file->bytes(), at) ? file : nullptr;
}

Result<void> FileSource::copy(const std::byte* from, std::span<std::byte> to) const {
  if (in({reserved_, size_}, from)) {
    const auto next = std::ranges::upper_bound(columns_, from, {}, &Columns::at);
    const Columns& c = *std::prev(next);
    return gather(c, static_cast<std::size_t>(from - c.at), to);
  }
  if (const MappedFile* file = file_of(from)) {
    return FileReader(*file).read(static_cast<std::size_t>(from - file->bytes().data()), to);
  }
  if (!to.empty()) std::memcpy(to.data(), from, to.size());
  return {};
}

// Copies bytes [first, first + to.size()) of the part.
Result<void> FileSource::gather(const Columns& c, std::size_t first,
                                std::span<std::byte> to) const {
  const std::size_t end = first + to.size();
  // Copies row r's bytes, as far as they are in [first, end). part: row r of the columns.
  const auto put = [&](std::size_t r, const std::byte* part) {
    const std::size_t begin = std::max(first, r * c.width), stop = std::min(end, (r + 1) * c.width);
    std::memcpy(to.data() + begin - first, part + begin - r * c.width, stop - begin);
  };
  const std::size_t rows_end = (end + c.width - 1) / c.width;
  const MappedFile* file = file_of(c.from);
  if (file == nullptr) {
    for (std::size_t r = first / c.width; r < rows_end; ++r) put(r, c.from + r * c.pitch);
    return {};
  }
  const FileReader reader(*file);
  const auto origin = static_cast<std::size_t>(c.from - file->bytes().data());
  if (c.width >= kNarrow) {
    for (std::size_t at = first, n = 0; at < end; at += n) {
      const std::size_t r = at / c.width, col = at % c.width;
      n = std::min(c.width - col, end - at);
      if (auto ok = reader.read(origin + r * c.pitch + col, to.subspan(at - first, n)); !ok) {
        return ok;
      }
    }
    return {};
  }
  const std::size_t most = std::max<std::size_t>(1, kBlockBytes / c.pitch);
  const auto block = std::make_unique_for_overwrite<std::byte[]>((most - 1) * c.pitch + c.width);
  for (std::size_t r = first / c.width, n = 0; r < rows_end; r += n) {
    n = std::min(most, rows_end - r);
    const std::span rows(block.get(), (n - 1) * c.pitch + c.width);
    if (auto ok = reader.read(origin + r * c.pitch, rows); !ok) return ok;
    for (std::size_t i = 0; i < n; ++i) put(r + i, block.get() + i * c.pitch);
  }
  return {};
}

}  // namespace lathe
