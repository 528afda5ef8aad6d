package org.pyrocketstore.driver;

import java.util.Arrays;
import java.util.logging.LogManager;

/**
 * Runs the store of RocketMQ 4.9.3 for the tests and benchmarks of pyrocketstore.
 *
 * <pre>
 * put   DIR from=FILE [out=FILE] [records] [ending=clean|halt] [NAME=VALUE ...]
 * events DIR from=FILE [out=FILE] [NAME=VALUE ...]
 * dump  DIR [queries=FILE] [out=FILE] [started] [NAME=VALUE ...]
 * index FILE from=FILE [out=FILE] slots=N indexes=N [endPhyOffset=N] [endTimestamp=N]
 * filter - from=FILE [out=FILE]
 * config - from=FILE [out=FILE]
 * bench DIR what=NAME count=N [...]
 * consume NAMESRV group=NAME topics=A,B count=N [where=FILTER] [timeout=SECONDS]
 * produce NAMESRV from=FILE [compressOver=BYTES]
 * transact NAMESRV group=NAME from=FILE [answer=STATE] [checks=N] [timeout=SECONDS]
 * serve                                          (commands come in through standard input)
 * </pre>
 *
 * NAME is a property of MessageStoreConfig in its own spelling, or {@code config=FILE} names a
 * broker.conf that holds such lines. Exit codes: 0, or 3 when load() said no, or 7 after an
 * exception; a put with the option to halt ends with 9.
 */
public final class Driver {
    static final int EXIT_LOAD_FAILED = 3;
    static final int EXIT_EXCEPTION = 7;
    static final int EXIT_HALTED = 9;

    private Driver() {
    }

    public static void main(String[] arguments) {
        LogManager.getLogManager().reset();
        try {
            System.out.flush();
            Runtime.getRuntime().halt(run(arguments));
        } catch (Throwable problem) {
            problem.printStackTrace();
            Runtime.getRuntime().halt(EXIT_EXCEPTION);
        }
    }

    private static int run(String[] arguments) throws Exception {
        if (arguments.length == 1 && arguments[0].equals("serve")) {
            return ServeCommand.run();
        }
        if (arguments.length < 2) {
            throw new IllegalArgumentException("usage: put|dump|index|bench PATH [NAME=VALUE ...]");
        }
        String path = arguments[1];
        Options options = Options.parse(Arrays.asList(arguments).subList(2, arguments.length));
        switch (arguments[0]) {
            case "put":
                return PutCommand.run(path, options);
            case "events":
                return EventsCommand.run(path, options);
            case "dump":
                return DumpCommand.run(path, options);
            case "index":
                return IndexCommand.run(path, options);
            case "filter":
                return FilterCommand.run(options);
            case "config":
                return ConfigCommand.run(options);
            case "consume":
                return ClientCommand.consume(path, options);
            case "produce":
                return ClientCommand.produce(path, options);
            case "transact":
                return TransactCommand.run(path, options);
            case "bench":
                return BenchCommand.run(path, options);
            default:
                throw new IllegalArgumentException("no such mode: " + arguments[0]);
        }
    }
}
