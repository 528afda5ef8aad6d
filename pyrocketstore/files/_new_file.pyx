"""Make new files: they appear with their full length, and never replace another file.

4.9.3 refuses a directory with a file of another length, so a killed process must not leave one. A
new file gets its length before its name: it has no name (O_TMPFILE) or, where the file system does
not support that, the name `.DIRECTORY.NAME.new` in the directory above, where 4.9.3 looks for
directories only, or not at all. The next opening removes the file of a killed process there.
"""
from cpython.bytes cimport PyBytes_AS_STRING
from libc.errno cimport EEXIST, EIO, EOPNOTSUPP
from libc.stdint cimport int64_t
from posix.fcntl cimport O_CREAT, O_EXCL, O_RDWR

from pyrocketstore.system._allocation cimport map_new_file
from pyrocketstore.system._env cimport EnvTable
from pyrocketstore._rocketstore cimport rs_env, rs_fdatasync, rs_fsync_directory, rs_mapped_file

cdef enum:
    FILE_MODE = 0o644
    STEP_OPEN = 0
    STEP_FTRUNCATE = 1
    STEP_LINK = 2
    STEP_UNLINK = 3
    STEP_FDATASYNC = 4
    STEP_FSYNC_DIRECTORY = 5

cdef tuple STEPS = ("open", "ftruncate", "link", "unlink", "fdatasync", "fsync_directory")


cdef int make_file(EnvTable owner, bytes path, int64_t size, bint durable, bint is_there,
                   object shown, rs_mapped_file *mapped) except -1:
    cdef const rs_env *env = &owner.table
    cdef bytes directory, temporary, name
    cdef const char *path_text = PyBytes_AS_STRING(path)
    cdef const char *directory_text
    cdef const char *temporary_text = NULL
    cdef int error
    cdef int step = 0
    directory, slash, name = path.rpartition(b"/")
    above, above_slash, below = directory.rpartition(b"/")
    directory = directory or slash or b"."
    directory_text = PyBytes_AS_STRING(directory)
    if below not in (b"", b".", b".."):
        temporary = above + above_slash + b".%s.%s.new" % (below, name)
        temporary_text = PyBytes_AS_STRING(temporary)
    with nogil:
        if is_there:
            error = open_and_extend(env, path_text, size, 0, &step)
        else:
            error = create(env, path_text, size, directory_text, temporary_text, &step)
        if error >= 0:
            error = finish(env, error, path_text, directory_text if durable else NULL, &step)
        if error >= 0 and mapped != NULL:
            map_new_file(mapped)
    if error == -EEXIST and not is_there:
        return 0
    owner.check(error, STEPS[step], shown, -1)
    return 1


cdef int create(const rs_env *env, const char *path, int64_t size, const char *directory,
                const char *temporary, int *step) noexcept nogil:
    # This and the next three return the descriptor of a file with its full length and its name.
    cdef int fd = create_unnamed(env, path, size, directory, step)
    if fd == -EOPNOTSUPP and temporary != NULL:
        fd = create_linked(env, path, size, temporary, step)
        if fd < 0 and fd != -EEXIST and step[0] != STEP_UNLINK:
            # No hard links, or the directory above is on another device or not writable.
            fd = -EOPNOTSUPP
    if fd == -EOPNOTSUPP:
        fd = open_and_extend(env, path, size, O_CREAT | O_EXCL, step)
    return fd


cdef int create_unnamed(const rs_env *env, const char *path, int64_t size, const char *directory,
                        int *step) noexcept nogil:
    cdef int fd = env.open_unnamed(directory, FILE_MODE)
    cdef int error
    step[0] = STEP_OPEN
    if fd < 0:
        return fd
    step[0] = STEP_FTRUNCATE
    error = env.ftruncate(fd, size)
    if error >= 0:
        step[0] = STEP_LINK
        error = env.link_unnamed(fd, path)
    if error < 0:
        env.close(fd)
        return error
    return fd


cdef int create_linked(const rs_env *env, const char *path, int64_t size, const char *temporary,
                       int *step) noexcept nogil:
    cdef int fd = env.open(temporary, O_RDWR | O_CREAT | O_EXCL, FILE_MODE)
    cdef int error, unlinked
    step[0] = STEP_OPEN
    if fd == -EEXIST:
        # Left by a killed process: only the owner of the store makes files.
        env.unlink(temporary)
        fd = env.open(temporary, O_RDWR | O_CREAT | O_EXCL, FILE_MODE)
    if fd < 0:
        return fd if fd != -EEXIST else -EIO
    step[0] = STEP_FTRUNCATE
    error = env.ftruncate(fd, size)
    if error >= 0:
        step[0] = STEP_LINK
        error = env.link(temporary, path)
    unlinked = env.unlink(temporary)
    if error >= 0 and unlinked < 0:
        step[0] = STEP_UNLINK
        error = unlinked
        env.unlink(path)
    if error < 0:
        env.close(fd)
        return error
    return fd


cdef int open_and_extend(const rs_env *env, const char *path, int64_t size, int flags,
                         int *step) noexcept nogil:
    cdef int fd = env.open(path, O_RDWR | flags, FILE_MODE)
    cdef int error
    step[0] = STEP_OPEN
    if fd < 0:
        return fd
    step[0] = STEP_FTRUNCATE
    error = env.ftruncate(fd, size)
    if error < 0:
        env.close(fd)
        env.unlink(path)  # a file of another length must not stay
        return error
    return fd


cdef int finish(const rs_env *env, int fd, const char *path, const char *directory,
                int *step) noexcept nogil:
    cdef int error = 0
    if directory != NULL:
        # After the file has its name: btrfs makes nothing of a file without a name durable.
        step[0] = STEP_FDATASYNC
        error = rs_fdatasync(env, fd)
    env.close(fd)
    if error >= 0 and directory != NULL:
        step[0] = STEP_FSYNC_DIRECTORY
        error = rs_fsync_directory(env, directory)
    if error < 0:
        env.unlink(path)  # a file that may not survive a power cut must not stay
    return error
