#include "app/product_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "core/ops/elementwise.h"

namespace ferry {
namespace {

// Of an operand, on the host at a time.
constexpr int64_t kChunkElements = int64_t{1} << 22;
// Where exp(-gate) leaves the range of accumulate_dtype, SwiGLU is 0 instead of |gate| * exp(gate):
// less than this many of its smallest numbers.
constexpr double kMostBelowRange = 1024;

// What FP32 or FP64 may lose in a sum, in steps of a number as large as its partial sums. Tensor
// cores cut once for 16 terms, which adds up; CPUs round every term, which mostly cancels.
double steps_lost(int64_t num_terms) {
  const auto terms = static_cast<double>(num_terms);
  return 4 + terms / 16 + 2 * std::sqrt(terms);
}

Tensor flat(const Tensor& tensor) { return tensor.reshape({tensor.numel()}); }

Tensor as_matrix(const Tensor& tensor) {
  return tensor.reshape({tensor.numel() / tensor.dim(-1), tensor.dim(-1)});
}

double step_at_one(DType dtype) {
  return dispatch_float(dtype, []<class T>() -> double {
    if constexpr (std::is_same_v<T, BFloat16>)
      return 0x1p-7;
    else
      return std::numeric_limits<T>::epsilon();
  });
}

// The smallest normal number.
double smallest(DType dtype) {
  return dtype == DType::F64 ? std::numeric_limits<double>::min()
                             : std::numeric_limits<float>::min();
}

// Elements of a tensor as if it were flat.
std::vector<double> read_places(Stream& stream, const Tensor& tensor,
                                const std::vector<int64_t>& places) {
  const Tensor elements = flat(tensor);
  const auto count = static_cast<int64_t>(places.size());
  const Tensor host = Tensor::host(stream.device(), "bench check", {count}, tensor.dtype());
  for (int64_t i = 0; i < count; ++i) {
    const int64_t place = places[static_cast<size_t>(i)];
    stream.copy(host.rows(i, i + 1), elements.rows(place, place + 1));
  }
  stream.synchronize();
  return dispatch_float(host.dtype(), [&]<class T>() {
    return std::vector<double>(host.data<T>(), host.data<T>() + count);
  });
}

// One factor of the terms of several sums: each sum runs along a row of a matrix, or down a column.
struct Factor {
  Tensor matrix;
  bool along_rows;
  std::vector<int64_t> indices;  // the row or column of each sum

  int64_t per_term() const {
    return along_rows ? static_cast<int64_t>(indices.size()) : matrix.dim(1);
  }
};

// A part of a factor in `host`, of kChunkElements.
template <class T>
class HostPart {
 public:
  HostPart(Stream& stream, const Factor& factor, const Tensor& host)
      : stream_(stream), factor_(factor), host_(host), elements_(host.data<T>()) {}

  // Terms [begin, end); they can be read once the stream is synchronized.
  void load(int64_t begin, int64_t end) {
    begin_ = begin;
    const int64_t width = factor_.matrix.dim(1), length = end - begin;
    stride_ = factor_.along_rows ? 1 : width;
    sum_stride_ = factor_.along_rows ? length : 0;
    if (!factor_.along_rows) {
      stream_.copy(host_.rows(0, length * width), flat(factor_.matrix.rows(begin, end)));
      return;
    }
    const Tensor elements = flat(factor_.matrix);
    int64_t at = 0;
    for (const int64_t row : factor_.indices) {
      stream_.copy(host_.rows(at, at + length),
                   elements.rows(row * width + begin, row * width + end));
      at += length;
    }
  }

  double at(size_t sum, int64_t term) const {
    const int64_t start =
        factor_.along_rows ? static_cast<int64_t>(sum) * sum_stride_ : factor_.indices[sum];
    return static_cast<double>(elements_[start + (term - begin_) * stride_]);
  }

 private:
  Stream& stream_;
  const Factor& factor_;
  const Tensor& host_;
  const T* elements_;
  int64_t begin_ = 0, stride_ = 1, sum_stride_ = 0;
};

struct Sum {
  double value = 0;
  double squares = 0;  // of the terms

