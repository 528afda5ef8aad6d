"""Decoding of many records into columns: one pass over the records, without the GIL.

Columns of fixed width are copied field by field into NumPy arrays. The other columns have Arrow's
variable-size layout: all values concatenated, and the offset of each. Their memory grows during the
pass, so that each record is read once, while it is in the cache. Compressed bodies are inflated
after the pass.
"""
import zlib
import numpy as np

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from pyrocketstore._rocketstore cimport (
    RS_BAD_SIZE,
    RS_COMPRESSED_FLAG,
    RS_MESSAGE_MIN_SIZE,
    RS_MESSAGE_POSITION_BORN_HOST,
    RS_MESSAGE_POSITION_SYS_FLAG,
    RS_NO_MEMORY,
    RS_OK,
    RS_OTHER_QUEUE,
    RS_TORN,
    rs_load_be32,
    rs_prefetch_far,
    rs_properties,
    rs_record,
    rs_span,
    rs_status_name,
)
from pyrocketstore.columns._builder cimport (
    ArrowColumns,
    HEAD_SIZE,
    MIN_BLOCK,
    add_bytes,
    add_host,
    add_msg_id,
    add_properties,
    add_text,
    arrow_array,
    block_memory,
    column_array,
    column_block,
    free_map,
    give_block,
    map_column,
    open_column,
    open_parent,
    own_block,
    reserve,
    take_block,
    take_data,
    take_rows,
    var_column,
)
from pyrocketstore.record._record cimport (
    QueueName,
    check_record,
    is_of_queue,
    scan_properties,
    tags_code_of,
)

from pyrocketstore.arguments.scalars import entries_of, exact_text
from pyrocketstore.columns._builder import release_memory, reusable_bytes
from pyrocketstore.display import shown
from pyrocketstore.errors import StoreCorruptionError, StoreFormatError
from pyrocketstore.record._message import MAX_INFLATED_SIZE

cdef object MAX_INT64 = (1 << 63) - 1

cdef enum:
    # Records that are prefetched ahead. With their bodies they are few: each takes many of the
    # reads from memory that a core has under way.
    HEADS_AHEAD = 40
    BODIES_AHEAD = 4
    BODY_BYTES = 2048       # of each: the processor itself fetches the rest of a large body
    CACHE_LINE = 64
    MAX_RESERVED = 268435456  # bytes that a column of bodies reserves before the pass, at most
    GUESSED_TEXT = 16         # bytes reserved for each value of a text column
    MSG_ID_TEXT = 34          # with room for the last one, which may have 56
    MAX_INT32 = 0x7FFFFFFF
    MAX_PLANS = 64

ctypedef enum column_kind:
    COLUMN_TOPIC
    COLUMN_TAGS
    COLUMN_KEYS
    COLUMN_UNIQ_KEY
    COLUMN_PROPERTIES
    COLUMN_BORN_HOST
    COLUMN_STORE_HOST
    COLUMN_MSG_ID
    COLUMN_BODY
    COLUMN_STORED_BODY


# ---- names -----------------------------------------------------------------------------------

cdef dict _fixed_fields():
    """Return name -> (position in `decoded`, width), in bytes."""
    cdef decoded d
    cdef const char *start = <const char *>&d
    return {
        "queue_id": (<const char *>&d.record.queue_id - start, 4),
        "queue_offset": (<const char *>&d.record.queue_offset - start, 8),
        "phy_offset": (<const char *>&d.record.phy_offset - start, 8),
        "size": (<const char *>&d.record.total_size - start, 4),
        "flag": (<const char *>&d.record.flag - start, 4),
        "sys_flag": (<const char *>&d.record.sys_flag - start, 4),
        "body_crc": (<const char *>&d.record.body_crc - start, 4),
        "reconsume_times": (<const char *>&d.record.reconsume_times - start, 4),
        "born_timestamp": (<const char *>&d.record.born_timestamp - start, 8),
        "store_timestamp": (<const char *>&d.record.store_timestamp - start, 8),
        "prepared_transaction_offset": (
            <const char *>&d.record.prepared_transaction_offset - start, 8
        ),
        "tags_code": (<const char *>&d.tags_code - start, 8),
    }


cdef dict FIXED = _fixed_fields()
#: name -> (kind, is it text, may it be absent)
cdef dict VAR = {
    "topic": (COLUMN_TOPIC, True, False),
    "tags": (COLUMN_TAGS, True, True),
    "keys": (COLUMN_KEYS, True, True),
    "uniq_key": (COLUMN_UNIQ_KEY, True, True),
    "properties": (COLUMN_PROPERTIES, True, False),
    "born_host": (COLUMN_BORN_HOST, True, False),
    "store_host": (COLUMN_STORE_HOST, True, False),
    "msg_id": (COLUMN_MSG_ID, True, False),
    "body": (COLUMN_BODY, False, False),
    "stored_body": (COLUMN_STORED_BODY, False, False),
}

#: The columns of a record, in the order of a MessageExt's attributes. PROPERTIES_MAP is an
#: additional form of `properties`.
COLUMNS = (
    "topic", "queue_id", "queue_offset", "phy_offset", "size", "body", "tags", "keys", "uniq_key",
    "properties", "born_timestamp", "store_timestamp", "born_host", "store_host", "flag",
    "sys_flag", "body_crc", "reconsume_times", "prepared_transaction_offset", "msg_id",
    "tags_code", "stored_body",
)
PROPERTIES_MAP = "properties_map"


