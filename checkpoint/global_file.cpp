#include "checkpoint/global_file.h"

#include <array>
#include <bit>

#include "checkpoint/directory.h"
#include "checkpoint/hdf5_handle.h"
#include "checkpoint/shard_file.h"

namespace ferry {
namespace {

constexpr uint16_t kBFloat16Nan = 0x7fc0;
const float kFloatNan = std::bit_cast<float>(0x7fc00000u);
const double kDoubleNan = std::bit_cast<double>(0x7ff8000000000000u);

const std::map<std::string, std::string>& default_descriptions() {
  static const std::map<std::string, std::string> descriptions = {
      {"model", "weights that training continues from"},
      {"optimizer", "AdamW state, one tensor of the model's name and shape in each group"},
      {"optimizer/exp_avg", "first moment: running mean of gradients, in units of the gradient"},
      {"optimizer/exp_avg_sq", "second moment: running mean of squared gradients"},
      {"state", "counters and everything else that training continues from"},
      {"state/step", "optimizer steps done"},
  };
  return descriptions;
}

void write_string_attribute(hid_t object, const char* name, const std::string& value) {
  const std::string what = concat("write the attribute ", name);
  const Hdf5Handle type = string_type();
  const Hdf5Handle space(H5Screate(H5S_SCALAR), H5Sclose, what);
  const Hdf5Handle attribute(H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT),
                             H5Aclose, what);
  const char* text = value.c_str();
  require_hdf5(H5Awrite(attribute, type, &text), what);
}

void write_integer_attribute(hid_t object, const char* name, int64_t value) {
  const std::string what = concat("write the attribute ", name);
  const Hdf5Handle space(H5Screate(H5S_SCALAR), H5Sclose, what);
  const Hdf5Handle attribute(
      H5Acreate2(object, name, H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose, what);
  require_hdf5(H5Awrite(attribute, H5T_NATIVE_INT64, &value), what);
}

void write_scalar(hid_t file, const std::string& name, const StateValue& value) {
  const std::string what = "write the scalar " + name;
  make_parent_groups(file, name);
  const Hdf5Handle space(H5Screate(H5S_SCALAR), H5Sclose, what);
  const Hdf5Handle properties = dataset_properties();
  const auto write = [&](hid_t type, const void* content) {
    const Hdf5Handle dataset(
        H5Dcreate2(file, name.c_str(), type, space, H5P_DEFAULT, properties, H5P_DEFAULT), H5Dclose,
        what);
    require_hdf5(H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, content), what);
  };
  if (const auto* integer = std::get_if<int64_t>(&value)) {
    write(H5T_STD_I64LE, integer);
  } else if (const auto* number = std::get_if<double>(&value)) {
    write(H5T_IEEE_F64LE, number);
  } else {
    const char* text = std::get<std::string>(value).c_str();
    write(string_type(), &text);
  }
}

/// What a reader sees where a shard is missing: NaN rather than plausible zeros.
void set_missing_value(hid_t properties, hid_t type, DType dtype) {
  const void* value = nullptr;
  if (dtype == DType::F32) value = &kFloatNan;
  if (dtype == DType::F64) value = &kDoubleNan;
  if (dtype == DType::BF16) value = &kBFloat16Nan;
  if (value == nullptr) return;
  require_hdf5(H5Pset_fill_value(properties, type, value), "set the fill value");
}

void write_virtual_tensor(hid_t file, const Manifest& manifest, const StoredTensor& tensor) {
  const std::string what = "describe tensor " + tensor.name;
  make_parent_groups(file, tensor.name);
  const Hdf5Handle type = element_type(file, tensor.dtype);
  const Hdf5Handle properties = dataset_properties();
  set_missing_value(properties, type, tensor.dtype);
  const Hdf5Handle space = make_dataspace(tensor.shape);
  for (const StoredSlice& slice : tensor.slices) {
    std::array<hsize_t, Shape::kMaxRank> offset{}, extent{};
    for (int d = 0; d < tensor.shape.rank(); ++d) {
      offset[static_cast<size_t>(d)] = static_cast<hsize_t>(slice.offset[d]);
      extent[static_cast<size_t>(d)] = static_cast<hsize_t>(slice.extent[d]);
    }
    require_hdf5(
        H5Sselect_hyperslab(space, H5S_SELECT_SET, offset.data(), nullptr, extent.data(), nullptr),
        what);
    const Hdf5Handle source = make_dataspace(slice.extent);
    const std::string& shard = manifest.files[static_cast<size_t>(slice.file_idx)].name;
    require_hdf5(H5Pset_virtual(properties, space, shard.c_str(), slice.dataset.c_str(), source),
                 what);
  }
  require_hdf5(H5Sselect_all(space), what);
  Hdf5Handle(
      H5Dcreate2(file, tensor.name.c_str(), type, space, H5P_DEFAULT, properties, H5P_DEFAULT),
      H5Dclose, what)
      .close(what);
}

void describe(hid_t file, const std::map<std::string, std::string>& descriptions) {
  for (const auto& [name, text] : descriptions) {
    bool is_there = true;
    for (size_t end = name.find('/'); is_there; end = name.find('/', end + 1)) {
      const htri_t found = H5Lexists(file, name.substr(0, end).c_str(), H5P_DEFAULT);
      require_hdf5(found, "look up " + name);
      is_there = found > 0;
      if (end == std::string::npos) break;
    }
    if (!is_there) continue;
    const Hdf5Handle object(H5Oopen(file, name.c_str(), H5P_DEFAULT), H5Oclose, "open " + name);
    write_string_attribute(object, "description", text);
  }
}

}  // namespace

StoredFile write_global_file(FileSystem& file_system, const Path& directory,
                             const Manifest& manifest,
                             const std::map<std::string, std::string>& descriptions,
                             const std::map<std::string, std::string>& aliases) {
  const Path path = directory / kGlobalFileName;
  const auto file = file_system.create(path);
  {
    const auto lock = lock_hdf5();
    Hdf5Handle view = create_hdf5_file(path);
    for (const StoredTensor& tensor : manifest.tensors)
      write_virtual_tensor(view, manifest, tensor);
    for (const auto& [alias, group] : aliases) {
      make_parent_groups(view, alias);
      require_hdf5(
          H5Lcreate_hard(view, group.c_str(), view, alias.c_str(), H5P_DEFAULT, H5P_DEFAULT),
          "link " + alias + " to " + group);
    }
    for (const auto& [name, value] : manifest.state) write_scalar(view, "state/" + name, value);
    write_string_attribute(view, "format", "ferry-checkpoint");
    write_integer_attribute(view, "version", manifest.version);
    write_integer_attribute(view, "step", manifest.step);
    write_string_attribute(view, "root", root_digest(manifest));
    write_string_attribute(view, "layout", manifest.layout);
    write_string_attribute(view, "config", manifest.config);
    std::map<std::string, std::string> all = descriptions;
    all.insert(default_descriptions().begin(), default_descriptions().end());
    describe(view, all);
    view.close("close the HDF5 file " + path.native());
  }
  const StoredFile stored = {kGlobalFileName, file->size(), structure_digest(*file, {})};
  file->sync();
  file->close();
  return stored;
}

}  // namespace ferry
