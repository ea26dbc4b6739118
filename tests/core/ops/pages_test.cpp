#include "core/ops/pages.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "tests/support/devices.h"

namespace ferry::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int64_t kPageRows = 4;

class PagesOp : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    flags_ = ints({0, 0}, {2});
  }
  PagePool make_pool(int64_t width, int64_t num_pages, int64_t num_host_pages) {
    const PagePool pool =
        PagePool::empty(stream(), "pages", dtype(), width, kPageRows, num_pages, num_host_pages);
    // Guards: what no stash wrote stays NaN.
    stream().copy(pool.pages, poisoned(stream(), pool.pages.shape(), dtype()));
    stream().copy(pool.host_pages, poisoned(stream(), pool.host_pages.shape(), dtype()));
    reset_pages(stream(), pool);
    return pool;
  }
  struct Stashed {
    Tensor rows, num_rows;
    PageList list;
  };
  Stashed stash(const PagePool& pool, int64_t padded_rows, int32_t num_rows, uint64_t seed) {
    Stashed stashed;
    stashed.rows = random({padded_rows, pool.width()}, seed);
    stashed.num_rows = ints({num_rows}, {1});
    stashed.list = PageList::empty(stream(), pool, padded_rows);
    stash_pages(stream(), pool, stashed.list, flags_, stashed.rows, stashed.num_rows);
    return stashed;
  }
  PageHome home_of(const Stashed& stashed) {
    return static_cast<PageHome>(host(stashed.list.home)[0]);
  }
  std::vector<double> back(const PagePool& pool, const Stashed& stashed) {
    const Tensor rows = output(stashed.rows.shape());
    unstash_pages(stream(), rows, pool, stashed.list, stashed.num_rows);
    return values(rows);
  }
  // The first rows of what was stashed, then zeros.
  std::vector<double> expected(const Stashed& stashed, int64_t num_rows) {
    std::vector<double> all = values(stashed.rows);
    std::fill(all.begin() + num_rows * stashed.rows.dim(1), all.end(), 0.0);
    return all;
  }
  std::vector<double> values(const Tensor& tensor) { return read_back_as_double(stream(), tensor); }
  std::vector<int32_t> host(const Tensor& tensor) { return read_back<int32_t>(stream(), tensor); }
  std::vector<int64_t> state(const PagePool& pool) {
    return read_back<int64_t>(stream(), pool.state);
  }
  int64_t num_free(const PagePool& pool) { return state(pool)[kTail] - state(pool)[kHead]; }
  int64_t num_free_host(const PagePool& pool) {
    return state(pool)[kHostTail] - state(pool)[kHostHead];
  }
  std::set<int32_t> pages_of(const PagePool& pool, const Stashed& stashed, int64_t num_rows) {
    const std::vector<int32_t> all = host(stashed.list.pages);
    return {all.begin(), all.begin() + (num_rows + pool.page_rows() - 1) / pool.page_rows()};
  }

  Tensor flags_;
};

TEST_P(PagesOp, RowsInUseComeBackAndTheOthersAreZeros) {
  // Widths with and without 16-byte accesses, numbers of rows around a page.
  for (const int64_t width : {1, 3, 8, 129, 1024}) {
    for (const int32_t num_rows : {0, 1, 3, 4, 5, 11, 12}) {
      SCOPED_TRACE(concat("width ", width, ", rows ", num_rows));
      const PagePool pool = make_pool(width, 3, 0);
      const Stashed stashed = stash(pool, 12, num_rows, 1);
      EXPECT_EQ(home_of(stashed), PageHome::Device);
      EXPECT_EQ(num_free(pool), 3 - (num_rows + 3) / 4);
      EXPECT_EQ(back(pool, stashed), expected(stashed, num_rows));
      EXPECT_EQ(num_free(pool), 3);
    }
  }
  EXPECT_THAT(host(flags_), ElementsAre(0, 0));
}