  void add(double term) {
    value += term;
    squares += term * term;
  }
};

// Adds the products of both factors' terms, `length` of them, to each sum.
template <class T>
void add_terms(Stream& stream, const Factor& left, const Factor& right, int64_t length,
               const Tensor& left_host, const Tensor& right_host, std::vector<Sum>& sums) {
  HostPart<T> left_part(stream, left, left_host), right_part(stream, right, right_host);
  const int64_t chunk = kChunkElements / std::max(left.per_term(), right.per_term());
  CHECK(chunk > 0, "rows of ", left.matrix.shape(), " and ", right.matrix.shape(),
        " are too wide to check");
  for (int64_t begin = 0; begin < length; begin += chunk) {
    const int64_t end = std::min(begin + chunk, length);
    left_part.load(begin, end);
    right_part.load(begin, end);
    stream.synchronize();
    for (int64_t term = begin; term < end; ++term)
      for (size_t i = 0; i < sums.size(); ++i)
        sums[i].add(left_part.at(i, term) * right_part.at(i, term));
  }
}

// The factors of a group's elements, and how many terms their sums have.
struct Terms {
  Factor left, right;
  int64_t length;
};

// `x` is the product's, its rows in their order; `first_row` of x and y is the group's; `rows` and
// `columns` are those of the elements.
Terms terms_of(const GroupedProduct& product, const Tensor& x, int64_t group, int64_t first_row,
               std::vector<int64_t> rows, std::vector<int64_t> columns) {
  const int64_t n = product.weight.dim(1), k = product.weight.dim(2);
  const int64_t count = product.counts[static_cast<size_t>(group)];
  switch (product.pass) {
    case GroupedPass::Forward:
      for (int64_t& column : columns) column += group * n;
      return {{x, true, std::move(rows)}, {as_matrix(product.weight), true, std::move(columns)}, k};
    case GroupedPass::Dgrad:
      return {
          {product.y, true, std::move(rows)},
          {as_matrix(product.weight).rows(group * n, (group + 1) * n), false, std::move(columns)},
          n};
    case GroupedPass::Wgrad:
      break;
  }
  for (int64_t& row : rows) row -= group * n;
  return {{product.y.rows(first_row, first_row + count), false, std::move(rows)},
          {x.rows(first_row, first_row + count), false, std::move(columns)},
          count};
}

}  // namespace

ProductCheck::ProductCheck(Stream& stream, const GroupedProduct& product, const RandomKey& key,
                           int64_t num_random)
    : stream_(stream), product_(product), key_(key), output_(as_matrix(product.output())) {
  CHECK(output_.numel() > 0, product.name, " has no output to check");
  if (product.pass == GroupedPass::Wgrad)
    fill_normal(stream, output_, 1.0, key, 0);
  else
    fill(stream, output_, std::numeric_limits<double>::quiet_NaN());
  if (product.h.defined()) fill(stream, product.h, std::numeric_limits<double>::quiet_NaN());
  choose(num_random);
  if (product.pass == GroupedPass::Wgrad) {
    const std::vector<double> before = read_elements();
    for (size_t i = 0; i < elements_.size(); ++i) elements_[i].before = before[i];
  }
}

std::vector<int64_t> ProductCheck::output_rows() const {
  const int64_t height = product_.weight.dim(1);
  return product_.pass == GroupedPass::Wgrad ? std::vector<int64_t>(product_.counts.size(), height)
                                             : product_.counts;
}

void ProductCheck::choose(int64_t num_random) {
  std::seed_seq seeds{key_.seed, key_.seed >> 32, uint64_t{key_.site}};
  std::mt19937_64 generator(seeds);
  const auto below = [&](int64_t bound) {
    return static_cast<int64_t>(generator() % static_cast<uint64_t>(bound));
  };
  const int64_t columns = output_.dim(1);
  std::vector<int64_t> ends;
  for (const int64_t rows : output_rows()) {
    const int64_t begin = ends.empty() ? 0 : ends.back(), end = begin + rows;
    const auto group = static_cast<int64_t>(ends.size());
    ends.push_back(end);
    if (rows == 0) continue;
    elements_.push_back({group, begin, below(columns), 0});
    elements_.push_back({group, end - 1, below(columns), 0});
  }
  for (int64_t i = 0; i < num_random; ++i) {
    const int64_t row = below(ends.back());
    const auto group = std::upper_bound(ends.begin(), ends.end(), row) - ends.begin();
    elements_.push_back({group, row, below(columns), 0});
  }
  std::stable_sort(elements_.begin(), elements_.end(),
                   [](const Element& a, const Element& b) { return a.group < b.group; });
}

std::vector<double> ProductCheck::read_elements() const {
  std::vector<int64_t> places;
  for (const Element& element : elements_)
    places.push_back(element.row * output_.dim(1) + element.column);
  return read_places(stream_, output_, places);
}

std::vector<ProductCheck::Expected> ProductCheck::expected() const {
  const DType dtype = product_.x.dtype();
  const Tensor x = product_.rows().contiguous(stream_, "bench check");
  const auto buffer = [&] {
    return Tensor::host(stream_.device(), "bench check", {kChunkElements}, dtype);
  };
  const Tensor left_host = buffer(), right_host = buffer();
  std::vector<Expected> all;
  int64_t first_row = 0, group = 0;
  for (auto first = elements_.begin(); first != elements_.end();) {
    for (; group < first->group; ++group) first_row += product_.counts[static_cast<size_t>(group)];
    std::vector<int64_t> rows, columns;
    std::vector<Sum> sums;
    auto last = first;
    for (; last != elements_.end() && last->group == group; ++last) {
      rows.push_back(last->row);
      columns.push_back(last->column);
      sums.emplace_back().add(last->before);
    }
    const Terms terms =
        terms_of(product_, x, group, first_row, std::move(rows), std::move(columns));
    dispatch_float(dtype, [&]<class T>() {
      add_terms<T>(stream_, terms.left, terms.right, terms.length, left_host, right_host, sums);
    });
    const double lost = steps_lost(terms.length) * step_at_one(accumulate_dtype(dtype));
    for (const Sum& sum : sums)
      all.push_back({sum.value, lost * (std::abs(sum.value) + std::sqrt(sum.squares))});
    first = last;
  }
  return all;
}

void ProductCheck::expect_right() const {
  const std::vector<double> actual = read_elements();
  const std::vector<Expected> expected = this->expected();
  const double rounding = step_at_one(output_.dtype()) / 2;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double tolerance =
        rounding * std::abs(expected[i].value) + (1 + rounding) * expected[i].tolerance;
    expect_near("product", elements_[i], actual[i], {expected[i].value, tolerance});
  }
  if (product_.h.defined()) expect_right_swiglu();
}

