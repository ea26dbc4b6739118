#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test that this machine can run.
#
#   scripts/test.sh                     everything
#   scripts/test.sh --no-sanitizers     without the two sanitizer builds
#   scripts/test.sh --only PART         one part (may be repeated): checks unit mpi e2e asan tsan
#
# The parts: checks of the tree's rules and formatting; unit tests; tests under 2 and 4 MPI ranks;
# end-to-end tests of the program (tests/e2e); unit tests under AddressSanitizer and
# UndefinedBehaviorSanitizer; threaded unit tests under ThreadSanitizer. Logs are in
# build/test-results. The last line is `N passed, N failed, N skipped`.
set -euo pipefail

all_parts=(checks unit mpi e2e asan tsan)
parts=()
no_sanitizers=''
while [ $# -gt 0 ]; do
  case $1 in
    --no-sanitizers) no_sanitizers=1 ;;
    --only)
      case " ${all_parts[*]} " in
        *" ${2:-?} "*) parts+=("$2") && shift ;;
        *) echo "test: --only takes one of: ${all_parts[*]}" >&2 && exit 2 ;;
      esac
      ;;
    -h | --help)
      sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
      exit 0
      ;;
    *) echo "test: unknown argument '$1'; see scripts/test.sh --help" >&2 && exit 2 ;;
  esac
  shift
done
[ "${#parts[@]}" -gt 0 ] || parts=("${all_parts[@]}")

# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" --tests
cd "$root"

export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 GTEST_COLOR=no
export FERRY=$root/build/ferry
# The first python3 may be one without h5py, beside the system's.
export FERRY_PYTHON=python3
if ! python3 -c 'import h5py' 2>/dev/null; then FERRY_PYTHON=/usr/bin/python3; fi
if command -v ccache >/dev/null; then
  # The sloppiness is what it asks for before it caches a source with precompiled headers.
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_NOHASHDIR=1
  export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
fi
results=build/test-results
rm -rf "$results"

# What ThreadSanitizer runs: the parts with threads and streams, and the model that runs on them.
# test_app adds no thread to these, but would take longer to compile than all of them together.
threaded_tests=(test_core test_core_comm test_pipeline test_optim test_offload test_app_data
  test_layers test_moe test_app_model)
program_seconds=900

wanted() {
  case $1:$no_sanitizers in asan:1 | tsan:1) return 1 ;; esac
  case " ${parts[*]} " in *" $1 "*) ;; *) return 1 ;; esac
}

# run STEP NAME COMMAND...: keeps output and exit status for test_results.py; says how it went, in
# one piece, for several programs may run at once.
run() {
  local base=$results/$1/$2 start=$SECONDS code=0 what="$1/$2" report
  shift 2
  mkdir -p "${base%/*}"
  timeout -k 20 "$program_seconds" "$@" >"$base.log" 2>&1 </dev/null || code=$?
  echo "$code" >"$base.exit"
  report=$(printf '%-40s %4d s' "$what" $((SECONDS - start)))
  if [ "$code" != 0 ]; then
    report+=$(printf '   exit status %d\n' "$code" && tail -n 40 "$base.log" | sed 's/^/    /')
  fi
  printf '%s\n' "$report"
  return "$code"
}

# check STEP NAME COMMAND...: a command that is one test.
check() {
  local code=0
  run "$@" || code=$?
  if [ "$code" = 0 ]; then echo "ok $2" >>"$results/$1/$2.log"; fi
  return "$code"
}

skip() {
  mkdir -p "$results/$1"
  echo "skip $2 ($3)" >"$results/$1/$2.log"
  echo 0 >"$results/$1/$2.exit"
  printf '%-40s skipped: %s\n' "$1/$2" "$3"
}

