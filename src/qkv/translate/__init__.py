"""Translation: sequence-to-sequence models that look back at their source, trained and used."""

from __future__ import annotations

from qkv.translate.recurrent import Recurrent as Recurrent
from qkv.translate.recurrent import Translator as Translator
