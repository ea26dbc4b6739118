# What can be switched: optional backends, sanitizers, warnings.

foreach(part CUDA NCCL CUDNN CUPTI)
  set(FERRY_${part} AUTO CACHE STRING "Build with ${part}: AUTO (if found), ON (must be found) or OFF")
  set_property(CACHE FERRY_${part} PROPERTY STRINGS AUTO ON OFF)
endforeach()
set(FERRY_CUDA_ARCHITECTURES 90a CACHE STRING "Compute capability to build CUDA code for")
set(FERRY_SANITIZE "" CACHE STRING "address (with undefined) or thread; empty for none")
set(ferry_bundle "${CMAKE_SOURCE_DIR}/.bundle")
if(DEFINED ENV{FERRY_BUNDLE})
  set(ferry_bundle "$ENV{FERRY_BUNDLE}")
endif()
set(FERRY_BUNDLE "${ferry_bundle}" CACHE PATH
    "Headers and libraries collected by scripts/offline_bundle.sh; used where it exists")
option(FERRY_TESTS "Build the tests" ON)

add_library(ferry_flags INTERFACE)
target_include_directories(ferry_flags INTERFACE "${CMAKE_SOURCE_DIR}")
# maybe-uninitialized to dangling-reference: g++ 12 and 13 report them falsely in optimised builds.
# no-math-errno: loops with sqrt vectorise. fp-contract=off: results are the same on every processor.
target_compile_options(ferry_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Werror -Wno-missing-field-initializers
                            -Wno-maybe-uninitialized -Wno-restrict -Wno-array-bounds
                            -Wno-stringop-overflow -Wno-dangling-reference
                            -fno-math-errno -ffp-contract=off>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra -Werror=all-warnings --expt-relaxed-constexpr
                             --extended-lambda -lineinfo>)

if(FERRY_SANITIZE STREQUAL "address")
  set(ferry_sanitizers -fsanitize=address,undefined -fno-sanitize-recover=undefined)
elseif(FERRY_SANITIZE STREQUAL "thread")
  set(ferry_sanitizers -fsanitize=thread)
elseif(FERRY_SANITIZE)
  message(FATAL_ERROR "FERRY_SANITIZE must be empty, address or thread, not '${FERRY_SANITIZE}'")
endif()
if(FERRY_SANITIZE)
  target_compile_options(ferry_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:${ferry_sanitizers} -fno-omit-frame-pointer>)
  target_link_options(ferry_flags INTERFACE ${ferry_sanitizers})
endif()
