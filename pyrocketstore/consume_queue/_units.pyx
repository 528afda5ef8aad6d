"""Write, read and scan units of consume queues. Every queue unit is written in this module.

A unit has 20 bytes: i64 phy_offset, i32 size, i64 tags_code, big-endian; unit n of a queue is at
byte 20 n of its file sequence. A pre-blank unit (0, 2147483647, 0) fills a queue offset that never
had a message.
"""
import numpy
import os

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.errno cimport ELOOP, ENAMETOOLONG, ENOENT, ENOMEM, ENOTDIR
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, strlen
from posix.fcntl cimport O_RDONLY, O_RDWR

from pyrocketstore._rocketstore cimport (
    RS_CQ_EXT_MAX_ADDR,
    RS_CQ_EXT_MIN_UNIT_SIZE,
    RS_CQ_STORE_UNIT_SIZE,
    RS_ENTRY_FILE,
    RS_NEED_FILE,
    RS_NEED_PYTHON,
    RS_OK,
    RS_REPEAT,
    check_io,
    rs_env,
    rs_load_acquire,
    rs_load_be16,
    rs_load_be32,
    rs_load_be64,
    rs_mapped_file,
    rs_open_for_writing,
    rs_queue,
    rs_store_be32,
    rs_store_be64,
    rs_store_release,
    rs_store_release32,
)
from pyrocketstore.files._mapped_file cimport FileSequence, MappedFile, confirm, file_with
from pyrocketstore.files._writes cimport write_bytes
from pyrocketstore.system._allocation cimport confirm_room, write_all
from pyrocketstore.system._env cimport EnvTable

from pyrocketstore.errors import StoreIOError

MAX_ADDR = RS_CQ_EXT_MAX_ADDR

