"""Kernel: logs and records that are longer than the windows through which files are read."""

from __future__ import annotations

import random

import numpy as np

from fuzz_bytes import Field, change, record_fields
from fuzz_records import Bytes, Kernel, LogKernel, same
from pyrocketstore.columns._decode import decode_records
from support import oracle

#: Bytes that the engine reads in one call.
WINDOW = 1 << 19


class LargeKernel(LogKernel):
    """Logs of several windows, with records that cross an edge or exceed a window."""

    name = "large"
    weight = 1

    def prepare(self) -> None:
        super().prepare()
        self.seeds = []
        for _ in range(3):
            data, extents = b"", []
            for size in self.rng.sample((91, 300_000, 524_200, 600_000, 1_100_000), 4):
                body = self.rng.randbytes(size)
                record = oracle.encode_record(
                    oracle.Record(
                        b"T", body, b"KEYS\1" + b"k " * 9000, phy_offset=self.BASE + len(data)
                    )
                )
                extents.append((len(data), len(record)))
                data += record
            fields = [f for at, size in extents for f in record_fields(data[at : at + size], at)]
            self.seeds.append((data, extents, fields))

    def make(self, rng: random.Random) -> Bytes:
        valid, extents, fields = rng.choice(self.seeds)
        data = bytearray(valid)
        text = change(rng, data, fields, in_fields=0.6)
        if rng.random() < 0.5:  # a fake record header at the edge of a window
            at = WINDOW * rng.randrange(1, 3) + rng.randrange(-20, 20)
            data[at : at + 4] = (oracle.MESSAGE_MAGIC % 2**32).to_bytes(4, "big")
            size = Field("size", at - 4, 4)
            data[size.at : at] = rng.choice((100, 300_000, 700_000)).to_bytes(4, "big")
        position = rng.choice((0, 1, extents[1][0], extents[1][0] + 1))
        stop = rng.choice((len(data), len(data) + 9, rng.randrange(len(data)), extents[2][0]))
        until = rng.choice((stop, WINDOW, rng.randrange(len(data))))
        return Bytes(text, bytes(data), (position, until, stop, True))

    def check(self, mutant: Bytes) -> None:
        super().check(mutant)
        data = mutant.data
        rows, _, _ = self.plain_scan(data, 0, len(data), True)
        # Each row three times: the columns reserve more memory than the rows need.
        positions = [at for at, _ in rows] * 3
        sizes = [record.total_size or 0 for _, record in rows] * 3
        columns = decode_records(data, np.array(positions, np.int64), np.array(sizes, np.int32),
                                 ("stored_body", "keys"), path="p")  # fmt: skip
        for i, (_, record) in enumerate(rows):
            same(columns["stored_body"][i] == record.body, True, "body")
        absent = sum("KEYS" not in record.properties_map() for _, record in rows)
        same(columns["keys"].null_count, 3 * absent, "keys")


KERNELS: tuple[type[Kernel], ...] = (LargeKernel,)
