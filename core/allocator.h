#pragma once

// Who holds how much memory. Every allocation has a name; a MemoryLedger keeps current and peak
// bytes per name and in total, and prints the table that the first screen of a run shows.

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace ferry {

class MemoryLedger {
 public:
  struct Usage {
    std::string name;
    int64_t current = 0;  // bytes
    int64_t peak = 0;     // bytes, of this name alone
  };

  void add(std::string_view name, int64_t bytes);
  void remove(std::string_view name, int64_t bytes);

  int64_t current() const;
  /// The largest sum over all names so far (or since reset_peak), in bytes.
  int64_t peak() const;
  void reset_peak();
  /// Largest peak first.
  std::vector<Usage> table() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, Usage, std::less<>> by_name_;
  int64_t current_ = 0;
  int64_t peak_ = 0;
};

}  // namespace ferry
