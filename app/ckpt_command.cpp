#include "app/ckpt_command.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/directory.h"
#include "checkpoint/latest.h"
#include "checkpoint/reader.h"
#include "core/check.h"
#include "core/comm/control.h"

namespace ferry {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string directory;
  bool as_json = false;
};

bool is_checkpoint(const Path& directory) {
  return posix_file_system().exists(directory / kManifestFileName);
}

/// The path as named, without a slash at its end.
Path directory_of(const Options& options) {
  Path path = options.directory;
  if (!path.has_filename() && path.has_relative_path()) path = path.parent_path();
  if (!posix_file_system().exists(path)) {
    fail(ExitCode::Storage, options.directory,
         " does not exist: name a run directory or a checkpoint");
  }
  return path;
}

/// RUN for RUN and for RUN/ckpt.
Path run_directory(const Path& path) {
  return path.filename() == "ckpt" ? path.parent_path() : path;
}

/// The checkpoint itself, or the newest of a run that verifies; rejected ones are named on stderr.
Checkpoint find_checkpoint(const Options& options) {
  const Path path = directory_of(options);
  const std::string name = path.filename();
  if (is_checkpoint(path) || step_of_directory(name) || attempt_of_temporary(name)) {
    return Checkpoint::open(path);
  }
  SoloControl control;
  Latest latest = find_latest(run_directory(path), control);
  for (const Rejected& rejected : latest.rejected) {
    fmt::print(stderr, "rejected {}: {}\n", rejected.directory.native(), rejected.reason);
  }
  if (!latest.checkpoint) {
    fail(ExitCode::Storage, path.native(), " holds no ", latest.rejected.empty() ? "" : "intact ",
         "checkpoint: name a run directory (the one with ckpt/ in it) or a checkpoint (step-...)");
  }
  return *std::move(latest.checkpoint);
}

std::string parent_text(const Manifest& manifest) {
  if (!manifest.parent) return "none";
  return fmt::format("step {} {}", manifest.parent->step, manifest.parent->root);
}

void list_one(const Path& directory) {
  try {
    const Checkpoint checkpoint = Checkpoint::open(directory);
    const Manifest& manifest = checkpoint.manifest();
    fmt::print("{:>10}  {:>12.3f}  {:>5}  {}  {:.16}  {}\n", manifest.step,
               static_cast<double>(manifest.total_bytes()) / (1 << 20), manifest.files.size(),
               manifest.created, checkpoint.root(), directory.native());
  } catch (const Error& error) {
    fmt::print("{:>10}  {}: {}\n", "damaged", directory.native(), error.what());
  }
}

void list(const Options& options) {
  const Path path = directory_of(options);
  FileSystem& file_system = posix_file_system();
  fmt::print("{:>10}  {:>12}  {:>5}  {:20}  {:16}  {}\n", "step", "MiB", "files", "created", "root",
             "directory");
  if (is_checkpoint(path)) return list_one(path);
  const Path run = run_directory(path);
  for (const int64_t step : list_steps(file_system, run)) {
    list_one(checkpoint_folder(run) / step_directory_name(step));
  }
  if (!file_system.exists(checkpoint_folder(run))) return;
  for (const DirectoryEntry& entry : file_system.list(checkpoint_folder(run))) {
    if (attempt_of_temporary(entry.name)) {
      fmt::print("{:>10}  {}: never published; the next start removes it\n", "unfinished",
                 (checkpoint_folder(run) / entry.name).native());
    }
  }
}

