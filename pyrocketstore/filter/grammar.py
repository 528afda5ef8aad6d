"""The grammar of a filter, and the parser that makes its tree.

The parser is LALR(1), made by the library lark, which is imported when the first filter is parsed.
It reads one token behind the expression, as 4.9.3 does: the rest of the text is ignored, whatever
it is.

Source: RocketMQ 4.9.3 SelectorParser.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from pyrocketstore.arguments.scalars import INT32_MAX, INT64_MAX
from pyrocketstore.display import shown
from pyrocketstore.errors import StoreFormatError
from pyrocketstore.filter.expressions import (
    AllOf,
    AnyOf,
    Equal,
    IsIn,
    IsNull,
    Kind,
    Literal,
    Negative,
    Node,
    Not,
    Order,
    Property,
    PropertyAsCondition,
)

if TYPE_CHECKING:
    from lark import Lark, Token

#: Levels of parentheses, NOT and signs in a text, and of nodes in its tree. A node calls its parts,
#: and Python allows 1000 calls within each other. 4.9.3 overflows its stack at 500 to 1000 levels
#: of parentheses.
LEVELS_MAX = 200

GRAMMAR = r"""
start: disjunction
?disjunction: conjunction | conjunction (OR conjunction)+ -> either
?conjunction: equality | equality (AND equality)+ -> both
?equality: relation
    | equality EQUAL relation -> equal
    | equality UNEQUAL relation -> unequal
    | equality IS NULL -> null
    | equality IS NOT NULL -> not_null
?relation: unary
    | relation (LESS | LESS_EQUAL | GREATER | GREATER_EQUAL) unary -> order
    | relation BETWEEN unary AND unary -> between
    | relation NOT BETWEEN unary AND unary -> not_between
    | relation IN _OPEN STRING (_COMMA STRING)* _CLOSE -> is_in
    | relation NOT IN _OPEN STRING (_COMMA STRING)* _CLOSE -> not_in
?unary: primary
    | PLUS unary -> positive
    | MINUS unary -> negative
    | NOT unary -> opposite
?primary: NAME -> name
    | STRING -> string
    | INTEGER -> integer
    | FLOAT -> float
    | TRUE -> true
    | FALSE -> false
    | NULL -> nothing
    | _OPEN disjunction _CLOSE

