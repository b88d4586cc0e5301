"""The first run of a formula, on probes whose sizes tell their axes apart.

The probes' queries and keys are as many as two primes that no other axis is a multiple of, so an
axis of that size is theirs. Others get an identity when they first meet a pair: those that the
score still has are leading axes, those that were summed over are features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from qkv.formula.program import Graph, Node, Slot, ordered
from qkv.formula.traced import (
    QUERY,
    Session,
    Traced,
    broadcast,
    leaves,
    name_of,
    refuse,
    sizes_of,
)

#: More operations than this are a loop that was written out.
MOST_NODES = 400
#: Numbers of pairs start at 0, those of tokens here.
FIRST_TOKEN = 1_000_000


class Axis:
    """An axis of a pair; what was two may turn out to be one."""

    def __init__(self) -> None:
        self._same: Axis | None = None

    @property
    def one(self) -> Axis:
        """What stands for this axis and all that are the same."""
        return self if self._same is None else self._same.one

    def unite(self, other: Axis) -> None:
        if self.one is not other.one:
            other.one._same = self.one


QUERIES, KEYS = Axis(), Axis()
Axes = tuple[Axis | None, ...]  # None: of size 1


class Step(NamedTuple):
    """One thing that a session was told of: what must come again for a program to serve."""

    what: str
    details: tuple[Any, ...]


class Source(NamedTuple):
    """A tensor that enters the program: how its axes lie, in the order lead, token, features."""

    kind: str
    lead: tuple[int | None, ...]  # for each leading axis of the scores the tensor's own, if any
    token: int | None
    feature: int | None


class Recorder(Session):
    """Keeps all steps, and draws the graph of the program."""

    def __init__(self, query: Tensor, key: Tensor) -> None:
        self.steps: list[Step] = []
        self.results: list[int] = []  # the number of what each step gave
        self.uses: list[int] = []  # the inputs that operands became, in order
        self._numbers: dict[Any, int] = {}
        self._nodes: list[Node] = []
        self._axes: list[Axes] = []
        self.graph = Graph()
        #: For each input: the number of its tensor, and its axes; or a constant.
        self.inputs: list[tuple[int, Axes] | None] = []
        self._known: dict[tuple[int, Axes], Node] = {}
        self.primes = query.shape[-2], key.shape[-2]
        self.features: list[Axis] = []  # that reductions are over
        super().__init__(query, key)

    def token_call(self, func: Any, args: Any, kwargs: Any, result: Tensor, part: int) -> int:
        described = (func, *describe(self, args), *describe(self, kwargs), part)
        self.steps.append(Step("token", described))
        is_query = leaves((args, kwargs))[0].side == QUERY
        prime = self.primes[0] if is_query else self.primes[1]
        if not any(size % prime == 0 and size for size in result.shape):
            which = "queries" if is_query else "keys"
            raise refuse(
                f"{name_of(func).strip('_')} over all {which} makes a score depend on other pairs"
            )
        key: tuple[Any, ...] = name_of(func), repr(described[1:])
        if "float" in described:  # numbers that are equal now may differ in another call
            key = (*key, len(self.results))
        number = self._numbers.setdefault(key, FIRST_TOKEN + len(self._numbers))
        self.results.append(number)
        return number

    def elementwise(self, op: str, *operands: Any) -> Traced:
        self.steps.append(Step("elementwise", (op, *(self.operand(x) for x in operands))))
        sizes = broadcast([sizes_of(x) for x in operands])
        axes = self._common_axes(operands, len(sizes))
        args = [self._node(x, axes) for x in operands]
        return self._new_node(op, args, axes, sizes)

    def operand(self, x: Any) -> Any:
        return describe_operand(self, x)

    def reduce(self, op: str, x: Any, dims: tuple[int, ...], keepdim: bool) -> Traced:
        self.steps.append(Step("reduce", (op, self.operand(x), dims, keepdim)))
        if not isinstance(x, Traced) or x.held is not None:
            raise refuse(f"{op} of tokens met a pair")
        axes, sizes, node = self._axes[x.number], x.sizes, self._nodes[x.number]
        gone = [axes[d] for d in dims if axes[d] is not None]
        for axis in gone:
            if axis in (QUERIES, KEYS):
                which = "queries" if axis is QUERIES else "keys"
                raise refuse(f"{op} over all {which} makes a score depend on other pairs")
        kept = [i for i in range(len(sizes)) if i not in dims or keepdim]
        new_axes = tuple(None if i in dims else axes[i] for i in kept)
        new_sizes = tuple(1 if i in dims else sizes[i] for i in kept)
        if len(gone) > 1:
            raise refuse(f"{op} over two axes of features at once is not supported")
        if not gone:  # of one number: itself
            return self._known_pair(node, new_axes, new_sizes)
        [axis] = gone
        assert axis is not None
        self.features.append(axis)
        place = len(self.features) - 1
        total = self._make("sum" if op == "mean" else op, [node], place)
        if op == "mean":
            total = self._make("div", [total, self._make("size", [], place)], None)
        return self._known_pair(total, new_axes, new_sizes)

    def rearrange(self, x: Traced, order: tuple[int | None, ...]) -> Traced:
        self.steps.append(Step("rearrange", (self.operand(x), order)))
        axes = self._axes[x.number]
        dropped = set(range(len(axes))) - {i for i in order if i is not None}
        if any(axes[i] is not None for i in dropped):
            raise refuse("a part of the features of a pair is not supported")
        moved = self._known_pair(
            self._nodes[x.number],
            tuple(None if i is None else axes[i] for i in order),
            tuple(1 if i is None else x.sizes[i] for i in order),
        )
        x.shared = moved.shared = True  # type: ignore[attr-defined]
        return moved

    # Nodes

    def _make(self, op: str, args: list[Node], detail: int | None) -> Node:
        # Axes of features are told apart when the program is made: here a node has none.
        return self.graph._once(Node(op, tuple(args), detail, None))

    def _new_node(self, op: str, args: list[Node], axes: Axes, sizes: tuple[int, ...]) -> Traced:
        return self._known_pair(self._make(op, args, None), axes, sizes)

    def _known_pair(self, node: Node, axes: Axes, sizes: tuple[int, ...]) -> Traced:
        if len(self._nodes) > MOST_NODES:
            raise refuse(f"it takes more than {MOST_NODES} operations")
        self._nodes.append(node)
        self._axes.append(axes)
        self.results.append(len(self._nodes) - 1)
        return self.pair(sizes, len(self._nodes) - 1)

    def _common_axes(self, operands: Any, count: int) -> Axes:
        common: list[Axis | None] = []
        for place in range(1, count + 1):
            held: Axis | None = None
            unknown = 1
            for x in operands:
                sizes = sizes_of(x)
                if len(sizes) < place or sizes[-place] == 1:
                    continue
                if isinstance(x, Traced) and x.held is None:
                    axis = self._axes[x.number][-place]
                    if held is not None and axis is not None:
                        held.unite(axis)
                    held = axis
                elif sizes[-place] == self.primes[0]:
                    held = QUERIES
                elif sizes[-place] == self.primes[1]:
                    held = KEYS
                else:
                    unknown = sizes[-place]
            if held is None and unknown != 1:
                held = Axis()
            common.append(held)
        return tuple(reversed(common))

    def _node(self, x: Any, axes: Axes) -> Node:
        if isinstance(x, Traced) and x.held is None:
            return self._nodes[x.number]
        if not isinstance(x, Tensor):
            self.inputs.append(None)
            self.uses.append(len(self.inputs) - 1)
            return self.graph.input(len(self.inputs) - 1, None)
        sizes = sizes_of(x)
        if not isinstance(x, Traced) and x.is_complex():
            raise refuse("complex numbers have no kernel")
        axes_of_x = tuple(
            None if size == 1 else axes[len(axes) - len(sizes) + i] for i, size in enumerate(sizes)
        )
        if QUERIES in axes_of_x and KEYS in axes_of_x:
            raise refuse("a tensor with a number for every pair is no formula; add it as a mask")
        number = x.number if isinstance(x, Traced) else self.plain(x)
        known = self._known.get((number, axes_of_x))
        if known is None:
            self.inputs.append((number, axes_of_x))
            known = self._known[number, axes_of_x] = self.graph.input(len(self.inputs) - 1, None)
        self.uses.append(int(known.detail or 0))
        return known

    # The program

    def finish(self, result: Any, batch: int) -> Drawn:
        """The program of a formula that gave this result, for so many leading axes."""
        if not isinstance(result, Traced) or result.held is not None:
            raise refuse("its scores do not depend on both query and key")
        axes = self._axes[result.number]
        if axes[-2:] != (QUERIES, KEYS) or len(axes) > batch + 2:
            raise refuse(f"its scores have the shape {result.sizes}, where (..., n, m) is expected")
        lead = [None] * (batch + 2 - len(axes)) + [axis and axis.one for axis in axes[:-2]]
        features = list(dict.fromkeys(axis.one for axis in self.features))
        if any(axis in features for axis in lead):
            raise refuse("it sums over an axis that its scores have")
        slots: list[Slot] = []
        sources: list[Source] = []
        places: list[int] = []  # of each input among the slots
        known: dict[Any, int] = {}
        for i, held in enumerate(self.inputs):
            identity = (
                None if held is None else (held[0], tuple(axis and axis.one for axis in held[1]))
            )
            place = known.setdefault(i if identity is None else identity, len(slots))
            places.append(place)
            if place == len(slots):
                slot, source = _slot(None if identity is None else identity[1], lead, features)
                slots.append(slot)
                sources.append(source)
        of_reduction = [features.index(axis.one) for axis in self.features]
        root = _with_axes(self._nodes[result.number], slots, places, of_reduction)
        uses = [places[use] for use in self.uses]
        return Drawn(root, slots, sources, len(features), uses)


class Drawn(NamedTuple):
    """The graph of a formula: its root, its slots and where they come from, …"""

    root: Node
    slots: list[Slot]
    sources: list[Source]
    axes: int  # … how many axes of features there are, …
    uses: list[int]  # … and the slots of its operands that are no pairs, in order


SEVERAL = "features of more than one axis meet; one is summed over at a time"
AGAIN = "a sum over features is used among features again"


def _slot(
    axes: Axes | None, lead: Sequence[Axis | None], features: list[Axis]
) -> tuple[Slot, Source]:
    if axes is None:
        return Slot("parameter", None, False), Source("constant", (), None, None)
    places = {axis: i for i, axis in enumerate(axes) if axis is not None}
    along = [axis for axis in places if axis not in (QUERIES, KEYS) and axis not in lead]
    if len(along) > 1 or any(axis not in features for axis in along):
        raise refuse(SEVERAL)
    leading = tuple(None if axis is None else places.get(axis) for axis in lead)
    kind = "query" if QUERIES in places else "key" if KEYS in places else "parameter"
    if kind == "parameter" and any(i is not None for i in leading):
        kind = "query"  # one for each head: each of its queries brings it along
    token = places.get(QUERIES, places.get(KEYS))
    if not along:
        return Slot(kind, None, True), Source(kind, leading, token, None)
    return Slot(kind, features.index(along[0]), True), Source(
        kind, leading, token, places[along[0]]
    )


def _with_axes(root: Node, slots: list[Slot], places: list[int], of_reduction: list[int]) -> Node:
    """The same graph, each node with the axis of features that it varies along."""
    graph = Graph()
    made: dict[Node, Node] = {}
    summed: dict[Node, bool] = {}  # whether a reduction was among what a node is made of
    for node in ordered(root):
        if node.op == "input":
            place = places[int(node.detail or 0)]
            copy = graph.input(place, slots[place].axis)
        elif node.op == "constant":
            copy = graph.constant(float(node.detail or 0))
        elif node.op == "size":
            copy = graph.node("size", detail=of_reduction[int(node.detail or 0)])
        else:
            args = [made[arg] for arg in node.args]
            along = {arg.axis for arg in args} - {None}
            if len(along) > 1:
                raise refuse(SEVERAL)
            if along and any(summed[arg] for arg in args):
                raise refuse(AGAIN)
            if node.op == "div" and not _differs(args[1], slots):
                # One division for all pairs.
                copy = graph.node("mul", args[0], graph.node("div", graph.constant(1.0), args[1]))
            elif node.op == "mul" and (squared := _squared_root(graph, *args)):
                copy = squared
            elif not node.is_reduction:
                copy = graph.node(node.op, *args)
            else:
                axis = of_reduction[int(node.detail or 0)]
                copy = _reduction(graph, node.op, args[0], axis)
        made[node] = copy
        summed[copy] = copy.is_reduction or any(summed[made[arg]] for arg in node.args)
    return made[root]


def _squared_root(graph: Graph, a: Node, b: Node) -> Node | None:
    """√x · √x, or c · √x · √x, without the roots of sums of squares that norms are made of."""
    if a is b and a.op == "root":
        return a.args[0]
    for product, root in ((a, b), (b, a)):
        if root.op == "root" and product.op == "mul" and root in product.args:
            factor = product.args[product.args[0] is root]
            return graph.node("mul", factor, root.args[0])
    return None


def _differs(node: Node, slots: list[Slot]) -> bool:
    """Whether a node is another for other pairs."""
    return any(
        each.op == "input" and slots[int(each.detail or 0)].kind != "parameter"
        for each in ordered(node)
    )


def _reduction(graph: Graph, op: str, body: Node, axis: int) -> Node:
    if body.axis is None:  # the same number along the whole axis
        size = graph.node("size", detail=axis)
        return graph.node("mul", body, size) if op == "sum" else body
    if body.axis != axis:
        raise refuse(SEVERAL)
    return graph.node(op, body, detail=axis)


def describe(session: Session, tree: Any) -> tuple[Any, ...]:
    """The arguments of a call on tokens, as far as they have to be the same."""
    if isinstance(tree, Traced):
        return ("traced", tree.number)
    if isinstance(tree, Tensor):
        return ("plain", session.plain(tree), tree.dim())
    if isinstance(tree, (tuple, list)):
        described: list[Any] = []
        for part in tree:
            described += describe(session, part)
        return tuple(described)
    if isinstance(tree, dict):
        return tuple(each for name in tree for each in (name, *describe(session, tree[name])))
    if isinstance(tree, slice):
        return ("slice", tree.start, tree.stop, tree.step)
    if isinstance(tree, float):
        return ("float",)
    return (tree,)


def describe_operand(session: Session, x: Any) -> Any:
    if isinstance(x, Traced):
        return ("pair" if x.held is None else "token", x.number, len(x.sizes))
    if isinstance(x, Tensor):
        return ("plain", session.plain(x), x.dim())
    return "number"