TEST_P(PagesOp, MoreRowsThanTheTensorHasAreNotTouched) {
  const PagePool pool = make_pool(5, 3, 0);
  const Stashed stashed = stash(pool, 8, 100, 1);
  EXPECT_EQ(num_free(pool), 1);
  EXPECT_EQ(back(pool, stashed), expected(stashed, 8));
  const Stashed negative = stash(pool, 8, -3, 1);
  EXPECT_EQ(num_free(pool), 3);
  EXPECT_EQ(back(pool, negative), expected(negative, 0));
}

TEST_P(PagesOp, PagesBelongToOneTensor) {
  const PagePool pool = make_pool(5, 6, 0);
  const Stashed a = stash(pool, 16, 9, 1), b = stash(pool, 16, 10, 2);
  std::set<int32_t> all = pages_of(pool, a, 9);
  all.merge(pages_of(pool, b, 10));
  EXPECT_EQ(all.size(), 6u);
  EXPECT_EQ(num_free(pool), 0);
  EXPECT_EQ(back(pool, a), expected(a, 9));
  EXPECT_EQ(back(pool, b), expected(b, 10));
}

// The order in which tensors come and go does not matter, and the lists go around many times.
TEST_P(PagesOp, PagesAreUsedAgain) {
  const PagePool pool = make_pool(7, 5, 2);
  std::vector<Stashed> waiting;
  std::vector<int32_t> counts;
  for (uint64_t i = 0; i < 60; ++i) {
    counts.push_back(static_cast<int32_t>(i * 5 % 12));
    waiting.push_back(stash(pool, 12, counts.back(), i));
    if (waiting.size() < 2) continue;
    const size_t at = i % 2;
    EXPECT_EQ(back(pool, waiting[at]), expected(waiting[at], counts[at]));
    waiting.erase(waiting.begin() + static_cast<ptrdiff_t>(at));
    counts.erase(counts.begin() + static_cast<ptrdiff_t>(at));
  }
  back(pool, waiting[0]);
  EXPECT_EQ(host(flags_)[kStashOverflow], 0);
  EXPECT_EQ(num_free(pool), 5);
  EXPECT_EQ(num_free_host(pool), 2);
  EXPECT_GT(state(pool)[kHead], 5);
  std::vector<int32_t> free = host(pool.free_pages);
  std::sort(free.begin(), free.end());
  EXPECT_THAT(free, ElementsAre(0, 1, 2, 3, 4));
}

TEST_P(PagesOp, WholeTensorsSpillToTheHost) {
  const PagePool pool = make_pool(8, 2, 3);
  const Stashed on_device = stash(pool, 12, 5, 1);  // leaves no page
  const Stashed on_host = stash(pool, 12, 9, 2);
  const Stashed nothing = stash(pool, 12, 0, 3);
  EXPECT_EQ(home_of(on_device), PageHome::Device);
  EXPECT_EQ(home_of(on_host), PageHome::Host);
  EXPECT_EQ(home_of(nothing), PageHome::Device);
  EXPECT_THAT(host(flags_), ElementsAre(0, 1));
  EXPECT_EQ(state(pool)[kHostRows], 9);
  EXPECT_EQ(num_free_host(pool), 0);
  EXPECT_EQ(back(pool, on_host), expected(on_host, 9));
  EXPECT_EQ(back(pool, on_device), expected(on_device, 5));
  EXPECT_EQ(num_free(pool), 2);
  EXPECT_EQ(num_free_host(pool), 3);
}

// One page would fit on the device; the tensor still goes to the host, all of it.
TEST_P(PagesOp, TensorsAreNeverSplit) {
  const PagePool pool = make_pool(8, 2, 3);
  stash(pool, 4, 4, 1);
  const Stashed split = stash(pool, 12, 12, 2);
  EXPECT_EQ(home_of(split), PageHome::Host);
  EXPECT_EQ(num_free(pool), 1);
  EXPECT_EQ(num_free_host(pool), 0);
}

