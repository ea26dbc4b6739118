# Every library is found here, once. Sets FERRY_HAVE_CUDA, _NCCL, _CUDNN and _CUPTI.
#
# Where scripts/offline_bundle.sh has filled FERRY_BUNDLE, its headers come first: a host without a
# network builds from it.

find_package(Threads REQUIRED)
find_package(MPI REQUIRED COMPONENTS CXX)
set(HDF5_PREFER_PARALLEL OFF)
find_package(HDF5 REQUIRED COMPONENTS C)

if(EXISTS "${FERRY_BUNDLE}/include")
  list(PREPEND CMAKE_PREFIX_PATH "${FERRY_BUNDLE}")
endif()

# A header-only library as an imported target, or one clear message.
function(ferry_header_library target header package)
  find_path(${target}_INCLUDE ${header} HINTS "${FERRY_BUNDLE}/include")
  if(NOT ${target}_INCLUDE)
    message(FATAL_ERROR "${header} not found: install ${package} (scripts/setup.sh does), or make an "
                        "offline bundle with scripts/offline_bundle.sh")
  endif()
  add_library(${target} INTERFACE)
  target_include_directories(${target} SYSTEM INTERFACE "${${target}_INCLUDE}")
endfunction()

ferry_header_library(ferry_toml toml++/toml.h libtomlplusplus-dev)
ferry_header_library(ferry_cli CLI/CLI.hpp libcli11-dev)
ferry_header_library(ferry_json nlohmann/json.hpp nlohmann-json3-dev)
ferry_header_library(ferry_xxhash xxhash.h libxxhash-dev)
# Its demand that functions be inlined is more than g++ does with the -Og of a sanitizer build.
target_compile_definitions(ferry_xxhash INTERFACE XXH_INLINE_ALL
                                                  $<$<BOOL:${FERRY_SANITIZE}>:XXH_NO_INLINE_HINTS=1>)
ferry_header_library(ferry_fmt fmt/format.h libfmt-dev)
# Headers only, so that the program needs no library of fmt where it runs. A sanitizer build runs
# where it is built, and compiles much faster with the library, if that belongs to the headers.
if(FERRY_SANITIZE AND NOT ferry_fmt_INCLUDE STREQUAL "${FERRY_BUNDLE}/include")
  find_library(FERRY_FMT_LIBRARY fmt)
endif()
if(FERRY_FMT_LIBRARY)
  target_link_libraries(ferry_fmt INTERFACE "${FERRY_FMT_LIBRARY}")
else()
  target_compile_definitions(ferry_fmt INTERFACE FMT_HEADER_ONLY)
endif()
ferry_header_library(ferry_utf8proc utf8proc.h libutf8proc-dev)
find_library(FERRY_UTF8PROC_LIBRARY utf8proc HINTS "${FERRY_BUNDLE}/lib" REQUIRED)
target_link_libraries(ferry_utf8proc INTERFACE "${FERRY_UTF8PROC_LIBRARY}")

find_path(FERRY_OPENBLAS_INCLUDE cblas.h PATH_SUFFIXES openblas openblas-pthread
          x86_64-linux-gnu x86_64-linux-gnu/openblas-pthread REQUIRED)
find_library(FERRY_OPENBLAS_LIBRARY openblas PATH_SUFFIXES openblas-pthread
             x86_64-linux-gnu/openblas-pthread REQUIRED)
add_library(ferry_openblas INTERFACE)
target_include_directories(ferry_openblas SYSTEM INTERFACE "${FERRY_OPENBLAS_INCLUDE}")
target_link_libraries(ferry_openblas INTERFACE "${FERRY_OPENBLAS_LIBRARY}")

add_library(ferry_hdf5 INTERFACE)
target_include_directories(ferry_hdf5 SYSTEM INTERFACE ${HDF5_C_INCLUDE_DIRS})
target_link_libraries(ferry_hdf5 INTERFACE ${HDF5_C_LIBRARIES})

# Reads FERRY_<part> = AUTO|ON|OFF and whether it was found; sets FERRY_HAVE_<part>.
macro(ferry_decide part found why)
  set(FERRY_HAVE_${part} OFF)
  if(NOT FERRY_${part} STREQUAL "OFF")
    if(${found})
      set(FERRY_HAVE_${part} ON)
    elseif(FERRY_${part} STREQUAL "ON")
      message(FATAL_ERROR "FERRY_${part}=ON, but ${why}")
    endif()
  endif()
endmacro()

