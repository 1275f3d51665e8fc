"""What a tool learns that has the address and nothing else, as grpcurl does: services, methods, messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pool, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

import longshore
from load import SHAPE, rows
from longshore._proto.longshore.v1 import attention_pb2, region_pb2, server_pb2, session_pb2

COMPILED = {
    service.full_name: service
    for file in (attention_pb2, region_pb2, server_pb2, session_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
}


class Reflection:
    """Everything that it knows it has asked the daemon for."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel
        self._database = ProtoReflectionDescriptorDatabase(channel)
        self.pool = descriptor_pool.DescriptorPool(self._database)

    def services(self) -> set[str]:
        return set(self._database.get_services())

    def message(self, name: str, **fields: Any) -> Any:
        return message_factory.GetMessageClass(self.pool.FindMessageTypeByName(name))(**fields)

    def method(self, service: str, name: str) -> Callable[..., Any]:
        described = self.pool.FindServiceByName(service).methods_by_name[name]
        answer = message_factory.GetMessageClass(described.output_type)
        call = self._channel.unary_unary(
            f"/{service}/{name}",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        request = message_factory.GetMessageClass(described.input_type)
        return lambda **fields: call(request(**fields), timeout=20)


@pytest.fixture
def reflection(daemon) -> Iterator[Reflection]:
    with grpc.insecure_channel(daemon.target) as channel:
        yield Reflection(channel)


def test_every_service_and_method_is_described(reflection: Reflection) -> None:
    services = reflection.services()
    assert set(COMPILED) | {"grpc.health.v1.Health"} <= services
    for name, compiled in COMPILED.items():
        described = reflection.pool.FindServiceByName(name)
        assert set(described.methods_by_name) == set(compiled.methods_by_name)
        for method in compiled.methods:
            found = described.methods_by_name[method.name]
            for ours, theirs in (
                (method.input_type, found.input_type),
                (method.output_type, found.output_type),
            ):
                assert theirs.full_name == ours.full_name
                fields = {field.name: (field.number, field.type) for field in theirs.fields}
                assert fields == {field.name: (field.number, field.type) for field in ours.fields}


def test_an_unknown_service_is_not_found(reflection: Reflection) -> None:
    with pytest.raises(KeyError):
        reflection.pool.FindServiceByName("longshore.v1.Nonsense")


def test_a_session_can_be_used_with_reflection_alone(daemon, reflection: Reflection) -> None:
    info = reflection.method("longshore.v1.Server", "GetServerInfo")()
    assert info.version and "standard" in info.presets

    def tensor(values: np.ndarray) -> Any:
        return reflection.message(
            "longshore.v1.Tensor", dtype="DTYPE_F32", shape=values.shape, inline_data=values.tobytes()
        )

    model = reflection.message(
        "longshore.v1.ModelShape",
        num_layers=SHAPE.num_layers,
        num_heads=SHAPE.num_heads,
        num_kv_heads=SHAPE.num_kv_heads,
        head_dim=SHAPE.head_dim,
        query_dtype="DTYPE_F32",
        kv_dtype="DTYPE_F32",
    )
    policy = reflection.message("longshore.v1.PolicySpec", preset="standard")
    opened = reflection.method("longshore.v1.Sessions", "OpenSession")(
        model=model, policy=policy, max_tokens=128, name="by reflection"
    )
    decode = reflection.method("longshore.v1.Attention", "DecodeStep")
    q, k, v = rows(3)
    item = reflection.message("longshore.v1.StepItem", session_id=opened.session_id, position=0, rows=3)
    answer = decode(layer=0, items=[item], q=tensor(q), k=tensor(k), v=tensor(v))
    assert list(answer.layer_tokens) == [3]
    out = np.frombuffer(answer.out.inline_data, np.float32).reshape(answer.out.shape)
    with longshore.connect(daemon.target) as client, client.open_session(SHAPE, max_tokens=128) as session:
        np.testing.assert_array_equal(out, session.decode(0, q, k, v))
    reflection.method("longshore.v1.Sessions", "CloseSession")(session_id=opened.session_id)
