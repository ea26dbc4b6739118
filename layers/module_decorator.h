#pragma once

// How the maker of a model puts something around modules that other modules make for themselves.

#include <functional>
#include <memory>

#include "core/module.h"

namespace ferry {

/// Gets each module with the name that users know it by, and returns what stands in its place.
using ModuleDecorator = std::function<std::unique_ptr<Module>(Label, std::unique_ptr<Module>)>;

/// Leaves every module as it is.
inline std::unique_ptr<Module> undecorated(Label, std::unique_ptr<Module> module) { return module; }

}  // namespace ferry
