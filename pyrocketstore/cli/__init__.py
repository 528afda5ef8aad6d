"""The `pyrocketstore` command: look into a store directory without changing it."""
