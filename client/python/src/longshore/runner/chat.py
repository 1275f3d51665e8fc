"""ChatML, the chat format of SmolLM2 and many others."""

from __future__ import annotations

import re

from longshore.runner.errors import RunnerError
from longshore.runner.tokenizer import Tokenizer

# The template's own system message, which it inserts when the conversation brings none.
_DEFAULT_SYSTEM = re.compile(r"<\|im_start\|>system(?:\n|\\n)(.*?)<\|im_end\|>", re.DOTALL)


def chat_prompt(tokenizer: Tokenizer, user: str, system: str | None = None) -> list[int]:
    """Token ids of a one-turn conversation, up to where the assistant's answer begins:

        <|im_start|>system\\n{system}<|im_end|>\\n
        <|im_start|>user\\n{user}<|im_end|>\\n
        <|im_start|>assistant\\n

    Without `system`, the default of the file's template is used, or there is no system turn.
    A control token's name inside the texts stays text, so a document cannot end its own turn.
    Raises RunnerError if the file has no chat template or one of another format.
    """
    template = tokenizer.chat_template
    if template is None:
        raise RunnerError("the model has no chat template; run it with --raw")
    if "<|im_start|>" not in template:
        raise RunnerError("the model's chat template is not ChatML; run it with --raw")
    if system is None:
        default = _DEFAULT_SYSTEM.search(template)
        system = default.group(1) if default else None
    start, end = tokenizer.control("<|im_start|>"), tokenizer.control("<|im_end|>")
    newline = tokenizer.encode("\n")

    def turn(role: str, text: str) -> list[int]:
        return [start, *tokenizer.encode(f"{role}\n{text}"), end, *newline]

    system_turn = [] if system is None else turn("system", system)
    return [*system_turn, *turn("user", user), start, *tokenizer.encode("assistant\n")]
