#!/bin/sh
# The C tests of csrc's kernels on this machine: optimised, without vector instructions, and under
# ASan and UBSan.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
cc=${CC:-cc}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

zlib=""
if echo '#include <zlib.h>' | $cc -E - >/dev/null 2>&1; then zlib="-DHAVE_ZLIB"; fi
if [ -z "$zlib" ]; then echo "zlib.h: SKIPPED, not installed"; fi
warnings="-std=c11 -Wall -Wextra -Wconversion -Werror"

build_and_run() {
    # $1: what; the rest: flags
    what=$1
    shift
    echo "== $what"
    $cc $warnings "$@" -I"$root/csrc" $zlib "$here/test_crc32.c" "$root/csrc/crc32.c" \
        -o "$out/test_crc32" ${zlib:+-lz}
    $cc $warnings "$@" -I"$root/csrc" "$here/test_hash.c" "$root/csrc/hash.c" -o "$out/test_hash"
    "$out/test_crc32"
    "$out/test_hash"
}

build_and_run "optimised" -O3
build_and_run "without vector instructions" -O3 -U__SSE2__
build_and_run "address and undefined behaviour sanitizers" -O1 -g \
    -fsanitize=address,undefined -fno-sanitize-recover=all
