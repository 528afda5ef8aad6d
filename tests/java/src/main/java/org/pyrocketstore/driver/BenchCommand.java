package org.pyrocketstore.driver;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * Measures one kind of work on demand, so that its rounds can alternate with another process's.
 * It answers {"ready": true} when prepared, then each line "round SECONDS" with one JSON line: the
 * unit of work is repeated until the timed part took that long. "quit" or the end of input ends it.
 */
final class BenchCommand {
    private BenchCommand() {
    }

    static int run(String path, Options options) throws Exception {
        Workload workload = workload(path, options);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        workload.prepare();
        say(new JsonLine().put("ready", true));
        String line;
        while ((line = input.readLine()) != null && !line.equals("quit")) {
            double least = Double.parseDouble(line.substring("round ".length()));
            say(round(workload, least));
        }
        workload.close();
        return 0;
    }

    private static JsonLine round(Workload workload, double leastSeconds) throws Exception {
        long count = 0;
        long bytes = 0;
        double seconds = 0;
        double cpu = 0;
        long answer = 0;
        long log = -1;
        int units = 0;
        Map<String, List<Double>> latencies = new TreeMap<>();
        do {
            long cpuStart = Workload.cpuNanos();
            Workload.Result result = workload.unit();
            if (workload.isTimedWhole()) {
                result.cpuSeconds = (Workload.cpuNanos() - cpuStart) / 1e9;
            }
            count += result.count;
            bytes += result.bytes;
            seconds += result.seconds;
            cpu += result.cpuSeconds;
            answer = result.answer;
            log = result.logBytes;
            units++;
            result.latencies.forEach((name, value) ->
                latencies.computeIfAbsent(name, unused -> new ArrayList<>()).add(value));
        } while (seconds < leastSeconds);
        JsonLine line = new JsonLine().put("count", count).put("bytes", bytes)
            .put("seconds", seconds).put("units", units).put("answer", answer);
        if (cpu >= 0) {
            line.put("cpu", cpu);
        }
        if (log >= 0) {
            line.put("log", log);
        }
        latencies.forEach((name, values) -> line.put(name, middle(name, values)));
        return line;
    }

    /** The median over the units of work, as Python's statistics has it; of maxima the largest. */
    private static double middle(String name, List<Double> values) {
        Collections.sort(values);
        int size = values.size();
        return name.equals("max")
            ? values.get(size - 1)
            : (values.get((size - 1) / 2) + values.get(size / 2)) / 2;
    }

    private static Workload workload(String path, Options options) {
        switch (options.required("what")) {
            case "put":
            case "batch":
            case "latency":
            case "aput":
                return new PutWorkload(path, options);
            case "transact":
                return new TransactWorkload(path, options);
            case "put_new":
                return new NewTopicsWorkload(path, options);
            case "get":
                return new GetWorkload(path, options);
            case "query":
                return new QueryWorkload(path, options);
            case "small":
                return new SmallReadWorkload(path, options);
            case "absent":
            case "old_window":
                return new KeyQueryWorkload(path, options);
            case "scan":
                return new ScanWorkload(path, options);
            case "rebuild":
            case "recover":
                return new RecoverWorkload(path, options);
            case "deliver":
            case "lateness":
                return new DelayedWorkload(path, options);
            case "poll":
                return new PollWorkload(path, options);
            case "flush_queues":
                return new FlushWorkload(path, options);
            case "open_killed":
                return new OpenKilledWorkload(path, options);
            case "open_queues":
                return new OpenWorkload(path, options);
            case "cq":
                return new QueueWorkload(path, options);
            case "index_put":
            case "index_select":
                return new IndexWorkload(path, options);
            default:
                throw new IllegalArgumentException("no such work: " + options.required("what"));
        }
    }

    private static void say(JsonLine line) {
        System.out.println(line);
        System.out.flush();
    }
}
