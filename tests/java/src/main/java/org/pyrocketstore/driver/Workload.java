package org.pyrocketstore.driver;

import com.sun.management.OperatingSystemMXBean;
import java.io.File;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Stream;

/** One kind of work, cut into units of equal size; only a part of each unit is timed. */
abstract class Workload {
    static final String TOPIC = "T";
    static final int QUEUES = 4;

    final String path;
    final Options options;
    final int count;
    final int bodySize;

    Workload(String path, Options options) {
        this.path = path;
        this.options = options;
        this.count = options.number("count", 100_000);
        this.bodySize = options.number("body", 1024);
    }

    /** What was done in the timed part, and a number that both sides must agree on. */
    static final class Result {
        final long count;
        final long bytes;
        final double seconds;
        final long answer;
        /** Processor time of the whole process in the timed part; negative where nobody asked. */
        double cpuSeconds = -1;
        /** Bytes of the records that the queues name; negative where nobody looked. */
        long logBytes = -1;
        /** Percentiles in microseconds by name; empty where nobody asked. */
        final Map<String, Double> latencies = new TreeMap<>();

        Result(long count, long bytes, long startNanos, long endNanos, long answer) {
            this.count = count;
            this.bytes = bytes;
            this.seconds = (endNanos - startNanos) / 1e9;
            this.answer = answer;
        }
    }

    void prepare() throws Exception {
    }

    abstract Result unit() throws Exception;

    /** Ends what `prepare` has started. */
    void close() throws Exception {
    }

    /** Whether a unit has no part that is not timed, so that its processor time is the whole's. */
    boolean isTimedWhole() {
        return false;
    }

    /** Adds the percentiles of sorted times, of which so many are a microsecond. */
    static void addPercentiles(Result result, long[] sorted, double inMicrosecond) {
        result.latencies.put("p50", percentile(sorted, 50) / inMicrosecond);
        result.latencies.put("p99", percentile(sorted, 99) / inMicrosecond);
        result.latencies.put("p99.9", percentile(sorted, 99.9) / inMicrosecond);
        result.latencies.put("max", percentile(sorted, 100) / inMicrosecond);
    }

    /** The smallest time that so many percent of all do not exceed. */
    private static long percentile(long[] sorted, double percent) {
        return sorted[(int) Math.ceil((sorted.length - 1) * percent / 100)];
    }

    /** Processor nanoseconds of this process until now. */
    static long cpuNanos() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
            .getProcessCpuTime();
    }

    static void removeTree(File root) throws IOException {
        if (!root.exists()) {
            return;
        }
        try (Stream<Path> paths = Files.walk(root.toPath())) {
            paths.sorted(Comparator.reverseOrder()).map(Path::toFile).forEach(File::delete);
        }
    }
}
