"""Client message ids (UNIQ_KEY) in the form of Java's clients."""
import os

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from pyrocketstore._rocketstore cimport RS_HOST_V4_SIZE
from pyrocketstore.record._text cimport host_bytes
from pyrocketstore.system._env cimport EnvTable

cdef const uint8_t *HEX = <const uint8_t *>b"0123456789ABCDEF"
cdef enum:
    TAIL_BYTES = 6  # elapsed ms and counter

cdef uint32_t counter = 0  # of all stores of this process
cdef uint32_t loader = 0


def _draw_loader():
    # Java has the hash of a class loader here: a number that tells processes apart, which the low
    # 16 bits of their ids alone do not.
    global loader
    loader = <uint32_t>int.from_bytes(os.urandom(4), "big")


_draw_loader()
os.register_at_fork(after_in_child=_draw_loader)


cdef inline void write_hex(uint8_t *out, const uint8_t *p, int size) noexcept:
    cdef int i
    for i in range(size):
        out[2 * i] = HEX[p[i] >> 4]
        out[2 * i + 1] = HEX[p[i] & 15]


@cython.final
@cython.auto_pickle(False)
@cython.no_gc_clear
cdef class UniqueIds:
    """Makes ids: address, process, loader, ms since the month began in local time, and a counter,
    in upper-case hex.

    Parameters
    ----------
    env : Env
    host : "ip:port"

    Threads: any. A fork: the child's ids differ from the parent's.
    Source: RocketMQ 4.9.3 MessageClientIDSetter#createUniqID.
    """

    def __cinit__(self, EnvTable env not None, host not None):
        self.env = env
        self.host = host
        self.learn(env.table.now_ms())

    cdef int learn(self, int64_t now) except -1:
        cdef bytes raw = host_bytes(self.host, "store_host")
        cdef int address_size = <int>PyBytes_GET_SIZE(raw) - 4  # without the port
        cdef int64_t second_ms = now // 1000 * 1000
        cdef uint8_t[6] ids
        if second_ms > now:
            second_ms -= 1000  # before 1970
        local = self.env.local_time(second_ms)
        elapsed = ((local.tm_mday - 1) * 24 + local.tm_hour) * 60 + local.tm_min
        cdef int64_t elapsed_ms = (elapsed * 60 + local.tm_sec) * 1000
        cdef uint32_t process = <uint32_t>(self.env.process_id() & 0xFFFF)
        # No Python runs from here on, so another thread finds all of it or nothing.
        ids[0], ids[1] = process >> 8 & 0xFF, process & 0xFF
        for i in range(4):
            ids[2 + i] = loader >> (24 - 8 * i) & 0xFF
        write_hex(self.prefix, <const uint8_t *>PyBytes_AS_STRING(raw), address_size)
        write_hex(self.prefix + 2 * address_size, ids, 6)
        self.prefix_size = 2 * (address_size + 6)
        self.second_ms, self.elapsed_ms = second_ms, elapsed_ms
        return 0

    cdef int write(self, int64_t now, uint8_t *out) noexcept:
        global counter
        cdef uint32_t elapsed = <uint32_t>(self.elapsed_ms + (now - self.second_ms))
        cdef uint8_t[TAIL_BYTES] tail
        cdef int i
        for i in range(4):
            tail[i] = elapsed >> (24 - 8 * i) & 0xFF
        tail[4], tail[5] = counter >> 8 & 0xFF, counter & 0xFF
        counter += 1
        memcpy(out, self.prefix, self.prefix_size)
        write_hex(out + self.prefix_size, tail, TAIL_BYTES)
        return self.prefix_size + 2 * TAIL_BYTES

    def new(self) -> str:
        """A new id."""
        cdef uint8_t[MAX_UNIQUE_ID_SIZE] text
        cdef int64_t now = self.env.table.now_ms()
        if not self.knows(now):
            self.learn(now)
        return text[:self.write(now, text)].decode("ascii")
