#include "app/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "app/activation_memory.h"  // where saved activations live (offload)
#include "app/backend.h"            // which device, which collectives
#include "app/batch_feed.h"         // micro-batches on the device
#include "app/console.h"            // what a person sees
#include "app/data_spec.h"          // [data] -> token files, order, loader (app/data)
#include "app/evaluation.h"         // loss on held-out data
#include "app/gemm_cache.h"         // measured algorithms of products
#include "app/host_memory.h"        // is there enough for what is offloaded
#include "app/host_sum.h"           // numbers summed over ranks
#include "app/metrics.h"            // metrics.jsonl, events.jsonl
#include "app/model/cost_model.h"   // FLOPs and bytes
#include "app/model_layout.h"       // the part of a rank (pipeline)
#include "app/optimizer_offload.h"  // the part of the optimizer on the host
#include "app/rank_memory.h"        // what a rank needs
#include "app/run_directory.h"      // runs/NAME
#include "app/sample_log.h"         // which samples were used (debug)
#include "app/saver.h"              // checkpoints, beside training or not
#include "app/start.h"              // where a run begins: resume, run directory
#include "app/step_report.h"        // the numbers of a step
#include "app/stop_request.h"       // signals, STOP, SAVE, time limit
#include "app/train_model.h"        // model, gradients (optim), optimizer, state
#include "core/host_copy.h"
#include "core/mark.h"  // where this rank is
#include "core/ops/elementwise.h"
#include "core/seconds_since.h"

namespace ferry {
namespace {

using Clock = std::chrono::steady_clock;

Backend open_backend(const RunConfig& config, Runtime& runtime) {
  Backend backend = choose_backend(config, runtime);
  require_gpu_for_graphs(config, backend);
  open_gemm_cache(config, /*may_record=*/false, backend.device(), runtime.control(),
                  [&](const std::string& notice) {
                    backend.notice += (backend.notice.empty() ? "" : "\n! ") + notice;
                  });
  return backend;
}

// The ranks of the run, if their hosts have the memory that they need: asked before anything large
// is allocated.
Mesh open_mesh(const RunConfig& config, Runtime& runtime) {
  const Mesh mesh(runtime.size(), mesh_sizes(config.parallel));
  require_host_memory(stage_memory(config, runtime.size(), mesh.at(runtime.rank()).pp), config,
                      runtime.host_name(), runtime.control());
  return mesh;
}

}  // namespace

struct Trainer::Parts {
  Parts(const RunConfig& config_in, Runtime& runtime_in, const std::string& command_line);

  ExitCode run();
  StepReport train_step();
  ParallelModel::Input run_passes(int64_t step);
  struct Totals;
  Totals read_totals(double tokens);
  [[noreturn]] void stop_for_nonfinite(const StepReport& report);
  void log_step(const StepReport& report);
  void report_activation_memory(StepReport& report);
  double evaluate_now();
  bool main_rank() const { return runtime.rank() == 0; }

  const RunConfig config;
  Runtime& runtime;
  const std::filesystem::path dir;
  StopRequest stop_request;  // early: the time limit includes the start, and signals are kept
  Mesh mesh;
  Backend backend;
  MeshGroups groups;
  std::unique_ptr<Stream> stream;

  TrainModel model;
  OptimizerOffload optimizer_offload;

  std::shared_ptr<const TokenDataset> train_data;
  std::shared_ptr<const TokenDataset> valid_data;
  std::unique_ptr<Loader> loader;

  std::unique_ptr<Console> console;
  JsonLines metrics;
  JsonLines events;

