// Whatever happens to the files of a checkpoint, it is refused with the place and the reason.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "checkpoint/latest.h"
#include "checkpoint/sha256.h"
#include "tests/checkpoint/sample_model.h"
#include "tests/support/temp_dir.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;
using testing::SampleModel;
using testing::TempDir;

std::string read(const Path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void write(const Path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

class Damage : public ::testing::Test {
 protected:
  Damage() {
    SoloControl control;
    begin_attempt(run_.path(), control);
    testing::SaveOptions options;
    options.step = 30;
    testing::save_solo(run_.path(), SampleModel(30), options);
    options.step = 60;
    directory_ = testing::save_solo(run_.path(), SampleModel(60), options).directory;
    manifest_ = directory_ / "MANIFEST.json";
    shard_ = directory_ / "shard-00000.h5";
  }

  /// What verifying the newest checkpoint says.
  std::string complaint() {
    return testing::storage_error([&] { Checkpoint::open(directory_).verify(); });
  }

  /// Replaces a part of the manifest, with a right self-digest as an attacker would.
  void forge(const std::string& from, const std::string& to) {
    std::string text = read(manifest_);
    const size_t place = text.find(from);
    ASSERT_NE(place, std::string::npos) << from;
    text.replace(place, from.size(), to);
    const std::string body = text.substr(0, text.size() - 81);
    write(manifest_, body + ",\n\"sha256\": \"" + sha256(body) + "\"\n}\n");
  }

  /// A new start falls back to the checkpoint before and says why.
  void expect_fallback() {
    SoloControl control;
    const Latest latest = find_latest(run_.path(), control);
    ASSERT_TRUE(latest.checkpoint.has_value());
    EXPECT_EQ(latest.checkpoint->step(), 30);
    ASSERT_EQ(latest.rejected.size(), 1u);
    EXPECT_EQ(latest.rejected[0].directory, directory_);
    EXPECT_FALSE(latest.rejected[0].reason.empty());
  }

  TempDir run_;
  Path directory_, manifest_, shard_;
};

TEST_F(Damage, EveryFlippedByteIsFound) {
  for (const char* name : {"shard-00000.h5", "global.h5", "MANIFEST.json"}) {
    const std::string content = read(directory_ / name);
    // Every byte of the manifest; for speed every seventh of the others.
    const size_t stride = std::string(name) == "MANIFEST.json" ? 1 : 7;
    std::fstream file(directory_ / name, std::ios::in | std::ios::out | std::ios::binary);
    const auto put = [&](size_t i, int c) {
      file.seekp(static_cast<std::streamoff>(i));
      file.put(static_cast<char>(c)).flush();
    };
    for (size_t i = 0; i < content.size(); i += stride) {
      put(i, content[i] ^ (1 << (i % 8)));
      ASSERT_THAT(complaint(), HasSubstr(name)) << "byte " << i;
      put(i, content[i]);
    }
  }
  EXPECT_EQ(complaint(), "no error");
}

TEST_F(Damage, AFlippedBitInATensorIsLocated) {
  const Checkpoint checkpoint = Checkpoint::open(directory_);
  const StoredTensor& tensor = checkpoint.manifest().tensors[0];
  std::string content = read(shard_);
  content[static_cast<size_t>(tensor.slices[0].address) + 40] ^=
      1;  // in the second chunk of 32 bytes
  write(shard_, content);
  const std::string place =
      concat(shard_.native(), " is damaged: bytes ", tensor.slices[0].address + 32, " to ",
             tensor.slices[0].address + 63, " (chunk 1 of ", tensor.name);
  EXPECT_THAT(complaint(), HasSubstr(place));
  // Loading notices by itself, and only what it reads.
  std::vector<char> bytes(240);
  SliceToLoad wanted{tensor.name, tensor.dtype, tensor.shape, {0, 0}, {10, 6}, bytes.data()};
  EXPECT_THAT(testing::storage_error([&] { checkpoint.load({&wanted, 1}); }), HasSubstr(place));
  wanted.extent = {1, 6};
  EXPECT_EQ(checkpoint.load({&wanted, 1}).bytes, 24);
  expect_fallback();
}

TEST_F(Damage, TruncatedExtendedAndMissingFiles) {
  for (const char* name : {"shard-00000.h5", "global.h5"}) {
    const std::string content = read(directory_ / name);
    write(directory_ / name, content.substr(0, content.size() - 1));
    EXPECT_THAT(complaint(), HasSubstr("it is truncated"));
    write(directory_ / name, content + "x");
    EXPECT_THAT(complaint(), HasSubstr("it has grown"));
    std::filesystem::remove(directory_ / name);
    EXPECT_THAT(complaint(), HasSubstr(std::string(name) + " is missing"));
    expect_fallback();
    write(directory_ / name, content);
  }
}

TEST_F(Damage, AShardOfAnotherStepIsRefused) {
  const Path other = run_ / "ckpt/step-00000030/shard-00000.h5";
  ASSERT_EQ(std::filesystem::file_size(other), std::filesystem::file_size(shard_));
  std::filesystem::copy_file(other, shard_, std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(complaint(), HasSubstr("shard-00000.h5 is damaged"));
  expect_fallback();
}

TEST_F(Damage, ARenamedDirectoryIsRefused) {
  const Path renamed = run_ / "ckpt/step-00000090";
  std::filesystem::rename(directory_, renamed);
  directory_ = renamed;
  EXPECT_THAT(complaint(), HasSubstr("holds a checkpoint of step 60: the directory was renamed"));
  expect_fallback();
}

TEST_F(Damage, MissingTruncatedAndEditedManifests) {
  const std::string text = read(manifest_);
  write(manifest_, "");
  EXPECT_THAT(complaint(), HasSubstr("MANIFEST.json is refused: it is truncated"));
  write(manifest_, text.substr(0, text.size() / 2));
  EXPECT_THAT(complaint(), HasSubstr("it does not end with its digest"));
  std::string edited = text;
  edited.replace(edited.find("\"step\": 60"), 10, "\"step\": 61");
  write(manifest_, edited);
  EXPECT_THAT(complaint(), HasSubstr("does not match its own digest: it is damaged or was edited"));
  std::filesystem::remove(manifest_);
  EXPECT_THAT(complaint(), HasSubstr("has no MANIFEST.json: it is not a complete checkpoint"));
  expect_fallback();
}

TEST_F(Damage, ForgedManifestsAreRefused) {
  struct Forgery {
    std::string from, to, complaint;
  };
  const std::vector<Forgery> forgeries = {
      {"\"version\": 2", "\"version\": 3", "format version 3, and this program reads 1 to 2"},
      {"\"version\": 2", "\"version\": 1", "canonical"},  // which has no run
      {"\"run\": \"", "\"run\": \"x", "is no name of a run"},
      {"\"config_digest\": \"", "\"config_digest\": \"0", "canonical"},
      {"ferry-checkpoint", "other-checkpoint", "not of a Ferry checkpoint"},
      {"\"name\":\"shard-00000.h5\"", "\"name\":\"../shard-00000.h5\"",
       "no name of a checkpoint file"},
      {"\"name\":\"shard-00000.h5\"", "\"name\":\"/etc/passwd\"", "no name of a checkpoint file"},
      {"\"name\":\"global.h5\"", "\"name\":\"shard-00000.h5\"", "is listed twice"},
      {"\"shape\":[10,6]", "\"shape\":[11,6]", "cover 60 of 66 elements"},
      {"\"shape\":[10,6]", "\"shape\":[9,6]", "dim 0: 0 + 10 exceeds 9"},
      {"\"shape\":[10,6]", "\"shape\":[4611686018427387904,4611686018427387904]",
       "impossible shape"},
      {"\"shape\":[10,6]", "\"shape\":[10,-6]", "negative size"},
      {"\"shape\":[10,6]", "\"shape\":[1,1,1,10,6]", "at most 4 sizes"},
      {"\"shape\":[10,6]", "\"shape\":[0,6]", "impossible shape"},
      {"\"extent\":[10,6]", "\"extent\":[10,5]", "cover 50 of 60 elements"},
      {"\"dtype\":\"f32\"", "\"dtype\":\"f16\"", "unknown dtype 'f16'"},
      {"\"file\":0", "\"file\":2", "names file number 2 of 2"},
      {"\"file\":0", "\"file\":-1", "names file number -1"},
      {"\"address\":", "\"address\":9", "does not lie inside"},
      {"\"address\":", "\"address\":-", "does not lie inside"},
      {"\"chunk_bytes\": 32", "\"chunk_bytes\": 64", "digests for"},
      {"\"chunk_bytes\": 32", "\"chunk_bytes\": 0", "chunks of 0 bytes"},
      {"\"chunk_bytes\": 32", "\"chunk_bytes\": 32.0", "canonical"},
      {"\"attempt\": 1", "\"attempt\": 1, \"extra\": 2", "canonical"},
      {"\"attempt\": 1", "\"attempt\": 1, \"attempt\": 1", "canonical"},
      {"\"attempt\": 1", "\"attempt\": [[[[[[[[[[[1]]]]]]]]]]]", "nested too deeply"},
      {"\"attempt\": 1", "\"attempt\": \"1\"", "type must be number"},
      {"\"attempt\": 1,\n", "", "attempt"},
      {"\"attempt\": 1", "\"attempt\" 1", "parse error"},
      {"\"lr\":0.00125", "\"lr\":0.00126", "canonical"},  // the root digest no longer fits
      {"model/embedding/weight", "model/../weight", "parts between slashes"},
      {"model/embedding/weight", "zzz", "out of order"},
  };
  const std::string original = read(manifest_);
  for (const Forgery& forgery : forgeries) {
    SCOPED_TRACE(forgery.from + " -> " + forgery.to);
    write(manifest_, original);
    forge(forgery.from, forgery.to);
    EXPECT_THAT(complaint(), HasSubstr(forgery.complaint));
    EXPECT_THAT(complaint(), HasSubstr("MANIFEST.json is refused"));
  }
  expect_fallback();
}

TEST_F(Damage, SymbolicLinksAreNotFollowed) {
  for (const char* name : {"shard-00000.h5", "MANIFEST.json"}) {
    std::filesystem::rename(directory_ / name, run_ / name);
    std::filesystem::create_symlink(run_ / name, directory_ / name);
    EXPECT_THAT(complaint(), HasSubstr("symbolic links are not followed"));
    std::filesystem::remove(directory_ / name);
    std::filesystem::rename(run_ / name, directory_ / name);
  }
}

TEST_F(Damage, HalfWrittenDirectoriesAreReportedAndRemovedByTheNextStart) {
  const Path unfinished = run_ / "ckpt/step-00000090.a1.tmp";
  std::filesystem::copy(directory_, unfinished);
  std::filesystem::remove(unfinished / "MANIFEST.json");
  SoloControl control;
  const Latest latest = find_latest(run_.path(), control);
  EXPECT_EQ(latest.checkpoint->step(), 60);
  EXPECT_THAT(latest.unfinished, ::testing::ElementsAre("step-00000090.a1.tmp"));
  const Attempt attempt = begin_attempt(run_.path(), control);
  EXPECT_EQ(attempt.number, 2);
  EXPECT_THAT(attempt.removed, ::testing::ElementsAre("step-00000090.a1.tmp"));
  EXPECT_FALSE(std::filesystem::exists(unfinished));
}

TEST_F(Damage, NothingIntactIsNotAFreshStart) {
  for (const char* step : {"step-00000030", "step-00000060"}) {
    std::filesystem::remove(run_.path() / "ckpt" / step / "MANIFEST.json");
  }
  SoloControl control;
  const Latest latest = find_latest(run_.path(), control);
  EXPECT_FALSE(latest.checkpoint.has_value());
  EXPECT_EQ(latest.rejected.size(), 2u);
}

}  // namespace
}  // namespace ferry
