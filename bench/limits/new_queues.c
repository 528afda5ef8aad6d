/* Limit of the first message of a new topic: the system calls that make the files of its queue.
 *
 *     new_queues PATH count=N [threads=N] [allocated=BYTES]
 *
 * Each topic is two directories, TOPIC and TOPIC/0, and a file with its full length in the second,
 * of which the first bytes are allocated and written. Nothing is synced, mapped or read. Several
 * threads make topics in turn. What a unit made stays until the program ends: a file system reuses
 * the numbers of files that were just deleted only after a long search. */
#include "rounds.h"

#include <ftw.h>
#include <pthread.h>

enum { FILE_SIZE = 6000000, UNIT = 20, THREADS_MAX = 64 };

static const char *path;
static char place[2048]; /* of this unit, below `path` */
static int64_t count, threads, allocated, units;

static int removed(const char *name, const struct stat *info, int kind, struct FTW *walk) {
    (void)info;
    (void)kind;
    (void)walk;
    return remove(name);
}

static void make_topic(int64_t number) {
    static const char unit[UNIT] = {1};
    char name[4096];
    int size = snprintf(name, sizeof name, "%s/topic-%lld", place, (long long)number);
    if (size < 0 || size > (int)sizeof name - 64 || mkdir(name, 0755) != 0) {
        die(name);
    }
    strcpy(name + size, "/0");
    if (mkdir(name, 0755) != 0) {
        die(name);
    }
    strcpy(name + size, "/0/00000000000000000000");
    int fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0 || ftruncate(fd, FILE_SIZE) != 0) {
        die(name);
    }
    if (allocated > 0 && fallocate(fd, 0, 0, allocated) != 0) {
        die("fallocate");
    }
    if (pwrite(fd, unit, UNIT, 0) != UNIT || close(fd) != 0) {
        die("pwrite");
    }
}

static void remove_all(void) {
    if (nftw(path, removed, 16, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT) {
        die(path);
    }
}

static void *make_share(void *first) {
    for (int64_t number = (int64_t)(intptr_t)first; number < count; number += threads) {
        make_topic(number);
    }
    return NULL;
}

static unit_result unit(void) {
    pthread_t others[THREADS_MAX];
    snprintf(place, sizeof place, "%s/%lld", path, (long long)++units);
    if (mkdir(place, 0755) != 0) {
        die(place);
    }
    start_clock();
    for (int64_t i = 1; i < threads; i++) {
        if (pthread_create(&others[i], NULL, make_share, (void *)(intptr_t)i) != 0) {
            die("pthread_create");
        }
    }
    make_share(NULL);
    for (int64_t i = 1; i < threads; i++) {
        pthread_join(others[i], NULL);
    }
    return stop_clock(count, count * UNIT);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        return 2;
    }
    path = argv[1];
    options = argv + 2;
    options_count = argc - 2;
    count = option("count", 1000);
    threads = option("threads", 1);
    allocated = option("allocated", 4096);
    if (count < 1 || threads < 1 || threads > THREADS_MAX) {
        errno = EINVAL;
        die("count or threads");
    }
    remove_all();
    if (mkdir(path, 0755) != 0) {
        die(path);
    }
    answer_rounds(unit);
    remove_all();
    return 0;
}
