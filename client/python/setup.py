"""Builds longshore._proto: messages and gRPC stubs generated from the repository's proto/ folder.

Everything that does not depend on the generator is in pyproject.toml.
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc
from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
# A source distribution carries its own copy (see SourceDistribution); a clone has the repository's.
PROTO_FOLDERS = (HERE / "proto", HERE.parent.parent / "proto")
WIRE = "longshore/v1"

# Without the generator's own requirements, which runtime_requirements() adds.
REQUIREMENTS = ["gguf>=0.10", "googleapis-common-protos>=1.66", "numpy>=1.24", "regex"]


def proto_folder() -> Path:
    for folder in PROTO_FOLDERS:
        if (folder / WIRE).is_dir():
            return folder
    raise SystemExit(
        f"no {WIRE}/*.proto in {' or '.join(map(str, PROTO_FOLDERS))}: build in a clone"
    )


def runtime_requirements() -> list[str]:
    """grpcio and protobuf in the versions that the generated code runs with.

    Generated code refuses an older grpcio or protobuf at import, so the generator of this build
    decides; what it requires for itself is just that.
    """
    requirements = importlib.metadata.requires("grpcio-tools") or []
    return [text for text in requirements if re.match(r"(grpcio|protobuf)\b", text)]


def generate(package: Path) -> None:
    """Writes longshore/v1/*.proto as modules of that path under the folder of longshore._proto.

    protoc takes the path for the modules' name, too; it is prefixed in their imports of each other,
    so that nothing lies outside of the package. google.rpc stays: googleapis-common-protos has it.
    """
    protos = proto_folder()
    sources = sorted(
        path.relative_to(protos).as_posix() for path in (protos / WIRE).glob("*.proto")
    )
    with tempfile.TemporaryDirectory() as scratch:
        well_known = Path(grpc_tools.__file__).parent / "_proto"
        includes = [f"-I{protos}", f"-I{well_known}"]
        outputs = [f"--{kind}_out={scratch}" for kind in ("python", "pyi", "grpc_python")]
        if protoc.main(["protoc", *includes, *outputs, *sources]) != 0:
            raise SystemExit("protoc failed: its messages are above")
        target = package / WIRE
        shutil.rmtree(target, ignore_errors=True)  # of a .proto that is gone, too
        target.mkdir(parents=True)
        for path in Path(scratch, WIRE).iterdir():
            prefixed = re.sub(
                r"^from longshore\.",
                "from longshore._proto.longshore.",
                path.read_text(),
                flags=re.MULTILINE,
            )
            (target / path.name).write_text(prefixed)


class BuildWithStubs(build_py):
    """Adds the generated modules to what is built; for an editable install, to the sources."""

    def run(self) -> None:
        root = HERE / "src" if self.editable_mode else Path(self.build_lib)
        if not self.editable_mode:
            shutil.rmtree(root / "longshore", ignore_errors=True)  # modules that are gone
        super().run()
        generate(root / "longshore" / "_proto")


class SourceDistribution(sdist):
    """Adds the .proto files, which lie outside of this folder."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        protos = proto_folder()
        for path in [*protos.glob(f"{WIRE}/*.proto"), *protos.glob("google/rpc/*.proto")]:
            target = Path(base_dir, "proto", path.relative_to(protos))
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


setup(
    install_requires=[*REQUIREMENTS, *runtime_requirements()],
    cmdclass={"build_py": BuildWithStubs, "sdist": SourceDistribution},
)
