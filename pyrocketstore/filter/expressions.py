"""The tree of a filter, and its value for one message.

A value is True, False, None (the NULL of SQL), a text or a number. Each node has the kind of its
value, and a comparison is chosen by the kinds of both sides when the tree is made.

Source: RocketMQ 4.9.3 ComparisonExpression, LogicExpression, UnaryExpression and
ConstantExpression.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from pyrocketstore.arguments.scalars import exact_text
from pyrocketstore.filter.java_numbers import (
    NotANumber,
    double_of,
    int32_of,
    int64_of,
    java_order,
)

Value: TypeAlias = bool | int | float | str | None
Properties: TypeAlias = Mapping[str, str]
#: A comparison of two values that are not None. It raises NotANumber where 4.9.3 raises.
Test: TypeAlias = Callable[[Any, Any], bool]


class Kind(enum.Enum):
    """The type of a value in Java; NOTHING is always None."""

    TEXT = "a string"
    INT = "an int"
    LONG = "a long"
    DOUBLE = "a double"
    BOOL = "a condition"
    NOTHING = "NULL"


#: How a text becomes comparable with a number.
CONVERSIONS: dict[Kind, Callable[[str], float]] = {
    Kind.INT: int32_of,
    Kind.LONG: int64_of,
    Kind.DOUBLE: double_of,
}


class Node:
    """One part of a filter; nothing changes it."""

    __slots__ = ("depth", "kind")

    depth: int

    def __init__(self, kind: Kind, *parts: Node) -> None:
        self.kind = kind
        self.depth = 1 + max((part.depth for part in parts), default=0)

    def __deepcopy__(self, memo: object) -> Node:
        """Return the node itself: lark copies nodes when it lists the expected tokens."""
        return self

    def value(self, properties: Properties) -> Any:
        """Return the value for a message. Raises NotANumber where 4.9.3 raises."""
        raise NotImplementedError


class Property(Node):
    """A property by its name: its text, or None."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        super().__init__(Kind.TEXT)
        self.name = name

    def value(self, properties: Properties) -> str | None:
        """Return the text, or None. Raises StoreTypeError: it is not a str."""
        text = properties.get(self.name)
        if text is None or type(text) is str:
            return text
        return exact_text(f"property {self.name}", text)


class Literal(Node):
    """A number, a text, TRUE, FALSE or NULL, which the text of the filter has."""

    __slots__ = ("constant",)

    def __init__(self, kind: Kind, constant: Value) -> None:
        super().__init__(kind)
        self.constant = constant

    def value(self, properties: Properties) -> Value:
        """Return the constant."""
        return self.constant


class Negative(Node):
    """A unary minus: the negative number, and None for everything else."""

    __slots__ = ("operand",)

    def __init__(self, operand: Node) -> None:
        super().__init__(operand.kind if operand.kind in CONVERSIONS else Kind.NOTHING, operand)
        self.operand = operand

    def value(self, properties: Properties) -> float | None:
        """Return the number or None; the operand is evaluated and may raise NotANumber."""
        number = self.operand.value(properties)
        return None if self.kind is Kind.NOTHING else -number


class Condition(Node):
    """A node whose value is True, False or None."""

    __slots__ = ()

    def __init__(self, *parts: Node) -> None:
        super().__init__(Kind.BOOL, *parts)


class PropertyAsCondition(Condition):
    """A property as a condition: False, since its text is not a boolean; None without a value."""

    __slots__ = ("operand",)

    def __init__(self, operand: Property) -> None:
        super().__init__(operand)
        self.operand = operand

    def value(self, properties: Properties) -> bool | None:
        """Return False or None."""
        return None if self.operand.value(properties) is None else False


class Not(Condition):
    """NOT: None for None."""

    __slots__ = ("operand",)

    def __init__(self, operand: Node) -> None:
        super().__init__(operand)
        self.operand = operand

    def value(self, properties: Properties) -> bool | None:
        """Return the opposite, or None. Raises as the operand."""
        answer = self.operand.value(properties)
        return None if answer is None else not answer


class AllOf(Condition):
    """AND of two or more conditions, in their order, up to the first False."""

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Node, ...]) -> None:
        super().__init__(*parts)
        self.parts = parts

    def value(self, properties: Properties) -> bool | None:
        """Return False, None or True. Raises as the first part that raises and is evaluated."""
        result: bool | None = True
        for part in self.parts:
            answer = part.value(properties)
            if answer is None:
                result = None
            elif not answer:
                return False
        return result


class AnyOf(Condition):
    """OR of two or more conditions, in their order, up to the first True."""

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Node, ...]) -> None:
        super().__init__(*parts)
        self.parts = parts

    def value(self, properties: Properties) -> bool | None:
        """Return True, None or False. Raises as the first part that raises and is evaluated."""
        result: bool | None = False
        for part in self.parts:
            answer = part.value(properties)
            if answer is None:
                result = None
            elif answer:
                return True
        return result


