#!/usr/bin/env bash
# Installs what Ferry needs and this host lacks, on Debian 12 and Ubuntu 24.04. Safe to run again.
#
#   scripts/setup.sh                      install only
#   source scripts/setup.sh               and set `root`, `cores`, `jobs` and what MPI runs need
#   source scripts/setup.sh --tests       and what only the tests use
#
# A thing counts as present when its Debian package is installed, or when its command or header is
# found (also in an offline bundle), so that hosts with their own MPI or CUDA are left as they are.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bundle=${FERRY_BUNDLE:-$root/.bundle}

# package, then how else it may be present: command:NAME, header:PATH, library:NAME or
# python:MODULE.
ferry_packages='
build-essential           command:g++
cmake                     command:cmake
ninja-build               command:ninja
git                       command:git
libopenmpi-dev            command:mpicxx
openmpi-bin               command:mpirun
libhdf5-dev               command:h5cc
hdf5-tools                command:h5ls
libopenblas-pthread-dev   library:openblas
libtomlplusplus-dev       header:toml++/toml.h
libcli11-dev              header:CLI/CLI.hpp
libfmt-dev                header:fmt/format.h
nlohmann-json3-dev        header:nlohmann/json.hpp
libxxhash-dev             header:xxhash.h
libutf8proc-dev           header:utf8proc.h
libgtest-dev              header:gtest/gtest.h
libgmock-dev              header:gmock/gmock.h
'
ferry_test_packages='
python3                   command:python3
python3-h5py              python:h5py
iproute2                  command:ip
procps                    command:pgrep
'

setup_say() { echo "setup: $*"; }

setup_fail() {
  printf 'setup: error: %s\n' "$@" >&2
  exit 1
}

# present PACKAGE PROBE
setup_present() {
  local package=$1 kind=${2%%:*} name=${2#*:} directory
  if command -v dpkg-query >/dev/null &&
    dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed; then
    return 0
  fi
  case $kind in
    command) command -v "$name" >/dev/null ;;
    python) command -v python3 >/dev/null && python3 -c "import $name" 2>/dev/null ;;
    header)
      for directory in "$bundle/include" /usr/include "/usr/include/$(uname -m)-linux-gnu" \
        /usr/local/include; do
        [ ! -e "$directory/$name" ] || return 0
      done
      return 1
      ;;
    # The header cblas.h would not do for OpenBLAS: the reference library brings one, too.
    library)
      for directory in "$bundle/lib" "/usr/lib/$(uname -m)-linux-gnu" /usr/lib64 /usr/lib \
        /usr/local/lib; do
        [ ! -e "$directory/lib$name.so" ] || return 0
      done
      return 1
      ;;
    *) setup_fail "unknown probe '$2' of package $package" ;;
  esac
}

# Prints the packages of the table on standard input that are missing.
setup_missing() {
  local package probe
  while read -r package probe; do
    if [ -n "$package" ] && ! setup_present "$package" "$probe"; then echo "$package"; fi
  done
}

# install PACKAGE...: the lists of a fresh system are empty or old, so a failure is tried once more
# after an update.
setup_install() {
  local log=$root/.cache/setup.log as_root=()
  command -v apt-get >/dev/null || setup_fail \
    "this host lacks: $*" \
    "and has no apt-get. Install what these Debian packages hold by your own means and run again."
  if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null || { ! sudo -n true 2>/dev/null && [ ! -t 0 ]; }; then
      setup_fail "this host lacks: $*" \
        "and you are neither root nor able to use sudo here. Ask an administrator to run" \
        "  apt-get install $*"
    fi
    as_root=(sudo)
  fi
  local install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y -qq
    -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=120 -o Acquire::Retries=3
    install --no-install-recommends "$@")
  mkdir -p "${log%/*}"
  if "${install[@]}" >"$log" 2>&1 </dev/null; then return 0; fi
  setup_say "updating the package lists"
  if "${as_root[@]}" apt-get -qq -o Acquire::Retries=3 update >>"$log" 2>&1 </dev/null &&
    "${install[@]}" >>"$log" 2>&1 </dev/null; then
    return 0
  fi
  tail -n 15 "$log" >&2
  setup_fail "apt-get could not install: $*" \
    "The lines above are the end of $log." \
    "Without a network, make a bundle on a host that has one: scripts/offline_bundle.sh --help"
}

# cuDNN attention needs the headers of cudnn-frontend, which few systems package.
setup_cudnn_frontend() {
  local directory nvcc
  nvcc=$(command -v nvcc || true)
  if [ -z "$nvcc" ] && [ ! -x /usr/local/cuda/bin/nvcc ]; then return 0; fi
  for directory in "$bundle/include" "$root/.cache/cudnn-frontend/include" /usr/include \
    /usr/local/include /usr/local/cuda/include; do
    [ ! -e "$directory/cudnn_frontend.h" ] || return 0
  done
  setup_say "fetching the headers of cudnn-frontend"
  if ! "$root/scripts/fetch_cudnn_frontend.sh" "$root/.cache/cudnn-frontend/include"; then
    setup_say "notice: going on without cudnn-frontend: the fallback attention kernel is built"
  fi
}

setup_main() {
  local table=$ferry_packages missing start=$SECONDS
  case ${1:-} in
    '') ;;
    --tests) table+=$ferry_test_packages ;;
    *) setup_fail "unknown argument '$1'; usage: scripts/setup.sh [--tests]" ;;
  esac
  missing=$(setup_missing <<<"$table")
  if [ -n "$missing" ]; then
    # One name a word.
    # shellcheck disable=SC2086
    setup_say "installing" $missing
    # shellcheck disable=SC2086
    setup_install $missing
  fi
  setup_cudnn_frontend
  setup_say "everything needed is present ($((SECONDS - start)) s)"
}

# How many compilers fit: one a core, and 2 GiB of memory for each.
setup_jobs() {
  local memory_kib
  memory_kib=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)
  local fit=$((memory_kib / (2 * 1024 * 1024)))
  [ "$fit" -lt "$cores" ] || fit=$cores
  [ "$fit" -ge 1 ] || fit=1
  echo "$fit"
}

setup_main "$@"
# nproc would take the number of threads that the environment allows for the number of cores.
cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
# shellcheck disable=SC2034 # read by the scripts that source this one
jobs=$(setup_jobs)

# Ranks that share one host: Open MPI refuses root and more ranks than cores unless told, and reads
# the memory of other ranks in a way that containers may forbid. One BLAS thread for each rank.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
export OMPI_MCA_btl_vader_single_copy_mechanism=${OMPI_MCA_btl_vader_single_copy_mechanism:-none}
export OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-1} OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
