#include "app/bench_command.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <random>
#include <sstream>

#include "app/backend.h"
#include "app/bench.h"
#include "app/bench_checkpoint.h"
#include "app/bench_dense.h"
#include "app/bench_gemm.h"
#include "app/config_file.h"
#include "app/gemm_cache.h"
#include "app/job.h"

namespace ferry {
namespace {

struct Options {
  std::string config = "configs/quickstart.toml";
  std::vector<std::string> overrides;
  int64_t warmup = 3;
  int64_t steps = 20;
  bool json = false;

  RunConfig valid_config(const Runtime& runtime) const {
    return load_valid_config(config, overrides, runtime.size());
  }
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

void add_table(CLI::App& bench, const char* name, const char* text, bool multiplies, int& exit_code,
               std::vector<BenchRow> (*measure)(Stream&, const RunConfig&)) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = add_bench(bench, name, text, options);
  command->footer(concat("Example: ferry bench ", name, " configs/quickstart.toml"));
  command->callback([options, name, multiplies, measure, &exit_code] {
    exit_code = run_job([&](Runtime& runtime) {
      const RunConfig config = options->valid_config(runtime);
      const Backend backend = choose_backend(config, runtime);
      if (multiplies)
        open_gemm_cache(config, /*may_record=*/true, backend.device(), runtime.control());
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

void add_offload_bench(CLI::App& bench, int& exit_code) {
  struct OffloadOptions : Options {
    std::vector<std::string> cases;
  };
  const auto options = std::make_shared<OffloadOptions>();
  options->warmup = 2;
  options->steps = 5;
  CLI::App* command =
      add_bench(bench, "offload", "Steps with and without offload, side by side", options);
  command
      ->add_option("--case", options->cases,
                   "Overrides of the memory tables, separated by spaces; may be repeated")
      ->required();
  command->add_option("--warmup", options->warmup, "Steps of a case before the first that counts")
      ->check(CLI::PositiveNumber);
  command->add_option("--steps", options->steps, "Steps of a case; the median is reported")
      ->check(CLI::PositiveNumber);
  command->footer(
      "Example: ferry bench offload configs/quickstart.toml "
      "--case 'activation_offload.enabled=true activation_offload.modules=[core_attn]'");
  command->callback([options, &exit_code] {
    exit_code = run_job([&](Runtime& runtime) {
      const RunConfig config = options->valid_config(runtime);
      std::vector<RunConfig> cases;
      for (const std::string& text : options->cases) {
        std::vector<std::string> overrides = options->overrides;
        std::istringstream words(text);
        for (std::string word; words >> word;) overrides.push_back(word);
        cases.push_back(load_valid_config(options->config, overrides, runtime.size()));
      }
      return bench_offload(
          config, options->cases, cases, runtime,
          {options->warmup, options->steps, options->json, options->command("offload")});
    });
  });
}

void add_comm_bench(CLI::App& bench, int& exit_code) {
  struct CommOptions : Options {
    int64_t max_mib = 256;
  };
  const auto options = std::make_shared<CommOptions>();
  CLI::App* command =
      add_bench(bench, "comm", "Collectives and messages between ranks, from 4 KiB on", options);
  command->get_option("CONFIG")->description(
      "Configuration; only run.backend, model.precision and parallel.share_gpu count");
  command->add_option("--max-mib", options->max_mib, "The largest message; at most 1 GiB is sent")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->footer("Example: mpirun -n 2 ferry bench comm configs/quickstart.toml --max-mib 16");
  command->callback([options, &exit_code] {
    exit_code = run_job([&](Runtime& runtime) {
      const RunConfig config = load_config(options->config, options->overrides);
      return bench_comm(config, runtime, options->max_mib, options->json,
                        concat(options->command("comm"), " --max-mib ", options->max_mib));
    });
  });
}

void add_gemm_bench(CLI::App& bench, int& exit_code) {
  struct GemmOptions : Options {
    GemmBenchOptions bench;
    bool dense = false;
  };
  const auto options = std::make_shared<GemmOptions>();
  GemmBenchOptions& gemm = options->bench;
  gemm.seed = std::random_device()();
  CLI::App* command = add_bench(
      bench, "gemm", "The products of the experts, beside one batch of dense ones", options);
  command
      ->add_option("--rows-per-expert", gemm.rows_per_expert,
                   "Numbers of rows, separated by commas; by default those of a micro-batch")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::PositiveNumber);
  command->add_flag("--edge", gemm.edge, "Also experts with 0, 1, 63, 64, 65, 127 and 129 rows");
  command->add_flag("--sustained", gemm.sustained,
                    "At the clock that the device holds, not in bursts after pauses");
  command->add_option("--seed", gemm.seed, "Of operands and row counts; by default a new one");
  command
      ->add_flag("--dense", options->dense,
                 "Instead, the dense products of the model: cuBLAS's heuristic and the fastest")
      ->excludes("--edge")
      ->excludes("--rows-per-expert")
      ->excludes("--sustained")
      ->excludes("--seed");
  command->footer("Example: ferry bench gemm configs/quickstart.toml --rows-per-expert 16,64");
  command->callback([options, &exit_code] {
    exit_code = run_job([&](Runtime& runtime) {
      GemmBenchOptions& gemm = options->bench;
      const RunConfig config = options->valid_config(runtime);
      if (options->dense)
        return bench_dense(config, runtime, options->json, options->command("gemm") + " --dense");
      gemm.json = options->json;
      gemm.command = options->command("gemm");
      for (size_t i = 0; i < gemm.rows_per_expert.size(); ++i)
        gemm.command += concat(i == 0 ? " --rows-per-expert " : ",", gemm.rows_per_expert[i]);
      if (gemm.edge) gemm.command += " --edge";
      if (gemm.sustained) gemm.command += " --sustained";
      return bench_gemm(config, runtime, gemm);
    });
  });
}

void add_checkpoint_bench(CLI::App& bench, int& exit_code) {
  struct CheckpointOptions : Options {
    CheckpointBenchOptions bench;
  };
  const auto options = std::make_shared<CheckpointOptions>();
  options->bench.directory = ".";
  CLI::App* command =
      add_bench(bench, "checkpoint",
                "Saving and loading state, beside plain files on the same disk", options);
  command
      ->add_option("--gib", options->bench.gib,
                   "State of so many GiB, instead of what the configuration's model has")
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--dir", options->bench.directory,
                   "Directory on the disk, with room for 1.2 times the state")
      ->capture_default_str();
  command->add_option("--rounds", options->bench.rounds, "Times; the median is reported")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->footer("Example: ferry bench checkpoint --gib 4 --dir /tmp");
  command->callback([options, &exit_code] {
    exit_code = run_job([&](Runtime& runtime) {
      const RunConfig config = options->valid_config(runtime);
      CheckpointBenchOptions& bench_options = options->bench;
      bench_options.json = options->json;
      bench_options.command = options->command("checkpoint");
      if (bench_options.gib > 0) bench_options.command += concat(" --gib ", bench_options.gib);
      bench_options.command +=
          concat(" --dir ", bench_options.directory, " --rounds ", bench_options.rounds);
      return bench_checkpoint(config, runtime, bench_options);
    });
  });
}

void add_adam_bench(CLI::App& bench, int& exit_code) {
  struct AdamOptions {
    int64_t elements = 0;
    bool json = false;
  };
  const auto options = std::make_shared<AdamOptions>();
  CLI::App* command =
      bench.add_subcommand("adam", "The optimizer's update on the host, beside its memory's rates");
  command
      ->add_option("--elements", options->elements,
                   "Parameters; by default four times what fits in the cache, if memory allows")
      ->check(CLI::PositiveNumber);
  command->add_flag("--json", options->json, "One JSON object a row");
  command->footer("Example: ferry bench adam --elements 1000000");
  command->callback([options, &exit_code] {
    exit_code = run_job([&](Runtime& runtime) {
      std::string text = "ferry bench adam";
      if (options->elements > 0) text += concat(" --elements ", options->elements);
      return bench_adam(runtime, options->elements, options->json, text);
    });
  });
}

}  // namespace

void add_bench_command(CLI::App& root, int& exit_code) {
  CLI::App* bench = root.add_subcommand("bench", "Measures rates against this machine's ceilings");
  bench->require_subcommand(1);
  bench->footer("Example: ferry bench copy");
  add_table(*bench, "ops", "Every operation of a configuration's layer", /*multiplies=*/true,
            exit_code, bench_ops);
  add_table(*bench, "copy", "Copies within and between memories", /*multiplies=*/false, exit_code,
            [](Stream& stream, const RunConfig&) { return bench_copy(stream); });

  const auto options = std::make_shared<Options>();
  CLI::App* step = add_bench(*bench, "step", "Whole training steps", options);
  step->add_option("--warmup", options->warmup, "Steps before the first that counts")
      ->check(CLI::NonNegativeNumber);
  step->add_option("--steps", options->steps, "Steps that count; the median is reported")
      ->check(CLI::PositiveNumber);
  const auto kernels = std::make_shared<bool>(false);
  step->add_flag("--kernels", *kernels, "Also the time of each kernel of a GPU, in two steps more");
  step->footer("Example: ferry bench step configs/bench/olmoe_8l.toml --steps 20");
  step->callback([options, kernels, &exit_code] {
    exit_code = run_job([&](Runtime& runtime) {
      const RunConfig config = options->valid_config(runtime);
      return bench_step(config, runtime,
                        {options->warmup, options->steps, *kernels, options->json,
                         concat(options->command("step"), *kernels ? " --kernels" : "")});
    });
  });

  add_offload_bench(*bench, exit_code);
  add_comm_bench(*bench, exit_code);
  add_gemm_bench(*bench, exit_code);
  add_adam_bench(*bench, exit_code);
  add_checkpoint_bench(*bench, exit_code);

  struct PipelineOptions {
    int64_t forward_us = 4000;
    int64_t steps = 5;
    bool json = false;
  };
  const auto pipeline_options = std::make_shared<PipelineOptions>();
  CLI::App* pipeline = bench->add_subcommand(
      "pipeline", "The bubble of pipeline schedules, with busy loops on the ranks' CPUs as passes");
  pipeline
      ->add_option("--forward-us", pipeline_options->forward_us,
                   "Time of a forward pass through all chunks of a rank; backward takes twice it")
      ->check(CLI::PositiveNumber);
  pipeline->add_option("--steps", pipeline_options->steps, "Steps; the median is reported")
      ->check(CLI::PositiveNumber);
  pipeline->add_flag("--json", pipeline_options->json, "One JSON object a row");
  pipeline->footer(
      "Example: mpirun -n 4 ferry bench pipeline\nEvery rank needs a core of its own.");
  pipeline->callback([options = pipeline_options, &exit_code] {
    exit_code = run_job([&](Runtime& runtime) {
      return bench_pipeline(runtime, options->forward_us, options->steps, options->json,
                            concat("ferry bench pipeline --forward-us ", options->forward_us,
                                   " --steps ", options->steps));
    });
  });
}

}  // namespace ferry
