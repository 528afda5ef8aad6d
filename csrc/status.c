/* Names for verdicts. */
#include "rocketstore.h"

const char *rs_status_name(int status) {
    switch (status) {
    case RS_OK: return "ok";
    case RS_BLANK: return "end-of-file filler (BLANK)";
    case RS_END: return "never written (zeros)";
    case RS_TORN: return "torn: the record goes on past the bytes that are there";
    case RS_BAD_MAGIC: return "bad magic code";
    case RS_BAD_CRC: return "body CRC does not match";
    case RS_BAD_SIZE: return "impossible length";
    case RS_BAD_OFFSET: return "stored physicalOffset is not where the record lies";
    case RS_BAD_PROPERTIES: return "properties are torn";
    case RS_OTHER_QUEUE: return "the record is of another queue or queue offset";
    case RS_END_OF_FILE: return "end of file";
    case RS_NEED_FILE: return "no file to write to";
    case RS_REPEAT: return "already there";
    case RS_FULL: return "index file is full";
    case RS_NEED_PYTHON: return "uncommon case";
    case RS_RETRY: return "state has changed";
    case RS_IO_ERROR: return "system call failed";
    case RS_NO_MEMORY: return "out of memory";
    case RS_TOO_LARGE: return "longer than maxMessageSize";
    case RS_CLOSED: return "closed";
    case RS_BUSY: return "the put lock is held";
    default: return "unknown verdict";
    }
}
