#include "core/comm/thread_group.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <tuple>

#include "core/check.h"
#include "core/stream_cpu.h"

namespace ferry {
namespace {

// What one rank brings to a meeting and takes from it.
struct Part {
  std::string call;  // must be equal on all ranks
  Tensor out, in;
  std::vector<int64_t> out_rows, in_rows;
  int color = 0;
  std::vector<int> members;  // of the new group that a split makes
  int new_group = 0;
  std::string text;
  std::vector<std::string> texts;
};
using Parts = std::vector<Part*>;

// Which meeting: the group, sender and receiver (or -1), and how many of its kind came before.
using MeetingKey = std::tuple<int, int, int, int64_t>;

}  // namespace

class ThreadRoom {
 public:
  explicit ThreadRoom(double timeout_s) : timeout_(timeout_s) {}

  void fail_all(const std::string& reason) {
    std::lock_guard lock(mutex_);
    set_failure(reason);
  }
  int new_group() { return next_group_++; }  // under the lock of a meeting, or before the threads

  /// Waits until `count` parts have come; the last of them runs `body` for all.
  void meet(const MeetingKey& key, int index, int count, Part& part, const std::string& who,
            const std::function<void(Parts&)>& body) {
    std::unique_lock lock(mutex_);
    throw_if_failed(who);
    Meeting& meeting = meetings_[key];
    meeting.parts.resize(static_cast<size_t>(count));
    meeting.parts[static_cast<size_t>(index)] = &part;
    if (++meeting.arrived == count) {
      try {
        for (const Part* other : meeting.parts)
          if (other->call != part.call)
            fail(ExitCode::Internal, "ranks of a group make different calls: '", other->call,
                 "' and '", part.call, "'");
        body(meeting.parts);
      } catch (const std::exception& error) {
        set_failure(error.what());
        throw;
      }
      meeting.done = true;
      changed_.notify_all();
    } else if (!changed_.wait_for(lock, timeout_, [&] { return meeting.done || failed_; })) {
      std::string missing;
      for (size_t i = 0; i < meeting.parts.size(); ++i)
        if (meeting.parts[i] == nullptr) missing += concat(missing.empty() ? "" : ", ", i);
      const std::string text = concat("communication hangs: ", who, " waited ", timeout_.count(),
                                      " s, which is the limit; not there: ", missing);
      set_failure(text);
      fail(ExitCode::Lost, text);
    }
    if (!meeting.done) throw_if_failed(who);
    if (++meeting.left == count) meetings_.erase(key);
  }

 private:
  struct Meeting {
    Parts parts;  // of ranks that wait inside meet()
    int arrived = 0;
    int left = 0;
    bool done = false;
  };

  void set_failure(const std::string& reason) {
    if (!failed_) reason_ = reason;
    failed_ = true;
    changed_.notify_all();
  }
  void throw_if_failed(const std::string& who) const {
    if (failed_) fail(ExitCode::Lost, "communication failed: ", who, ": ", reason_);
  }

