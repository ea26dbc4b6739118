#include "huggingface/weight_files.h"

#include <algorithm>
#include <set>

#include "core/check.h"
#include "huggingface/config_json.h"

namespace ferry {
namespace {

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr int64_t kMaxIndexBytes = int64_t{64} << 20;

// A name in the directory itself: no slash, no leading dot.
bool is_plain_file_name(const std::string& name) {
  return hf_name_defect(name).empty() && name.front() != '.' && name.ends_with(".safetensors");
}

}  // namespace

WeightFiles::WeightFiles(const Path& directory, FileSystem& file_system)
    : directory_(directory), file_system_(file_system) {
  const bool single = file_system.exists(directory / kSingle);
  const bool indexed = file_system.exists(directory / kIndex);
  if (single && indexed)
    fail(ExitCode::Storage, "error: ", directory.string(), " has both ", kSingle, " and ", kIndex,
         "\n  why : either may be the model\n  try : remove the one that is not");
  if (!single && !indexed)
    fail(ExitCode::Storage, "error: ", directory.string(), " has neither ", kSingle, " nor ",
         kIndex, "\n  why : only safetensors are read\n  try : a directory with config.json and ",
         "safetensors files");
  if (single)
    add_file(kSingle);
  else
    add_indexed();
}

void WeightFiles::add_file(const std::string& name) {
  const Path path = directory_ / name;
  OpenFile file{name, file_system_.open(path), 0};
  const SafeHeader header = read_safetensors_header(*file.file, path.string());
  file.data_start = header.data_start;
  for (const SafeTensor& tensor : header.tensors) {
    const auto [place, is_new] = tensors_.try_emplace(tensor.name, Place{files_.size(), tensor});
    if (!is_new)
      fail(ExitCode::Storage, "error: tensor ", tensor.name, " is in two files of ",
           directory_.string(), ": ", files_[place->second.file].name, " and ", name);
  }
  files_.push_back(std::move(file));
}

void WeightFiles::add_indexed() {
  const std::string where = (directory_ / kIndex).string();
  const nlohmann::json index =
      parse_strict_json(read_text(file_system_, directory_ / kIndex, kMaxIndexBytes), where);
  if (!index.is_object() || !index.contains("weight_map") || !index.at("weight_map").is_object())
    fail(ExitCode::Storage, "error: ", where, " has no object 'weight_map'");
  const nlohmann::json& map = index.at("weight_map");
  std::set<std::string> names;
  for (const auto& [tensor, file] : map.items()) {
    if (!file.is_string() || !is_plain_file_name(file.get<std::string>()))
      fail(ExitCode::Storage, "error: ", where, " places tensors in a file that is not named like ",
           "model-00001-of-00002.safetensors, in the same directory");
    names.insert(file.get<std::string>());
  }
  for (const std::string& name : names) add_file(name);
  for (const auto& [name, place] : tensors_)
    if (!map.contains(name) || map.at(name) != files_[place.file].name)
      fail(ExitCode::Storage, "error: ", where, " does not place tensor ", name, " in ",
           files_[place.file].name, ", which has it");
  for (const auto& [name, file] : map.items())
    if (!tensors_.contains(name))
      fail(ExitCode::Storage, "error: ", where, " places a tensor in ", file.get<std::string>(),
           ", which does not have it: ", hf_name_defect(name).empty() ? name : "(an illegal name)");
}

void WeightFiles::read(const Place& place, int64_t first, int64_t count, float* out) const {
  const SafeTensor& tensor = place.tensor;
  CHECK(first >= 0 && count >= 0 && first + count <= tensor.shape.numel(), "elements ", first,
        " to ", first + count, " of ", tensor.name);
  const auto element = static_cast<int64_t>(size_of(tensor.dtype));
  const OpenFile& file = files_[place.file];
  const int64_t position = file.data_start + tensor.begin + first * element;
  if (tensor.dtype == DType::F32)
    return file.file->read_at(out, static_cast<size_t>(count) * sizeof(float), position);
  std::vector<BFloat16> narrow(static_cast<size_t>(count));
  file.file->read_at(narrow.data(), narrow.size() * sizeof(BFloat16), position);
  std::copy(narrow.begin(), narrow.end(), out);
}

}  // namespace ferry
