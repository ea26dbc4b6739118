#pragma once

// What the tape holds between forward and backward.

#include <map>
#include <string>

#include "core/allocator.h"
#include "core/module.h"
#include "tests/support/gradients.h"

namespace ferry::testing {

/// Bytes on the device after forward, by the module that they belong to; modules without are left
/// out. Backward runs, too, and must leave nothing.
inline std::map<std::string, int64_t> saved_bytes(Stream& stream, Module& module, const Tensor& x,
                                                  const Tensor& dy, const ModuleRun& run,
                                                  TapePolicy* policy = nullptr) {
  std::map<std::string, int64_t> bytes;
  MemoryLedger ledger;
  StepTotals totals;
  Tape tape(run.training ? Tape::Mode::Record : Tape::Mode::Off, policy, &ledger);
  Pass pass(stream, tape, run.batch, totals, run.key, run.training);
  module.forward(pass, x);
  for (const MemoryLedger::Usage& usage : ledger.table())
    if (usage.current > 0) bytes[usage.name] = usage.current;
  if (run.training) module.backward(pass, dy);
  EXPECT_EQ(ledger.current(), 0);
  stream.synchronize();
  return bytes;
}

inline int64_t sum_of(const std::map<std::string, int64_t>& bytes) {
  int64_t sum = 0;
  for (const auto& [name, own] : bytes) sum += own;
  return sum;
}

}  // namespace ferry::testing