  std::chrono::duration<double> timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<MeetingKey, Meeting> meetings_;
  int next_group_ = 0;
  bool failed_ = false;
  std::string reason_;
};

namespace {

// Keys of the control plane, which is no group.
constexpr int kControl = -1;

template <class Body>
void dispatch(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::I32:
      return body.template operator()<int32_t>();
    case DType::I64:
      return body.template operator()<int64_t>();
    case DType::U8:
      return body.template operator()<uint8_t>();
    default:
      return dispatch_float(dtype, body);
  }
}

// Element i of everybody's input, reduced in rank order.
template <class T>
T reduce(const Parts& parts, int64_t i, ReduceOp op) {
  T result = parts[0]->in.data<T>()[i];
  for (size_t rank = 1; rank < parts.size(); ++rank) {
    const T value = parts[rank]->in.data<T>()[i];
    if (op == ReduceOp::Sum)
      result = static_cast<T>(result + value);
    else if (value > result)
      result = value;
  }
  return result;
}

std::byte* element(const Tensor& tensor, int64_t index) {
  return static_cast<std::byte*>(tensor.raw()) +
         index * static_cast<int64_t>(size_of(tensor.dtype()));
}

// memmove: the source may be its own target.
void copy_elements(const Tensor& to, int64_t to_index, const Tensor& from, int64_t from_index,
                   int64_t count) {
  std::memmove(element(to, to_index), element(from, from_index),
               static_cast<size_t>(count) * size_of(to.dtype()));
}

int64_t row_elements(const Tensor& tensor) {
  int64_t elements = 1;
  for (int i = 1; i < tensor.shape().rank(); ++i) elements *= tensor.dim(i);
  return elements;
}

void exchange_rows(Parts& parts) {
  const size_t size = parts.size();
  std::vector<int64_t> sent(size);  // rows that each rank has sent to lower ranks
  for (size_t receiver = 0; receiver < size; ++receiver) {
    const Part& to = *parts[receiver];
    int64_t received = 0;
    for (size_t sender = 0; sender < size; ++sender) {
      const Part& from = *parts[sender];
      const int64_t rows = from.in_rows[receiver];
      if (rows != to.out_rows[sender])
        fail(ExitCode::Internal, "all_to_all: rank ", sender, " sends ", rows, " rows to rank ",
             receiver, ", which expects ", to.out_rows[sender]);
      const int64_t row = row_elements(from.in);
      copy_elements(to.out, received * row, from.in, sent[sender] * row, rows * row);
      received += rows;
      sent[sender] += rows;
    }
  }
}

class ThreadGroup final : public Group {
 public:
  ThreadGroup(std::shared_ptr<ThreadRoom> room, int id, int rank, int size, std::string name)
      : room_(std::move(room)), id_(id), rank_(rank), size_(size), name_(std::move(name)) {
    for (auto& counts : num_messages_) counts.resize(static_cast<size_t>(size));
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::string& name() const override { return name_; }

  void all_reduce(Stream& stream, const Tensor& tensor, ReduceOp op) override {
    const char* call = op == ReduceOp::Sum ? "all_reduce sum" : "all_reduce max";
    collective(stream, call, tensor, tensor, {}, [op](Parts& parts) {
      dispatch(parts[0]->in.dtype(), [&]<class T>() {
        for (int64_t i = 0; i < parts[0]->in.numel(); ++i) {
          const T value = reduce<T>(parts, i, op);
          for (const Part* part : parts) part->out.data<T>()[i] = value;
        }
      });
    });
  }

  void all_gather(Stream& stream, const Tensor& all, const Tensor& own) override {
    check_all_gather(all, own);
    collective(stream, "all_gather", all, own, {}, [](Parts& parts) {
      const int64_t numel = parts[0]->in.numel();
      for (const Part* to : parts)
        for (size_t from = 0; from < parts.size(); ++from)
          copy_elements(to->out, static_cast<int64_t>(from) * numel, parts[from]->in, 0, numel);
    });
  }

  void reduce_scatter(Stream& stream, const Tensor& own, const Tensor& all) override {
    check_reduce_scatter(own, all);
    collective(stream, "reduce_scatter", own, all, {}, [](Parts& parts) {
      dispatch(parts[0]->in.dtype(), [&]<class T>() {
        int64_t next = 0;
        for (const Part* to : parts)
          for (int64_t i = 0; i < to->out.numel(); ++i, ++next)
            to->out.data<T>()[i] = reduce<T>(parts, next, ReduceOp::Sum);
      });
    });
  }

  void broadcast(Stream& stream, const Tensor& tensor, int root) override {
    check_rank(root);
    collective(stream, concat("broadcast from ", root), tensor, tensor, {}, [root](Parts& parts) {
      const Tensor& from = parts[static_cast<size_t>(root)]->in;
      for (const Part* to : parts) copy_elements(to->out, 0, from, 0, from.numel());
    });
  }

  void all_to_all(Stream& stream, const Tensor& receive, std::span<const int64_t> receive_rows,
                  const Tensor& send, std::span<const int64_t> send_rows) override {
    check_all_to_all(receive, receive_rows, send, send_rows);
    Part part;
    part.out_rows.assign(receive_rows.begin(), receive_rows.end());
    part.in_rows.assign(send_rows.begin(), send_rows.end());
    check_rows(receive, part.out_rows);
    check_rows(send, part.in_rows);
    collective(stream, "all_to_all", receive, send, std::move(part), exchange_rows);
  }

  void send(Stream& stream, const Tensor& tensor, int peer) override {
    check_rank(peer);
    Part part{.call = concat("message of ", tensor.numel(), ' ', name_of(tensor.dtype())),
              .in = tensor};
    const MeetingKey key{id_, rank_, peer, num_messages_[0][static_cast<size_t>(peer)]++};
    enqueue(stream, key, 0, 2, std::move(part), what("send", tensor), pass_message);
  }

  void receive(Stream& stream, const Tensor& tensor, int peer) override {
    check_rank(peer);
    Part part{.call = concat("message of ", tensor.numel(), ' ', name_of(tensor.dtype())),
              .out = tensor};
    const MeetingKey key{id_, peer, rank_, num_messages_[1][static_cast<size_t>(peer)]++};
    enqueue(stream, key, 1, 2, std::move(part), what("receive", tensor), pass_message);
  }

  std::unique_ptr<Group> split(int color, const std::string& name) override {
    Part part{.call = "split", .color = color};
    room_->meet(next_key(), rank_, size_, part, concat("split of group ", name_, " rank ", rank_),
                [this](Parts& parts) {
                  std::map<int, int> group_of;
                  for (Part* own : parts) {
                    for (size_t rank = 0; rank < parts.size(); ++rank)
                      if (parts[rank]->color == own->color)
                        own->members.push_back(static_cast<int>(rank));
                    const auto [group, is_new] = group_of.emplace(own->color, 0);
                    if (is_new) group->second = room_->new_group();
                    own->new_group = group->second;
                  }
                });
    if (color < 0) return nullptr;
    const auto own = std::find(part.members.begin(), part.members.end(), rank_);
    return std::make_unique<ThreadGroup>(room_, part.new_group,
                                         static_cast<int>(own - part.members.begin()),
                                         static_cast<int>(part.members.size()), name);
  }

 private:
  static void pass_message(Parts& parts) {
    copy_elements(parts[1]->out, 0, parts[0]->in, 0, parts[0]->in.numel());
  }

  void check_rank(int rank) const {
    CHECK(rank >= 0 && rank < size_, "group ", name_, " has no rank ", rank);
  }

  static void check_rows(const Tensor& tensor, const std::vector<int64_t>& rows) {
    int64_t total = 0;
    for (const int64_t count : rows) {
      CHECK(count >= 0, "all_to_all: ", count, " rows for a rank");
      total += count;
    }
    CHECK(total * row_elements(tensor) <= tensor.numel(), "all_to_all: counts exceed ",
          tensor.shape());
  }

  std::string what(const std::string& op, const Tensor& tensor) const {
    return concat(op, " on group ", name_, " rank ", rank_, '/', size_, " of ", tensor.bytes(),
                  " bytes");
  }

  MeetingKey next_key() { return {id_, -1, -1, num_collectives_++}; }

  void collective(Stream& stream, const std::string& call, const Tensor& out, const Tensor& in,
                  Part part, std::function<void(Parts&)> body) {
    // The counts of an all_to_all differ between ranks, those of all others do not.
    const bool equal_sizes = part.in_rows.empty();
    part.call =
        concat(call, " of ", equal_sizes ? concat(in.numel(), ' ') : "", name_of(in.dtype()));
    part.out = out;
    part.in = in;
    enqueue(stream, next_key(), rank_, size_, std::move(part), what(call, in), std::move(body));
  }

  void enqueue(Stream& stream, const MeetingKey& key, int index, int count, Part part,
               const std::string& who, std::function<void(Parts&)> body) {
    enqueue_cpu(stream, [room = room_, key, index, count, part = std::move(part), who,
                         body = std::move(body)]() mutable {
      room->meet(key, index, count, part, who, body);
    });
  }

  std::shared_ptr<ThreadRoom> room_;
  int id_;
  int rank_;
  int size_;
  std::string name_;
  int64_t num_collectives_ = 0;
  std::array<std::vector<int64_t>, 2> num_messages_;  // sent and received, for each peer
};

class ThreadControl final : public Control {
 public:
  ThreadControl(ThreadRoom& room, int id, int rank, int size)
      : room_(room), id_(id), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void barrier(const std::string& what) override {
    meet("barrier", what, {}, [](Parts&) {});
  }

