#include "core/allocator.h"

#include <algorithm>

#include "core/check.h"

namespace ferry {

void MemoryLedger::add(std::string_view name, int64_t bytes) {
  std::lock_guard lock(mutex_);
  auto found = by_name_.find(name);
  if (found == by_name_.end())
    found = by_name_.emplace(std::string(name), Usage{std::string(name), 0, 0}).first;
  Usage& usage = found->second;
  usage.current += bytes;
  usage.peak = std::max(usage.peak, usage.current);
  current_ += bytes;
  peak_ = std::max(peak_, current_);
}

void MemoryLedger::remove(std::string_view name, int64_t bytes) {
  std::lock_guard lock(mutex_);
  const auto found = by_name_.find(name);
  CHECK(found != by_name_.end() && found->second.current >= bytes, "'", name, "' frees ", bytes,
        " bytes that it does not hold");
  found->second.current -= bytes;
  current_ -= bytes;
}

int64_t MemoryLedger::current() const {
  std::lock_guard lock(mutex_);
  return current_;
}

int64_t MemoryLedger::peak() const {
  std::lock_guard lock(mutex_);
  return peak_;
}

void MemoryLedger::reset_peak() {
  std::lock_guard lock(mutex_);
  peak_ = current_;
  for (auto& [name, usage] : by_name_) usage.peak = usage.current;
}

std::vector<MemoryLedger::Usage> MemoryLedger::table() const {
  std::vector<Usage> rows;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [name, usage] : by_name_) rows.push_back(usage);
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Usage& a, const Usage& b) { return a.peak > b.peak; });
  return rows;
}

}  // namespace ferry
