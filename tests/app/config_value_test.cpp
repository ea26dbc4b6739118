#include "app/config_value.h"

#include <gtest/gtest.h>

namespace ferry {
namespace {

// "what | why | fix" of a value that is not taken, empty if it is.
template <class T>
std::string refusal(const char* toml, const Field& field, T& out) {
  const toml::table table = toml::parse(std::string("x = ") + toml);
  const std::optional<Refusal> found = take(*table.get("x"), field, out);
  return found ? found->what + " | " + found->why + " | " + found->fix : "";
}

std::string text_of(const char* toml) {
  return node_text(*toml::parse(std::string("x = ") + toml).get("x"));
}

TEST(ConfigValue, TakesAWordForAnUnsetNumber) {
  const Field field{.key = "part", .doc = "", .range = closed(0, 1), .word = "auto"};
  std::optional<double> part;
  EXPECT_EQ(refusal("0.5", field, part), "");
  EXPECT_EQ(part, 0.5);
  EXPECT_EQ(refusal("\"auto\"", field, part), "");
  EXPECT_EQ(part, std::nullopt);
  EXPECT_EQ(refusal("1", field, part), "");
  EXPECT_EQ(part, 1.0);
}

TEST(ConfigValue, AnotherWordIsOfAWrongType) {
  const Field field{.key = "part", .doc = "", .range = closed(0, 1), .word = "auto"};
  std::optional<double> part;
  const std::string wanted = "and must be a number or \"auto\" | ";
  EXPECT_EQ(refusal("\"auot\"", field, part),
            "wrong type | it is a string, " + wanted + "\"auto\"");
  EXPECT_EQ(refusal("\"memory\"", field, part),
            "wrong type | it is a string, " + wanted + "write a number or \"auto\"");
  EXPECT_EQ(refusal("[0.5]", field, part),
            "wrong type | it is a list, " + wanted + "write a number or \"auto\"");
  EXPECT_EQ(refusal("2.0", field, part),
            "illegal value | part must be in [0, 1] or \"auto\" | 1.0");
  std::optional<int64_t> count;
  const Field counted{.key = "count", .doc = "", .word = "all"};
  EXPECT_EQ(refusal("\"every\"", counted, count),
            "wrong type | it is a string, and must be an integer or \"all\" | write an integer or "
            "\"all\"");
}

TEST(ConfigValue, AnOptionalWithoutAWordTakesNone) {
  const Field field{.key = "limit", .doc = "", .range = above(0)};
  std::optional<double> limit;
  EXPECT_EQ(refusal("\"auto\"", field, limit),
            "wrong type | it is a string, and must be a number | write a number");
  EXPECT_EQ(refusal("3", field, limit), "");
  EXPECT_EQ(limit, 3.0);
}

TEST(ConfigValue, ElementsOfAListAreNamed) {
  const Field field{.key = "sizes", .doc = "", .range = at_least(1)};
  std::vector<int64_t> sizes;
  EXPECT_EQ(refusal("[2, 0]", field, sizes),
            "illegal value | element 0: sizes must be at least 1 | 1");
  EXPECT_EQ(refusal("3", field, sizes), "");
  EXPECT_EQ(sizes, std::vector<int64_t>{3});
}

TEST(ConfigValue, TextsFitAMessage) {
  EXPECT_EQ(text_of("[1, 'a', {b = true}]"), "[1, \"a\", {b = true}]");
  EXPECT_EQ(text_of("0.10"), "0.1");
  const std::string longest = text_of(("'" + std::string(100, 'x') + "'").c_str());
  EXPECT_EQ(longest, "\"" + std::string(56, 'x') + "...");
  EXPECT_EQ(kind_of(*toml::parse("x = 2020-01-01").get("x")), "date");
  EXPECT_EQ(with_article("integer"), "an integer");
  EXPECT_EQ(with_article("table"), "a table");
}

}  // namespace
}  // namespace ferry
