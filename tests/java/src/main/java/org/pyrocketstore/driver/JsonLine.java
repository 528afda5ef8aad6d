package org.pyrocketstore.driver;

import java.util.Map;
import java.util.TreeMap;

/** Writes one JSON object as one ASCII line without blanks, members in the order of the calls. */
final class JsonLine {
    private final StringBuilder text = new StringBuilder("{");
    private boolean first = true;

    JsonLine put(String name, String value) {
        name(name);
        if (value == null) {
            text.append("null");
        } else {
            string(value);
        }
        return this;
    }

    JsonLine put(String name, long value) {
        name(name).append(value);
        return this;
    }

    JsonLine put(String name, double value) {
        name(name).append(value);
        return this;
    }

    JsonLine put(String name, boolean value) {
        name(name).append(value);
        return this;
    }

    JsonLine put(String name, JsonLine value) {
        name(name).append(value);
        return this;
    }

    /** Members sorted by name; null counts as empty. */
    JsonLine put(String name, Map<String, String> values) {
        JsonLine inner = new JsonLine();
        if (values != null) {
            new TreeMap<>(values).forEach(inner::put);
        }
        return put(name, inner);
    }

    JsonLine put(String name, Iterable<Long> values) {
        name(name).append('[');
        String separator = "";
        for (Long value : values) {
            text.append(separator).append(value);
            separator = ",";
        }
        text.append(']');
        return this;
    }

    @Override
    public String toString() {
        return text + "}";
    }

    private StringBuilder name(String name) {
        if (!first) {
            text.append(',');
        }
        first = false;
        string(name);
        return text.append(':');
    }

    private void string(String value) {
        text.append('"');
        for (int i = 0; i < value.length(); i++) {
            char unit = value.charAt(i);
            if (unit == '"' || unit == '\\') {
                text.append('\\').append(unit);
            } else if (unit < 0x20 || unit > 0x7e) {
                text.append(String.format("\\u%04x", (int) unit));
            } else {
                text.append(unit);
            }
        }
        text.append('"');
    }
}
