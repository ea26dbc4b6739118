#include "checkpoint/hdf5_handle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/checkpoint/sample_model.h"
#include "tests/support/temp_dir.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::storage_error;
using testing::TempDir;

TEST(Hdf5Handle, FailuresCarryTheReasonOfTheLibrary) {
  const TempDir dir;
  EXPECT_THAT(storage_error([&] { create_hdf5_file(dir.path() / "absent" / "file.h5"); }),
              AllOf(HasSubstr("cannot set up the HDF5 file"), HasSubstr("HDF5 says: "),
                    HasSubstr("unable to create file")));
}

TEST(Hdf5Handle, ClosingWithAnOpenObjectIsAnError) {
  const TempDir dir;
  Hdf5Handle file = create_hdf5_file(dir / "file.h5");
  make_parent_groups(file, "a/b");
  const Hdf5Handle group(H5Gopen2(file, "a", H5P_DEFAULT), H5Gclose, "open a");
  EXPECT_THAT(storage_error([&] { file.close("close the file"); }),
              HasSubstr("cannot close the file: HDF5 says: "));
}

TEST(Hdf5Handle, AFailedCloseInADestructorIsReportedWithTheFile) {
  const TempDir dir;
  const auto fail_to_close = [](hid_t) -> herr_t { return -1; };
  Hdf5Handle file = create_hdf5_file(dir / "file.h5");
  { const Hdf5Handle part(0, fail_to_close, "open a part"); }
  EXPECT_THAT(storage_error([&] { file.close("close the file"); }),
              HasSubstr("cannot close the file: HDF5 said of a part of it: "));
  // It was said once, and is no fault of another file.
  file = create_hdf5_file(dir / "second.h5");
  { const Hdf5Handle part(0, fail_to_close, "open a part"); }
  file = create_hdf5_file(dir / "third.h5");
  file.close("close the file");
}

TEST(Hdf5Handle, MovesOwnershipAndClosesOnce) {
  Hdf5Handle first = make_dataspace({2, 3});
  const hid_t id = first;
  Hdf5Handle second = std::move(first);
  EXPECT_EQ(static_cast<hid_t>(second), id);
  second.close("close the dataspace");
  EXPECT_LE(H5Iis_valid(id), 0);
}

TEST(Hdf5Handle, BFloat16HasTheRightBits) {
  const TempDir dir;
  Hdf5Handle file = create_hdf5_file(dir / "file.h5");
  Hdf5Handle type = element_type(file, DType::BF16);
  EXPECT_EQ(H5Tget_size(type), 2u);
  EXPECT_GT(H5Tcommitted(type), 0);
  // The library's own conversion to float agrees with ours.
  uint32_t buffer[4] = {};
  const BFloat16 values[4] = {BFloat16(1.0f), BFloat16(-2.5f), BFloat16(3e38f), BFloat16(1e-38f)};
  std::memcpy(buffer, values, sizeof(values));
  ASSERT_GE(H5Tconvert(type, H5T_NATIVE_FLOAT, 4, buffer, nullptr, H5P_DEFAULT), 0);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(std::bit_cast<float>(buffer[i]), float{values[i]});
  type.close("close the type");
  file.close("close the file");
}

}  // namespace
}  // namespace ferry