%declare NOT AND OR BETWEEN IN IS TRUE FALSE NULL NAME STRING INTEGER FLOAT
%declare EQUAL UNEQUAL LESS LESS_EQUAL GREATER GREATER_EQUAL PLUS MINUS _OPEN _CLOSE _COMMA
"""

#: A token, or what separates two tokens, which has no group.
_TOKEN = r"""[ \t\n\r\f]+ | /\*[^*]*+\*(?:\*|[^*/][^*]*+\*)*/
    | (?P<WORD>[A-Za-z_$][A-Za-z0-9_$]*)
    | (?P<STRING>'[^']*(?:''[^']*)*')
    | (?P<FLOAT>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)
    | (?P<INTEGER>0|[1-9][0-9]*[lL]?)
    | (?P<SYMBOL><>|<=|>=|[=<>+\-(),])"""
_PATTERN = re.compile(_TOKEN, re.VERBOSE)
_PATTERN_BEFORE_LINE_END = re.compile(rf"--[^\n\r]*+(?:\r\n|\n|\r) | {_TOKEN}", re.VERBOSE)
_KEYWORDS = frozenset("NOT AND OR BETWEEN IN IS TRUE FALSE NULL".split())
_SYMBOLS = {
    "=": "EQUAL",
    "<>": "UNEQUAL",
    "<": "LESS",
    "<=": "LESS_EQUAL",
    ">": "GREATER",
    ">=": "GREATER_EQUAL",
    "+": "PLUS",
    "-": "MINUS",
    "(": "_OPEN",
    ")": "_CLOSE",
    ",": "_COMMA",
}
_NAMES = {
    **{name: symbol for symbol, name in _SYMBOLS.items()},
    "NAME": "the name of a property",
    "STRING": "a string in single quotes",
    "INTEGER": "an integer",
    "FLOAT": "a decimal number",
    "$END": "the end of the text",
}
_PREFIXES = frozenset({"PLUS", "MINUS", "NOT"})
_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "LESS": operator.lt,
    "LESS_EQUAL": operator.le,
    "GREATER": operator.gt,
    "GREATER_EQUAL": operator.ge,
}


class Parsed(NamedTuple):
    """A filter: its tree, the properties that it names, and the end of what counts of its text."""

    condition: Node
    names: tuple[str, ...]
    end: int


class _RefusedError(Exception):
    """A reason why 4.9.3 refuses a filter, and where: a token or a position."""

    def __init__(self, where: Token | int, reason: str) -> None:
        super().__init__(reason)
        self.position = where if isinstance(where, int) else where.start_pos or 0
        self.reason = reason


def parse(text: str) -> Parsed:
    """Parse the text of a filter.

    Raises
    ------
    StoreFormatError: 4.9.3 refuses the text, or it has more than LEVELS_MAX levels. The message has
    the position, and what was expected there.
    """
    from lark.exceptions import UnexpectedToken

    parser = _parser().parse_interactive(text)
    names: dict[str, int] = {}
    levels = _Levels()
    found, end = None, len(text)
    try:
        for token in parser.iter_parse():
            levels.note(token)
            if token.type == "NAME":
                names.setdefault(str(token), token.start_pos or 0)
    except UnexpectedToken as problem:
        found, end = problem.token, problem.token.start_pos or 0
    except _RefusedError as problem:
        raise _refusal(text, problem.position, problem.reason) from None
    try:
        # A token that continues nothing ends the expression, unless the expression is unfinished.
        condition = parser.feed_eof()  # type: ignore[no-untyped-call]
    except UnexpectedToken:
        expected = sorted(_NAMES.get(name, name) for name in _accepted(parser))
        what = "the text ends" if found is None else f"{shown(str(found))} is not expected"
        reason = f"{what}; expected: {', '.join(expected)}"
        raise _refusal(text, end, reason) from None
    except _RefusedError as problem:
        raise _refusal(text, problem.position, problem.reason) from None
    read = tuple(name for name, position in names.items() if position < end)
    return Parsed(condition, read, end)


def _accepted(parser: Any) -> Iterable[str]:
    """The terminals that may come next, by a method of lark without types."""
    accepted: Iterable[str] = parser.accepts()
    return accepted


def _tokens(text: str, make: type[Token]) -> Iterator[Token]:
    """Yield the tokens of a text, the longest at each position. Raises _RefusedError."""
    # Behind the last end of a line, -- begins no comment. A search for the end at each -- would
    # take a time that grows with the square of the length.
    line_end = max(text.rfind("\n"), text.rfind("\r"))
    position = 0
    while position < len(text):
        pattern = _PATTERN_BEFORE_LINE_END if position < line_end else _PATTERN
        found = pattern.match(text, position)
        if found is None:
            raise _unreadable(text, position)
        if found.lastgroup is not None:
            token = found[0]
            kind = found.lastgroup
            if kind == "WORD":
                keyword = token.upper()
                kind = keyword if keyword in _KEYWORDS else "NAME"
            elif kind == "SYMBOL":
                kind = _SYMBOLS[token]
            yield make(kind, token, position)
        position = found.end()


def _unreadable(text: str, position: int) -> _RefusedError:
    """The reason why no token begins at a position."""
    if text[position] == "'":
        return _RefusedError(position, "the string that begins here has no closing quote")
    if text.startswith("/*", position):
        return _RefusedError(position, "the comment that begins here has no end")
    return _RefusedError(position, f"{shown(text[position])} is not part of the language")


def _refusal(text: str, position: int, reason: str) -> StoreFormatError:
    return StoreFormatError(f"SQL filter {shown(text)}, character {position + 1}: {reason}")


@functools.cache
def _parser() -> Lark:
    from lark import Lark, Token, Transformer, v_args
    from lark.lexer import Lexer

    # Both classes are made here because their bases are lark's. The parser calls the methods of
    # _Tree itself, so that lark makes no tree of its own.
    class _Lexer(Lexer):
        def __init__(self, _: object) -> None:
            pass

        def lex(self, text: str) -> Iterator[Token]:  # type: ignore[override]
            return _tokens(text, Token)

    methods = {name: value for name, value in vars(_Tree).items() if not name.startswith("__")}
    actions = v_args(inline=True)(type("_Actions", (Transformer,), methods))()
    return Lark(GRAMMAR, parser="lalr", lexer=_Lexer, transformer=actions)


class _Levels:
    """Counts open parentheses and the NOTs and signs before an operand, and bounds their number."""

    def __init__(self) -> None:
        self._level = self._base = 0
        self._bases: list[int] = []

    def note(self, token: Token) -> None:
        """Note the next token. Raises _RefusedError."""
        if token.type == "_OPEN":
            self._bases.append(self._base)
            self._level += 1
            self._base = self._level
        elif token.type in _PREFIXES:
            self._level += 1
        else:
            if token.type == "_CLOSE" and self._bases:
                self._base = self._bases.pop()
            self._level = self._base
        if self._level > LEVELS_MAX:
            raise _too_deep(token)


def _too_deep(token: Token) -> _RefusedError:
    return _RefusedError(token, f"the filter has more than {LEVELS_MAX} levels of nesting")


def _checked(node: Node, token: Token) -> Node:
    """Return a node that is not too deep; a node calls its parts."""
    if node.depth > LEVELS_MAX:
        raise _too_deep(token)
    return node


def _described(node: Node) -> str:
    """A node for an error, by what the text has in its place."""
    if isinstance(node, Property):
        return f"property {node.name}"
    if isinstance(node, Literal) and node.constant is not None:
        is_flag = node.kind is Kind.BOOL
        return str(node.constant).upper() if is_flag else shown(node.constant)
    return "a number" if isinstance(node, Negative) else node.kind.value


def _condition(node: Node, token: Token | int) -> Node:
    """A node where a condition belongs. Raises _RefusedError: it is a number or a string."""
    if node.kind is Kind.BOOL:
        return node
    if isinstance(node, Property):
        return PropertyAsCondition(node)
    raise _RefusedError(token, f"{_described(node)} is not a condition; compare it with something")


def _check_equal(left: Node, right: Node, token: Token) -> None:
    for node in (left, right):
        if isinstance(node, Literal) and node.constant is None:
            raise _RefusedError(token, f"NULL is equal to nothing; use {_NULL_TESTS}")
    are_constant = isinstance(left, Literal) and isinstance(right, Literal)
    if are_constant and left.kind is Kind.BOOL and right.kind is not Kind.BOOL:
        reason = f"{_described(left)} cannot be compared with {_described(right)}"
        raise _RefusedError(token, reason)


_NULL_TESTS = "IS NULL or IS NOT NULL"


def _order(left: Node, right: Node, name: str, token: Token) -> Node:
    """One of < <= > >=. Raises _RefusedError: a side is neither a property nor a number."""
    for node in (left, right):
        is_text = isinstance(node, Literal) and node.kind is Kind.TEXT
        if is_text or node.kind is Kind.BOOL:
            what = f"{_described(node)} has no order"
            raise _RefusedError(token, f"{what}; only properties and numbers are less or greater")
    return _checked(Order(left, right, _ORDERS[name]), token)


def _check_bounds(low: Node, high: Node, token: Token) -> None:
    """Raises _RefusedError: two constants of which the first is greater."""
    if not (isinstance(low, Literal) and isinstance(high, Literal)):
        return
    if low.kind is Kind.TEXT or high.kind is Kind.TEXT or Kind.BOOL in (low.kind, high.kind):
        return  # not bounds either: `_order` refuses them
    if Order(high, low, operator.lt).value({}):
        low_text, high_text = _described(low), _described(high)
        raise _RefusedError(token, f"BETWEEN {low_text} AND {high_text}: the first is greater")


def _joined(kind: type[AllOf | AnyOf], parts: tuple[Any, ...]) -> Node:
    """Conditions and the tokens between them, as one node; parts of the same kind are merged."""
    conditions: list[Node] = []
    for at in range(0, len(parts), 2):
        node = _condition(parts[at], parts[max(at - 1, 1)])
        conditions += node.parts if isinstance(node, kind) else [node]
    return _checked(kind(tuple(conditions)), parts[1])


def _is_in(operand: Node, token: Token, texts: tuple[Token, ...]) -> Node:
    if not isinstance(operand, Property):
        raise _RefusedError(token, f"{_described(operand)} IN: only a property can be in a list")
    return IsIn(operand, frozenset(map(_text_of, texts)))


def _text_of(token: str) -> str:
    return token[1:-1].replace("''", "'")


class _Tree:
    """Makes the nodes: one method for each alternative of the grammar."""

    def start(self, node: Node) -> Node:
        return _condition(node, 0)

    def either(self, *parts: Any) -> Node:
        return _joined(AnyOf, parts)

    def both(self, *parts: Any) -> Node:
        return _joined(AllOf, parts)

    def equal(self, left: Node, token: Token, right: Node) -> Node:
        _check_equal(left, right, token)
        return _checked(Equal(left, right), token)

    def unequal(self, left: Node, token: Token, right: Node) -> Node:
        _check_equal(left, right, token)
        return _checked(Not(Equal(left, right)), token)

    def null(self, operand: Node, token: Token, *_: Token) -> Node:
        return _checked(IsNull(operand), token)

    def not_null(self, operand: Node, token: Token, *_: Token) -> Node:
        return _checked(Not(IsNull(operand)), token)

    def order(self, left: Node, token: Token, right: Node) -> Node:
        return _order(left, right, token.type, token)

    def between(self, node: Node, token: Token, low: Node, _: Token, high: Node) -> Node:
        _check_bounds(low, high, token)
        parts = (
            _order(node, low, "GREATER_EQUAL", token),
            _order(node, high, "LESS_EQUAL", token),
        )
        return _checked(AllOf(parts), token)

    def not_between(
        self, node: Node, token: Token, _: Token, low: Node, __: Token, high: Node
    ) -> Node:
        parts = (_order(node, low, "LESS", token), _order(node, high, "GREATER", token))
        return _checked(AnyOf(parts), token)

    def is_in(self, operand: Node, token: Token, *texts: Token) -> Node:
        return _is_in(operand, token, texts)

    def not_in(self, operand: Node, _: Token, token: Token, *texts: Token) -> Node:
        return Not(_is_in(operand, token, texts))

    def positive(self, _: Token, operand: Node) -> Node:
        return operand

    def negative(self, token: Token, operand: Node) -> Node:
        return _checked(Negative(operand), token)

    def opposite(self, token: Token, operand: Node) -> Node:
        return _checked(Not(_condition(operand, token)), token)

    def name(self, token: Token) -> Node:
        return Property(str(token))

    def string(self, token: Token) -> Node:
        return Literal(Kind.TEXT, _text_of(token))

    def integer(self, token: Token) -> Node:
        digits = token.rstrip("lL")  # an L makes no long of a small number
        number = int(digits) if len(digits) <= len(str(INT64_MAX)) else INT64_MAX + 1
        if number > INT64_MAX:
            raise _RefusedError(token, f"{shown(str(token))} is greater than {INT64_MAX}")
        return Literal(Kind.INT if number <= INT32_MAX else Kind.LONG, number)

    def float(self, token: Token) -> Node:
        number = float(token)
        if number in (0.0, float("inf")):
            reason = "must be greater than 0" if number == 0.0 else "is greater than every double"
            raise _RefusedError(token, f"the decimal number {shown(str(token))} {reason}")
        return Literal(Kind.DOUBLE, number)

    def true(self, _: Token) -> Node:
        return Literal(Kind.BOOL, True)

    def false(self, _: Token) -> Node:
        return Literal(Kind.BOOL, False)

    def nothing(self, _: Token) -> Node:
        return Literal(Kind.BOOL, None)
