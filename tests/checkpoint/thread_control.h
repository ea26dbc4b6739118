#pragma once

// Ranks as threads of one process: a Control for tests.

#include <barrier>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "core/comm/control.h"

namespace ferry::testing {

/// What the ranks share.
struct ThreadRoom {
  explicit ThreadRoom(int size) : barrier(size), texts(static_cast<size_t>(size)) {}
  std::barrier<> barrier;
  std::vector<std::string> texts;
};

class ThreadControl final : public Control {
 public:
  ThreadControl(ThreadRoom& room, int rank) : room_(room), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(room_.texts.size()); }
  void barrier(const std::string&) override { room_.barrier.arrive_and_wait(); }

  std::vector<std::string> gather(const std::string& text, int root, const std::string&) override {
    room_.texts[static_cast<size_t>(rank_)] = text;
    room_.barrier.arrive_and_wait();
    std::vector<std::string> all;
    if (rank_ == root) all = room_.texts;
    room_.barrier.arrive_and_wait();
    return all;
  }

  std::string broadcast(const std::string& text, int root, const std::string&) override {
    if (rank_ == root) room_.texts[static_cast<size_t>(root)] = text;
    room_.barrier.arrive_and_wait();
    std::string result = room_.texts[static_cast<size_t>(root)];
    room_.barrier.arrive_and_wait();
    return result;
  }

 private:
  ThreadRoom& room_;
  int rank_;
};

/// Runs body(control) on `size` ranks; returns what each of them threw as text ("" for nothing).
inline std::vector<std::string> run_ranks(int size, const std::function<void(Control&)>& body) {
  ThreadRoom room(size);
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadControl control(room, rank);
      try {
        body(control);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

}  // namespace ferry::testing
