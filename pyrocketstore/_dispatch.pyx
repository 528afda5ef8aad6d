"""The dispatch loop: from a range of the log into consume queues and index, without the GIL.

It comes back to Python only for what is uncommon: a queue seen for the first time, a file that is
full, a record that feeds more than one queue, damage.
"""
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memset

from pyrocketstore._consume_queue cimport ConsumeQueueCore, put_position_info
from pyrocketstore._env cimport EnvTable, Event
from pyrocketstore._index_file cimport (
    IndexFile,
    index_key_hash,
    index_key_prefix,
    put_hash,
    put_hashes,
)
from pyrocketstore._log_piece cimport (
    KIND_MULTI,
    KIND_ROLLBACK,
    KIND_UNCOMMON,
    LogPiece,
    delay_table,
    is_multi,
    minus,
    phy_offset_of,
    piece_record,
    queue_number_of,
    queue_offset_of,
    set_delays,
    store_timestamp_of,
    tags_code_of_record,
    tags_code_of_row,
)
from pyrocketstore._mapped_file cimport MappedFile
from pyrocketstore._prefill cimport prefill_entries, prefill_index, prefill_queue, prefill_slots
from pyrocketstore._record cimport largest_record, parse_record, scan_properties
from pyrocketstore._rocketstore cimport (
    RS_BAD_OFFSET,
    RS_FULL,
    RS_NEED_FILE,
    RS_NEED_PYTHON,
    RS_OK,
    RS_REPEAT,
    RS_TORN,
    RS_TRANSACTION_COMMIT_TYPE,
    RS_TRANSACTION_MASK,
    RS_TRANSACTION_NOT_TYPE,
    RS_TRANSACTION_ROLLBACK_TYPE,
    rs_event_signal,
    rs_index_file,
    rs_load_acquire,
    rs_load_be32,
    rs_mapped_file,
    rs_properties,
    rs_queue,
    rs_record,
    rs_store_release,
)
from pyrocketstore._scan cimport (
    WINDOW_BYTES,
    FileWindow,
    TopicQueueMap,
    check_range,
    map_entry,
)
from pyrocketstore._text cimport java_text

from pyrocketstore._text import string_to_properties
from pyrocketstore.errors import StoreIOError, StoreStateError
from pyrocketstore.results import DispatchRequest

# What the compiled loop wants of Python.
cdef enum:
    NOTHING = 0
    NEW_QUEUE = 1       # no consume queue registered for this record
    QUEUE_FILE = 2      # its queue has no file to write to
    QUEUE_RECORD = 3    # ext units, a gap in the queue, multi-dispatch: Python puts this record
    INDEX_FILE = 4      # no index file, or a full one
    INDEX_RECORD = 5    # the record at which indexing goes on after a restart
    QUEUE_ERROR = 6     # a system call failed for the queue
    INDEX_ERROR = 7
    SIGNAL_EVERY = 1024
    ATTACHED_MAX = 16384    # well below vm.max_map_count's 65530
    KEY_BATCH = 1024


