# One static library per folder, and one test program per folder of tests/.
#
# Which files of a folder are compiled follows from their names, so that no source needs an #ifdef:
#   *_cuda.cpp, *.cu     with CUDA only         no_cuda.cpp    without CUDA only
#   nccl_*.cpp           with NCCL only         no_nccl.cpp    without NCCL only
#   cudnn_*.cpp          with cuDNN only        no_cudnn.cu    with CUDA but without cuDNN
#   cupti_*.cpp          with CUPTI only        no_cupti.cpp   without CUPTI only

function(ferry_part_sources out folder)
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/${folder}/*.cpp"
                                      "${CMAKE_SOURCE_DIR}/${folder}/*.cu")
  list(FILTER sources EXCLUDE REGEX "/main\\.cpp$")
  if(FERRY_HAVE_CUDA)
    list(FILTER sources EXCLUDE REGEX "/no_cuda\\.cpp$")
  else()
    set(stand_in ${sources})
    list(FILTER stand_in INCLUDE REGEX "/no_cuda\\.cpp$")
    list(FILTER sources EXCLUDE REGEX "_cuda\\.cpp$|\\.cu$")
    list(APPEND sources ${stand_in})
  endif()
  if(FERRY_HAVE_NCCL)
    list(FILTER sources EXCLUDE REGEX "/no_nccl\\.cpp$")
  else()
    list(FILTER sources EXCLUDE REGEX "/nccl_[^/]*$")
  endif()
  if(FERRY_HAVE_CUDNN)
    list(FILTER sources EXCLUDE REGEX "/no_cudnn\\.cu$")
  else()
    list(FILTER sources EXCLUDE REGEX "/cudnn_[^/]*$")
  endif()
  if(FERRY_HAVE_CUPTI)
    list(FILTER sources EXCLUDE REGEX "/no_cupti\\.cpp$")
  else()
    list(FILTER sources EXCLUDE REGEX "/cupti_[^/]*$")
  endif()
  set(${out} ${sources} PARENT_SCOPE)
endfunction()

# The front end of cuDNN is the largest header of all, and most of its code runs once for each shape.
set_source_files_properties("${CMAKE_SOURCE_DIR}/core/ops/cudnn_attention_cuda.cpp" PROPERTIES
                            COMPILE_OPTIONS $<$<CONFIG:Release>:-O1>)

# The libraries that a part uses besides other parts.
set(FERRY_LIBRARIES_core Threads::Threads)
set(FERRY_LIBRARIES_core_ops ferry_openblas)
set(FERRY_LIBRARIES_core_comm MPI::MPI_CXX)
set(FERRY_LIBRARIES_checkpoint ferry_hdf5 ferry_xxhash ferry_json ferry_fmt)
set(FERRY_LIBRARIES_huggingface ferry_json ferry_fmt)
set(FERRY_LIBRARIES_app_data ferry_json ferry_fmt ferry_utf8proc)
set(FERRY_LIBRARIES_app_model ferry_fmt)
set(FERRY_LIBRARIES_app ferry_toml ferry_cli ferry_json ferry_fmt ferry_openblas ferry_hdf5
                         MPI::MPI_CXX)
if(FERRY_HAVE_CUDA)
  list(APPEND FERRY_LIBRARIES_core ferry_cuda)
endif()
if(FERRY_HAVE_CUPTI)
  list(APPEND FERRY_LIBRARIES_core ferry_cupti)
endif()
if(FERRY_HAVE_NCCL)
  list(APPEND FERRY_LIBRARIES_core_comm ferry_nccl)
endif()
if(FERRY_HAVE_CUDNN)
  list(APPEND FERRY_LIBRARIES_core_ops ferry_cudnn)
endif()

# What `ferry version` says about this build.
function(ferry_describe_build)
  execute_process(COMMAND git describe --always --dirty --abbrev=9
                  WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}" OUTPUT_VARIABLE revision
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(failed)
    # A copy without git's records, made with scripts/offline_bundle.sh.
    set(revision unknown)
    if(EXISTS "${FERRY_BUNDLE}/revision")
      file(STRINGS "${FERRY_BUNDLE}/revision" revision LIMIT_COUNT 1)
    endif()
  endif()
  set(definitions FERRY_VERSION="${PROJECT_VERSION}" FERRY_GIT_REVISION="${revision}")
  foreach(part CUDA NCCL CUDNN)
    list(APPEND definitions FERRY_HAVE_${part}=$<BOOL:${FERRY_HAVE_${part}}>)
  endforeach()
  set_source_files_properties("${CMAKE_SOURCE_DIR}/app/version.cpp" PROPERTIES COMPILE_DEFINITIONS
                              "${definitions}")
endfunction()

# Sanitizer builds parse the large headers once, as precompiled headers that all libraries share and
# all tests share. Other builds do without, so that a source that forgets an #include fails there.
set(FERRY_PRECOMPILED_LIBRARY <algorithm> <array> <chrono> <cmath> <filesystem> <fstream>
                              <functional> <map> <memory> <mutex> <optional> <set> <span> <sstream>
                              <string> <thread> <vector>)
set(FERRY_PRECOMPILED_TEST ${FERRY_PRECOMPILED_LIBRARY} <gmock/gmock.h> <gtest/gtest.h>)
function(ferry_precompile target kind)
  if(NOT FERRY_SANITIZE)
    return()
  endif()
  get_property(owner GLOBAL PROPERTY FERRY_PRECOMPILED_BY_${kind})
  if(owner)
    target_precompile_headers(${target} REUSE_FROM ${owner})
  else()
    target_precompile_headers(${target} PRIVATE ${FERRY_PRECOMPILED_${kind}})
    set_property(GLOBAL PROPERTY FERRY_PRECOMPILED_BY_${kind} ${target})
  endif()
endfunction()

function(add_part folder)
  cmake_parse_arguments(PART "" "" "DEPENDS" ${ARGN})
  string(REPLACE "/" "_" name "${folder}")
  ferry_part_sources(sources "${folder}")
  set(dependencies ferry_flags ${FERRY_LIBRARIES_${name}})
  foreach(dependency ${PART_DEPENDS})
    string(REPLACE "/" "_" dependency "${dependency}")
    list(APPEND dependencies "ferry_${dependency}")
  endforeach()
  if(sources)
    add_library(ferry_${name} STATIC ${sources})
    target_link_libraries(ferry_${name} PUBLIC ${dependencies})
    ferry_precompile(ferry_${name} LIBRARY)
  else()
    add_library(ferry_${name} INTERFACE)
    target_link_libraries(ferry_${name} INTERFACE ${dependencies})
  endif()
  if(EXISTS "${CMAKE_SOURCE_DIR}/${folder}/main.cpp")
    add_executable(ferry "${CMAKE_SOURCE_DIR}/${folder}/main.cpp")
    target_link_libraries(ferry PRIVATE ferry_${name})
  endif()
  if(folder STREQUAL "app")
    ferry_describe_build()
  endif()
  if(FERRY_TESTS)
    add_part_tests("${folder}" "${name}")
  endif()
endfunction()

# What tests test is in the libraries; -O3 for the tests themselves would take half as long again to
# compile code that runs once.
set(FERRY_TEST_OPTIONS $<$<CONFIG:Release>:-Og>)

# tests/FOLDER/*_test.cpp become test_FOLDER; *_mpi_test.cpp become test_FOLDER_mpi, which
# scripts/test.sh runs under mpirun. Each links its part, what the part uses, and tests/support.
function(add_part_tests folder name)
  file(GLOB tests CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/${folder}/*_test.cpp")
  if(NOT FERRY_HAVE_CUDA)
    list(FILTER tests EXCLUDE REGEX "_cuda_test\\.cpp$")
  endif()
  if(NOT FERRY_HAVE_NCCL)
    list(FILTER tests EXCLUDE REGEX "/nccl_[^/]*$")
  endif()
  if(NOT FERRY_HAVE_CUDNN)
    list(FILTER tests EXCLUDE REGEX "/cudnn_[^/]*$")
  endif()
  if(NOT FERRY_HAVE_CUPTI)
    list(FILTER tests EXCLUDE REGEX "/cupti_[^/]*$")
  endif()
  set(mpi_tests ${tests})
  list(FILTER tests EXCLUDE REGEX "_mpi_test\\.cpp$")
  list(FILTER mpi_tests INCLUDE REGEX "_mpi_test\\.cpp$")
  if(tests)
    add_executable(test_${name} ${tests})
    target_link_libraries(test_${name} PRIVATE ferry_${name} ferry_test_support GTest::gmock
                                               GTest::gtest GTest::gtest_main)
    ferry_precompile(test_${name} TEST)
    target_compile_options(test_${name} PRIVATE ${FERRY_TEST_OPTIONS})
    target_compile_definitions(test_${name} PRIVATE
      FERRY_SOURCE_DIR="${CMAKE_SOURCE_DIR}" FERRY_BINARY_DIR="${CMAKE_BINARY_DIR}")
  endif()
  if(mpi_tests)
    add_executable(test_${name}_mpi ${mpi_tests} "${CMAKE_SOURCE_DIR}/tests/support/mpi_main.cpp")
    target_link_libraries(test_${name}_mpi PRIVATE ferry_${name} ferry_test_support GTest::gmock
                                                   GTest::gtest MPI::MPI_CXX)
    ferry_precompile(test_${name}_mpi TEST)
    target_compile_options(test_${name}_mpi PRIVATE ${FERRY_TEST_OPTIONS})
    target_compile_definitions(test_${name}_mpi PRIVATE
      FERRY_SOURCE_DIR="${CMAKE_SOURCE_DIR}" FERRY_BINARY_DIR="${CMAKE_BINARY_DIR}")
  endif()
endfunction()

# tests/support: header-only helpers that every test may include.
add_library(ferry_test_support INTERFACE)
target_link_libraries(ferry_test_support INTERFACE ferry_flags)
