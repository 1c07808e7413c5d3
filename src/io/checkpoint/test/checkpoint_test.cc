// Files made by the format's own library (tools/fixtures/make_safetensors_fixture.py), and
// deliberately broken folders.
#include "io/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "io/files/read_file.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const fs::path kCheckpoints = fs::path(LATHE_TEST_DATA) / "safetensors";

// A temporary folder, removed with the test.
class CheckpointFolder {
 public:
  CheckpointFolder() {
    std::string pattern = (fs::temp_directory_path() / "lathe-checkpoint-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~CheckpointFolder() {
    std::error_code ec;
    fs::remove_all(path_, ec);
  }
  const fs::path& path() const { return path_; }
  void write(const std::string& file, const std::string& bytes) const {
    std::ofstream(path_ / file, std::ios::binary) << bytes;
  }
  void copy(const std::string& from) const {
    fs::copy(kCheckpoints / from, path_, fs::copy_options::overwrite_existing);
  }
  std::string refusal() const {
    const auto c = Checkpoint::open(path_);
    return c.ok() ? "accepted" : c.error().message();
  }

 private:
  fs::path path_;
};

template <class T>
std::vector<T> values(const CheckpointTensor& t) {
  std::vector<T> out(t.bytes.size() / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), t.bytes.data(), t.bytes.size());
  return out;
}

TEST(Checkpoint, RenamesAndDropsTensors) {
  auto c = Checkpoint::open(kCheckpoints / "single");
  ASSERT_TRUE(c.ok());
  const std::int64_t all = c->total_bytes();
  const auto ok = c->rename([](std::string_view name) {
    return name == "f64" ? std::string() : name == "f32" ? "a" : std::string(name);
  });
  ASSERT_TRUE(ok.ok());
  EXPECT_EQ(c->tensors().size(), 8u);
  EXPECT_EQ(c->total_bytes(), all - 2 * 8);
  EXPECT_EQ(c->find("f64"), nullptr);
  EXPECT_EQ(c->find("f32"), nullptr);
  ASSERT_NE(c->find("a"), nullptr);
  EXPECT_THAT(values<float>(*c->find("a")), ElementsAre(-2.5f, -1.5f, -0.5f, 0.5f, 1.5f, 2.5f));
  const auto twice = c->rename([](std::string_view) { return "b"; });
  ASSERT_FALSE(twice.ok());
  EXPECT_THAT(twice.error().message(), HasSubstr("tensor \"b\": wanted one of this name, got two"));
}

TEST(Checkpoint, SingleFile) {
  auto opened = Checkpoint::open(kCheckpoints / "single");
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  const Checkpoint c = *std::move(opened);  // views must survive the move
  EXPECT_EQ(c.tensors().size(), 9u);
  const auto at = [&](const char* name) -> const CheckpointTensor& {
    const CheckpointTensor* t = c.find(name);
    EXPECT_NE(t, nullptr) << name;
    static const CheckpointTensor kNone;
    return t != nullptr ? *t : kNone;
  };
  EXPECT_THAT(values<float>(at("f32")), ElementsAre(-2.5f, -1.5f, -0.5f, 0.5f, 1.5f, 2.5f));
  EXPECT_THAT(at("f32").shape, ElementsAre(2, 3));
  EXPECT_THAT(values<double>(at("f64")), ElementsAre(1.5, -2.25));
  EXPECT_THAT(values<std::uint16_t>(at("bf16")), ElementsAre(0, 0x3f80, 0x4000, 0x4040));
  EXPECT_THAT(values<std::uint16_t>(at("f16")), ElementsAre(0x3800, 0x7bff));
  EXPECT_THAT(values<std::int64_t>(at("i64")), ElementsAre(-1, std::int64_t{1} << 62));
  EXPECT_THAT(values<std::uint8_t>(at("u8")), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(values<std::uint8_t>(at("bool")), ElementsAre(1, 0, 1));
  EXPECT_EQ(at("bool").dtype, SafetensorsDType::BOOL);
  EXPECT_THAT(values<std::int32_t>(at("scalar")), ElementsAre(7));
  EXPECT_TRUE(at("scalar").shape.empty());
  EXPECT_TRUE(at("empty").bytes.empty());
  EXPECT_EQ(c.find("absent"), nullptr);
  EXPECT_EQ(c.total_bytes(), 24 + 16 + 8 + 4 + 16 + 5 + 3 + 4);
}

TEST(Checkpoint, Shards) {
  auto c = Checkpoint::open(kCheckpoints / "sharded");
  ASSERT_TRUE(c.ok()) << c.error().message();
  ASSERT_EQ(c->shards().size(), 2u);
  EXPECT_EQ(c->find("c.weight")->shard, 1u);
  EXPECT_THAT(values<float>(*c->find("c.weight")), ElementsAre(3, 3, 3, 3));
  EXPECT_EQ(c->total_bytes(), 44);
  ThreadPool pool(2);
  std::vector<std::int64_t> done;
  std::int64_t total = 0;
  ASSERT_TRUE(c->prefault(pool, [&](std::int64_t d, std::int64_t t) {
                 done.push_back(d);
                 total = t;
               }).ok());
  std::int64_t file_bytes = 0;
  for (const MappedFile& f : c->shards()) {
    file_bytes += static_cast<std::int64_t>(fs::file_size(f.path()));
  }
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done.back(), total);
  EXPECT_EQ(total, file_bytes);
  EXPECT_LT(done.front(), total);
}

