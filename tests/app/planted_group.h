#pragma once

// A group of ranks with a mistake in it, to show that a test notices one. On the CPU.

#include <memory>
#include <string>
#include <utility>

#include "core/comm/group.h"
#include "core/stream_cpu.h"

namespace ferry::testing {

enum class Mistake {
  None,
  SkipSum,       // sums of numbers are not made: each rank keeps its own
  DoubleSum,     // sums of numbers come out twice as large
  AverageSum,    // sums of numbers are divided by the ranks
  SkipCounts,    // sums of integers are not made
  SpoilGather,   // the last element that all_gather brings is its first
  RotateGather,  // what all_gather brings is in the place of the next rank
  RotateScatter  // reduce_scatter brings the part of the next rank
};

/// Makes a mistake in the groups of one axis, which MeshGroups makes from this one by split; in
/// itself if the axis is "world".
class PlantedGroup final : public Group {
 public:
  /// `group` outlives this.
  PlantedGroup(Group& group, std::string axis, Mistake mistake)
      : group_(group), axis_(std::move(axis)), mistake_(mistake) {}

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  const std::string& name() const override { return group_.name(); }

  void all_reduce(Stream& stream, const Tensor& tensor, ReduceOp op) override {
    const Mistake now = current();
    const bool counts = tensor.dtype() == DType::I32 || tensor.dtype() == DType::I64;
    if (counts ? now == Mistake::SkipCounts : now == Mistake::SkipSum) return;
    group_.all_reduce(stream, tensor, op);
    if (!counts) scale(stream, tensor);
  }

  void all_gather(Stream& stream, const Tensor& all, const Tensor& own) override {
    const Mistake now = current();
    if (now != Mistake::RotateGather) {
      group_.all_gather(stream, all, own);
      const Tensor flat = all.reshape({all.numel()});
      if (now == Mistake::SpoilGather)
        stream.copy(flat.rows(all.numel() - 1, all.numel()), flat.rows(0, 1));
      return;
    }
    const Tensor gathered = Tensor::empty(stream, "planted", all.shape(), all.dtype());
    group_.all_gather(stream, gathered, own);
    for (int i = 0; i < size(); ++i) stream.copy(part(all, (i + 1) % size()), part(gathered, i));
  }

  void reduce_scatter(Stream& stream, const Tensor& own, const Tensor& all) override {
    const Mistake now = current();
    if (now == Mistake::SkipSum) return stream.copy(own, part(all, rank()));
    if (now == Mistake::RotateScatter) {
      group_.all_reduce(stream, all, ReduceOp::Sum);
      return stream.copy(own, part(all, (rank() + 1) % size()));
    }
    group_.reduce_scatter(stream, own, all);
    scale(stream, own);
  }

  void broadcast(Stream& stream, const Tensor& tensor, int root) override {
    group_.broadcast(stream, tensor, root);
  }
  void all_to_all(Stream& stream, const Tensor& receive, std::span<const int64_t> receive_rows,
                  const Tensor& send, std::span<const int64_t> send_rows) override {
    group_.all_to_all(stream, receive, receive_rows, send, send_rows);
  }
  void send(Stream& stream, const Tensor& tensor, int peer) override {
    group_.send(stream, tensor, peer);
  }
  void receive(Stream& stream, const Tensor& tensor, int peer) override {
    group_.receive(stream, tensor, peer);
  }

  std::unique_ptr<Group> split(int color, const std::string& name) override {
    std::unique_ptr<Group> made = group_.split(color, name);
    if (!name.starts_with(axis_ + '[') || made == nullptr) return made;
    auto planted = std::make_unique<PlantedGroup>(*made, axis_, mistake_);
    planted->is_planted_ = true;
    planted->owned_ = std::move(made);
    return planted;
  }

 private:
  Mistake current() const { return is_planted_ || axis_ == "world" ? mistake_ : Mistake::None; }

  // Part `i` of what has a part for every rank.
  Tensor part(const Tensor& all, int i) const {
    return all.reshape({size(), all.numel() / size()}).rows(i, i + 1);
  }

  void scale(Stream& stream, const Tensor& tensor) const {
    const Mistake now = current();
    if (now != Mistake::DoubleSum && now != Mistake::AverageSum) return;
    const double factor = now == Mistake::DoubleSum ? 2 : 1.0 / size();
    enqueue_cpu(stream, [tensor, factor] {
      dispatch_float(tensor.dtype(), [&]<class T>() {
        for (int64_t i = 0; i < tensor.numel(); ++i)
          tensor.data<T>()[i] = static_cast<T>(tensor.data<T>()[i] * factor);
      });
    });
  }

  Group& group_;
  std::unique_ptr<Group> owned_;  // in what split made: the group
  std::string axis_;
  Mistake mistake_;
  bool is_planted_ = false;
};

}  // namespace ferry::testing