class IsNull(Condition):
    """IS NULL: never None."""

    __slots__ = ("operand",)

    def __init__(self, operand: Node) -> None:
        super().__init__(operand)
        self.operand = operand

    def value(self, properties: Properties) -> bool:
        """Return whether the operand is None. Raises as the operand."""
        return self.operand.value(properties) is None


class IsIn(Condition):
    """IN over texts: exact comparison, no conversion."""

    __slots__ = ("operand", "texts")

    def __init__(self, operand: Property, texts: frozenset[str]) -> None:
        super().__init__(operand)
        self.operand = operand
        self.texts = texts

    def value(self, properties: Properties) -> bool | None:
        """Return whether the text is one of the list, or None without a text."""
        text = self.operand.value(properties)
        return None if text is None else text in self.texts


class Comparison(Condition):
    """Two values and a relation."""

    __slots__ = ("left", "right", "test")

    def __init__(self, left: Node, right: Node, test: Test) -> None:
        super().__init__(left, right)
        self.left, self.right, self.test = left, right, test


class Equal(Comparison):
    """`=`: True also where both sides are None, and False where only the right one is."""

    __slots__ = ()

    def __init__(self, left: Node, right: Node) -> None:
        super().__init__(left, right, _equality(left.kind, right.kind))

    def value(self, properties: Properties) -> bool | None:
        """Return the answer. Raises NotANumber where a text does not convert."""
        return self.answer(self.left.value(properties), self.right.value(properties))

    def answer(self, left: Value, right: Value) -> bool | None:
        """Return the answer for two values. Raises as `value`."""
        if left is None:
            return True if right is None else None
        return False if right is None else self.test(left, right)


class Order(Comparison):
    """`<`, `<=`, `>` or `>=`: None where a side is None. Two texts are compared as doubles."""

    __slots__ = ("relation",)

    def __init__(self, left: Node, right: Node, relation: Callable[[Any, Any], bool]) -> None:
        super().__init__(left, right, _order(left.kind, right.kind, relation))
        self.relation = relation

    def value(self, properties: Properties) -> bool | None:
        """Return the answer. Raises NotANumber where a text does not convert."""
        left = self.left.value(properties)
        if left is None:
            return None  # 4.9.3 does not evaluate the right side then
        right = self.right.value(properties)
        return None if right is None else self.test(left, right)

    def answer(self, left: Value, right: Value) -> bool | None:
        """Return the answer for two values. Raises as `value`."""
        return None if left is None or right is None else self.test(left, right)


def _equality(left: Kind, right: Kind) -> Test:
    """The `=` of two kinds; both values are there."""
    kinds = {left, right}
    if Kind.NOTHING in kinds:
        return operator.eq  # never called: one side is always None
    if left is right:
        return operator.eq
    if left is Kind.BOOL and right is Kind.TEXT:
        return _impossible
    if left is Kind.TEXT and right is Kind.BOOL:
        return _is_text_of
    if Kind.BOOL in kinds:
        return _unequal
    return _converted(left, right, operator.eq)


def _order(left: Kind, right: Kind, relation: Test) -> Test:
    """One of the other relations; both values are there, and neither is a boolean."""
    if left is right is Kind.TEXT:
        return lambda a, b: relation(java_order(double_of(a), double_of(b)), 0)
    return _converted(left, right, relation)


def _converted(left: Kind, right: Kind, relation: Test) -> Test:
    """Compare numbers, after a text on one side has become the kind of number of the other."""
    if left is Kind.TEXT and right in CONVERSIONS:
        convert = CONVERSIONS[right]
        if right is Kind.DOUBLE:  # the text may be NaN
            return lambda a, b: relation(java_order(convert(a), b), 0)
        return lambda a, b: relation(convert(a), b)
    if right is Kind.TEXT and left in CONVERSIONS:
        convert = CONVERSIONS[left]
        if left is Kind.DOUBLE:
            return lambda a, b: relation(java_order(a, convert(b)), 0)
        return lambda a, b: relation(a, convert(b))
    if Kind.DOUBLE in (left, right):  # a long loses digits, as in Java
        return lambda a, b: relation(float(a), float(b))
    return relation


def _is_text_of(text: str, flag: bool) -> bool:
    """A text as Boolean.valueOf reads it, compared with a boolean on its right."""
    return (text.lower() == "true") == flag


def _impossible(flag: bool, text: str) -> bool:
    """A boolean on the left of a text: 4.9.3 raises a ClassCastException."""
    raise NotANumber(text)


def _unequal(left: Value, right: Value) -> bool:
    """A boolean and a number."""
    return False
