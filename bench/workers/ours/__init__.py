"""The worker for pyrocketstore: the classes of its work by subject; `__main__` has their names."""
