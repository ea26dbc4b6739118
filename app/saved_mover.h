#pragma once

// What moves tensors of a SavedTape: the policies of offload/ on sizes instead of tensors. One
// object for one pass, told of the same things in the same order as a TapePolicy.

#include <span>

#include "app/saved_tape.h"

namespace ferry {

class SavedMover {
 public:
  virtual ~SavedMover() = default;
  /// The records of this layer (-1: the head) follow.
  virtual void entering(int64_t /*layer*/) {}
  /// The record is on the tape.
  virtual void saved(const RecordCost&) {}
  virtual void forward_done() {}
  /// The record is about to be loaded.
  virtual void loading(const RecordCost&) {}
  virtual void backward_done() {}
};

/// Saves all records of a pass; `movers` are told.
inline void save_pass(const PassRecords& costs, SavedTape& tape,
                      std::span<SavedMover* const> movers) {
  const RecordCost* previous = nullptr;
  for (const RecordCost& record : costs.records) {
    if (previous == nullptr || previous->layer != record.layer)
      for (SavedMover* mover : movers) mover->entering(record.layer);
    tape.save(record);
    for (SavedMover* mover : movers) mover->saved(record);
    tape.drop_rebuilt();
    previous = &record;
  }
  for (SavedMover* mover : movers) mover->forward_done();
}

/// Loads them.
inline void load_pass(SavedTape& tape, std::span<SavedMover* const> movers) {
  while (!tape.empty()) {
    for (SavedMover* mover : movers) mover->loading(tape.newest());
    tape.load();
  }
  for (SavedMover* mover : movers) mover->backward_done();
}

}  // namespace ferry
