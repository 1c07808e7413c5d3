#include "io/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/json.h"
#include "io/files/model_path.h"
#include "io/files/read_file.h"
#include "io/text/json_text.h"
#include "io/text/quote.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPrefaultChunk = std::size_t{16} << 20;

using WeightMap = std::map<std::string, std::string>;  // tensor -> file name

// Whether it names a file in the index's folder: a downloaded index must not open files elsewhere.
bool is_plain_file_name(std::string_view file) {
  return !file.empty() && file != "." && file != ".." &&
         file.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

Result<WeightMap> read_index(const fs::path& path) {
  const auto text = read_file(path);
  if (!text) return text.error();
  const auto json = parse_json(*text, path.string());
  if (!json) return json.error();
  const auto malformed = [&](std::string place, std::string wanted, std::string offered) {
    return Error{ErrorCode::malformed, path.string() + ": " + std::move(place), std::move(wanted),
                 std::move(offered), ""};
  };
  if (!json->is_object()) return malformed("index", "an object", json_excerpt(*json));
  const auto map = json->find("weight_map");
  if (map == json->end() || !map->is_object()) {
    return malformed("weight_map", "an object",
                     map == json->end() ? "nothing" : json_excerpt(*map));
  }
  WeightMap out;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || !is_plain_file_name(file.get_ref<const std::string&>())) {
      return malformed("weight_map." + quote(tensor), "a file name without a folder",
                       json_excerpt(file));
    }
    out.emplace(tensor, file.get<std::string>());
  }
  return out;
}

Result<std::vector<fs::path>> list_safetensors(const fs::path& dir) {
  std::vector<fs::path> out;
  std::error_code ec;
  for (fs::directory_iterator it(dir, ec), end; !ec && it != end; it.increment(ec)) {
    if (it->path().extension() == ".safetensors") out.push_back(it->path());
  }
  if (ec) return Error{ErrorCode::io, dir.string(), "a readable folder", ec.message(), ""};
  if (out.empty()) {
    return Error{ErrorCode::io, dir.string(),
                 "model.safetensors, model.safetensors.index.json or other *.safetensors",
                 "none of them", "other formats have to be converted to safetensors"};
  }
  std::ranges::sort(out);
  return out;
}

struct Chunk {
  const MappedFile* file;
  std::size_t offset;
  std::size_t size;
};

void add_chunks(const MappedFile& file, std::size_t offset, std::size_t size,
                std::vector<Chunk>& out) {
  for (const std::size_t end = offset + size; offset < end; offset += kPrefaultChunk) {
    out.push_back({&file, offset, std::min(kPrefaultChunk, end - offset)});
  }
}

Result<void> read_chunks(std::span<const Chunk> chunks, ThreadPool& pool,
                         const std::function<void(std::int64_t, std::int64_t)>& progress) {
  std::int64_t total = 0, done = 0;
  for (const Chunk& c : chunks) total += static_cast<std::int64_t>(c.size);
  std::mutex mutex;
  std::optional<Error> failure;
  pool.run(std::ssize(chunks), [&](std::int64_t task, int) {
    const Chunk& c = chunks[static_cast<std::size_t>(task)];
    const auto ok = c.file->prefault(c.offset, c.size);
    const std::lock_guard lock(mutex);
    if (!ok && !failure) failure = ok.error();
    done += static_cast<std::int64_t>(c.size);
    if (progress) progress(done, total);
  });
  if (failure) return *failure;
  return {};
}

}  // namespace

bool has_weight_files(const fs::path& dir) {
  return is_listed(dir / "model.safetensors.index.json") || list_safetensors(dir).ok();
}

Result<Checkpoint> Checkpoint::open(const fs::path& dir, const std::string& beside) {
  auto made = open_files(dir, beside);
  return made ? std::move(made) : with_way_out(made.error());
}

