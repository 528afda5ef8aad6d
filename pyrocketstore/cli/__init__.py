"""The `pyrocketstore` command: look into a store directory without changing it.

`store_command.py` has the command group; `commands.py` and `spark_commands.py` add commands to it,
and `app.py` imports both. `output.py` escapes output for the terminal. No command opens a store for
writing.
"""