def column_names(columns) -> "tuple[str, ...]":
    """Check names of columns and return them as a tuple.

    Raises StoreTypeError; StoreFormatError for an unknown name or one that is given twice.
    """
    given = entries_of("columns", columns, "a sequence of names")
    names = tuple([exact_text("a column", name) for name in given])
    for name in names:
        if name not in FIXED and name not in VAR and name != PROPERTIES_MAP:
            known = ", ".join((*COLUMNS, PROPERTIES_MAP))
            raise StoreFormatError(f"no column {shown(name)}; the columns are {known}")
    if len(set(names)) != len(names):
        raise StoreFormatError(f"columns must differ from each other: {', '.join(names)}")
    return names


def column_type(str name not None) -> str:
    """Return the type of a column: int32, int64, string, binary or map."""
    if name in FIXED:
        return "int32" if FIXED[name][1] == 4 else "int64"
    if name == PROPERTIES_MAP:
        return "map"
    return "string" if VAR[name][1] else "binary"


@cython.final
@cython.auto_pickle(False)
cdef class ColumnPlan:
    """Columns, and where a pass has their values. StoreFormatError for an unknown one."""

    def __cinit__(self, tuple names):
        cdef int32_t fixed_count = 0
        cdef int32_t var_count = 0
        cdef column_spec *spec
        self.names = column_names(names)
        self.body = -1
        for name in self.names:
            spec = &self.specs[self.count]
            self.count += 1
            if name in FIXED:
                spec.form, spec.index = FIXED_COLUMN, fixed_count
                spec.field, spec.width = FIXED[name]
                fixed_count += 1
            elif name == PROPERTIES_MAP:
                spec.form = MAP_COLUMN
            else:
                spec.form, spec.index = VAR_COLUMN, var_count
                spec.kind, spec.is_text, spec.may_be_absent = VAR[name]
                if spec.kind == COLUMN_BODY:
                    self.body = var_count
                var_count += 1
        self.needs_properties = not {"tags", "keys", "uniq_key", "tags_code"}.isdisjoint(names)
        self.needs_tags_code = "tags_code" in names
        self.needs_bodies = not {"body", "stored_body"}.isdisjoint(names)


#: names -> ColumnPlan: a caller requests the same columns again and again.
cdef dict PLANS = {}


cdef ColumnPlan plan_of(tuple names):
    cdef ColumnPlan plan = PLANS.get(names)
    if plan is None:
        plan = ColumnPlan(names)
        if len(PLANS) >= MAX_PLANS:
            PLANS.clear()
        PLANS[plan.names] = plan
    return plan


# ---- the pass --------------------------------------------------------------------------------

cdef int _add_property(
    var_column *c, const uint8_t *properties, rs_span span, int64_t row
) noexcept nogil:
    if span.size < 0:
        c.null_count += 1
        return 0
    c.validity[row >> 3] |= <uint8_t>(1 << (row & 7))
    return add_text(c, properties + span.position, span.size)


cdef int _add_value(
    var_column *c, const uint8_t *p, const decoded *d, int64_t row
) noexcept nogil:
    cdef const rs_record *r = &d.record
    cdef const uint8_t *properties = p + r.properties_position
    if c.kind == COLUMN_BODY or c.kind == COLUMN_STORED_BODY:
        return add_bytes(c, p + r.body_position, r.body_size)
    if c.kind == COLUMN_TOPIC:
        return add_text(c, p + r.topic_position, r.topic_size)
    if c.kind == COLUMN_TAGS:
        return _add_property(c, properties, d.properties.tags, row)
    if c.kind == COLUMN_KEYS:
        return _add_property(c, properties, d.properties.keys, row)
    if c.kind == COLUMN_UNIQ_KEY:
        return _add_property(c, properties, d.properties.uniq_key, row)
    if c.kind == COLUMN_PROPERTIES:
        return add_text(c, properties, r.properties_size)
    if c.kind == COLUMN_BORN_HOST:
        return add_host(c, p + RS_MESSAGE_POSITION_BORN_HOST, r.born_host_size, row)
    if c.kind == COLUMN_STORE_HOST:
        return add_host(c, p + r.store_host_position, r.store_host_size, row)
    return add_msg_id(c, p + r.store_host_position, r.store_host_size, r.phy_offset)


cdef int _add_record(column_set *s, const uint8_t *p, decoded *d, int64_t row) noexcept nogil:
    cdef int32_t i
    cdef rs_span tags
    if s.needs_properties:
        scan_properties(
            p + d.record.properties_position, d.record.properties_size, &d.properties
        )
    if s.needs_tags_code:
        tags = d.properties.tags
        d.tags_code = 0
        if tags.size > 0:
            d.tags_code = tags_code_of(
                p + d.record.properties_position + tags.position, tags.size
            )
    if (s.compressed != NULL and d.record.sys_flag & RS_COMPRESSED_FLAG
            and d.record.body_size > 0):
        s.compressed[row] = 1
        s.compressed_count += 1
    for i in range(s.fixed_count):
        if s.fixed[i].width == 4:
            memcpy(s.fixed[i].values + 4 * row, <const uint8_t *>d + s.fixed[i].field, 4)
        else:
            memcpy(s.fixed[i].values + 8 * row, <const uint8_t *>d + s.fixed[i].field, 8)
    for i in range(s.var_count):
        s.var[i].offsets[row] = s.var[i].size
        if _add_value(&s.var[i], p, d, row) < 0:
            return -1
    if s.map_offsets != NULL:
        s.map_offsets[row] = <int32_t>s.map.count
        return add_properties(
            &s.map, p + d.record.properties_position, d.record.properties_size
        )
    return 0