#: One unit on disk.
CQ_UNIT_DTYPE = numpy.dtype([("phy_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])

cdef enum:
    UNIT = RS_CQ_STORE_UNIT_SIZE
    # Runs of at least LONG_RUN units are written by pwrite, in chunks that end at multiples of
    # CHUNK_SIZE: 60 pages, 12288 units, and the buffer stays in the processor's cache.
    LONG_RUN = 4096
    CHUNK_SIZE = 245760
    BLANK_RUN = 128
    UNMAPPED_UNITS = 256    # of an unmapped file, until Python decides again whether to map it

# "No ext address": 4.9.3 starts from this value.
cdef int64_t NO_EXT_ADDRESS = 1
# The hot path must not overflow when it adds a size to an offset.
cdef int64_t MAX_PHY = 0x7FFFFFFF00000000
#: No message is at or above this physical offset.
MAX_PHY_OFFSET = MAX_PHY




cdef inline void store_unit(uint8_t *p, int64_t phy_offset, int32_t size,
                            int64_t tags_code) noexcept nogil:
    rs_store_be64(p, phy_offset)
    rs_store_be32(p + 8, size)
    rs_store_be64(p + 12, tags_code)


# ---- walks -------------------------------------------------------------------------------------

cdef unit_scan scan(const uint8_t *base, int64_t size, int64_t phy_limit) noexcept nogil:
    cdef unit_scan found = unit_scan(valid_size=0, max_phy_offset=-1,
                                     last_ext_address=NO_EXT_ADDRESS)
    cdef int64_t at = 0
    cdef int64_t phy_offset, tags_code
    cdef int32_t message_size
    while at <= size - UNIT:
        phy_offset = rs_load_be64(base + at)
        message_size = rs_load_be32(base + at + 8)
        if phy_offset < 0 or message_size <= 0 or phy_offset >= phy_limit:
            break
        tags_code = rs_load_be64(base + at + 12)
        at += UNIT
        found.valid_size = at
        if is_pre_blank(phy_offset, message_size, tags_code):
            continue
        if phy_offset > MAX_PHY:
            phy_offset = MAX_PHY
        found.max_phy_offset = phy_offset + message_size
        if tags_code <= RS_CQ_EXT_MAX_ADDR:
            found.last_ext_address = tags_code
    return found


cdef int64_t find_unit(const uint8_t *base, int64_t size, int64_t at,
                       int64_t min_phy_offset) noexcept nogil:
    # Byte position of the first message at or after min_phy_offset; -1 without one.
    cdef int64_t phy_offset
    while at <= size - UNIT:
        phy_offset = rs_load_be64(base + at)
        if phy_offset >= min_phy_offset and not is_pre_blank(
                phy_offset, rs_load_be32(base + at + 8), rs_load_be64(base + at + 12)):
            return at
        at += UNIT
    return -1


cdef int64_t find_last(const uint8_t *base, int64_t size, bint with_ext) noexcept nogil:
    # Byte position of the last message (or of the last one with an ext address); -1 without one.
    cdef int64_t at = size - size % UNIT - UNIT
    cdef int64_t phy_offset, tags_code
    cdef int32_t message_size
    while at >= 0:
        phy_offset = rs_load_be64(base + at)
        message_size = rs_load_be32(base + at + 8)
        tags_code = rs_load_be64(base + at + 12)
        if (phy_offset >= 0 and message_size > 0
                and not is_pre_blank(phy_offset, message_size, tags_code)
                and (not with_ext or tags_code <= RS_CQ_EXT_MAX_ADDR)):
            return at
        at -= UNIT
    return -1


cdef int64_t walk_ext(const uint8_t *base, int64_t size) noexcept nogil:
    # Bytes of the complete ext units at the start: each begins with its own i16 size.
    cdef int64_t at = 0
    cdef int64_t unit_size
    while at <= size - RS_CQ_EXT_MIN_UNIT_SIZE:
        unit_size = rs_load_be16(base + at)
        if unit_size < RS_CQ_EXT_MIN_UNIT_SIZE or unit_size > size - at:
            break
        at += unit_size
    return at


cdef void decode(const uint8_t *base, int64_t count, int64_t *phy_offset, int32_t *size,
                 int64_t *tags_code) noexcept nogil:
    cdef int64_t i
    for i in range(count):
        phy_offset[i] = rs_load_be64(base + i * UNIT)
        size[i] = rs_load_be32(base + i * UNIT + 8)
        tags_code[i] = rs_load_be64(base + i * UNIT + 12)


cdef void encode(uint8_t *base, int64_t count, const int64_t *phy_offset, const int32_t *size,
                 const int64_t *tags_code) noexcept nogil:
    cdef int64_t i
    for i in range(count):
        store_unit(base + i * UNIT, phy_offset[i], size[i], tags_code[i])


cdef int64_t last_message(int64_t count, const int64_t *phy_offset, const int32_t *size,
                          const int64_t *tags_code) noexcept nogil:
    # The last entry that is neither pre-blank nor a hole; -1 without one.
    cdef int64_t i = count - 1
    while i >= 0 and (phy_offset[i] < 0 or size[i] <= 0
                      or is_pre_blank(phy_offset[i], size[i], tags_code[i])):
        i -= 1
    return i


cdef bint are_zeros(const uint8_t *data, int64_t size) noexcept nogil:
    # The compiler turns the loop into vector instructions.
    cdef uint8_t any_bit = 0
    cdef int64_t i
    for i in range(size):
        any_bit |= data[i]
    return any_bit == 0


# ---- writing -----------------------------------------------------------------------------------

cdef inline int64_t room(rs_queue *q) noexcept nogil:
    # Bytes of complete units that fit into the attached file; 0: another file is needed.
    cdef rs_mapped_file *file = q.file
    if file == NULL or (q.unmapped_left <= 0 if q.unmapped else file.base == NULL):
        return 0
    # Only the file at the end of the queue is written to.
    if file.file_from_offset + file.wrote != q.unit_count * UNIT:
        return 0
    return file.file_size - file.wrote


cdef inline void publish(rs_queue *q, rs_mapped_file *file, int64_t wrote,
                         int64_t count) noexcept nogil:
    # The bytes first, then the position of the file, then the end of the queue.
    rs_store_release(&file.wrote, wrote)
    rs_store_release(&q.unit_count, q.unit_count + count)
    rs_store_release32(&q.dirty, 1)
    if q.unmapped:
        q.unmapped_left -= <int32_t>min(count, <int64_t>q.unmapped_left)


cdef inline bint by_pwrite(const rs_queue *q, const rs_mapped_file *file) noexcept nogil:
    return file.by_write or q.unmapped


cdef int put_position_info(rs_queue *q, int64_t phy_offset, int32_t size, int64_t tags_code,
                           int64_t queue_offset) noexcept nogil:
    cdef rs_mapped_file *file
    cdef uint8_t unit[UNIT]
    cdef int64_t wrote
    cdef int status
    if phy_offset <= q.max_physic_offset - size:
        return RS_REPEAT
    if queue_offset < q.unit_count:
        if q.repeated_at < 0:
            q.repeated_at = phy_offset
        return RS_REPEAT
    if queue_offset != q.unit_count or size <= 0 or not 0 <= phy_offset <= MAX_PHY:
        return RS_NEED_PYTHON
    if room(q) < UNIT:
        return RS_NEED_FILE
    file = q.file
    wrote = file.wrote
    if wrote + UNIT > rs_load_acquire(&file.confirmed):
        status = confirm(file, wrote + UNIT)
        if status < 0:
            return status
    if by_pwrite(q, file):
        store_unit(unit, phy_offset, size, tags_code)
        status = write_bytes(file, wrote, unit, UNIT)
        if status < 0:
            return status
    else:
        store_unit(file.base + wrote, phy_offset, size, tags_code)
    rs_store_release(&q.max_physic_offset, phy_offset + size)
    publish(q, file, wrote + UNIT, 1)
    return RS_OK


cdef int64_t fill_pre_blank(rs_queue *q, int64_t count) noexcept nogil:
    # Returns the units written, as many as fit into the file; or -errno.
    cdef rs_mapped_file *file = q.file
    cdef int64_t fits = room(q) // UNIT
    cdef int64_t i
    cdef uint8_t units[BLANK_RUN * UNIT]
    cdef int status
    if count > fits:
        count = fits
    if count <= 0:
        return 0
    status = confirm(file, file.wrote + count * UNIT)
    if status < 0:
        return status
    if by_pwrite(q, file):
        for i in range(BLANK_RUN):
            store_unit(units + i * UNIT, 0, PRE_BLANK_SIZE, 0)
        i = 0
        while i < count:
            status = write_bytes(file, file.wrote + i * UNIT, units,
                                 min(count - i, <int64_t>BLANK_RUN) * UNIT)
            if status < 0:
                return status
            i += BLANK_RUN
    else:
        for i in range(count):
            store_unit(file.base + file.wrote + i * UNIT, 0, PRE_BLANK_SIZE, 0)
    publish(q, file, file.wrote + count * UNIT, count)
    return count


cdef int64_t write_run(rs_mapped_file *file, bint whole, const int64_t *phy_offset,
                       const int32_t *size, const int64_t *tags_code,
                       int64_t count) noexcept nogil:
    # Writes a long run after `wrote` by pwrite rather than through the mapping: complete pages need
    # no page fault and no zero-filling. Returns the units written; the caller stores the rest
    # through the mapping, whose room is allocated already. With `whole` all units are written, or
    # -errno is returned.
    cdef uint8_t *buffer
    cdef int64_t position = file.wrote
    cdef int64_t done = 0
    cdef int64_t part
    cdef int error = 0
    cdef int fd, closed
    if (count < LONG_RUN and not whole) or file.path == NULL:
        return 0
    buffer = <uint8_t *>malloc(CHUNK_SIZE)
    if buffer == NULL:
        return -ENOMEM if whole else 0
    fd = rs_open_for_writing(file)
    while fd >= 0 and done < count:
        part = min(count - done, (CHUNK_SIZE - position % CHUNK_SIZE) // UNIT)
        encode(buffer, part, phy_offset + done, size + done, tags_code + done)
        error = write_all(file.env, fd, buffer, part * UNIT, position)
        if error < 0:
            break
        position += part * UNIT
        done += part
    if fd >= 0:
        closed = file.env.close(fd)
        error = closed if error == 0 else error
    free(buffer)
    if whole and done < count:
        return error if fd >= 0 else fd
    return done


cdef int64_t put_run(rs_queue *q, const int64_t *phy_offset, const int32_t *size,
                     const int64_t *tags_code, int64_t count) noexcept nogil:
    # Returns the units written, as many as fit into the file; or -errno.
    cdef rs_mapped_file *file = q.file
    cdef int64_t fits = room(q) // UNIT
    cdef int64_t done, last
    cdef int status
    if count > fits:
        count = fits
    if count <= 0:
        return 0
    status = confirm_room(file, file.wrote + count * UNIT,
                          file.zero_fill and count < LONG_RUN)
    if status < 0:
        return status
    done = write_run(file, by_pwrite(q, file), phy_offset, size, tags_code, count)
    if done < 0:
        return done
    if done < count:
        encode(file.base + file.wrote + done * UNIT, count - done, phy_offset + done, size + done,
               tags_code + done)
    last = last_message(count, phy_offset, size, tags_code)
    if last >= 0:
        rs_store_release(&q.max_physic_offset, phy_offset[last] + size[last])
    publish(q, file, file.wrote + count * UNIT, count)
    return count


cdef int64_t written(ConsumeQueueCore core, int64_t done) except -1:
    if done < 0:
        raise StoreIOError(<int>-done, "fallocate", core.mapped_file.path, core.queue.file.wrote)
    return done


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class ConsumeQueueCore:
    """The writer of one queue: the struct that the dispatch loop writes through.

    Threads: put, put_units, fill_pre_blank, attach and detach from the queue's one writer; the
    properties and retire from anyone.
    """

    def __cinit__(self):
        self.queue.max_physic_offset = -1
        self.queue.repeated_at = -1

    @property
    def attached(self):
        """bool, whether the last file is there for writing, mapped and held or unmapped."""
        return self.queue.file != NULL

    @property
    def unmapped(self):
        """bool, whether units are written by pwrite, because the last file is not mapped."""
        return self.queue.unmapped != 0

    @property
    def attached_file(self):
        """MappedFile or None, the file held for writing."""
        return self.mapped_file

    @property
    def unit_count(self):
        """int, end of the queue in units, pre-blank units included."""
        return rs_load_acquire(&self.queue.unit_count)

    @property
    def max_physic_offset(self):
        """int, bytes of the log: messages below it are in this queue; -1 when it is empty."""
        return rs_load_acquire(&self.queue.max_physic_offset)

    @property
    def repeated_at(self):
        """int, physical offset of the first record that comes after the queue's last message in the
        log and has a queue offset that the queue has; -1: none since it was last set to -1."""
        return self.queue.repeated_at

    @repeated_at.setter
    def repeated_at(self, int64_t value):
        self.queue.repeated_at = value

    @property
    def min_logic_offset(self):
        """int, bytes: the first unit that may be read."""
        return rs_load_acquire(&self.queue.min_logic_offset)

    @min_logic_offset.setter
    def min_logic_offset(self, int64_t value):
        rs_store_release(&self.queue.min_logic_offset, value)

    @property
    def needs_python(self):
        """bool, whether every record goes through Python (ext units)."""
        return self.queue.needs_python != 0

    @needs_python.setter
    def needs_python(self, bint value):
        self.queue.needs_python = value

    @property
    def dirty(self):
        """bool, whether units were written since it was last set to False."""
        return self.queue.dirty != 0

    @dirty.setter
    def dirty(self, bint value):
        rs_store_release32(&self.queue.dirty, value)

    def reset(self, int64_t unit_count, int64_t max_physic_offset):
        """Set the end of the queue, after load, recovery or truncation; the file is released."""
        self.retire()
        rs_store_release(&self.queue.max_physic_offset, max_physic_offset)
        rs_store_release(&self.queue.unit_count, unit_count)

    def attach(self, MappedFile mapped_file not None):
        """Hold and map the file that units are written to from now on.

        Returns
        -------
        bool, False if the file is no longer available

        Raises
        ------
        StoreIOError : it cannot be mapped
        """
        self.detach()
        if not mapped_file.take_hold():
            return False
        self.queue.unmapped = 0
        self.mapped_file = mapped_file
        self.queue.file = &mapped_file.file
        return True

    def attach_unmapped(self, MappedFile mapped_file not None):
        """Write units to this file by pwrite from now on, and leave it unmapped.

        Each unit then costs an open. After 256 units, a put requires another attach.

        Returns
        -------
        bool, False if the file is no longer available
        """
        if mapped_file.mode != "shared":
            raise ValueError(f"{mapped_file.path}: a {mapped_file.mode} file must be mapped")
        self.detach()
        if not mapped_file.is_available():
            return False
        self.queue.unmapped = 1
        self.queue.unmapped_left = UNMAPPED_UNITS
        self.mapped_file = mapped_file
        self.queue.file = &mapped_file.file
        return True

    def detach(self):
        """Release the file; the next unit needs `attach` again."""
        self.retire()
        cdef list retired = self.retired
        self.retired = None
        for mapped_file, is_held in retired or ():
            if is_held:
                (<MappedFile>mapped_file).drop_hold()
            mapped_file.unmap_idle()

    def retire(self):
        """Detach the file while the writer may be storing into it: the file stays mapped until
        the writer itself calls attach or detach."""
        cdef MappedFile mapped_file = self.mapped_file
        self.queue.file = NULL
        self.mapped_file = None
        if mapped_file is not None:
            # `unmapped` stays: the writer may be about to look at it.
            if self.retired is None:
                self.retired = []
            self.retired.append((mapped_file, not self.queue.unmapped))

    def put(self, int64_t phy_offset, int32_t size, int64_t tags_code, int64_t queue_offset):
        """Append one unit; return one of VERDICTS, or a negated errno."""
        return put_position_info(&self.queue, phy_offset, size, tags_code, queue_offset)

    def put_units(self, const int64_t[::1] phy_offset not None, const int32_t[::1] size not None,
                  const int64_t[::1] tags_code not None):
        """Append a run of units to the attached file, as many as fit.

        Parameters
        ----------
        phy_offset : int64[n], bytes of the log
        size : int32[n], bytes
        tags_code : int64[n]

        Returns
        -------
        int, units written; 0 when another file is needed

        Raises
        ------
        StoreIOError : the room cannot be allocated; nothing was written
        """
        cdef int64_t count = phy_offset.shape[0]
        cdef int64_t done
        if size.shape[0] != count or tags_code.shape[0] != count:
            raise ValueError("phy_offset, size and tags_code must have one length")
        if count == 0:
            return 0
        with nogil:
            done = put_run(&self.queue, &phy_offset[0], &size[0], &tags_code[0], count)
        return written(self, done)

    def fill_pre_blank(self, int64_t count):
        """Append up to `count` pre-blank units to the attached file; return how many fitted.

        Raises
        ------
        StoreIOError : the room cannot be allocated; nothing was written
        """
        cdef int64_t done
        with nogil:
            done = fill_pre_blank(&self.queue, count)
        return written(self, done)


@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class UnitAppender:
    """Base class of ConsumeQueue: append one unit in one compiled call.

    Attributes: `core`, the writer; `failed`, bool, a unit was given up and the queue accepts no
    more, so that recovery finds where it ends.

    Threads: the queue's one writer.
    """

    def __cinit__(self, *_, **__):
        self.core = ConsumeQueueCore()

    def put_message_position_info(self, int64_t phy_offset, int32_t size, int64_t tags_code,
                                  int64_t queue_offset):
        """Append one unit at its queue offset; True if the queue holds it now.

        Units between the end and `queue_offset` become pre-blank. False: the values are not a valid
        unit (nothing is written), or the queue accepts no more.

        Raises StoreIOError when the file cannot be made or its room cannot be allocated.
        Source: RocketMQ 4.9.3 ConsumeQueue#putMessagePositionInfo.
        Differs: an offset after the end leaves a gap of pre-blank units, where 4.9.3 puts the unit
        at a wrong index; offset 0 of a queue that has units is a repeat.
        """
        cdef int status
        if self.failed:
            return False
        status = put_position_info(&self.core.queue, phy_offset, size, tags_code, queue_offset)
        if status == RS_OK or status == RS_REPEAT:
            return True
        return self._put_slowly(phy_offset, size, tags_code, queue_offset)


# ---- the walks, for Python -----------------------------------------------------------------------

cdef tuple scan_result(const uint8_t[::1] units, int64_t phy_limit):
    cdef unit_scan found = unit_scan(valid_size=0, max_phy_offset=-1,
                                     last_ext_address=NO_EXT_ADDRESS)
    if units.shape[0]:
        with nogil:
            found = scan(&units[0], units.shape[0], phy_limit)
    return found.valid_size, found.max_phy_offset, found.last_ext_address


def scan_units(const uint8_t[::1] units not None):
    """Find the end of the units of a file: the first with phy_offset < 0 or size <= 0.

    Returns
    -------
    (valid_size, max_phy_offset, last_ext_address) : bytes before the end; one past the last
    message that a unit names, -1 without one; the last ext address, 1 without one

    Source: RocketMQ 4.9.3 ConsumeQueue#recover.
    Differs: pre-blank units do not count for max_phy_offset.
    """
    return scan_result(units, 0x7FFFFFFFFFFFFFFF)


def truncate_units(const uint8_t[::1] units not None, int64_t phy_offset):
    """As scan_units, and end before the first unit at or after `phy_offset`, bytes of the log.

    Source: RocketMQ 4.9.3 ConsumeQueue#truncateDirtyLogicFiles.
    Differs: the first unit must have size > 0 too.
    """
    return scan_result(units, phy_offset)


def scan_ext_units(const uint8_t[::1] units not None):
    """Return the bytes of the complete ext units at the start of `units`.

    The scan ends before a unit whose size is below 20 or exceeds the rest.

    Source: RocketMQ 4.9.3 ConsumeQueueExt#recover.
    """
    cdef int64_t valid_size = 0
    if units.shape[0]:
        with nogil:
            valid_size = walk_ext(&units[0], units.shape[0])
    return valid_size


def find_min_unit(const uint8_t[::1] units not None, int64_t min_phy_offset, int64_t position=0):
    """Return the position, from `position` on, of the first message at or after `min_phy_offset`.

    -1 without one.

    Source: RocketMQ 4.9.3 ConsumeQueue#correctMinOffset.
    Differs: pre-blank units never match.
    """
    cdef int64_t found = -1
    if position < 0 or position % UNIT:
        raise ValueError(f"position {position}: must be a multiple of {UNIT}, not negative")
    if units.shape[0]:
        with nogil:
            found = find_unit(&units[0], units.shape[0], position, min_phy_offset)
    return found


def find_last_unit(const uint8_t[::1] units not None, bint with_ext=False):
    """Return the position of the last message (with_ext: the last with an ext address); or -1."""
    cdef int64_t found = -1
    if units.shape[0]:
        with nogil:
            found = find_last(&units[0], units.shape[0], with_ext)
    return found


def is_zero(const uint8_t[::1] data not None):
    """Return whether all bytes are zeros."""
    cdef bint found = True
    if data.shape[0]:
        with nogil:
            found = are_zeros(&data[0], data.shape[0])
    return found


def read_units(const uint8_t[::1] units not None):
    """Return the complete units in a chunk of a file as native columns.

    Returns
    -------
    (phy_offset int64[n], size int32[n], tags_code int64[n])
    """
    cdef int64_t count = units.shape[0] // UNIT
    phy_offset = numpy.empty(count, numpy.int64)
    size = numpy.empty(count, numpy.int32)
    tags_code = numpy.empty(count, numpy.int64)
    decode_units(units, phy_offset, size, tags_code)
    return phy_offset, size, tags_code


def decode_units(const uint8_t[::1] units not None, int64_t[::1] phy_offset not None,
                 int32_t[::1] size not None, int64_t[::1] tags_code not None, int64_t first=0):
    """Decode the complete units in a chunk of a file into columns, from entry `first` on.

    Parameters
    ----------
    phy_offset : int64[n] ; size : int32[n] ; tags_code : int64[n], written to

    Returns
    -------
    int, units decoded: limited by the chunk or by the columns
    """
    cdef int64_t count = units.shape[0] // UNIT
    cdef int64_t left = min(phy_offset.shape[0], size.shape[0], tags_code.shape[0]) - first
    if first < 0:
        raise ValueError("first must not be negative")
    if count > left:
        count = left
    if count <= 0:
        return 0
    with nogil:
        decode(&units[0], count, &phy_offset[first], &size[first], &tags_code[first])
    return count


def unit_at(const uint8_t[::1] units not None, int64_t position=0):
    """Return the unit at `position`: (phy_offset, size, tags_code), or None past the end."""
    cdef const uint8_t *p
    if position < 0 or position > units.shape[0] - UNIT:
        return None
    p = &units[position]
    return rs_load_be64(p), rs_load_be32(p + 8), rs_load_be64(p + 12)


def encode_units(const int64_t[::1] phy_offset not None, const int32_t[::1] size not None,
                 const int64_t[::1] tags_code not None):
    """Encode a run of units as its bytes on disk; the columns must have one length."""
    cdef int64_t count = phy_offset.shape[0]
    if size.shape[0] != count or tags_code.shape[0] != count:
        raise ValueError("phy_offset, size and tags_code must have one length")
    cdef bytearray target = bytearray(count * UNIT)
    cdef uint8_t[::1] view
    if count:
        view = target
        with nogil:
            encode(&view[0], count, &phy_offset[0], &size[0], &tags_code[0])
    return bytes(target)


# Read the files of many consume queues in one call: without the GIL, one file open at a time.
#
# A call handles the usual case only. A queue with anything else is left to the Python code for
# single queues.

cdef enum:
    DIGITS = 20             # of a file name
    PATH_MAX = 4096
    TAIL = 8192             # bytes after the end of the units that must be zeros
    FIRST_READ = 12300      # a few units and the zeros after them
    BUFFER = 61440          # a multiple of the unit, as FIRST_READ
    COLUMNS = 4
    LISTDIR = 0             # numbers in FUNCTIONS
    OPEN = 1
    PREAD = 2
    CLOSE = 3
    FSTAT = 4

cdef int64_t NO_LIMIT = 0x7FFFFFFFFFFFFFFF
# The largest offset at which a file of a store may end; a test compares it with `file_sizes`.
cdef int64_t MAX_FILE_END = 0x7FFFFFFF00000000


cdef int64_t offset_of(const char *name) noexcept nogil:
    # The offset that a name of 20 digits states; -1: not such a name, -2: not an int64.
    cdef int64_t offset = 0
    cdef int i, digit
    for i in range(DIGITS):
        if not c'0' <= name[i] <= c'9':
            return -1
    if name[DIGITS]:
        return -1
    for i in range(DIGITS):
        digit = name[i] - c'0'
        if offset > (NO_LIMIT - digit) // 10:
            return -2
        offset = 10 * offset + digit
    return offset


cdef struct failure:
    # The first call that failed: its number in FUNCTIONS and its negated errno, 0 without one.
    int function
    int64_t error


cdef tuple FUNCTIONS = ("listdir", "open", "pread", "close", "fstat")


cdef int64_t note(failure *failed, int function, int64_t result) noexcept nogil:
    # The code for single queues knows what to do about a path that does not lead to a file.
    cdef bint is_known = result in (-ENOENT, -ENOTDIR, -ELOOP, -ENAMETOOLONG)
    if result < 0 and not is_known and not failed.error:
        failed.function = function
        failed.error = result
    return result


cdef int64_t only_file(const rs_env *env, char *path, failure *failed) noexcept nogil:
    # The offset of the one file in a directory, whose name is appended to `path`. Below 0: the
    # directory has no file of the sequence, or several, or cannot be listed.
    cdef char *entries = NULL
    cdef int64_t size = note(failed, LISTDIR, env.list_directory(path, False, &entries))
    cdef int64_t at = 0, found = -1, offset
    cdef size_t length = strlen(path)
    while at < size:
        offset = offset_of(entries + at + 1)
        if offset != -1:
            if found != -1 or entries[at] != RS_ENTRY_FILE:
                found = -2
                break
            found = offset
            path[length] = c'/'
            memcpy(path + length + 1, entries + at + 1, DIGITS + 1)
        at += <int64_t>strlen(entries + at + 1) + 2
    free(entries)
    return found


cdef bint is_unwritten(const rs_env *env, int fd, uint8_t *buffer, int64_t begin,
                       int64_t end, failure *failed) noexcept nogil:
    cdef int64_t size = min(<int64_t>TAIL, end - begin)
    cdef int64_t got = note(failed, PREAD, env.pread(fd, buffer, size, begin))
    return got == size and are_zeros(buffer, size)


cdef bint find_end(const rs_env *env, int fd, int64_t file_size, uint8_t *buffer,
                   int64_t *found, failure *failed) noexcept nogil:
    # The end of the units, and one past the last message; False: bytes follow the end, or an error.
    cdef int64_t position = 0, size, rest
    cdef unit_scan units
    found[1] = 0
    found[2] = -1
    while position < file_size:
        size = min(<int64_t>(FIRST_READ if position == 0 else BUFFER), file_size - position)
        if note(failed, PREAD, env.pread(fd, buffer, size, position)) != size:
            return False
        units = scan(buffer, size, NO_LIMIT)
        found[1] = position + units.valid_size
        if units.max_phy_offset >= 0:
            found[2] = units.max_phy_offset
        if units.valid_size < size:
            rest = min(<int64_t>TAIL, file_size - found[1])
            if rest <= size - units.valid_size:
                return are_zeros(buffer + units.valid_size, rest)
            return is_unwritten(env, fd, buffer, found[1], file_size, failed)
        position += size
    return True


cdef bint look(const rs_env *env, char *path, int64_t file_size, bint writable, uint8_t *buffer,
               int64_t *found, failure *failed) noexcept nogil:
    # found: the offset of the file, the end of its units, one past the last message, 1.
    cdef int64_t offset = only_file(env, path, failed)
    cdef bint is_usual
    cdef int fd
    found[3] = False
    if offset < 0 or offset % file_size or offset > MAX_FILE_END - file_size:
        return False
    found[0] = offset
    # As the file will be opened, so that a file without that permission is an error now.
    fd = <int>note(failed, OPEN, env.open(path, O_RDWR if writable else O_RDONLY, 0))
    if fd < 0:
        return False
    is_usual = (note(failed, FSTAT, env.file_size(fd)) == file_size
                and find_end(env, fd, file_size, buffer, found, failed))
    found[3] = note(failed, CLOSE, env.close(fd)) == 0 and is_usual
    return found[3]


def look_at_queues(EnvTable env not None, tuple directories not None, int64_t file_size,
                   bint writable, int64_t[:, ::1] found not None):
    """Find the end of each queue that has one file, of `file_size` bytes, with zeros after its
    units.

    Parameters
    ----------
    directories : tuple of bytes, paths of queues
    writable : bool, each file must be one that can be opened for writing
    found : int64[n, 4], written to: the offset of the file; the bytes of its units; one past the
        last message that they name, bytes of the log, -1 without one; 1, or 0 for a queue that is
        not of this kind, whose other values mean nothing

    Raises StoreIOError if a directory or a file cannot be read.

    Threads: any, without the GIL.
    """
    cdef Py_ssize_t count = len(directories), i
    cdef const char **paths
    cdef char path[PATH_MAX]
    cdef uint8_t *buffer
    cdef failure failed
    if found.shape[0] != count or found.shape[1] != COLUMNS or file_size <= 0:
        raise ValueError("found must have a row of 4 for each directory, and file_size be positive")
    if count == 0:
        return
    paths = <const char **>malloc(count * sizeof(char *))
    buffer = <uint8_t *>malloc(BUFFER)
    try:
        if paths == NULL or buffer == NULL:
            raise MemoryError()
        for i in range(count):
            paths[i] = PyBytes_AS_STRING(<bytes?>directories[i])
        failed.error = failed.function = 0
        with nogil:
            for i in range(count):
                found[i, 3] = False
                if strlen(paths[i]) < PATH_MAX - DIGITS - 2:
                    memcpy(path, paths[i], strlen(paths[i]) + 1)
                    look(&env.table, path, file_size, writable, buffer, &found[i, 0], &failed)
                    if failed.error:
                        break
        check_io(failed.error, FUNCTIONS[failed.function], os.fsdecode(path), -1)
    finally:
        free(paths)
        free(buffer)


cdef bint read_range(const rs_env *env, const char *path, uint8_t *target, int64_t size,
                     int64_t position, failure *failed) noexcept nogil:
    cdef int fd = <int>note(failed, OPEN, env.open(path, O_RDONLY, 0))
    cdef bint is_read
    if fd < 0:
        return False
    is_read = note(failed, PREAD, env.pread(fd, target, size, position)) == size
    return note(failed, CLOSE, env.close(fd)) == 0 and is_read


def read_files(tuple files not None, const int64_t[::1] position not None,
               const int64_t[::1] size not None, const int64_t[::1] at not None,
               uint8_t[::1] target not None, uint8_t[::1] done not None):
    """Read a range of each file on disk into one buffer.

    Parameters
    ----------
    files : tuple of n MappedFile
    position, size : int64[n], the ranges, bytes
    at : int64[n], where a range begins in `target`
    target : uint8[m], written to
    done : uint8[n], written to: 1, or 0 for a file that is not of the mode "shared" or "read", was
        deleted or ends before its range does

    Raises StoreIOError if another file cannot be opened or read: that it is mapped, so that its
    units can be had all the same, does not make the failure good.

    Threads: any, without the GIL.
    """
    cdef Py_ssize_t count = len(files), i
    cdef const char **paths
    cdef const rs_env *env = NULL
    cdef MappedFile file
    cdef failure failed
    if not count == position.shape[0] == size.shape[0] == at.shape[0] == done.shape[0]:
        raise ValueError("the arrays must have one entry for each file")
    for i in range(count):
        if position[i] < 0 or size[i] < 0 or not 0 <= at[i] <= target.shape[0] - size[i]:
            raise ValueError("each range must be in target")
    if count == 0:
        return
    paths = <const char **>malloc(count * sizeof(char *))
    if paths == NULL:
        raise MemoryError()
    try:
        for i in range(count):
            file = <MappedFile?>files[i]
            paths[i] = file.disk_path()
            env = file.file.env
        failed.error = failed.function = 0
        with nogil:
            for i in range(count):
                done[i] = False
                if paths[i] == NULL or size[i] == 0:
                    continue
                done[i] = read_range(env, paths[i], &target[at[i]], size[i], position[i], &failed)
                if failed.error:
                    break
        if failed.error:
            check_io(failed.error, FUNCTIONS[failed.function], (<MappedFile>files[i]).path,
                     position[i] if failed.function == PREAD else -1)
    finally:
        free(paths)


# Single units of a queue for compiled readers, and searches by time.
#
# A unit is read in the file's mapping. Where the file is not mapped, one call reads a block of
# units around it.

cdef enum:
    NEAR_UNITS = 32     # a search reads so many units on both sides of each step
    SCAN_UNITS = 4096   # and so many at once where records are unreadable

# No queue has a unit there.
cdef int64_t MAX_OFFSET = (<int64_t>1 << 62) // UNIT


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class UnitWindow:
    """The units of a queue around the one that was read last.

    Parameters
    ----------
    reader : UnitReader

    Raises StoreIOError. Threads: one at a time.
    """

    def __cinit__(self, reader):
        self.reader = reader
        self.mapped_file_queue = reader.mapped_file_queue
        self.file_size = reader.mapped_file_size

    def __dealloc__(self):
        if self.held is not None:
            self.held.drop_hold()

    cdef int close(self) except -1:
        cdef MappedFile held = self.held
        self.first = self.stop = 0
        self.base = NULL
        self.block = None
        self.held = None
        if held is not None:
            held.drop_hold()
        return 0

    cdef const uint8_t *at(
        self, int64_t queue_offset, int64_t before, int64_t ahead
    ) except? NULL:
        if not self.first <= queue_offset < self.stop:
            self.move(queue_offset, before, ahead)
            if not self.first <= queue_offset < self.stop:
                return NULL
        return self.base + (queue_offset - self.first) * UNIT

    cdef int move(self, int64_t queue_offset, int64_t before, int64_t ahead) except -1:
        cdef MappedFile mapped_file
        cdef int64_t position, wrote, begin
        self.close()
        if queue_offset < 0 or queue_offset > MAX_OFFSET:
            return 0
        position = queue_offset * UNIT
        mapped_file = file_with(self.mapped_file_queue.mapped_files, position, self.file_size)
        if mapped_file is None:
            return 0
        position -= mapped_file.file.file_from_offset
        wrote = rs_load_acquire(&mapped_file.file.wrote)
        if position > wrote - UNIT:
            return 0
        if mapped_file.file.base != NULL:
            if mapped_file.take_hold():
                self.held = mapped_file
                self.base = mapped_file.file.base
                self.set(mapped_file, 0, wrote)
            return 0
        begin = max(<int64_t>0, position - before * UNIT)
        ahead = min(max(ahead, <int64_t>1), wrote // UNIT)
        wrote = min(wrote, position + ahead * UNIT)
        self.block = self.read(mapped_file, begin, wrote - begin)
        self.base = <const uint8_t *>PyBytes_AS_STRING(self.block)
        self.set(mapped_file, begin, PyBytes_GET_SIZE(self.block))
        return 0

    cdef bytes read(self, MappedFile mapped_file, int64_t position, int64_t size):
        # As UnitReader.read, without its frames.
        if not mapped_file.is_on_disk():
            return self.reader.read(mapped_file, position, size)
        try:
            return mapped_file.pread(position, size)
        except StoreIOError as error:
            if not self.reader.is_gone(mapped_file, error):
                raise
            return b""

    cdef int set(self, MappedFile mapped_file, int64_t begin, int64_t size) except -1:
        # The window starts at byte `begin` of the file.
        self.first = (mapped_file.file.file_from_offset + begin) // UNIT
        self.stop = self.first + size // UNIT
        return 0

    # ---- time ------------------------------------------------------------------------------------

    def lower_bound_by_time(self, int64_t low, int64_t high, timestamp, store_time):
        """Return the first queue offset in [low, high) stored at `timestamp` or later, or `high`.

        Parameters
        ----------
        timestamp : int, Unix ms
        store_time : callable(phy_offset, size): Unix ms, -1 for an unreadable message
        """
        cdef int64_t answer = high
        cdef int64_t middle
        cdef int64_t[2] found
        low, high = max(low, <int64_t>0), min(high, MAX_OFFSET)
        try:
            while low < high:
                middle = low + (high - low) // 2
                if not self.first_stored(middle, high, store_time, found):
                    high = middle
                elif found[1] >= timestamp:
                    high = middle
                    answer = found[0]
                else:
                    low = found[0] + 1
        finally:
            self.close()
        return answer

    cdef bint first_stored(
        self, int64_t start, int64_t end, object store_time, int64_t *found
    ) except -1:
        cdef int64_t ahead = NEAR_UNITS
        cdef int64_t phy_offset, time
        cdef int32_t size
        cdef const uint8_t *p
        while start < end:
            p = self.at(start, NEAR_UNITS, ahead)
            if p == NULL:  # the file is deleted; the next file may have some
                start = self.next_file(start)
                continue
            phy_offset, size = rs_load_be64(p), rs_load_be32(p + 8)
            if not is_pre_blank(phy_offset, size, rs_load_be64(p + 12)):
                time = store_time(phy_offset, size)
                if time >= 0:
                    found[0], found[1] = start, time
                    return True
            start += 1
            ahead = min(4 * ahead, <int64_t>SCAN_UNITS)
        return False

    cdef int64_t next_file(self, int64_t start) except -1:
        # The first queue offset of the next file, MAX_OFFSET without one.
        cdef int64_t found = MAX_OFFSET
        cdef int64_t first
        for item in self.mapped_file_queue.mapped_files:
            first = (<MappedFile?>item).file.file_from_offset // UNIT
            if start < first < found:
                found = first
        return found

    def nearest_by_time(
        self, MappedFile mapped_file, timestamp, store_time, int64_t min_logic_offset,
        int64_t min_phy_offset,
    ):
        """Return the result of ConsumeQueue.get_offset_in_queue_by_time in one file: bytes of the
        queue; -1 divided as Java does where no unit was found.
        """
        cdef int64_t base = mapped_file.file.file_from_offset
        cdef int64_t low = min_logic_offset - base if min_logic_offset > base else 0
        cdef int64_t high = rs_load_acquire(&mapped_file.file.wrote) - UNIT
        cdef int64_t left = -1, right = -1, left_time = -1, right_time = -1
        cdef int64_t middle, phy_offset, stored
        cdef const uint8_t *p
        try:
            while high >= low:
                middle = (low + high) // (2 * UNIT) * UNIT
                p = self.at((base + middle) // UNIT, NEAR_UNITS, NEAR_UNITS)
                if p == NULL:
                    return 0
                phy_offset = rs_load_be64(p)
                if phy_offset < min_phy_offset:
                    low = middle + UNIT
                    left = middle
                    continue
                stored = store_time(phy_offset, rs_load_be32(p + 8))
                if stored < 0:
                    return 0
                if stored == timestamp:
                    return base + middle
                if stored > timestamp:
                    high = middle - UNIT
                    right, right_time = middle, stored
                else:
                    low = middle + UNIT
                    left, left_time = middle, stored
        finally:
            self.close()
        if left_time == -1:
            return base + right
        if right_time == -1:
            return base + left
        if abs(timestamp - left_time) > abs(timestamp - right_time):
            return base + right
        return base + left


def has_file(reader, int64_t queue_offset):
    """Return True if the file with a unit that was read before surely still has its name: its
    bytes are those that were read. False where that cannot be told without reading it.

    Parameters
    ----------
    reader : UnitReader
    """
    cdef FileSequence files = reader.mapped_file_queue.mapped_files
    cdef MappedFile found
    if not 0 <= queue_offset <= MAX_OFFSET:
        return False
    found = file_with(files, queue_offset * UNIT, reader.mapped_file_size)
    return found is not None and found.has_name()
