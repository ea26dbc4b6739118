#pragma once

// What every kind of Group must do, against a plain reference. Each check is called by all ranks of
// a group and leaves nothing behind; values are small integers, exact in every dtype.

#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "core/comm/group.h"
#include "core/host_copy.h"
#include "core/tensor.h"

namespace ferry::testing {

/// One check: the group, a stream of the kind it works on, and the dtype.
struct GroupCheck {
  const char* name;
  std::function<void(Group&, Stream&, DType)> run;
};

constexpr DType kAllDTypes[] = {DType::F32, DType::F64, DType::BF16,
                                DType::I32, DType::I64, DType::U8};

/// Element i of rank r; at most 24, so that sums of ten ranks fit into a byte and into bfloat16.
inline double rank_value(int rank, int64_t i) {
  return static_cast<double>((rank * 7 + i * 5) % 23 + (rank == 1 ? 1 : 0));
}

inline void write_value(const Tensor& host, int64_t i, double value) {
  switch (host.dtype()) {
    case DType::F32:
      host.data<float>()[i] = static_cast<float>(value);
      return;
    case DType::F64:
      host.data<double>()[i] = value;
      return;
    case DType::BF16:
      host.data<BFloat16>()[i] = BFloat16(value);
      return;
    case DType::I32:
      host.data<int32_t>()[i] = static_cast<int32_t>(value);
      return;
    case DType::I64:
      host.data<int64_t>()[i] = static_cast<int64_t>(value);
      return;
    case DType::U8:
      host.data<uint8_t>()[i] = static_cast<uint8_t>(value);
      return;
  }
}

/// A tensor on the stream's device with value(i) as element i.
inline Tensor make_tensor(Stream& stream, const Shape& shape, DType dtype,
                          const std::function<double(int64_t)>& value) {
  const Tensor host = Tensor::host(stream.device(), "test", shape, dtype);
  for (int64_t i = 0; i < host.numel(); ++i) write_value(host, i, value(i));
  const Tensor tensor = Tensor::empty(stream, "test", shape, dtype);
  stream.copy(tensor, host);
  return tensor;
}

/// What `rank` brings.
inline Tensor rank_tensor(Stream& stream, const Shape& shape, DType dtype, int rank) {
  return make_tensor(stream, shape, dtype, [rank](int64_t i) { return rank_value(rank, i); });
}

/// A tensor of 99, which no result contains.
inline Tensor unwritten(Stream& stream, const Shape& shape, DType dtype) {
  return make_tensor(stream, shape, dtype, [](int64_t) { return 99.0; });
}

inline void expect_values(Stream& stream, const Tensor& tensor,
                          const std::function<double(int64_t)>& expected, const std::string& what) {
  const std::vector<double> values = read_back_as_double(stream, tensor);
  for (size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(values[i], expected(static_cast<int64_t>(i))) << what << ", element " << i;
}

inline double sum_of(const Group& group, int64_t i) {
  double sum = 0;
  for (int rank = 0; rank < group.size(); ++rank) sum += rank_value(rank, i);
  return sum;
}

inline void check_all_reduce(Group& group, Stream& stream, DType dtype) {
  for (const int64_t rows : {1, 7, 1000}) {
    const Tensor sum = rank_tensor(stream, {rows, 3}, dtype, group.rank());
    const Tensor max = rank_tensor(stream, {rows, 3}, dtype, group.rank());
    group.all_reduce(stream, sum, ReduceOp::Sum);
    group.all_reduce(stream, max, ReduceOp::Max);
    expect_values(
        stream, sum, [&](int64_t i) { return sum_of(group, i); }, "sum");
    const auto largest = [&](int64_t i) {
      double result = 0;
      for (int rank = 0; rank < group.size(); ++rank)
        result = std::max(result, rank_value(rank, i));
      return result;
    };
    expect_values(stream, max, largest, "max");
  }
}

inline void check_all_gather(Group& group, Stream& stream, DType dtype) {
  constexpr int64_t kRows = 5, kColumns = 3, kPart = kRows * kColumns;
  const auto expected = [](int64_t i) {
    return rank_value(static_cast<int>(i / kPart), i % kPart);
  };
  const Tensor all = unwritten(stream, {group.size() * kRows, kColumns}, dtype);
  group.all_gather(stream, all, rank_tensor(stream, {kRows, kColumns}, dtype, group.rank()));
  expect_values(stream, all, expected, "all_gather");

  const Tensor in_place = unwritten(stream, {group.size() * kRows, kColumns}, dtype);
  const Tensor own = in_place.rows(group.rank() * kRows, (group.rank() + 1) * kRows);
  stream.copy(own, rank_tensor(stream, {kRows, kColumns}, dtype, group.rank()));
  group.all_gather(stream, in_place, own);
  expect_values(stream, in_place, expected, "all_gather in place");
}

inline void check_reduce_scatter(Group& group, Stream& stream, DType dtype) {
  constexpr int64_t kRows = 4, kColumns = 3;
  const int64_t first = group.rank() * kRows * kColumns;
  const auto expected = [&](int64_t i) { return sum_of(group, first + i); };
  const Shape shape{group.size() * kRows, kColumns};
  const Tensor own = unwritten(stream, {kRows, kColumns}, dtype);
  group.reduce_scatter(stream, own, rank_tensor(stream, shape, dtype, group.rank()));
  expect_values(stream, own, expected, "reduce_scatter");

  const Tensor all = rank_tensor(stream, shape, dtype, group.rank());
  const Tensor inside = all.rows(group.rank() * kRows, (group.rank() + 1) * kRows);
  group.reduce_scatter(stream, inside, all);
  expect_values(stream, inside, expected, "reduce_scatter in place");
}

inline void check_broadcast(Group& group, Stream& stream, DType dtype) {
  for (int root = 0; root < group.size(); ++root) {
    const Tensor tensor = rank_tensor(stream, {9}, dtype, group.rank());
    group.broadcast(stream, tensor, root);
    expect_values(
        stream, tensor, [&](int64_t i) { return rank_value(root, i); }, "broadcast");
  }
}

inline void check_all_to_all(Group& group, Stream& stream, DType dtype) {
  constexpr int64_t kColumns = 2;
  // Some ranks send nothing to some.
  const auto rows = [](int from, int to) { return int64_t{(from * 3 + to * 2) % 4}; };
  std::vector<int64_t> send_rows, receive_rows;
  for (int peer = 0; peer < group.size(); ++peer) {
    send_rows.push_back(rows(group.rank(), peer));
    receive_rows.push_back(rows(peer, group.rank()));
  }
  const int64_t sent = std::accumulate(send_rows.begin(), send_rows.end(), int64_t{0});
  const int64_t received = std::accumulate(receive_rows.begin(), receive_rows.end(), int64_t{0});
  const Tensor out = rank_tensor(stream, {sent, kColumns}, dtype, group.rank());
  const Tensor in = unwritten(stream, {received, kColumns}, dtype);
  group.all_to_all(stream, in, receive_rows, out, send_rows);
  std::vector<double> expected;
  for (int from = 0; from < group.size(); ++from) {
    int64_t first = 0;  // row of `from`'s tensor where this rank's rows begin
    for (int to = 0; to < group.rank(); ++to) first += rows(from, to);
    for (int64_t i = 0; i < rows(from, group.rank()) * kColumns; ++i)
      expected.push_back(rank_value(from, first * kColumns + i));
  }
  EXPECT_EQ(read_back_as_double(stream, in), expected);
}

/// Around a ring, even ranks first sending and odd ones first receiving.
inline void check_send_receive(Group& group, Stream& stream, DType dtype) {
  if (group.size() == 1 || group.size() % 2 == 1) return;
  const int next = (group.rank() + 1) % group.size();
  const int previous = (group.rank() + group.size() - 1) % group.size();
  for (int round = 0; round < 3; ++round) {
    const Tensor out = rank_tensor(stream, {5 + round}, dtype, group.rank());
    const Tensor in = unwritten(stream, {5 + round}, dtype);
    if (group.rank() % 2 == 0) {
      group.send(stream, out, next);
      group.receive(stream, in, previous);
    } else {
      group.receive(stream, in, previous);
      group.send(stream, out, next);
    }
    expect_values(
        stream, in, [&](int64_t i) { return rank_value(previous, i); }, "ring");
  }
}

inline void check_empty(Group& group, Stream& stream, DType dtype) {
  const Tensor nothing = unwritten(stream, {0, 3}, dtype);
  const Tensor also_nothing = unwritten(stream, {0, 3}, dtype);
  const std::vector<int64_t> no_rows(static_cast<size_t>(group.size()));
  group.all_reduce(stream, nothing, ReduceOp::Sum);
  group.all_gather(stream, nothing, also_nothing);
  group.reduce_scatter(stream, nothing, also_nothing);
  group.broadcast(stream, nothing, 0);
  group.all_to_all(stream, nothing, no_rows, also_nothing, no_rows);
  const Tensor one = rank_tensor(stream, {1}, dtype, group.rank());
  group.all_reduce(stream, one, ReduceOp::Sum);  // the group is still in step
  expect_values(
      stream, one, [&](int64_t i) { return sum_of(group, i); }, "after empty ones");
}

/// Two groups by parity; the highest rank is in none if there are more than two.
inline void check_split(Group& group, Stream& stream, DType dtype) {
  const bool out = group.size() > 2 && group.rank() == group.size() - 1;
  const std::unique_ptr<Group> part =
      group.split(out ? -1 : group.rank() % 2, concat("parity", group.rank() % 2));
  ASSERT_EQ(part == nullptr, out);
  if (out) return;
  const int members = group.size() > 2 ? group.size() - 1 : group.size();
  EXPECT_EQ(part->size(), (members + 1 - group.rank() % 2) / 2);
  EXPECT_EQ(part->rank(), group.rank() / 2);
  EXPECT_EQ(part->name(), concat("parity", group.rank() % 2));
  const Tensor sum = rank_tensor(stream, {4}, dtype, group.rank());
  part->all_reduce(stream, sum, ReduceOp::Sum);
  const auto expected = [&](int64_t i) {
    double result = 0;
    for (int rank = group.rank() % 2; rank < members; rank += 2) result += rank_value(rank, i);
    return result;
  };
  expect_values(stream, sum, expected, "sum over a part");
}

/// A result made on one stream is used on another one after an event; calls on two streams are
/// matched in call order.
inline void check_streams(Group& group, Stream& stream, DType dtype) {
  const std::unique_ptr<Stream> other = stream.device().make_stream("other");
  for (int round = 0; round < 20; ++round) {
    const Tensor a = rank_tensor(stream, {100}, dtype, group.rank());
    const Tensor b = rank_tensor(*other, {50}, dtype, group.rank());
    group.all_reduce(stream, a, ReduceOp::Sum);
    group.all_reduce(*other, b, ReduceOp::Max);
    const Tensor copy = unwritten(*other, {100}, dtype);
    other->wait(stream.record());
    other->copy(copy, a);
    expect_values(
        *other, copy, [&](int64_t i) { return sum_of(group, i); }, "on the other");
  }
}

inline std::vector<GroupCheck> group_checks() {
  return {{"all_reduce", check_all_reduce},
          {"all_gather", check_all_gather},
          {"reduce_scatter", check_reduce_scatter},
          {"broadcast", check_broadcast},
          {"all_to_all", check_all_to_all},
          {"send_receive", check_send_receive},
          {"empty", check_empty},
          {"split", check_split},
          {"streams", check_streams}};
}

/// "all_reduce_bf16": the name of a test of one check.
inline std::string check_name(const GroupCheck& check, DType dtype) {
  return concat(check.name, '_', name_of(dtype));
}

}  // namespace ferry::testing
