"""Many records to columns, from any memory that the caller keeps in place."""
from libc.stdint cimport int32_t, int64_t, uint8_t

# The records as {name: ndarray | VarColumn}, in the order of `columns`. Record i may be read up to
# records[i] + sizes[i]. With phy_offsets, each record must say that it lies at its own; NULL: not
# compared. `path` names the file in errors, whose position is phy_offsets[i] - file_from_offset.
# The GIL is let go once; the memory must stay in place until the call returns.
cdef object columns_from_pointers(
    const uint8_t **records,
    const int32_t *sizes,
    const int64_t *phy_offsets,
    Py_ssize_t count,
    object columns,
    bint check_crc=*,
    str path=*,
    int64_t file_from_offset=*,
)
