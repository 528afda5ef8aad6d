"""The compiled part of the face that puts, for what inherits it."""
from libc.stdint cimport int64_t

from pyrocketstore._commit_log cimport CommitLogCore, rs_append
from pyrocketstore._group_commit cimport GroupCommit
from pyrocketstore._put_columns cimport Chunk, Columns
from pyrocketstore._put_result cimport PutMessageResult
from pyrocketstore._rocketstore cimport rs_outgoing


cdef class PutPath:
    cdef readonly CommitLogCore core
    cdef rs_outgoing template
    cdef public bint put_fast
    cdef Chunk spare_chunk
    cdef GroupCommit group

    cdef PutMessageResult forced(self, GroupCommit group, CommitLogCore core, rs_append *out)
    cdef int check_sizes(self, CommitLogCore core, rs_outgoing *template,
                         Columns columns) except -1
    cdef CommitLogCore bound_core(self)
    cdef PutMessageResult result_of(self, rs_append *out)
    cdef Chunk take_chunk(self)
    cdef int give_chunk(self, Chunk chunk) except -1
