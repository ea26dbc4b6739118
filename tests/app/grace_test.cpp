#include "app/grace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/check.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(DeclaredGrace, IsANumberOfSeconds) {
  EXPECT_EQ(declared_grace(nullptr), std::nullopt);
  EXPECT_EQ(declared_grace("300"), 300);
  EXPECT_EQ(declared_grace("0.5"), 0.5);
  for (const char* text : {"", "5 min", "-1", "nan", "inf", "3s"}) {
    try {
      declared_grace(text);
      FAIL() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::Usage);
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr(concat("FERRY_GRACE_S = '", text, "'")), HasSubstr("try : ")));
    }
  }
}

TEST(GraceWarning, WarnsIfASaveAndAHalfDoesNotFit) {
  EXPECT_EQ(grace_warning(1e6, std::nullopt, std::nullopt), "");
  EXPECT_EQ(grace_warning(10, 15, 15), "");
  EXPECT_THAT(grace_warning(10, 14.9, std::nullopt),
              AllOf(HasSubstr("a save takes 10.0 s, and 15.0 s with half as much in reserve"),
                    HasSubstr("is ended after 14.9 s (FERRY_GRACE_S)"), HasSubstr("--grace 15"),
                    Not(HasSubstr("time_limit"))));
  EXPECT_THAT(grace_warning(10, 20, 14.9),
              AllOf(HasSubstr("14.9 s are left of run.time_limit_minutes"),
                    HasSubstr("at least 0.3 minutes below"), Not(HasSubstr("FERRY_GRACE_S"))));
  EXPECT_THAT(grace_warning(10, 1, -3),
              AllOf(HasSubstr("FERRY_GRACE_S"), HasSubstr("\n! a save"), HasSubstr("-3.0 s are")));
}

}  // namespace
}  // namespace ferry