cdef int walk_rows(
    column_set *s,
    const uint8_t **records,
    const int32_t *sizes,
    const int64_t *phy_offsets,
    Py_ssize_t first,
    Py_ssize_t stop,
    bint check_crc,
    Py_ssize_t *row,
) noexcept nogil:
    cdef bint with_body = s.needs_bodies or check_crc
    cdef Py_ssize_t ahead = BODIES_AHEAD if with_body else HEADS_AHEAD
    cdef const uint8_t *p
    cdef decoded d
    cdef Py_ssize_t i
    cdef int32_t size, at
    cdef int status
    for i in range(first - ahead, stop):
        if i + ahead < stop:
            # Not a function: a compiler may take one that only prefetches for one without effect.
            p, size = records[i + ahead], sizes[i + ahead]
            rs_prefetch_far(p)
            rs_prefetch_far(p + CACHE_LINE)
            rs_prefetch_far(p + RS_MESSAGE_MIN_SIZE)
            if with_body:
                at = 2 * CACHE_LINE
                while at < size and at < BODY_BYTES:
                    rs_prefetch_far(p + at)
                    at += CACHE_LINE
            rs_prefetch_far(p + size - 1 - CACHE_LINE)
            rs_prefetch_far(p + size - 1)
        if i < first:
            continue
        row[0] = i
        status = check_record(
            records[i], sizes[i], phy_offsets[i] if phy_offsets != NULL else -1, check_crc,
            &d.record,
        )
        if status != RS_OK:
            return status
        if s.queue != NULL:
            if d.record.total_size != sizes[i]:
                return RS_BAD_SIZE
            if not is_of_queue(s.queue, records[i], &d.record, s.queue_offsets[i]):
                return RS_OTHER_QUEUE
        if _add_record(s, records[i], &d, i) < 0:
            return RS_NO_MEMORY
    return RS_OK


# ---- results ---------------------------------------------------------------------------------

# The constructors of columns accept any objects: `validity` may be shorter than the column.
@cython.boundscheck(True)
cdef Py_ssize_t _row_of(object index, Py_ssize_t count, object validity) except -2:
    """Return the row of an index into a column, or -1 for an absent value. Raises IndexError."""
    cdef Py_ssize_t row = index
    if row < 0:
        row += count
    if not 0 <= row < count:
        raise IndexError(f"row {index} of {count}")
    if validity is not None and not validity[row >> 3] >> (row & 7) & 1:
        return -1
    return row


cdef class VarColumn:
    """A column of values of variable size in Arrow's layout.

    Value i is data[offsets[i]:offsets[i + 1]]. Text is valid UTF-8: each malformed byte sequence of
    a record becomes U+FFFD, as in Java.
    """

    def __init__(self, offsets, data, validity, null_count, is_text):
        """Parameters
        ----------
        offsets : int32[n + 1] or, above 2 GiB, int64[n + 1], bytes
        data : uint8[bytes]
        validity : None, or uint8[(n + 7) // 8]: bit i % 8 of byte i // 8 is set if value i exists
        null_count : int, number of absent values
        is_text : bool
        """
        self.offsets = offsets
        self.data = data
        self.validity = validity
        self.null_count = null_count
        self.is_text = is_text

    def __len__(self):
        return max(len(self.offsets) - 1, 0)

    def __getitem__(self, index):
        cdef Py_ssize_t i = _row_of(index, len(self), self.validity)
        if i < 0:
            return None
        value = self.data[self.offsets[i]:self.offsets[i + 1]].tobytes()
        return value.decode("utf-8") if self.is_text else value

    def to_list(self) -> list:
        """Return a list of str or bytes, with None for an absent value."""
        return [self[i] for i in range(len(self))]

    def __reduce__(self):
        return VarColumn, (
            self.offsets, self.data, self.validity, self.null_count, self.is_text
        )

    def __repr__(self):
        kind = "str" if self.is_text else "bytes"
        return f"<VarColumn of {len(self)} {kind}, {len(self.data)} bytes>"


