"""Flax is an extra: it is imported when it is used, and its absence is told."""

import subprocess
import sys

import stratagem.flax
from unit.test_public import declared


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_type_checkers_and_the_interpreter_see_the_same_names() -> None:
    homes: object = getattr(stratagem.flax, "_HOMES")  # noqa: B009  a private name
    assert declared(stratagem.flax) == homes


def test_our_package_does_not_import_it() -> None:
    done = run("import sys, stratagem as sg; sg.flax; sys.exit('flax' in sys.modules)")
    assert done.returncode == 0, done.stderr


def test_without_it_the_error_says_what_to_install() -> None:
    done = run(
        "import sys; sys.modules['flax'] = None\n"  # as if it were not there
        "import stratagem as sg\n"
        "try:\n    sg.flax.Trainable\n"
        "except sg.MissingExtra as error:\n    print(error)"
    )
    assert done.returncode == 0, done.stderr
    assert "pip install 'stratagem[flax]'" in done.stdout


def test_what_flax_itself_lacks_is_not_hidden() -> None:
    done = run(
        "import sys; sys.modules['flax.nnx'] = None\n"
        "import stratagem as sg\n"
        "try:\n    sg.flax.Trainable\n"
        "except sg.MissingExtra:\n    print('hidden')\n"
        "except ImportError as error:\n    print(error)"
    )
    assert done.returncode == 0, done.stderr
    assert "hidden" not in done.stdout
    assert "nnx" in done.stdout
