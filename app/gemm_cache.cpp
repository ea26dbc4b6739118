#include "app/gemm_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "app/data/output_file.h"
#include "core/check.h"

namespace ferry {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int kFormat = 1;
constexpr size_t kDigits = 16;  // of a word
constexpr const char* kDamaged = " holds no measured products, or is damaged";

[[noreturn]] void fail_to(const char* action, const fs::path& path, int error) {
  fail(ExitCode::Storage, "error: cannot ", action, ' ', path.string(), ": ", std::strerror(error),
       "\n  why : run.gemm_cache keeps measured algorithms there\n"
       "  try : a path that this run may write, or no run.gemm_cache");
}

// Excludes other writers of the file, threads of this process included, until the end of a scope.
class WriteLock {
 public:
  explicit WriteLock(const fs::path& path) : path_(path.string() + ".lock") {
    fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd_ < 0) fail_to("create", path_, errno);
    while (::flock(fd_, LOCK_EX) != 0) {
      const int error = errno;
      if (error == EINTR) continue;
      ::close(fd_);
      fail_to("lock", path_, error);
    }
  }
  ~WriteLock() { ::close(fd_); }
  WriteLock(const WriteLock&) = delete;
  WriteLock& operator=(const WriteLock&) = delete;

 private:
  fs::path path_;
  int fd_ = -1;
};

std::string to_hex(const GemmAlgorithm& algorithm) {
  std::string text;
  for (const uint64_t word : algorithm) text += fmt::format("{:016x}", word);
  return text;
}

std::optional<GemmAlgorithm> from_hex(const std::string& text) {
  GemmAlgorithm algorithm{};
  if (text.size() != kDigits * algorithm.size()) return std::nullopt;
  for (size_t i = 0; i < algorithm.size(); ++i) {
    const char* begin = text.data() + i * kDigits;
    const auto [end, error] = std::from_chars(begin, begin + kDigits, algorithm[i], 16);
    if (error != std::errc() || end != begin + kDigits) return std::nullopt;
  }
  return algorithm;
}

Json to_json(const GemmMeasurements& products) {
  Json object = Json::object();
  for (const auto& [kind, measurement] : products)
    object[kind] = {{"algorithm", to_hex(measurement.algorithm)},
                    {"us", measurement.us},
                    {"heuristic_us", measurement.heuristic_us}};
  return object;
}

// None if they are damaged.
std::optional<GemmMeasurements> products_of(const Json& object) {
  if (!object.is_object()) return std::nullopt;
  GemmMeasurements products;
  for (const auto& [kind, product] : object.items()) {
    if (!product.is_object()) return std::nullopt;
    const auto number = [&](const char* key) {
      return product.contains(key) && product[key].is_number() ? product[key].get<double>()
                                                               : std::nan("");
    };
    const auto words = product.contains("algorithm") && product["algorithm"].is_string()
                           ? from_hex(product["algorithm"].get<std::string>())
                           : std::nullopt;
    const double us = number("us"), heuristic_us = number("heuristic_us");
    if (!words || std::isnan(us) || std::isnan(heuristic_us)) return std::nullopt;
    products[kind] = {*words, us, heuristic_us};
  }
  return products;
}

std::optional<std::string> contents_of(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error) && !error) return std::nullopt;
  std::ifstream in(path, std::ios::binary);
  if (!in) fail_to("read", path, errno);
  std::string text;
  for (std::array<char, 4096> part; in.read(part.data(), part.size()), in.gcount() > 0;)
    text.append(part.data(), static_cast<size_t>(in.gcount()));
  if (in.bad()) fail_to("read", path, errno);
  return text;
}

// Rank 0's.
Json judge(const fs::path& path, const GemmPlatform& platform, UnknownGemm unknown) {
  const GemmCache cache = read_gemm_cache(path, platform);
  if (unknown != UnknownGemm::Heuristic) {
    const WriteLock can_be_written(path);
  } else if (!cache.problem.empty()) {
    fail(ExitCode::Usage, "error: run.gemm_cache cannot be used: ", cache.problem,
         "\n  why : a deterministic run, and one of several ranks, takes the algorithms of dense "
         "products from this file and measures none\n"
         "  try : ferry bench step with the same configuration and ranks and "
         "run.deterministic=false, which writes it; or no run.gemm_cache");
  }
  return {
      {"products", to_json(cache.products)}, {"found", cache.found}, {"problem", cache.problem}};
}

}  // namespace

