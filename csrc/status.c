/* Texts for status values. */
#include "rocketstore.h"

const char *rs_status_name(int status) {
    switch (status) {
    case RS_OK: return "ok";
    case RS_BLANK: return "end-of-file filler (BLANK)";
    case RS_END: return "never written (zeros)";
    case RS_TORN: return "torn: the record continues past the last available byte";
    case RS_BAD_MAGIC: return "bad magic code";
    case RS_BAD_CRC: return "body CRC does not match";
    case RS_BAD_SIZE: return "invalid length";
    case RS_BAD_OFFSET: return "stored physicalOffset differs from the position of the record";
    case RS_BAD_PROPERTIES: return "properties text is torn";
    case RS_OTHER_QUEUE: return "the record belongs to another queue or queue offset";
    case RS_END_OF_FILE: return "end of file";
    case RS_NEED_FILE: return "no file to write to";
    case RS_REPEAT: return "already written";
    case RS_FULL: return "index file is full";
    case RS_NEED_PYTHON: return "uncommon case";
    case RS_RETRY: return "state has changed";
    case RS_IO_ERROR: return "system call failed";
    case RS_NO_MEMORY: return "out of memory";
    case RS_TOO_LARGE: return "longer than maxMessageSize";
    case RS_CLOSED: return "closed";
    case RS_BUSY: return "the put lock is held";
    default: return "unknown status";
    }
}
