"""Tests in the real ComfyUI over HTTP, on the CPU, with models of toy size.

They need a checkout of ComfyUI, named by COMFYUI_ROOT, and a Python with its packages and Longtake's, named
by COMFYUI_PYTHON (default: this one). Without a checkout they are skipped.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from app.commands.comfyui import NEWEST_TESTED, OLDEST
from app.commands.pack import NAME
from rocm_nodes import NODE_CLASS_MAPPINGS
from tests.support.comfyui_client import Graph, Server, node, wait_until
from tests.support.comfyui_events import listening
from tests.support.comfyui_graphs import EXAMPLES, api_of, framepack, process_facts
from tests.support.comfyui_process import ABSENT, COMFYUI, running
from tests.support.node_runs import KNOWN, unlike

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not COMFYUI, reason=ABSENT)]
API = json.loads((Path(__file__).parent / "comfyui_api.json").read_text())
DECODE = {
    "tile_size": 768, "overlap": 96, "use_rocm_optimizations": True, "precision_mode": "auto",
    "batch_optimization": True,
}  # fmt: skip
CHECKPOINT, WAN, WAN_VAE = (
    "sd3.5_medium.safetensors",
    "wan2.1_t2v_1.3B_bf16.safetensors",
    "wan_2.1_vae.safetensors",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("comfyui")) as server:
        yield server


def wan(frames: int, side: int, last: Any) -> Graph:
    """Return noise and Wan's VAE, as 1 and 2, and the last node after them, as 3."""
    return {
        "1": node("ToyNoise", frames=frames, height=side, width=side),
        "2": node("VAELoader", vae_name=WAN_VAE),
        "3": last,
    }


def sampling(kind: str, **inputs: Any) -> Graph:
    common = {"cfg": 2.0, "sampler_name": "dpmpp_2m_sde", "scheduler": "karras", "steps": 3}
    sampler = node(
        kind, model=["1", 0], positive=["2", 0], negative=["3", 0], latent_image=["4", 0], **common, **inputs
    )
    return {
        "1": node("CheckpointLoaderSimple", ckpt_name=CHECKPOINT), "2": node("ToyConditioning", text="a"),
        "3": node("ToyConditioning", text=""), "5": sampler,
        "4": node("ToyNoise", frames=0, height=8, width=8),
        "6": node("ToyKeep", name=f"{kind}.safetensors", latent=["5", 0]),
    }  # fmt: skip


def test_it_is_a_version_that_the_nodes_claim(server: Server) -> None:
    version = server.get("/system_stats")["system"]["comfyui_version"]
    assert OLDEST <= tuple(map(int, version.split("."))) <= NEWEST_TESTED
    assert (server.base / "custom_nodes" / NAME / "__init__.py").is_file()


def test_the_real_one_takes_what_the_recorded_signatures_take(server: Server) -> None:
    names = list(API["parameters"])
    assert len(names) > 10
    found = server.run({"1": node("ToySignatures", names=" ".join(names))})["1"]["parameters"]
    for name, parameters in zip(names, found, strict=True):
        # Other versions have further parameters after these.
        recorded = API["parameters"][name].split()
        assert parameters.split()[: len(recorded)] == recorded, name


def test_every_node_is_there_with_its_inputs(server: Server) -> None:
    info = server.get("/object_info")
    for name in NODE_CLASS_MAPPINGS:
        facts = info[name]
        assert facts["category"].startswith("ROCm Ninodes/")
        assert facts["input_order"]["required"], name
        assert name not in KNOWN or unlike(name, facts["input"]) == []
    decode = info["ROCMOptimizedVAEDecode"]["input"]
    assert decode["required"]["tile_size"][1]["default"] == 768
    assert decode["optional"]["chunk_size"][0] == ["auto", "1", "2", "4", "8"]
    assert info["ROCmDiffusionLoader"]["input"] == info["ROCMOptimizedUNetLoader"]["input"]
    assert WAN in info["ROCMOptimizedUNetLoader"]["input"]["required"]["unet_name"][0]


