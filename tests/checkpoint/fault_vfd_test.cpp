// The driver below HDF5 fails at every single operation of a save: each failure is reported, the
// library is usable afterwards, and a file whose writer was killed opens only if it is whole.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>

#include "checkpoint/global_file.h"
#include "checkpoint/hdf5_handle.h"
#include "checkpoint/shard_file.h"
#include "tests/checkpoint/traced_run.h"
#include "tests/support/fault_vfd.h"

namespace ferry {
namespace {

using ::testing::Contains;
using testing::FaultVfd;
using ::testing::HasSubstr;
using testing::SharedOutcome;
using testing::TempDir;
using testing::VfdFault;
using testing::VfdPlan;

class FaultVfdTest : public ::testing::Test {
 protected:
  FaultVfdTest() {
    FaultVfd::plan({});
    set_hdf5_access_hook(&FaultVfd::use);
  }
  ~FaultVfdTest() override { set_hdf5_access_hook(nullptr); }

  /// Writes a shard of zeros, which is what the library lays out, and the global file over it.
  static void write_files(const Path& directory) {
    testing::SampleModel model = testing::traced_model(1);
    for (testing::SampleTensor& tensor : model.tensors()) {
      std::fill(tensor.bytes.begin(), tensor.bytes.end(), 0);
    }
    testing::RankSlices slices(model, 0, 1);
    ShardReport shard =
        write_shard(posix_file_system(), directory, "shard-00000.h5", slices.to_save(), 4096);
    Manifest manifest;
    manifest.files = {shard.file};
    manifest.tensors = std::move(shard.tensors);
    manifest.state = testing::sample_state(1);
    write_global_file(posix_file_system(), directory, manifest, {});
  }

  static std::string bytes_of(const Path& path) {
    return read_text(posix_file_system(), path, 1 << 20);
  }

  static std::vector<std::string> operations() {
    const TempDir dir;
    FaultVfd::plan({});
    write_files(dir.path());
    return FaultVfd::operations();
  }

  /// The library's look at a file that it has not open: if that fails, it opens the file at once.
  static bool is_look(const std::vector<std::string>& done, int i) {
    return i + 1 < static_cast<int>(done.size()) && done[static_cast<size_t>(i)] == "open" &&
           done[static_cast<size_t>(i) + 1] == "close";
  }

  /// In a process of its own, because a library that could not close a file is left as it is.
  static int in_child(const std::function<void()>& body) {
    const pid_t child = ::fork();
    if (child == 0) {
      body();
      ::_exit(0);
    }
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return status;
  }

