#include "app/version.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

namespace ferry {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

std::string printed(std::vector<std::string> reversed) {
  CLI::App root{"ferry"};
  add_version_command(root);
  ::testing::internal::CaptureStdout();
  root.parse(std::move(reversed));
  std::fflush(stdout);
  return ::testing::internal::GetCapturedStdout();
}

TEST(Version, SaysWhatIsBuiltIn) {
  EXPECT_THAT(version_text(), MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
  const nlohmann::ordered_json json = version_json();
  EXPECT_EQ(json.at("version"), version_text());
  EXPECT_EQ(json.at("git"), git_revision());
  EXPECT_EQ(json.at("backends").at("cpu"), true);
  for (const char* part : {"cuda", "nccl", "cudnn"})
    EXPECT_TRUE(json.at("backends").at(part).is_boolean()) << part;
  for (const char* library : {"mpi", "hdf5", "openblas"})
    EXPECT_FALSE(json.at("libraries").at(library).get<std::string>().empty()) << library;
  EXPECT_FALSE(json.at("cpu").at("model").get<std::string>().empty());
  EXPECT_TRUE(json.at("gpus").is_array());
}

TEST(Version, PrintsTextAndJson) {
  const std::string text = printed({"version"});
  EXPECT_THAT(text, HasSubstr("ferry " + version_text() + " (git " + git_revision() + ")\n"));
  EXPECT_THAT(text, HasSubstr("backends   cpu yes | cuda "));
  EXPECT_THAT(text, HasSubstr("libraries  mpi "));
  EXPECT_THAT(text, HasSubstr("\ngpus       "));
  EXPECT_EQ(nlohmann::ordered_json::parse(printed({"--json", "version"})), version_json());
}

}  // namespace
}  // namespace ferry
