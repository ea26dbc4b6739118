#include "app/launch_agreement.h"

#include <algorithm>
#include <sstream>
#include <vector>

#include "checkpoint/digest.h"
#include "core/check.h"

namespace ferry {
namespace {

constexpr size_t kMaxNamed = 8;

// What the ranks compare, a value a line; a text in a value keeps its line by the quoting of TOML.
std::string describe(const std::string& host, const std::string& program, const RunConfig& config) {
  std::string text = concat(host, "\nprogram = ", program, '\n');
  visit_values(config, [&](const std::string& path, const Field&, const auto& value) {
    const std::string toml = to_toml(value);
    text += concat(path, " = ", toml.empty() ? "(not set)" : toml, '\n');
  });
  return text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string lines_that_differ(const std::vector<std::string>& here,
                              const std::vector<std::string>& there) {
  std::vector<std::string> found;
  for (size_t i = 1; i < std::max(here.size(), there.size()); ++i) {
    const std::string a = i < here.size() ? here[i] : "nothing";
    const std::string b = i < there.size() ? there[i] : "nothing";
    if (a != b) found.push_back(concat(b, ", where rank 0 has ", a.substr(a.find(" = ") + 3)));
  }
  std::string text;
  for (size_t i = 0; i < std::min(found.size(), kMaxNamed); ++i)
    text += concat(i == 0 ? "" : "\n        ", found[i]);
  if (found.size() > kMaxNamed) text += concat("\n        and ", found.size() - kMaxNamed, " more");
  return text;
}

}  // namespace

void require_same_job(Control& control, const std::string& host, const std::string& program,
                      const RunConfig& config) {
  if (control.size() == 1) return;
  const std::string what = "agreement on program and configuration";
  const std::string own = describe(host, program, config);
  const std::string compared = own.substr(own.find('\n'));
  const std::vector<std::string> digests =
      control.gather(to_hex(chunk_digest(compared.data(), compared.size())), 0, what);
  const auto other = std::find_if(digests.begin(), digests.end(),
                                  [&](const std::string& digest) { return digest != digests[0]; });
  const bool alike = other == digests.end();
  if (control.broadcast(alike ? "alike" : "", 0, what) == "alike") return;
  // Only now the texts, which are long.
  const std::vector<std::string> texts = control.gather(own, 0, what);
  std::string message;
  if (control.rank() == 0) {
    const auto rank = static_cast<size_t>(other - digests.begin());
    const std::vector<std::string> here = lines_of(own), there = lines_of(texts[rank]);
    message = concat("error: the ranks of this job were not started alike\n  --> rank ", rank,
                     " on ", there[0], "\n  why : it has ", lines_that_differ(here, there),
                     "\n  try : the same ferry, files and arguments on every host");
  }
  fail(ExitCode::Usage, control.broadcast(message, 0, what));
}

}  // namespace ferry
