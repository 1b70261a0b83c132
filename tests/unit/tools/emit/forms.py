"""Checks plain values against a form: a type, allowed words, a list of one form, or keys with theirs.

A key that ends in `!` has to be there; a key `*` stands for all others. What is in no form is refused, as by the systems
themselves.
"""

from typing import Any

TEXTS = {"*": str}

_LABELS = {"app.kubernetes.io/name!": str, "app.kubernetes.io/component": str}
_METADATA = {"name!": str, "labels!": _LABELS}
_POD = {
    "subdomain": str,
    "restartPolicy": {"OnFailure", "Never"},
    "terminationGracePeriodSeconds!": int,
    "shareProcessNamespace": bool,
    "automountServiceAccountToken": bool,
    "enableServiceLinks": bool,
    "containers!": [
        {
            "name!": str,
            "image!": str,
            "command!": [str],
            "ports!": [{"name!": str, "containerPort!": int}],
            "env!": [
                {"name!": str, "value": str, "valueFrom": {"fieldRef!": {"fieldPath!": str}}},
            ],
            "volumeMounts!": [{"name!": str, "mountPath!": str, "readOnly": bool}],
            "resources": {"limits!": {"nvidia.com/gpu!": int}},
        }
    ],
    "securityContext!": {"fsGroup!": int, "fsGroupChangePolicy!": {"OnRootMismatch", "Always"}},
    "volumes!": [
        {
            "name!": str,
            "secret": {"secretName!": str, "defaultMode!": int},
            "configMap": {"name!": str, "defaultMode": int},
            "persistentVolumeClaim": {"claimName!": str},
        }
    ],
}
_TEMPLATE = {"metadata!": {"labels!": _LABELS}, "spec!": _POD}
_REPLICAS = {"replicas!": int, "restartPolicy!": {"OnFailure", "Never"}, "template!": _TEMPLATE}

KUBERNETES = {
    "Service": {
        "apiVersion!": {"v1"},
        "kind!": str,
        "metadata!": _METADATA,
        "spec!": {
            "clusterIP!": {"None"},
            "publishNotReadyAddresses!": bool,
            "selector!": _LABELS,
            "ports!": [{"name!": str, "port!": int}],
        },
    },
    "ConfigMap": {"apiVersion!": {"v1"}, "kind!": str, "metadata!": _METADATA, "data!": TEXTS},
    "Job": {
        "apiVersion!": {"batch/v1"},
        "kind!": str,
        "metadata!": _METADATA,
        "spec!": {
            "completionMode!": {"Indexed"},
            "completions!": int,
            "parallelism!": int,
            "backoffLimit!": int,
            "template!": _TEMPLATE,
        },
    },
    "TFJob": {
        "apiVersion!": {"kubeflow.org/v1"},
        "kind!": str,
        "metadata!": _METADATA,
        "spec!": {
            "successPolicy": {"", "AllWorkers"},
            "runPolicy!": {"backoffLimit!": int, "cleanPodPolicy!": {"All", "Running", "None"}},
            "tfReplicaSpecs!": {
                "PS": _REPLICAS,
                "Worker!": _REPLICAS,
                "Chief": _REPLICAS,
                "Evaluator": _REPLICAS,
            },
        },
    },
}

COMPOSE = {
    "name!": str,
    "services!": {
        "*": {
            "image!": str,
            "command!": [str],
            "init!": bool,
            "environment!": TEXTS,
            "secrets!": [str],
            "networks!": [str],
            "restart!": str,
            "stop_grace_period!": str,
            "working_dir": str,
            "volumes": [{"type!": {"bind", "volume"}, "source!": str, "target!": str}],
            "deploy": {
                "resources!": {
                    "reservations!": {"devices!": [{"driver": str, "count": int, "capabilities!": [str]}]}
                }
            },
        }
    },
    "networks!": {"*": {}},
    "volumes": {"*": {}},
    "secrets!": {"*": {"file!": str}},
}


def check(value: Any, form: Any, where: str = "") -> None:
    """Raises AssertionError where the value does not have the form."""
    if isinstance(form, type):
        assert type(value) is form, f"{where} is {value!r}, not {form.__name__}"
    elif isinstance(form, set):
        assert value in form, f"{where} is {value!r}, not one of {form}"
    elif isinstance(form, list):
        assert isinstance(value, list), f"{where} is no list"
        assert value, f"{where} is empty"
        for number, item in enumerate(value):
            check(item, form[0], f"{where}[{number}]")
    else:
        assert isinstance(value, dict), f"{where} is {value!r}, no mapping"
        missing = {key[:-1] for key in form if key.endswith("!")} - set(value)
        assert not missing, f"{where} lacks {missing}"
        for key, inner in value.items():
            known = next((form[each] for each in (key, f"{key}!", "*") if each in form), None)
            assert known is not None, f"{where}.{key} is not known"
            check(inner, known, f"{where}.{key}")
