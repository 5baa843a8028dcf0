"""The planned and the measured memory of whole jobs, under caps from generous to impossible.

    python benchmarks/caps.py [--model demo|mid] [--resolution 128] [--seconds 2] [--steps 2] [--json FILE]

It runs on the accounting device, which counts live tensors, or on a GPU. `mid` is a model of random weights,
written to a temporary folder. The caps range from one under which everything stays on the device to the
smallest one that works; with one byte less, a job must be refused. The latents and the video of each job are
compared with those of a job without a cap at the same VAE tile. The exit code is 1 if a peak exceeds its cap,
a job gives other bytes, a prediction is off by more than a tenth, or a refusal names a wrong cap.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # A file that is run as a program finds only the modules of its own folder.

from benchmarks.rows import Rows  # noqa: E402
from benchmarks.whole_jobs import write_picture  # noqa: E402
from diffusers_helper.conditions.picture_file import load_picture  # noqa: E402
from diffusers_helper.events import Event, Finished  # noqa: E402
from diffusers_helper.job.memory import MemoryPlans  # noqa: E402
from diffusers_helper.loading.loaders import Models, load_models  # noqa: E402
from diffusers_helper.machine.local import Local  # noqa: E402
from diffusers_helper.models.registry import find_model  # noqa: E402
from diffusers_helper.pipeline import generate  # noqa: E402
from diffusers_helper.planning.budget import DoesNotFit, JobPlan  # noqa: E402
from diffusers_helper.request import GenerationRequest  # noqa: E402
from diffusers_helper.units import GB  # noqa: E402

MB = 1024**2
TOLERANCE = 0.1


@dataclass(frozen=True)
class Stage:
    """The highest planned and the highest measured memory of one stage in a job."""

    name: str
    planned: int
    measured: int
    streamed_blocks: int

    @property
    def ratio(self) -> float:
        return self.planned / self.measured


@dataclass
class Row:
    """The figures of one cap.

    Attributes:
        smallest: The cap that the refusal named; 0 if the job was not refused.
        same_latents, same_video: Whether they equal those of a job without a cap at the same tile.
    """

    cap: int
    smallest: int = 0
    tile: int | None = None
    planned: int = 0
    measured: int = 0
    streamed: int = 0
    retries: int = 0
    seconds: float = 0.0
    same_latents: bool = False
    same_video: bool = False
    stages: list[Stage] = field(default_factory=list[Stage])

    @property
    def ratio(self) -> float:
        return self.planned / self.measured

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the row. A refusal has no faults."""
        if self.smallest:
            return
        if self.measured > self.cap:
            yield f"took {self.measured} bytes under a cap of {self.cap}"
        if self.retries:
            yield f"needed {self.retries} further attempts under a cap of {self.cap}"
        if not (self.same_latents and self.same_video):
            yield f"gave other bytes under a cap of {self.cap}"
        for name, ratio in (("the job", self.ratio), *((stage.name, stage.ratio) for stage in self.stages)):
            if abs(ratio - 1) > TOLERANCE:
                yield f"{name} under a cap of {self.cap}: planned {ratio:.3f} of what was measured"


@dataclass(frozen=True)
class Job:
    """The result of a job. `peaks` are in bytes, by stage."""

    latents: Tensor
    video: bytes
    finished: Finished
    peaks: dict[str, int]
    seconds: float


