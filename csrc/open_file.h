/* Opening a file of a store by its path, after its first opening. */
#ifndef ROCKETSTORE_OPEN_FILE_H
#define ROCKETSTORE_OPEN_FILE_H

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "rocketstore.h"

/* Opens the file for writing. Returns -ESTALE if its path names another file than before: the
 * directory was moved, and another store may be in its place. Threads: any. */
static inline int rs_open_for_writing(rs_mapped_file *f) {
    const int fd = f->env->open(f->path, O_RDWR, 0);
    struct stat status;
    if (fd < 0) return fd;
    int error = fstat(fd, &status) < 0 ? -errno : 0;
    if (error == 0) {
        const uint64_t inode = __atomic_load_n(&f->inode, __ATOMIC_ACQUIRE);
        if (inode == 0) {
            __atomic_store_n(&f->device, (uint64_t)status.st_dev, __ATOMIC_RELAXED);
            __atomic_store_n(&f->inode, (uint64_t)status.st_ino, __ATOMIC_RELEASE);
        } else if (inode != (uint64_t)status.st_ino ||
                   __atomic_load_n(&f->device, __ATOMIC_RELAXED) != (uint64_t)status.st_dev) {
            error = -ESTALE;
        }
    }
    if (error < 0) f->env->close(fd);
    return error < 0 ? error : fd;
}

#endif
