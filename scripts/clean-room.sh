#!/usr/bin/env bash
# Tries the README on a bare machine: a Debian root with only git, make and ca-certificates (no
# compiler, no Python), a clone of this repository's HEAD in it, and the given make targets, timed.
#
#   scripts/clean-room.sh DIR [TARGET...]      as root; targets default to `demo test`
#
# DIR/base is made with debootstrap once (SUITE, default bookworm); DIR/root is a fresh copy of it
# each time. From this machine it takes the way to the packages only: name resolution, certificates,
# apt's sources and settings, and the environment variables of proxies and of pip.
set -euo pipefail

if [ "$#" -lt 1 ] || [ "$(id -u)" -ne 0 ]; then
  sed -n '2,9s/^# \{0,1\}//p' "$0"
  exit 2
fi
repository="$(cd "$(dirname "$0")/.." && pwd)"
mkdir -p "$1"
room="$(cd "$1" && pwd)"
# A second run would delete the root under the first.
exec 9> "$room/lock"
flock -n 9 || { echo "clean room: $room is in use" >&2; exit 1; }
shift
targets=("$@")
[ "${#targets[@]}" -gt 0 ] || targets=(demo test)

if [ ! -d "$room/base" ]; then
  debootstrap --variant=minbase --include=git,make,ca-certificates "${SUITE:-bookworm}" \
    "$room/base.part"
  mv "$room/base.part" "$room/base"
fi
rm -rf --one-file-system "$room/root"
cp -a "$room/base" "$room/root"
root="$room/root"

cp /etc/resolv.conf "$root/etc/resolv.conf"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
rm -rf "$root/etc/apt/sources.list" "$root/etc/apt/sources.list.d"
for item in sources.list sources.list.d apt.conf apt.conf.d auth.conf.d; do
  if [ -e "/etc/apt/$item" ]; then
    mkdir -p "$root/etc/apt"
    cp -rT "/etc/apt/$item" "$root/etc/apt/$item"
  fi
done
if [ -f /etc/pip.conf ]; then
  cp /etc/pip.conf "$root/etc/pip.conf"
fi

git clone --quiet --no-hardlinks "$repository" "$root/nofrag"
printf 'clean room: %s, %s packages, commit %s, %s cores\n' "$(cat "$root/etc/debian_version")" \
  "$(chroot "$root" dpkg-query -f '.\n' -W | wc -l)" \
  "$(git -C "$root/nofrag" rev-parse --short HEAD)" "$(nproc)"
chroot "$root" sh -c 'for tool in g++ cc clang cmake ninja python3 pip curl; do
  command -v $tool > /dev/null && echo "clean room: has $tool"; done; true'

kept=()
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY \
  $(compgen -e | grep '^PIP_' || true); do
  if [ -n "${!name:-}" ]; then
    kept+=("$name=${!name}")
  fi
done
for target in "${targets[@]}"; do
  start=$SECONDS
  status=0
  # The mounts live in a namespace of their own and go with it.
  unshare --mount --fork sh -c 'mount -t proc proc "$1/proc" && root="$1" && shift &&
    exec chroot "$root" env -i "$@"' sh "$root" \
    PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LANG=C.UTF-8 "${kept[@]}" \
    make -C /nofrag "$target" || status=$?
  printf 'clean room: make %s: exit status %d after %d s\n' "$target" "$status" $((SECONDS - start))
  [ "$status" -eq 0 ] || exit "$status"
done
