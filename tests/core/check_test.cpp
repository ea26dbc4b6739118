#include "core/check.h"

#include <gtest/gtest.h>

namespace ferry {

TEST(Check, QuotesExpressionPlaceAndParts) {
  try {
    CHECK(1 + 1 == 3, "sum is ", 2);
    FAIL() << "CHECK did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Internal);
    const std::string text = error.what();
    EXPECT_NE(text.find("CHECK(1 + 1 == 3) failed at "), std::string::npos) << text;
    EXPECT_NE(text.find("check_test.cpp:"), std::string::npos) << text;
    EXPECT_NE(text.find(": sum is 2"), std::string::npos) << text;
  }
}

TEST(Check, PassesWithoutEffect) { EXPECT_NO_THROW(CHECK(true, "never built")); }

TEST(Fail, CarriesTheExitCode) {
  try {
    fail(ExitCode::Data, "token ", 7);
    FAIL() << "fail did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Data);
    EXPECT_STREQ(error.what(), "token 7");
  }
}

}  // namespace ferry
