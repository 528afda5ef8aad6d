"""Helpers of all tests: plain readers to compare with, stores that are filled or damaged, system
calls that a test replaces, and the real RocketMQ 4.9.3.

Test modules import helpers from here, or from a helper beside them, and never from each other.
"""
