#include "app/ckpt_command.h"

#include <fmt/format.h>

#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "app/ckpt_diff.h"
#include "app/ckpt_find.h"
#include "app/ckpt_prune.h"
#include "app/ckpt_reshard.h"
#include "app/ckpt_verify.h"
#include "checkpoint/directory.h"
#include "core/check.h"

namespace ferry {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string directory;
  bool as_json = false;
  std::string second;  // of diff, and what reshard makes
  int num_writers = 1;
  int64_t keep = 3;
  bool is_dry_run = false;
};

std::string parent_text(const Manifest& manifest) {
  if (!manifest.parent) return "none";
  const bool is_here = manifest.parent->run == manifest.run;
  return fmt::format("step {} {}{}", manifest.parent->step, manifest.parent->root,
                     is_here ? "" : " of run " + manifest.parent->run);
}

// `roots` are those of the checkpoints that were listed before, by step; this one is added.
void list_one(const Path& directory, std::map<int64_t, std::string>& roots) {
  try {
    const Checkpoint checkpoint = Checkpoint::open(directory);
    const Manifest& manifest = checkpoint.manifest();
    fmt::print("{:>10}  {:>12.3f}  {:>5}  {}  {:.8}  {:.8}  {:.16}  {}\n", manifest.step,
               static_cast<double>(manifest.total_bytes()) / (1 << 20), manifest.files.size(),
               manifest.created, manifest.run, config_digest(manifest.config), checkpoint.root(),
               directory.native());
    roots[manifest.step] = checkpoint.root();
    if (!manifest.parent || manifest.parent->run != manifest.run) return;
    const auto parent = roots.find(manifest.parent->step);
    if (parent != roots.end() && parent->second != manifest.parent->root)
      fmt::print("{:>10}  {} goes on from a step {} with root {:.16}, not from the one above\n", "",
                 directory.filename().native(), manifest.parent->step, manifest.parent->root);
  } catch (const Error& error) {
    fmt::print("{:>10}  {}: {}\n", "damaged", directory.native(), error.what());
  }
}

