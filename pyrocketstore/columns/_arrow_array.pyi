from typing import Final, final

__pyx_capi__: Final[dict[str, object]]
__test__: Final[dict[str, object]]

@final
class ArrowColumns:
    names: Final[tuple[str, ...]]
    large: Final[tuple[str, ...]]
    body_bytes: Final[int]
    def __len__(self) -> int: ...
    @property
    def address(self) -> int: ...
    def child_addresses(self) -> list[int]: ...
    def byte_count(self) -> int: ...