if(NOT FERRY_CUDA STREQUAL "OFF")
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(FERRY_NVCC nvcc HINTS /usr/local/cuda/bin)
    if(FERRY_NVCC)
      set(CMAKE_CUDA_COMPILER "${FERRY_NVCC}")
    endif()
  endif()
  set(CMAKE_CUDA_ARCHITECTURES ${FERRY_CUDA_ARCHITECTURES})
  include(CheckLanguage)
  check_language(CUDA)
endif()
ferry_decide(CUDA CMAKE_CUDA_COMPILER "no CUDA compiler (nvcc) was found")
if(FERRY_HAVE_CUDA)
  enable_language(CUDA)
  # CMake 3.25 does not know that this nvcc has C++20.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  find_package(CUDAToolkit REQUIRED)
  add_library(ferry_cuda INTERFACE)
  # NVML belongs to the driver, which a host that only compiles lacks: it is opened at run time.
  target_link_libraries(ferry_cuda INTERFACE CUDA::cudart CUDA::cublas CUDA::cublasLt
                                             ${CMAKE_DL_LIBS})
endif()

if(FERRY_HAVE_CUDA)
  set(ferry_cuda_roots ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_ROOT}
                       "${CUDAToolkit_BIN_DIR}/..")
  find_path(FERRY_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(FERRY_NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${ferry_cuda_roots}
               PATH_SUFFIXES lib lib64)
  if(FERRY_NCCL_INCLUDE AND FERRY_NCCL_LIBRARY)
    set(ferry_nccl_found ON)
  endif()
  # cuDNN is used through the graph API of cudnn-frontend, which is headers only.
  find_path(FERRY_CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(FERRY_CUDNN_LIBRARY NAMES cudnn libcudnn.so.9 HINTS ${ferry_cuda_roots}
               PATH_SUFFIXES lib lib64)
  find_path(FERRY_CUDNN_FRONTEND_INCLUDE cudnn_frontend.h
            HINTS "${FERRY_BUNDLE}/include" "${CMAKE_SOURCE_DIR}/.cache/cudnn-frontend/include")
  if(FERRY_CUDNN_INCLUDE AND FERRY_CUDNN_LIBRARY AND FERRY_CUDNN_FRONTEND_INCLUDE)
    set(ferry_cudnn_found ON)
  endif()
endif()
if(FERRY_HAVE_CUDA)
  # What ferry bench step --kernels watches a GPU with.
  find_path(FERRY_CUPTI_INCLUDE cupti.h HINTS ${CUDAToolkit_INCLUDE_DIRS}
            PATH_SUFFIXES ../extras/CUPTI/include)
  find_library(FERRY_CUPTI_LIBRARY cupti HINTS ${ferry_cuda_roots}
               PATH_SUFFIXES lib lib64 extras/CUPTI/lib64)
  if(FERRY_CUPTI_INCLUDE AND FERRY_CUPTI_LIBRARY)
    set(ferry_cupti_found ON)
  endif()
endif()
ferry_decide(NCCL ferry_nccl_found "CUDA, nccl.h or libnccl was not found")
ferry_decide(CUDNN ferry_cudnn_found
             "CUDA, cudnn.h, libcudnn or cudnn_frontend.h was not found (scripts/setup.sh fetches the last)")
ferry_decide(CUPTI ferry_cupti_found "CUDA, cupti.h or libcupti was not found")
if(FERRY_HAVE_CUPTI)
  add_library(ferry_cupti INTERFACE)
  target_include_directories(ferry_cupti SYSTEM INTERFACE "${FERRY_CUPTI_INCLUDE}")
  target_link_libraries(ferry_cupti INTERFACE "${FERRY_CUPTI_LIBRARY}")
endif()
if(FERRY_HAVE_NCCL)
  add_library(ferry_nccl INTERFACE)
  target_include_directories(ferry_nccl SYSTEM INTERFACE "${FERRY_NCCL_INCLUDE}")
  target_link_libraries(ferry_nccl INTERFACE "${FERRY_NCCL_LIBRARY}")
endif()
if(FERRY_HAVE_CUDNN)
  add_library(ferry_cudnn INTERFACE)
  target_include_directories(ferry_cudnn SYSTEM INTERFACE "${FERRY_CUDNN_INCLUDE}"
                                                          "${FERRY_CUDNN_FRONTEND_INCLUDE}")
  # The front end compiles some of its kernels at run time.
  target_link_libraries(ferry_cudnn INTERFACE "${FERRY_CUDNN_LIBRARY}" CUDA::nvrtc)
endif()
message(STATUS "Ferry: CUDA ${FERRY_HAVE_CUDA}, NCCL ${FERRY_HAVE_NCCL}, cuDNN ${FERRY_HAVE_CUDNN}, CUPTI ${FERRY_HAVE_CUPTI}")

if(FERRY_TESTS)
  find_package(GTest REQUIRED)
endif()
