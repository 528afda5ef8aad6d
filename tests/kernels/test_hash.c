/* Goal: the UTF-8 reader, Java's string hash and the search for a byte agree with known answers, and
 * never read past the end. Method: test vectors; random, malformed and plain bytes between
 * unreadable pages, compared with loops over single bytes. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bytes.h"

static const struct {
    const char *text;
    int32_t hash;
} vectors[] = {
    {"", 0},
    {"TagA", 2598919},
    {"topic#key", 386934027},
    {"\xF0\x9F\x98\x80", 1772899},               /* U+1F600 */
    {"polygenelubricants", INT32_MIN},
    {"\xED\xA0\x80", 0xFFFD},                    /* a surrogate: one replacement */
    {"\xED\xBF", 0xFFFD},
    {"\xC0\x80", 0xFFFD * 31 + 0xFFFD},          /* overlong: one for each byte */
    {"\xE2\x82", 0xFFFD},                        /* cut short: one replacement */
    {"\xE2\x82" "A", 0xFFFD * 31 + 'A'},
    {"\xF4\x8F\xBF\xBF", 0xDBFF * 31 + 0xDFFF},  /* the last code point */
    {"\xF4\x90", 0xFFFD * 31 + 0xFFFD},
};

static void check_reader(const uint8_t *p, int64_t size) {
    int64_t at = 0;
    uint32_t code = 0;
    while (at < size) {
        int32_t took = rs_utf8_next(p + at, size - at, &code);
        if (took < 1 || took > 4 || took > size - at || code > 0x10FFFF ||
            (code >= 0xD800 && code <= 0xDFFF)) {
            fprintf(stderr, "took %d of %lld bytes for U+%04X\n", (int)took,
                    (long long)(size - at), (unsigned)code);
            exit(1);
        }
        at += took;
    }
    (void)rs_java_hash(0, p, size);
}

static void check_loops(const uint8_t *p, int64_t size) {
    int32_t got = rs_java_hash(7, p, size), wanted = rs_java_hash_slow(7, p, size);
    if (got != wanted) {
        fprintf(stderr, "hash of %lld bytes: got %d, wanted %d\n", (long long)size, (int)got,
                (int)wanted);
        exit(1);
    }
    uint64_t places = 0;
    for (int64_t i = 0; i < size && i < 64; i++) places |= (uint64_t)(p[i] == 2) << i;
    if (size > 0 && rs_places(p, size, 2) != places) {
        fprintf(stderr, "places in %lld bytes: got %llx, wanted %llx\n", (long long)size,
                (unsigned long long)rs_places(p, size, 2), (unsigned long long)places);
        exit(1);
    }
}

static void check_find(const uint8_t *p, int64_t size, uint8_t byte) {
    int64_t wanted = 0;
    while (wanted < size && p[wanted] != byte) wanted++;
    if (rs_find_byte(p, size, byte) != wanted) {
        fprintf(stderr, "place of %d in %lld bytes: got %lld, wanted %lld\n", byte,
                (long long)size, (long long)rs_find_byte(p, size, byte), (long long)wanted);
        exit(1);
    }
}

/* Texts with many of the bytes around 2, and now and then a byte above 7F, at both ends of the page
 * between two unreadable ones. */
static void check_texts(uint8_t *base, size_t page) {
    for (int round = 0; round < 40000; round++) {
        size_t size = (size_t)rand() % 140;
        uint8_t *p = round & 1 ? base : base + page - size;
        int high = rand() % 4 == 0;
        for (size_t i = 0; i < size; i++)
            p[i] = (uint8_t)(high && rand() % 16 == 0 ? rand() : rand() & (rand() & 1 ? 3 : 0x7F));
        check_loops(p, (int64_t)size);
        check_find(p, (int64_t)size, (uint8_t)(rand() & 0x7F));
    }
}

int main(void) {
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        const char *text = vectors[i].text;
        int32_t got = rs_java_hash(0, (const uint8_t *)text, (int64_t)strlen(text));
        if (got != vectors[i].hash) {
            fprintf(stderr, "vector %zu: got %d, wanted %d\n", i, (int)got, (int)vectors[i].hash);
            return 1;
        }
    }
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int access = PROT_READ | PROT_WRITE, kind = MAP_PRIVATE | MAP_ANONYMOUS;
    uint8_t *base = mmap(NULL, 3 * page, access, kind, -1, 0);
    if (base == MAP_FAILED || mprotect(base, page, PROT_NONE) != 0) return 2;
    base += page;
    if (mprotect(base + page, page, PROT_NONE) != 0) return 2;
    /* All lead bytes and all second bytes, cut at every length; then random high bytes. */
    for (unsigned lead = 0x80; lead < 0x100; lead++)
        for (unsigned second = 0; second < 0x100; second++)
            for (size_t size = 1; size <= 4; size++) {
                uint8_t *p = base + page - size;
                memset(p, 0x80, size);
                p[0] = (uint8_t)lead;
                if (size > 1) p[1] = (uint8_t)second;
                check_reader(p, (int64_t)size);
            }
    srand(42);
    for (int round = 0; round < 20000; round++) {
        size_t size = (size_t)rand() % 40;
        uint8_t *p = base + page - size;
        for (size_t i = 0; i < size; i++) p[i] = (uint8_t)(rand() % 4 ? 0x80 | rand() : rand());
        check_reader(p, (int64_t)size);
    }
    check_texts(base, page);
    printf("hash: ok\n");
    return 0;
}
