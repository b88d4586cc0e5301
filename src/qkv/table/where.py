"""Conditions on rows: parsed from text, checked against the columns, passed to a source.

A condition is a small tree. It is never evaluated as code nor pasted into SQL: each source builds
an expression of its own from it, in which values are literals with a type or parameters.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from qkv.table.columns import Kind, kind_of, parsed

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
#: A condition is a tree, which builders of expressions traverse recursively.
MOST_COMPARISONS = 200
_SPELLINGS = {"=": "==", "<>": "!="}
_TOKEN = re.compile(
    r"""\s*(?:(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    |(?P<text>'(?:[^']|'')*')
    |(?P<quoted>"(?:[^"]|"")*")
    |(?P<sign><=|>=|==|!=|<>|[<>=(),])
    |(?P<word>[^\W\d]\w*))""",
    re.VERBOSE,
)
_KEYWORDS = {"and", "or", "not", "in", "is", "null", "between", "true", "false"}


@dataclass(frozen=True)
class Compare:
    """A column against a value."""

    column: str
    sign: str
    value: Any

    def __str__(self) -> str:
        return f"{self.column} {self.sign} {self.value!r}"


@dataclass(frozen=True)
class OneOf:
    """A column among values."""

    column: str
    values: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.column} in ({', '.join(map(repr, self.values))})"


@dataclass(frozen=True)
class Missing:
    """A column that is null."""

    column: str

    def __str__(self) -> str:
        return f"{self.column} is null"


@dataclass(frozen=True)
class And:
    left: Condition
    right: Condition

    def __str__(self) -> str:
        return f"({self.left} and {self.right})"


@dataclass(frozen=True)
class Or:
    left: Condition
    right: Condition

    def __str__(self) -> str:
        return f"({self.left} or {self.right})"


@dataclass(frozen=True)
class Not:
    part: Condition

    def __str__(self) -> str:
        return f"not {self.part}"


Condition: TypeAlias = Compare | OneOf | Missing | And | Or | Not
#: The same as people give it: a sentence will do.
WhereLike: TypeAlias = str | Condition | pc.Expression | None


class Dialect(NamedTuple):
    """How a source writes expressions; comparisons, &, | and ~ are Python's in all of them."""

    column: Callable[[str], Any]
    value: Callable[[Any], Any]
    one_of: Callable[[Any, list[Any]], Any]
    missing: Callable[[Any], Any]


def build(condition: Condition, dialect: Dialect) -> Any:
    """The condition as an expression of the source's own kind."""
    match condition:
        case Compare(column, sign, value):
            return OPERATORS[sign](dialect.column(column), dialect.value(value))
        case OneOf(column, values):
            return dialect.one_of(dialect.column(column), list(values))
        case Missing(column):
            return dialect.missing(dialect.column(column))
        case And(left, right):
            return build(left, dialect) & build(right, dialect)
        case Or(left, right):
            return build(left, dialect) | build(right, dialect)
        case Not(part):
            return ~build(part, dialect)


def both_zeros(values: list[Any]) -> list[Any]:
    """The values with both −0.0 and 0.0, for sources that compare them by their bits."""
    has_zero = any(isinstance(value, float) and value == 0.0 for value in values)
    return [value for value in values if value != 0.0] + [0.0, -0.0] if has_zero else values


def both(left: Condition | None, right: Condition | None) -> Condition | None:
    """The conjunction of two conditions, of which None is always true."""
    if left is None or right is None:
        return left or right
    return And(left, right)


def columns_of(condition: Condition) -> set[str]:
    """The columns in a condition."""
    match condition:
        case And(left, right) | Or(left, right):
            return columns_of(left) | columns_of(right)
        case Not(part):
            return columns_of(part)
        case _:
            return {condition.column}


def condition_of(
    where: WhereLike, schema: pa.Schema, argument: str = "where"
) -> Condition | pc.Expression | None:
    """What rows must fulfil, as it was given or read from a sentence."""
    if isinstance(where, str):
        return parse(where, schema)
    if where is not None and not isinstance(where, (Condition, pc.Expression)):
        raise TypeError(
            f"{argument} must be a sentence or a pyarrow.compute.Expression; "
            f"got {type(where).__name__}"
        )
    return where


def parse(text: str, schema: pa.Schema) -> Condition:
    """A condition such as ``year >= 2020 and major in ('physics', 'history')``.

    Columns are words, or anything in double quotes; text and dates are in single quotes;
    ``between``, ``is null``, ``is not null``, ``and``, ``or``, ``not`` and parentheses are
    supported.
    """
    if len(text) > 10_000:
        raise ValueError(f"where must be shorter than 10,000 characters; got {len(text):,}")
    parser = _Parser(text, schema)
    condition = parser.either()
    parser.expect_end()
    return condition


class _Token(NamedTuple):
    kind: str
    text: str
    position: int


