#include "core/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "core/parameter.h"
#include "tests/support/error_of.h"

namespace ferry {
namespace {

using Runs = std::vector<PlacedRows>;
using Boxes = std::vector<PlacedBox>;
using testing::error_of;

// gtest prints these in failures.
[[maybe_unused]] void PrintTo(const PlacedRows& run, std::ostream* out) {
  *out << "{" << run.row << ", " << run.global_row << ", " << run.num_rows << "}";
}
[[maybe_unused]] void PrintTo(const PlacedBox& box, std::ostream* out) {
  *out << "{" << box.row << ", " << box.offset << ", " << box.extent << "}";
}

/// The elements of the whole, numbered in order, that the part holds; -1 for padding.
std::vector<int64_t> elements_of(const Placement& part) {
  const int64_t columns = part.num_columns();
  std::vector<int64_t> elements(static_cast<size_t>(part.num_rows() * columns), -1);
  for (const PlacedRows& run : part.runs())
    for (int64_t r = 0; r < run.num_rows; ++r)
      for (int64_t c = 0; c < columns; ++c)
        elements[static_cast<size_t>((run.row + r) * columns + c)] =
            (run.global_row + r) * matrix_columns(part.global_shape()) + part.first_column() + c;
  return elements;
}

/// The same through boxes().
std::vector<int64_t> elements_of_boxes(const Placement& part) {
  const Shape& whole = part.global_shape();
  std::vector<int64_t> elements(static_cast<size_t>(part.num_rows() * part.num_columns()), -1);
  for (const PlacedBox& box : part.boxes()) {
    EXPECT_EQ(box.offset.rank(), whole.rank());
    EXPECT_EQ(box.extent.rank(), whole.rank());
    for (int64_t i = 0; i < box.extent.numel(); ++i) {
      int64_t rest = i, element = 0, stride = 1;
      for (int dim = whole.rank(); dim-- > 0;) {
        EXPECT_LE(box.offset[dim] + box.extent[dim], whole[dim]);
        element += (box.offset[dim] + rest % box.extent[dim]) * stride;
        rest /= box.extent[dim];
        stride *= whole[dim];
      }
      const auto at = static_cast<size_t>(box.row * part.num_columns() + i);
      EXPECT_EQ(elements.at(at), -1) << "two boxes on one element";
      elements.at(at) = element;
    }
  }
  return elements;
}

std::vector<int64_t> range(int64_t begin, int64_t end) {
  std::vector<int64_t> values(static_cast<size_t>(end - begin));
  std::iota(values.begin(), values.end(), begin);
  return values;
}

TEST(PlacementTest, ATensorCountsAsAMatrix) {
  EXPECT_EQ(matrix_rows({5}), 5);
  EXPECT_EQ(matrix_columns({5}), 1);
  EXPECT_EQ(matrix_rows({5, 3}), 5);
  EXPECT_EQ(matrix_columns({5, 3}), 3);
  EXPECT_EQ(matrix_rows({2, 5, 3}), 10);
  EXPECT_EQ(matrix_columns({2, 5, 3}), 3);
  EXPECT_EQ(matrix_rows({}), 0);
}

TEST(PlacementTest, TheWholeIsOneRun) {
  const Placement whole(Shape{2, 3, 4});
  EXPECT_EQ(whole.global_shape(), (Shape{2, 3, 4}));
  EXPECT_EQ(whole.runs(), (Runs{{0, 0, 6}}));
  EXPECT_EQ(whole.num_rows(), 6);
  EXPECT_EQ(whole.first_column(), 0);
  EXPECT_EQ(whole.num_columns(), 4);
  EXPECT_EQ(whole.boxes(), (Boxes{{0, Shape{0, 0, 0}, Shape{2, 3, 4}}}));
  EXPECT_EQ(elements_of(whole), range(0, 24));
}

TEST(PlacementTest, NothingHasNoRows) {
  EXPECT_TRUE(Placement().runs().empty());
  EXPECT_TRUE(Placement().boxes().empty());
  const Placement none = Placement(Shape{4, 2}).rows(2, 2);
  EXPECT_EQ(none.num_rows(), 0);
  EXPECT_TRUE(none.runs().empty());
  EXPECT_TRUE(none.boxes().empty());
}

TEST(PlacementTest, RowsOfRowsAreRowsOfTheWhole) {
  const Placement::Range ranges[] = {{1, 3}, {6, 9}};
  const Placement part = Placement(Shape{10, 2}).rows(ranges);
  EXPECT_EQ(part.num_rows(), 5);
  EXPECT_EQ(part.runs(), (Runs{{0, 1, 2}, {2, 6, 3}}));
  // Row 1 of the part is row 2, rows 2 and 3 are rows 6 and 7.
  EXPECT_EQ(part.rows(1, 4).runs(), (Runs{{0, 2, 1}, {1, 6, 2}}));
  EXPECT_EQ(part.rows(3, 5).runs(), (Runs{{0, 7, 2}}));
}

TEST(PlacementTest, NeighboursBecomeOneRun) {
  const Placement::Range ranges[] = {{1, 3}, {3, 9}};
  EXPECT_EQ(Placement(Shape{10}).rows(ranges).runs(), (Runs{{0, 1, 8}}));
  const Placement::Range swapped[] = {{3, 9}, {1, 3}};
  EXPECT_EQ(Placement(Shape{10}).rows(swapped).runs(), (Runs{{0, 3, 6}, {6, 1, 2}}));
}

TEST(PlacementTest, ColumnsOfColumnsAreColumnsOfTheWhole) {
  const Placement part = Placement(Shape{2, 8}).columns(2, 6).columns(1, 3);
  EXPECT_EQ(part.first_column(), 3);
  EXPECT_EQ(part.num_columns(), 2);
  EXPECT_EQ(elements_of(part), (std::vector<int64_t>{3, 4, 11, 12}));
  EXPECT_EQ(part.boxes(), (Boxes{{0, Shape{0, 3}, Shape{2, 2}}}));
}

TEST(PlacementTest, PaddingIsNoPartOfTheWhole) {
  const Placement part = Placement(Shape{5, 2}).rows(3, 5).padded(4);
  EXPECT_EQ(part.num_rows(), 4);
  EXPECT_EQ(part.runs(), (Runs{{0, 3, 2}}));
  EXPECT_EQ(elements_of(part), (std::vector<int64_t>{6, 7, 8, 9, -1, -1, -1, -1}));
  EXPECT_EQ(part.boxes(), (Boxes{{0, Shape{3, 0}, Shape{2, 2}}}));
  // A cut of it keeps its share of the padding.
  const Placement cut = part.rows(1, 3);
  EXPECT_EQ(cut.num_rows(), 2);
  EXPECT_EQ(cut.runs(), (Runs{{0, 4, 1}}));
  const Placement only_padding = part.rows(2, 4);
  EXPECT_EQ(only_padding.num_rows(), 2);
  EXPECT_TRUE(only_padding.runs().empty());
  // Padding between rows.
  const Placement::Range ranges[] = {{2, 4}, {0, 1}};
  EXPECT_EQ(part.rows(ranges).runs(), (Runs{{2, 3, 1}}));
}

TEST(PlacementTest, BoxesAreAsLargeAsTheyCanBe) {
  // Rows 2..9 of 3 x 4: the end of slice 0, slice 1, the beginning of slice 2.
  const Placement part = Placement(Shape{3, 4, 5}).rows(2, 10);
  EXPECT_EQ(part.boxes(), (Boxes{{0, Shape{0, 2, 0}, Shape{1, 2, 5}},
                                 {2, Shape{1, 0, 0}, Shape{1, 4, 5}},
                                 {6, Shape{2, 0, 0}, Shape{1, 2, 5}}}));
  EXPECT_EQ(Placement(Shape{3, 4, 5}).rows(4, 12).boxes(),
            (Boxes{{0, Shape{1, 0, 0}, Shape{2, 4, 5}}}));
  EXPECT_EQ(Placement(Shape{7}).rows(2, 6).boxes(), (Boxes{{0, Shape{2}, Shape{4}}}));
}

TEST(PlacementTest, BoxesHoldTheSameElements) {
  for (const Shape& shape : {Shape{12}, Shape{12, 3}, Shape{3, 4, 3}, Shape{2, 3, 2, 3}}) {
    const Placement whole(shape);
    for (int64_t begin = 0; begin <= 12; ++begin) {
      for (int64_t end = begin; end <= 12; ++end) {
        SCOPED_TRACE(concat(shape, " rows ", begin, " to ", end));
        const Placement rows = whole.rows(begin, end).padded(13);
        EXPECT_EQ(elements_of_boxes(rows), elements_of(rows));
        if (shape.rank() == 1) continue;
        const Placement cut = rows.columns(1, 3);
        EXPECT_EQ(elements_of_boxes(cut), elements_of(cut));
      }
    }
  }
}

TEST(PlacementTest, RefusesWhatIsNotThere) {
  const Placement whole(Shape{4, 6});
  EXPECT_NE(error_of(ExitCode::Internal, [&] { whole.rows(2, 5); }).find("rows [2, 5) of 4"),
            std::string::npos);
  EXPECT_NE(error_of(ExitCode::Internal, [&] { whole.rows(3, 2); }).find("rows [3, 2) of 4"),
            std::string::npos);
  EXPECT_NE(error_of(ExitCode::Internal, [&] { whole.columns(0, 7); }).find("columns [0, 7) of 6"),
            std::string::npos);
  EXPECT_NE(error_of(ExitCode::Internal, [] { Placement(Shape{4}).columns(0, 1); })
                .find("a tensor of shape [4] has no columns to cut"),
            std::string::npos);
  EXPECT_NE(error_of(ExitCode::Internal, [&] { whole.padded(3); }).find("padding 4 rows to 3"),
            std::string::npos);
  const int64_t sections[] = {4, 3};
  EXPECT_NE(error_of(ExitCode::Internal, [&] { cut_sections(sections, 0, 2); })
                .find("2 ranks do not divide 3 rows"),
            std::string::npos);
}

Parameter weight(const Shape& shape) {
  Parameter parameter;
  parameter.name = "w";
  parameter.shape = shape;
  return parameter;
}

TEST(CutParameterTest, AWholeParameterHasNoPart) {
  Parameter whole = weight({4, 6});
  const int64_t sections[] = {4};
  cut_rows(whole, sections, 0, 1);
  cut_columns(whole, 0, 1);
  EXPECT_FALSE(whole.part);
  EXPECT_EQ(whole.shape, (Shape{4, 6}));
  EXPECT_EQ(whole.global_shape(), (Shape{4, 6}));
  EXPECT_EQ(whole.placement().runs(), (Runs{{0, 0, 4}}));
}

TEST(CutParameterTest, RowsAreCutSectionBySection) {
  Parameter qkv = weight({8 + 4 + 4, 3});
  const int64_t sections[] = {8, 4, 4};
  cut_rows(qkv, sections, 1, 2);
  EXPECT_EQ(qkv.shape, (Shape{8, 3}));
  EXPECT_EQ(qkv.global_shape(), (Shape{16, 3}));
  EXPECT_EQ(qkv.placement().runs(), (Runs{{0, 4, 4}, {4, 10, 2}, {6, 14, 2}}));
  EXPECT_EQ(qkv.placement().num_columns(), 3);

  Parameter norm = weight({8});
  const int64_t width[] = {8};
  cut_rows(norm, width, 3, 4);
  EXPECT_EQ(norm.shape, Shape{2});
  EXPECT_EQ(norm.placement().runs(), (Runs{{0, 6, 2}}));
}

TEST(CutParameterTest, StackedMatricesOfExpertsStayWhole) {
  Parameter fc1 = weight({2, 8, 3});  // two experts, each with 4 gate and 4 up rows
  const int64_t sections[] = {4, 4, 4, 4};
  cut_rows(fc1, sections, 1, 2);
  EXPECT_EQ(fc1.shape, (Shape{2, 4, 3}));
  EXPECT_EQ(fc1.placement().runs(), (Runs{{0, 2, 2}, {2, 6, 2}, {4, 10, 2}, {6, 14, 2}}));
  Parameter fc2 = weight({2, 3, 4});
  cut_columns(fc2, 1, 2);
  EXPECT_EQ(fc2.shape, (Shape{2, 3, 2}));
  EXPECT_EQ(fc2.placement().first_column(), 2);
  EXPECT_EQ(fc2.placement().runs(), (Runs{{0, 0, 6}}));
}

TEST(CutParameterTest, PartsOfAllRanksAreTheWhole) {
  const int64_t sections[] = {8, 4};
  for (const int size : {1, 2, 4}) {
    std::vector<int64_t> rows, columns;
    for (int rank = 0; rank < size; ++rank) {
      Parameter a = weight({12, 4}), b = weight({12, 4});
      cut_rows(a, sections, rank, size);
      cut_columns(b, rank, size);
      for (const int64_t element : elements_of(a.placement())) rows.push_back(element);
      for (const int64_t element : elements_of(b.placement())) columns.push_back(element);
    }
    std::sort(rows.begin(), rows.end());
    std::sort(columns.begin(), columns.end());
    EXPECT_EQ(rows, range(0, 48));
    EXPECT_EQ(columns, range(0, 48));
  }
}

TEST(CutParameterTest, ACutOfACutIsInTheWhole) {
  Parameter both = weight({4, 6});
  cut_columns(both, 1, 2);
  const int64_t sections[] = {4};
  cut_rows(both, sections, 1, 2);
  EXPECT_EQ(both.shape, (Shape{2, 3}));
  EXPECT_EQ(both.global_shape(), (Shape{4, 6}));
  EXPECT_EQ(elements_of(both.placement()), (std::vector<int64_t>{15, 16, 17, 21, 22, 23}));
}

TEST(CutParameterTest, RefusesWhatDoesNotDivide) {
  Parameter parameter = weight({4, 6});
  EXPECT_NE(error_of(ExitCode::Internal, [&] { cut_columns(parameter, 0, 4); })
                .find("w: 4 ranks do not divide 6 columns"),
            std::string::npos);
  const int64_t sections[] = {2};
  EXPECT_NE(error_of(ExitCode::Internal, [&] { cut_rows(parameter, sections, 0, 2); })
                .find("w: the sections are not all of its rows"),
            std::string::npos);
  EXPECT_FALSE(parameter.part) << "a refusal must not leave half a cut";
}

}  // namespace
}  // namespace ferry