TEST_P(PagesOp, OverflowIsFlaggedAndNothingIsWritten) {
  for (const int64_t num_host_pages : {0, 1}) {
    flags_ = ints({0, 0}, {2});
    const PagePool pool = make_pool(8, 2, num_host_pages);
    const Stashed first = stash(pool, 12, 4, 1);
    const std::vector<int64_t> before = state(pool);
    const Stashed over = stash(pool, 12, 12, 2);
    EXPECT_EQ(home_of(over), PageHome::None);
    EXPECT_THAT(host(flags_), ElementsAre(1, 0));
    // Nor would a tensor that fits be stored from now on.
    const Stashed later = stash(pool, 12, 1, 3);
    EXPECT_EQ(home_of(later), PageHome::None);
    EXPECT_EQ(state(pool), before);
    const std::vector<double> pages = values(pool.pages);
    const size_t used = static_cast<size_t>(kPageRows * 8);
    const auto first_page = static_cast<size_t>(host(first.list.pages)[0]);
    for (size_t i = 0; i < pages.size(); ++i)
      ASSERT_EQ(std::isnan(pages[i]), i / used != first_page) << "element " << i;
    for (const double value : values(pool.host_pages)) ASSERT_TRUE(std::isnan(value));
    EXPECT_EQ(back(pool, over), expected(over, 0));
    EXPECT_EQ(back(pool, later), expected(later, 0));
    EXPECT_EQ(back(pool, first), expected(first, 4));
    EXPECT_EQ(num_free(pool), 2);
  }
}

// The rest of a page stays as it is, and so do the pages of others.
TEST_P(PagesOp, WritesNothingButItsRows) {
  const PagePool pool = make_pool(3, 4, 0);
  const Stashed stashed = stash(pool, 8, 6, 1);
  const std::vector<double> pages = values(pool.pages);
  const auto nan =
      std::count_if(pages.begin(), pages.end(), [](double v) { return std::isnan(v); });
  EXPECT_EQ(nan, std::ssize(pages) - 6 * 3);
  // Rows beyond the tensor, too.
  const Tensor around = output({12, 3});
  unstash_pages(stream(), around.rows(2, 10), pool, stashed.list, stashed.num_rows);
  const std::vector<double> out = values(around);
  for (size_t i = 0; i < out.size(); ++i)
    ASSERT_EQ(std::isnan(out[i]), i < 6 || i >= 30) << "element " << i;
}

TEST_P(PagesOp, ResetMakesAllPagesFree) {
  const PagePool pool = make_pool(3, 2, 2);
  stash(pool, 8, 8, 1);
  stash(pool, 8, 8, 2);
  EXPECT_EQ(num_free(pool) + num_free_host(pool), 0);
  reset_pages(stream(), pool);
  EXPECT_THAT(state(pool), ElementsAre(0, 2, 0, 2, 0));
  EXPECT_THAT(host(pool.free_pages), ElementsAre(0, 1));
}

TEST_P(PagesOp, RefusesTensorsOfOtherPools) {
  const PagePool pool = make_pool(3, 2, 0);
  const Tensor num_rows = ints({1}, {1});
  const PageList list = PageList::empty(stream(), pool, 8);
  EXPECT_THAT(
      [&] {
        stash_pages(stream(), pool, list, flags_, output({8, 4}), num_rows);
      },
      ThrowsMessage<Error>(HasSubstr("rows have shape [8, 4], not [R, 3]")));
  EXPECT_THAT(
      [&] {
        stash_pages(stream(), pool, list, flags_, output({9, 3}), num_rows);
      },
      ThrowsMessage<Error>(HasSubstr("9 rows for a list of 2 pages of 4")));
  EXPECT_THAT(
      [&] {
        unstash_pages(stream(), ints({1, 2, 3}, {1, 3}), pool, list, num_rows);
      },
      ThrowsMessage<Error>(HasSubstr("i32 rows in pages of ")));
  EXPECT_THAT([&] { PagePool::empty(stream(), "pages", dtype(), 3, 0, 1, 1); },
              ThrowsMessage<Error>(HasSubstr("pages of 0 rows")));
}

INSTANTIATE_TEST_SUITE_P(Devices, PagesOp, device_cases(), case_name);

}  // namespace
}  // namespace ferry::testing
