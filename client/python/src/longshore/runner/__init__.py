"""A Llama in plain numpy, whose attention is computed elsewhere (see `longshore.attention`)."""

from longshore.runner.errors import RunnerError
from longshore.runner.llama import Llama
from longshore.runner.local_attention import LocalAttention
from longshore.runner.model import Model, load_model
from longshore.runner.tokenizer import TextStream, Tokenizer

__all__ = [
    "Llama",
    "LocalAttention",
    "Model",
    "RunnerError",
    "TextStream",
    "Tokenizer",
    "load_model",
]
