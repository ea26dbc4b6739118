#pragma once

// A group that says which collectives are called on it, or makes them wait.

#include <functional>
#include <memory>
#include <string>

#include "core/comm/group.h"

namespace ferry::testing {

class WatchedGroup final : public Group {
 public:
  /// Called before each collective: its stream, its name and its output.
  using Watch = std::function<void(Stream&, const std::string& call, const Tensor& out)>;
  /// Called with what the exchanges of experts send.
  using WatchSent = std::function<void(const Tensor& in)>;
  WatchedGroup(
      Group& inner, Watch watch, WatchSent watch_sent = [](const Tensor&) {})
      : inner_(inner), watch_(std::move(watch)), watch_sent_(std::move(watch_sent)) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  const std::string& name() const override { return inner_.name(); }
  void all_reduce(Stream& stream, const Tensor& tensor, ReduceOp op) override {
    watch_(stream, "all_reduce", tensor);
    inner_.all_reduce(stream, tensor, op);
  }
  void all_gather(Stream& stream, const Tensor& all, const Tensor& own) override {
    watch_(stream, "all_gather", all);
    watch_sent_(own);
    inner_.all_gather(stream, all, own);
  }
  void reduce_scatter(Stream& stream, const Tensor& own, const Tensor& all) override {
    watch_(stream, "reduce_scatter", own);
    watch_sent_(all);
    inner_.reduce_scatter(stream, own, all);
  }
  void broadcast(Stream& stream, const Tensor& tensor, int root) override {
    watch_(stream, "broadcast", tensor);
    inner_.broadcast(stream, tensor, root);
  }
  void all_to_all(Stream& stream, const Tensor& receive, std::span<const int64_t> receive_rows,
                  const Tensor& send, std::span<const int64_t> send_rows) override {
    watch_(stream, "all_to_all", receive);
    watch_sent_(send);
    inner_.all_to_all(stream, receive, receive_rows, send, send_rows);
  }
  void send(Stream& stream, const Tensor& tensor, int peer) override {
    watch_(stream, "send", tensor);
    inner_.send(stream, tensor, peer);
  }
  void receive(Stream& stream, const Tensor& tensor, int peer) override {
    watch_(stream, "receive", tensor);
    inner_.receive(stream, tensor, peer);
  }
  std::unique_ptr<Group> split(int color, const std::string& name) override {
    return inner_.split(color, name);
  }

 private:
  Group& inner_;
  Watch watch_;
  WatchSent watch_sent_;
};

}  // namespace ferry::testing