void ProductCheck::expect_right_swiglu() const {
  const DType dtype = product_.h.dtype(), wide = accumulate_dtype(dtype);
  const int64_t ffn = product_.h.dim(1);
  std::vector<Element> elements = elements_;
  std::vector<int64_t> rows, gates, ups, places;
  for (Element& element : elements) {
    element.column %= ffn;
    rows.push_back(element.row);
    gates.push_back(element.row * 2 * ffn + element.column);
    ups.push_back(gates.back() + ffn);
    places.push_back(element.row * ffn + element.column);
  }
  const std::vector<double> gate = read_places(stream_, product_.y, gates);
  const std::vector<double> up = read_places(stream_, product_.y, ups);
  const std::vector<double> prob = read_places(stream_, product_.prob, rows);
  const std::vector<double> actual = read_places(stream_, product_.h, places);
  const double half_a_step = step_at_one(dtype) / 2, wide_step = step_at_one(wide);
  for (size_t i = 0; i < elements.size(); ++i) {
    const double factor = up[i] * prob[i], want = gate[i] / (1 + std::exp(-gate[i])) * factor;
    const double tolerance =
        (half_a_step + (8 + 2 * std::abs(gate[i])) * wide_step) * std::abs(want) +
        kMostBelowRange * smallest(wide) * std::max(1.0, std::abs(factor));
    expect_near("activation", elements[i], actual[i], {want, tolerance});
  }
}

void ProductCheck::expect_near(std::string_view what, const Element& element, double actual,
                               const Expected& expected) const {
  if (std::abs(actual - expected.value) <= expected.tolerance) return;  // false for NaN
  fail(ExitCode::Internal,
       fmt::format("{}: wrong {}\n  row {} (of group {}), column {} is {}, not {} +- {:.2g}\n"
                   "  seed: {}",
                   product_.name, what, element.row, element.group, element.column, actual,
                   expected.value, expected.tolerance, key_.seed));
}

}  // namespace ferry
