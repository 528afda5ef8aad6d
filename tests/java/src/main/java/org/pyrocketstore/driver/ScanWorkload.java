package org.pyrocketstore.driver;

import java.nio.ByteBuffer;
import org.apache.rocketmq.store.CommitLog;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.DispatchRequest;
import org.apache.rocketmq.store.SelectMappedBufferResult;

/** Walks the whole commit log as recovery does, bodies checked against their CRC. */
final class ScanWorkload extends Workload {
    private DefaultMessageStore store;

    ScanWorkload(String path, Options options) {
        super(path, options);
    }

    @Override
    void prepare() throws Exception {
        store = Stores.openLoaded(path, options);
    }

    @Override
    boolean isTimedWhole() {
        return true;
    }

    @Override
    Result unit() {
        CommitLog log = store.getCommitLog();
        long end = store.getMaxPhyOffset();
        long at = store.getMinPhyOffset();
        long messages = 0;
        long bytes = 0;
        long start = System.nanoTime();
        while (at < end) {
            SelectMappedBufferResult file = log.getData(at);
            ByteBuffer buffer = file.getByteBuffer();
            boolean rolled = false;
            while (at < end && !rolled) {
                DispatchRequest record = log.checkMessageAndReturnSize(buffer, true);
                if (!record.isSuccess()) {
                    throw new IllegalStateException("bad record at " + at);
                }
                rolled = record.getMsgSize() == 0;
                if (rolled) {
                    at = log.rollNextFile(at);
                } else {
                    at += record.getMsgSize();
                    bytes += record.getMsgSize();
                    messages++;
                }
            }
            file.release();
        }
        return new Result(messages, bytes, start, System.nanoTime(), messages);
    }
}
