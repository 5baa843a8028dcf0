"""Tests of what is known about a processor."""

from pathlib import Path

import pytest

from diffusers_helper.machine.sysfs import computes_bf16

ZEN_3 = "processor\t: 0\nflags\t\t: fpu sse4_2 avx avx2 f16c fma\n\nprocessor\t: 1\nflags\t\t: fpu avx2\n"


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        (ZEN_3, False),
        (ZEN_3.replace("fma", "fma avx512f"), False),
        (ZEN_3.replace("fma", "fma avx512f avx512dq avx512bw avx512vl"), True),
        (ZEN_3.replace("fma", "fma avx_ne_convert"), True),
        ("Features\t: fp asimd bf16 i8mm\n", True),
        ("Features\t: fp asimd\n", False),
        ("", False),
    ],
)
def test_bf16_is_computed_well_with_its_instructions_alone(
    cpuinfo: str, expected: bool, tmp_path: Path
) -> None:
    (tmp_path / "cpuinfo").write_text(cpuinfo, encoding="utf-8")
    assert computes_bf16(tmp_path / "cpuinfo") is expected
    assert computes_bf16(tmp_path / "none") is False
