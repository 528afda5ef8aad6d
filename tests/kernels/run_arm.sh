#!/bin/sh
# The C tests of csrc's kernels, cross-compiled for 64-bit ARM and run under qemu-user.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
cc=${ARM_CC:-aarch64-linux-gnu-gcc}
qemu=${ARM_QEMU:-qemu-aarch64}
for tool in "$cc" "$qemu"; do
    if ! command -v "$tool" >/dev/null 2>&1; then
        echo "ARM kernels: SKIPPED, no $tool (Debian: gcc-aarch64-linux-gnu qemu-user)"
        exit 0
    fi
done
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

warnings="-std=c11 -Wall -Wextra -Wconversion -Werror"
$cc $warnings -O2 -static -DSPARSE=8 -I"$root/csrc" "$here/test_crc32.c" "$root/csrc/crc32.c" \
    -o "$out/test_crc32"
$cc $warnings -O2 -static -I"$root/csrc" "$here/test_hash.c" "$root/csrc/hash.c" -o "$out/test_hash"
echo "== all instructions"
"$qemu" -cpu max "$out/test_crc32"
"$qemu" -cpu max "$out/test_hash"
# An old processor, whose feature words differ: the kernel choice must be correct there too.
echo "== Cortex-A57"
"$qemu" -cpu cortex-a57 "$out/test_crc32" arm_crc
