"""Many answers to one query: one for each group of rows, or for each value column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from qkv.table.answer import Answer, jsonable, records_to_arrow


class Answers(Mapping[Any, Any]):
    """An ordered mapping to answers, called by one or more `names`; print it."""

    def __init__(self, names: list[str], answers: dict[Any, Any], query: Mapping[str, Any]) -> None:
        self.names = names
        self.query = query
        self._answers = answers

    def labels(self, label: Any) -> dict[str, Any]:
        """What an answer is called by, under each of the names."""
        return dict(zip(self.names, label if len(self.names) > 1 else (label,), strict=True))

    def __getitem__(self, label: Any) -> Any:
        return self._answers[label]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._answers)

    def __len__(self) -> int:
        return len(self._answers)

    def __rich__(self) -> Any:
        from qkv.table.report import answers_as_rich

        return answers_as_rich(self)

    def __str__(self) -> str:
        from qkv.table.report import in_text

        return in_text(self.__rich__())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(map(repr, self._answers))}>"

    def _repr_html_(self) -> str:
        from qkv.table.report import answers_as_html

        return answers_as_html(self)


class ColumnAnswers(Answers):
    """The answers of several value columns, by name."""

    def __init__(self, answers: dict[str, Answer], query: Mapping[str, Any]) -> None:
        super().__init__(["column"], answers, query)

    def record(self) -> dict[str, Any]:
        """All answers as one row; what belongs to a column stands under `<column>.value` etc."""
        row: dict[str, Any] = {}
        for name, answer in self._answers.items():
            for field, entry in answer.record().items():
                row[field if field.startswith("query.") else f"{name}.{field}"] = entry
        return row

    def to_arrow(self) -> pa.Table:
        """All answers as a table of one row."""
        return records_to_arrow([self.record()])

    def to_dict(self) -> dict[str, Any]:
        """The answers as JSON has them."""
        return {name: answer.to_dict() for name, answer in self._answers.items()}


class GroupAnswers(Answers):
    """The answers of the groups in which any row has weight, by group, in their order.

    A group is called by its entry of the column that made it, by a tuple where several did.
    """

    def records(self) -> list[dict[str, Any]]:
        """A row for each group: what made it, then its answer."""
        return [
            {**self.labels(group), **answer.record()} for group, answer in self._answers.items()
        ]

    def to_arrow(self) -> pa.Table:
        """A row for each group: what made it, then its answer."""
        return records_to_arrow(self.records())

    def to_dict(self) -> dict[str, Any]:
        """The answers as JSON has them."""
        groups = [
            {"group": jsonable(self.labels(group)), "answer": answer.to_dict()}
            for group, answer in self._answers.items()
        ]
        return {"query": jsonable(dict(self.query)), "groups": groups}


#: What a query gives.
AnyAnswer: TypeAlias = Answer | ColumnAnswers | GroupAnswers
