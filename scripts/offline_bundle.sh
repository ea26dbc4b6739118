#!/usr/bin/env bash
# Collects what a host without a network lacks to build Ferry: the header libraries, utf8proc as a
# static library, and the headers of cudnn-frontend. Needs a network here, Debian's tools, and no
# rights: nothing is installed.
#
#   scripts/offline_bundle.sh [DIR]       DIR is .bundle in the checkout unless given
#
# The other host must have cmake, ninja, g++ 12 or newer, Open MPI, HDF5 (serial), OpenBLAS and
# GoogleTest, and for GPUs CUDA with NCCL and cuDNN.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
case ${1:-} in
  -*)
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
    [ "$1" = --help ] || [ "$1" = -h ] || exit 2
    exit 0
    ;;
esac
start=$SECONDS
target=${1:-$root/.bundle}
packages=(libtomlplusplus-dev libcli11-dev libfmt-dev nlohmann-json3-dev libxxhash-dev
  libutf8proc-dev)
headers=(toml++/toml.h CLI/CLI.hpp fmt/format.h nlohmann/json.hpp xxhash.h utf8proc.h
  cudnn_frontend.h)

fail() {
  printf 'offline_bundle: error: %s\n' "$@" >&2
  exit 1
}

for program in apt-get dpkg python3; do
  command -v "$program" >/dev/null ||
    fail "$program is needed: run this on a Debian or Ubuntu host that has a network"
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/debs" "$work/lists/partial" "$work/archives/partial"

# download OPTION...: in a subshell; as this user, since the folder is private.
download() (
  cd "$work/debs" || exit
  apt-get -qq -o APT::Sandbox::User="$(id -un)" "$@" download "${packages[@]}" >"$work/log" 2>&1
)

if ! download; then
  # The host has no package lists, or old ones: fetch lists of our own, which needs no rights.
  own=(-o Dir::State::Lists="$work/lists" -o Dir::Cache::Archives="$work/archives"
    -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=)
  if ! apt-get -qq "${own[@]}" -o APT::Sandbox::User="$(id -un)" update >"$work/log" 2>&1 ||
    ! download "${own[@]}"; then
    tail -n 10 "$work/log" >&2
    fail "apt-get cannot download: ${packages[*]}"
  fi
fi
for deb in "$work"/debs/*.deb; do dpkg -x "$deb" "$work/tree"; done
"$root/scripts/fetch_cudnn_frontend.sh" "$work/tree/usr/include" >"$work/log" ||
  fail "the headers of cudnn-frontend cannot be fetched"

# Replaced as a whole, so that no header of an earlier version is left in it.
mkdir -p "$target"
rm -rf "${target:?}"/{include,lib,licenses}
mkdir "$target/lib" "$target/licenses"
cp -r "$work/tree/usr/include" "$target/include"
find "$work/tree/usr/lib" -name libutf8proc.a -exec cp {} "$target/lib/" \;
for package in "${packages[@]}"; do
  cp "$work/tree/usr/share/doc/$package/copyright" "$target/licenses/$package"
done
for header in "${headers[@]}"; do
  [ -e "$target/include/$header" ] || fail "the packages held no $header"
done
[ -e "$target/lib/libutf8proc.a" ] || fail "the packages held no libutf8proc.a"

# The copy may come without .git: `ferry version` there still names this revision.
git -C "$root" describe --always --dirty --abbrev=9 >"$target/revision"

cat <<END
Copy the checkout with $target to the other host. There

  cmake --preset cuda-release && cmake --build build-cuda-release

finds the bundle by itself where it is .bundle in the checkout; else add -DFERRY_BUNDLE=DIR.
scripts/quickstart.sh and scripts/test.sh work there too (with FERRY_BUNDLE=DIR in the environment).
offline_bundle: made $target, $(du -sh "$target" | cut -f 1), in $((SECONDS - start)) s
END