def small(graph: Graph) -> Graph:
    """Return an example at a toy's size, with conditionings that need no text encoder."""
    for entry in graph.values():
        inputs = entry["inputs"]
        if entry["class_type"] == "CLIPTextEncode":
            entry |= node("ToyConditioning", text=inputs["text"])
        inputs |= {name: 64 for name in ("width", "height") if name in inputs}
        inputs |= {"steps": 2} if "steps" in inputs else {}
        inputs |= {"length": 5} if "length" in inputs else {}
        inputs |= {"seconds": 1.0} if "seconds" in inputs else {}
    return {number: entry for number, entry in graph.items() if entry["class_type"] != "CLIPLoader"}


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_queued_and_finished(server: Server, example: str) -> None:
    graph = small(api_of(example))
    outputs = server.run(graph)
    saved = next(number for number, entry in graph.items() if entry["class_type"].startswith("Save"))
    assert outputs[saved]["images"]
    ours = [number for number, entry in graph.items() if entry["class_type"].startswith("ROCM")]
    assert all(outputs[number]["text"][0] for number in ours)


@pytest.mark.parametrize(
    ("ours", "stock", "seeds"),
    [
        ("ROCMOptimizedKSampler", "KSampler", {"seed": 5, "denoise": 0.8}),
        ("ROCMOptimizedKSamplerAdvanced", "KSamplerAdvanced", {
            "add_noise": "enable", "noise_seed": 5, "start_at_step": 1, "end_at_step": 2,
            "return_with_leftover_noise": "enable",
        }),
    ],
)  # fmt: skip
def test_a_sample_has_the_bits_of_the_stock_node(
    server: Server, ours: str, stock: str, seeds: dict[str, Any]
) -> None:
    for kind in (ours, stock):
        server.run(sampling(kind, **seeds))
    first = server.kept(f"{ours}.safetensors")
    assert first.std() > 0.1
    assert torch.equal(first, server.kept(f"{stock}.safetensors"))
    server.run(sampling(ours, **seeds, precision_mode="bf16"))
    other = (server.kept(f"{ours}.safetensors") - first).abs().max()
    assert 0 < other < 0.5
    server.run(sampling(ours, **seeds, optimize_for_video=True))
    assert torch.equal(server.kept(f"{ours}.safetensors"), first)


@pytest.mark.parametrize("frames", [0, 3])
def test_a_decode_has_the_bits_of_the_stock_node(server: Server, frames: int) -> None:
    pictures: list[torch.Tensor] = []
    for kind, inputs in (("ROCMOptimizedVAEDecode", DECODE), ("VAEDecode", {})):
        graph = wan(frames, 6, node(kind, samples=["1", 0], vae=["2", 0], **inputs))
        if not frames:
            graph["2"] = node("CheckpointLoaderSimple", ckpt_name=CHECKPOINT)
            graph["3"]["inputs"]["vae"] = ["2", 2]
        graph["4"] = node("ToyKeep", name="decoded.safetensors", image=["3", 0])
        server.run(graph)
        pictures.append(server.kept("decoded.safetensors"))
    assert pictures[0].shape == (4 * frames - 3 if frames else 1, 48, 48, 3)
    assert pictures[0].std() > 0.01
    assert torch.equal(pictures[0], pictures[1])


def faulty(kind: str, frames: int, side: int, name: str = "faulty.safetensors") -> Graph:
    graph = wan(frames, side, node("ToyFault", vae=["2", 0], kind=kind))
    graph["4"] = node("ROCMOptimizedVAEDecode", samples=["1", 0], vae=["3", 0], **DECODE)
    graph["5"] = node("ToyKeep", name=name, image=["4", 0])
    return graph


def test_a_shortage_reaches_the_page_with_the_guide(server: Server) -> None:
    error = server.fail(faulty("memory", 1, 6))
    text = error["exception_message"]
    assert "it needed 8 GB more, but only 1 GB were free" in text
    assert "1. Reduce batch size, width or height. In a decode, set tile_size to 512 or less." in text
    for word in ("preserved_gb", "doctor", "longtake"):
        assert word not in text
    server.run(faulty("none", 1, 6))


def test_a_failing_convolution_gives_the_same_picture(server: Server) -> None:
    server.run(faulty("none", 2, 6))
    expected = server.kept("faulty.safetensors")
    outputs = server.run(faulty("conv", 2, 6))
    assert "attempts" in outputs["4"]["text"][0]
    torch.testing.assert_close(server.kept("faulty.safetensors"), expected, rtol=0, atol=1e-5)
    server.run(faulty("none", 1, 6))


