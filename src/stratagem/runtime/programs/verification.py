"""Decides whether a server runs a shipped program."""

import hashlib
from dataclasses import dataclass

from jax import export

from stratagem.errors import ProgramRefused
from stratagem.runtime.programs.container import Container, read_container
from stratagem.runtime.programs.inspector import Inspector
from stratagem.runtime.programs.limits import ProgramLimits
from stratagem.runtime.programs.summary import ProgramSummary, describe
from stratagem.runtime.programs.walk import Findings


@dataclass(frozen=True)
class VerifiedProgram:
    """A program that was found to be allowed.

    Attributes:
        summary: What is known of it.
        container: Its container, whose module is the one that was walked, written anew by the inspector: the
            bytes that came over the wire are not read again.
    """

    summary: ProgramSummary
    container: Container


def content_hash(artifact: bytes) -> str:
    """The name of an artifact: its SHA-256 in hexadecimal."""
    return hashlib.sha256(artifact).hexdigest()


def verify(
    artifact: bytes,
    limits: ProgramLimits | None = None,
    *,
    platform: str = "cpu",
    inspector: Inspector | None = None,
) -> ProgramSummary:
    """Walks a program and refuses what is not allowed, or too large.

    Example:
        >>> summary = verify(export_program(jnp.sin, 1.0).artifact)
        >>> summary.inputs
        (TensorSpec(shape=(), dtype='float32'),)

    Args:
        artifact: The program, as `Program.artifact`.
        limits: Bounds on its size; the defaults of `ProgramLimits` if not given.
        platform: Where it is to run: `cpu`, `cuda`, `rocm` or `tpu`.
        inspector: Reads it in its process; one is started for this call if not given.

    Raises:
        ProgramRefused: It is not allowed; the message says why.
    """
    if inspector is not None:
        return verified(artifact, limits or ProgramLimits(), platform, inspector).summary
    with Inspector() as own:
        return verified(artifact, limits or ProgramLimits(), platform, own).summary


def verified(artifact: bytes, limits: ProgramLimits, platform: str, inspector: Inspector) -> VerifiedProgram:
    """Does what `verify` does, and keeps what is needed to compile the program.

    Raises:
        ProgramRefused: It is not allowed; the message says why.
    """
    container = read_container(artifact, limits)
    check_convention(container, platform)
    findings = inspector.walk(container.module, platform, limits)
    check_agreement(container, findings)
    summary = ProgramSummary(
        content_hash(artifact),
        container.inputs,
        container.outputs,
        findings.operations,
        findings.constant_bytes,
        findings.unfused_bytes,
        findings.custom_calls,
    )
    rewritten = Container(
        container.inputs,
        container.outputs,
        container.kept,
        container.platform,
        container.calling_convention,
        findings.module,
    )
    return VerifiedProgram(summary, rewritten)


def check_convention(container: Container, platform: str) -> None:
    """Refuses a program for another platform, or for a JAX that calls modules in another way."""
    if container.platform != platform:
        raise ProgramRefused(
            f"the program is for {container.platform!r} and this server's device is {platform!r}; export it "
            f"with platform={platform!r}"
        )
    lowest = export.minimum_supported_calling_convention_version
    highest = export.maximum_supported_calling_convention_version
    if not lowest <= container.calling_convention <= highest:
        raise ProgramRefused(
            f"the program has calling convention {container.calling_convention}; this server's JAX knows "
            f"{lowest} to {highest}: export it with a nearer version of JAX"
        )


def check_agreement(container: Container, findings: Findings) -> None:
    """Refuses a program whose module takes or returns other arrays than its container says."""
    taken = tuple(container.inputs[index] for index in container.kept)
    if findings.inputs != taken or findings.outputs != container.outputs:
        raise ProgramRefused(
            f"the program's container says {describe(taken)} -> {describe(container.outputs)}, its module "
            f"{describe(findings.inputs)} -> {describe(findings.outputs)}; export it again"
        )
