/* Limit of synchronous puts: pwrite of one record and fdatasync, appending to an allocated file.
 *
 *     append_sync PATH count=N record=BYTES body=BYTES [threads=T]
 *
 * With several threads, one calls fdatasync for all records written so far; the next call covers
 * the records written meanwhile. */
#include "rounds.h"
#include <pthread.h>

static const char *path;
static uint8_t *record;
static int64_t count, record_size, body_size, threads;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t flushed = PTHREAD_COND_INITIALIZER;
static int fd;
static int64_t written, durable;
static bool flushing;

/* Return once the record number `mine` is durable. The caller holds the lock. */
static void await_durable(int64_t mine) {
    while (durable < mine) {
        if (flushing) {
            pthread_cond_wait(&flushed, &lock);
            continue;
        }
        int64_t upto = written;
        flushing = true;
        pthread_mutex_unlock(&lock);
        if (fdatasync(fd) != 0) {
            die("fdatasync");
        }
        pthread_mutex_lock(&lock);
        flushing = false;
        durable = upto;
        pthread_cond_broadcast(&flushed);
    }
}

static void *append_all(void *unused) {
    (void)unused;
    pthread_mutex_lock(&lock);
    while (written < count) {
        if (pwrite(fd, record, (size_t)record_size, written * record_size) != record_size) {
            die("pwrite");
        }
        await_durable(++written);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static unit_result unit(void) {
    pthread_t *pool = calloc((size_t)threads, sizeof *pool);
    if (pool == NULL) {
        die("calloc");
    }
    fd = new_file(path, count * record_size);
    written = durable = 0;
    start_clock();
    for (int64_t i = 1; i < threads; i++) {
        if (pthread_create(&pool[i], NULL, append_all, NULL) != 0) {
            die("pthread_create");
        }
    }
    append_all(NULL);
    for (int64_t i = 1; i < threads; i++) {
        pthread_join(pool[i], NULL);
    }
    unit_result done = stop_clock(durable, durable * body_size);
    close(fd);
    unlink(path);
    free(pool);
    return done;
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
    threads = option("threads", 1);
    record = malloc((size_t)record_size);
    if (record == NULL) {
        die("malloc");
    }
    memset(record, 0x5a, (size_t)record_size);
    answer_rounds(unit);
    return 0;
}
