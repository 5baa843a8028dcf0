"""The cost of writing the video by growing segments, and by encoding everything again after each section.

    python benchmarks/video_writer.py [--json]

One clip (a textured background that pans, a disc that moves, sensor noise) is written in several ways, each
in a separate process, so that its peak memory can be measured: in one shot, which is the limit; growing, in
both orders; and again from the first frame after each section, in both orders. Only the writing is timed, not
the drawing of the clip. The sections are those of a real run, with 36 frames each and the 33 that border on
the next section.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # A file that is run as a program finds only the modules of its own folder.

from benchmarks.rows import Rows  # noqa: E402
from diffusers_helper.families.packing import MODES, SectionPlan, plan_sections  # noqa: E402
from diffusers_helper.output.video import GrowingVideo  # noqa: E402

METHODS = ("one shot", "growing", "re-encode")
GOAL, ONE_SHOT_GOAL = 2.5, 1.15
_MIB = 1024 * 1024


def texture(side: int, seed: int) -> np.ndarray:
    """Draw a tile with the 1/f spectrum of natural pictures, float32 (side, side, 3) around 128."""
    rng = np.random.default_rng(seed)
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(side), np.fft.fftfreq(side)))
    frequency[0, 0] = 1
    shared, *own = (np.fft.fft2(rng.standard_normal((side, side))) for _ in range(4))
    tile = np.stack([np.fft.ifft2((shared + 0.6 * o) / frequency**1.2).real for o in own], -1)
    return (128 + 50 * (tile - tile.mean()) / tile.std()).astype(np.float32)


def clip(num_frames: int, height: int, width: int) -> Iterator[np.ndarray]:
    """Draw the frames of the test clip, uint8 (H, W, 3), the same in every run."""
    reach = 96
    background = texture(max(height, width) + 2 * reach + 2, seed=0)
    side = min(height, width) // 5 * 2
    disc, y, x = texture(side, seed=1), *np.mgrid[:side, :side]
    inside = ((y - side / 2) ** 2 + (x - side / 2) ** 2 < (0.45 * side) ** 2)[..., None]
    rng = np.random.default_rng(2)
    for k in range(num_frames):
        across, down = reach * (1 + np.sin(k / 40)), reach * (1 + np.cos(k / 55))
        left, top = int(across), int(down)
        right_share, low_share = across - left, down - top
        tile = background[top : top + height + 1, left : left + width + 1]
        rows = tile[:-1] * (1 - low_share) + tile[1:] * low_share
        frame = rows[:, :-1] * (1 - right_share) + rows[:, 1:] * right_share
        left = int((width - side) * (0.5 + 0.5 * np.sin(k / 17)))
        top = int((height - side) * (0.5 + 0.5 * np.cos(k / 23)))
        spot = frame[top : top + side, left : left + side]
        spot[:] = np.where(inside, disc, spot)
        frame += 2 * rng.standard_normal(frame.shape, dtype=np.float32)
        yield np.clip(frame + 0.5, 0, 255).astype(np.uint8)


def calls(plan: SectionPlan, method: str) -> Iterator[tuple[slice, slice]]:
    """Yield, for each call of the writer, the slices of the clip with its final and its pending frames."""
    done, total = 0, plan.total_frames
    if method == "one shot":
        yield slice(0, total), slice(0, 0)
        return
    for section in plan:
        if method == "re-encode":
            low, middle, high = 0, section.total_frames, section.total_frames
        else:
            low, middle = done, done + section.final_frames
            high = middle + section.pending_frames
        done += section.final_frames
        if plan.mode == "forward":
            yield slice(low, middle), slice(middle, high)
        else:
            yield slice(total - middle, total - low), slice(total - high, total - middle)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run one method in this process. Frames are read from the file, so only the writer's memory counts."""
    plan = plan_sections(1.2 * args.sections, mode=args.mode)
    shape = (args.height, args.width, 3)
    per_frame = args.height * args.width * 3

    def load(where: slice) -> np.ndarray:
        count = where.stop - where.start
        flat = np.fromfile(args.frames, np.uint8, count * per_frame, offset=where.start * per_frame)
        return flat.reshape(count, *shape)

    wall, cpu, encoded = [], [], 0
    with tempfile.TemporaryDirectory(dir=args.frames.parent) as folder:
        options: dict[str, Any] = {"width": args.width, "height": args.height, "mode": args.mode}
        video = GrowingVideo(Path(folder), crf=args.crf, **options)
        for number, (final, pending) in enumerate(calls(plan, args.method)):
            if args.method == "re-encode":
                video = GrowingVideo(Path(folder) / str(number), crf=args.crf, **options)
            pixels = load(final), load(pending)
            encoded += sum(map(len, pixels))
            started = time.perf_counter(), time.process_time()
            path = video.add_section(*pixels)
            wall.append(time.perf_counter() - started[0])
            cpu.append(time.process_time() - started[1])
            del pixels
        if video.frames != plan.total_frames:
            raise RuntimeError(f"{video.frames} frames were written; expected {plan.total_frames}.")
        return {
            "seconds": sum(wall),
            "cpu_seconds": sum(cpu),
            "seconds_per_section": wall,
            "cpu_seconds_per_section": cpu,
            "frames_encoded": encoded,
            "file_mib": path.stat().st_size / _MIB,
            "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }


def run_all(args: argparse.Namespace, rows: Rows) -> dict[str, Any]:
    """Run all methods in turn, each with a row, and compare them."""
    runs: dict[str, dict[str, Any]] = {mode: {} for mode in MODES}
    with tempfile.TemporaryDirectory() as folder:
        frames = Path(folder) / "frames.rgb"
        with frames.open("wb") as file:
            for frame in clip(36 * args.sections + 1, args.height, args.width):
                file.write(frame.tobytes())
        for mode in MODES:
            for method in METHODS:
                given = ("--method", method, "--mode", mode, "--frames", str(frames))
                command = [sys.executable, __file__, *given]
                for name in ("sections", "width", "height", "crf"):
                    command += [f"--{name}", str(getattr(args, name))]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                runs[mode][method] = json.loads(done.stdout)
                rows.add({"order": mode, "method": method, **runs[mode][method]})
    for by_method in runs.values():
        growing, again = by_method["growing"], by_method["re-encode"]
        by_method["times_less"] = again["seconds"] / growing["seconds"]
        by_method["times_less_cpu"] = again["cpu_seconds"] / growing["cpu_seconds"]
        once = by_method["one shot"]
        by_method["times_one_shot"] = growing["seconds"] / once["seconds"]
        by_method["times_one_shot_cpu"] = growing["cpu_seconds"] / once["cpu_seconds"]
        by_method["growth"] = growth(growing["cpu_seconds_per_section"])
        by_method["growth_re_encode"] = growth(again["cpu_seconds_per_section"])
    settings = {name: getattr(args, name) for name in ("sections", "width", "height", "crf")}
    return {"machine": machine(), "settings": settings, "goal": GOAL, "runs": runs}


def growth(per_section: list[float]) -> float | None:
    """Return the cost of the later middle sections divided by that of the earlier ones.

    The result is 1 if the cost is constant, and None for too few sections. The first and the last section are
    left out, because their numbers of frames differ from the others.
    """
    middle = per_section[1:-1]
    half = len(middle) // 2
    return sum(middle[-half:]) / sum(middle[:half]) if half else None


def machine() -> dict[str, Any]:
    """Return the machine and the versions for which the figures hold."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = (line.partition(":") for line in info.read_text(encoding="utf-8").splitlines())
        model = next((value.strip() for key, _, value in lines if key.strip() == "model name"), model)
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "pyav": av.__version__,
        "ffmpeg": av.ffmpeg_version_info,
    }


def report(result: dict[str, Any]) -> str:
    """Return the result as a table."""
    settings, host = result["settings"], result["machine"]
    lines = [
        f"{settings['sections']} sections of 36 frames, {settings['width']}x{settings['height']}, "
        f"crf {settings['crf']}",
        f"{host['cpu']}, {host['cores']} cores, PyAV {host['pyav']}, FFmpeg {host['ffmpeg']}, {host['date']}",
        "",
        f"{'order':10}{'method':12}{'wall s':>8}{'CPU s':>8}{'frames':>8}{'file MiB':>10}{'peak MiB':>10}",
    ]
    for mode, by_method in result["runs"].items():
        for method in METHODS:
            run = by_method[method]
            lines.append(
                f"{mode:10}{method:12}{run['seconds']:8.2f}{run['cpu_seconds']:8.2f}{run['frames_encoded']:8}"
                f"{run['file_mib']:10.2f}{run['peak_rss_mib']:10.0f}"
            )
    for mode, by_method in result["runs"].items():
        each = "  ".join(f"{seconds:.2f}" for seconds in by_method["growing"]["seconds_per_section"])
        lines += [
            "",
            f"{mode}: {by_method['times_less']:.2f} times less than re-encoding, by CPU "
            f"{by_method['times_less_cpu']:.2f} (goal {GOAL}); {by_method['times_one_shot']:.2f} times the "
            f"one-shot encode, by CPU {by_method['times_one_shot_cpu']:.2f} (goal {ONE_SHOT_GOAL})",
            f"  seconds per section, growing: {each}",
        ]
        if by_method["growth"] is not None:
            lines.append(
                f"  CPU of later over earlier sections: {by_method['growth']:.2f} growing, "
                f"{by_method['growth_re_encode']:.2f} re-encoding"
            )
    return "\n".join(lines)


def main() -> int:
    """Print the figures of all methods, or run one method, in a child process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument(
        "--sections", type=int, default=10, help="number of sections of 36 frames (%(default)s)"
    )
    parser.add_argument("--width", type=int, default=640, help="in pixels, a multiple of 16 (%(default)s)")
    parser.add_argument("--height", type=int, default=608, help="in pixels, a multiple of 16 (%(default)s)")
    parser.add_argument("--crf", type=int, default=16, help="constant rate factor (%(default)s)")
    for name, kind in (("--method", str), ("--mode", str), ("--frames", Path)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.method:
        sys.stdout.write(json.dumps(measure(args)))
        return 0
    with Rows(__file__) as rows:
        result = run_all(args, rows)
        sys.stdout.write((json.dumps(result, indent=2) if args.json else report(result)) + "\n")
    return rows.exit_code()


if __name__ == "__main__":
    raise SystemExit(main())
