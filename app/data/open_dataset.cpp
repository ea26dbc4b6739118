#include "app/data/token_dataset.h"

#include "app/data/blend_order.h"
#include "app/data/blended_dataset.h"
#include "app/data/gpt_dataset.h"
#include "app/data/other_token_files.h"
#include "app/data/synthetic_dataset.h"
#include "core/check.h"

#include <limits>
#include <utility>

namespace ferry {
namespace {

// A wrong tokenizer shows at once; reading every file whole at each start would take too long.
constexpr int64_t kScannedTokens = int64_t{64} << 20;

constexpr const char* kSplitNames[] = {"train", "valid", "test"};

std::unique_ptr<TokenDataset> open_part(const DataSpec& spec, const std::string& path,
                                        int64_t num_samples) {
  TokenFile file = open_token_file(spec.kind, path, spec.vocab, spec.eod);
  file.scan(spec.vocab, kScannedTokens);
  GptDataset::Options options{.range = {0, file.num_sequences()},
                              .seq = spec.seq,
                              .num_samples = num_samples,
                              .vocab = spec.vocab,
                              .seed = spec.seed};
  if (!spec.split.empty()) {
    options.range = split_sequences(spec.split, file.num_sequences())[spec.split_index];
  }
  if (options.range.begin == options.range.end) {
    fail(ExitCode::Data, file.name(), ": data.split = \"", spec.split, "\" leaves none of its ",
         file.num_sequences(), " sequences for ", kSplitNames[spec.split_index]);
  }
  return std::make_unique<GptDataset>(std::move(file), options);
}

std::unique_ptr<TokenDataset> open_weighted(const DataSpec& spec, const BlendSpec& blend) {
  if (spec.num_samples <= 0) {
    fail(ExitCode::Usage,
         "a blend with weights has no natural size: the number of samples is needed");
  }
  const auto sizes = blend_sizes(blend.weights, spec.num_samples);
  int64_t total = 0;
  std::vector<std::unique_ptr<TokenDataset>> parts;
  for (size_t i = 0; i < sizes.size(); ++i) {
    parts.push_back(open_part(spec, blend.paths[i], blend_build_size(sizes[i])));
    total += sizes[i];
  }
  BlendOrder order = make_blend_order(blend.weights, total);
  return std::make_unique<BlendedDataset>(std::move(parts), blend.weights, std::move(order));
}

// Every file once; weights in proportion to the number of samples.
std::unique_ptr<TokenDataset> open_unweighted(const DataSpec& spec, const BlendSpec& blend) {
  std::vector<std::unique_ptr<TokenDataset>> parts;
  std::vector<int64_t> sizes;
  int64_t total = 0;
  for (const std::string& path : blend.paths) {
    parts.push_back(open_part(spec, path, 0));
    sizes.push_back(parts.back()->size());
    total += sizes.back();
  }
  if (spec.num_samples > total) {
    fail(ExitCode::Data, "the run needs ", spec.num_samples, " samples, but the ", sizes.size(),
         " data files hold ", total,
         " and files without weights are read once; give weights "
         "(weight, path, weight, path, ...) to read them more often");
  }
  std::vector<double> weights;
  for (const int64_t size : sizes) {
    weights.push_back(static_cast<double>(size) / static_cast<double>(total));
  }
  BlendOrder order = spec.num_samples > 0 ? make_blend_order(weights, spec.num_samples)
                                          : make_exhaustive_blend_order(sizes);
  return std::make_unique<BlendedDataset>(std::move(parts), std::move(weights), std::move(order));
}

}  // namespace

std::unique_ptr<TokenDataset> open_dataset(const DataSpec& spec) {
  CHECK(spec.split_index >= 0 && spec.split_index < 3);
  if (spec.seq < 1 || spec.vocab < 1 || spec.vocab > kAnyVocab) {
    fail(ExitCode::Usage, "model.seq = ", spec.seq, " and model.vocab = ", spec.vocab,
         " must be at least 1, and the vocabulary at most 2^31");
  }
  if (spec.kind == "synthetic") {
    const int64_t size =
        spec.num_samples > 0 ? spec.num_samples : std::numeric_limits<int64_t>::max();
    const uint64_t seed = spec.seed * 3 + static_cast<uint64_t>(spec.split_index);
    return std::make_unique<SyntheticDataset>(size, spec.seq, spec.vocab, seed);
  }
  const BlendSpec blend = parse_blend(spec.paths);
  if (blend.paths.empty()) {
    fail(ExitCode::Usage, "data.", kSplitNames[spec.split_index], " names no files");
  }
  if (blend.paths.size() == 1) return open_part(spec, blend.paths[0], spec.num_samples);
  return blend.weights.empty() ? open_unweighted(spec, blend) : open_weighted(spec, blend);
}

}  // namespace ferry
