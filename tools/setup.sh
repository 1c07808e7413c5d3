#!/usr/bin/env bash
# Installs the Debian packages that are missing for the named purposes: build, format, fuzz, browser. Says what it installs; needs root or sudo
# only where something is missing.
set -euo pipefail

declare -A packages=(
  [build]="cmake ninja-build g++ ccache pkg-config libfmt-dev libcli11-dev nlohmann-json3-dev libhwy-dev libxxhash-dev libedit-dev
           libpcre2-dev libutf8proc-dev zlib1g-dev libboost-dev libgtest-dev libgmock-dev python3 python3-dev python3-venv"
  [format]="clang-format git python3"
  [browser]="chromium-headless-shell chromium-driver fonts-dejavu-core"
  [fuzz]="clang libclang-rt-dev"
)

wanted=""
for purpose in "$@"; do
  if [ -z "${packages[$purpose]+x}" ]; then
    echo "setup: unknown purpose \"$purpose\"; known: ${!packages[*]}" >&2
    exit 2
  fi
  wanted+=" ${packages[$purpose]}"
done

if ! command -v dpkg-query > /dev/null || ! command -v apt-get > /dev/null; then
  echo "setup: not a Debian system; please provide:" $wanted
  exit 0
fi

missing=()
for package in $wanted; do
  status=$(dpkg-query -W -f='${Status}' "$package" 2> /dev/null || true)
  [ "$status" = "install ok installed" ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

echo "setup: installing from Debian: ${missing[*]}"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo > /dev/null; then
    echo "setup: neither root nor sudo; run as root: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null
