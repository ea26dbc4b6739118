#include "checkpoint/writer.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>

#include "checkpoint/agreement.h"
#include "checkpoint/directory.h"
#include "checkpoint/global_file.h"
#include "checkpoint/latest.h"
#include "checkpoint/preflight.h"
#include "checkpoint/retention.h"
#include "checkpoint/run_id.h"
#include "checkpoint/shard_file.h"
#include "core/check.h"
#include "core/seconds_since.h"

namespace ferry {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

class Saver {
 public:
  Saver(const SaveRequest& request, Control& control)
      : request_(request),
        control_(control),
        file_system_(*request.file_system),
        temporary_(checkpoint_folder(request.run_dir) /
                   temporary_directory_name(request.step, request.attempt)),
        final_(checkpoint_folder(request.run_dir) / step_directory_name(request.step)),
        aside_(checkpoint_folder(request.run_dir) /
               aside_directory_name(request.step, request.attempt)) {}

  SaveReport save() {
    CHECK(request_.keep >= 2, "keep ", request_.keep, ": at least two checkpoints are kept");
    const auto start = Clock::now();
    prepare();
    try {
      publish(write_shards());
      const auto verify_start = Clock::now();
      if (request_.verify)
        verify_together(final_, true, control_, file_system_, request_.io_threads);
      report_.verify_seconds = seconds_since(verify_start);
    } catch (const Error& error) {
      const std::string trouble = control_.rank() == 0 ? withdraw() : "";
      fail(error.code(), "the checkpoint of step ", request_.step, " was not saved: ", error.what(),
           trouble);
    }
    report_.seconds = seconds_since(start);
    return acknowledge();
  }

 private:
  void prepare() {
    const auto sizes = gather_together(control_, "measure the checkpoint", [&] {
      int64_t bytes = 0;
      for (const SliceToSave& slice : request_.slices) {
        bytes += slice.extent.numel() * static_cast<int64_t>(size_of(slice.dtype));
      }
      return std::to_string(bytes);
    });
    decide_on_root(control_, "prepare the checkpoint", [&] {
      int64_t bytes = 0;
      for (const std::string& size : sizes) bytes += std::stoll(size);
      require_newest_attempt(file_system_, request_.run_dir, request_.attempt);
      const Path folder = checkpoint_folder(request_.run_dir);
      // A shard of each rank, global.h5, the manifest, LATEST and the directories.
      require_storage(file_system_, folder, bytes, control_.size() + 8);
      // What this attempt itself left behind when an earlier save of the step failed.
      if (file_system_.exists(temporary_)) remove_tree(file_system_, temporary_);
      file_system_.make_directory(temporary_);
      probe_storage(file_system_, temporary_);
      return std::string();
    });
  }

  std::vector<std::string> write_shards() {
    return gather_together(control_, "write the shards", [&] {
      const bool has_content = std::any_of(request_.slices.begin(), request_.slices.end(),
                                           [](const auto& s) { return s.extent.numel() > 0; });
      if (!has_content) return std::string();
      const ShardReport shard =
          write_shard(file_system_, temporary_, shard_file_name(control_.rank()), request_.slices,
                      request_.chunk_bytes, request_.io_threads);
      Json tensors = Json::array();
      for (const StoredTensor& tensor : shard.tensors) tensors.push_back(to_json(tensor));
      return Json{{"file", to_json(shard.file)},
                  {"tensors", std::move(tensors)},
                  {"write_seconds", shard.write_seconds},
                  {"sync_seconds", shard.sync_seconds}}
          .dump();
    });
  }

  /// One manifest of what all ranks wrote.
  Manifest merge(const std::vector<std::string>& shards) {
    Manifest manifest;
    std::map<std::string, StoredTensor> tensors;
    for (const std::string& text : shards) {
      if (text.empty()) continue;
      const Json shard = Json::parse(text);
      const int file_idx = static_cast<int>(manifest.files.size());
      manifest.files.push_back(file_from_json(shard.at("file")));
      for (const Json& json : shard.at("tensors")) {
        StoredTensor part = tensor_from_json(json);
        part.slices.front().file_idx = file_idx;
        const auto [place, is_new] = tensors.try_emplace(part.name, part);
        if (is_new) continue;
        StoredTensor& tensor = place->second;
        CHECK(tensor.dtype == part.dtype && tensor.shape == part.shape,
              "ranks disagree about tensor ", part.name, ": ", name_of(tensor.dtype), " ",
              tensor.shape, " and ", name_of(part.dtype), " ", part.shape);
        tensor.digest += part.digest;
        tensor.slices.push_back(std::move(part.slices.front()));
      }
      report_.write_seconds = std::max<double>(report_.write_seconds, shard.at("write_seconds"));
      report_.sync_seconds = std::max<double>(report_.sync_seconds, shard.at("sync_seconds"));
    }
    for (auto& [name, tensor] : tensors) manifest.tensors.push_back(std::move(tensor));
    manifest.run = read_run_id(file_system_, request_.run_dir);
    manifest.writer = request_.writer;
    manifest.created = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
    manifest.attempt = request_.attempt;
    manifest.step = request_.step;
    manifest.parent = request_.parent;
    if (manifest.parent && manifest.parent->run.empty()) manifest.parent->run = manifest.run;
    manifest.layout = request_.layout;
    manifest.config = request_.config;
    manifest.state = request_.state;
    manifest.chunk_bytes = request_.chunk_bytes;
    return manifest;
  }

