"""Translation: sequence-to-sequence models with attention, their training and decoding."""

from __future__ import annotations

from qkv.translate.data.sources import Sources as Sources
from qkv.translate.decoding.alignment import Alignment as Alignment
from qkv.translate.decoding.interpreter import Interpreter as Interpreter
from qkv.translate.decoding.interpreter import Translation as Translation
from qkv.translate.decoding.search import Search as Search
from qkv.translate.models.recurrent import RNNConfig as RNNConfig
from qkv.translate.models.recurrent import Translator as Translator
from qkv.translate.models.transformer import Transformer as Transformer
from qkv.translate.models.transformer import TransformerConfig as TransformerConfig
from qkv.translate.training.checkpoint import load as load
from qkv.translate.training.metrics import score as score
from qkv.translate.training.setup import TokenizerConfig as TokenizerConfig
from qkv.translate.training.setup import begin as begin
from qkv.translate.training.setup import resume as resume
from qkv.translate.training.train import TrainingConfig as TrainingConfig

# Former names, which existing programs import.
Layers, Recipe, Recurrent, Spelling = TransformerConfig, TrainingConfig, RNNConfig, TokenizerConfig
