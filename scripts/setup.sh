#!/usr/bin/env bash
# Installs what building nofrag needs, from the distribution's packages (Debian 12 and relatives), and
# the CUDA driver API header (types only; nothing links CUDA). Does nothing where everything is there.
#
#   scripts/setup.sh            for `make test`: compilers, formatters, test libraries
#   scripts/setup.sh --minimal  for `make demo`: what builds and runs the command line tool
set -euo pipefail
cd "$(dirname "$0")/.."

# The header's version only has to be new enough for the calls in allocator/driver/real; the driver
# that is loaded at run time decides what is there.
cuda_wheel="nvidia-cuda-runtime-cu12==12.8.90"
cuda_dir="build/deps/cuda"
# NVTX's headers with the memory extension, which toolkits before 13.1 do not have.
nvtx_wheel="nvidia-nvtx==13.5.25"
nvtx_dir="build/deps/nvtx"
# Newer than the distribution's: it leaves the system's headers alone.
tidy_wheel="clang-tidy==23.1.4"
tidy_dir="build/deps/clang-tidy"

minimal_packages=(g++ cmake ninja-build make git python3
  libcli11-dev nlohmann-json3-dev libfmt-dev libzstd-dev zlib1g-dev libsqlite3-dev libjs-chart.js
  libgtest-dev libgmock-dev libbenchmark-dev)
test_packages=(clang libclang-rt-14-dev clang-format-14 llvm valgrind chromium python3-pip python3-venv
  python3-prometheus-client)

say() { printf 'setup: %s\n' "$*"; }

as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif command -v sudo > /dev/null; then
    sudo "$@"
  else
    say "this needs root (no sudo here): $*" >&2
    exit 1
  fi
}

# Prints those of its arguments that are not installed.
missing_of() {
  local package
  for package in "$@"; do
    if [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2> /dev/null)" != installed ]; then
      printf '%s\n' "$package"
    fi
  done
}

install_packages() {
  if ! command -v dpkg-query > /dev/null || ! command -v apt-get > /dev/null; then
    say "not a Debian system; please see to these yourself: $*"
    return
  fi
  local missing
  mapfile -t missing < <(missing_of "$@")
  if [ "${#missing[@]}" -eq 0 ]; then
    return
  fi
  say "installing ${missing[*]}"
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    "${missing[@]}" > /dev/null
}

need_pip() {
  if ! python3 -m pip --version > /dev/null 2>&1; then
    install_packages python3-pip
  fi
}

# Looks where cmake/NofragCuda.cmake looks, for a header that is new enough.
have_cuda_header() {
  local dir version
  for dir in "$cuda_dir/include" "${CUDA_HOME:+$CUDA_HOME/include}" "${CUDA_PATH:+$CUDA_PATH/include}" \
    /usr/local/cuda/include /opt/cuda/include /usr/local/include /usr/include; do
    if [ -n "$dir" ] && [ -f "$dir/cuda.h" ]; then
      version="$(sed -n 's/^#define CUDA_VERSION \([0-9]*\).*/\1/p' "$dir/cuda.h" | head -n 1)"
      # The first one found is the one CMake takes; an old one is overruled by our copy.
      [ "${version:-0}" -ge 12000 ]
      return
    fi
  done
  return 1
}

# fetch_headers WHEEL DIR: what lies under "include" in one of NVIDIA's wheels. Downloaded and unpacked, not
# installed, so that no Python environment is touched (and none has to be made).
fetch_headers() {
  need_pip
  say "fetching headers ($1)"
  local scratch
  mkdir -p "$2"
  scratch="$(mktemp -d)"
  python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$scratch" "$1"
  python3 - "$scratch" "$2" << 'PY'
import pathlib
import sys
import zipfile

scratch, target = map(pathlib.Path, sys.argv[1:])
(wheel,) = scratch.glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    for name in archive.namelist():
        _, found, below = name.partition("/include/")
        is_license = name.lower().endswith("license.txt")
        if (found and not name.endswith("/")) or is_license:
            path = target / ("include/" + below if found else "LICENSE.txt")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.read(name))
PY
  rm -rf "$scratch"
}

# No CUDA toolkit here: NVIDIA's own wheel carries the header.
fetch_cuda_header() {
  fetch_headers "$cuda_wheel" "$cuda_dir"
  if [ ! -f "$cuda_dir/include/cuda.h" ]; then
    say "the wheel has no cuda.h; install a CUDA toolkit" >&2
    exit 1
  fi
}

# What the native PyTorch allocator is compiled and tested against. What these take is waiting: all at once, and
# beside what else is fetched.
torch_fetches=()
begin_torch_headers() {
  need_pip
  python3 scripts/torch_headers.py 2.11.0 & torch_fetches+=($!)
  python3 scripts/torch_headers.py --headers-only 2.6.0 & torch_fetches+=($!)
  python3 scripts/torch_headers.py --headers-only 2.14.1 & torch_fetches+=($!)
  trap 'kill "${torch_fetches[@]}" 2> /dev/null || true' EXIT
}

# Without them (no network to the package index) the native allocator is not built, and its tests say that they were
# skipped.
end_torch_headers() {
  local fetch missing=0
  for fetch in "${torch_fetches[@]}"; do
    wait "$fetch" || missing=1
  done
  trap - EXIT  # their numbers may be others' now
  if [ "$missing" -ne 0 ]; then
    say "going on without PyTorch's headers: libnofrag_torch_*.so is not built"
  fi
}

# The lane tidy says so where it is missing; all others go without.
fetch_clang_tidy() {
  if [ "$(cat "$tidy_dir/wheel" 2> /dev/null)" = "$tidy_wheel" ]; then
    return
  fi
  need_pip
  say "fetching $tidy_wheel"
  rm -rf "$tidy_dir"
  if PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --no-deps --only-binary=:all: --target "$tidy_dir" \
    "$tidy_wheel"; then
    echo "$tidy_wheel" > "$tidy_dir/wheel"
  else
    say "going on without clang-tidy"
  fi
}

case "${1:-}" in
  --minimal) packages=("${minimal_packages[@]}") ;;
  "") packages=("${minimal_packages[@]}" "${test_packages[@]}") ;;
  *)
    sed -n '2,6s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
install_packages "${packages[@]}"
have_cuda_header || fetch_cuda_header
[ -f "$nvtx_dir/include/nvtx3/nvToolsExtMem.h" ] || fetch_headers "$nvtx_wheel" "$nvtx_dir"
if [ "${1:-}" != --minimal ]; then
  begin_torch_headers
  fetch_clang_tidy
  end_torch_headers
fi