  Progress progress;
  Request request;  // of any rank, agreed in the last step
  std::unique_ptr<Saver> saver;
  bool offload_described = false;
};

struct Trainer::Parts::Totals {
  double loss, tokens, aux, z;
  double save_requests, stop_requests, busy_savers;  // ranks
  std::vector<double> expert_tokens;                 // [MoE layer * experts]
};

Trainer::Trainer(const RunConfig& config, Runtime& runtime, const std::string& command_line)
    : parts_(std::make_unique<Parts>(config, runtime, command_line)) {}

Trainer::~Trainer() = default;

ExitCode Trainer::run() {
  try {
    return parts_->run();
  } catch (const Error& error) {
    log_error(parts_->dir, parts_->runtime.rank(), error.what());
    throw;
  }
}

Trainer::Parts::Parts(const RunConfig& config_in, Runtime& runtime_in,
                      const std::string& command_line)
    : config(config_in),
      runtime(runtime_in),
      dir(config.run.dir),
      stop_request(dir, config.run.time_limit_minutes),
      mesh(open_mesh(config, runtime)),
      backend(open_backend(config, runtime)),
      groups(mesh, *backend.world),
      stream(backend.device().make_stream("compute")),
      model(config, *stream, groups, runtime.local_size()),
      optimizer_offload(config, model, runtime, *backend.world) {
  train_data = open_dataset(training_data_spec(config, runtime.size()));
  valid_data = open_validation_data(config, runtime.size());

  const Start begin = begin_run(config, runtime, model, *train_data);
  progress = begin.progress;
  LoaderConfig share = loader_config(config, groups);
  share.consumed_samples = progress.samples;
  share.on_next = sample_log(config, groups, progress.samples);
  loader = std::make_unique<Loader>(train_data, share);

  write_marks_to(dir / "log", runtime.rank(), runtime.size(), runtime.host_name());
  const std::vector<std::string> bindings =
      runtime.control().gather(backend.binding, 0, "bindings of ranks");
  if (main_rank()) describe_run(dir, config, mesh, bindings, command_line, backend.device().name());
  console = std::make_unique<Console>(main_rank(), dir);
  if (main_rank()) {
    cut_metrics_after(dir, progress.step);
    metrics = JsonLines(dir / "metrics.jsonl");
    events = JsonLines(dir / "events.jsonl");
    nlohmann::ordered_json start = event("start", progress.step);
    start["ranks"] = runtime.size();
    start["resume"] = begin.description;
    events.write(start);
  }
  console->line(banner(config, mesh, backend, runtime.host_name(), train_data->describe(),
                       begin.description));
  for (const std::string& line : optimizer_offload.begin()) console->line(line);
  saver = std::make_unique<Saver>(
      Saver::Run{config, runtime, model, *console, events, posix_file_system()}, begin,
      grid_text(config, mesh), train_data->fingerprint());
}

ExitCode Trainer::Parts::run() {
  const int64_t end = std::min(
      config.run.steps, config.run.stop_at_step.value_or(std::numeric_limits<int64_t>::max()));
  const auto start = Clock::now();
  const int64_t first_step = progress.step;
  if (progress.step >= end)
    console->line(fmt::format("nothing to do: step {} of {} is done", progress.step, end));
  if (config.debug.save_step_0 && progress.step == 0) saver->begin(progress, "debug.save_step_0");

  while (progress.step < end && !request.stop) {
    StepReport report = train_step();
    const bool at_eval = config.run.eval_every > 0 && valid_data &&
                         (report.step % config.run.eval_every == 0 || report.step == end);
    if (at_eval) report.valid_loss = evaluate_now();
    log_step(report);
    const bool at_save = config.checkpoint.every > 0 && report.step % config.checkpoint.every == 0;
    if (at_save || request.save)
      saver->begin(progress, at_save ? "checkpoint.every" : "requested",
                   stop_request.seconds_left());
  }
  saver->finish();
  // Exit code 76 promises a save.
  if ((config.checkpoint.save_at_exit || request.stop) && saver->saved_step() != progress.step)
    saver->save(progress, request.stop ? "stop requested" : "end");

  const bool stopped = request.stop && progress.step < end;
  const double seconds = seconds_since(start);
  const auto tokens = static_cast<double>((progress.step - first_step) *
                                          config.global_batch(runtime.size()) * config.model.seq);
  if (tokens > 0)
    console->line(fmt::format("{} at step {} of {} | {} tokens in {} | {} tok/s",
                              stopped ? "stopped" : "done", progress.step, config.run.steps,
                              count_text(tokens), duration_text(seconds),
                              count_text(tokens / seconds)));
  if (main_rank()) events.write(event(stopped ? "stopped" : "done", progress.step));
  return stopped ? ExitCode::Stopped : ExitCode::Done;
}

// One optimizer step: a transaction. Nothing durable changes before all ranks agree that the loss
// and the gradients are finite.
StepReport Trainer::Parts::train_step() {
  const auto start = Clock::now();
  StepReport report;
  report.step = progress.step + 1;
  mark(report.step, "start of the step");
  const int64_t num_micro = config.num_microbatches(runtime.size());
  if (config.debug.throw_at.step == report.step &&
      config.debug.throw_at.rank.value_or(0) == runtime.rank())
    fail(ExitCode::Internal, "debug.throw_at: rank ", runtime.rank(), " at step ", report.step);

  const ParallelModel::Input input = run_passes(report.step);
  report.data_seconds = input.data_seconds;
  if (config.debug.nonfinite_at_step == report.step && !model.parameters().empty())
    fill(*stream, model.parameters().front()->grad, std::numeric_limits<double>::quiet_NaN());

  mark(report.step, "sum of losses over ranks");
  const Totals totals = read_totals(input.num_loss_tokens);
  const double mean_of = static_cast<double>(num_micro * mesh.dp() * num_moe_layers(config.gpt()));
  report.loss = totals.loss / totals.tokens;
  report.tokens = totals.tokens;
  const RouterConfig& router = config.moe.router;
  if (mean_of > 0 && router.coefficient("aux_loss") > 0) report.aux_loss = totals.aux / mean_of;
  if (mean_of > 0 && router.z_coeff > 0) report.z_loss = totals.z / mean_of;
  request = {totals.save_requests > 0, totals.stop_requests > 0};
  set_expert_tokens(report, totals.expert_tokens, config.moe.experts);

  mark(report.step, "optimizer");
  const auto backward_done = Clock::now();
  report.grad_norm = model.gradient_norm(report.tokens);
  if (!std::isfinite(report.loss) || !std::isfinite(report.grad_norm)) stop_for_nonfinite(report);

  saver->before_update();
  report.lr = model.update(report.step, report.tokens, report.grad_norm);
  stream->record().wait_host();
  report.optimizer_seconds = seconds_since(backward_done);

  progress.step = report.step;
  progress.samples = loader->consumed_samples();
  progress.tokens = progress.samples * config.model.seq;
  report.samples = progress.samples;
  report.total_tokens = progress.tokens;
  report.seconds = seconds_since(start);
  report.flops = flops_per_token(config.gpt()).total() *
                 static_cast<double>(config.global_batch(runtime.size()) * config.model.seq);
  const double peak = peak_flops(backend.device().name(), config.model.precision);
  if (peak > 0) report.mfu = report.flops / report.seconds / (peak * mesh.world());
  report.peak_bytes = backend.device().memory().peak();
  report.pinned_bytes = backend.device().pinned_memory().current();
  report_activation_memory(report);
  for (const std::string& line : optimizer_offload.after_step(report)) console->line(line);
  report.checkpoint_seconds = saver->take_stall_seconds();
  saver->poll(static_cast<int64_t>(totals.busy_savers));
  return report;
}

// What moved in the step; and once, when it is planned, what offload moves on every rank.
void Trainer::Parts::report_activation_memory(StepReport& report) {
  ActivationMemory& memory = model.activation_memory();
  for (const auto& usage : memory.saved_bytes().table())
    if (usage.peak > 0) report.activation_bytes[usage.name] = usage.peak;
  const std::vector<std::string> modules = moved_modules(config);
  if (modules.empty()) return;
  TrafficByModule traffic = memory.traffic();
  std::vector<double> sums;
  for (const std::string& module : modules) {
    const ModuleTraffic& moved = traffic[module];
    sums.push_back(static_cast<double>(moved.d2h_bytes));
    sums.push_back(static_cast<double>(moved.h2d_bytes));
    sums.push_back(moved.exposed_s);
  }
  sum_over_ranks(sums, *backend.world, *stream);
  for (size_t i = 0; i < modules.size(); ++i) {
    report.d2h_bytes[modules[i]] = sums[3 * i];
    report.h2d_bytes[modules[i]] = sums[3 * i + 1];
    report.offload_exposed_s[modules[i]] = sums[3 * i + 2] / runtime.size();
  }

  if (offload_described || !memory.summary()) return;
  const std::string achieved = memory.auto_report();
  if (config.activation_offload.auto_budget > 0 && achieved.empty()) return;
  offload_described = true;
  const std::vector<std::string> ranks = runtime.control().gather(
      nlohmann::json(*memory.summary()).dump(), 0, "summary of activation offload");
  if (!main_rank()) return;
  std::vector<std::map<std::string, int64_t>> bytes;
  for (const std::string& rank : ranks)
    bytes.push_back(nlohmann::json::parse(rank).get<std::map<std::string, int64_t>>());
  std::string text = offload_summary(bytes);
  if (!achieved.empty()) text = achieved + "\n" + text;
  write_offload_summary(dir, text);
  console->line(text);
  if (std::all_of(bytes.begin(), bytes.end(), [](const auto& rank) { return rank.empty(); }))
    console->notice(
        fmt::format("activation offload moves nothing: no saved tensor has "
                    "activation_offload.min_tensor_elements = {} elements, or all groups stay",
                    config.activation_offload.min_tensor_elements));
}

// Forward and backward of the step; a second time, with the same data and without limits, if one
// was exceeded anywhere.
ParallelModel::Input Trainer::Parts::run_passes(int64_t step) {
  BatchFeed feed(*stream, *loader, model.has_limits());
  const auto run = [&] {
    model.begin_step();
    const ParallelModel::Input input = model.forward_backward(feed, progress.samples, step);
    model.finish_backward();
    return input;
  };
  ParallelModel::Input input = run();
  if (!model.has_limits()) return input;
  const TrainModel::Exceeded exceeded = model.exceeded();
  if (exceeded.stash_spilled > 0 && main_rank()) events.write(event("stash_spilled", step));
  if (!exceeded.worthless()) return input;
  console->notice(
      fmt::format("step {} is run again without limits: {} of {} ranks got more rows than "
                  "moe.rank_capacity_factor = {} allows, and the stash of {} had too few pages",
                  step, exceeded.over_capacity, runtime.size(),
                  config.moe.rank_capacity_factor.value_or(0), exceeded.stash_overflow));
  if (main_rank()) {
    nlohmann::ordered_json again = event("step_again", step);
    again["ranks_over_capacity"] = exceeded.over_capacity;
    again["ranks_with_stash_overflow"] = exceeded.stash_overflow;
    events.write(again);
  }
  feed.rewind();
  model.set_limits(false);
  const double waited = input.data_seconds;
  input = run();
  input.data_seconds += waited;
  model.set_limits(true);
  return input;
}

void Trainer::Parts::stop_for_nonfinite(const StepReport& report) {
  saver->finish();  // all ranks are here
  if (main_rank()) {
    metrics.write(nonfinite_line(report));
    events.write(event("nonfinite", report.step));
  }
  fail(ExitCode::Numerical, "error: non-finite numbers at step ", report.step, ": loss ",
       report.loss, ", gradient norm ", report.grad_norm, "\n  --> samples ", progress.samples,
       " to ", progress.samples + config.global_batch(runtime.size()) - 1,
       "\n  why : the update was not made; ", saver->saved_text(),
       "\n  try : resume with a smaller optimizer.lr or optimizer.clip_norm");
}

// Summed over ranks, each of which brings what no other rank has.
Trainer::Parts::Totals Trainer::Parts::read_totals(double tokens) {
  const Request own = stop_request.poll(main_rank());
  const auto total = [&](const char* name) { return read_total(*stream, model.totals(), name); };
  std::vector<double> sums{total("loss"),        tokens,           total("aux_loss"),
                           total("z_loss"),      double(own.save), double(own.stop),
                           double(saver->busy())};
  const size_t first = sums.size();
  const auto experts = static_cast<size_t>(config.moe.experts);
  sums.resize(first + static_cast<size_t>(num_moe_layers(config.gpt())) * experts);
  for (const auto& [moe_layer, name] : model.model().expert_counts()) {
    const std::vector<double> counts = read_back_as_double(*stream, model.totals().all().at(name));
    std::copy(
        counts.begin(), counts.end(),
        sums.begin() + static_cast<int64_t>(first + static_cast<size_t>(moe_layer) * experts));
  }
  sum_over_ranks(sums, *backend.world, *stream);
  return {sums[0], sums[1], sums[2], sums[3],
          sums[4], sums[5], sums[6], {sums.begin() + static_cast<int64_t>(first), sums.end()}};
}

void Trainer::Parts::log_step(const StepReport& r) {
  const bool logs = r.step % config.run.log_every == 0 || r.step <= 3 || r.step == config.run.steps;
  if (logs)
    console->step(r, config.run.steps, runtime.size(),
                  backend.on_gpu() ? backend.device().total_bytes() : 0);
  if (r.valid_loss)
    console->line(fmt::format("valid loss {:.4f} at step {}", *r.valid_loss, r.step));
  if (!main_rank()) return;
  nlohmann::ordered_json line = metrics_line(r, {runtime.size(), backend.on_gpu()});
  if (!logs) line.erase("expert_tokens");
  metrics.write(line);
}

double Trainer::Parts::evaluate_now() {
  mark(progress.step, "evaluation");
  model.finish_update();
  const EvaluationResult result =
      evaluate(model.model(), valid_data, config.run.eval_batches, model.evaluation_hooks());
  if (main_rank()) {
    nlohmann::ordered_json evaluation = event("evaluation", progress.step);
    evaluation["valid_loss"] = result.loss;
    evaluation["tokens"] = result.tokens;
    events.write(evaluation);
  }
  return result.loss;
}

}  // namespace ferry
