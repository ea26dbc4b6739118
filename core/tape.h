#pragma once

// What forward saved for backward. A stack of labelled records: forward pushes, backward pops and
// the label is checked, so backward is forward read backwards.
//
// Where a saved tensor lives meanwhile - on the device, on the host, in stash pages, or nowhere
// because it is cheap to rebuild - is decided by a TapePolicy and hidden behind Residence. Layers
// never know; whatever the policy, loss and gradients are bit-identical.
//
// A tensor saved by several modules (a norm's output, saved again as a linear's input) is one
// SavedTensor: the tape recognises it by its storage.

#include <array>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/tensor.h"

namespace ferry {

/// The module names users know from offload and recompute settings; `name_of` spells them.
enum class Label : uint8_t {
  Embedding,
  AttnNorm,
  QkvLinear,
  QkNorm,
  CoreAttn,
  AttnProj,
  MlpNorm,
  Router,
  ExpertFc1,
  MoeAct,
  ExpertFc2,
  FusedGroupMlp,
  Mlp,
  SharedExperts,
  Moe,
  MlaUpProj,
  Layernorm,
  MoePermute,
  Dropout,
  FinalNorm,
  LossHead,
  Attn,   // a layer's attention as a whole
  Layer,  // a whole layer, or several, computed again from their input
};
std::string_view name_of(Label label);
/// The label of this name, if there is one.
std::optional<Label> label_of(std::string_view name);

/// Where a saved tensor is while it is not on the device.
class Residence {
 public:
  virtual ~Residence() = default;
  /// The tensor, ready for use on `stream`.
  virtual Tensor bring_back(Stream& stream) = 0;
};

/// A tensor on the tape. Destroyed with the last record that saved it. It belongs to the module
/// that saved it last.
class SavedTensor {
 public:
  /// `ledger` (may be null, must outlive this) counts the bytes on the device under the name of the
  /// module that the tensor belongs to.
  SavedTensor(Tensor tensor, Label label, MemoryLedger* ledger);
  ~SavedTensor();
  SavedTensor(const SavedTensor&) = delete;
  SavedTensor& operator=(const SavedTensor&) = delete;

  bool on_device() const { return tensor_.defined(); }
  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  Label label() const { return label_; }
  int64_t bytes() const { return shape_.numel() * static_cast<int64_t>(size_of(dtype_)); }
  /// The tensor, brought back on `stream` if it is elsewhere; then it stays until destroyed.
  const Tensor& get(Stream& stream);
  /// Lets go of the device memory; `residence` can bring the tensor back.
  void move_to(std::unique_ptr<Residence> residence);
  /// A later module saves the tensor, too.
  void belongs_to(Label label);

 private:
  void count(bool on_device) const;

  Tensor tensor_;
  std::unique_ptr<Residence> residence_;
  Shape shape_;
  DType dtype_;
  Label label_;
  MemoryLedger* ledger_;
};

/// Makes a tensor again from others, enqueued on `stream`; bit-identical to the first time.
using Rebuild = std::function<Tensor(Stream& stream, std::span<const Tensor> inputs)>;

/// One save() of a module. The shapes are those the module saved; the tensors may be views.
struct Record {
  Label label;
  std::vector<std::shared_ptr<SavedTensor>> tensors;
  std::vector<Shape> shapes;
  std::vector<std::shared_ptr<SavedTensor>> rebuildable;  // kept alive for the records above
  /// I32 [1] on the device: the tensors' rows that are in use, the others are padding. Undefined:
  /// all of them.
  Tensor num_rows;
};

/// Decides where saved tensors live. The base class keeps everything on the device.
class TapePolicy {
 public:
  virtual ~TapePolicy() = default;
  /// True to drop rebuildable tensors of this label and rebuild them when they are loaded.
  virtual bool discards(Label) const { return false; }
  /// A record was pushed; `stream` is where its tensors are ready.
  virtual void saved(Record&, Stream&) {}
  /// A record is about to be loaded on `stream`.
  virtual void loading(Record&, Stream&) {}
  /// All records of the micro-batch were saved.
  virtual void forward_done(Stream&) {}
  /// All records were loaded, and the work of backward is enqueued.
  virtual void backward_done(Stream&) {}
};

class Tape {
 public:
  enum class Mode { Record, Off /* evaluation: save does nothing */ };
  /// `policy` may be null (keep everything), `ledger` may be null (count nothing); both must
  /// outlive the tape.
  explicit Tape(Mode mode = Mode::Record, TapePolicy* policy = nullptr,
                MemoryLedger* ledger = nullptr)
      : mode_(mode), policy_(policy), ledger_(ledger) {}

  bool recording() const { return mode_ == Mode::Record; }
  bool empty() const { return records_.empty(); }
  size_t num_records() const { return records_.size(); }
  /// Bytes of saved tensors on the device, by module; may be null.
  MemoryLedger* ledger() const { return ledger_; }
  /// May be null.
  const TapePolicy* policy() const { return policy_; }

  /// Needed in backward. An undefined tensor is saved as undefined. `num_rows`: see Record.
  void save(Stream& stream, Label label, std::initializer_list<Tensor> tensors,
            const Tensor& num_rows = {});

  /// `tensor` is cheap to make again from `inputs`, which are on the tape; an undefined input is
  /// given to `rebuild` as undefined. If the policy discards `label`, records that save `tensor`
  /// from now on hold no memory for it.
  void save_rebuildable(Label label, const Tensor& tensor, std::initializer_list<Tensor> inputs,
                        Rebuild rebuild);

  /// Pops the newest record, which must have this label and N tensors.
  template <size_t N>
  std::array<Tensor, N> load(Stream& stream, Label label) {
    std::array<Tensor, N> tensors;
    load_into(stream, label, tensors);
    return tensors;
  }

  /// Told by whoever runs the micro-batch, for the policy.
  void forward_done(Stream& stream) {
    if (policy_ && recording()) policy_->forward_done(stream);
  }
  void backward_done(Stream& stream) {
    if (policy_ && recording()) policy_->backward_done(stream);
  }

 private:
  struct Key {
    uint64_t storage;
    int64_t offset;
    int64_t numel;
    auto operator<=>(const Key&) const = default;
  };
  static Key key_of(const Tensor& tensor);
  std::shared_ptr<SavedTensor> find(const Tensor& tensor) const;
  void load_into(Stream& stream, Label label, std::span<Tensor> tensors);

  Mode mode_;
  TapePolicy* policy_;
  MemoryLedger* ledger_;
  std::vector<Record> records_;
  std::map<Key, std::weak_ptr<SavedTensor>> known_;
};

}  // namespace ferry
