"""Files that stay open for reading between calls, so that a read costs no open and close.

All stores of the process share one pool of at most MAX_KEPT files, and of an eighth of the limit of
descriptors. A file that finds no room is closed after its read. Before each use a file is
asked how many names it has: another process that owns a store deletes its files, and a reader must
neither keep reading a deleted file nor keep its room on the device. A file that the process itself
owns is not asked.

A forked child forgets the files without closing them: it may have closed these descriptors, and may
have opened others with the same numbers.
"""
import os

from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.errno cimport EMFILE, ENFILE, ENOMEM
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc
from posix.fcntl cimport O_RDONLY
from posix.unistd cimport _SC_OPEN_MAX, sysconf

from pyrocketstore.system._env cimport EnvTable
from pyrocketstore._rocketstore cimport rs_env

cdef enum:
    POOL_SIZE = 128
    LIMIT_PART = 8      # of the process's descriptors, one in so many is used
    LOOKS = 2           # files that are checked for their names when another one is kept

#: At most this many files stay open between calls.
MAX_KEPT = POOL_SIZE

cdef kept_file *pool[POOL_SIZE]
cdef int hand = 0


cdef int limit() noexcept:
    cdef long most = sysconf(_SC_OPEN_MAX)
    return POOL_SIZE if most < 0 else <int>min(most // LIMIT_PART, <long>POOL_SIZE)


cdef void leave_pool(kept_file *file) noexcept:
    # The caller closes the file unless it has users.
    cdef int i
    if file.owner != NULL:
        file.owner[0] = NULL
        file.owner = NULL
    for i in range(POOL_SIZE):
        if pool[i] == file:
            pool[i] = NULL


cdef inline const rs_env *table_of(const kept_file *file) noexcept:
    return &(<EnvTable>file.env).table


cdef void close_unused(kept_file *file) noexcept:
    # A file that has left the pool.
    cdef const rs_env *env = table_of(file)
    if file.users == 0:
        with nogil:
            env.close(file.fd)
        Py_DECREF(<EnvTable>file.env)
        free(file)


cdef int free_slot(kept_file **closed) noexcept:
    # Returns a slot of the pool; `closed` receives the file that leaves it. -1: all are in use.
    global hand
    cdef int most = limit()
    cdef int i
    closed[0] = NULL
    for i in range(most):
        if pool[i] == NULL:
            return i
    for i in range(2 * most):
        hand = hand + 1 if hand + 1 < most else 0
        if pool[hand].users > 0:
            continue
        if not pool[hand].recent:
            closed[0] = pool[hand]
            leave_pool(closed[0])
            return hand
        pool[hand].recent = False
    return -1


cdef void close_deleted() noexcept:
    # Looks at the next files of the pool, so that the room of deleted ones does not stay in use.
    global hand
    cdef kept_file *file
    cdef const rs_env *env
    cdef int64_t names
    cdef int i
    for i in range(LOOKS):
        hand = hand + 1 if hand + 1 < POOL_SIZE else 0
        file = pool[hand]
        if file == NULL:
            continue
        file.users += 1
        env = table_of(file)
        with nogil:
            names = env.link_count(file.fd)
        if names <= 0:
            leave_pool(file)
        release_kept(file)


cdef bint close_idle() noexcept:
    # Closes the files without users: the process has no free descriptor. True if there were any.
    cdef kept_file *file
    cdef bint found = False
    cdef int i
    for i in range(POOL_SIZE):
        file = pool[i]
        if file != NULL and file.users == 0:
            found = True
            leave_pool(file)
            close_unused(file)
    return found


cdef int open_path(const rs_env *env, const char *path) noexcept:
    cdef int fd
    with nogil:
        fd = env.open(path, O_RDONLY, 0)
    if (fd == -EMFILE or fd == -ENFILE) and close_idle():
        with nogil:
            fd = env.open(path, O_RDONLY, 0)
    return fd


cdef kept_file *keep(kept_file **owner, EnvTable env, int fd) noexcept:
    # Returns the file with one user; it is in the pool if that has room. NULL without memory.
    cdef kept_file *file = <kept_file *>malloc(sizeof(kept_file))
    cdef kept_file *closed = NULL
    cdef int slot
    if file == NULL:
        return NULL
    file.fd = fd
    file.users = 1
    file.recent = True
    file.env = <PyObject *>env
    Py_INCREF(env)
    file.owner = NULL
    if owner[0] == NULL:  # else another thread has opened the file meanwhile
        slot = free_slot(&closed)
        if slot >= 0:
            pool[slot] = file
            file.owner = owner
            owner[0] = file
        if closed != NULL:
            close_unused(closed)
        close_deleted()
    return file


cdef int64_t read_kept(kept_file **owner, EnvTable owner_env, const char *path, bint is_own,
                       void *target, int64_t size, int64_t position) noexcept:
    cdef const rs_env *env = &owner_env.table
    cdef kept_file *file = owner[0]
    cdef int64_t names = 1
    cdef int64_t got = 0
    cdef int error = 0
    if file != NULL:
        file.users += 1
        file.recent = True
        with nogil:
            if not is_own:
                names = env.link_count(file.fd)
            if names > 0:
                got = env.pread(file.fd, target, size, position)
        if names <= 0:
            leave_pool(file)
        release_kept(file)
        if names > 0:
            return got
    file = take_kept(owner, owner_env, path, &error)
    if file == NULL:
        return error
    with nogil:
        got = env.pread(file.fd, target, size, position)
    release_kept(file)
    return got


cdef kept_file *take_kept(kept_file **owner, EnvTable owner_env, const char *path,
                          int *error) noexcept:
    cdef const rs_env *env = &owner_env.table
    cdef kept_file *file = owner[0]
    cdef int64_t names
    cdef int fd
    if file != NULL:
        file.users += 1
        file.recent = True
        with nogil:
            names = env.link_count(file.fd)
        if names > 0:
            return file
        leave_pool(file)
        release_kept(file)
    fd = open_path(env, path)
    if fd < 0:
        error[0] = fd
        return NULL
    file = keep(owner, owner_env, fd)
    if file == NULL:
        with nogil:
            env.close(fd)
        error[0] = -ENOMEM
    return file


cdef bint kept_has_name(kept_file **owner) noexcept:
    cdef kept_file *file = owner[0]
    cdef const rs_env *env
    cdef int64_t names
    if file == NULL:
        return False
    env = table_of(file)
    file.users += 1
    file.recent = True
    with nogil:
        names = env.link_count(file.fd)
    if names <= 0:
        leave_pool(file)
    release_kept(file)
    return names > 0


cdef void release_kept(kept_file *file) noexcept:
    file.users -= 1
    if file.owner == NULL:
        close_unused(file)


cdef void close_kept(kept_file **owner) noexcept:
    cdef kept_file *file = owner[0]
    if file != NULL:
        leave_pool(file)
        close_unused(file)


def _forget_in_child():
    cdef int i
    for i in range(POOL_SIZE):
        if pool[i] != NULL:
            pool[i].owner[0] = NULL
            pool[i] = NULL


os.register_at_fork(after_in_child=_forget_in_child)
