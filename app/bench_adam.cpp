#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "app/adam_rates.h"
#include "app/bench.h"
#include "app/gib.h"
#include "app/host_memory.h"
#include "app/version.h"

namespace ferry {
namespace {

constexpr int64_t kMib = 1 << 20;

// 0 if the system does not say.
int64_t last_level_cache_bytes() {
  return std::max({sysconf(_SC_LEVEL2_CACHE_SIZE), sysconf(_SC_LEVEL3_CACHE_SIZE),
                   sysconf(_SC_LEVEL4_CACHE_SIZE), 0L});
}

std::string machine_text(const Backend& backend, const AdamRates& rates) {
  int threads = 0;
  for (const AdamRow& row : rates.rows) threads = std::max(threads, row.threads);
  std::string text =
      fmt::format("{}, {} threads", version_json()["cpu"]["model"].get<std::string>(), threads);
  if (backend.on_gpu()) text += ", " + backend.device().name();
  return text;
}

void print_table(const AdamRates& rates, int64_t elements, const std::string& machine) {
  std::cout << fmt::format(
      "{}\n{} elements, {} MiB; last-level cache {} MiB; best read {:.1f}, copy {:.1f}, triad "
      "{:.1f} GB/s\nceiling of adamw and sgd: their pattern, the same accesses without the "
      "arithmetic\n{:<28} {:>7} {:>8} {:>10} {:>10} {:>8} {:>8} {:>10} {:>8} {:>8}\n",
      machine, elements, elements * kUpdateArrayBytes / kMib, last_level_cache_bytes() / kMib,
      rates.read / 1e9, rates.copy / 1e9, rates.triad / 1e9, "name", "threads", "vectors",
      "median ms", "fastest ms", "Gparam/s", "GB/s", "of ceiling", "D2H GB/s", "H2D GB/s");
  const auto optional = [](double value, int digits) {
    return value > 0 ? fmt::format("{:.{}f}", value, digits) : std::string("-");
  };
  for (const AdamRow& row : rates.rows)
    std::cout << fmt::format(
        "{:<28} {:>7} {:>8} {:>10.2f} {:>10.2f} {:>8} {:>8.1f} {:>9.1f}% {:>8} {:>8}\n", row.name,
        optional(row.threads, 0), row.vectors.empty() ? "-" : row.vectors, 1e3 * row.times.median,
        1e3 * row.times.fastest, optional(row.is_update ? row.elements_per_s() / 1e9 : 0, 3),
        row.rate() / 1e9, 100 * row.rate() / row.ceiling, optional(row.d2h / 1e9, 1),
        optional(row.h2d / 1e9, 1));
}

void print_json(const AdamRates& rates, const std::string& machine, const std::string& command) {
  for (const AdamRow& row : rates.rows) {
    const bool on_host = row.threads > 0;
    nlohmann::ordered_json object = {{"bench", "adam"}, {"config", "none"}, {"name", row.name}};
    if (on_host) object["threads"] = row.threads;
    if (on_host) object["vectors"] = row.vectors;
    object["elements"] = row.elements;
    object["bytes_per_element"] = row.bytes_per_element;
    add_times(object, row.times);
    if (row.is_update) object["gparam_per_s"] = row.elements_per_s() / 1e9;
    object["gb_per_s"] = row.rate() / 1e9;
    object["of_ceiling"] = row.rate() / row.ceiling;
    object["ceiling_gb_per_s"] = row.ceiling / 1e9;
    if (on_host) {
      object["of_read"] = row.rate() / rates.read;
      object["of_copy"] = row.rate() / rates.copy;
      object["of_triad"] = row.rate() / rates.triad;
    }
    if (row.d2h > 0) object["d2h_gb_per_s"] = row.d2h / 1e9;
    if (row.h2d > 0) object["h2d_gb_per_s"] = row.h2d / 1e9;
    add_origin(object, machine, command);
    std::cout << object.dump() << "\n";
  }
}

}  // namespace

ExitCode bench_adam(Runtime& runtime, int64_t elements, bool json, const std::string& command) {
  if (runtime.size() > 1)
    fail(ExitCode::Usage, "error: ferry bench adam runs on one rank, not ", runtime.size(),
         "\n  why : it measures the memory of a host, which ranks would share\n  try : ", command);
  const int64_t free_bytes = available_host_memory().available;
  if (elements == 0) elements = chosen_elements(last_level_cache_bytes(), free_bytes);
  if (elements > free_bytes / kUpdateArrayBytes)
    fail(ExitCode::Resource,
         fmt::format("error: --elements {} takes {} bytes of host memory each; {:.1f} GiB are "
                     "free\n  why : value, master, two moments and the gradient\n  try : at most "
                     "{}, or leave it out for a size that fits",
                     elements, kUpdateArrayBytes, gib(free_bytes),
                     free_bytes / 2 / kUpdateArrayBytes));
  Backend backend = choose_backend("auto", "bf16", runtime);
  const AdamRates rates = measure_adam(backend, elements);
  const std::string machine = machine_text(backend, rates);
  if (json)
    print_json(rates, machine, command);
  else
    print_table(rates, elements, machine);
  std::cout << std::flush;
  return ExitCode::Done;
}

}  // namespace ferry