  void publish(const std::vector<std::string>& shards) {
    decide_on_root(control_, "publish the checkpoint", [&] {
      Manifest manifest = merge(shards);
      const std::string defect = manifest_defect(manifest);
      CHECK(defect.empty(), "the slices of all ranks do not make a checkpoint: ", defect);
      manifest.files.push_back(write_global_file(file_system_, temporary_, manifest,
                                                 request_.descriptions, request_.aliases));
      const std::string text = manifest_text(manifest);
      if (static_cast<int64_t>(text.size()) > kMaxManifestBytes) {
        fail(ExitCode::Storage, "the manifest would have ", text.size(), " bytes, more than ",
             kMaxManifestBytes);
      }
      write_text(file_system_, temporary_ / kManifestFileName, text);
      file_system_.sync_directory(temporary_);

      require_newest_attempt(file_system_, request_.run_dir, request_.attempt);
      if (file_system_.exists(final_)) {
        drop_aside();
        file_system_.rename(final_, aside_);
      }
      rename_to_final();
      file_system_.sync_directory(final_.parent_path());
      // On a network file system a return code alone proves nothing.
      if (read_text(file_system_, final_ / kManifestFileName, kMaxManifestBytes) != text)
        fail(ExitCode::Storage, (final_ / kManifestFileName).native(),
             " is not what was written: does another program write there?");
      report_.root = root_digest(manifest);
      report_.bytes = manifest.total_bytes();
      return std::string();
    });
  }

  /// On a network file system a rename may report an error although it was made, because the first
  /// answer was lost: which of the two names is there tells.
  void rename_to_final() {
    try {
      file_system_.rename(temporary_, final_);
    } catch (const Error&) {
      if (file_system_.exists(temporary_) || !file_system_.exists(final_)) throw;
    }
    is_published_ = true;
  }

  /// Undoes what a failed save left; what cannot be undone is said in the returned text.
  std::string withdraw() {
    std::string trouble;
    const auto attempt = [&](const auto& undo) {
      try {
        undo();
      } catch (const Error& error) {
        trouble += concat("; then ", error.what());
      }
    };
    attempt([&] {
      if (file_system_.exists(temporary_)) remove_tree(file_system_, temporary_);
    });
    if (is_published_) {
      attempt([&] {
        move_to_trash(file_system_, request_.run_dir, final_.filename().native(), request_.attempt);
      });
    }
    attempt([&] {
      if (!file_system_.exists(aside_)) return;
      file_system_.rename(aside_, final_);
      file_system_.sync_directory(final_.parent_path());
    });
    return trouble;
  }

  /// Into the trash with the checkpoint that this one replaced.
  void drop_aside() {
    if (!file_system_.exists(aside_)) return;
    move_to_trash(file_system_, request_.run_dir, aside_.filename().native(), request_.attempt);
  }

  void write_hint() {
    const Path hint = latest_file(request_.run_dir);
    const Path next = hint.native() + ".tmp";
    if (file_system_.exists(next)) file_system_.remove_file(next);
    write_text(file_system_, next, fmt::format("ckpt/{}\n", final_.filename().native()));
    file_system_.rename(next, hint);
    file_system_.sync_directory(request_.run_dir);
  }

  SaveReport acknowledge() {
    const std::string text = decide_on_root(control_, "acknowledge the checkpoint", [&] {
      try {
        write_hint();
      } catch (const Error& error) {
        report_.warnings.push_back(concat("LATEST was not updated: ", error.what()));
      }
      try {
        drop_aside();
      } catch (const Error& error) {
        report_.warnings.push_back(
            concat("the replaced checkpoint was not deleted: ", error.what()));
      }
      RetentionReport retention = retire_checkpoints(
          file_system_, request_.run_dir, request_.attempt, request_.step, request_.keep);
      report_.removed = retention.removed;
      report_.warnings.insert(report_.warnings.end(), retention.warnings.begin(),
                              retention.warnings.end());
      return Json{{"root", report_.root},
                  {"bytes", report_.bytes},
                  {"write_seconds", report_.write_seconds},
                  {"sync_seconds", report_.sync_seconds},
                  {"verify_seconds", report_.verify_seconds},
                  {"seconds", report_.seconds},
                  {"removed", report_.removed},
                  {"warnings", report_.warnings}}
          .dump();
    });
    const Json json = Json::parse(text);
    SaveReport report;
    report.directory = final_;
    json.at("root").get_to(report.root);
    json.at("bytes").get_to(report.bytes);
    json.at("write_seconds").get_to(report.write_seconds);
    json.at("sync_seconds").get_to(report.sync_seconds);
    json.at("verify_seconds").get_to(report.verify_seconds);
    json.at("seconds").get_to(report.seconds);
    json.at("removed").get_to(report.removed);
    json.at("warnings").get_to(report.warnings);
    return report;
  }

  const SaveRequest& request_;
  Control& control_;
  FileSystem& file_system_;
  Path temporary_;
  Path final_;
  Path aside_;
  bool is_published_ = false;
  SaveReport report_;
};

}  // namespace

SaveReport save_checkpoint(const SaveRequest& request, Control& control) {
  return Saver(request, control).save();
}

}  // namespace ferry
