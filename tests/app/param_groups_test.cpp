#include "app/param_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "tests/support/run_ranks.h"
#include "tests/support/temp_dir.h"

namespace ferry {
namespace {

using ::testing::HasSubstr;

OptimizerPlace dense(const std::string& name, int64_t elements, bool on_host, bool decay = true) {
  return {name, false, decay, on_host, elements};
}
OptimizerPlace expert(const std::string& name, int64_t elements, bool on_host) {
  return {name, true, true, on_host, elements};
}

nlohmann::json read(const std::filesystem::path& path) {
  return nlohmann::json::parse(std::ifstream(path));
}

TEST(OptimizerPlacesText, CountsBothSidesByKind) {
  EXPECT_EQ(optimizer_places_text({dense("a", 1500, true), dense("n", 100, false, false),
                                   expert("e", 3'000'000, true), expert("f", 2'000'000, false),
                                   dense("none of its rows", 0, true)}),
            "optimizer: 2 parameters (3.00 M elements) on the host, 2 (2.00 M) on the device | "
            "dense 1 (1.5k) on the host, 1 (100) on the device | "
            "experts 1 (3.00 M) on the host, 1 (2.00 M) on the device");
}

TEST(OptimizerPlacesText, LeavesOutWhatIsNotThere) {
  EXPECT_EQ(optimizer_places_text({dense("a", 1500, true), dense("b", 100, true)}),
            "optimizer: 2 parameters (1.6k elements) on the host");
  EXPECT_EQ(optimizer_places_text({dense("a", 1500, false), expert("e", 100, false)}),
            "optimizer: 2 parameters (1.6k elements) on the device");
  EXPECT_EQ(optimizer_places_text({dense("a", 1500, true), expert("e", 100, false)}),
            "optimizer: 1 parameter (1.5k elements) on the host, 1 (100) on the device | dense 1 "
            "(1.5k) on the host | experts 1 (100) on the device");
}

class ParamGroups : public ::testing::Test {
 protected:
  std::filesystem::path path() const { return dir_ / "groups.json"; }
  testing::TempDir dir_;
};

TEST_F(ParamGroups, OfOneRank) {
  SoloControl control;
  write_param_groups(path().string(), 0.25,
                     {dense("b", 10, true), dense("norm", 2, false, false), expert("e", 30, true),
                      dense("a", 20, false)},
                     control);
  const nlohmann::json json = read(path());
  EXPECT_EQ(json["fraction"], 0.25);
  const auto group = [](int id, const char* kind, bool decay, std::vector<int> numbers) {
    return nlohmann::json{{"id", id},
                          {"kind", kind},
                          {"decay", decay},
                          {"parameters", numbers[0]},
                          {"on_host", numbers[1]},
                          {"elements", numbers[2]},
                          {"host_elements", numbers[3]}};
  };
  EXPECT_EQ(json["groups"], (nlohmann::json{group(0, "dense", true, {2, 1, 30, 10}),
                                            group(1, "dense", false, {1, 0, 2, 0}),
                                            group(2, "expert", true, {1, 1, 30, 30})}));
  const auto parameter = [](int id, const char* place, int elements, int on_host) {
    return nlohmann::json{
        {"group", id}, {"place", place}, {"elements", elements}, {"host_elements", on_host}};
  };
  EXPECT_EQ(json["parameters"], (nlohmann::json{{"b", parameter(0, "host", 10, 10)},
                                                {"norm", parameter(1, "device", 2, 0)},
                                                {"e", parameter(2, "host", 30, 30)},
                                                {"a", parameter(0, "device", 20, 0)}}));
  std::stringstream text;
  text << std::ifstream(path()).rdbuf();
  EXPECT_LT(text.str().find("\"b\""), text.str().find("\"a\"")) << "in the order of the model";
}

// Two stages of two ranks each; a parameter's rows are shared unevenly.
TEST_F(ParamGroups, OfSeveralRanks) {
  testing::run_ranks(4, [&](Group& world, Control& control) {
    std::vector<OptimizerPlace> places;
    switch (world.rank()) {
      case 0:
        places = {dense("first", 6, true), dense("shared", 5, true)};
        break;
      case 1:
        places = {dense("first", 4, true), dense("shared", 3, false)};
        break;
      case 2:
        places = {expert("last", 7, false), dense("norm", 1, true, false)};
        break;
      case 3:  // has no row of the norm
        places = {expert("last", 7, false), dense("norm", 0, false, false)};
        break;
    }
    write_param_groups(path().string(), 1, places, control);
  });
  const nlohmann::json json = read(path());
  const auto of = [&](const char* name) {
    const nlohmann::json& parameter = json["parameters"][name];
    return std::tuple(parameter["place"].get<std::string>(), parameter["elements"].get<int>(),
                      parameter["host_elements"].get<int>());
  };
  EXPECT_EQ(of("first"), std::tuple("host", 10, 10));
  EXPECT_EQ(of("shared"), std::tuple("both", 8, 5));
  EXPECT_EQ(of("last"), std::tuple("device", 14, 0));
  EXPECT_EQ(of("norm"), std::tuple("host", 1, 1));
  EXPECT_EQ(json["parameters"].size(), 4u);
  EXPECT_EQ(json["groups"][0]["on_host"], 2);
  EXPECT_EQ(json["groups"][0]["host_elements"], 15);
}

TEST_F(ParamGroups, ReplacesAnEarlierFileAndLeavesNothingElse) {
  SoloControl control;
  std::ofstream(path()) << "old";
  std::ofstream(path().string() + ".next") << "left by a run that was killed";
  write_param_groups(path().string(), 1, {dense("a", 1, true)}, control);
  EXPECT_EQ(read(path())["parameters"].size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(path().string() + ".next"));
}

TEST_F(ParamGroups, AFileThatCannotBeWrittenIsAnErrorOfStorage) {
  SoloControl control;
  try {
    write_param_groups((dir_ / "no/such/groups.json").string(), 1, {dense("a", 1, true)}, control);
    FAIL() << "there is no such directory";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Storage);
    EXPECT_THAT(error.what(), HasSubstr("no/such/groups.json"));
  }
}

}  // namespace
}  // namespace ferry