class Caps:
    """Jobs of one request under many caps."""

    def __init__(self, models: Models, request: GenerationRequest, folder: Path) -> None:
        """Prepare the jobs, whose files go to `folder`, without running them."""
        self._models, self._request, self._folder = models, request, folder
        picture = load_picture(Path(request.image))
        side = request.resolution or models.info.side
        self._shape = models.info.family.nearest_bucket(
            picture.height, picture.width, side, models.info.multiple
        )
        self._number = 0
        self._references: dict[int | None, Job] = {}

    def plan(self, cap: int | None = None, tile: int | None = None) -> JobPlan:
        """Return the plan under a cap.

        Raises:
            DoesNotFit: If the cap is too small.
        """
        return MemoryPlans(self._under(cap, tile), self._models, *self._shape, Local()).plan

    def ladder(self, count: int) -> list[int]:
        """Return `count` caps that work; `count` is at least 3.

        Under the second cap, everything just stays on the device with the VAE's usual tile. The first is
        twice as large, and the others decrease in equal ratios down to the smallest cap that works.
        """
        smallest, most = self.plan().smallest_cap_bytes, self._everything()
        ratio = (smallest / most) ** (1 / (count - 2))
        return [2 * most, *(round(most * ratio**step) for step in range(count - 2)), smallest]

    def _everything(self) -> int:
        """Return the smallest cap under which everything stays on the device with the VAE's usual tile."""
        tile = self.plan().vae_tile_px
        low, high = 0, self.plan(tile=tile).smallest_cap_bytes
        while not self._stays(high, tile):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._stays(middle, tile) else (middle, high)
        return high

    def _stays(self, cap: int, tile: int | None) -> bool:
        """Return whether everything stays on the device under this cap."""
        try:
            return self.plan(cap, tile).keep_all_resident
        except DoesNotFit:
            return False

    def run(self, cap: int) -> Row:
        """Run one job, or report its refusal. The first cap must be one under which everything stays."""
        try:
            plan = self.plan(cap)
        except DoesNotFit as error:
            return Row(cap, smallest=error.smallest_cap_bytes)
        tile = plan.vae_tile_px
        if self._references and tile not in self._references:
            self._references[tile] = self._make(self._under(None, tile))
        job = self._make(self._under(cap, None))
        same = self._references.setdefault(tile, job)
        return Row(
            cap=cap,
            tile=job.finished.vae_tile_px,
            planned=plan.peak_bytes - plan.budget.reserve_bytes,
            measured=job.finished.peak_device_bytes,
            streamed=job.finished.bytes_streamed,
            retries=job.finished.retries,
            seconds=job.seconds,
            same_latents=torch.equal(job.latents, same.latents),
            same_video=job.video == same.video,
            stages=[
                Stage(
                    stage.stage, stage.peak_bytes - stage.reserve_bytes, job.peaks[stage.stage],
                    len(stage.streamed_blocks),
                )
                for stage in plan.stages
            ],
        )  # fmt: skip

    def _under(self, cap: int | None, tile: int | None) -> GenerationRequest:
        return replace(self._request, vram_cap_gb=None if cap is None else cap / GB, vae_tile=tile)

    def _make(self, request: GenerationRequest) -> Job:
        self._number += 1
        folder, events, began = self._folder / str(self._number), list[Event](), time.perf_counter()
        result = generate(request, self._models, folder=folder, on_event=events.append)
        seconds, finished = time.perf_counter() - began, events[-1]
        assert isinstance(finished, Finished)
        record = json.loads((folder / "memory.json").read_text(encoding="utf-8"))["stages"]
        peaks: dict[str, int] = {}
        for stage in record:
            peaks[stage["stage"]] = max(peaks.get(stage["stage"], 0), stage["measured_bytes"])
        return Job(result.latents, result.video.read_bytes(), finished, peaks, seconds)


def measure(caps: Caps, count: int) -> Iterator[tuple[Row, list[str]]]:
    """Yield a row and its faults for each cap, from generous to impossible ones."""
    ladder = caps.ladder(count)
    for cap in (*ladder, ladder[-1] - 1, ladder[-1] // 2):
        row = caps.run(cap)
        faults = [*row.faults()]
        if cap >= ladder[-1] and row.smallest:
            faults.append(f"refused under a cap of {cap}")
        if cap < ladder[-1] and row.smallest != ladder[-1]:
            faults.append(f"named {row.smallest} under a cap of {cap}; expected {ladder[-1]}")
        yield row, faults


def table(rows: list[Row]) -> str:
    """Return a table in MB, with the ratio of planned to measured memory for each stage."""
    names = [stage.name for stage in rows[0].stages]
    lines = [["cap", "tile", "planned", "measured", "ratio", "blocks", "streamed", "seconds", "same", *names]]
    for row in rows:
        cap = f"{row.cap / MB:.3f}"
        if row.smallest:
            lines.append([cap, f"refused; the smallest is {row.smallest / MB:.3f}"])
            continue
        same = "yes" if row.same_latents and row.same_video else "NO"
        lines.append(
            [
                cap, str(row.tile), f"{row.planned / MB:.2f}", f"{row.measured / MB:.2f}", f"{row.ratio:.3f}",
                str(sum(stage.streamed_blocks for stage in row.stages)), f"{row.streamed / MB:.0f}",
                f"{row.seconds:.1f}", same,
                *(f"{stage.ratio:.3f}" for stage in row.stages),
            ]
        )  # fmt: skip
    widths = [max(len(line[at]) for line in lines if len(line) > 2) for at in range(len(lines[0]))]
    rows_of_text = (
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=False)) for line in lines
    )
    return "".join(f"{line}\n" for line in rows_of_text)


def main() -> int:
    """Print the table and the faults; return 1 if there are faults."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="mid", help="mid, or the name or folder of a model")
    parser.add_argument("--resolution", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--count", type=int, default=9, help="number of caps that work")
    parser.add_argument("--prompt", default="the red ball moves right")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model
        if model == "mid":
            from tests.support.mid_model import Size, write_mid_model

            model = str(write_mid_model(Path(folder, "mid"), Size()))
        models = load_models(find_model(model, allow_folder=True))
        picture = Path(folder, "picture.png")
        write_picture(picture, arguments.resolution, arguments.resolution)
        request = GenerationRequest(
            image=str(picture), prompt=arguments.prompt, model=model, mode=models.info.modes[0],
            resolution=arguments.resolution, seconds=arguments.seconds, steps=arguments.steps,
        )  # fmt: skip
        found, faults = list[Row](), list[str]()
        facts = {"model": arguments.model, "torch": torch.__version__, "faults": faults}
        with Rows(__file__, arguments.json, lambda: facts) as rows:
            for row, wrong in measure(Caps(models, request, Path(folder, "jobs")), arguments.count):
                found.append(row)
                faults += wrong
                rows.add(asdict(row))
    sys.stdout.write((table(found) if found else "") + "".join(f"WRONG: {fault}\n" for fault in faults))
    return rows.exit_code(1 if faults else 0)


if __name__ == "__main__":
    raise SystemExit(main())