@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class Dispatcher:
    """Feeds consume queues and index from ranges of the log.

    Parameters
    ----------
    on_new_queue : callable(topic, queue_id) -> ConsumeQueue, or None when it cannot be had
    on_queue_record : callable(DispatchRequest, multi: bool), puts one record the slow way
    on_index_file : callable() -> IndexFile or None (index given up)
    on_index_record : callable(DispatchRequest), indexes one record the slow way
    on_error : callable(kind: str, topic, queue_id, errno)
    delay_levels : {level: ms}
    index_enabled, multi_dispatch : bool
    moved : Event, signalled when `position` moved

    Threads: one at a time dispatches; `position` may be read from any.
    Source: RocketMQ 4.9.3 DefaultMessageStore#ReputMessageService, CommitLogDispatcherBuild*.
    """
    cdef TopicQueueMap queues
    cdef dict owners
    cdef dict cores         # the ConsumeQueueCore of each queue: the table points into it
    cdef dict names         # a topic's other spellings in the table: bytes that are not UTF-8
    cdef bint busy          # a thread dispatches into queues
    cdef bint indexing      # a thread puts the keys of a piece
    cdef dict attached
    cdef rs_index_file *index
    cdef IndexFile index_owner
    cdef bint index_enabled
    cdef bint multi_dispatch
    cdef delay_table delays
    cdef int64_t at
    cdef int64_t logics
    cdef Event moved
    cdef object on_new_queue
    cdef object on_queue_record
    cdef object on_index_file
    cdef object on_index_record
    cdef object on_error
    # where in one record the loop goes on after Python did its part
    cdef bint queue_done
    cdef bint index_begun
    cdef int32_t keys_done
    cdef map_entry *entry
    cdef int64_t errno_
    cdef rs_record record
    cdef rs_properties properties
    # of the pieces whose keys another thread puts
    cdef int64_t keys_until         # the index's count when it has all of theirs
    cdef bint stalled               # one could not be indexed whole

    def __cinit__(self, *, on_new_queue, on_queue_record, on_index_file, on_index_record, on_error,
                 delay_levels, bint index_enabled, bint multi_dispatch, Event moved):
        self.queues = TopicQueueMap()
        self.owners = {}
        self.cores = {}
        self.names = {}
        self.attached = {}
        self.on_new_queue = on_new_queue
        self.on_queue_record = on_queue_record
        self.on_index_file = on_index_file
        self.on_index_record = on_index_record
        self.on_error = on_error
        self.index_enabled = index_enabled
        self.multi_dispatch = multi_dispatch
        self.moved = moved
        self.logics = 0
        set_delays(&self.delays, delay_levels)

    @property
    def position(self):
        """Physical offset up to which records have been dispatched."""
        return rs_load_acquire(&self.at)

    @position.setter
    def position(self, int64_t value):
        rs_store_release(&self.at, value)
        rs_event_signal(self.moved.event)

    @property
    def logics_timestamp(self):
        """Store time of the last record that went into a queue, ms."""
        return rs_load_acquire(&self.logics)

    @logics_timestamp.setter
    def logics_timestamp(self, int64_t value):
        rs_store_release(&self.logics, value)

    def set_index_file(self, IndexFile index_file or None):
        """Index into this file from now on; None: ask `on_index_file`.

        Raises StoreStateError: another thread is in `index_piece`.
        """
        if self.indexing:
            raise StoreStateError("another thread puts keys into the index")
        if index_file is not None:
            index_file.open_for_writing()
        self.index_owner = index_file
        self.index = NULL if index_file is None else &index_file.index

    def resume_index(self):
        """Index again after the index was given up; only while nothing is dispatched."""
        self.index_enabled = True
        self.set_index_file(None)

    def forget(self, str topic, int32_t queue_id):
        """Take a destroyed queue out of the table; only while nothing is dispatched."""
        # A record's topic may be bytes that are not UTF-8: several spellings of one name.
        cdef bytes name
        cdef map_entry *entry
        key = (topic, queue_id)
        for name in self.names.pop(key, ()):
            entry = self.queues.find(<const uint8_t *><char *>name, <int32_t>len(name), queue_id)
            if entry != NULL:
                entry.queue = NULL
        self.owners.pop(key, None)
        self.cores.pop(key, None)
        self.attached.pop(key, None)

    def dispatch_mapped(self, MappedFile mapped_file, int64_t position):
        """Dispatch what a mapped file holds from `position` up to its write position.

        The caller holds the file. Returns (status, position reached).
        """
        cdef rs_mapped_file *file = &mapped_file.file
        cdef int64_t consumed, wrote
        cdef int status = RS_OK
        if position < 0:
            raise ValueError(f"position {position} is negative")
        self.begin()
        try:
            if not mapped_file.take_hold():
                raise StoreStateError(f"{mapped_file.path} is not available")
            try:
                if file.base == NULL:
                    raise StoreStateError(f"{mapped_file.path} is not mapped")
                while True:
                    wrote = rs_load_acquire(&file.wrote)
                    if position >= wrote:
                        break
                    status = self.walk(file.base + position, wrote - position,
                                       file.file_from_offset + position, &consumed)
                    position += consumed
                    if status != RS_OK:
                        break
            finally:
                mapped_file.drop_hold()
        finally:
            self.busy = False
        return status, position

    cdef int begin(self) except -1:
        # One thread at a time, and not from a callback of the dispatcher itself.
        if self.busy:
            raise StoreStateError("the dispatcher is at work already")
        self.busy = True
        self.queue_done = self.index_begun = False
        self.keys_done = 0
        return 0

    def dispatch_file(self, EnvTable env, str path, int64_t file_from_offset, int64_t position,
                      int64_t stop):
        """Dispatch a range of a commit log file that is read with pread.

        Returns (status, position reached): RS_OK at `stop`, RS_BLANK, or what is wrong there.
        """
        cdef FileWindow window
        cdef int64_t consumed = 0
        cdef int64_t got = 0
        cdef int64_t wanted = WINDOW_BYTES
        cdef int status = RS_OK
        check_range(file_from_offset, position, stop)
        self.begin()
        try:
            window = FileWindow(env, path)
            while position < stop:
                if wanted > stop - position:
                    wanted = stop - position
                with nogil:
                    got = window.fill(position, wanted)
                if got < 0:
                    raise StoreIOError(<int>-got, "pread", path, position)
                status = self.walk(window.buffer, got, file_from_offset + position, &consumed)
                position += consumed
                if status == RS_TORN and (consumed or (
                        got == wanted and wanted < stop - position)):
                    wanted = WINDOW_BYTES
                    if got - consumed >= 4:
                        wanted = max(wanted, min(<int64_t>rs_load_be32(window.buffer + consumed),
                                                 largest_record()))
                    if not consumed and wanted <= got:
                        break
                    status = RS_OK
                    continue
                if status != RS_OK:
                    break
            window.close()
        finally:
            self.busy = False
        return status, position

    cdef int walk(self, const uint8_t *p, int64_t size, int64_t phy_offset,
                  int64_t *consumed) except? -99:
        cdef int64_t at = 0
        cdef int status = RS_OK
        cdef int wish = NOTHING
        while True:
            with nogil:
                status = self.run(p, size, phy_offset, &at, &wish)
            rs_event_signal(self.moved.event)
            if wish == NOTHING:
                break
            self.fulfil(wish, p + at)
        consumed[0] = at
        return status

    cdef int run(self, const uint8_t *p, int64_t size, int64_t phy_offset, int64_t *consumed,
                 int *wish) noexcept nogil:
        # The loop: whole records from consumed[0] on, until Python is wanted or no record is left.
        cdef int64_t at = consumed[0]
        cdef int status = RS_OK
        cdef int64_t since = 0
        wish[0] = NOTHING
        while at < size:
            if not self.queue_done and not self.index_begun:
                status = parse_record(p + at, size - at, &self.record)
                if status == RS_OK and self.record.phy_offset != phy_offset + at:
                    status = RS_BAD_OFFSET
                if status != RS_OK:
                    break
                scan_properties(p + at + self.record.properties_position,
                                self.record.properties_size, &self.properties)
            wish[0] = self.into_queue(p + at)
            if wish[0] == NOTHING and self.index_enabled:
                wish[0] = self.into_index(p + at)
            if wish[0] != NOTHING:
                break
            self.queue_done = False
            self.index_begun = False
            self.keys_done = 0
            at += self.record.total_size
            rs_store_release(&self.at, phy_offset + at)
            since += 1
            if since == SIGNAL_EVERY:
                since = 0
                rs_event_signal(self.moved.event)
        consumed[0] = at
        return status

    cdef int into_queue(self, const uint8_t *p) noexcept nogil:
        cdef int32_t kind = self.record.sys_flag & RS_TRANSACTION_MASK
        cdef int result
        if self.queue_done:
            return NOTHING
        if kind != RS_TRANSACTION_NOT_TYPE and kind != RS_TRANSACTION_COMMIT_TYPE:
            self.queue_done = True
            return NOTHING
        self.entry = self.queues.find(p + self.record.topic_position, self.record.topic_size,
                                      self.record.queue_id)
        if self.entry == NULL or self.entry.queue == NULL:
            return NEW_QUEUE
        if self.entry.queue.needs_python or (
                self.multi_dispatch and is_multi(&self.properties)):
            return QUEUE_RECORD
        result = put_position_info(self.entry.queue, self.record.phy_offset,
                                   self.record.total_size, self.tags_code(p),
                                   self.record.queue_offset)
        if result == RS_NEED_FILE:
            return QUEUE_FILE
        if result == RS_NEED_PYTHON:
            return QUEUE_RECORD
        if result < 0:
            return QUEUE_ERROR
        rs_store_release(&self.logics, self.record.store_timestamp)
        self.queue_done = True
        return NOTHING

    cdef int64_t tags_code(self, const uint8_t *p) noexcept nogil:
        return tags_code_of_record(p, &self.record, &self.properties, &self.delays)

    cdef int into_index(self, const uint8_t *p) noexcept nogil:
        cdef const uint8_t *text = p + self.record.properties_position
        cdef const uint8_t *key
        cdef int32_t left, size, done
        cdef int32_t hash_
        cdef int result
        if not self.index_begun:
            if self.index == NULL or self.index.index_count >= self.index.index_num:
                return INDEX_FILE
            if self.record.phy_offset < self.index.end_phy_offset:
                return NOTHING
            if (self.record.sys_flag & RS_TRANSACTION_MASK) == RS_TRANSACTION_ROLLBACK_TYPE:
                return NOTHING
            if self.record.phy_offset == self.index.end_phy_offset:
                return INDEX_RECORD
            self.index_begun = True
        elif self.index == NULL:
            return INDEX_FILE
        hash_ = index_key_prefix(p + self.record.topic_position, self.record.topic_size)
        done = 0
        if self.properties.uniq_key.size > 0:
            result = self.into_index_key(hash_, text + self.properties.uniq_key.position,
                                         self.properties.uniq_key.size, done)
            if result != NOTHING:
                return result
            done += 1
        if self.properties.keys.size > 0:
            key = text + self.properties.keys.position
            left = self.properties.keys.size
            while left > 0:
                size = 0
                while size < left and key[size] != 32:
                    size += 1
                if size > 0:
                    result = self.into_index_key(hash_, key, size, done)
                    if result != NOTHING:
                        return result
                    done += 1
                key += size + 1
                left -= size + 1
        return NOTHING

    cdef int into_index_key(self, int32_t hash_, const uint8_t *key, int32_t size,
                            int32_t done) noexcept nogil:
        cdef int result
        if done < self.keys_done:
            return NOTHING
        result = put_hash(self.index, index_key_hash(hash_, key, size), self.record.phy_offset,
                          self.record.store_timestamp)
        if result == RS_FULL:
            self.index = NULL
            return INDEX_FILE
        if result < 0:
            self.errno_ = -result
            return INDEX_ERROR
        self.keys_done = done + 1
        return NOTHING

    # ---- pieces of the log that a scan has taken apart ----------------------------------------

    def dispatch_piece(self, LogPiece piece not None, int64_t first):
        """Dispatch the records of a piece from number `first` on.

        Parameters
        ----------
        piece : LogPiece, scanned with records=True; it follows what was dispatched before
        first : int, a record's number

        Returns
        -------
        int, number of the first record that is not dispatched: one that needs what only
        `dispatch_file` does, or piece.count
        """
        cdef int64_t queued
        cdef int64_t done = first
        if not 0 <= first <= piece.count or piece.records == NULL:
            if first == piece.count == 0:
                return 0
            raise ValueError(f"record {first} of {piece.count}, or a piece without records")
        self.begin()
        try:
            queued = self.queue_records(piece, first)
            while self.index_enabled and done < queued:
                if self.index == NULL or self.index.index_count >= self.index.index_num:
                    self.fulfil(INDEX_FILE, NULL)
                    continue
                done = self.keys_of_piece(piece, done, queued)
                if self.index.index_count < self.index.index_num:
                    break
            if not self.index_enabled:
                done = queued
            self.pass_to(piece, first, done)
        finally:
            self.busy = False
        rs_event_signal(self.moved.event)
        return done

    cdef int64_t keys_of_piece(self, LogPiece piece, int64_t done, int64_t queued) except -1:
        # As piece_into_index; the file stays this dispatcher's until it returns.
        cdef IndexFile owner = self.index_owner
        if self.indexing:
            raise StoreStateError("another thread puts keys into the index")
        self.indexing = True
        with nogil:
            done = self.piece_into_index(piece, done, queued, owner.mapped_file.created)
        self.indexing = False
        return done

    def queue_piece(self, LogPiece piece not None, bint alone):
        """Put a piece into the queues, and make room for its keys in the index.

        Parameters
        ----------
        piece : LogPiece, as for `dispatch_piece`
        alone : bool, no other piece waits for `index_piece`

        Returns
        -------
        bool, whether `index_piece` is to do the rest; else `dispatch_piece` has to do it all, once
        no other piece waits
        """
        self.begin()
        try:
            return self.make_room(piece, alone)
        finally:
            self.busy = False

    cdef bint make_room(self, LogPiece piece, bint alone) except -1:
        cdef rs_index_file *x
        cdef int64_t keys
        cdef bint has_room
        if piece.records == NULL or not self.index_enabled:
            return False
        if self.index == NULL:
            self.fulfil(INDEX_FILE, NULL)
        x = self.index
        if x == NULL:
            return False
        if alone:
            # An index that has nothing ends at 0.
            if phy_offset_of(piece, 0) <= x.end_phy_offset and (
                    x.end_phy_offset > 0 or x.index_count > 1):
                return False        # the index may have some of it
            self.keys_until = x.index_count
            self.stalled = False
        keys = piece.records[piece.count].first_key
        if keys > x.index_num - self.keys_until or self.queue_records(piece, 0) < piece.count:
            return False
        with nogil:
            has_room = prefill_entries(x, self.keys_until, keys)
        self.keys_until += keys
        return has_room

    def index_piece(self, LogPiece piece not None):
        """Put the keys of a piece, for which `queue_piece` gave True, into the index.

        Returns
        -------
        bool, False where `dispatch_piece` has to do it all: a record of this piece, or of one that
        was to be indexed before it, is uncommon

        Threads: one at a time, in the order of the pieces; `queue_piece` may go on beside it.
        """
        cdef int64_t done = 0
        cdef IndexFile owner = self.index_owner
        if piece.records == NULL or owner is None or self.index == NULL or self.indexing:
            raise StoreStateError("queue_piece did not give True for this piece")
        if not self.stalled:
            self.indexing = True
            with nogil:
                prefill_slots(self.index, piece.records[piece.count].first_key,
                              owner.mapped_file.created)
                done = self.put_common_keys(piece, 0, piece.count)
            self.indexing = False
            self.stalled = done < piece.count
        return not self.stalled

    def pass_piece(self, LogPiece piece not None):
        """A piece is in queues and index: move `position`."""
        if piece.records == NULL:
            raise ValueError("a piece without records")
        self.pass_to(piece, 0, piece.count)
        rs_event_signal(self.moved.event)

    cdef int64_t queue_records(self, LogPiece piece, int64_t first) except -1:
        # Number of the first record from `first` on that only dispatch_file can put.
        cdef int64_t queued = first
        cdef bint go_on = True
        cdef int wish = NOTHING
        # Queues that were found for an earlier call may be gone.
        memset(piece.found, 0, <size_t>(piece.queues.count + 1) * sizeof(rs_queue *))
        while go_on and queued < piece.count:
            with nogil:
                queued = self.piece_into_queues(piece, queued, &wish)
            go_on = wish != NOTHING and self.fulfil_piece(piece, &queued, wish)
        return queued

    cdef bint fulfil_piece(self, LogPiece piece, int64_t *number, int wish) except -1:
        # What record `number` needs of Python; False when only dispatch_file can do it.
        cdef map_entry *seen = piece.entries[queue_number_of(&piece.records[number[0]])]
        if wish != NEW_QUEUE and wish != QUEUE_FILE:
            return False
        topic = java_text(seen.topic, seen.topic_size)
        self.queue_done = False
        if wish == NEW_QUEUE:
            self.register_queue(seen.topic, seen.topic_size, seen.queue_id)
        else:
            self.provide_file(topic, seen.queue_id, queue_offset_of(piece, number[0]))
        if self.queue_done:
            number[0] += 1      # it goes into no queue
        self.queue_done = False
        return True

    cdef void pass_to(self, LogPiece piece, int64_t first, int64_t done) noexcept nogil:
        # Everything before record `done` is dispatched.
        cdef int64_t i
        for i in range(done - 1, first - 1, -1):
            if queue_number_of(&piece.records[i]) >= 0:
                rs_store_release(&self.logics, store_timestamp_of(piece, i))
                break
        if done > first:
            rs_store_release(&self.at, phy_offset_of(piece, done))

    cdef rs_queue *find_queue(self, LogPiece piece, int32_t number) noexcept nogil:
        # The writing end of a piece's queue, made ready; NULL when Python has to give it.
        cdef map_entry *seen = piece.entries[number]
        cdef map_entry *entry = self.queues.find(seen.topic, seen.topic_size, seen.queue_id)
        cdef rs_queue *queue = NULL if entry == NULL else entry.queue
        if queue != NULL and not queue.needs_python:
            prefill_queue(queue, min(seen.count, minus(seen.next_queue_offset, queue.unit_count)))
        piece.found[number] = queue
        return queue

    cdef int64_t piece_into_queues(self, LogPiece piece, int64_t first,
                                   int *wish) noexcept nogil:
        # Number of the first record that did not get into its queue, and why.
        cdef piece_record *row
        cdef rs_queue *queue
        cdef int64_t i
        cdef int32_t number
        cdef int result
        wish[0] = NOTHING
        for i in range(first, piece.count):
            row = &piece.records[i]
            number = queue_number_of(row)
            if number < 0:
                continue
            queue = piece.found[number]
            if queue == NULL:
                queue = self.find_queue(piece, number)
                if queue == NULL:
                    wish[0] = NEW_QUEUE
                    return i
            if queue.needs_python or row.kind & KIND_UNCOMMON or (
                    row.kind & KIND_MULTI and self.multi_dispatch):
                wish[0] = QUEUE_RECORD
                return i
            result = put_position_info(
                queue, phy_offset_of(piece, i), row[1].position - row.position,
                tags_code_of_row(piece, i), queue_offset_of(piece, i))
            if result != RS_OK and result != RS_REPEAT:
                piece.found[number] = NULL          # another file must be made ready again
                wish[0] = QUEUE_FILE if result == RS_NEED_FILE else QUEUE_RECORD
                return i
        return piece.count

    cdef int64_t piece_into_index(self, LogPiece piece, int64_t first, int64_t stop,
                                  bint fresh) noexcept nogil:
        # Number of the first record, at most `stop`, whose keys are not all in the index.
        cdef rs_index_file *x = self.index
        cdef int64_t i = first
        if x == NULL or x.index_count >= x.index_num:
            return first
        while i < stop and phy_offset_of(piece, i) < x.end_phy_offset:
            i += 1
        prefill_index(x, piece.records[stop].first_key - piece.records[i].first_key, fresh)
        if i < stop and phy_offset_of(piece, i) == x.end_phy_offset and not (
                piece.records[i].kind & KIND_ROLLBACK):
            return i        # may be in the index in part
        return self.put_common_keys(piece, i, stop)

    cdef int64_t put_common_keys(self, LogPiece piece, int64_t first,
                                 int64_t stop) noexcept nogil:
        # As piece_into_index, of records that are not in the index.
        cdef rs_index_file *x = self.index
        cdef int64_t i = first
        cdef int64_t room
        # Only whole records, and none that meets a full file.
        room = piece.records[i].first_key + (x.index_num - x.index_count)
        while (i < stop and piece.records[i].first_key < room
               and piece.records[i + 1].first_key <= room
               and not piece.records[i].kind & KIND_UNCOMMON):
            i += 1
        return self.put_piece_keys(piece, first, i)

    cdef int64_t put_piece_keys(self, LogPiece piece, int64_t first,
                                int64_t stop) noexcept nogil:
        # Number of the first record of [first, stop) that the index could not take; or `stop`.
        cdef int64_t[KEY_BATCH] phy_offsets
        cdef int64_t[KEY_BATCH] store_timestamps
        cdef int64_t key = piece.records[first].first_key
        cdef int64_t begin = key
        cdef int64_t i = first
        cdef int64_t done
        cdef int status
        while i < stop:
            # Of a record with more keys than a batch takes, the rest comes with the next batch.
            while i < stop and key - begin < KEY_BATCH:
                if key == piece.records[i + 1].first_key:
                    i += 1
                    continue
                phy_offsets[key - begin] = phy_offset_of(piece, i)
                store_timestamps[key - begin] = store_timestamp_of(piece, i)
                key += 1
            done = put_hashes(self.index, piece.keys + begin, phy_offsets, store_timestamps,
                              key - begin, &status)
            if done < key - begin:
                i = first
                while piece.records[i + 1].first_key <= begin + done:
                    i += 1
                return i
            begin = key
        return stop

    # ---- the uncommon cases, with the GIL ----------------------------------------------------

    cdef int fulfil(self, int wish, const uint8_t *p) except -1:
        if wish == NEW_QUEUE:
            self.register_queue(p + self.record.topic_position, self.record.topic_size,
                                self.record.queue_id)
        elif wish == QUEUE_FILE:
            self.provide_file(self.topic_of(p), self.record.queue_id, self.record.queue_offset)
        elif wish == QUEUE_RECORD or wish == QUEUE_ERROR:
            # The slow way also tries again where the cause may pass.
            multi = self.multi_dispatch and is_multi(&self.properties)
            self.on_queue_record(self.request(p), bool(multi))
            rs_store_release(&self.logics, self.record.store_timestamp)
            self.queue_done = True
        elif wish == INDEX_FILE:
            self.set_index_file(self.on_index_file())
            if self.index == NULL:
                self.index_enabled = False
        elif wish == INDEX_RECORD:
            self.set_index_file(self.on_index_record(self.request(p)))
            self.index_begun = True
            self.keys_done = 0x7FFFFFFF
        elif wish == INDEX_ERROR:
            # The index ends before this record, so that recovery finds where to go on.
            self.on_error("index", self.topic_of(p), self.record.queue_id, self.errno_)
            self.index_enabled = False
        return 0

    cdef int provide_file(self, str topic, int32_t queue_id, int64_t queue_offset) except -1:
        # Only so many queues keep their last file mapped: the longest attached one lets go.
        key = (topic, queue_id)
        owner = self.owners.get(key)
        if owner is None:
            raise StoreStateError(f"the queue {topic}/{queue_id} is gone")
        self.attached.pop(key, None)
        if len(self.attached) >= ATTACHED_MAX:
            oldest = self.attached.pop(next(iter(self.attached)))
            oldest.detach()
            oldest.unmap_idle()
        self.attached[key] = owner
        if not owner.provide_file(queue_offset):
            self.on_error("queue", topic, queue_id, 0)
            self.queue_done = True
        return 0

    cdef str topic_of(self, const uint8_t *p):
        return java_text(p + self.record.topic_position, self.record.topic_size)

    cdef int register_queue(self, const uint8_t *name, int32_t size,
                            int32_t queue_id) except -1:
        cdef map_entry *entry
        cdef ConsumeQueueCore core
        topic = java_text(name, size)
        queue = self.on_new_queue(topic, queue_id)
        if queue is None:
            self.queue_done = True       # a name that must not become a directory
            return 0
        core = queue.core
        if core is None:
            raise TypeError("the queue has no core")
        if self.cores.get((topic, queue_id), core) is not core:
            raise StoreStateError(f"two queues for {topic}/{queue_id}")
        entry = self.queues.insert(name, size, queue_id)
        if entry == NULL:
            raise MemoryError()
        self.names.setdefault((topic, queue_id), set()).add(name[:size])
        self.owners[topic, queue_id] = queue
        self.cores[topic, queue_id] = core
        entry.queue = &core.queue
        return 0

    cdef object request(self, const uint8_t *p):
        cdef const uint8_t *text = p + self.record.properties_position
        cdef int32_t size = self.record.properties_size
        properties = None
        keys = ""
        if size > 0:
            properties = string_to_properties(java_text(text, size))
            keys = properties.get("KEYS")
        return DispatchRequest(
            topic=self.topic_of(p), queue_id=self.record.queue_id,
            commit_log_offset=self.record.phy_offset, msg_size=self.record.total_size,
            tags_code=self.tags_code(p), store_timestamp=self.record.store_timestamp,
            consume_queue_offset=self.record.queue_offset, keys=keys,
            uniq_key=None if properties is None else properties.get("UNIQ_KEY"),
            sys_flag=self.record.sys_flag,
            prepared_transaction_offset=self.record.prepared_transaction_offset,
            properties_map=properties,
        )
