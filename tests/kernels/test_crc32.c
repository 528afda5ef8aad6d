/* Goal: every CRC-32 kernel returns the result of a bitwise division, and reads no byte outside of
 * its input. Method: every length 0..4096 at every alignment 0..63; every length adjacent to an
 * unreadable page behind and before; parts compared with the whole; zlib if it is linked in.
 * Usage: test_crc32 [kernel...]; a kernel that this processor lacks is reported as skipped. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "rocketstore.h"
#ifdef HAVE_ZLIB
#include <zlib.h>
#endif

#define LENGTH_MAX 4096
#define ALIGNMENTS 64
#define LARGE_SIZE (1 << 20)
#ifndef SPARSE
#define SPARSE 1 /* under an emulator: every SPARSE-th length at most alignments */
#endif

static uint64_t random_state = 42;
static uint64_t next_random(void) { /* xorshift64*: equal on all platforms */
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * 0x2545F4914F6CDD1Du;
}

static uint32_t reference_byte(uint32_t crc, uint8_t byte) {
    crc = ~crc ^ byte;
    for (int i = 0; i < 8; i++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    return ~crc;
}

static void expect(uint32_t got, uint32_t wanted, const char *name, const char *what, size_t at,
                   size_t size) {
    if (got == wanted) return;
    fprintf(stderr, "%s: %s %zu, length %zu: got %08x, wanted %08x\n", name, what, at, size,
            (unsigned)got, (unsigned)wanted);
    exit(1);
}

/* Maps `size` bytes (whole pages) between two inaccessible pages. */
static uint8_t *guarded(size_t size) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *base = mmap(NULL, size + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || mprotect(base + page, size, PROT_READ | PROT_WRITE) != 0) {
        perror("mmap");
        exit(2);
    }
    for (size_t i = 0; i < size; i++) base[page + i] = (uint8_t)next_random();
    return base + page;
}

static void test_lengths_and_alignments(const char *name, rs_crc32_fn run, const uint8_t *data) {
    for (size_t alignment = 0; alignment < ALIGNMENTS; alignment++) {
        /* Every second round starts with a nonzero CRC. */
        uint32_t seed = alignment & 1 ? (uint32_t)next_random() : 0, wanted = seed;
        const uint8_t *p = data + alignment;
        for (size_t size = 0; size <= LENGTH_MAX; size++) {
            if (alignment % 16 == 0 || (size + alignment) % SPARSE == 0)
                expect(run(seed, p, size), wanted, name, "alignment", alignment, size);
            wanted = reference_byte(wanted, p[size]);
        }
    }
}

static void test_guard_pages(const char *name, rs_crc32_fn run, const uint8_t *data, size_t size) {
    uint32_t wanted = 0;
    for (size_t n = 0; n <= LENGTH_MAX; n++) {
        expect(run(0, data, n), wanted, name, "behind the guard page", 0, n);
        wanted = reference_byte(wanted, data[n]);
        const uint8_t *p = data + size - n;
        expect(run(0, p, n), rs_crc32_by_name("slice8")(0, p, n), name, "before the guard page",
               0, n);
    }
}

static void test_parts(const char *name, rs_crc32_fn run, const uint8_t *data, size_t size) {
    uint32_t whole = 0;
    for (size_t i = 0; i < size; i++) whole = reference_byte(whole, data[i]);
    expect(run(0, data, size), whole, name, "whole", 0, size);
    for (int round = 0; round < 200; round++) {
        uint32_t crc = 0;
        size_t at = 0, longest = (size_t)1 << (next_random() % 21);
        while (at < size) {
            size_t n = (size_t)(next_random() % (longest + 1));
            if (longest < 64) n += 4096; /* keep the number of tiny parts small */
            if (n > size - at) n = size - at;
            crc = run(crc, data + at, n);
            at += n;
        }
        expect(crc, whole, name, "parts, round", (size_t)round, size);
    }
}

static void test_zlib(const char *name, rs_crc32_fn run, const uint8_t *data) {
#ifdef HAVE_ZLIB
    for (size_t size = 0; size <= LENGTH_MAX; size++) {
        const uint8_t *p = data + size % ALIGNMENTS;
        uint32_t seed = (uint32_t)next_random();
        uint32_t wanted = (uint32_t)crc32(seed, p, (uInt)size);
        expect(run(seed, p, size), wanted, name, "zlib, alignment", size % ALIGNMENTS, size);
    }
#else
    (void)name, (void)run, (void)data;
#endif
}

static void test_kernel(const char *name) {
    rs_crc32_fn run = rs_crc32_by_name(name);
    if (run == NULL) {
        printf("%s: SKIPPED, this processor or build lacks it\n", name);
        return;
    }
    expect(run(0, (const uint8_t *)"123456789", 9), 0xCBF43926u, name, "known vector", 0, 9);
    expect(run(7, NULL, 0), 7, name, "nothing", 0, 0);
    uint8_t *data = guarded(LARGE_SIZE);
    test_lengths_and_alignments(name, run, data);
    test_guard_pages(name, run, data, LARGE_SIZE);
    test_parts(name, run, data, LARGE_SIZE);
    test_zlib(name, run, data);
    if (rs_crc32_select(name) != 0 || strcmp(rs_crc32_kernel_name(), name) != 0) {
        fprintf(stderr, "%s: could not be selected\n", name);
        exit(1);
    }
    expect(rs_crc32(0, data, LARGE_SIZE), run(0, data, LARGE_SIZE), name, "selected", 0,
           LARGE_SIZE);
    printf("%s: ok\n", name);
}

int main(int argc, char **argv) {
    uint8_t text[] = "123456789";
    expect(rs_crc32(0, text, 9), 0xCBF43926u, "first call", "known vector", 0, 9);
    printf("default: %s\n", rs_crc32_kernel_name());
    if (rs_crc32_by_name("no such kernel") != NULL || rs_crc32_select("no such kernel") != -1) {
        fprintf(stderr, "an unknown name was accepted\n");
        return 1;
    }
    if (argc > 1)
        for (int i = 1; i < argc; i++) test_kernel(argv[i]);
    else
        for (const char *const *name = rs_crc32_kernels(); *name != NULL; name++)
            test_kernel(*name);
    return 0;
}
