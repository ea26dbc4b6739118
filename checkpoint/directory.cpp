#include "checkpoint/directory.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "checkpoint/agreement.h"
#include "checkpoint/preflight.h"
#include "checkpoint/run_id.h"
#include "core/check.h"

namespace ferry {
namespace {

constexpr std::string_view kEpochPrefix = "EPOCH.";

bool is_number(std::string_view text) {
  return !text.empty() && text.size() <= 18 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// The number in "prefix NUMBER suffix".
std::optional<int64_t> number_between(std::string_view name, std::string_view prefix,
                                      std::string_view suffix) {
  if (name.size() < prefix.size() + suffix.size() || !name.starts_with(prefix) ||
      !name.ends_with(suffix)) {
    return std::nullopt;
  }
  const std::string_view middle =
      name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
  if (!is_number(middle)) return std::nullopt;
  return std::stoll(std::string(middle));
}

/// The parts of "step-STEP.aATTEMPT" + suffix.
struct Owned {
  int64_t step = 0;
  int64_t attempt = 0;
};
std::optional<Owned> parse_owned(const std::string& name, std::string_view suffix) {
  const size_t middle = std::min(name.find(".a"), name.size());
  const auto step = step_of_directory(name.substr(0, middle));
  const auto attempt = number_between(name.substr(middle), ".a", suffix);
  if (!step || !attempt) return std::nullopt;
  return Owned{*step, *attempt};
}

int64_t newest_attempt(FileSystem& file_system, const Path& folder) {
  int64_t newest = 0;
  for (const DirectoryEntry& entry : file_system.list(folder)) {
    newest = std::max(newest, number_between(entry.name, kEpochPrefix, "").value_or(0));
  }
  return newest;
}

std::string epoch_name(int64_t attempt) { return fmt::format("{}{:06}", kEpochPrefix, attempt); }

/// Removes or restores what attempts before this one left in RUN/ckpt.
void clean_up(FileSystem& file_system, const Path& folder, Attempt& attempt) {
  for (const DirectoryEntry& entry : file_system.list(folder)) {
    const auto epoch = number_between(entry.name, kEpochPrefix, "");
    if (epoch && *epoch < attempt.number) file_system.remove_file(folder / entry.name);
    if (!entry.is_directory) continue;
    const auto temporary = parse_owned(entry.name, ".tmp");
    if (temporary && temporary->attempt < attempt.number) {
      remove_tree(file_system, folder / entry.name);
      attempt.removed.push_back(entry.name);
    }
    const auto aside = parse_owned(entry.name, ".aside");
    if (!aside || aside->attempt >= attempt.number) continue;
    const std::string name = step_directory_name(aside->step);
    if (file_system.exists(folder / name)) {
      remove_tree(file_system, folder / entry.name);
      attempt.removed.push_back(entry.name);
    } else {
      file_system.rename(folder / entry.name, folder / name);
      attempt.restored.push_back(name);
    }
  }
  file_system.sync_directory(folder);
}

}  // namespace

Path checkpoint_folder(const Path& run_dir) { return run_dir / "ckpt"; }
Path latest_file(const Path& run_dir) { return run_dir / "LATEST"; }
Path trash_folder(const Path& run_dir) { return checkpoint_folder(run_dir) / "trash"; }

std::string step_directory_name(int64_t step) { return fmt::format("step-{:08}", step); }

std::string temporary_directory_name(int64_t step, int64_t attempt) {
  return fmt::format("step-{:08}.a{}.tmp", step, attempt);
}

std::string aside_directory_name(int64_t step, int64_t attempt) {
  return fmt::format("step-{:08}.a{}.aside", step, attempt);
}

std::string shard_file_name(int rank) { return fmt::format("shard-{:05}.h5", rank); }

bool is_checkpoint_file(const std::string& name) {
  if (name == kGlobalFileName) return true;
  const auto rank = number_between(name, "shard-", ".h5");
  return rank && *rank < 1'000'000 && name == shard_file_name(static_cast<int>(*rank));
}

std::optional<int64_t> step_of_directory(const std::string& name) {
  const auto step = number_between(name, "step-", "");
  return step && name == step_directory_name(*step) ? step : std::nullopt;
}

std::optional<int64_t> attempt_of_temporary(const std::string& name) {
  const auto owned = parse_owned(name, ".tmp");
  return owned ? std::optional(owned->attempt) : std::nullopt;
}

std::vector<int64_t> list_steps(FileSystem& file_system, const Path& run_dir) {
  std::vector<int64_t> steps;
  const Path folder = checkpoint_folder(run_dir);
  if (!file_system.exists(folder)) return steps;
  for (const DirectoryEntry& entry : file_system.list(folder)) {
    const auto step = step_of_directory(entry.name);
    if (step && entry.is_directory) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

Attempt begin_attempt(const Path& run_dir, Control& control, FileSystem& file_system) {
  const std::string outcome = decide_on_root(control, "begin a checkpoint attempt", [&] {
    const Path folder = checkpoint_folder(run_dir);
    make_directories(file_system, folder);
    const int64_t number = newest_attempt(file_system, folder) + 1;
    // The exclusive creation is the fence: two starts can never get the same number.
    write_text(file_system, folder / epoch_name(number), fmt::format("pid {}\n", ::getpid()));
    file_system.sync_directory(folder);

    Attempt attempt;
    attempt.number = number;
    clean_up(file_system, folder, attempt);
    const Path probed = folder / temporary_directory_name(0, number);
    file_system.make_directory(probed);
    probe_storage(file_system, probed);
    file_system.remove_directory(probed);
    return nlohmann::json{{"number", number},
                          {"removed", attempt.removed},
                          {"restored", attempt.restored},
                          {"run", make_run_id(file_system, run_dir, number)},
                          {"notices", storage_notices(file_system.status(folder).type, folder)}}
        .dump();
  });
  const auto json = nlohmann::json::parse(outcome);
  return {json.at("number"), json.at("removed"), json.at("restored"), json.at("run"),
          json.at("notices")};
}

void require_newest_attempt(FileSystem& file_system, const Path& run_dir, int64_t attempt) {
  const int64_t newest = newest_attempt(file_system, checkpoint_folder(run_dir));
  if (newest == attempt) return;
  fail(ExitCode::Storage, "attempt ", attempt, " may not save to ", run_dir.native(), ": attempt ",
       newest, " of this run has started since; stop one of the two, or give it another run.dir");
}

}  // namespace ferry
