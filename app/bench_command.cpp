#include "app/bench_command.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "app/backend.h"
#include "app/bench.h"
#include "app/config_file.h"
#include "app/job.h"

namespace ferry {
namespace {

struct Options {
  std::string config = "configs/quickstart.toml";
  std::vector<std::string> overrides;
  int64_t warmup = 3;
  int64_t steps = 20;
  bool json = false;

  std::string command(const char* what) const {
    std::string text = concat("ferry bench ", what, ' ', config);
    for (const std::string& override : overrides) text += ' ' + override;
    return text;
  }
};

CLI::App* add_bench(CLI::App& bench, const char* name, const char* text,
                    const std::shared_ptr<Options>& options) {
  CLI::App* command = bench.add_subcommand(name, text);
  command->add_option("CONFIG", options->config, "Configuration whose shapes are measured");
  command->add_option("OVERRIDES", options->overrides, "table.key=value ...");
  command->add_flag("--json", options->json, "One JSON object a row");
  return command;
}

void add_table(CLI::App& bench, const char* name, const char* text, int& exit_code,
               std::vector<BenchRow> (*measure)(Stream&, const RunConfig&)) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = add_bench(bench, name, text, options);
  command->footer(concat("Example: ferry bench ", name, " configs/quickstart.toml"));
  command->callback([options, name, measure, &exit_code] {
    exit_code = run_job([&](Runtime& runtime) {
      const RunConfig config =
          load_valid_config(options->config, options->overrides, runtime.size());
      const Backend backend = choose_backend(config.run.backend, config.model.precision, runtime);
      const auto stream = backend.device().make_stream("bench");
      const std::vector<BenchRow> rows = measure(*stream, config);
      if (runtime.rank() == 0)
        std::cout << (options->json ? bench_json(rows, config.run.name, backend.device().name(),
                                                 options->command(name))
                                    : bench_table(rows))
                  << std::flush;
      return ExitCode::Done;
    });
  });
}

}  // namespace

void add_bench_command(CLI::App& root, int& exit_code) {
  CLI::App* bench = root.add_subcommand("bench", "Measures rates against this machine's ceilings");
  bench->require_subcommand(1);
  bench->footer("Example: ferry bench copy");
  add_table(*bench, "ops", "Every operation of a configuration's layer", exit_code, bench_ops);
  add_table(*bench, "copy", "Copies within and between memories", exit_code,
            [](Stream& stream, const RunConfig&) { return bench_copy(stream); });

  const auto options = std::make_shared<Options>();
  CLI::App* step = add_bench(*bench, "step", "Whole training steps", options);
  step->add_option("--warmup", options->warmup, "Steps before the first that counts")
      ->check(CLI::NonNegativeNumber);
  step->add_option("--steps", options->steps, "Steps that count; the median is reported")
      ->check(CLI::PositiveNumber);
  step->footer("Example: ferry bench step configs/bench/olmoe_8l.toml --steps 20");
  step->callback([options, &exit_code] {
    exit_code = run_job([&](Runtime& runtime) {
      const RunConfig config =
          load_valid_config(options->config, options->overrides, runtime.size());
      return bench_step(config, runtime, options->warmup, options->steps, options->json,
                        options->command("step"));
    });
  });
}

}  // namespace ferry
