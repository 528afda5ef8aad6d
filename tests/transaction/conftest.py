"""The stores of these tests begin at 0 or far from it, as the seed chooses."""

from support.far_stores import anywhere

__all__ = ["anywhere"]
