"""Translation: sequence-to-sequence models that look back at their source, trained and used."""

from __future__ import annotations

from qkv.translate.alignment import Alignment as Alignment
from qkv.translate.checkpoint import load as load
from qkv.translate.interpreter import Interpreter as Interpreter
from qkv.translate.interpreter import Translation as Translation
from qkv.translate.recurrent import Recurrent as Recurrent
from qkv.translate.recurrent import Translator as Translator
from qkv.translate.score import score as score
from qkv.translate.search import Search as Search
from qkv.translate.session import Spelling as Spelling
from qkv.translate.session import begin as begin
from qkv.translate.session import resume as resume
from qkv.translate.sources import Sources as Sources
from qkv.translate.train import Recipe as Recipe
from qkv.translate.transformer import Layers as Layers
from qkv.translate.transformer import Transformer as Transformer