Json summary(const Checkpoint& checkpoint) {
  const Manifest& manifest = checkpoint.manifest();
  Json tensors = Json::array();
  for (const StoredTensor& tensor : manifest.tensors) {
    tensors.push_back({{"name", tensor.name},
                       {"dtype", name_of(tensor.dtype)},
                       {"shape", tensor.shape.dims()},
                       {"slices", tensor.slices.size()},
                       {"digest", to_hex(tensor.digest)}});
  }
  Json state = Json::object();
  for (const auto& [name, value] : manifest.state) {
    std::visit([&, &key = name](const auto& content) { state[key] = content; }, value);
  }
  Json parent = nullptr;
  if (manifest.parent) parent = {{"step", manifest.parent->step}, {"root", manifest.parent->root}};
  return {{"directory", checkpoint.directory().native()},
          {"step", manifest.step},
          {"root", checkpoint.root()},
          {"parent", parent},
          {"created", manifest.created},
          {"writer", manifest.writer},
          {"attempt", manifest.attempt},
          {"layout", manifest.layout},
          {"bytes", manifest.total_bytes()},
          {"files", manifest.files.size()},
          {"state", state},
          {"tensors", tensors},
          {"config", manifest.config}};
}

void show(const Options& options) {
  const Checkpoint checkpoint = find_checkpoint(options);
  if (options.as_json) {
    fmt::print("{}\n", summary(checkpoint).dump(2));
    return;
  }
  const Manifest& manifest = checkpoint.manifest();
  fmt::print("checkpoint  {}\nstep        {}\nroot        {}\nparent      {}\n",
             checkpoint.directory().native(), manifest.step, checkpoint.root(),
             parent_text(manifest));
  fmt::print(
      "created     {} by {}, attempt {}\nlayout      {}\nsize        {:.3f} MiB in {} files\n",
      manifest.created, manifest.writer, manifest.attempt, manifest.layout,
      static_cast<double>(manifest.total_bytes()) / (1 << 20), manifest.files.size());
  fmt::print("\nstate\n");
  for (const auto& [name, value] : manifest.state) {
    std::visit([&, &key = name](const auto& content) { fmt::print("  {:30} {}\n", key, content); },
               value);
  }
  fmt::print("\ntensors\n");
  for (const StoredTensor& tensor : manifest.tensors) {
    fmt::print("  {:60} {:5} [{}]\n", tensor.name, name_of(tensor.dtype),
               fmt::join(tensor.shape.dims(), ", "));
  }
  fmt::print("\nconfig\n{}\n", manifest.config);
}

void verify(const Options& options) {
  const Checkpoint checkpoint = find_checkpoint(options);
  checkpoint.verify();
  fmt::print("{} is intact: step {}, tensors {}, files {}, bytes {}, root {}\n",
             checkpoint.directory().native(), checkpoint.step(),
             checkpoint.manifest().tensors.size(), checkpoint.manifest().files.size(),
             checkpoint.manifest().total_bytes(), checkpoint.root());
}

void hash(const Options& options) {
  const Checkpoint checkpoint = find_checkpoint(options);
  checkpoint.verify();  // a digest of damaged bytes would say nothing
  fmt::print("{}\n", checkpoint.root());
}

void add(CLI::App& ckpt, const std::string& name, const std::string& what,
         const std::string& example, void (*run)(const Options&), bool has_json) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = ckpt.add_subcommand(name, what);
  command->add_option("DIR", options->directory, "a run directory or one checkpoint (step-...)")
      ->required();
  if (has_json) command->add_flag("--json", options->as_json, "print one JSON object");
  command->footer("Example:\n  " + example);
  command->callback([options, run] { run(*options); });
}

}  // namespace

void add_ckpt_command(CLI::App& root) {
  CLI::App* ckpt = root.add_subcommand("ckpt", "Look at checkpoints");
  ckpt->require_subcommand(1);
  ckpt->footer("Example:\n  ferry ckpt list runs/quickstart");
  add(*ckpt, "list", "List the checkpoints of a run", "ferry ckpt list runs/quickstart", list,
      false);
  add(*ckpt, "show", "Show step, state, tensors and configuration of a checkpoint",
      "ferry ckpt show runs/quickstart/ckpt/step-00000060 --json", show, true);
  add(*ckpt, "verify", "Check every byte of a checkpoint against its digests",
      "ferry ckpt verify runs/quickstart", verify, false);
  add(*ckpt, "hash",
      "Verify a checkpoint and print the digest of its training state, which depends neither on "
      "the "
      "layout of ranks nor on time, attempt, configuration or run name",
      "ferry ckpt hash runs/quickstart", hash, false);
}

}  // namespace ferry