# build STEP PRESET TARGET...: configures and compiles; a build that fails is a failed test.
build() {
  local step=$1 preset=$2
  shift 2
  local folder=build-$preset
  [ "$preset" != release ] || folder=build
  check "$step" configure cmake --preset "$preset" || return 1
  sed -n 's/^-- \(Ferry:.*\)/\1/p' "$results/$step/configure.log"
  local targets=() target
  for target; do
    if ninja -C "$folder" -t query "$target" >/dev/null 2>&1; then targets+=("$target"); fi
  done
  if [ $# -gt 0 ]; then
    [ "${#targets[@]}" -gt 0 ] || return 1
    set -- --target "${targets[@]}"
  fi
  program_seconds=3600 check "$step" build cmake --build "$folder" -j "$jobs" "$@"
}

# unit_tests STEP FOLDER [COMMAND...]: runs every test program of a build, behind a command, as many
# at once as there are cores: most of a program's time is one thread.
unit_tests() {
  local step=$1 folder=$2 program name
  shift 2
  for program in "$folder"/test_*; do
    name=${program##*/}
    case $name in *_mpi | *.*) continue ;; esac
    [ -x "$program" ] || continue
    while [ "$(jobs -pr | wc -l)" -ge "$cores" ]; do wait -n || true; done
    run "$step" "$name" "$@" "$program" --gtest_output="xml:$results/$step/$name.xml" &
  done
  wait
}

# mpi_tests STEP FOLDER RANKS: only rank 0 writes the result, so only it is asked to.
mpi_tests() {
  local step=$1 folder=$2 ranks=$3 program name
  for program in "$folder"/test_*_mpi; do
    [ -x "$program" ] || continue
    name=${program##*/}-$ranks
    run "$step" "$name" mpirun --oversubscribe \
      -n 1 "$program" --gtest_output="xml:$root/$results/$step/$name.xml" : \
      -n $((ranks - 1)) "$program" || true
  done
}

format_check() {
  local program
  program=$(command -v clang-format-14 || command -v clang-format || true)
  case $([ -z "$program" ] || "$program" --version) in
    *"version 14."*) ;;
    *)
      skip checks format "clang-format 14 is not installed"
      return
      ;;
  esac
  find . \( -path './build*' -o -path './.*' -o -path ./runs -o -path ./data \) -prune -o -type f \
    \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print0 |
    sort -z >"$results/sources"
  check checks format xargs -0 -a "$results/sources" "$program" --dry-run -Werror || true
}

# Runs a file of unittest tests and prints `ok NAME` or `FAIL NAME` for each.
python_tests() {
  python3 "$1" -v 2>&1 | sed -e 's/^\(test[^ ]*\) .*\.\.\. ok$/ok \1/' \
    -e 's/^\(test[^ ]*\) .*\.\.\. \(FAIL\|ERROR\)$/FAIL \1/' \
    -e 's/^\(test[^ ]*\) .*\.\.\. skipped/skip \1/'
}
export -f python_tests

checks() {
  local file name nvcc
  mkdir -p "$results"
  check checks tree python3 scripts/check_tree.py || true
  format_check
  nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || true)
  if [ -n "$nvcc" ]; then
    check checks wgmma scripts/check_wgmma.sh "$nvcc" || true
  else
    skip checks wgmma "no nvcc"
  fi
  for file in tests/scripts/*_test.py; do
    name=${file##*/}
    run checks "${name%.py}" bash -o pipefail -c "python_tests $file" || true
  done
}

end_to_end() {
  local file name
  build release release || return 0
  check e2e data scripts/quickstart_data.sh || return 0
  for file in tests/e2e/*.sh; do
    [ -e "$file" ] || continue
    name=${file##*/}
    run e2e "${name%.sh}" bash "$file" || true
  done
}

# Whether ThreadSanitizer would find a fault: a test with a planted one.
must_report_a_race() {
  local output
  output=$("$@" 2>&1)
  grep -q 'WARNING: ThreadSanitizer: data race' <<<"$output" || {
    tail -n 20 <<<"$output"
    echo "no race was reported"
    return 1
  }
}
export -f must_report_a_race

address_sanitizer() {
  build asan cpu-asan || return 0
  export UBSAN_OPTIONS=print_stacktrace=1 ASAN_OPTIONS=detect_stack_use_after_return=1
  unit_tests asan build-cpu-asan
  # Open MPI itself leaks at the end.
  ASAN_OPTIONS+=:detect_leaks=0 mpi_tests asan build-cpu-asan 2
}

thread_sanitizer() {
  # Kernels that randomise addresses a lot leave its shadow memory no room.
  local steady=(setarch "$(uname -m)" -R)
  "${steady[@]}" true 2>/dev/null || steady=()
  build tsan cpu-tsan "${threaded_tests[@]}" || return 0
  export TSAN_OPTIONS=second_deadlock_stack=1
  unit_tests tsan build-cpu-tsan "${steady[@]}"
  check tsan forgotten_wait_of_copy_to_host \
    bash -c 'must_report_a_race "$@"' race "${steady[@]}" build-cpu-tsan/test_offload \
    --gtest_also_run_disabled_tests \
    --gtest_filter=ForgottenWait.DISABLED_OfTheCopyToTheHostIsARace || true
}

start=$SECONDS
if wanted checks; then checks; fi
if wanted unit || wanted mpi; then
  if build release release; then
    if wanted unit; then unit_tests unit build; fi
    if wanted mpi; then mpi_tests mpi build 2 && mpi_tests mpi build 4; fi
  fi
fi
if wanted e2e; then end_to_end; fi
if wanted asan; then address_sanitizer; fi
if wanted tsan; then thread_sanitizer; fi
echo "test: built and ran: ${parts[*]}${no_sanitizers:+ (no sanitizers)}, in $((SECONDS - start)) s"
python3 scripts/test_results.py "$results"