def test_an_interrupt_ends_a_decode_within_one_piece(server: Server) -> None:
    run = server.start(faulty("slow", 12, 8))
    blocks = server.base / "output" / "slow.txt"

    def count() -> int:
        return blocks.read_text().count("block") if blocks.exists() else 0

    wait_until(lambda: count() >= 3)
    before = count()
    server.post("/interrupt", {})
    messages = server.wait(run)["status"]["messages"]
    # Each block takes 0.2 s, and there are more than 100.
    after = count()
    assert after <= before + 8, (before, after)
    assert [name for name, _ in messages][-1] == "execution_interrupted"
    server.run(faulty("none", 1, 6))


def test_the_video_node_shows_its_steps_and_ends_within_one(server: Server) -> None:
    before = process_facts(server)["facts"]
    with listening(server.address) as messages:
        run = server.start(framepack(steps=50, seconds=2.0))
        wait_until(lambda: len(messages.steps) >= 3)
        server.post("/interrupt", {})
        shown = len(messages.steps)
        history = server.wait(run)["status"]["messages"]
        assert [name for name, _ in history][-1] == "execution_interrupted"
        wait_until(lambda: "execution_interrupted" in messages.others)
        assert len(messages.steps) <= shown + 1
        assert messages.steps[0] == (1, 100)  # of two sections
        assert [step for step, _ in messages.steps] == sorted(step for step, _ in messages.steps)
        assert any(b"\xff\xd8\xff" in preview[:16] for preview in messages.previews)  # a JPEG
        assert process_facts(server)["facts"] == before
        # The next run is not ended by it.
        outputs = server.run(framepack(steps=1, seconds=1.0, seed=2))
        assert len(outputs["3"]["images"]) == 37
        assert any(b"37 frames in" in content for content in messages.previews)  # below the node
    assert process_facts(server)["facts"] == before


def test_the_process_is_as_it_was(server: Server) -> None:
    before = process_facts(server)
    graph = wan(
        2,
        6,
        node(
            "ROCMOptimizedVAEDecode", samples=["1", 0], vae=["2", 0], **{**DECODE, "precision_mode": "bf16"}
        ),
    )
    graph["4"] = node("ToyKeep", name="bf16.safetensors", image=["3", 0])
    server.run(graph)
    server.run(faulty("conv", 2, 6))
    server.run(faulty("none", 1, 6))
    assert process_facts(server)["facts"] == before["facts"]


def test_twenty_loads_take_no_more_memory_than_four(server: Server) -> None:
    sizes: list[int] = []

    def loads() -> int:
        return (server.base / "log.txt").read_text(errors="replace").count("rocm_nodes:")

    before = loads()
    for number in range(20):
        name = ("sd3.5_medium.safetensors", "flux1-dev-fp8.safetensors")[number % 2]
        server.run({
            "1": node("ROCMOptimizedCheckpointLoader", ckpt_name=name),
            "2": node("ROCMMemoryOptimizer", optimization_level="aggressive", enable_gc=True,
                      clear_cache=True, cleanup_frequency=10, anything=["1", 0]),
        })  # fmt: skip
        sizes += process_facts(server)["rss"]
    assert loads() >= before + 40  # of loader and optimizer; none came from a cache
    # One more copy of the weights would be 34 MB each time.
    assert sizes[-1] - sizes[3] < 60e6, sizes


@pytest.mark.parametrize(
    ("name", "inputs", "words"),
    [
        ("ROCMOptimizedVAEDecode", {**DECODE, "tile_size": 100}, "Value 100 smaller than min of 256"),
        ("ROCMOptimizedVAEDecode", {**DECODE, "precision_mode": "fp4"}, "Value not in list"),
        (
            "ROCMOptimizedVAEDecode",
            {**DECODE, "overlap": "wide"},
            "Failed to convert an input value to a INT",
        ),
        ("ROCMOptimizedVAEDecode", {}, "Required input is missing"),
    ],
)
def test_changed_workflows_are_refused_in_words(
    server: Server, name: str, inputs: dict[str, Any], words: str
) -> None:
    graph = wan(1, 4, node(name, samples=["1", 0], vae=["2", 0], **inputs))
    graph["4"] = node("ToyKeep", name="x", image=["3", 0])
    assert words in json.dumps(server.post("/prompt", {"prompt": graph}))