def _tokens(text: str) -> Iterator[_Token]:
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"where cannot be read at {text[position : position + 20]!r}")
        kind = match.lastgroup or ""
        token = match.group(kind)
        if kind == "word" and token.lower() in _KEYWORDS:
            kind, token = "keyword", token.lower()
        yield _Token(kind, token, position)
        position = match.end()
    yield _Token("end", "its end", end)


class _Parser:
    """Recursive descent: either, both, negation, comparison."""

    def __init__(self, text: str, schema: pa.Schema) -> None:
        self.tokens = list(_tokens(text))
        self.schema = schema
        self.place = 0
        self.depth = 0
        self.comparisons = 0

    def either(self) -> Condition:
        self.depth += 1
        if self.depth > 50:
            raise ValueError("where has more than 50 nested parentheses")
        condition = self._both()
        while self._accept("or"):
            condition = Or(condition, self._both())
        self.depth -= 1
        return condition

    def expect_end(self) -> None:
        if self._next.kind != "end":
            self._refuse("'and', 'or' or its end")

    def _both(self) -> Condition:
        condition = self._negation()
        while self._accept("and"):
            condition = And(condition, self._negation())
        return condition

    def _negation(self) -> Condition:
        flips = 0
        while self._accept("not"):
            flips += 1
        if self._accept("("):
            condition = self.either()
            self._expect(")")
        else:
            condition = self._comparison()
        return Not(condition) if flips % 2 else condition

    def _comparison(self) -> Condition:
        self.comparisons += 1
        if self.comparisons > MOST_COMPARISONS:
            raise ValueError(
                f"where has more than {MOST_COMPARISONS} comparisons; `in (…)` takes many values"
            )
        column = self._column()
        if self._accept("is"):
            negated = self._accept("not")
            self._expect("null")
            return Not(Missing(column)) if negated else Missing(column)
        if self._accept("between"):
            low = self._value(column)
            self._expect("and")
            return And(Compare(column, ">=", low), Compare(column, "<=", self._value(column)))
        negated = self._accept("not")
        if self._accept("in"):
            among = OneOf(column, self._values(column))
            return Not(among) if negated else among
        sign = _SPELLINGS.get(self._next.text, self._next.text)
        if negated or sign not in OPERATORS:
            self._refuse(f"a comparison after {column!r}")
        self.place += 1
        return Compare(column, sign, self._value(column))

    def _column(self) -> str:
        token = self._next
        if token.kind not in ("word", "quoted"):
            self._refuse("a column")
        self.place += 1
        quoted = token.kind == "quoted"
        name = token.text[1:-1].replace('""', '"') if quoted else token.text
        check_column(self.schema, name, "where")
        return name

    def _values(self, column: str) -> tuple[Any, ...]:
        self._expect("(")
        values = [self._value(column)]
        while self._accept(","):
            values.append(self._value(column))
        self._expect(")")
        return tuple(values)

    def _value(self, column: str) -> Any:
        token = self._next
        self.place += 1
        type = self.schema.field(column).type
        kind = kind_of(type)
        fitting = {
            "number": [Kind.NUMBER],
            "text": [Kind.TEXT, Kind.TIME],
            "keyword": [Kind.BOOLEAN],
        }.get(token.kind, [])
        if not fitting or (token.kind == "keyword" and token.text not in ("true", "false")):
            self.place -= 1
            self._refuse(f"a value for {column!r}")
        if kind not in fitting:
            raise ValueError(
                f"where compares column {column!r}, which holds {kind.value} ({type}), "
                f"with {token.text}"
            )
        text = token.text[1:-1].replace("''", "'") if token.kind == "text" else token.text
        return parsed(text, type, column)

    @property
    def _next(self) -> _Token:
        return self.tokens[self.place]

    def _accept(self, word: str) -> bool:
        if self._next.kind in ("keyword", "sign") and self._next.text == word:
            self.place += 1
            return True
        return False

    def _expect(self, word: str) -> None:
        if not self._accept(word):
            self._refuse(repr(word))

    def _refuse(self, expected: str) -> None:
        raise ValueError(f"where expects {expected}; got {self._next.text}")


def check_column(schema: pa.Schema, name: str, argument: str) -> None:
    """Raise ValueError unless there is exactly one column of this name."""
    import difflib

    count = len(schema.get_all_field_indices(name))
    if count == 1:
        return
    if count > 1:
        raise ValueError(f"{argument} names column {name!r}, of which there are {count}")
    close = difflib.get_close_matches(name, schema.names, n=1)
    some = ", ".join(f"{each:.80}" for each in schema.names[:20])  # a damaged file has odd names
    hint = f"did you mean {close[0]!r}?" if close else f"there are {some}"
    raise ValueError(f"{argument} names column {name!r}, which is not there; {hint}")