void list(const Options& options) {
  const Path path = existing_directory(options.directory);
  FileSystem& file_system = posix_file_system();
  fmt::print("{:>10}  {:>12}  {:>5}  {:20}  {:8}  {:8}  {:16}  {}\n", "step", "MiB", "files",
             "created", "run", "config", "root", "directory");
  std::map<int64_t, std::string> roots;
  if (file_system.exists(path / kManifestFileName)) return list_one(path, roots);
  const Path run = run_directory_of(path);
  for (const int64_t step : list_steps(file_system, run)) {
    list_one(checkpoint_folder(run) / step_directory_name(step), roots);
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
  if (manifest.parent)
    parent = {{"step", manifest.parent->step},
              {"root", manifest.parent->root},
              {"run", manifest.parent->run}};
  return {{"directory", checkpoint.directory().native()},
          {"step", manifest.step},
          {"root", checkpoint.root()},
          {"run", manifest.run},
          {"parent", parent},
          {"created", manifest.created},
          {"writer", manifest.writer},
          {"attempt", manifest.attempt},
          {"layout", manifest.layout},
          {"bytes", manifest.total_bytes()},
          {"files", manifest.files.size()},
          {"state", state},
          {"tensors", tensors},
          {"config_digest", config_digest(manifest.config)},
          {"config", manifest.config}};
}

void show(const Options& options) {
  const Checkpoint checkpoint = find_checkpoint(options.directory);
  if (options.as_json) {
    fmt::print("{}\n", summary(checkpoint).dump(2));
    return;
  }
  const Manifest& manifest = checkpoint.manifest();
  fmt::print("checkpoint  {}\nstep        {}\nroot        {}\nrun         {}\nparent      {}\n",
             checkpoint.directory().native(), manifest.step, checkpoint.root(), manifest.run,
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
  fmt::print("\nconfig {}\n{}\n", config_digest(manifest.config), manifest.config);
}

void verify(const Options& options) {
  const Path named = existing_directory(options.directory);
  const Path path =
      names_checkpoint(named) ? named : find_checkpoint(options.directory).directory();
  const Checkpoint checkpoint = verify_checkpoint(path);
  fmt::print("{} is intact: step {}, tensors {}, files {}, bytes {}, root {}\n", path.native(),
             checkpoint.step(), checkpoint.manifest().tensors.size(),
             checkpoint.manifest().files.size(), checkpoint.manifest().total_bytes(),
             checkpoint.root());
}

void hash(const Options& options) {
  const Checkpoint checkpoint = find_checkpoint(options.directory);
  checkpoint.verify();  // a digest of damaged bytes would say nothing
  fmt::print("{}\n", checkpoint.root());
}

Json to_json(const TensorDifference& difference) {
  if (!difference.mismatch.empty())
    return {{"name", difference.name}, {"mismatch", difference.mismatch}};
  return {{"name", difference.name},
          {"elements", difference.num_elements},
          {"different", difference.num_different},
          {"largest_absolute", difference.largest_absolute},
          {"largest_relative", difference.largest_relative},
          {"first", difference.first},
          {"values", {difference.first_a, difference.first_b}}};
}

void print_json(const CheckpointDifference& difference) {
  Json tensors = Json::array(), scalars = Json::array();
  for (const TensorDifference& tensor : difference.tensors) tensors.push_back(to_json(tensor));
  for (const ScalarDifference& scalar : difference.scalars)
    scalars.push_back({{"name", scalar.name}, {"values", {scalar.a, scalar.b}}});
  const Json all = {{"equal", difference.empty()},
                    {"num_tensors", difference.num_tensors},
                    {"num_scalars", difference.num_scalars},
                    {"tensors", tensors},
                    {"scalars", scalars}};
  fmt::print("{}\n", all.dump(2));
}

void print_text(const CheckpointDifference& difference) {
  for (const TensorDifference& tensor : difference.tensors) {
    if (!tensor.mismatch.empty()) {
      fmt::print("{}: {}\n", tensor.name, tensor.mismatch);
      continue;
    }
    fmt::print(
        "{}: {} of {} elements differ, by at most {:.3g}, relative {:.3g}; first [{}]: {} and {}\n",
        tensor.name, tensor.num_different, tensor.num_elements, tensor.largest_absolute,
        tensor.largest_relative, fmt::join(tensor.first, ", "), tensor.first_a, tensor.first_b);
  }
  const auto or_none = [](const std::string& value) { return value.empty() ? "none" : value; };
  for (const ScalarDifference& scalar : difference.scalars)
    fmt::print("{}: {} and {}\n", scalar.name, or_none(scalar.a), or_none(scalar.b));
}

void diff(const Options& options) {
  const Checkpoint a = find_checkpoint(options.directory), b = find_checkpoint(options.second);
  const CheckpointDifference difference = diff_checkpoints(a, b);
  if (options.as_json)
    print_json(difference);
  else
    print_text(difference);
  if (!difference.empty())
    fail(ExitCode::Storage, a.directory().native(), " and ", b.directory().native(), " differ in ",
         difference.tensors.size(), " of ", difference.num_tensors, " tensors and ",
         difference.scalars.size(), " of ", difference.num_scalars, " scalars");
  if (!options.as_json)
    fmt::print("the same bits: {} tensors, {} scalars, root {}\n", difference.num_tensors,
               difference.num_scalars, a.root());
}

void reshard(const Options& options) {
  const Checkpoint source = find_checkpoint(options.directory);
  const SaveReport report = reshard_checkpoint(source, options.second, options.num_writers);
  fmt::print("{}: step {} of {}, bytes {}, root {}\n", report.directory.native(), source.step(),
             source.directory().native(), report.bytes, report.root);
}

void prune(const Options& options) {
  FileSystem& file_system = posix_file_system();
  const Path path = existing_directory(options.directory);
  const Path run = run_directory_of(path);
  if (names_checkpoint(path) || !file_system.exists(checkpoint_folder(run)))
    fail(ExitCode::Storage, path.native(), " is no run directory: name the one with ckpt/ in it");
  const std::vector<PruneDecision> plan = plan_prune(file_system, run, options.keep);
  size_t num_removed = 0;
  for (const PruneDecision& decision : plan) {
    const std::string directory = (checkpoint_folder(run) / decision.name).native();
    switch (decision.fate) {
      case PruneDecision::Fate::Keep:
        fmt::print("keep    {}\n", directory);
        break;
      case PruneDecision::Fate::Remove:
        ++num_removed;
        fmt::print("remove  {}\n", directory);
        break;
      case PruneDecision::Fate::Leave:
        fmt::print("leave   {}: {}\n", directory, decision.reason);
        break;
    }
  }
  if (!options.is_dry_run) prune(file_system, run, plan);
  fmt::print("{} of {} checkpoints {}\n", num_removed, plan.size(),
             options.is_dry_run ? "would be removed" : "removed");
}

struct Command {
  CLI::App* app;
  std::shared_ptr<Options> options;
};

/// A command whose first argument is `argument`. The callback keeps the options alive.
Command add(CLI::App& ckpt, const std::string& name, const std::string& what,
            const std::string& arguments, void (*run)(const Options&),
            const std::string& argument = "a run directory or one checkpoint (step-...)") {
  const auto options = std::make_shared<Options>();
  CLI::App* command = ckpt.add_subcommand(name, what);
  command->add_option("DIR", options->directory, argument)->required();
  command->footer("Example:\n  ferry ckpt " + name + " " + arguments);
  command->callback([options, run] { run(*options); });
  return {command, options};
}

void add_json(const Command& command) {
  command.app->add_flag("--json", command.options->as_json, "print one JSON object");
}

}  // namespace

void add_ckpt_command(CLI::App& root) {
  CLI::App* ckpt = root.add_subcommand("ckpt", "Look at checkpoints, compare and rewrite them");
  ckpt->require_subcommand(1);
  ckpt->footer("Example:\n  ferry ckpt list runs/quickstart");
  add(*ckpt, "list", "List the checkpoints of a run", "runs/quickstart", list);
  add_json(add(*ckpt, "show", "Show step, state, tensors and configuration of a checkpoint",
               "runs/quickstart/ckpt/step-00000060 --json", show));
  add(*ckpt, "verify", "Check every byte of a checkpoint against its digests", "runs/quickstart",
      verify);
  add(*ckpt, "hash",
      "Verify a checkpoint and print the digest of its training state, which depends neither on "
      "the layout of ranks nor on time, attempt, configuration or run name",
      "runs/quickstart", hash);

  const Command compare =
      add(*ckpt, "diff",
          "Compare the training states of two checkpoints, tensor by tensor; exit code 4 if they "
          "differ",
          "runs/quickstart/ckpt/step-00000030 runs/quickstart/ckpt/step-00000060", diff);
  compare.app->add_option("OTHER", compare.options->second, "another one")->required();
  add_json(compare);

  const Command rewrite =
      add(*ckpt, "reshard",
          "Write the same checkpoint again, in a new run directory, with another number of shards",
          "runs/quickstart runs/resharded --writers 4", reshard);
  rewrite.app->add_option("OUT", rewrite.options->second, "the run directory to make")->required();
  rewrite.app->add_option("--writers", rewrite.options->num_writers, "number of shards")
      ->required();

  const Command retire =
      add(*ckpt, "prune",
          "Keep the newest checkpoints of a run that verify and delete those before them",
          "runs/quickstart --keep 2 --dry-run", prune, "a run directory");
  retire.app->add_option("--keep", retire.options->keep, "how many checkpoints to keep, at least 2")
      ->capture_default_str();
  retire.app->add_flag("--dry-run", retire.options->is_dry_run, "only say what would be removed");
}

}  // namespace ferry
