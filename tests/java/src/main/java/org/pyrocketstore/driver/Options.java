package org.pyrocketstore.driver;

import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;

/** The words behind the path: NAME=VALUE, or NAME alone for "true". */
final class Options {
    private final Map<String, String> values = new LinkedHashMap<>();

    static Options parse(List<String> words) {
        Options options = new Options();
        for (String word : words) {
            int equals = word.indexOf('=');
            if (equals < 0) {
                options.values.put(word, "true");
            } else {
                options.values.put(word.substring(0, equals), word.substring(equals + 1));
            }
        }
        return options;
    }

    boolean has(String name) {
        return values.containsKey(name);
    }

    String text(String name, String otherwise) {
        return values.getOrDefault(name, otherwise);
    }

    String required(String name) {
        String value = values.get(name);
        if (value == null) {
            throw new IllegalArgumentException(name + "= is missing");
        }
        return value;
    }

    int number(String name, int otherwise) {
        return values.containsKey(name) ? Integer.parseInt(values.get(name)) : otherwise;
    }

    long longNumber(String name, long otherwise) {
        return values.containsKey(name) ? Long.parseLong(values.get(name)) : otherwise;
    }

    /** All of them, as the property file that 4.9.3 would have read. */
    Properties properties() {
        Properties properties = new Properties();
        properties.putAll(values);
        return properties;
    }

    /** Where the answer goes: the file that out= names, or standard output. */
    PrintStream output() throws IOException {
        OutputStream target = has("out") ? new FileOutputStream(required("out")) : System.out;
        return new PrintStream(new java.io.BufferedOutputStream(target, 1 << 16), false, "UTF-8");
    }
}