TEST(Checkpoint, WithoutAnIndexEveryFileCounts) {
  const CheckpointFolder f;
  f.copy("sharded/model-00001-of-00002.safetensors");
  f.copy("sharded/model-00002-of-00002.safetensors");
  auto c = Checkpoint::open(f.path());
  ASSERT_TRUE(c.ok()) << c.error().message();
  EXPECT_EQ(c->tensors().size(), 3u);
}

TEST(Checkpoint, RefusesFoldersThatDisagree) {
  const CheckpointFolder f;
  EXPECT_THAT(f.refusal(), HasSubstr("none of them"));
  EXPECT_THAT(Checkpoint::open(f.path() / "absent").error().message(), HasSubstr("absent"));
  const std::string index = "model.safetensors.index.json";
  f.copy("sharded/" + index);
  EXPECT_THAT(f.refusal(), HasSubstr("No such file or directory; model.safetensors.index.json"));
  f.copy("sharded/model-00001-of-00002.safetensors");
  f.copy("sharded/model-00002-of-00002.safetensors");
  EXPECT_EQ(f.refusal(), "accepted");
  const auto map = [&](const std::string& entry) {
    f.write(index, R"({"weight_map":{)" + entry + "}}");
    return f.refusal();
  };
  EXPECT_THAT(map(R"("a.weight":"model-00002-of-00002.safetensors")"), HasSubstr("which does not"));
  EXPECT_THAT(map(R"("a.weight":"model-00002-of-00002.safetensors",)"
                  R"("b.weight":"model-00001-of-00002.safetensors")"),
              HasSubstr(R"(it is in "model-00001-of-00002.safetensors")"));
  for (const char* path : {"../x.safetensors", "/etc/passwd", "..", "", "a\\\\b", "a\\u0000b"}) {
    EXPECT_THAT(map(std::string(R"("a.weight":")") + path + "\""),
                HasSubstr("a file name without a folder"))
        << path;
  }
  EXPECT_THAT(map(R"("a.weight":7)"), HasSubstr("a file name without a folder"));
  EXPECT_THAT(map(R"("a":"b","a":"b")"), HasSubstr("twice"));
  f.write(index, "[]");
  EXPECT_THAT(f.refusal(), HasSubstr("an object"));
  f.write(index, "{}");
  EXPECT_THAT(f.refusal(), HasSubstr("weight_map"));
  fs::remove(f.path() / index);
  fs::copy(f.path() / "model-00001-of-00002.safetensors", f.path() / "other.safetensors");
  EXPECT_THAT(f.refusal(), HasSubstr("model-00001-of-00002.safetensors and other.safetensors"));
}

TEST(Checkpoint, ErrorsNameTheFile) {
  const CheckpointFolder f;
  f.write("model.safetensors", "");
  EXPECT_THAT(f.refusal(), HasSubstr((f.path() / "model.safetensors").string() +
                                     ": header length: wanted 8 bytes, got 0"));
}

TEST(MappedFile, RefusesWhatIsNoFile) {
  const CheckpointFolder f;
  EXPECT_THAT(MappedFile::open(f.path()).error().message(), HasSubstr("got a directory"));
  EXPECT_THAT(MappedFile::open(f.path() / "x").error().message(), HasSubstr("No such file"));
  f.write("empty", "");
  auto empty = MappedFile::open(f.path() / "empty");
  ASSERT_TRUE(empty.ok());
  EXPECT_TRUE(empty->bytes().empty());
  EXPECT_TRUE(empty->prefault(0, 100).ok());
}

TEST(MappedFile, AShrunkenFileIsAnErrorAndNoCrash) {
  const CheckpointFolder f;
  f.write("file", std::string(1 << 20, 'x'));
  auto file = MappedFile::open(f.path() / "file");
  ASSERT_TRUE(file.ok());
  file->advise(FileAccess::sequential);
  EXPECT_TRUE(file->prefault(0, 1 << 20).ok());
  fs::resize_file(f.path() / "file", 4096);
  const auto r = file->prefault(0, 1 << 20);
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.error().code, ErrorCode::io);
}

TEST(ReadFile, RefusesLargeFiles) {
  const CheckpointFolder f;
  f.write("file", "abc");
  EXPECT_EQ(*read_file(f.path() / "file"), "abc");
  EXPECT_THAT(read_file(f.path() / "file", 2).error().message(),
              HasSubstr("wanted at most 2 bytes, got 3 bytes"));
}

}  // namespace
}  // namespace lathe
