package org.pyrocketstore.driver;

import java.io.File;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.store.index.IndexFile;

/**
 * Fills one index file as a list of tab separated lines says, and answers each with a line:
 * "put KEY PHY_OFFSET STORE_TIMESTAMP" and "select KEY MAX_NUM BEGIN END".
 */
final class IndexCommand {
    private IndexCommand() {
    }

    static int run(String path, Options options) throws Exception {
        File parent = new File(path).getAbsoluteFile().getParentFile();
        if (!parent.isDirectory() && !parent.mkdirs()) {
            throw new IllegalStateException("cannot make " + parent);
        }
        boolean existed = new File(path).exists();
        IndexFile index = new IndexFile(path, options.number("slots", 100),
            options.number("indexes", 400), options.longNumber("endPhyOffset", 0),
            options.longNumber("endTimestamp", 0));
        if (existed) {
            index.load();
        }
        try (PrintStream out = options.output()) {
            for (String line : Files.readAllLines(Paths.get(options.required("from")))) {
                out.println(answer(index, line.split("\t", -1)));
            }
        }
        index.flush();
        return 0;
    }

    private static JsonLine answer(IndexFile index, String[] parts) {
        if (parts[0].equals("put")) {
            return new JsonLine().put("put",
                index.putKey(parts[1], Long.parseLong(parts[2]), Long.parseLong(parts[3])));
        }
        List<Long> found = new ArrayList<>();
        index.selectPhyOffset(found, parts[1], Integer.parseInt(parts[2]),
            Long.parseLong(parts[3]), Long.parseLong(parts[4]), false);
        return new JsonLine().put("select", found);
    }
}
