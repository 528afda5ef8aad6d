from libc.stdint cimport int64_t

from pyrocketstore._rocketstore cimport rs_outgoing
from pyrocketstore.commit_log._append cimport CommitLogCore, GroupCommit, RecordBuffer, rs_append
from pyrocketstore.commit_log._puts cimport ColumnAppends, PutMessageResult
from pyrocketstore.record._text cimport UniqueIds
from pyrocketstore.system._open_state cimport StoreState

cdef class PutPath:
    cdef CommitLogCore core
    cdef StoreState state
    cdef object slow
    cdef rs_outgoing template
    cdef ColumnAppends appends
    cdef RecordBuffer spare_text
    cdef UniqueIds ids
    cdef GroupCommit group

    cpdef PutMessageResult put(self, topic, body, queue_id, tags, keys, properties, delay_level,
                               flag, born_timestamp, born_host)
    cdef RecordBuffer named_text(self, tags, keys, properties, int64_t *size, int64_t *now)
    cdef PutMessageResult wait_durable(self, rs_append *out)
    cdef PutMessageResult result_of(self, rs_append *out)
