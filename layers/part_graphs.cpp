#include "layers/part_graphs.h"

namespace ferry {

void KeepInGraph::saved(Record& record, Stream&) {
  for (const auto& tensor : record.tensors)
    if (tensor) saved_.insert(tensor);
}

std::vector<Tensor> KeepInGraph::take(Stream& stream, MemoryLedger* ledger) {
  std::vector<Tensor> kept;
  for (const auto& saved : std::exchange(saved_, {})) {
    if (!saved->on_device()) continue;  // discarded: made again by the graph of backward
    kept.push_back(saved->get(stream));
    if (ledger != nullptr) ledger->add(name_of(saved->label()), saved->bytes());
  }
  return kept;
}

}  // namespace ferry
