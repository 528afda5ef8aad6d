"""Settings of a store: `MessageStoreConfig` with the defaults of 4.9.3, broker.conf, file sizes.

Properties files are read as Java reads them. The modules check settings and derive file sizes from
the files of a store. They start no thread and change no file.
"""
