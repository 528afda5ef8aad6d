"""The groups of measured work, by subject. A module here imports the model, and of the workers only
the constants of the workload; it starts nothing."""

from __future__ import annotations

from bench.catalog.delayed import DELAYED_GROUPS
from bench.catalog.growth import growth_groups
from bench.catalog.latency import LATENCY_GROUPS
from bench.catalog.opening import OPENING_GROUPS
from bench.catalog.parts import IMPORT_GROUPS, PART_GROUPS
from bench.catalog.properties import PROPERTY_GROUPS
from bench.catalog.put import PUT_GROUPS
from bench.catalog.read import READ_GROUPS
from bench.catalog.recovery import RECOVERY_GROUPS
from bench.catalog.small_reads import SMALL_READ_GROUPS
from bench.catalog.sync import ASYNC_GROUPS, SYNC_GROUPS
from bench.catalog.transactions import TRANSACT_GROUPS

__all__ = ["GROUPS", "growth_groups"]

GROUPS = (
    *PUT_GROUPS,
    *PROPERTY_GROUPS,
    *SYNC_GROUPS,
    *ASYNC_GROUPS,
    *LATENCY_GROUPS,
    *DELAYED_GROUPS,
    *TRANSACT_GROUPS,
    *RECOVERY_GROUPS,
    *OPENING_GROUPS,
    *PART_GROUPS,
    *READ_GROUPS,
    *SMALL_READ_GROUPS,
    *IMPORT_GROUPS,
)