GemmPlatform gemm_platform(const Device& device) {
  GemmPlatform platform;
  platform.gpu = device.name().substr(0, device.name().find(" (cuda:"));
  for (const auto& [library, version] : cuda_library_versions()) {
    if (library == "cublas") platform.cublas = version;
    if (library == "driver for cuda") platform.driver = version;
  }
  return platform;
}

GemmCache read_gemm_cache(const fs::path& path, const GemmPlatform& platform) {
  const std::optional<std::string> text = contents_of(path);
  if (!text) return {{}, false, concat(path.string(), " does not exist")};
  const auto refused = [&](const auto&... why) {
    return GemmCache{{}, true, concat(path.string(), why...)};
  };
  const Json cache = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  const auto is_text = [&](const char* key) {
    return cache.contains(key) && cache[key].is_string();
  };
  if (!cache.is_object() || !cache.contains("format") || !cache["format"].is_number_integer())
    return refused(kDamaged);
  if (cache["format"] != kFormat) return refused(" is of another version of Ferry");
  if (!is_text("gpu") || !is_text("cublas") || !cache.contains("products"))
    return refused(kDamaged);
  const auto gpu = cache["gpu"].get<std::string>(), cublas = cache["cublas"].get<std::string>();
  if (gpu != platform.gpu || cublas != platform.cublas)
    return refused(" was measured on ", gpu, " with cuBLAS ", cublas, ", not on ", platform.gpu,
                   " with cuBLAS ", platform.cublas);
  const auto products = products_of(cache["products"]);
  if (!products) return refused(kDamaged);
  return {*products, true, ""};
}

void add_to_gemm_cache(const fs::path& path, const GemmPlatform& platform, const std::string& kind,
                       const GemmMeasurement& measurement) {
  const WriteLock lock(path);
  GemmMeasurements products = read_gemm_cache(path, platform).products;
  products[kind] = measurement;
  nlohmann::ordered_json cache = {{"format", kFormat},
                                  {"gpu", platform.gpu},
                                  {"cublas", platform.cublas},
                                  {"driver for cuda", platform.driver}};
  cache["products"] = to_json(products);
  const std::string text = cache.dump(1) + "\n";
  OutputFile file(path);
  file.write_values(std::span(text));
  file.finish();
  file.publish();
}

UnknownGemm unknown_gemms(bool deterministic, int ranks, bool may_record) {
  if (deterministic) return UnknownGemm::Heuristic;
  if (ranks == 1) return UnknownGemm::Measure;
  return may_record ? UnknownGemm::Record : UnknownGemm::Heuristic;
}

GemmCache agree_on_gemm_cache(const fs::path& path, const GemmPlatform& platform,
                              UnknownGemm unknown, Control& control) {
  Json verdict;
  if (control.rank() == 0) {
    try {
      verdict = judge(path, platform, unknown);
    } catch (const Error& error) {
      verdict = {{"code", static_cast<int>(error.code())}, {"refusal", error.what()}};
    }
  }
  verdict = Json::parse(control.broadcast(verdict.dump(), 0, "agreement on measured products"));
  if (verdict.contains("refusal"))
    fail(ExitCode{verdict["code"].get<int>()}, verdict["refusal"].get<std::string>());
  const auto products = products_of(verdict["products"]);
  CHECK(products.has_value(), "rank 0 sent no products");
  return {*products, verdict["found"].get<bool>(), verdict["problem"].get<std::string>()};
}

void notice_on_stderr(const std::string& notice) { std::cerr << "! " << notice << std::endl; }

void open_gemm_cache(const RunConfig& config, bool may_record, const Device& device,
                     Control& control, const std::function<void(const std::string&)>& say) {
  if (device.is_cpu()) return;
  GemmTuning tuning;
  if (const std::string& path = config.run.gemm_cache; !path.empty()) {
    const GemmPlatform platform = gemm_platform(device);
    tuning.unknown = unknown_gemms(config.run.deterministic, control.size(), may_record);
    const GemmCache cache = agree_on_gemm_cache(path, platform, tuning.unknown, control);
    if (cache.found && !cache.problem.empty() && control.rank() == 0)
      say(cache.problem + ": products are measured anew, and it is replaced");
    tuning.known = cache.products;
    tuning.on_measured = [path, platform](const std::string& kind,
                                          const GemmMeasurement& measured) {
      add_to_gemm_cache(path, platform, kind, measured);
    };
    tuning.on_notice = [path](const std::string& problem) {
      notice_on_stderr(path + ": " + problem);
    };
  }
  set_gemm_tuning(std::move(tuning));
}

}  // namespace ferry