def test_the_benchmarks_sizes_are_refused_in_words(server: Server) -> None:
    graph = {
        "1": node("CheckpointLoaderSimple", ckpt_name=CHECKPOINT),
        "2": node(
            "ROCMFluxBenchmark", model=["1", 0], vae=["1", 2], clip=["1", 1], test_resolutions="64x65",
            test_steps=1, test_cfg_values="1", test_hipblas=False, generate_report=False,
        ),
    }  # fmt: skip
    answer = json.dumps(server.post("/prompt", {"prompt": graph}))
    assert "test_resolutions is '64x65'; expected sizes" in answer


def test_the_loaders_describe_what_they_load(server: Server) -> None:
    graph = {
        "1": node("ROCMOptimizedUNetLoader", unet_name="wan2.1_t2v_1.3B_fp8.safetensors"),
        "2": node("ROCMSamplerPerformanceMonitor", model=["1", 0], test_steps=2),
    }
    text = server.run(graph)["1"]["text"][0]
    assert "wan2.1_t2v_1.3B_fp8.safetensors: Wan," in text
    assert "float8_e4m3fn" in text
    assert "quantised (fp8)" in text
    assert "ComfyUI keeps the weights in" in text


def test_monitors_and_benchmark_measure(server: Server) -> None:
    outputs = server.run({
        "1": node("CheckpointLoaderSimple", ckpt_name=CHECKPOINT), "2": node("ToyConditioning", text="a"),
        "3": node("ToyClip"),
        "4": node("ROCMVAEPerformanceMonitor", vae=["1", 2], test_resolution=256),
        "5": node("ROCMSamplerPerformanceMonitor", model=["1", 0], test_steps=3, positive=["2", 0]),
        "6": node(
            "ROCMFluxBenchmark", model=["1", 0], vae=["1", 2], clip=["3", 0], test_resolutions="64x96,96x64",
            test_steps=2, test_cfg_values="1.0,3.5", test_hipblas=True, generate_report=True,
        ),
    })  # fmt: skip
    vae, sampler, benchmark = (outputs[number]["text"][0] for number in "456")
    assert "fp32, one piece: " in vae
    assert "bf16, tiles of 128 pixels: " in vae
    assert "precision_mode " in vae
    assert "failed" not in vae
    assert "3 evaluations at latents 1x16x64x64: " in sampler
    assert benchmark.count("s per step") == 4
    assert "failed" not in benchmark
    (report,) = (server.base / "output").glob("rocm_flux_benchmark_*.json")
    rows = json.loads(report.read_text())["rows"]
    assert [(row["width"], row["height"], row["cfg"]) for row in rows] == [
        (64, 96, 1.0), (64, 96, 3.5), (96, 64, 1.0), (96, 64, 3.5),
    ]  # fmt: skip
    assert all(row["seconds_per_step"] > 0 and row["decode_seconds"] > 0 for row in rows)


def test_a_pickle_is_loaded_by_its_weights_alone(server: Server) -> None:
    weights = load_file(server.base / "models/checkpoints" / CHECKPOINT)
    torch.save(weights, server.base / "models/checkpoints" / "weights.ckpt")
    text = server.run({
        "1": node("ROCMOptimizedCheckpointLoader", ckpt_name="weights.ckpt"),
        "2": node("ToyKeep", name="noise.safetensors", latent=["3", 0]),
        "3": node("ROCMOptimizedKSampler", model=["1", 0], positive=["4", 0], negative=["4", 0],
                  latent_image=["5", 0], cfg=1.0, sampler_name="euler", scheduler="simple", steps=1, seed=1,
                  denoise=1.0),
        "4": node("ToyConditioning", text="a"), "5": node("ToyNoise", frames=0, height=8, width=8),
    })["1"]["text"][0]  # fmt: skip
    assert "weights.ckpt: SD3 + TAESD, " in text
    torch.save({"state_dict": torch.nn.Linear}, server.base / "models/checkpoints" / "code.ckpt")
    graph = {"1": node("ROCMOptimizedCheckpointLoader", ckpt_name="code.ckpt"), "2": node("ToyClip")}
    graph["3"] = node("ROCMVAEPerformanceMonitor", vae=["1", 2], test_resolution=256)
    assert "code.ckpt contains more than weights" in server.fail(graph)["exception_message"]
