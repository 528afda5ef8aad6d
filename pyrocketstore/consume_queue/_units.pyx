"""Write units of consume queues, and scan them. Every queue unit is written in this module.

A unit has 20 bytes: i64 phy_offset, i32 size, i64 tags_code, big-endian; unit n of a queue is at
byte 20 n of its file sequence. A pre-blank unit (0, 2147483647, 0) fills a queue offset that never
had a message.
"""
cimport cython
from libc.errno cimport ENOMEM
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc

from pyrocketstore.system._allocation cimport confirm_room, write_all
from pyrocketstore.files._mapped_file cimport MappedFile, confirm
from pyrocketstore._rocketstore cimport (
    RS_CQ_EXT_MAX_ADDR,
    RS_CQ_EXT_MIN_UNIT_SIZE,
    RS_CQ_STORE_UNIT_SIZE,
    RS_NEED_FILE,
    RS_NEED_PYTHON,
    RS_OK,
    RS_REPEAT,
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
from pyrocketstore.files._writes cimport write_bytes

import numpy

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