cdef class MapColumn:
    """A column of maps from text to text in Arrow's layout.

    The names of row i are keys[offsets[i]:offsets[i + 1]], each once. `values` has the value of
    each name at the same index.
    """

    def __init__(
        self, offsets, VarColumn keys not None, VarColumn values not None, validity=None,
        null_count=0,
    ):
        """Parameters
        ----------
        offsets : int32[n + 1], names
        keys, values : VarColumn, text, none absent
        validity : None, or uint8[(n + 7) // 8]: bit i % 8 of byte i // 8 is set if map i exists
        null_count : int, number of absent maps
        """
        self.offsets = offsets
        self.keys = keys
        self.values = values
        self.validity = validity
        self.null_count = null_count

    def __len__(self):
        return max(len(self.offsets) - 1, 0)

    def __getitem__(self, index):
        cdef Py_ssize_t i = _row_of(index, len(self), self.validity)
        if i < 0:
            return None
        # A special method of `validity` or `offsets` may replace the columns: keep these alive.
        offsets, keys, values = self.offsets, self.keys, self.values
        return {keys[j]: values[j] for j in range(offsets[i], offsets[i + 1])}

    def to_list(self) -> list:
        """Return a list of dict, with None for an absent map."""
        return [self[i] for i in range(len(self))]

    def __reduce__(self):
        return MapColumn, (self.offsets, self.keys, self.values, self.validity, self.null_count)

    def __repr__(self):
        return f"<MapColumn of {len(self)} maps, {len(self.keys)} names>"


