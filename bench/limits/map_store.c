/* What memory gives to puts that nobody forces: records with their body's CRC stored into a mapped
 * file whose blocks are allocated. No lock, no queue, no index, no interpreter.
 *
 *     map_store PATH count=N record=BYTES body=BYTES [helper=1]
 *
 * Pages are made present in steps ahead of the writer: by the writer itself, or by a helper thread.
 * Removing the file is not timed. */
#include "rounds.h"

#include "rocketstore.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#define STEP ((int64_t)4 << 20)

static const char *path;
static uint8_t *record;
static int64_t count, record_size, body_size, helper, size;

static uint8_t *base;
static _Atomic int64_t present;

/* Makes the next step present. */
static void populate(int64_t from) {
    int64_t step = size - from < STEP ? size - from : STEP;
    if (madvise(base + from, (size_t)step, MADV_POPULATE_WRITE) != 0) {
        for (int64_t at = from; at < from + step; at += 4096) {
            *(volatile uint8_t *)(base + at) = 0;
        }
    }
    atomic_store_explicit(&present, from + step, memory_order_release);
}

static void *populate_all(void *unused) {
    (void)unused;
    for (int64_t at = 0; at < size; at += STEP) {
        populate(at);
    }
    return NULL;
}

/* Returns when the bytes before `end` are present. */
static inline void await_present(int64_t end) {
    int64_t at;
    while ((at = atomic_load_explicit(&present, memory_order_acquire)) < end) {
        if (helper) {
            sched_yield();
        } else {
            populate(at);
        }
    }
}

static unit_result unit(void) {
    int fd = new_file(path, size);
    base = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        die("mmap");
    }
    atomic_store(&present, 0);
    double start = now();
    pthread_t thread;
    if (helper && pthread_create(&thread, NULL, populate_all, NULL) != 0) {
        die("pthread_create");
    }
    const uint8_t *body = record + record_size - body_size;
    for (int64_t i = 0; i < count; i++) {
        await_present((i + 1) * record_size);
        uint32_t crc = rs_crc32(0, body, (size_t)body_size);
        memcpy(record, &crc, sizeof crc);
        memcpy(base + i * record_size, record, (size_t)record_size);
    }
    if (helper) {
        pthread_join(thread, NULL);
    }
    double seconds = now() - start;
    uint32_t last;
    memcpy(&last, base + (count - 1) * record_size, sizeof last);
    if (last != rs_crc32(0, body, (size_t)body_size)) {
        errno = EIO;
        die("last record");
    }
    munmap(base, (size_t)size);
    close(fd);
    unlink(path);
    return (unit_result){count, count * body_size, seconds};
}

int main(int argc, char **argv) {
    if (argc < 2) {
        return 2;
    }
    path = argv[1];
    options = argv + 2;
    options_count = argc - 2;
    count = option("count", 1000);
    record_size = option("record", 1100);
    body_size = option("body", 1024);
    helper = option("helper", 0);
    size = count * record_size;
    if (count < 1 || body_size + 4 > record_size) {
        return 2;
    }
    record = malloc((size_t)record_size);
    if (record == NULL) {
        die("malloc");
    }
    memset(record, 0x5a, (size_t)record_size);
    answer_rounds(unit);
    return 0;
}
