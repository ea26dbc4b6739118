#include "app/data/gpt_dataset.h"

#include "app/data/fingerprint.h"
#include "core/check.h"

#include <algorithm>
#include <utility>

namespace ferry {
namespace {

SampleOrder order_of(const TokenFile& file, const GptDataset::Options& options) {
  const SequenceRange range = options.range;
  int64_t tokens = 0;
  for (int64_t i = range.begin; i < range.end; ++i) tokens += file.lengths()[i];
  const bool repeats = options.num_samples > 0;
  if (tokens < 1 || (!repeats && tokens < options.seq + 1)) {
    fail(ExitCode::Data, file.name(), ": sequences ", range.begin, " to ", range.end, " of ",
         file.num_sequences(), " hold ", tokens, " tokens, too few for one sample of ",
         options.seq + 1, "; change data.split or add data");
  }
  return make_sample_order(file.lengths(), range, options.seq, options.num_samples, options.seed);
}

}  // namespace

GptDataset::GptDataset(TokenFile file, const Options& options)
    : file_(std::move(file)), options_(options), order_(order_of(file_, options)) {}

void GptDataset::sample(int64_t index, std::span<int32_t> out) const {
  CHECK(index >= 0 && index < size(), "sample ", index, " of ", size());
  CHECK(static_cast<int64_t>(out.size()) == seq() + 1, out.size(), " tokens");
  SamplePosition at = order_.positions[order_.shuffle[index]];
  while (!out.empty()) {
    const int32_t sequence = order_.documents[at.position];
    const int64_t available = file_.lengths()[sequence] - at.offset;
    const auto count = std::min(out.size(), static_cast<size_t>(available));
    file_.read(sequence, at.offset, options_.vocab, out.first(count));
    out = out.subspan(count);
    at = {at.position + 1, 0};
  }
}

uint64_t GptDataset::fingerprint() const {
  // What the run asks for (num_samples) is left out where it does not change the order, so that a
  // run can be made longer within its last epoch.
  Fingerprint print;
  print.add(file_.fingerprint());
  print.add(options_.range.begin);
  print.add(options_.range.end);
  print.add(options_.seq);
  print.add(options_.seed);
  print.add(order_.num_epochs);
  print.add(order_.separate_from);
  return print.value();
}

std::string GptDataset::describe() const {
  return concat(file_.name(), ": sequences ", options_.range.begin, "-", options_.range.end, " of ",
                file_.num_sequences(), ", ", size(), " samples of ", seq(), " tokens, ",
                order_.num_epochs, order_.num_epochs == 1 ? " epoch" : " epochs");
}

}  // namespace ferry
