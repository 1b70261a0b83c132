"""XLA's sums between CPUs (gloo), told on which address of this host to listen.

Left to itself, gloo listens where this host's name leads, which on many machines is 127.0.0.1 or 127.0.1.1: then
no other host reaches it. JAX has no option for it, so the CPU backend is made here, by JAX's own means.
"""

from stratagem.devices.backend import jax_option


def listen_at(address: str) -> None:
    """Let gloo listen at an address of this host. To be called before JAX's backends start.

    Without effect where the user has chosen other collectives (`jax_cpu_collectives_implementation`).
    """
    if jax_option("jax_cpu_collectives_implementation") != "gloo":
        return
    # In part not of JAX's public interface, and slow to import: whoever does not sum between hosts does without.
    from jax._src import distributed, xla_bridge
    from jax.extend.backend import register_backend_factory
    from jaxlib import _jax

    def make() -> object:
        client = distributed.global_state.client
        return xla_bridge.make_cpu_client(_jax.make_gloo_tcp_collectives(client, hostname=address))

    register_backend_factory("cpu", make, priority=0, fail_quietly=False)