cdef bytes _inflate(const uint8_t *p, int64_t size, str path, int64_t position):
    cdef bytes body
    inflater = zlib.decompressobj()
    try:
        body = inflater.decompress(
            PyBytes_FromStringAndSize(<const char *>p, size), MAX_INFLATED_SIZE + 1
        )
    except zlib.error as error:
        raise StoreCorruptionError(path, position, f"the body does not inflate: {error}") from None
    if len(body) > MAX_INFLATED_SIZE:
        raise StoreCorruptionError(
            path, position, f"the body inflates to more than {MAX_INFLATED_SIZE} bytes"
        )
    if not inflater.eof:
        raise StoreCorruptionError(path, position, "the compressed body is cut short")
    return body


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class ColumnPass:
    """The columns of one call while they are filled, and their conversion to results."""

    def __cinit__(self):
        self.state = <column_set *>calloc(1, sizeof(column_set))
        if self.state == NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef int32_t i
        if self.state != NULL:
            for i in range(self.state.fixed_count):
                give_block(&self.state.fixed[i].rows)
            for i in range(self.state.var_count):
                free(self.state.var[i].data)
                give_block(&self.state.var[i].rows)
            give_block(&self.state.map_rows)
            free_map(&self.state.map)
            free(self.state.compressed)
            free(self.state)

    cdef int open(
        self, ColumnPlan plan, Py_ssize_t count, const int32_t *sizes, str path,
        object max_body_bytes
    ) except -1:
        cdef column_set *s = self.state
        cdef const column_spec *spec
        cdef int64_t total_size = 0
        cdef Py_ssize_t i
        for i in range(count):
            total_size += max(sizes[i], 0)
        self.plan = plan
        self.count = count
        self.taken = count
        self.max_body_bytes = (
            -1 if max_body_bytes is None else min(max(max_body_bytes, 0), MAX_INT64)
        )
        self.path = path
        s.needs_properties = plan.needs_properties
        s.needs_tags_code = plan.needs_tags_code
        s.needs_bodies = plan.needs_bodies
        if plan.body >= 0:
            s.compressed = <uint8_t *>calloc(max(count, 1), 1)
            if s.compressed == NULL:
                raise MemoryError
        for i in range(plan.count):
            spec = &plan.specs[i]
            if spec.form == VAR_COLUMN:
                self._add_var(spec, total_size)
            elif spec.form == MAP_COLUMN:
                if take_rows(&s.map_rows, (count + 1) * sizeof(int32_t)) < 0:
                    raise MemoryError
                s.map_offsets = <int32_t *>s.map_rows.data
            else:
                s.fixed[spec.index].field = spec.field
                s.fixed[spec.index].width = spec.width
                if take_rows(&s.fixed[spec.index].rows, HEAD_SIZE + count * spec.width) < 0:
                    raise MemoryError
                s.fixed[spec.index].values = s.fixed[spec.index].rows.data + HEAD_SIZE
                s.fixed_count += 1
        return 0

    cdef int compare(self, QueueName queue, const int64_t[::1] queue_offsets) except -1:
        if queue is None:
            return 0
        if queue_offsets is None or queue_offsets.shape[0] != self.count:
            raise StoreFormatError("queue_offsets must have one entry a record")
        if self.count:
            self.compare_with(queue, &queue_offsets[0])
        return 0

    cdef void compare_with(self, QueueName queue, const int64_t *queue_offsets) noexcept:
        self.queue = queue
        self.state.queue = &queue.name
        self.state.queue_offsets = queue_offsets

    cdef int _add_var(self, const column_spec *spec, int64_t total_size) except -1:
        cdef var_column *c = &self.state.var[spec.index]
        cdef bint is_body = spec.kind == COLUMN_BODY or spec.kind == COLUMN_STORED_BODY
        cdef int64_t bits = (self.count + 7) // 8
        cdef int64_t wanted
        cdef column_block data
        c.kind = spec.kind
        if not spec.may_be_absent and not (is_body and self.null_bad_bodies):
            bits = 0
        if take_rows(&c.rows, HEAD_SIZE + (self.count + 1) * sizeof(int64_t) + bits) < 0:
            raise MemoryError
        self.state.var_count += 1
        c.offsets = <int64_t *>(c.rows.data + HEAD_SIZE)
        if bits:
            c.validity = <uint8_t *>(c.offsets + self.count + 1)
            memset(c.validity, 0xFF if is_body else 0, bits)
        # Bodies are most of a log. Reserved memory costs nothing until it is touched, so a column
        # of bodies reserves the size of all records.
        wanted = min(total_size, <int64_t>MAX_RESERVED) if is_body else self.count * (
            MSG_ID_TEXT if spec.kind == COLUMN_MSG_ID else GUESSED_TEXT
        )
        if wanted >= MIN_BLOCK:
            data = take_block(wanted)
            c.data, c.capacity = data.data, data.capacity
        if (is_body or wanted < MIN_BLOCK) and reserve(c, wanted) < 0:
            raise MemoryError
        return 0

    cdef int _finish(self, const int64_t *positions, int64_t start) except -1:
        """Complete the offsets, and inflate the bodies."""
        cdef column_set *s = self.state
        cdef int32_t i
        for i in range(s.var_count):
            s.var[i].offsets[self.count] = s.var[i].size
        if s.map_offsets != NULL:
            if s.map.count > MAX_INT32:
                raise StoreFormatError(
                    f"{s.map.count} properties do not fit into one column of maps"
                )
            s.map_offsets[self.count] = <int32_t>s.map.count
            if _set_ends(&s.map) < 0:
                raise MemoryError
        i = self.plan.body
        if i >= 0 and (s.compressed_count or self._is_beyond(0, s.var[i].size)):
            self._inflate_bodies(&s.var[i], positions, start)
        if self.taken < self.count:
            for i in range(s.var_count):
                if s.var[i].null_count:
                    s.var[i].null_count = _count_nulls(s.var[i].validity, self.taken)
        return 0

    cdef dict close(self, const int64_t *positions, int64_t start):
        cdef dict result = {}
        cdef column_set *s = self.state
        cdef const column_spec *spec
        cdef int32_t i
        self._finish(positions, start)
        for i in range(self.plan.count):
            spec = &self.plan.specs[i]
            if spec.form == VAR_COLUMN:
                column = _var_result(&s.var[spec.index], self.count, self.taken, spec.is_text)
            elif spec.form == MAP_COLUMN:
                column = _map_result(&s.map, _array(&s.map_rows, self.taken + 1, np.int32, 0))
            else:
                column = _array(
                    &s.fixed[spec.index].rows, self.taken,
                    np.int32 if spec.width == 4 else np.int64, HEAD_SIZE,
                )
            result[self.plan.names[i]] = column
        return result

    cdef ArrowColumns close_arrow(self, const int64_t *positions, int64_t start):
        cdef ArrowColumns result = ArrowColumns.__new__(ArrowColumns)
        cdef column_set *s = self.state
        cdef const column_spec *spec
        cdef arrow_array *child
        cdef int32_t i
        self._finish(positions, start)
        result.names, result.large = self.plan.names, ()
        if self.plan.body >= 0:
            result.body_bytes = s.var[self.plan.body].offsets[self.taken]
        if open_parent(&result.array, self.taken, 1, self.plan.count) < 0:
            raise MemoryError
        for i in range(self.plan.count):
            spec = &self.plan.specs[i]
            child = result.array.children[i]
            if spec.form == VAR_COLUMN:
                if s.var[spec.index].size > MAX_INT32:
                    result.large += (self.plan.names[i],)
                _var_array(child, &s.var[spec.index], self.taken)
            elif spec.form == MAP_COLUMN:
                if s.map.keys.size > MAX_INT32:
                    result.large += (PROPERTIES_MAP + " keys",)
                if s.map.values.size > MAX_INT32:
                    result.large += (PROPERTIES_MAP + " values",)
                if _map_array(child, s, self.taken) < 0:
                    raise MemoryError
            else:
                _fixed_array(child, &s.fixed[spec.index], self.taken)
        return result

    cdef int _inflate_bodies(
        self, var_column *c, const int64_t *positions, int64_t start
    ) except -1:
        """Rebuild a column of bodies with the compressed ones inflated."""
        cdef var_column grown = c[0]
        cdef Py_ssize_t i
        cdef int64_t begin, size, stop = 0
        cdef const uint8_t *p
        cdef bytes body
        grown.data = NULL
        grown.size = grown.capacity = 0
        try:
            for i in range(self.count):
                begin, stop = stop, c.offsets[i + 1]
                c.offsets[i] = grown.size
                if self.state.compressed[i]:
                    try:
                        body = _inflate(
                            c.data + begin, stop - begin, self.path, positions[i] - start
                        )
                    except StoreCorruptionError:
                        if not self.null_bad_bodies:
                            raise
                        c.validity[i >> 3] &= <uint8_t>(~(1 << (i & 7)) & 0xFF)
                        c.null_count += 1
                        continue
                    p, size = <const uint8_t *>PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body)
                else:
                    p, size = c.data + begin, stop - begin
                if self._is_beyond(grown.size, size):
                    self.taken = i
                    break
                if add_bytes(&grown, p, size):
                    raise MemoryError
            c.offsets[self.taken] = grown.size
            c.data, grown.data = grown.data, c.data
            c.size = grown.size
            c.capacity = grown.capacity
        finally:
            free(grown.data)
        return 0

    cdef bint _is_beyond(self, int64_t size, int64_t more):
        return self.max_body_bytes >= 0 and more > self.max_body_bytes - size


