"""How a job is started, by what started this one."""

import pytest

from stratagem.cluster import ClusterConfig, ClusterSpec, how_to_start, resolve_cluster

CLUSTER = ClusterSpec({"worker": ["a:2222", "b:2222", "c:2222"]})


def config(source: str) -> ClusterConfig:
    return ClusterConfig(CLUSTER, "worker", 0, source)


@pytest.mark.parametrize(
    ("source", "servers", "workers_only"),
    [
        (
            "flags",
            "--ps_hosts=HOST:PORT --worker_hosts=HOST:PORT,… for every task, and --job_name and --task_index of its own",
            "--worker_hosts=HOST:PORT,… for every task, and --job_name and --task_index of its own",
        ),
        (
            "TF_CONFIG",
            '{"cluster": {"ps": ["HOST:PORT"], "worker": ["HOST:PORT", "…"]}, …} in TF_CONFIG, for every task',
            '{"cluster": {"worker": ["HOST:PORT", "…"]}, …} in TF_CONFIG, for every task',
        ),
        ("Slurm", "`stratagem emit slurm --ps 1 --workers 3 SCRIPT`", "`srun --ntasks=3 python SCRIPT`"),
        (
            "Open MPI",
            "`mpirun -n 1 python SCRIPT HOSTS --job_name=ps --task_index=0 : "
            "-n 1 python SCRIPT HOSTS --job_name=worker --task_index=0 : "
            "-n 1 python SCRIPT HOSTS --job_name=worker --task_index=1 : …`, "
            "where HOSTS is --ps_hosts=HOST:PORT --worker_hosts=HOST:PORT,…",
            "`mpirun -n 3 python SCRIPT`",
        ),
        (
            "Kubeflow JAXJob",
            "`stratagem emit k8s --kind tfjob --ps 1 --workers 3 SCRIPT`",
            "`stratagem emit k8s --kind tfjob --ps 0 --workers 3 SCRIPT`",
        ),
    ],
)
def test_each_source_has_its_own_way(
    source: str, servers: str, workers_only: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STRATAGEM_RUN", raising=False)
    assert how_to_start(config(source), ps=1) == servers
    assert how_to_start(config(source)) == workers_only


def test_under_the_launcher_and_outside_of_any_cluster_it_is_the_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert (
        how_to_start(None, ps=1, single_client=True)
        == "`stratagem run --single-client --ps 1 --workers 2 SCRIPT`"
    )
    monkeypatch.setenv("STRATAGEM_RUN", "a run")
    assert how_to_start(config("TF_CONFIG"), ps=1) == "`stratagem run --ps 1 --workers 3 SCRIPT`"
    assert "mpirun" in how_to_start(config("Open MPI"))


def test_the_flags_of_the_advice_are_those_that_are_read() -> None:
    advice = how_to_start(config("Open MPI"), ps=1, workers=2)
    command, _, hosts = advice.removesuffix("`").partition("`, where HOSTS is ")
    flags = hosts
    for number, host in enumerate(["p", "w", "x"]):
        flags = flags.replace("HOST:PORT", f"{host}:{number + 1}", 1)
    found = []
    for program in command.split(" : "):
        words = program.partition("SCRIPT ")[2].replace("HOSTS", flags).split()
        task = resolve_cluster(words, {})
        assert task is not None
        assert task.cluster == ClusterSpec({"ps": ["p:1"], "worker": ["w:2", "x:3"]})
        found.append((task.job_name, task.task_index))
    assert found == [("ps", 0), ("worker", 0), ("worker", 1)]