  /// Whether HDF5 itself opens the file for reading.
  static bool opens(const Path& path) {
    set_hdf5_access_hook(nullptr);
    const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
    if (file >= 0) H5Fclose(file);
    set_hdf5_access_hook(&FaultVfd::use);
    return file >= 0;
  }
};

TEST_F(FaultVfdTest, ForwardsEverything) {
  const TempDir with, without;
  write_files(with.path());
  const auto done = FaultVfd::operations();
  for (const char* operation : {"open", "write", "truncate", "flush", "close"})
    EXPECT_THAT(done, Contains(operation));
  // Each file twice: the library first looks whether it has the file open already.
  EXPECT_EQ(std::count(done.begin(), done.end(), "open"), 4);
  EXPECT_EQ(std::count(done.begin(), done.end(), "close"), 4);
  set_hdf5_access_hook(nullptr);
  write_files(without.path());
  EXPECT_EQ(FaultVfd::operations().size(), done.size());
  for (const char* name : {"shard-00000.h5", "global.h5"}) {
    EXPECT_EQ(bytes_of(with / name), bytes_of(without / name)) << name;
  }
}

TEST_F(FaultVfdTest, EveryFailureIsReportedAndTheNextSaveSucceeds) {
  const auto done = operations();
  ASSERT_GT(done.size(), 8u);
  int reported = 0;
  for (const VfdFault fault : {VfdFault::Fail, VfdFault::Short}) {
    for (int i = 0; i < static_cast<int>(done.size()); ++i) {
      SCOPED_TRACE(concat("operation ", i, ": ", done[static_cast<size_t>(i)]));
      SharedOutcome outcome;
      const TempDir dir, next;
      const int status = in_child([&] {
        FaultVfd::plan({fault, i});
        outcome->say(testing::storage_error([&] { write_files(dir.path()); }));
        FaultVfd::plan({});
        outcome->is_acknowledged =
            testing::storage_error([&] { write_files(next.path()); }) == "no error";
      });
      EXPECT_EQ(status, 0);
      EXPECT_TRUE(outcome->is_acknowledged);
      if (is_look(done, i)) {
        EXPECT_EQ(outcome->said(), "no error");
        continue;
      }
      EXPECT_THAT(outcome->said(), HasSubstr("HDF5 sa"));
      ++reported;
    }
  }
  EXPECT_EQ(reported, 2 * (static_cast<int>(done.size()) - 2));
  RecordProperty("reported", reported);
}

TEST_F(FaultVfdTest, AWholeSaveReportsEveryFailure) {
  const auto done = operations();
  for (int i = 0; i < static_cast<int>(done.size()); i += testing::stride(3)) {
    SCOPED_TRACE(concat("operation ", i, ": ", done[static_cast<size_t>(i)]));
    if (is_look(done, i)) continue;
    testing::TracedTrial trial;
    SharedOutcome outcome;
    const int status = in_child([&] {
      FaultVfd::plan({VfdFault::Short, i});
      outcome->say(testing::storage_error(
          [&] { testing::save_traced_model(trial.path(), 30, 2, posix_file_system()); }));
    });
    EXPECT_EQ(status, 0);
    EXPECT_THAT(outcome->said(), HasSubstr("the checkpoint of step 30 was not saved: "));
    EXPECT_THAT(outcome->said(), HasSubstr("HDF5 sa"));
    EXPECT_EQ(trial.newest_after_restart(), 20);
  }
}

TEST_F(FaultVfdTest, AFileWhoseWriterWasKilledDoesNotOpenUnlessItIsWhole) {
  const auto done = operations();
  const TempDir complete;
  FaultVfd::plan({});
  write_files(complete.path());
  int refused = 0, whole = 0;
  const auto looked = std::find(done.begin(), done.end(), "close");
  const int num_shard_operations =
      static_cast<int>(std::find(looked + 1, done.end(), "close") - done.begin()) + 1;
  for (int i = 0; i < static_cast<int>(done.size()); ++i) {
    SCOPED_TRACE(concat("operation ", i, ": ", done[static_cast<size_t>(i)]));
    const TempDir dir;
    const int status = in_child([&] {
      FaultVfd::plan({VfdFault::Kill, i});
      write_files(dir.path());
    });
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    const bool is_shard = i < num_shard_operations;
    const Path path = dir / (is_shard ? "shard-00000.h5" : "global.h5");
    if (!opens(path)) {
      ++refused;
      continue;
    }
    // Only the superblock was to be written once more.
    ++whole;
    constexpr size_t kSuperblock = 48;
    EXPECT_EQ(bytes_of(path).substr(kSuperblock),
              bytes_of(complete / path.filename().native()).substr(kSuperblock));
  }
  EXPECT_GT(refused, 0);
  EXPECT_EQ(refused + whole, static_cast<int>(done.size()));
  RecordProperty("refused", refused);
  RecordProperty("whole", whole);
}

TEST_F(FaultVfdTest, ASlowDriverChangesNothing) {
  const TempDir dir, slow;
  write_files(dir.path());
  FaultVfd::plan({VfdFault::Delay, -1, std::chrono::milliseconds(1)});
  write_files(slow.path());
  for (const char* name : {"shard-00000.h5", "global.h5"})
    EXPECT_EQ(bytes_of(dir / name), bytes_of(slow / name)) << name;
}

}  // namespace
}  // namespace ferry
