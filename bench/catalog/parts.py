"""Parts of the engine by themselves: consume queue, index file, import of the package."""

from __future__ import annotations

from bench.model import Group, java, ours

PART_GROUPS = (
    Group(
        "cq",
        "ConsumeQueue append",
        (
            java({"what": "cq"}, "1", "putMessagePositionInfoWrapper, one call per unit"),
            ours(
                "single calls",
                {"what": "cq"},
                "1",
                "put_message_position_info, one call per unit",
                0.3,
            ),
            ours("arrays", {"what": "cq_arrays"}, "1", "put_units with columns of all units", 8.0),
        ),
        count=20_000_000,
        smoke=10_000,
        unit="unit",
        record=20,
    ),
    Group(
        "index_put",
        "IndexFile put, 3 M keys",
        (
            java({"what": "index_put"}, "1", "putKey with new strings, one call per key"),
            ours(
                "arrays", {"what": "index_put"}, "1", "put_keys: new strings hashed, one call", 2.0
            ),
        ),
        count=3_000_000,
        smoke=3_000,
        unit="key",
        record=20,
    ),
    Group(
        "index_select",
        "IndexFile select among 3 M keys",
        (
            java(
                {"what": "index_select", "stored": 3_000_000},
                "1",
                "selectPhyOffset, one call per key",
            ),
            ours(
                "single calls",
                {"what": "index_select", "stored": 3_000_000},
                "1",
                "select_phy_offset, one call per key",
                1.0,
            ),
            ours(
                "arrays",
                {"what": "index_select_many", "stored": 3_000_000},
                "1",
                "select_hashes; hashing the list of keys is timed too",
                2.0,
            ),
        ),
        count=1_000_000,
        smoke=1_000,
        unit="key",
    ),
)
IMPORT_GROUPS = (
    Group(
        "import",
        "Import in a new interpreter",
        (
            ours("NumPy", {"what": "import", "module": "numpy"}, "1", "import numpy"),
            ours(
                "pyrocketstore",
                {"what": "import", "module": "pyrocketstore", "names": "open,DefaultMessageStore"},
                "1",
                "import pyrocketstore, with the engine and NumPy",
            ),
        ),
        count=5,
        smoke=1,
        unit="import",
    ),
)