cdef int64_t _count_nulls(const uint8_t *validity, Py_ssize_t count) noexcept nogil:
    cdef int64_t nulls = 0
    cdef Py_ssize_t i
    for i in range(count):
        nulls += 1 - (validity[i >> 3] >> (i & 7) & 1)
    return nulls


cdef bint _narrow(var_column *c, Py_ssize_t count) noexcept nogil:
    """Make the `count` offsets int32 in place, unless the data is larger; return whether."""
    cdef uint8_t *memory = <uint8_t *>c.offsets
    cdef int64_t wide
    cdef int32_t narrow
    cdef Py_ssize_t i
    if c.size > MAX_INT32:
        return False
    for i in range(count):
        memcpy(&wide, memory + 8 * i, 8)
        narrow = <int32_t>wide
        memcpy(memory + 4 * i, &narrow, 4)
    return True


cdef int _set_ends(map_column *m) noexcept nogil:
    """Give the names and the values of a map column their offsets: 0; -1: no memory."""
    cdef int64_t size = m.count * sizeof(int64_t)
    cdef int64_t room = HEAD_SIZE + size + sizeof(int64_t)
    if take_rows(&m.keys.rows, room) < 0 or take_rows(&m.values.rows, room) < 0:
        return -1
    m.keys.offsets = <int64_t *>(m.keys.rows.data + HEAD_SIZE)
    m.values.offsets = <int64_t *>(m.values.rows.data + HEAD_SIZE)
    m.keys.offsets[0] = m.values.offsets[0] = 0
    if size:
        memcpy(m.keys.offsets + 1, m.key_ends.data, size)
        memcpy(m.values.offsets + 1, m.value_ends.data, size)
    return 0


# NumPy: the columns of ColumnPass.close.

cdef object _array(column_block *b, Py_ssize_t count, object dtype, Py_ssize_t position):
    memory = block_memory(b)    # also frees what was reserved for no value
    if count == 0:
        return np.empty(0, dtype)
    return np.frombuffer(memory, dtype, count, position)


cdef VarColumn _var_result(var_column *c, Py_ssize_t count, Py_ssize_t taken, bint is_text):
    # `count` rows were decoded, `taken` of them are wanted.
    cdef bint is_narrow = _narrow(c, taken + 1)
    cdef int64_t size = c.size
    cdef column_block data = take_data(c)
    memory = block_memory(&c.rows)
    validity = None
    if c.null_count:
        validity = np.frombuffer(
            memory, np.uint8, (taken + 7) // 8, HEAD_SIZE + (count + 1) * sizeof(int64_t)
        )
    return VarColumn(
        np.frombuffer(memory, np.int32 if is_narrow else np.int64, taken + 1, HEAD_SIZE),
        _array(&data, size, np.uint8, 0),
        validity,
        c.null_count,
        is_text,
    )


cdef MapColumn _map_result(map_column *m, object offsets):
    return MapColumn(
        offsets,
        _var_result(&m.keys, m.count, m.count, True),
        _var_result(&m.values, m.count, m.count, True),
    )


cdef MapColumn map_result(map_column *m, object offsets):
    if m.count > MAX_INT32:
        raise StoreFormatError(f"{m.count} properties do not fit into one column of maps")
    if _set_ends(m) < 0:
        raise MemoryError
    return _map_result(m, offsets)


# Arrow: the columns of ColumnPass.close_arrow.

cdef void _fixed_array(arrow_array *a, fixed_column *c, int64_t count) noexcept nogil:
    open_column(a, &c.rows, count, 2)
    a.buffers[1] = c.values


cdef void _var_array(arrow_array *a, var_column *c, int64_t taken) noexcept nogil:
    cdef column_block data
    _narrow(c, taken + 1)
    open_column(a, &c.rows, taken, 3)
    if c.null_count:
        a.null_count = c.null_count
        a.buffers[0] = c.validity
    a.buffers[1] = c.offsets
    # Without values any address will do, except NULL.
    data = take_data(c)
    a.buffers[2] = <const void *>c.offsets if data.data == NULL else data.data
    own_block(a, &data)


cdef int _map_array(arrow_array *a, column_set *s, int64_t count) noexcept nogil:
    """Return 0; -1: no memory."""
    cdef arrow_array *entries
    if open_parent(a, count, 2, 1) < 0:
        return -1
    a.buffers[1] = s.map_offsets
    own_block(a, &s.map_rows)
    entries = a.children[0]
    if open_parent(entries, s.map.count, 1, 2) < 0:
        return -1
    _var_array(entries.children[0], &s.map.keys, s.map.count)
    _var_array(entries.children[1], &s.map.values, s.map.count)
    return 0


# ---- calls -----------------------------------------------------------------------------------

cdef dict _decode(
    const uint8_t **records,
    const int32_t *sizes,
    const int64_t *phy_offsets,
    const int64_t *positions,
    Py_ssize_t count,
    object columns,
    bint check_crc,
    str path,
    bint null_bad_bodies,
    object max_body_bytes,
    QueueName queue,
    const int64_t[::1] queue_offsets,
):
    """Decode records at their addresses; an error names the entry of `positions`."""
    cdef ColumnPass work = ColumnPass.__new__(ColumnPass)
    cdef Py_ssize_t row = 0
    cdef int status
    work.null_bad_bodies = null_bad_bodies
    work.open(plan_of(column_names(columns)), count, sizes, path, max_body_bytes)
    work.compare(queue, queue_offsets)
    with nogil:
        status = walk_rows(work.state, records, sizes, phy_offsets, 0, count, check_crc, &row)
    if status == RS_NO_MEMORY:
        raise MemoryError
    if status != RS_OK:
        raise StoreCorruptionError(
            path,
            positions[row],
            rs_status_name(status).decode("ascii"),
        )
    return work.close(positions, 0)


