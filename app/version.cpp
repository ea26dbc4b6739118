#include "app/version.h"

#include <cblas.h>
#include <fmt/format.h>
#include <mpi.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>

#include "checkpoint/hdf5_handle.h"
#include "core/comm/nccl_group.h"
#include "core/device.h"

namespace ferry {
namespace {

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line))
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

// The vector instructions that matter to this program, as the kernel lists them.
std::string cpu_features() {
  std::ifstream info("/proc/cpuinfo");
  std::string line, features;
  while (std::getline(info, line) && !line.starts_with("flags")) {
  }
  std::istringstream flags(line);
  for (std::string flag; flags >> flag;)
    for (const char* wanted : {"avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16"})
      if (flag == wanted) features += (features.empty() ? "" : " ") + flag;
  return features;
}

std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) return "unknown";
  const std::string whole(text, static_cast<size_t>(length));
  return whole.substr(0, whole.find(','));
}

}  // namespace

std::string version_text() { return FERRY_VERSION; }
std::string git_revision() { return FERRY_GIT_REVISION; }

nlohmann::ordered_json version_json() {
  nlohmann::ordered_json json;
  json["version"] = version_text();
  json["git"] = git_revision();
  json["compiler"] = fmt::format("g++ {}", __VERSION__);
  json["backends"] = {{"cpu", true},
                      {"cuda", FERRY_HAVE_CUDA != 0},
                      {"nccl", FERRY_HAVE_NCCL != 0},
                      {"cudnn", FERRY_HAVE_CUDNN != 0}};
  json["libraries"] = {
      {"mpi", mpi_version()}, {"hdf5", hdf5_version()}, {"openblas", openblas_get_config()}};
  for (const auto& [name, version] : cuda_library_versions()) json["libraries"][name] = version;
  if (const std::string nccl = nccl_version(); !nccl.empty()) json["libraries"]["nccl"] = nccl;
  json["cpu"] = {{"model", cpu_model()}, {"features", cpu_features()}};
  json["gpus"] = nlohmann::ordered_json::array();
  for (int i = 0; i < num_cuda_devices(); ++i) json["gpus"].push_back(make_cuda_device(i)->name());
  return json;
}

void add_version_command(CLI::App& root) {
  CLI::App* command =
      root.add_subcommand("version", "Prints the version, and what is built in and seen here");
  const auto as_json = std::make_shared<bool>(false);
  command->add_flag("--json", *as_json, "As JSON");
  command->footer("Example: ferry version --json");
  command->callback([as_json] {
    const nlohmann::ordered_json json = version_json();
    if (*as_json) {
      std::cout << json.dump(2) << '\n';
      return;
    }
    std::cout << fmt::format("ferry {} (git {})\n", version_text(), git_revision());
    const auto yes_no = [&](const char* name) {
      return json["backends"][name].get<bool>() ? "yes" : "no";
    };
    std::cout << fmt::format("backends   cpu yes | cuda {} | nccl {} | cudnn {}\n", yes_no("cuda"),
                             yes_no("nccl"), yes_no("cudnn"));
    std::cout << "libraries ";
    for (const auto& [name, version] : json["libraries"].items())
      std::cout << fmt::format(" {} {} |", name, version.get<std::string>());
    std::cout << fmt::format(" {}\n", json["compiler"].get<std::string>());
    std::cout << fmt::format("cpu        {} | {}\n", cpu_model(), cpu_features());
    if (json["gpus"].empty()) std::cout << "gpus       none seen\n";
    for (const auto& gpu : json["gpus"])
      std::cout << fmt::format("gpus       {}\n", gpu.get<std::string>());
  });
}

}  // namespace ferry
