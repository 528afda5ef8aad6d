"""The operating system: `Env` and its C table of functions, threads, disk space, stall warnings.

`env.py` and `_env.pyx` are the only modules that call the operating system; every other module
receives an `Env` from its caller, so that a test can simulate each system call. The folder also
holds service threads, the shield against signal handlers, and the state of a store (open, closed or
dead), which its parts share. No module of this folder knows the format of a file.
"""
