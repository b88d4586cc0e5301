"""The Bahdanau translator: a recurrent network with attention to its source at every step."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from qkv.normalize import softmax
from qkv.similarity import Additive, Similarity, SimilarityLike, as_similarity, learned
from qkv.translate.data.vocabulary import PAD
from qkv.translate.models.base import Model, Step
from qkv.translate.models.cells import Cell, cell_of
from qkv.translate.models.dropout import Dropout
from qkv.translate.models.encoder_memory import EncoderMemory
from qkv.translate.models.manual_autograd import decode, read_both_ways
from qkv.translate.models.readout import readout_of


@dataclass(frozen=True)
class RNNConfig:
    """The sizes and choices of a :class:`Translator`.

    Args:
        embedding: the size of a token's vector.
        hidden: the size of the decoder's state, and of the encoder's in each direction.
        cell: the recurrent cell, "gru" or "lstm".
        similarity: how a state is compared with those of the encoder, by name; "additive" is
            Eq. 12.
        memory: "all" states of the encoder are attended to, or only its "last" ones, which is
            the translator without attention.
        readout: the layer before the output layer, "maxout" or "tanh".
        features: the size of the readout; None: half of `hidden`, or `embedding` where tied.
        tied: whether the output layer is the target's embedding.
        dropout: the share of embeddings, remembered states and features dropped in training.
    """

    embedding: int = 256
    hidden: int = 256
    cell: Literal["gru", "lstm"] = "gru"
    similarity: str = "additive"
    memory: Literal["all", "last"] = "all"
    readout: Literal["maxout", "tanh"] = "maxout"
    features: int | None = None
    tied: bool = False
    dropout: float = 0.3

    def __post_init__(self) -> None:
        if self.memory not in ("all", "last"):
            raise ValueError(f"memory must be 'all' or 'last'; got {self.memory!r:.80}")
        if self.tied and self.features not in (None, self.embedding):
            raise ValueError(
                f"features must be the embedding's {self.embedding} where they are tied; "
                f"got {self.features}"
            )

    @property
    def feature_count(self) -> int:
        if self.features is not None:
            return self.features
        return self.embedding if self.tied else max(1, self.hidden // 2)


class DecoderState(NamedTuple):
    """The decoder's state: one tensor (batch, n, hidden), or two for an LSTM."""

    parts: tuple[Tensor, ...]

    def select(self, sentences: Tensor, rows: Tensor) -> DecoderState:
        return DecoderState(tuple(part[sentences.unsqueeze(-1), rows] for part in self.parts))


