"""longshore: attention as a service, and a plain numpy Llama that uses it.

    with longshore.connect() as client, client.open_session(model, max_tokens=100_000) as session:
        out = session.prefill(layer, q, k, v)

longshore.client, session  a daemon and the sequences in it; what is imported here
longshore.policy           attention policies in full
longshore.errors           one class for each status code, all of them longshore.Error
longshore.attention        the seam between a model runner and whoever computes its attention
longshore.daemon_attention that seam over a session
longshore.runner           a Llama in numpy: GGUF, tokenizer, layers, generation
longshore.run              the command line: python -m longshore.run --help
"""

from longshore.client import Client, connect
from longshore.connection import default_target
from longshore.dtypes import DType, from_bfloat16_bits, to_bfloat16_bits
from longshore.errors import (
    Aborted,
    Cancelled,
    DeadlineExceeded,
    Error,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    NotRunning,
    OutOfRange,
    ResourceExhausted,
    Unavailable,
    Unimplemented,
)
from longshore.info import BackendInfo, Limits, ServerInfo, SessionInfo
from longshore.merge import merge
from longshore.model_shape import ModelShape, Pairing, RopeTable
from longshore.policy import AttentionPolicy
from longshore.session import Session
from longshore.step_stream import Pending, StepStream
from longshore.steps import Attended

__all__ = [
    "Aborted",
    "Attended",
    "AttentionPolicy",
    "BackendInfo",
    "Cancelled",
    "Client",
    "DType",
    "DeadlineExceeded",
    "Error",
    "FailedPrecondition",
    "Internal",
    "InvalidArgument",
    "Limits",
    "ModelShape",
    "NotFound",
    "NotRunning",
    "OutOfRange",
    "Pairing",
    "Pending",
    "ResourceExhausted",
    "RopeTable",
    "ServerInfo",
    "Session",
    "SessionInfo",
    "StepStream",
    "Unavailable",
    "Unimplemented",
    "connect",
    "default_target",
    "from_bfloat16_bits",
    "merge",
    "to_bfloat16_bits",
]
