"""The put path of a store, for the calls that are compiled."""
from pyrocketstore.commit_log._append cimport CommitLogCore, rs_append
from pyrocketstore.commit_log._group_commit cimport GroupCommit
from pyrocketstore.commit_log._put_columns cimport Chunk, Columns
from pyrocketstore.commit_log._put_result cimport PutMessageResult
from pyrocketstore.store._open_state cimport StoreState
from pyrocketstore._rocketstore cimport rs_outgoing


cdef class PutPath:
    cdef CommitLogCore core
    cdef StoreState state
    cdef object slow
    cdef rs_outgoing template
    cdef Chunk spare_chunk
    cdef GroupCommit group

    cpdef PutMessageResult put(self, topic, body, queue_id, tags, keys, properties, delay_level,
                               flag, born_timestamp, born_host)
    cdef PutMessageResult wait_durable(self, rs_append *out)
    cdef int check_sizes(self, rs_outgoing *template, Columns columns) except -1
    cdef PutMessageResult result_of(self, rs_append *out)
    cdef Chunk take_chunk(self)
    cdef int give_chunk(self, Chunk chunk) except -1