class Translator(Model[EncoderMemory, DecoderState]):
    """c_t' = Σ_t α(h'_{t'−1}, h_t) h_t, Eq. 13, feeds the next state h'_t' and the next token.

    A bidirectional recurrent encoder gives the states h_t. At each step the decoder's last state
    h' is the query, the h_t are keys and values, and

        h'_t' = cell([e_t'; c_t'], h'_{t'−1}),      features_t' = readout([h'_t'; e_t'; c_t']),

    where e is the embedding of the last token. The similarity is any of qkv's; keys are prepared
    once for each sentence.

    The context c enters cell and readout by linear maps alone, and it is a mean of the h_t, so the
    maps are applied to the h_t, once for each sentence, and what they give is pooled at each step:
    W c = Σ α(h', h_t) W h_t.

    >>> import torch
    >>> from qkv.translate import RNNConfig, Translator
    >>> model = Translator(RNNConfig(embedding=16, hidden=32), source=100, target=90).eval()
    >>> memory = model.encode(torch.randint(4, 100, (2, 7)), torch.tensor([7, 5]))
    >>> step = model.step(memory, model.start(memory), tokens=torch.tensor([[2], [2]]))
    >>> model.logits(step.features).shape, step.weights.shape
    (torch.Size([2, 1, 90]), torch.Size([2, 1, 7]))

    Args:
        sizes: the sizes and choices.
        source: the number of source tokens; target: of target tokens.
        similarity: instead of the one named in `sizes`; such a model cannot be saved.
    """

    def __init__(
        self, sizes: RNNConfig, source: int, target: int, similarity: SimilarityLike = None
    ) -> None:
        super().__init__()
        states = 2 * sizes.hidden
        self.sizes = sizes
        self.own_similarity = similarity is not None
        self.source_embedding = nn.Embedding(source, sizes.embedding, padding_idx=PAD)
        self.target_embedding = nn.Embedding(target, sizes.embedding, padding_idx=PAD)
        encoder = {"gru": nn.GRU, "lstm": nn.LSTM}.get(sizes.cell)
        if encoder is None:
            raise ValueError(f"cell must be 'gru' or 'lstm'; got {sizes.cell!r:.80}")
        self.encoder = encoder(sizes.embedding, sizes.hidden, bidirectional=True, batch_first=True)
        self.bridge = nn.Linear(states, sizes.hidden)
        self.similarity, self.key_map = _comparison(
            similarity or sizes.similarity, sizes.hidden, states
        )
        self.cell: Cell = cell_of(sizes.cell, sizes.hidden)
        self.readout = readout_of(sizes.readout, sizes.hidden, sizes.feature_count)
        # The terms of a token and of a context, for the cell first and then for the readout.
        self.token = nn.Linear(sizes.embedding, self.cell.gates + self.readout.sums)
        self.context = nn.Linear(states, self.cell.gates + self.readout.sums, bias=False)
        self.output = nn.Linear(sizes.feature_count, target)
        self.dropout = Dropout(sizes.dropout)
        self._draw()

    def _draw(self) -> None:
        for embedding in (self.source_embedding, self.target_embedding):
            nn.init.normal_(embedding.weight, std=self.sizes.embedding**-0.5)
            with torch.no_grad():
                embedding.weight[PAD] = 0.0
        for name, weight in self.encoder.named_parameters():
            if "weight_hh" in name:
                nn.init.orthogonal_(weight)
        gates, inputs = self.cell.gates, self.sizes.hidden + self.sizes.embedding
        for weight in (self.token.weight, self.token.bias, self.context.weight):
            # As torch's own cells, and as a linear map of [h'; e; c].
            nn.init.uniform_(weight[:gates], *_within(self.sizes.hidden))
            nn.init.uniform_(weight[gates:], *_within(inputs + self.context.in_features))
        nn.init.uniform_(self.readout.hidden.weight, *_within(inputs + self.context.in_features))
        nn.init.zeros_(self.output.bias)
        if self.sizes.tied:
            self.output.weight = self.target_embedding.weight

    def encode(self, source: Tensor, lengths: Tensor) -> EncoderMemory:
        value, summary = self.values(source, lengths)
        positions = torch.arange(source.shape[1], device=source.device)
        allowed = (positions < lengths.unsqueeze(-1)).unsqueeze(1)
        keys = self.key_map(value)
        nobody = keys.new_empty(len(keys), 0, self.sizes.hidden)
        _, prepared = self.similarity.prepare(nobody, keys)
        return EncoderMemory(prepared, self.context(value), allowed, summary)

    def values(self, source: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """The encoder's states h_t of Eq. 13 (batch, s, c), and their summary."""
        embedded = self.dropout(self.source_embedding(source))
        states, summary = self._read(embedded, lengths)  # (batch, s, 2 hidden), (batch, 2 hidden)
        if self.sizes.memory == "last":
            states = summary.unsqueeze(1).expand(-1, source.shape[1], -1)  # wherever one looks
        return self.dropout(states), summary

    def _read(self, embedded: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """The encoder's states, and its last ones in either direction."""
        if isinstance(self.encoder, nn.GRU):
            return read_both_ways(self.encoder, embedded, lengths)
        packed = pack_padded_sequence(
            embedded, lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        states, (last, _) = self.encoder(packed)
        unpacked, _ = pad_packed_sequence(states, batch_first=True, total_length=embedded.shape[1])
        return unpacked, torch.cat([last[0], last[1]], dim=-1)

    def start(self, memory: EncoderMemory) -> DecoderState:
        first = torch.tanh(self.bridge(memory.summary)).unsqueeze(1)  # (batch, 1, hidden)
        return DecoderState(self.cell.start(first))

    def look(self, memory: EncoderMemory, query: Tensor) -> Tensor:
        """The attention of states (batch, n, hidden) to the tokens of the source, (batch, n, s)."""
        nothing = query.new_empty(len(query), 0, self.key_dim)
        prepared, _ = self.similarity.prepare(query, nothing)
        scores = self.similarity.log_score(prepared, memory.key)
        return softmax(scores, memory.allowed, self.similarity.may_vanish)

    def step(
        self, memory: EncoderMemory, state: DecoderState, tokens: Tensor
    ) -> Step[DecoderState]:
        weights = self.look(memory, state.parts[0])
        terms = self._token_terms(tokens) if self.training else self._terms_of_distinct(tokens)
        given = torch.baddbmm(terms, weights, memory.mapped)  # (batch, n, g)
        parts, features = self._go_on(given, state.parts)
        return Step(self.dropout(features), DecoderState(parts), weights)

    def forced(self, memory: EncoderMemory, tokens: Tensor) -> Tensor:
        terms = self._token_terms(tokens)  # by all tokens, at once
        first = self.start(memory).parts
        if isinstance(self.similarity, Additive) and self.sizes.cell == "gru":
            hidden, given = decode(self.cell, self.similarity, memory, terms, first[0])
            features = self.readout(given, hidden)
        else:
            features = self._unrolled_in_python(memory, terms, first)
        return self.dropout(features)  # type: ignore[no-any-return]

    def _token_terms(self, tokens: Tensor) -> Tensor:
        """The terms of tokens (batch, t) in cell and readout, (batch, t, g)."""
        return self.token(self.dropout(self.target_embedding(tokens)))  # type: ignore[no-any-return]

    def _terms_of_distinct(self, tokens: Tensor) -> Tensor:
        """The same, computed once for each distinct token: hypotheses often share tokens."""
        distinct, places = torch.unique(tokens, return_inverse=True)
        return self._token_terms(distinct)[places]

    def _go_on(self, given: Tensor, parts: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        """The next state, and its features."""
        to_cell, to_readout = given.split([self.cell.gates, self.readout.sums], dim=-1)
        parts = self.cell.step(to_cell, parts)
        return parts, self.readout(to_readout, parts[0])

    def _unrolled_in_python(
        self, memory: EncoderMemory, terms: Tensor, parts: tuple[Tensor, ...]
    ) -> Tensor:
        """The features (batch, t, r) of all steps, each made by :meth:`step`'s formula."""
        features = []
        for now in terms.split(1, dim=1):
            weights = self.look(memory, parts[0])
            parts, feature = self._go_on(torch.baddbmm(now, weights, memory.mapped), parts)
            features.append(feature)
        return torch.cat(features, dim=1)

    @property
    def key_dim(self) -> int:
        return self.sizes.hidden if isinstance(self.key_map, nn.Linear) else 2 * self.sizes.hidden

    def to_json(self) -> dict[str, Any]:
        if self.own_similarity:
            raise ValueError("a translator can be saved only if its similarity goes by a name")
        return {"kind": "recurrent", **asdict(self.sizes)}


def _comparison(
    similarity: SimilarityLike, query_dim: int, key_dim: int
) -> tuple[Similarity, nn.Module]:
    """A similarity of states, and the layer that maps keys to the size of queries, if needed."""
    for size, key_map in (
        (key_dim, nn.Identity()),
        (query_dim, nn.Linear(key_dim, query_dim, False)),
    ):
        made = (
            learned(similarity, query_dim, size, query_dim) if isinstance(similarity, str) else None
        )
        chosen = as_similarity(made or similarity)
        try:
            chosen.check(torch.empty(1, 1, query_dim), torch.empty(1, 1, size))
        except ValueError as error:
            refusal = error
        else:
            return chosen, key_map
    raise refusal


def _within(inputs: int) -> tuple[float, float]:
    """The range of the first weights of a map of so many inputs."""
    return -(inputs**-0.5), inputs**-0.5
