#include "core/fields.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>

namespace ferry {
namespace {

struct Inner {
  std::vector<double> rates = {0.5};
  std::optional<double> limit;

  template <class Visitor>
  static void visit_fields(Visitor&& visit) {
    visit(Field{.key = "rates", .doc = "a list"}, &Inner::rates);
    visit(Field{.key = "limit", .doc = "an optional"}, &Inner::limit);
  }
};

struct Outer {
  int64_t count = 3;
  bool on = true;
  std::string name = "a";
  Inner inner;

  template <class Visitor>
  static void visit_fields(Visitor&& visit) {
    visit(Field{.key = "count", .doc = "an integer", .range = at_least(1)}, &Outer::count);
    visit(Field{.key = "on", .doc = "a switch"}, &Outer::on);
    visit(Field{.key = "name", .doc = "a string", .allowed = {"a", "b"}}, &Outer::name);
    visit(Table{.key = "inner", .doc = "a table"}, &Outer::inner);
  }
};

TEST(Fields, VisitsValuesInOrderWithFullPaths) {
  std::vector<std::string> seen;
  const Outer config;
  visit_values(
      config, [&](const std::string& path, const Table&) { seen.push_back("[" + path + "]"); },
      [&](const std::string& path, const Field&, const auto& value) {
        seen.push_back(path + "=" + to_toml(value));
      });
  EXPECT_EQ(seen, (std::vector<std::string>{"count=3", "on=true", "name=\"a\"", "[inner]",
                                            "inner.rates=[0.5]", "inner.limit="}));
}

TEST(Fields, VisitsAValueThatCanBeChanged) {
  Outer config;
  visit_values(config, [](const std::string& path, const Field&, auto& value) {
    if constexpr (std::is_same_v<std::remove_reference_t<decltype(value)>, int64_t>) {
      if (path == "count") value = 7;
    }
  });
  EXPECT_EQ(config.count, 7);
}

TEST(Fields, DifferencesNameThePaths) {
  Outer a;
  Outer b;
  EXPECT_TRUE(differences(a, b).empty());
  b.on = false;
  b.inner.limit = 0.0;
  EXPECT_EQ(differences(a, b), (std::vector<std::string>{"on", "inner.limit"}));
}

TEST(Fields, TomlTextOfNumbersReadsBackToTheSameBits) {
  for (const double value : {0.1, 1.0 / 3, 1e-300, 12345678901234567.0, -2.5e20, 5e-324}) {
    EXPECT_EQ(std::strtod(to_toml(value).c_str(), nullptr), value) << to_toml(value);
  }
  EXPECT_EQ(to_toml(1.0), "1.0");
  EXPECT_EQ(to_toml(1e-5), "1e-5");
  EXPECT_EQ(to_toml(1e-12), "1e-12");
  EXPECT_EQ(to_toml(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(to_toml(std::numeric_limits<int64_t>::min()), "-9223372036854775808");
}

TEST(Fields, TomlTextOfStringsIsEscaped) {
  EXPECT_EQ(to_toml(std::string("a\"b\\c\nd")), "\"a\\\"b\\\\c\\u000Ad\"");
  EXPECT_EQ(to_toml(std::vector<std::string>{"x", "y"}), "[\"x\", \"y\"]");
  EXPECT_EQ(to_toml(std::vector<int64_t>{}), "[]");
}

TEST(Fields, AnUnsetOptionalIsWrittenAsItsWord) {
  const Field with_word{.key = "limit", .doc = "an optional", .word = "auto"};
  const Field without{.key = "limit", .doc = "an optional"};
  EXPECT_EQ(to_toml(with_word, std::optional<double>()), "\"auto\"");
  EXPECT_EQ(to_toml(with_word, std::optional<double>(0.5)), "0.5");
  EXPECT_EQ(to_toml(without, std::optional<double>()), "");
  EXPECT_EQ(to_toml(with_word, int64_t{3}), "3");
}

TEST(Fields, TypeNames) {
  EXPECT_EQ(type_name<bool>(), "true or false");
  EXPECT_EQ(type_name<std::optional<int64_t>>(), "integer");
  EXPECT_EQ(type_name<std::vector<double>>(), "list of numbers");
}

TEST(Range, ContainsItsEndsUnlessOpen) {
  EXPECT_TRUE(at_least(1).contains(1));
  EXPECT_FALSE(at_least(1).contains(0.999));
  EXPECT_FALSE(above(0).contains(0));
  EXPECT_TRUE(closed(0, 1).contains(1));
  EXPECT_FALSE(half_open(0, 1).contains(1));
  EXPECT_TRUE(half_open(0, 1).contains(0));
  EXPECT_FALSE(half_open(0, 1).contains(std::nan("")));
}

TEST(Range, Text) {
  EXPECT_EQ(Range{}.text(), "");
  EXPECT_EQ(at_least(1).text(), "at least 1");
  EXPECT_EQ(above(0).text(), "above 0");
  EXPECT_EQ(closed(0, 1).text(), "in [0, 1]");
  EXPECT_EQ(half_open(0, 1).text(), "in [0, 1)");
  EXPECT_EQ(closed(0.5, 1e8).text(), "in [0.5, 100000000]");
}

TEST(EditDistance, CountsEditsAndSwaps) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("modle", "model"), 1);
  EXPECT_EQ(edit_distance("ca", "abc"), 3);
}

TEST(NearestName, OnlyIfNear) {
  const std::vector<std::string> names = {"layers", "heads", "kv_heads"};
  EXPECT_EQ(nearest_name("layer", names), "layers");
  EXPECT_EQ(nearest_name("kv_head", names), "kv_heads");
  EXPECT_EQ(nearest_name("haeds", names), "heads");
  EXPECT_EQ(nearest_name("something", names), std::nullopt);
}

}  // namespace
}  // namespace ferry