Result<Checkpoint> Checkpoint::open_files(const fs::path& dir, const std::string& beside) {
  std::error_code ec;
  if (!fs::is_directory(dir, ec)) {
    return Error{ErrorCode::io, dir.string(), "a folder with a model",
                 ec ? ec.message() : "something else", ""};
  }
  std::vector<fs::path> files;
  std::optional<WeightMap> index;
  const fs::path index_path = dir / "model.safetensors.index.json";
  if (is_listed(dir / "model.safetensors")) {
    files.push_back(dir / "model.safetensors");
  } else if (is_listed(index_path)) {
    auto map = read_index(index_path);
    if (!map) return map.error();
    index = *std::move(map);
    for (const auto& [tensor, file] : *index) files.push_back(dir / file);
    std::sort(files.begin(), files.end());
    files.erase(std::unique(files.begin(), files.end()), files.end());
  } else {
    auto found = list_safetensors(dir);
    if (!found) return found.error();
    files = *std::move(found);
  }
  const fs::path more = dir / beside;
  if (!beside.empty() && is_listed(more) && std::ranges::find(files, more) == files.end()) {
    files.push_back(more);
  }

  Checkpoint out;
  for (const fs::path& path : files) {
    auto file = MappedFile::open(path);
    if (!file) {
      Error e = file.error();
      if (index) e.hint = "model.safetensors.index.json names this shard";
      return e;
    }
    auto header = parse_safetensors_header(file->bytes());
    if (!header) {
      Error e = header.error();
      e.field = path.string() + ": " + e.field;
      return e;
    }
    for (SafetensorsEntry& t : header->tensors) {
      const auto size = static_cast<std::size_t>(t.end - t.begin);
      out.total_bytes_ += t.end - t.begin;
      out.tensors_.push_back({std::move(t.name), t.dtype, std::move(t.shape),
                              file->bytes().subspan(static_cast<std::size_t>(t.begin), size),
                              out.shards_.size()});
    }
    out.shards_.push_back(*std::move(file));
  }

  out.by_name_.reserve(out.tensors_.size());
  for (std::size_t i = 0; i < out.tensors_.size(); ++i) {
    const auto [it, fresh] = out.by_name_.emplace(out.tensors_[i].name, i);
    if (!fresh) {
      const auto file = [&](std::size_t tensor) {
        return out.shards_[out.tensors_[tensor].shard].path().filename().string();
      };
      return Error{ErrorCode::malformed, dir.string() + ": tensor " + quote(it->first),
                   "one file that holds it", file(it->second) + " and " + file(i), ""};
    }
  }
  if (index) {
    for (const auto& [tensor, file] : *index) {
      const CheckpointTensor* t = out.find(tensor);
      if (t != nullptr && out.shards_[t->shard].path().filename() == file) continue;
      return Error{ErrorCode::malformed, index_path.string() + ": weight_map." + quote(tensor),
                   "a file that holds this tensor",
                   quote(file) +
                       (t == nullptr ? ", which does not"
                                     : "; it is in " +
                                           quote(out.shards_[t->shard].path().filename().string())),
                   ""};
    }
  }
  return out;
}

Result<void> Checkpoint::rename(const std::function<std::string(std::string_view)>& name_of) {
  by_name_.clear();
  for (CheckpointTensor& t : tensors_) t.name = name_of(t.name);
  std::erase_if(tensors_, [](const CheckpointTensor& t) { return t.name.empty(); });
  total_bytes_ = 0;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    total_bytes_ += std::ssize(tensors_[i].bytes);
    if (by_name_.emplace(tensors_[i].name, i).second) continue;
    by_name_.clear();
    return Error{ErrorCode::malformed, "tensor " + quote(tensors_[i].name), "one of this name",
                 "two, with and without a prefix", ""};
  }
  return {};
}

const CheckpointTensor* Checkpoint::find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

Result<void> Checkpoint::prefault(
    ThreadPool& pool,
    const std::function<void(std::int64_t done, std::int64_t total)>& progress) const {
  std::vector<Chunk> chunks;
  for (const MappedFile& file : shards_) add_chunks(file, 0, file.bytes().size(), chunks);
  return read_chunks(chunks, pool, progress);
}

Result<void> Checkpoint::prefault(
    ThreadPool& pool, const std::unordered_set<const CheckpointTensor*>& without) const {
  std::vector<Chunk> chunks;
  for (const CheckpointTensor& t : tensors_) {
    if (without.contains(&t) || t.bytes.empty()) continue;
    const MappedFile& file = shards_[t.shard];
    const auto offset = static_cast<std::size_t>(t.bytes.data() - file.bytes().data());
    add_chunks(file, offset, t.bytes.size(), chunks);
  }
  return read_chunks(chunks, pool, nullptr);
}

}  // namespace lathe
