"""The amount of work of a variant: for a smoke test or for a measurement."""

from __future__ import annotations

import dataclasses

from bench.model import Group, Variant

FULL_WARM_ROUNDS = 2
SMOKE_COUNT_MIN = 20
SMOKE_QUEUES_MAX = 100
#: Small enough that an input store has several files, which can be scanned in parallel.
INPUT_FILE_FULL = 256 << 20
INPUT_FILE_SMOKE = 1 << 20


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Amount of work: for a smoke test or for a measurement."""

    full: bool
    pairs: int
    seconds: float

    @property
    def warm_rounds(self) -> int:
        """Return the number of warm-up rounds of each variant."""
        return FULL_WARM_ROUNDS if self.full else 0

    def count(self, group: Group, variant: Variant) -> int:
        """Return the number of items in one unit of work."""
        if self.full:
            return max(1, round(group.count * variant.share))
        return max(SMOKE_COUNT_MIN, round(group.smoke * variant.share))

    def stored(self, group: Group, variant: Variant) -> int:
        """Return the number of messages in the input store; get and scan read them all."""
        all_of_them = group.input if self.full else group.smoke_input
        if variant.options.get("what") not in {"get", "scan"}:
            return all_of_them
        return max(SMOKE_COUNT_MIN, round(all_of_them * variant.share))

    def options(self, group: Group, variant: Variant) -> dict[str, object]:
        """Return the options of a variant's worker."""
        found: dict[str, object] = {**variant.options, "count": self.count(group, variant)}
        if group.input and not variant.program.startswith("limit:"):
            found["stored"] = self.stored(group, variant)
            found["body"] = group.input_body
            found["mappedFileSizeCommitLog"] = self.input_file_size
        if not self.full:
            found |= {"slots": 1000, "indexes": 20_000}
            found |= {name: 3000 for name in ("stored",) if name in variant.options}
            if "queues" in found:
                found["queues"] = min(int(str(found["queues"])), SMOKE_QUEUES_MAX)
        return found

    @property
    def input_file_size(self) -> int:
        """Return the size in bytes of a log file of an input store."""
        return INPUT_FILE_FULL if self.full else INPUT_FILE_SMOKE
