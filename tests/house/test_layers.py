"""Tests that every file keeps to its layer and to the house rules, and that the check finds violations."""

import pytest

from tests.support.layers import Source, faults, sources


def test_every_file_keeps_to_its_layer_and_to_the_house_rules() -> None:
    messages = [fault for source in sources() for fault in faults(source)]
    assert not messages, "\n" + "\n".join(messages)


def test_the_check_sees_the_product() -> None:
    seen = {source.module for source in sources()}
    assert {
        "diffusers_helper.families.packing",
        "diffusers_helper.sampling.unipc",
        "app.jobs",
        "tests.house.test_layers",
    } <= seen


# module, source, part of the fault expected
VIOLATIONS = [
    ("diffusers_helper/families/packing.py", "import torch", "'core' may import PIL"),
    (
        "diffusers_helper/__init__.py",
        "from diffusers_helper.pipeline import generate",
        "layer 'core' may import",
    ),
    ("diffusers_helper/failures.py", "def f():\n    import torch", "'core' may import PIL"),
    (
        "diffusers_helper/request.py",
        "from diffusers_helper import pipeline",
        "imports diffusers_helper.pipeline",
    ),
    ("diffusers_helper/sampling/unipc.py", "import diffusers", "'torch' may import numpy"),
    (
        "diffusers_helper/memory/store.py",
        "import diffusers_helper.loading.loaders",
        "imports diffusers_helper.loading.loaders",
    ),
    ("diffusers_helper/pipeline.py", "import app.jobs.job", "imports app.jobs.job"),
    ("diffusers_helper/pipeline.py", "import argparse", "'library' must not"),
    ("diffusers_helper/pipeline.py", "import os\nos.environ['A'] = 'b'", "writes the environment"),
    ("diffusers_helper/pipeline.py", "import os\nx = os.environ.get('A')", "uses the environment"),
    ("diffusers_helper/pipeline.py", "from os import environ", "uses the environment"),
    ("diffusers_helper/pipeline.py", "import torch\ntorch.load('a', weights_only=False)", "torch.load"),
    ("diffusers_helper/loading/loaders.py", "f(trust_remote_code=True)", "trust_remote_code"),
    ("cache/conv.py", "import diffusers_helper.pipeline", "imports diffusers_helper.pipeline"),
    ("app/jobs/making/worker.py", "import torch", "imports torch"),
    ("app/jobs/making/worker.py", "import pickle", "imports pickle"),
    ("diffusers_helper/weights/pickle_file.py", "import marshal", "imports marshal"),
    ("app/jobs/making/worker.py", "import app.ui", "imports app.ui"),
    ("app/jobs/making/worker.py", "import os\nos.environ.update(A='b')", "writes the environment"),
    ("app/jobs/making/worker.py", "from app import engine", "imports app.engine"),
    (
        "app/ui/page.py",
        "def f():\n    import importlib\n    importlib.import_module('torch')",
        "imports torch",
    ),
    ("app/cli.py", "import torch", "in a function only"),
    ("app/cli.py", "from diffusers_helper.pipeline import generate", "in a function only"),
    ("app/engine.py", "import gradio", "'engine' must not"),
    ("rocm_nodes/nodes.py", "from app.jobs import job", "imports app.jobs"),
    ("training/run.py", "import app.jobs", "imports app.jobs"),
    ("app/cli.py", "def f():\n    import training.run", "imports training.run"),
    ("demo_gradio.py", "x = 1\n" * 41, "has 41 lines; at most 40"),
    ("tests/test_x.py", "x = 1\n" * 401, "has 401 lines; at most 400"),
    ("tests/test_x.py", "def f():\n" + "    x = 1\n" * 60, "f has 61 lines; at most 60"),
]
INNOCENT = [
    ("diffusers_helper/events.py", "import re\nfrom diffusers_helper.errors import InputError"),
    ("diffusers_helper/__init__.py", "__version__ = '1'"),
    ("diffusers_helper/weights/pickle_file.py", "import pickle"),
    (
        "diffusers_helper/conditions/picture_file.py",
        "from PIL import Image\nfrom diffusers_helper.errors import InputError",
    ),
    ("diffusers_helper/sampling/euler.py", "import torch\nfrom diffusers_helper.sampling.schedule import x"),
    (
        "diffusers_helper/pipeline.py",
        "import diffusers\nfrom diffusers_helper.sampling import x\nimport cache.conv",
    ),
    ("app/jobs/engine.py", "import os, subprocess\nenvironment = dict(os.environ)\nimport app.jobs.job"),
    ("app/ui/page.py", "import gradio\nfrom diffusers_helper import request\nimport app.jobs.service"),
    ("app/cli.py", "import argparse\ndef f():\n    from diffusers_helper.pipeline import x\n    print(x)"),
    ("app/cli.py", "if TYPE_CHECKING:\n    from diffusers_helper.pipeline import x"),
    ("app/cli.py", "from diffusers_helper import request\nfrom diffusers_helper.request import SETTINGS"),
    ("app/engine.py", "import torch\nfrom diffusers_helper.pipeline import generate"),
    ("training/vae.py", "import torch\ntorch.load('a', weights_only=True)"),
    ("demo_gradio.py", "import os, sys\nos.environ.setdefault('A', 'b')\nfrom app.cli import main"),
]
KNOWN = frozenset(
    {"diffusers_helper.pipeline", "diffusers_helper.families.packing", "app.engine", "app.jobs.job"}
)


@pytest.mark.parametrize(("path", "text", "expected"), VIOLATIONS)
def test_violations_are_found(path: str, text: str, expected: str) -> None:
    messages = faults(Source(path, text, KNOWN))
    assert any(expected in fault for fault in messages), messages
    assert all(fault.startswith(path) for fault in messages)


@pytest.mark.parametrize(("path", "text"), INNOCENT)
def test_the_innocent_are_left_alone(path: str, text: str) -> None:
    assert faults(Source(path, text, KNOWN)) == []