def decode_records(
    data,
    const int64_t[::1] positions not None,
    const int32_t[::1] sizes not None,
    columns=COLUMNS,
    *,
    const int64_t[::1] phy_offsets=None,
    bint check_crc=False,
    str path="commit log",
    str on_bad_body not None="raise",
    max_body_bytes=None,
    QueueName queue=None,
    const int64_t[::1] queue_offsets=None,
):
    """Decode records in `data` into columns.

    Parameters
    ----------
    data : bytes-like
    positions : int64[n], bytes into `data`
    sizes : int32[n], bytes: largest possible size of each record
    columns : sequence of str from COLUMNS and PROPERTIES_MAP; other columns are not decoded
    phy_offsets : int64[n], bytes: the offset that each record must have stored; None: not compared
    check_crc : bool, compare each stored body with its CRC
    path : str, the name of `data` in errors; their position is that of the record in `data`
    on_bad_body : "raise" or "null": a `body` that does not inflate is an error, or absent
    max_body_bytes : int, limit of the bytes of `body` where a body is compressed: the rows end
        before the first one that exceeds it, and no later body is inflated; None: all rows
    queue, queue_offsets : QueueName and int64[n]: each record must have exactly its entry of
        `sizes` and be the message of this queue at its offset; None: not compared

    Returns
    -------
    dict in the order of `columns`:

    - int32[n] for queue_id, size, flag, sys_flag, body_crc and reconsume_times;
    - int64[n] for the other numbers (offsets in bytes or messages, times in Unix ms);
    - VarColumn for text and bodies;
    - MapColumn for properties_map. Of equal names, the first one's position and the last one's
      value count.

    `tags`, `keys` and `uniq_key` may be absent in a record, and `body` with on_bad_body="null".

    Raises
    ------
    StoreCorruptionError: a record is not valid, or a body does not inflate or has more than 64 MiB
    inflated. StoreFormatError: an unknown column or value of `on_bad_body`.

    Threads: the pass releases the GIL; `data` must not be written to meanwhile.
    """
    cdef Py_buffer view
    cdef Py_ssize_t count = positions.shape[0]
    cdef Py_ssize_t i
    cdef const uint8_t **records
    if on_bad_body not in ("raise", "null"):
        raise StoreFormatError(f"on_bad_body={shown(on_bad_body)}: must be 'raise' or 'null'")
    _check_counts(positions, sizes, phy_offsets)
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    records = <const uint8_t **>malloc(max(count, 1) * sizeof(uint8_t *))
    try:
        if records == NULL:
            raise MemoryError
        for i in range(count):
            if not _is_inside(positions[i], sizes[i], view.len):
                raise StoreCorruptionError(
                    path, positions[i], f"the record, of {sizes[i]} bytes, is outside of the data"
                )
            records[i] = <const uint8_t *>view.buf + positions[i]
        return _decode(
            records,
            &sizes[0] if count else NULL,
            &phy_offsets[0] if phy_offsets is not None and count else NULL,
            &positions[0] if count else NULL,
            count,
            columns,
            check_crc,
            path,
            on_bad_body == "null",
            max_body_bytes,
            queue,
            queue_offsets,
        )
    finally:
        free(records)
        PyBuffer_Release(&view)


cdef int _check_counts(
    const int64_t[::1] positions, const int32_t[::1] sizes, const int64_t[::1] phy_offsets
) except -1:
    cdef Py_ssize_t count = positions.shape[0]
    if sizes.shape[0] != count or (phy_offsets is not None and phy_offsets.shape[0] != count):
        raise StoreFormatError("positions, sizes and phy_offsets must have one entry a record")
    return 0


cdef inline bint _is_inside(int64_t position, int64_t size, int64_t end) noexcept nogil:
    return 0 <= size <= end and 0 <= position <= end - size


def check_records(
    data,
    const int64_t[::1] positions not None,
    const int32_t[::1] sizes not None,
    *,
    const int64_t[::1] phy_offsets=None,
    bint check_crc=False,
) -> np.ndarray:
    """Check records in `data` as decode_records does, and return a status for each.

    Parameters
    ----------
    data : bytes-like
    positions : int64[n], bytes into `data`
    sizes : int32[n], bytes: largest possible size of each record
    phy_offsets : int64[n], bytes: the offset that each record must have stored; None: not compared
    check_crc : bool, compare each stored body with its CRC

    Returns
    -------
    uint8[n]: rs_status: 0 for a valid record, else a status that _scan.status_name names. A record
    that exceeds `data` is torn.

    Raises
    ------
    StoreFormatError: arrays of different lengths.

    Threads: as decode_records.
    """
    cdef Py_buffer view
    cdef Py_ssize_t count = positions.shape[0]
    cdef Py_ssize_t i
    cdef uint8_t[::1] statuses
    cdef rs_record record
    _check_counts(positions, sizes, phy_offsets)
    verdicts = np.full(count, RS_TORN, np.uint8)
    statuses = verdicts
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    with nogil:
        for i in range(count):
            if _is_inside(positions[i], sizes[i], view.len):
                statuses[i] = <uint8_t>check_record(
                    <const uint8_t *>view.buf + positions[i],
                    sizes[i],
                    phy_offsets[i] if phy_offsets is not None else -1,
                    check_crc,
                    &record,
                )
    PyBuffer_Release(&view)
    return verdicts


