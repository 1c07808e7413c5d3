#!/usr/bin/env bash
# bundle_libs.sh PROGRAM DIR: copies the shared libraries of PROGRAM, except the C library's, to DIR.
set -euo pipefail
mkdir -p "$2"
ldd "$1" | awk '$2 == "=>" {print $1, $3}' | while read -r name path; do
  case $name in
    libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.*) ;;
    # In one step, because programs that are linked at the same time copy the same libraries.
    *) [ "$path" -ef "$2/$name" ] || { cp -L "$path" "$2/.$name.$$" && mv -f "$2/.$name.$$" "$2/$name"; } ;;
  esac
done
