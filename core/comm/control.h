#pragma once

// The control plane of a job: small host messages between ranks, apart from the collectives on
// tensors (core/comm/group.h). Used for start-up agreement, checkpoints and stopping together.

#include <string>
#include <vector>

namespace ferry {

class Control {
 public:
  virtual ~Control() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Every call blocks the calling thread until all ranks have made the same call in the same
  /// order, or until the deadline of the implementation: then Error(ExitCode::Lost) names `what`.
  virtual void barrier(const std::string& what) = 0;
  /// Rank `root` gets everybody's text in rank order; the others get an empty vector.
  virtual std::vector<std::string> gather(const std::string& text, int root,
                                          const std::string& what) = 0;
  /// Returns the root's text on every rank.
  virtual std::string broadcast(const std::string& text, int root, const std::string& what) = 0;
};

/// The control plane of a job of one rank.
class SoloControl final : public Control {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void barrier(const std::string&) override {}
  std::vector<std::string> gather(const std::string& text, int, const std::string&) override {
    return {text};
  }
  std::string broadcast(const std::string& text, int, const std::string&) override { return text; }
};

}  // namespace ferry