  std::vector<std::string> gather(const std::string& text, int root,
                                  const std::string& what) override {
    return meet(concat("gather to ", root), what, text,
                [root](Parts& parts) {
                  for (const Part* part : parts)
                    parts[static_cast<size_t>(root)]->texts.push_back(part->text);
                })
        .texts;
  }

  std::string broadcast(const std::string& text, int root, const std::string& what) override {
    return meet(concat("broadcast from ", root), what, text,
                [root](Parts& parts) {
                  for (Part* part : parts) part->text = parts[static_cast<size_t>(root)]->text;
                })
        .text;
  }

  std::unique_ptr<Control> make_another(const std::string& name) {
    const int id = meet("another control plane", name, {}, [this](Parts& parts) {
                     const int group = room_.new_group();
                     for (Part* part : parts) part->new_group = group;
                   }).new_group;
    return std::make_unique<ThreadControl>(room_, id, rank_, size_);
  }

 private:
  Part meet(const std::string& call, const std::string& what, const std::string& text,
            const std::function<void(Parts&)>& body) {
    Part part{.call = call, .text = text};
    room_.meet({id_, -1, -1, num_calls_++}, rank_, size_, part,
               concat(call, " '", what, "' on rank ", rank_, '/', size_), body);
    return part;
  }

  ThreadRoom& room_;
  int id_;  // kControl, or one that no group has
  int rank_;
  int size_;
  int64_t num_calls_ = 0;
};

}  // namespace

ThreadWorld::ThreadWorld(int size, double timeout_s)
    : room_(std::make_shared<ThreadRoom>(timeout_s)) {
  CHECK(size >= 1, "a world of ", size, " ranks");
  const int id = room_->new_group();
  CHECK(id == 0, "the world is the first group");
  for (int rank = 0; rank < size; ++rank)
    controls_.push_back(std::make_unique<ThreadControl>(*room_, kControl, rank, size));
}

ThreadWorld::~ThreadWorld() = default;

std::unique_ptr<Group> ThreadWorld::group(int rank) {
  CHECK(rank >= 0 && rank < size(), "rank ", rank, " of ", size());
  return std::make_unique<ThreadGroup>(room_, 0, rank, size(), "world");
}

Control& ThreadWorld::control(int rank) {
  CHECK(rank >= 0 && rank < size(), "rank ", rank, " of ", size());
  return *controls_[static_cast<size_t>(rank)];
}

std::unique_ptr<Control> ThreadWorld::make_control(int rank, const std::string& name) {
  return dynamic_cast<ThreadControl&>(control(rank)).make_another(name);
}

void ThreadWorld::fail_all(const std::string& reason) { room_->fail_all(reason); }

}  // namespace ferry