def compressed_records(
    data, const int64_t[::1] positions not None, const int32_t[::1] sizes not None
):
    """Return bool[n], True for each record with a compressed body; None if there is none.

    Parameters
    ----------
    data : bytes-like
    positions : int64[n], bytes into `data`
    sizes : int32[n], bytes: largest possible size of each record; a record that is too small for
        its flags, or exceeds `data`, counts as not compressed

    Raises
    ------
    StoreFormatError: arrays of different lengths.
    """
    cdef Py_buffer view
    cdef Py_ssize_t count = positions.shape[0]
    cdef Py_ssize_t i
    cdef uint8_t[::1] flags
    cdef bint is_compressed
    found = None
    _check_counts(positions, sizes, None)
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        for i in range(count):
            is_compressed = (
                sizes[i] >= RS_MESSAGE_POSITION_SYS_FLAG + 4
                and _is_inside(positions[i], sizes[i], view.len)
                and rs_load_be32(
                    <const uint8_t *>view.buf + positions[i] + RS_MESSAGE_POSITION_SYS_FLAG
                ) & RS_COMPRESSED_FLAG
            )
            if is_compressed:
                if found is None:
                    found = np.zeros(count, np.bool_)
                    flags = found.view(np.uint8)
                flags[i] = 1
    finally:
        PyBuffer_Release(&view)
    return found


# Columns derived from columns of text: maps of properties texts, and hashes of tags.

cdef int _check_texts(
    const int64_t[::1] positions, const int32_t[::1] sizes, Py_ssize_t end
) except -1:
    cdef Py_ssize_t i
    if sizes.shape[0] != positions.shape[0]:
        raise StoreFormatError("positions and sizes must have one entry a text")
    for i in range(positions.shape[0]):
        if not (0 <= sizes[i] <= end and 0 <= positions[i] <= end - sizes[i]):
            raise StoreFormatError(
                f"text {i}, {sizes[i]} bytes at {positions[i]}, is outside of the {end} bytes given"
            )
    return 0


cdef int _add_maps(
    map_column *m,
    const uint8_t *p,
    const int64_t[::1] positions,
    const int32_t[::1] sizes,
    int32_t *offsets,
) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(positions.shape[0]):
        offsets[i] = <int32_t>m.count
        if add_properties(m, p + positions[i], sizes[i]) < 0:
            return -1
    offsets[positions.shape[0]] = <int32_t>m.count
    return 0


def properties_maps(
    data, const int64_t[::1] positions not None, const int32_t[::1] sizes not None
) -> MapColumn:
    """Parse properties texts in `data` into maps, as decode_records does for properties_map.

    Parameters
    ----------
    data : bytes-like
    positions : int64[n], bytes into `data`
    sizes : int32[n], bytes

    Raises
    ------
    StoreFormatError: a text exceeds `data`, or there are more than 2**31 - 1 properties.

    Threads: the pass releases the GIL; `data` must not be written to meanwhile.
    Source: RocketMQ 4.9.3 MessageDecoder#string2messageProperties.
    """
    cdef Py_buffer view
    cdef map_column m
    cdef int32_t[::1] memory
    cdef int failed
    memset(&m, 0, sizeof(m))
    offsets = column_array(positions.shape[0] + 1, np.int32, 4)
    memory = offsets
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        _check_texts(positions, sizes, view.len)
        with nogil:
            failed = _add_maps(&m, <const uint8_t *>view.buf, positions, sizes, &memory[0])
        if failed:
            raise MemoryError
        return map_result(&m, offsets)
    finally:
        free_map(&m)
        PyBuffer_Release(&view)


def tags_codes(
    data, const int64_t[::1] positions not None, const int32_t[::1] sizes not None
) -> np.ndarray:
    """Return the tags code of each tags text in `data` (UTF-8), as a queue unit stores it.

    Parameters
    ----------
    data : bytes-like
    positions : int64[n], bytes into `data`
    sizes : int32[n], bytes

    Returns
    -------
    int64[n]: Java's String.hashCode, 0 for an empty text.

    Raises
    ------
    StoreFormatError: a text exceeds `data`.

    Threads: as properties_maps.
    Source: RocketMQ 4.9.3 MessageExtBrokerInner#tagsString2tagsCode.
    """
    cdef Py_buffer view
    cdef Py_ssize_t i
    cdef int64_t[::1] codes
    hashes = np.empty(positions.shape[0], np.int64)
    codes = hashes
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        _check_texts(positions, sizes, view.len)
        with nogil:
            for i in range(positions.shape[0]):
                codes[i] = tags_code_of(<const uint8_t *>view.buf + positions[i], sizes[i])
    finally:
        PyBuffer_Release(&view)
    return hashes
