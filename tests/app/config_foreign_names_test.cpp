#include <gtest/gtest.h>

#include <set>

#include "app/config_file.h"

namespace ferry {
namespace {

TEST(ForeignNames, LeadToKeysThatExist) {
  const RunConfig defaults;
  std::set<std::string_view> names;
  for (const ForeignName& foreign : foreign_names()) {
    EXPECT_TRUE(names.insert(foreign.name).second) << foreign.name << " is listed twice";
    bool is_path = false;
    visit_values(defaults, [&](const std::string& path, const Field&, const auto&) {
      is_path = is_path || path == foreign.path;
    });
    EXPECT_TRUE(is_path) << foreign.name << " leads to " << foreign.path;
  }
  EXPECT_FALSE(names.empty());
}

}  // namespace
}  // namespace ferry
