"""Placeholder while being written."""


class TopicConfigFile:
    def __init__(self, env, path): ...
    def load(self): ...
    def ensure(self, topic, queue_id):
        return False

    def persist(self): ...
